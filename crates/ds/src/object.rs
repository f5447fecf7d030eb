//! The in-memory state of one object.
//!
//! Invariants:
//! - I-DS-1: bytes of a tier's file are read only where the map says that the tier is valid, under the state lock.
//! - I-DS-2: a tier that the map does not name is not valid after a crash either: the map is saved before the
//!   first byte that makes another copy old. A map that could not be saved goes back to what was.
//! - I-DS-3: in a SAU where a tier is valid, its file holds zeros (or ends) from the object's size on.
//!   A linked near-line's file has what it has: it counts up to `State::linked_len`, and readers put zeros behind that. It is
//!   no tier's file in what follows, nor in I-DS-1: nobody here changes it, so it is read without the lock.
//! - I-DS-4: a range of a device copy is changed, cut or punched only after the map that no longer vouches for it is durable.

use crate::{fetch::Reading, noting::Noting, theirs::Theirs, unsynced::Unsynced};
use layout::{SauIndex, SauMap};
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
};
use std::time::{Duration, Instant};
use store::ObjectFd;
use types::{Ino, TierId, TierSet, Timestamp};

const NO_TIME: i64 = i64::MIN;

fn nanos(time: Option<Timestamp>) -> i64 {
    time.and_then(|time| i64::try_from(time.as_nanos()).ok()).unwrap_or(NO_TIME)
}

/// Whoever keeps track of objects hears of the end of each.
pub(crate) trait Home: Send + Sync {
    fn dropped(&self, ino: Ino, left: Left);
}

/// What an object leaves that nobody uses any more.
pub(crate) struct Left {
    /// The core has heard of it.
    pub known: bool,
    /// It has bytes that are in memory alone.
    pub at_risk: bool,
    pub verified: Verified,
}

/// One object: a file's part on this data server.
pub struct Object {
    pub(crate) ino: Ino,
    pub(crate) me: Weak<Object>,
    pub(crate) home: Weak<dyn Home>,
    pub(crate) state: RwLock<State>,
    pub(crate) unsynced: Arc<Unsynced>,
    /// Of a linked near-line.
    pub(crate) theirs: Theirs,
    pub(crate) reading: Reading,
    /// Held by whoever copies SAUs of this object: a move, a flush, an fsync.
    pub(crate) copying: Mutex<()>,
    /// How many wait for the present copier to stop.
    pub(crate) wanting: AtomicU32,
    /// How many wait to make the object safe themselves.
    pub(crate) syncing: AtomicU32,
    /// SAUs whose fastest device copy was compared with its checksum in this mount, since it was made.
    pub(crate) verified: Mutex<Verified>,
    /// Held by who compares a SAU, by its number: who wants the same one waits, and finds it done.
    pub(crate) verifying: [Mutex<()>; 4],
    mtime: AtomicI64,
    touched: AtomicU64,
    readers: AtomicU32,
    writers: AtomicU32,
    passthrough: AtomicU32,
    /// Second in which the core last heard that the object is dirty, plus one.
    pub(crate) noticed: AtomicU64,
    /// The metadata do not know yet that the file is being written: the next record of the map tells them, in the same
    /// commit.
    pub(crate) first_write: AtomicBool,
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            let verified = std::mem::take(self.verified.get_mut());
            let state = self.state.get_mut();
            let left = Left { known: state.known, at_risk: state.map.is_dirty(), verified };
            home.dropped(self.ino, left);
        }
    }
}

pub(crate) struct State {
    pub map: SauMap,
    /// The core was told of the object. It is not before the object takes space.
    pub known: bool,
    /// Loaded for a movement, and attached by nobody since: the core may forget it with the end of the movement.
    pub for_movement: bool,
    /// A record of the map is stored. Without one, nothing was ever written.
    pub recorded: bool,
    /// The map is that of a linked file without a record: the first change saves one.
    pub stub: bool,
    /// How much of their file counts, where near-line is linked; behind it the object has zeros. Never more than `size`.
    pub linked_len: u64,
    /// How often near-line's SAUs came to be those of another file.
    pub era: u64,
    /// A version is being copied, or was and is not published yet.
    pub version: Option<Noting>,
    /// The record is not what the object is, and could not be saved: whatever changes the object saves it first.
    pub unsaved: bool,
    pub size: u64,
    /// When it grew last, in this use of the object; or when that began.
    pub grown: Instant,
    /// Time of the last write by the files, as they were when the object was loaded.
    pub found_mtime: Option<Timestamp>,
    pub files: [Option<Arc<ObjectFd>>; 3],
    /// Tiers where a file may be that was not looked for: the map has nothing there, so nothing of it counts.
    pub unprobed: TierSet,
    /// Length of each tier's file as we know it: no byte of it lies beyond.
    pub file_len: [u64; 3],
    /// Bytes that the object is charged for in each tier.
    pub charged: [u64; 3],
    /// The part of `charged` that was asked for ahead and is not written yet.
    pub credit: [u64; 3],
    pub moving: Option<Moving>,
    pub condemned: Vec<Condemned>,
    /// The tier whose file the kernel reads by itself: all of the object stays there meanwhile.
    pub in_place: Option<TierId>,
    /// Programs may write to that file through a mapping, which we do not see.
    pub mapped: Option<Mapped>,
    /// Was fsynced while open: new bytes go to the first persistent tier, so that the next fsync is cheap.
    pub sync_mode: bool,
    /// An fsync promised the bytes below: holes there too, which are in no tier and so in no danger until written.
    pub synced_size: u64,
    /// Also reached without the object's lock.
    pub unsynced: Arc<Unsynced>,
    /// Number of the last record that took its word about device bytes back which are about to change.
    pub struck: u64,
    /// The size to which a cut was begun, and the number of the record that says so.
    pub pending: Option<(u64, u64)>,
    pub removed: bool,
    pub pinned: Option<TierId>,
    pub transient: bool,
    /// What its policy says about bringing it up.
    pub promote: Option<bool>,
}

/// What is known of a file that programs may write to through a mapping.
pub(crate) struct Mapped {
    seen: Mutex<Seen>,
    /// When the other copies, or the device, were last brought up to what programs wrote.
    pub absorbed: Instant,
    /// Found when the object was loaded: programs hold it since an earlier life of the daemon, and in this one nobody was
    /// told that he may.
    pub left_over: bool,
}

#[derive(Clone, Copy)]
struct Seen {
    /// The file's time of modification at the last look: another one tells of stores.
    mtime: Timestamp,
    stored: bool,
}

impl Mapped {
    pub fn new(mtime: Timestamp) -> Mapped {
        let seen = Mutex::new(Seen { mtime, stored: false });
        Mapped { seen, absorbed: Instant::now(), left_over: false }
    }
    pub fn left_over() -> Mapped {
        Mapped { left_over: true, ..Mapped::new(Timestamp::EPOCH) }
    }
    /// Is this time of the file one that we did not know of?
    pub fn is_news(&self, mtime: Timestamp) -> bool {
        self.seen.lock().mtime != mtime
    }
    /// The file has this time now; `stored`: perhaps by stores.
    pub fn note_mtime(&self, mtime: Timestamp, stored: bool) {
        let mut seen = self.seen.lock();
        seen.stored |= stored;
        seen.mtime = mtime;
    }
    /// Of a device the file's time tells each store, of memory only the first to a page.
    pub fn may_have_stores(&self, tier: TierId, mtime: Timestamp) -> bool {
        let seen = self.seen.lock();
        !tier.is_persistent() || seen.stored || seen.mtime != mtime
    }
}

/// SAUs being copied, and what was written in them since the copy began.
pub(crate) struct Moving {
    pub first: SauIndex,
    /// One past the last.
    pub end: u64,
    pub written: Vec<(u64, u64)>,
}

/// The number of a record that is still to be saved.
pub(crate) const UNSAVED: u64 = u64::MAX;

/// A range of a device file that may be punched once the journal is durable up to `after`.
pub(crate) struct Condemned {
    pub tier: TierId,
    pub sau: SauIndex,
    pub after: u64,
}

/// How a file is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenKind {
    pub read: bool,
    pub write: bool,
}

/// What the object alone knows while a file is open for writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveAttr {
    pub size: u64,
    /// Time of the last write, if there was one since the file was attached or settled.
    pub mtime: Option<Timestamp>,
    /// 512-byte units in the fastest copies.
    pub blocks: u64,
    /// For so long it did not grow.
    pub still: Duration,
}

impl Object {
    pub(crate) fn new(ino: Ino, state: State, verified: Verified, home: Weak<dyn Home>) -> Arc<Object> {
        Arc::new_cyclic(|me| Object {
            ino,
            me: me.clone(),
            home,
            unsynced: state.unsynced.clone(),
            theirs: Theirs::default(),
            reading: Reading::default(),
            state: RwLock::new(state),
            copying: Mutex::new(()),
            wanting: AtomicU32::new(0),
            syncing: AtomicU32::new(0),
            verified: Mutex::new(verified),
            verifying: Default::default(),
            mtime: AtomicI64::new(NO_TIME),
            touched: AtomicU64::new(u64::MAX),
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            passthrough: AtomicU32::new(0),
            noticed: AtomicU64::new(0),
            first_write: AtomicBool::new(false),
        })
    }

    pub fn ino(&self) -> Ino {
        self.ino
    }
    pub fn size(&self) -> u64 {
        self.state.read().size
    }
    pub fn is_open(&self) -> bool {
        self.opens() > 0
    }
    pub fn is_open_for_write(&self) -> bool {
        self.writers.load(Ordering::Acquire) > 0
    }
    pub(crate) fn in_passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Acquire) > 0
    }

    /// How many have it open.
    pub(crate) fn opens(&self) -> u32 {
        self.readers.load(Ordering::Acquire) + self.writers.load(Ordering::Acquire)
    }
    pub(crate) fn count_open(&self, kind: OpenKind) {
        // A handle counts once, as a writer if it can write.
        let counter = if kind.write { &self.writers } else { &self.readers };
        counter.fetch_add(1, Ordering::AcqRel);
    }
    /// Returns whether this was the last.
    pub(crate) fn count_close(&self, kind: OpenKind) -> bool {
        let counter = if kind.write { &self.writers } else { &self.readers };
        counter.fetch_sub(1, Ordering::AcqRel);
        !self.is_open()
    }
    /// Returns whether passthrough began (`true`: from none to one) or ended (from one to none).
    pub(crate) fn count_passthrough(&self, begin: bool) -> bool {
        if begin {
            self.passthrough.fetch_add(1, Ordering::AcqRel) == 0
        } else {
            self.passthrough.fetch_sub(1, Ordering::AcqRel) == 1
        }
    }

    /// Interrupts the present copier, if there is one, and keeps others from starting.
    pub(crate) fn stop_copier(&self) -> MutexGuard<'_, ()> {
        self.wanting.fetch_add(1, Ordering::AcqRel);
        let guard = self.copying.lock();
        self.wanting.fetch_sub(1, Ordering::AcqRel);
        guard
    }

    /// As `stop_copier`, by who makes the object safe: another one who does is waited for, as two that stopped each other
    /// would never end.
    pub(crate) fn stop_mover(&self) -> MutexGuard<'_, ()> {
        self.syncing.fetch_add(1, Ordering::AcqRel);
        let guard = self.copying.lock();
        self.syncing.fetch_sub(1, Ordering::AcqRel);
        guard
    }

    pub(crate) fn set_mtime(&self, time: Option<Timestamp>) {
        self.mtime.store(nanos(time), Ordering::Release);
    }
    /// It was written now. Of writes at once none puts the time back that another one left: the clock is read when that is known.
    pub(crate) fn note_written(&self, now: impl Fn() -> Timestamp) {
        let mut known = self.mtime.load(Ordering::Acquire);
        while let Err(other) =
            self.mtime.compare_exchange(known, nanos(Some(now())), Ordering::AcqRel, Ordering::Acquire)
        {
            known = other;
        }
    }
    /// It was written then, unless it was later.
    pub(crate) fn note_written_at(&self, time: Timestamp) {
        self.mtime.fetch_max(nanos(Some(time)), Ordering::AcqRel);
    }
    pub(crate) fn mtime(&self) -> Option<Timestamp> {
        match self.mtime.load(Ordering::Acquire) {
            NO_TIME => None,
            n => {
                Some(Timestamp { sec: n.div_euclid(1_000_000_000), nsec: n.rem_euclid(1_000_000_000) as u32 })
            }
        }
    }

    /// Is this access one that makes the object recent (paper, section 6.3: within the first 1 MiB of a SAU,
    /// and not the address that did so last)?
    pub(crate) fn is_touch(&self, offset: u64) -> bool {
        const WINDOW: u64 = 1 << 20;
        if offset % types::SAU_BYTES >= WINDOW {
            return false;
        }
        let sau = offset / types::SAU_BYTES;
        self.touched.swap(sau, Ordering::Relaxed) != sau
    }
}

impl State {
    pub fn empty() -> State {
        State {
            map: SauMap::new(),
            known: false,
            for_movement: false,
            recorded: false,
            stub: false,
            linked_len: 0,
            era: 0,
            version: None,
            unsaved: false,
            size: 0,
            grown: Instant::now(),
            found_mtime: None,
            files: [None, None, None],
            unprobed: TierSet::EMPTY,
            file_len: [0; 3],
            charged: [0; 3],
            credit: [0; 3],
            moving: None,
            condemned: Vec::new(),
            in_place: None,
            mapped: None,
            sync_mode: false,
            synced_size: 0,
            unsynced: Arc::default(),
            struck: 0,
            pending: None,
            removed: false,
            pinned: None,
            transient: false,
            promote: None,
        }
    }
    /// It is at least so long.
    pub fn grow(&mut self, size: u64) {
        if size > self.size {
            // After the fact: who is told for how long it did not grow is not told too much.
            (self.size, self.grown) = (size, Instant::now());
        }
    }
    /// What is charged and not asked for ahead, by tier.
    pub fn used_space(&self) -> [u64; 3] {
        TierId::ALL.map(|tier| self.charged[tier.index()].saturating_sub(self.credit[tier.index()]))
    }
    pub fn tiers_with_file(&self) -> TierSet {
        let there = TierId::ALL.into_iter().filter(|t| self.files[t.index()].is_some());
        there.fold(TierSet::EMPTY, TierSet::with)
    }
    /// Tiers whose file has, or may have, bytes of this SAU, current or left behind.
    pub fn reaching(&self, sau: SauIndex) -> TierSet {
        let long = self.tiers_with_file().iter().filter(|t| self.file_len[t.index()] > sau.start());
        long.fold(self.map.get(sau).valid, TierSet::with)
    }
    /// Is something lost at the known end or behind it?
    pub fn end_is_lost(&self) -> bool {
        self.map.lost() > 0 && self.map.iter_from(SauIndex::of(self.size)).any(|(_, s)| s.lost)
    }
    /// Bytes of this tier's file changed, or its length. Memory is never synced. Returns whether nothing of it waited for a
    /// sync before.
    pub fn note_change(&self, tier: TierId) -> bool {
        match &self.files[tier.index()] {
            Some(file) if tier.is_persistent() => self.unsynced.note(tier, file),
            Some(_) | None => false,
        }
    }
    /// Programs were told that they may write through a mapping.
    pub fn is_mapped(&self) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| !mapped.left_over)
    }
    pub fn is_unsynced(&self, tier: TierId) -> bool {
        self.unsynced.tiers().contains(tier)
    }
    /// Must a new SAU here be in a persistent tier from its first byte?
    pub fn is_promised(&self, sau: SauIndex) -> bool {
        self.sync_mode || sau.start() < self.synced_size
    }
    pub fn is_moving(&self, offset: u64, len: u64) -> bool {
        self.moving.as_ref().is_some_and(|m| offset < m.end && offset + len > m.first.start())
    }
    /// Must a change of the map be saved even if it writes nothing?
    pub fn must_record(&self) -> bool {
        self.recorded || self.stub
    }
    /// Bytes that a linked near-line has.
    pub fn linked_bytes(&self) -> u64 {
        (u64::from(self.map.count_in(TierId::Nearline)) * types::SAU_BYTES).min(self.linked_len)
    }
    /// These bytes changed: for who copies a version.
    pub fn note_for_version(&mut self, offset: u64, len: u64) {
        if let Some(version) = &mut self.version {
            version.note(offset, len);
        }
    }
    /// Notes a write for the copiers, if there are any at work on these bytes.
    pub fn note_for_copier(&mut self, offset: u64, len: u64) {
        self.note_for_version(offset, len);
        if self.is_moving(offset, len)
            && let Some(moving) = &mut self.moving
        {
            match moving.written.last_mut() {
                Some(last) if last.0 + last.1 == offset => last.1 += len,
                Some(_) | None => moving.written.push((offset, len)),
            }
        }
    }
}

/// A growing set of SAU numbers.
#[derive(Default)]
pub(crate) struct Verified(Vec<u64>);

impl Verified {
    pub fn contains(&self, sau: SauIndex) -> bool {
        let n = sau.get() as usize;
        self.0.get(n / 64).is_some_and(|w| w >> (n % 64) & 1 == 1)
    }
    pub fn insert(&mut self, sau: SauIndex) {
        let n = sau.get() as usize;
        if self.0.len() <= n / 64 {
            self.0.resize(n / 64 + 1, 0);
        }
        self.0[n / 64] |= 1 << (n % 64);
    }
    pub fn remove(&mut self, sau: SauIndex) {
        let n = sau.get() as usize;
        if let Some(word) = self.0.get_mut(n / 64) {
            *word &= !(1 << (n % 64));
        }
    }
    /// 64-bit words with anything in them to the last one; 0: nothing was compared.
    pub fn words(&self) -> usize {
        self.0.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Nobody;
    impl Home for Nobody {
        fn dropped(&self, _: Ino, _: Left) {}
    }

    fn at(sec: i64) -> Timestamp {
        Timestamp { sec, nsec: 0 }
    }

    /// Goal: the time of the last write never goes back by writes. Method: one that is recorded while another one has read the clock.
    #[test]
    fn regression_of_two_writes_at_once_the_later_time_stays() {
        let nobody: Weak<dyn Home> = Weak::<Nobody>::new();
        let object = Object::new(Ino::ROOT, State::empty(), Verified::default(), nobody);
        let clock = Cell::new(0);
        let tick = || {
            clock.set(clock.get() + 1);
            at(clock.get())
        };
        object.note_written(|| {
            let now = tick();
            if now == at(1) {
                object.note_written(tick);
                assert_eq!(object.mtime(), Some(at(2)), "somebody sees it");
            }
            now
        });
        assert_eq!(object.mtime(), Some(at(3)));
        object.note_written_at(at(2));
        assert_eq!(object.mtime(), Some(at(3)));
        object.set_mtime(None);
        object.note_written_at(at(2));
        assert_eq!(object.mtime(), Some(at(2)));
    }
}
