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
//!   `PassthroughDirect` sends reads and writes to the daemon and only mmap to the object file. So does that of an
//!   `O_DIRECT` reader of a device, which would refuse what is not aligned.
//! - I-LEASE-4: while cached opens exist, each write that did not go through the page cache invalidates its range there.
//! - I-LEASE-5: a passthrough state begins only for an object wholly in one tier, within that tier's budget: what is
//!   pinned cannot be moved out. It lasts, with its charge, until the shell says that nobody maps the file any more
//!   ([`Arbiter::end_passthrough`]), be it open or not: who opens it meanwhile shares the object file with the mappings.
//! - I-LEASE-6: no new cached open while a writer is open (its pages would be stale at once); the cache is kept between
//!   opens only if the bytes' version is the one of the last cached open.
//! - I-LEASE-7: every file can be mapped. Where the kernel maps no files opened for direct I/O (before Linux 6.6), writers
//!   and `O_DIRECT` take the page cache as all others do, in place of I-LEASE-6's first half: what they write is there
//!   at once. Only a file whose end is lost is direct there, and cannot be mapped for sharing.
//!
//! It refuses to know: files, descriptors, what a version is made of. Bound: one small record per inode that is open,
//! or whose last cached version is remembered, until [`Arbiter::forget`].
//!
//! Beside it: [`coherence`], who of several clients may keep what, and has which locks.
#![forbid(unsafe_code)]

pub mod coherence;

use std::collections::BTreeMap;

use types::{Ino, TierId};

/// What one open asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRequest {
    pub read: bool,
    pub write: bool,
    /// `O_DIRECT`.
    pub direct: bool,
    /// The size that the kernel knows is not where reads have to end: they must reach the daemon.
    pub end_is_lost: bool,
    /// The kernel maps direct opens, and drops cached pages that a direct write changes (Linux 6.6).
    pub direct_mmap: bool,
    /// The one tier that holds the whole object, and how many bytes; `None` when it is in several or in none.
    pub wholly_in: Option<(TierId, u64)>,
    /// The kernel offers passthrough, the mount may use it, and the object's policy does not forbid it.
    pub passthrough_allowed: bool,
    /// Changes with every change of the bytes that the kernel does not see itself; the page cache is kept when it is the
    /// one of the last cached open.
    pub version: u64,
}

/// How the kernel treats one open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// FOPEN_PASSTHROUGH: the kernel reads the object file itself.
    Passthrough,
    /// Page cache.
    Cached,
    /// FOPEN_DIRECT_IO: every read and write comes to us (shared mmap only with FUSE_DIRECT_IO_ALLOW_MMAP).
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
    /// The last passthrough open is gone. Mappings may be left: the state lingers until [`Arbiter::end_passthrough`].
    pub lingers: bool,
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
    /// Those of them that write beside the page cache.
    direct_writers: u32,
    /// Where the object is pinned while it is in passthrough, open or lingering, and the bytes counted there.
    pinned: Option<(TierId, u64)>,
    /// Of the bytes in the page cache, as far as we know.
    cached_version: Option<u64>,
    /// The kernel forgot the inode while it lingered.
    forgotten: bool,
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
        if std::mem::take(&mut state.forgotten) {
            state.cached_version = None;
        }
        let mode = choose(state, &request, room.is_some());
        let mut grant =
            Grant { mode, keep_cache: false, invalidate_on_write: false, began_passthrough: None };
        match mode {
            Mode::Passthrough | Mode::PassthroughDirect => {
                if state.pinned.is_none()
                    && let Some((tier, bytes)) = room
                {
                    state.pinned = room;
                    self.pinned[tier.index()] += bytes;
                    grant.began_passthrough = Some(tier);
                }
                state.passthrough += 1;
            }
            Mode::Cached => {
                grant.keep_cache = state.cached_version == Some(request.version) && state.direct_writers == 0;
                state.cached_version = Some(request.version);
                state.cached += 1;
            }
            Mode::Direct => {
                state.direct += 1;
                state.direct_writers += u32::from(request.write);
            }
        }
        state.writers += u32::from(request.write);
        grant.invalidate_on_write = state.cached > 0;
        grant
    }

    /// An object is read in place, or lingers so, since before a start.
    pub fn resume_passthrough(&mut self, ino: Ino, tier: TierId, bytes: u64) {
        let state = self.inodes.entry(ino).or_default();
        if state.pinned.is_none() {
            state.pinned = Some((tier, bytes));
            self.pinned[tier.index()] += bytes;
        }
    }

    /// An open file of before a start, with the mode that the kernel was told. Of its pages nothing is known.
    pub fn resume(&mut self, ino: Ino, mode: Mode, write: bool) {
        let state = self.inodes.entry(ino).or_default();
        match mode {
            Mode::Passthrough | Mode::PassthroughDirect => state.passthrough += 1,
            Mode::Cached => state.cached += 1,
            Mode::Direct => {
                state.direct += 1;
                state.direct_writers += u32::from(write);
            }
        }
        state.writers += u32::from(write);
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
        let left = count.checked_sub(1)?;
        let beside = write && mode == Mode::Direct;
        let direct_writers = state.direct_writers.checked_sub(u32::from(beside))?;
        *count = left;
        (state.writers, state.direct_writers) = (writers, direct_writers);
        // Writes that came while the file was cached invalidated what they changed: the cache is of this version.
        // Without a cached open they may not have, so the old version stays and will not match. A write that is under way
        // will not any more, and the kernel dropped the pages before it: those that were read since are old.
        if mode == Mode::Cached {
            state.cached_version = Some(version).filter(|_| state.direct_writers == 0);
        }
        let lingers = mode.is_passthrough() && state.passthrough == 0;
        let last = state.opens() == 0;
        if last && state.pinned.is_none() && state.cached_version.is_none() {
            self.inodes.remove(&ino);
        }
        Some(Closed { lingers, last })
    }

    /// Nobody reaches the object file by itself any more, or never did. `false`, and nothing changed, while a
    /// passthrough open is there.
    pub fn end_passthrough(&mut self, ino: Ino) -> bool {
        let Some(state) = self.inodes.get_mut(&ino) else { return true };
        if state.passthrough > 0 {
            return false;
        }
        if let Some((tier, bytes)) = state.pinned.take() {
            self.pinned[tier.index()] -= bytes;
        }
        if state.opens() == 0 && (state.forgotten || state.cached_version.is_none()) {
            self.inodes.remove(&ino);
        }
        true
    }

    /// The kernel forgot the inode, or it is gone: its page cache with it. Nothing happens while it is open.
    pub fn forget(&mut self, ino: Ino) {
        let Some(state) = self.inodes.get_mut(&ino).filter(|s| s.opens() == 0) else { return };
        if state.pinned.is_some() {
            state.forgotten = true;
        } else {
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

/// The mode of one more open. `room`: a passthrough state could begin. The kernel opens the object file with the flags of
/// the caller: `O_DIRECT` is nothing to memory, while a device refuses what is not aligned.
fn choose(state: &State, request: &OpenRequest, room: bool) -> Mode {
    let on_device = |pinned: Option<(TierId, u64)>| pinned.is_some_and(|(tier, _)| tier != TierId::Memory);
    if state.pinned.is_some() {
        let ask_us = request.write || request.direct && on_device(state.pinned);
        return if ask_us { Mode::PassthroughDirect } else { Mode::Passthrough };
    }
    let written = request.write || state.writers > 0;
    // A direct open that is mapped holds the page cache as a cached one does, and we are not told.
    let unaligned = request.direct && on_device(request.wholly_in);
    if room && !written && !unaligned && state.cached == 0 && state.direct == 0 {
        return Mode::Passthrough;
    }
    let beside = request.direct_mmap && (written || request.direct);
    if beside || request.end_is_lost { Mode::Direct } else { Mode::Cached }
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
            end_is_lost: false,
            direct_mmap: true,
            wholly_in: whole.then_some((TierId::Memory, 60)),
            passthrough_allowed: true,
            version: 1,
        }
    }

    /// What a test does next: an open, a write (a new version), or the close of the n-th open.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Open {
            write: bool,
            direct: bool,
            whole: bool,
            lost: bool,
        },
        /// By the n-th open, which is a writer's.
        Write(usize),
        Close(usize),
        /// Nobody maps the file any more.
        Unmapped,
        Forget,
    }

    const fn opening(write: bool, direct: bool, whole: bool, lost: bool) -> Step {
        Step::Open { write, direct, whole, lost }
    }

    const OPENS: [Step; 7] = [
        opening(false, false, true, false),
        opening(false, false, false, false),
        opening(true, false, true, false),
        opening(true, false, false, false),
        opening(false, true, true, false),
        opening(false, false, false, true),
        opening(true, false, false, true),
    ];

    /// The rules again, over the plain list of opens, and the kernel's page cache as the version of its oldest page.
    #[derive(Default)]
    struct Kernel {
        direct_mmap: bool,
        opens: Vec<(Mode, bool)>,
        /// Of the bytes.
        version: u64,
        /// As the client counts: changes that the kernel does not see itself.
        told: u64,
        cache: Option<u64>,
        /// In passthrough: open, or perhaps mapped.
        pinned: bool,
    }

    impl Kernel {
        fn count(&self, test: fn(Mode) -> bool) -> usize {
            self.opens.iter().filter(|(mode, _)| test(*mode)).count()
        }
        /// Does such an open write where the kernel does not look?
        fn writes_unseen(&self, mode: Mode, write: bool) -> bool {
            write && (mode.is_passthrough() || mode == Mode::Direct && !self.direct_mmap)
        }
        fn open(&mut self, (write, direct, whole, lost): (bool, bool, bool, bool), grant: Grant) {
            let cached = self.count(|m| m == Mode::Cached);
            let writers = self.opens.iter().any(|(_, write)| *write);
            let mode = grant.mode;
            assert!(!self.pinned || mode.is_passthrough(), "I-LEASE-1, -5");
            assert!(cached == 0 || !mode.is_passthrough(), "I-LEASE-2");
            assert!(!write || mode != Mode::Passthrough, "I-LEASE-3");
            assert!(!mode.is_passthrough() || self.pinned || whole, "I-LEASE-5");
            if self.direct_mmap {
                assert!(mode != Mode::Cached || !writers && !write && !direct, "I-LEASE-6");
            } else {
                assert!(mode != Mode::Direct || lost, "I-LEASE-7");
            }
            assert_eq!(grant.began_passthrough.is_some(), mode.is_passthrough() && !self.pinned);
            // What passthrough is for: a reader of a file that nothing else has open gets it.
            assert!(!self.opens.is_empty() || write || !whole || mode == Mode::Passthrough);
            assert!(!lost || mode != Mode::Cached);
            self.pinned |= mode.is_passthrough();
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
            self.told += u64::from(self.writes_unseen(mode, write));
            self.opens.push((mode, write));
        }
        fn write(&mut self, n: usize, invalidate: bool) {
            self.version += 1;
            let mode = self.opens[n].0;
            // Through the page cache, or seen by the kernel, or dropped as we ask.
            if mode == Mode::Cached || mode == Mode::Direct && self.direct_mmap || invalidate {
                self.cache = Some(self.version);
            }
            assert!(self.count(|m| m == Mode::Cached) == 0 || invalidate, "I-LEASE-4");
        }
    }

    fn run(direct_mmap: bool, steps: &[Step]) -> Vec<(Mode, bool)> {
        let (mut arbiter, mut kernel) =
            (Arbiter::new([100, 0, 0]), Kernel { direct_mmap, ..Kernel::default() });
        for step in steps {
            match *step {
                Step::Open { write, direct, whole, lost } => {
                    let mut asked =
                        OpenRequest { direct_mmap, version: kernel.told, ..request(write, whole) };
                    (asked.direct, asked.end_is_lost) = (direct, lost);
                    kernel.open((write, direct, whole, lost), arbiter.open(INO, asked));
                }
                Step::Write(n) => kernel.write(n, arbiter.invalidate_on_write(INO)),
                Step::Close(n) => {
                    let (mode, write) = kernel.opens.remove(n);
                    kernel.told += u64::from(kernel.writes_unseen(mode, write));
                    let closed = arbiter.close(INO, mode, write, kernel.told).unwrap();
                    let passing = kernel.count(Mode::is_passthrough) > 0;
                    assert_eq!(closed.lingers, mode.is_passthrough() && !passing);
                    assert_eq!(closed.last, kernel.opens.is_empty());
                }
                Step::Unmapped => {
                    let passing = kernel.count(Mode::is_passthrough) > 0;
                    assert_eq!(arbiter.end_passthrough(INO), !passing);
                    kernel.pinned &= passing;
                }
                Step::Forget => {
                    arbiter.forget(INO);
                    if kernel.opens.is_empty() {
                        kernel.cache = None;
                    }
                }
            }
            assert_eq!(arbiter.passthrough_tier(INO).is_some(), kernel.pinned);
            assert_eq!(arbiter.pinned_bytes(TierId::Memory), if kernel.pinned { 60 } else { 0 });
        }
        kernel.opens
    }

    #[test]
    fn every_short_history_keeps_the_rules() {
        // Goal: all I-LEASE invariants. Method: every sequence of up to six opens, writes and closes, each checked
        // against the rules over a plain list of opens and a model of the kernel's page cache, of kernels that map direct
        // opens and of those that do not.
        fn extend(direct_mmap: bool, steps: &mut Vec<Step>) {
            let opens = run(direct_mmap, steps);
            if steps.len() == 6 {
                return;
            }
            let closes = (0..opens.len()).map(Step::Close);
            let writes = (0..opens.len()).filter(|n| opens[*n].1).map(Step::Write);
            for step in OPENS.into_iter().chain(writes).chain([Step::Unmapped, Step::Forget]).chain(closes) {
                steps.push(step);
                extend(direct_mmap, steps);
                steps.pop();
            }
        }
        extend(true, &mut Vec::new());
        extend(false, &mut Vec::new());
    }

    #[test]
    fn the_budget_bounds_what_passthrough_pins() {
        // Goal: the sum over inodes stays within the budget, and comes back at the last close.
        let mut arbiter = Arbiter::new([100, 0, 0]);
        let other = Ino::from_raw(2).unwrap();
        assert_eq!(arbiter.open(INO, request(false, true)).mode, Mode::Passthrough);
        assert_eq!(arbiter.open(other, request(false, true)).mode, Mode::Cached);
        assert_eq!(arbiter.pinned_bytes(TierId::Memory), 60);
        assert!(arbiter.close(INO, Mode::Passthrough, false, 1).unwrap().lingers);
        assert_eq!(arbiter.pinned_bytes(TierId::Memory), 60, "a mapping may be left");
        assert!(arbiter.end_passthrough(INO));
        assert_eq!(arbiter.pinned_bytes(TierId::Memory), 0);
        assert_eq!(arbiter.close(other, Mode::Cached, false, 1).map(|c| c.last), Some(true));
        arbiter.forget(other);
        arbiter.set_budget(TierId::Memory, 59);
        assert_eq!(arbiter.open(other, request(false, true)).mode, Mode::Cached);
        let huge = OpenRequest { wholly_in: Some((TierId::Memory, u64::MAX)), ..request(false, true) };
        assert_eq!(arbiter.open(INO, huge).mode, Mode::Cached);
    }

    #[test]
    fn regression_who_opens_a_lingering_file_shares_it_with_its_mappings() {
        // Goal: pages of the object file and of the kernel's cache are never mapped side by side, and a lingering file's bytes
        // stay charged. Method: a reader closes, a writer opens before the shell has found that nothing is mapped.
        let mut arbiter = Arbiter::new([100, 0, 0]);
        arbiter.open(INO, request(false, true));
        arbiter.close(INO, Mode::Passthrough, false, 1).unwrap();
        let other = Ino::from_raw(2).unwrap();
        assert_eq!(arbiter.open(other, request(false, true)).mode, Mode::Cached, "no room beside it");
        // The object is not asked for again: what lingers may have been written by others.
        let grant = arbiter.open(INO, request(true, false));
        assert_eq!((grant.mode, grant.began_passthrough), (Mode::PassthroughDirect, None));
        assert!(!arbiter.end_passthrough(INO));
        arbiter.close(INO, Mode::PassthroughDirect, true, 1).unwrap();
        arbiter.forget(INO);
        assert_eq!(arbiter.passthrough_tier(INO), Some(TierId::Memory));
        assert!(arbiter.end_passthrough(INO));
        assert!(!arbiter.inodes.contains_key(&INO));
    }

    #[test]
    fn regression_direct_readers_of_a_device_ask_us() {
        // Goal: `O_DIRECT` needs no alignment. Method: such a reader of each tier, alone and beside one in passthrough.
        for (tier, alone, beside) in [
            (TierId::Memory, Mode::Passthrough, Mode::Passthrough),
            (TierId::Ssd, Mode::Direct, Mode::PassthroughDirect),
            (TierId::Nearline, Mode::Direct, Mode::PassthroughDirect),
        ] {
            let mut arbiter = Arbiter::new([100; 3]);
            let plain = OpenRequest { wholly_in: Some((tier, 60)), ..request(false, true) };
            let direct = OpenRequest { direct: true, ..plain };
            assert_eq!(arbiter.open(INO, direct).mode, alone);
            let other = Ino::from_raw(2).unwrap();
            let mut arbiter = Arbiter::new([100; 3]);
            assert_eq!(arbiter.open(other, plain).mode, Mode::Passthrough);
            assert_eq!(arbiter.open(other, direct).mode, beside);
        }
    }

    #[test]
    fn regression_pages_read_during_a_write_are_not_kept() {
        // Goal: no old page outlives a write. Method: the last cached reader closes while a writer beside the page cache is
        // open, perhaps in the middle of a write: the kernel dropped the pages before it, the reader had them read again,
        // and when the write ends nobody is there any more for whom they would be dropped.
        let mut arbiter = Arbiter::new([0; 3]);
        let plain = request(false, false);
        assert_eq!(arbiter.open(INO, plain).mode, Mode::Cached);
        assert_eq!(arbiter.open(INO, request(true, false)).mode, Mode::Direct);
        arbiter.close(INO, Mode::Cached, false, 1).unwrap();
        assert!(!arbiter.invalidate_on_write(INO));
        arbiter.close(INO, Mode::Direct, true, 1).unwrap();
        assert!(!arbiter.open(INO, plain).keep_cache);
        arbiter.close(INO, Mode::Cached, false, 1).unwrap();
        assert!(arbiter.open(INO, plain).keep_cache, "nothing was written since");
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
        assert_eq!(closed, Some(Closed { lingers: false, last: true }));
        assert_eq!(arbiter.close(INO, Mode::Direct, true, 1), None);
    }
}
