//! Room on the disk that is kept for bad times: a file that holds nothing, and is given back when the disk is full.
//!
//! What a full disk must not stop is the checkpoint, at run time and at the next start, for the journal's room comes back
//! only then; and removals, for they make room. So the journal never takes more than what the reserve can carry into the
//! engine ([`Reserve::journal_max`]), whatever others write to the disk; and while the reserve is not whole, only commits
//! that do not let the store grow are taken ([`crate::WriteSet::use_reserve`]).

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use namespace::txn::KvError;
use parking_lot::Mutex;

use crate::{
    Disk, DiskFile, OpenError,
    error::{is_full, kv_error},
};

const FILE: &str = "RESERVE";
/// Below this a store cannot work.
const BYTES_MIN: u64 = 4 << 20;
/// The most of a disk that is kept.
const SHARE_OF_DISK: u64 = 16;
/// What an engine needs to take a batch, beside the batch: manifests, directories, an index.
const FIXED_BYTES: u64 = 512 << 10;
/// Left to others on the disk (and to the files beside the store) when the reserve is taken again.
const LEFT_FREE_BYTES: u64 = 512 << 10;

pub(crate) struct Reserve {
    file: Arc<dyn DiskFile>,
    wanted: u64,
    held: AtomicU64,
    short: AtomicBool,
    /// Some of it was given to a checkpoint that has not ended.
    lent: AtomicBool,
    /// One change at a time.
    changing: Mutex<()>,
}

/// What carrying `journal` bytes into the engine takes.
pub(crate) fn cost_of(journal: u64) -> u64 {
    journal.saturating_add(journal / 4).saturating_add(FIXED_BYTES)
}

impl Reserve {
    /// Enough for `journal_bytes`, on a disk that is large enough. A new store needs all of it; an older one takes what
    /// there is.
    pub(crate) fn open(
        disk: &dyn Disk,
        dir: &Path,
        journal_bytes: u64,
        new: bool,
    ) -> Result<Reserve, OpenError> {
        let path = dir.join(FILE);
        let failed = |e: std::io::Error| OpenError::io(&path, &e);
        let space = disk.space(dir).map_err(failed)?;
        let wanted = cost_of(journal_bytes).min(space.total / SHARE_OF_DISK).max(BYTES_MIN);
        let (file, mut held) = disk.open_or_create(&path).map_err(failed)?;
        match file.allocate(0, held.max(1)) {
            Ok(()) => {}
            // A copy of the directory that left the holes out.
            Err(e) if is_full(&e) => {
                file.shrink(0).map_err(failed)?;
                held = 0;
            }
            Err(e) => return Err(failed(e)),
        }
        let reserve = Reserve {
            file,
            wanted,
            held: AtomicU64::new(held),
            short: AtomicBool::new(false),
            lent: AtomicBool::new(false),
            changing: Mutex::default(),
        };
        if new && !reserve.take(space.free).map_err(OpenError::Engine)? {
            let detail = format!(
                "the metadata needs {} KiB, and there are {}",
                (wanted + LEFT_FREE_BYTES) >> 10,
                space.free >> 10
            );
            return Err(OpenError::Io { path: dir.to_owned(), full: true, detail });
        }
        Ok(reserve)
    }

    /// What is held now.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Acquire)
    }

    /// It could not be made whole: the disk is full.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Acquire)
    }

    /// What the journal's files may take, so that they can be carried into the engine on a disk that is full.
    pub(crate) fn journal_max(&self) -> u64 {
        (self.wanted - FIXED_BYTES) / 5 * 4
    }

    /// May the journal take `more` bytes, and have `journal` then? Not those that it will take to carry it into the engine:
    /// the whole reserve has them, else they must be free or held. What a checkpoint was given it needs itself.
    pub(crate) fn lets_grow(
        &self,
        more: u64,
        journal: u64,
        free: impl FnOnce() -> Result<u64, KvError>,
    ) -> Result<bool, KvError> {
        let (held, lent) = (self.held(), self.lent.load(Ordering::Acquire));
        if held >= self.wanted && !lent {
            return Ok(true);
        }
        let usable = free()?.saturating_add(if lent { 0 } else { held });
        Ok(usable >= more.saturating_add(cost_of(journal)))
    }

    /// How large a journal of `journal` bytes may make its next segment.
    pub(crate) fn segment_max(&self, journal: u64, free: u64) -> u64 {
        if self.held() >= self.wanted {
            return u64::MAX;
        }
        // It takes its own room, and that of carrying it later.
        free.saturating_add(self.held()).saturating_sub(cost_of(journal)) / 9 * 4
    }

    /// Gives so much of it back, or all that there is; [`Reserve::take`] follows.
    pub(crate) fn give(&self, bytes: u64) -> Result<(), KvError> {
        let _one = self.changing.lock();
        let kept = self.held().saturating_sub(bytes);
        self.lent.store(true, Ordering::Release);
        self.file.shrink(kept).map_err(|e| kv_error("reserve", &e))?;
        self.held.store(kept, Ordering::Release);
        Ok(())
    }

    /// Makes it whole again, or as large as the `free` bytes of the disk allow. Whether it is whole.
    pub(crate) fn take(&self, free: u64) -> Result<bool, KvError> {
        let _one = self.changing.lock();
        self.lent.store(false, Ordering::Release);
        let held = self.held();
        let room = free.saturating_sub(LEFT_FREE_BYTES);
        let target = self.wanted.min(held.saturating_add(room));
        if target > held {
            match self.file.allocate(held, target - held) {
                Ok(()) => self.held.store(target, Ordering::Release),
                // Somebody else was faster.
                Err(e) if is_full(&e) => {}
                Err(e) => return Err(kv_error("reserve", &e)),
            }
        } else if held > self.wanted {
            self.file.shrink(self.wanted).map_err(|e| kv_error("reserve", &e))?;
            self.held.store(self.wanted, Ordering::Release);
        }
        let whole = self.held() >= self.wanted;
        self.short.store(!whole, Ordering::Release);
        Ok(whole)
    }
}
