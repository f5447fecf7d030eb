//! Arbiter of the mode in which each open file of one node is served (DESIGN section 6): passthrough, cached or direct.
//!
//! Pure: it counts the opens of each inode and answers; the shell registers backing files, pins objects and invalidates
//! page caches as the [`Grant`] says.
//!
//! The kernel's rules (FUSE iomode), which a grant never breaks:
//! - I-LEASE-1: while an inode has a passthrough open, every new open of it is a passthrough open with the same backing
//!   file.
//! - I-LEASE-2: while an inode has a cached open, no new open is a passthrough one (the kernel would answer `ETXTBSY`).
//!   Direct opens go with cached ones.
//!
//! Ours:
//! - I-LEASE-3: a write never goes to the object file past the daemon: a writer is never plain `Passthrough`. Its
//!   `PassthroughDirect` sends reads and writes to the daemon and only mmap to the object file.
//! - I-LEASE-4: while cached opens exist, each write invalidates the page cache of its range.
//! - I-LEASE-5: a passthrough state begins only for an object wholly in one tier, within that tier's budget: what is
//!   pinned cannot be moved out.
//! - I-LEASE-6: no new cached open while a writer is open (its pages would be stale at once); the cache is kept between
//!   opens only if the bytes' version is the one of the last cached open.
//!
//! It refuses to know: files, descriptors, what a version is made of. Bound: one small record per inode that is open,
//! or whose last cached version is remembered, until [`Arbiter::forget`].
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use types::{Ino, TierId};

/// What one open asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRequest {
    pub read: bool,
    pub write: bool,
    /// `O_DIRECT`.
    pub direct: bool,
    /// The one tier that holds the whole object, and how many bytes; `None` when it is in several or in none.
    pub wholly_in: Option<(TierId, u64)>,
    /// The kernel offers passthrough, the mount may use it, and the object's policy does not forbid it.
    pub passthrough_allowed: bool,
    /// Changes with every change of the bytes; the page cache is kept when it is the one of the last cached open.
    pub version: u64,
}

/// How the kernel treats one open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// FOPEN_PASSTHROUGH: the kernel reads the object file itself.
    Passthrough,
    /// Page cache.
    Cached,
    /// FOPEN_DIRECT_IO: every read and write comes to us (shared mmap through FUSE_DIRECT_IO_ALLOW_MMAP).
    Direct,
    /// FOPEN_PASSTHROUGH | FOPEN_DIRECT_IO: reads and writes come to us, mmap goes to the object file.
    PassthroughDirect,
}

impl Mode {
    /// Counts as a passthrough open for the kernel: it needs the backing id, the object is pinned in its tier.
    pub const fn is_passthrough(self) -> bool {
        matches!(self, Mode::Passthrough | Mode::PassthroughDirect)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    pub mode: Mode,
    /// FOPEN_KEEP_CACHE: the page cache still holds the current bytes.
    pub keep_cache: bool,
    /// Cached opens exist: each write must invalidate the page cache of its range. Later opens may change it;
    /// [`Arbiter::invalidate_on_write`] always knows.
    pub invalidate_on_write: bool,
    /// This open began the passthrough state: register the backing file and pin the object in this tier.
    pub began_passthrough: Option<TierId>,
}

/// What a close left behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed {
    /// The last passthrough open is gone: release the backing file and the pin.
    pub ended_passthrough: bool,
    /// The last open of the inode is gone.
    pub last: bool,
}

#[derive(Default)]
struct State {
    /// Opens by mode; passthrough covers both of its modes.
    passthrough: u32,
    cached: u32,
    direct: u32,
    writers: u32,
    /// Where the object is pinned while `passthrough > 0`, and the bytes counted there.
    pinned: Option<(TierId, u64)>,
    /// Of the bytes in the page cache, as far as we know.
    cached_version: Option<u64>,
}

impl State {
    fn opens(&self) -> u32 {
        self.passthrough + self.cached + self.direct
    }
}

pub struct Arbiter {
    budget: [u64; 3],
    pinned: [u64; 3],
    inodes: BTreeMap<Ino, State>,
}

impl Arbiter {
    /// `passthrough_budget`: bytes of objects pinned by passthrough at once, per tier (`TierId::index()`).
    pub fn new(passthrough_budget: [u64; 3]) -> Arbiter {
        Arbiter { budget: passthrough_budget, pinned: [0; 3], inodes: BTreeMap::new() }
    }

    /// A smaller budget ends no passthrough that is there; it only allows no more.
    pub fn set_budget(&mut self, tier: TierId, bytes: u64) {
        self.budget[tier.index()] = bytes;
    }

    pub fn open(&mut self, ino: Ino, request: OpenRequest) -> Grant {
        let room = request
            .wholly_in
            .filter(|(tier, bytes)| {
                let pinned = self.pinned[tier.index()];
                pinned.checked_add(*bytes).is_some_and(|sum| sum <= self.budget[tier.index()])
            })
            .filter(|_| request.passthrough_allowed);
        let state = self.inodes.entry(ino).or_default();
        let mode = choose(state, &request, room.is_some());
        let mut grant =
            Grant { mode, keep_cache: false, invalidate_on_write: false, began_passthrough: None };
        match mode {
            Mode::Passthrough | Mode::PassthroughDirect => {
                if state.passthrough == 0
                    && let Some((tier, bytes)) = room
                {
                    state.pinned = room;
                    self.pinned[tier.index()] += bytes;
                    grant.began_passthrough = Some(tier);
                }
                state.passthrough += 1;
            }
            Mode::Cached => {
                grant.keep_cache = state.cached_version == Some(request.version);
                state.cached_version = Some(request.version);
                state.cached += 1;
            }
            Mode::Direct => state.direct += 1,
        }
        state.writers += u32::from(request.write);
        grant.invalidate_on_write = state.cached > 0;
        grant
    }

    /// `mode` and `write` as they were at the open; `version` of the bytes now. `None`: there is no such open.
    pub fn close(&mut self, ino: Ino, mode: Mode, write: bool, version: u64) -> Option<Closed> {
        let state = self.inodes.get_mut(&ino)?;
        let writers = state.writers.checked_sub(u32::from(write))?;
        let count = match mode {
            Mode::Passthrough | Mode::PassthroughDirect => &mut state.passthrough,
            Mode::Cached => &mut state.cached,
            Mode::Direct => &mut state.direct,
        };
        *count = count.checked_sub(1)?;
        state.writers = writers;
        // Writes that came while the file was cached invalidated what they changed: the cache is of this version.
        // Without a cached open they may not have, so the old version stays and will not match.
        if mode == Mode::Cached {
            state.cached_version = Some(version);
        }
        let ended = if mode.is_passthrough() && state.passthrough == 0 { state.pinned.take() } else { None };
        if let Some((tier, bytes)) = ended {
            self.pinned[tier.index()] -= bytes;
        }
        let last = state.opens() == 0;
        if last && state.cached_version.is_none() {
            self.inodes.remove(&ino);
        }
        Some(Closed { ended_passthrough: ended.is_some(), last })
    }

    /// The kernel forgot the inode, or it is gone: its page cache with it. Nothing happens while it is open.
    pub fn forget(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|s| s.opens() == 0) {
            self.inodes.remove(&ino);
        }
    }

    /// Must a write to this inode, from anywhere in this process, invalidate the page cache of its range?
    pub fn invalidate_on_write(&self, ino: Ino) -> bool {
        self.inodes.get(&ino).is_some_and(|s| s.cached > 0)
    }

    /// The tier that the object must not leave now.
    pub fn passthrough_tier(&self, ino: Ino) -> Option<TierId> {
        self.inodes.get(&ino)?.pinned.map(|(tier, _)| tier)
    }

    /// Bytes pinned by passthrough in a tier.
    pub fn pinned_bytes(&self, tier: TierId) -> u64 {
        self.pinned[tier.index()]
    }
}

/// The mode of one more open. `room`: a passthrough state could begin. `O_DIRECT` readers take passthrough too: the
/// kernel passes the flag on to the object file.
fn choose(state: &State, request: &OpenRequest, room: bool) -> Mode {
    if state.passthrough > 0 {
        return if request.write { Mode::PassthroughDirect } else { Mode::Passthrough };
    }
    if request.write || state.writers > 0 {
        return Mode::Direct;
    }
    // A direct open that is mapped holds the page cache as a cached one does, and we are not told.
    if room && state.cached == 0 && state.direct == 0 {
        return Mode::Passthrough;
    }
    if request.direct { Mode::Direct } else { Mode::Cached }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino::ROOT;

    fn request(write: bool, whole: bool) -> OpenRequest {
        OpenRequest {
            read: true,
            write,
            direct: false,
            wholly_in: whole.then_some((TierId::Memory, 60)),
            passthrough_allowed: true,
            version: 1,
        }
    }

    /// What a test does next: an open, a write (a new version), or the close of the n-th open.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Open { write: bool, direct: bool, whole: bool },
        Write,
        Close(usize),
    }

    const OPENS: [Step; 5] = [
        Step::Open { write: false, direct: false, whole: true },
        Step::Open { write: false, direct: false, whole: false },
        Step::Open { write: true, direct: false, whole: true },
        Step::Open { write: true, direct: false, whole: false },
        Step::Open { write: false, direct: true, whole: true },
    ];

    /// The rules again, over the plain list of opens, and the kernel's page cache as the version of its oldest page.
    #[derive(Default)]
    struct Kernel {
        opens: Vec<(Mode, bool)>,
        version: u64,
        cache: Option<u64>,
        pinned: bool,
    }

    impl Kernel {
        fn count(&self, test: fn(Mode) -> bool) -> usize {
            self.opens.iter().filter(|(mode, _)| test(*mode)).count()
        }
        fn open(&mut self, write: bool, direct: bool, whole: bool, grant: Grant) {
            let passing = self.count(Mode::is_passthrough);
            let cached = self.count(|m| m == Mode::Cached);
            let writers = self.opens.iter().any(|(_, write)| *write);
            let mode = grant.mode;
            assert!(passing == 0 || mode.is_passthrough(), "I-LEASE-1");
            assert!(cached == 0 || !mode.is_passthrough(), "I-LEASE-2");
            assert!(!write || mode != Mode::Passthrough && mode != Mode::Cached, "I-LEASE-3");
            assert!(!mode.is_passthrough() || passing > 0 || whole, "I-LEASE-5");
            assert!(mode != Mode::Cached || !writers, "I-LEASE-6");
            assert_eq!(grant.began_passthrough.is_some(), mode.is_passthrough() && passing == 0);
            // What passthrough is for: a reader of a file that nothing else has open gets it.
            assert!(!self.opens.is_empty() || write || !whole || mode == Mode::Passthrough);
            assert!(!direct || mode != Mode::Cached);
            self.pinned |= grant.began_passthrough.is_some();
            if mode == Mode::Cached {
                if !grant.keep_cache {
                    self.cache = Some(self.version);
                }
                assert_eq!(self.cache, Some(self.version), "stale pages shown");
            }
            assert_eq!(
                grant.invalidate_on_write,
                self.count(|m| m == Mode::Cached) > 0 || mode == Mode::Cached
            );
            self.opens.push((mode, write));
        }
        fn write(&mut self, invalidate: bool) {
            self.version += 1;
            if invalidate {
                self.cache = Some(self.version);
            }
            assert!(self.count(|m| m == Mode::Cached) == 0 || invalidate, "I-LEASE-4");
        }
    }

    fn run(steps: &[Step]) -> usize {
        let (mut arbiter, mut kernel) = (Arbiter::new([100, 0, 0]), Kernel::default());
        for step in steps {
            match *step {
                Step::Open { write, direct, whole } => {
                    let asked = OpenRequest { version: kernel.version, direct, ..request(write, whole) };
                    kernel.open(write, direct, whole, arbiter.open(INO, asked));
                }
                Step::Write => kernel.write(arbiter.invalidate_on_write(INO)),
                Step::Close(n) => {
                    let (mode, write) = kernel.opens.remove(n);
                    let closed = arbiter.close(INO, mode, write, kernel.version).unwrap();
                    let passing = kernel.count(Mode::is_passthrough) > 0;
                    assert_eq!(closed.ended_passthrough, mode.is_passthrough() && !passing);
                    assert_eq!(closed.last, kernel.opens.is_empty());
                    kernel.pinned &= passing;
                }
            }
            assert_eq!(arbiter.passthrough_tier(INO).is_some(), kernel.pinned);
            assert_eq!(arbiter.pinned_bytes(TierId::Memory), if kernel.pinned { 60 } else { 0 });
        }
        kernel.opens.len()
    }

    #[test]
    fn every_short_history_keeps_the_rules() {
        // Goal: all I-LEASE invariants. Method: every sequence of up to six opens, writes and closes, each checked
        // against the rules over a plain list of opens and a model of the kernel's page cache.
        fn extend(steps: &mut Vec<Step>) {
            let opens = run(steps);
            if steps.len() == 6 {
                return;
            }
            let closes = (0..opens).map(Step::Close);
            for step in OPENS.into_iter().chain([Step::Write]).chain(closes) {
                steps.push(step);
                extend(steps);
                steps.pop();
            }
        }
        extend(&mut Vec::new());
    }

    #[test]
    fn the_budget_bounds_what_passthrough_pins() {
        // Goal: the sum over inodes stays within the budget, and comes back at the last close.
        let mut arbiter = Arbiter::new([100, 0, 0]);
        let other = Ino::from_raw(2).unwrap();
        assert_eq!(arbiter.open(INO, request(false, true)).mode, Mode::Passthrough);
        assert_eq!(arbiter.open(other, request(false, true)).mode, Mode::Cached);
        assert_eq!(arbiter.pinned_bytes(TierId::Memory), 60);
        assert!(arbiter.close(INO, Mode::Passthrough, false, 1).unwrap().ended_passthrough);
        assert_eq!(arbiter.close(other, Mode::Cached, false, 1).map(|c| c.last), Some(true));
        arbiter.forget(other);
        arbiter.set_budget(TierId::Memory, 59);
        assert_eq!(arbiter.open(other, request(false, true)).mode, Mode::Cached);
        let huge = OpenRequest { wholly_in: Some((TierId::Memory, u64::MAX)), ..request(false, true) };
        assert_eq!(arbiter.open(INO, huge).mode, Mode::Cached);
    }

    #[test]
    fn closes_without_an_open_change_nothing() {
        // Goal: a close that fits no open is refused, whatever part of it is wrong.
        let mut arbiter = Arbiter::new([100; 3]);
        assert_eq!(arbiter.close(INO, Mode::Direct, false, 1), None);
        arbiter.open(INO, request(true, true));
        assert_eq!(arbiter.close(INO, Mode::Cached, true, 1), None);
        arbiter.forget(INO);
        let closed = arbiter.close(INO, Mode::Direct, true, 1);
        assert_eq!(closed, Some(Closed { ended_passthrough: false, last: true }));
        assert_eq!(arbiter.close(INO, Mode::Direct, true, 1), None);
    }
}
