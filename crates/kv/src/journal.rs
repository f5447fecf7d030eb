//! The journal: appends sealed frames to the active segment, makes them durable, changes segments.
//!
//! Invariants: a number is given out only with its frame whole in the file. A failed append leaves the tail where it
//! was and wipes what it wrote, or the store stops ([`Health`]). After a failed fsync the store stops: what the
//! kernel dropped cannot be written again. `synced` never runs ahead of the disk, nor of the data servers' hook.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use namespace::txn::KvError;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    Disk, DiskFile, Lsn,
    error::{is_full, kv_error},
    follower::Follower,
    frame::{self, FRAME_HEADER_BYTES, FRAMES_OFFSET, MARK_OFFSET, SegmentHeader},
    reserve::{self, Reserve},
};

/// Run before each fsync of the journal: makes durable what the records so far speak of. It may read, but
/// neither commit, for that may have to wait for this sync, nor call `sync`.
pub type BeforeSync = Box<dyn Fn() -> Result<(), KvError> + Send + Sync>;

/// How long a caller of `sync` waits for another caller's fsync.
const SYNC_WAIT_MAX: Duration = Duration::from_secs(30);
/// By how much a segment grows when there is no room for a step.
const SMALL_STEP_BYTES: u64 = 64 << 10;
/// What a kill does not interrupt in the middle of.
const PAGE_BYTES: usize = 4096;
const SEGMENT_SUFFIX: &str = "seg";

/// Whether the store still takes writes; once it does not, it never does again.
#[derive(Default)]
pub(crate) struct Health {
    failed: AtomicBool,
    closed: AtomicBool,
    reason: Mutex<String>,
}

impl Health {
    pub(crate) fn check(&self) -> Result<(), KvError> {
        match self.reason() {
            None => Ok(()),
            Some(reason) => Err(KvError::ReadOnly(reason)),
        }
    }

    /// The first reason is kept.
    pub(crate) fn fail(&self, reason: &str) {
        let mut kept = self.reason.lock();
        if !self.failed.swap(true, Ordering::AcqRel) {
            tracing::error!(reason, "the metadata store is read-only from now on");
            reason.clone_into(&mut kept);
        }
    }

    /// Not a failure: the store was closed.
    pub(crate) fn close(&self) {
        let mut kept = self.reason.lock();
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.closed.store(true, Ordering::Release);
            "the store is closed".clone_into(&mut kept);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn reason(&self) -> Option<String> {
        self.failed.load(Ordering::Acquire).then(|| self.reason.lock().clone())
    }
}

pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    health: Arc<Health>,
    /// A segment is allocated in steps of this.
    step_bytes: u64,
    /// What the files of all segments may take together.
    bytes_max: u64,
    reserve: Arc<Reserve>,
    allocated: AtomicU64,
    tail: Mutex<Tail>,
    last: AtomicU64,
    active_bytes: AtomicU64,
    synced: AtomicU64,
    sealed: Mutex<Vec<Sealed>>,
    syncing: Mutex<bool>,
    sync_ended: Condvar,
    syncs: AtomicU64,
    marked: AtomicU64,
    before_sync: RwLock<Option<Arc<BeforeSync>>>,
    follower: OnceLock<Arc<dyn Follower>>,
}

/// The active segment; its lock is the journal lock.
struct Tail {
    segment: Segment,
    offset: u64,
    next: Lsn,
}

/// A segment that is ready for frames: its header and its name are durable.
pub(crate) struct Segment {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    header: SegmentHeader,
    seed: u32,
    allocated: u64,
}

/// A segment that takes no more frames.
struct Sealed {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    last: Lsn,
    bytes: u64,
    allocated: u64,
    synced: bool,
}

/// What [`Journal::start`] begins with, and how large it may become.
pub(crate) struct Start {
    pub sequence: u64,
    pub last: Lsn,
    pub step_bytes: u64,
    pub bytes_max: u64,
    pub reserve: Arc<Reserve>,
}

/// Of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Appended {
    As(Lsn),
    /// The files have the size that they may have, or what is free is needed to carry them: first a checkpoint.
    AfterCheckpoint,
}

impl Journal {
    /// Begins at `last` + 1 in a new segment with number `sequence`.
    pub(crate) fn start(
        disk: Arc<dyn Disk>,
        dir: &Path,
        health: Arc<Health>,
        start: Start,
    ) -> Result<Journal, KvError> {
        let Start { sequence, last, step_bytes, bytes_max, reserve } = start;
        let segment = match create_segment(&*disk, dir, sequence, step_bytes) {
            Err(KvError::Full) => create_segment(&*disk, dir, sequence, SMALL_STEP_BYTES.min(step_bytes))?,
            other => other?,
        };
        let allocated = AtomicU64::new(segment.allocated);
        let tail = Tail { segment, offset: FRAMES_OFFSET as u64, next: Lsn(last.0 + 1) };
        Ok(Journal {
            disk,
            dir: dir.to_owned(),
            health,
            step_bytes,
            bytes_max,
            reserve,
            allocated,
            tail: Mutex::new(tail),
            last: AtomicU64::new(last.0),
            active_bytes: AtomicU64::new(0),
            synced: AtomicU64::new(last.0),
            sealed: Mutex::default(),
            syncing: Mutex::new(false),
            sync_ended: Condvar::new(),
            syncs: AtomicU64::new(0),
            marked: AtomicU64::new(last.0),
            before_sync: RwLock::new(None),
            follower: OnceLock::new(),
        })
    }

    /// Numbers and writes a frame made by [`frame::encode`]. After an error nothing of it counts.
    pub(crate) fn append(&self, frame: &mut [u8]) -> Result<Appended, KvError> {
        let mut tail = self.tail.lock();
        self.health.check()?;
        let end = tail.offset + frame.len() as u64;
        if end > tail.segment.allocated && !self.grow(&mut tail.segment, end)? {
            return Ok(Appended::AfterCheckpoint);
        }
        let lsn = tail.next;
        frame::seal(frame, tail.segment.seed, lsn, self.synced());
        if let Err(e) = tail.segment.file.write_at(frame, tail.offset) {
            self.wipe(&tail, frame.len(), &e);
            return Err(kv_error("journal", &e));
        }
        tail.offset = end;
        tail.next = Lsn(lsn.0 + 1);
        self.active_bytes.store(end - FRAMES_OFFSET as u64, Ordering::Release);
        self.last.store(lsn.0, Ordering::Release);
        if let Some(follower) = self.follower.get() {
            // Under the lock, so in order.
            follower.added(lsn, &frame[FRAME_HEADER_BYTES..]);
        }
        Ok(Appended::As(lsn))
    }

    /// So that frames fit up to `end`: by a step, or by what is there if the disk is nearly full. False: the journal would
    /// be larger than it may be, or than what is left on the disk could carry into the engine.
    fn grow(&self, segment: &mut Segment, end: u64) -> Result<bool, KvError> {
        let needed = end - segment.allocated;
        let left = self.bytes_max.saturating_sub(self.allocated.load(Ordering::Acquire));
        if needed > left && !self.is_too_large_for_any(needed)? {
            return Ok(false);
        }
        let mut room = needed.max(self.step_bytes.min(left));
        if !self.leaves_enough(room)? {
            room = needed.max(SMALL_STEP_BYTES.min(left));
            if !self.leaves_enough(room)? {
                return Ok(false);
            }
        }
        loop {
            match segment.file.allocate(segment.allocated, room) {
                Ok(()) => {
                    segment.allocated += room;
                    self.allocated.fetch_add(room, Ordering::AcqRel);
                    return Ok(true);
                }
                Err(e) if is_full(&e) && room > needed.max(SMALL_STEP_BYTES) => {
                    room = needed.max(SMALL_STEP_BYTES);
                }
                Err(e) => return Err(kv_error("journal", &e)),
            }
        }
    }

    /// With `room` bytes more, can all of it still be carried into the engine?
    fn leaves_enough(&self, room: u64) -> Result<bool, KvError> {
        let allocated = self.allocated.load(Ordering::Acquire);
        self.reserve.lets_grow(room, allocated + room, || self.free_bytes())
    }

    /// A commit that even an empty journal could hardly take, on a disk that can.
    fn is_too_large_for_any(&self, needed: u64) -> Result<bool, KvError> {
        if needed <= self.bytes_max / 2 {
            return Ok(false);
        }
        let all = self.allocated.load(Ordering::Acquire) + needed;
        if self.free_bytes()? < needed + reserve::cost_of(all) { Err(KvError::Full) } else { Ok(true) }
    }

    /// Is there room for a frame of `len` bytes, as far as the journal itself is concerned?
    pub(crate) fn has_room(&self, len: u64) -> Result<bool, KvError> {
        let tail = self.tail.lock();
        let needed = (tail.offset + len).saturating_sub(tail.segment.allocated);
        if needed == 0 {
            return Ok(true);
        }
        let left = self.bytes_max.saturating_sub(self.allocated.load(Ordering::Acquire));
        let fits = needed <= left || needed > self.bytes_max / 2;
        // As in `grow`, or a commit would go round and round.
        Ok(fits && self.leaves_enough(needed.max(SMALL_STEP_BYTES.min(left)))?)
    }

    /// A frame whose write failed may be in the file whole: it must not come back at the next start. From back to
    /// front, page by page, so that a kill in between leaves the front part of a frame and no damage.
    fn wipe(&self, tail: &Tail, len: usize, cause: &io::Error) {
        let mut end = tail.offset + len as u64;
        while end > tail.offset {
            let start = ((end - 1) / PAGE_BYTES as u64 * PAGE_BYTES as u64).max(tail.offset);
            if let Err(e) = tail.segment.file.write_at(&[0; PAGE_BYTES][..(end - start) as usize], start) {
                self.health.fail(&format!("a journal write failed ({cause}) and could not be undone ({e})"));
                return;
            }
            end = start;
        }
    }

    pub(crate) fn last(&self) -> Lsn {
        Lsn(self.last.load(Ordering::Acquire))
    }

    pub(crate) fn synced(&self) -> Lsn {
        Lsn(self.synced.load(Ordering::Acquire))
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Frames in the active segment.
    pub(crate) fn active_bytes(&self) -> u64 {
        self.active_bytes.load(Ordering::Acquire)
    }

    /// Frames in all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.active_bytes() + self.sealed.lock().iter().map(|s| s.bytes).sum::<u64>()
    }

    pub(crate) fn free_bytes(&self) -> Result<u64, KvError> {
        self.disk.space(&self.dir).map(|space| space.free).map_err(|e| kv_error("journal", &e))
    }

    pub(crate) fn set_before_sync(&self, hook: BeforeSync) {
        *self.before_sync.write() = Some(Arc::new(hook));
    }

    pub(crate) fn set_follower(&self, follower: Arc<dyn Follower>) -> bool {
        self.follower.set(follower).is_ok()
    }

    pub(crate) fn follower(&self) -> Option<&Arc<dyn Follower>> {
        self.follower.get()
    }

    /// Returns when everything up to `lsn` is durable. One caller syncs for all that wait.
    pub(crate) fn sync_to(&self, lsn: Lsn) -> Result<(), KvError> {
        let deadline = Instant::now() + SYNC_WAIT_MAX;
        loop {
            let mut syncing = self.syncing.lock();
            if self.synced() >= lsn {
                return Ok(());
            }
            self.health.check()?;
            if !*syncing {
                *syncing = true;
                break;
            }
            if self.sync_ended.wait_until(&mut syncing, deadline).timed_out() {
                return Err(KvError::Io(format!("the journal was not synced within {SYNC_WAIT_MAX:?}")));
            }
        }
        let result = self.sync_now();
        *self.syncing.lock() = false;
        self.sync_ended.notify_all();
        result
    }

    /// Covers what was appended before it began: the hook knows of that only.
    fn sync_now(&self) -> Result<(), KvError> {
        let (file, covered) = {
            let tail = self.tail.lock();
            (Arc::clone(&tail.segment.file), Lsn(tail.next.0 - 1))
        };
        let hook = self.before_sync.read().clone();
        if let Some(hook) = hook {
            hook()?;
        }
        let sealed: Vec<_> =
            self.sealed.lock().iter().filter(|s| !s.synced).map(|s| (Arc::clone(&s.file), s.last)).collect();
        let older = sealed.iter().map(|(file, _)| file);
        for file in older.chain([&file]) {
            if let Err(e) = file.sync() {
                self.health.fail(&format!("fsync of the journal failed: {e}"));
                return Err(kv_error("fsync of the journal", &e));
            }
        }
        let mut still_there = self.sealed.lock();
        for segment in still_there.iter_mut().filter(|s| sealed.iter().any(|(_, last)| *last == s.last)) {
            segment.synced = true;
        }
        drop(still_there);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.synced.fetch_max(covered.0, Ordering::AcqRel);
        Ok(())
    }

    /// Leaves in the segment how far it is durable, if no later frame will: then damage of what was synced is told from a
    /// power cut for good. Not synced itself: until the kernel has written it, it only is not there.
    pub(crate) fn mark_synced(&self) -> Result<(), KvError> {
        let tail = self.tail.lock();
        let synced = self.synced();
        if synced < self.last() || self.marked.load(Ordering::Acquire) == synced.0 {
            return Ok(());
        }
        let mark = frame::encode_mark(synced, tail.segment.seed);
        tail.segment.file.write_at(&mark, MARK_OFFSET as u64).map_err(|e| kv_error("journal", &e))?;
        self.marked.store(synced.0, Ordering::Release);
        Ok(())
    }

    /// The segment that [`Journal::rotate`] will need, with a step's room if `room` has it. Slow; commits go on meanwhile.
    /// One caller at a time.
    pub(crate) fn prepare(&self, room: u64) -> Result<Segment, KvError> {
        let sequence = self.tail.lock().segment.header.sequence + 1;
        let left = self.bytes_max.saturating_sub(self.allocated.load(Ordering::Acquire));
        let most = self.reserve.segment_max(self.allocated.load(Ordering::Acquire), self.free_bytes()?);
        let step = self.step_bytes.min(room).min(left).min(most).max(SMALL_STEP_BYTES.min(self.step_bytes));
        create_segment(&*self.disk, &self.dir, sequence, step)
    }

    /// Frames go to `segment` from now on. Returns the last number before it. The caller excludes commits.
    pub(crate) fn rotate(&self, segment: Segment) -> Lsn {
        let mut tail = self.tail.lock();
        let last = Lsn(tail.next.0 - 1);
        let old = std::mem::replace(&mut tail.segment, segment);
        let bytes = tail.offset - FRAMES_OFFSET as u64;
        tail.offset = FRAMES_OFFSET as u64;
        self.active_bytes.store(0, Ordering::Release);
        self.allocated.fetch_add(tail.segment.allocated, Ordering::AcqRel);
        let Segment { file, path, header: _, seed: _, allocated } = old;
        self.sealed.lock().push(Sealed { file, path, last, bytes, allocated, synced: false });
        last
    }

    /// Deletes the sealed segments that the engine has taken. One that cannot be deleted is tried again next time:
    /// its frames are known to be applied.
    pub(crate) fn remove_applied(&self, applied: Lsn) {
        let mut sealed = self.sealed.lock();
        while let Some(path) = sealed.first().filter(|s| s.last <= applied).map(|s| s.path.clone()) {
            if let Err(e) = self.disk.remove(&path) {
                tracing::warn!(path = %path.display(), error = %e, "a journal segment cannot be deleted");
                return;
            }
            let gone = sealed.remove(0);
            self.allocated.fetch_sub(gone.allocated, Ordering::AcqRel);
        }
    }

    /// After the last checkpoint, when there is nothing in it.
    pub(crate) fn remove_active(&self) -> Result<(), KvError> {
        let tail = self.tail.lock();
        debug_assert_eq!(self.active_bytes(), 0);
        self.disk
            .remove(&tail.segment.path)
            .and_then(|()| self.disk.sync_dir(&self.dir))
            .map_err(|e| kv_error("journal", &e))
    }
}

pub(crate) fn segment_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{sequence:016}.{SEGMENT_SUFFIX}"))
}

/// The number in a segment's name; `None` for other files.
pub(crate) fn sequence_of(path: &Path) -> Option<u64> {
    if path.extension()? != SEGMENT_SUFFIX {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

fn create_segment(disk: &dyn Disk, dir: &Path, sequence: u64, bytes: u64) -> Result<Segment, KvError> {
    use std::hash::{BuildHasher, RandomState};
    let path = segment_path(dir, sequence);
    let header =
        SegmentHeader { sequence, salt: RandomState::new().hash_one(sequence), boot: disk.boot_id() };
    let allocated = FRAMES_OFFSET as u64 + bytes;
    let create = || -> io::Result<Arc<dyn DiskFile>> {
        let file = disk.create(&path)?;
        file.allocate(0, allocated)?;
        file.write_at(&header.encode(), 0)?;
        file.sync()?;
        disk.sync_dir(dir)?;
        Ok(file)
    };
    match create() {
        Ok(file) => Ok(Segment { file, path, header, seed: header.seed(), allocated }),
        Err(e) => {
            // It holds nothing; if it stays, the next attempt takes its name again.
            drop(disk.remove(&path));
            Err(kv_error("new journal segment", &e))
        }
    }
}
