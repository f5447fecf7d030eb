//! The files that are open, by the number of their opening, which is also the kernel's handle.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use cluster::striping::Striped;
use handover::{Estate, Place, Scope};
use parking_lot::Mutex;
use types::{Errno, Ino, Timestamp};

use crate::{
    access::Access,
    outstanding::{OfFile, Outstanding},
    pages::Run,
    written,
};

/// In numbers of openings that no request of the kernel's asked for.
const NO_REQUEST: u64 = 1 << 62;

/// Where a file's bytes are.
#[derive(Debug)]
pub(crate) struct Placed {
    pub layout: proto::Layout,
    pub striped: Striped,
}

impl Placed {
    /// `None` if it breaks its rules.
    pub(crate) fn new(layout: proto::Layout) -> Option<Placed> {
        layout.check().ok()?;
        let striped = Striped::new(layout.unit, layout.stripes.len())?;
        Some(Placed { layout, striped })
    }
}

/// An opening.
#[derive(Debug)]
pub struct OpenFile {
    pub ino: Ino,
    pub number: u64,
    pub access: Access,
    /// When it was opened.
    pub(crate) size: u64,
    /// A read is to leave its time.
    pub(crate) atime_due: bool,
    pub(crate) read_at: Mutex<Option<Timestamp>>,
    /// Asked of the metadata server at a file's first read or write; it stays what it is.
    pub(crate) placed: Mutex<Option<Arc<Placed>>>,
    /// The metadata server knows that this opening writes: one more than the number of the session then, 0 for none.
    pub(crate) begun: AtomicU64,
    /// A write took the set-id bits away.
    pub(crate) cleared: AtomicBool,
    /// Of a file whose project may have a limit: up to here growth was asked for.
    pub(crate) reserved: Option<AtomicU64>,
    /// Writes through it so far, of those that may be kept back.
    pub(crate) writes: AtomicU32,
    /// Of all openings of the file.
    pub(crate) answered: OfFile,
    /// What was answered and lost, until an `fsync` or a close says so.
    pub(crate) late_error: Mutex<Option<Errno>>,
    /// How it is read.
    pub(crate) run: Mutex<Run>,
    /// When it was asked last whether its bytes may be kept.
    pub(crate) asked_to_keep: Mutex<Option<Instant>>,
    /// It could not be opened again after the session was lost.
    pub(crate) lost: AtomicBool,
    /// A lock that was taken through it was lost: it stays so.
    pub(crate) unlocked: AtomicBool,
    /// Of a guarded mount: where it is written down.
    pub(crate) place: OnceLock<Place>,
}

impl OpenFile {
    /// Neither it nor a lock of it is lost.
    pub(crate) fn is_well(&self) -> bool {
        !self.lost.load(Ordering::Acquire) && !self.unlocked.load(Ordering::Acquire)
    }
}

#[derive(Default)]
pub(crate) struct Openings {
    last: AtomicU64,
    /// As many as the server lets the session have.
    open: Mutex<BTreeMap<u64, Arc<OpenFile>>>,
    /// Files that were made through an opening, by which nothing was written yet.
    untouched: Mutex<HashMap<Ino, u64>>,
    pub(crate) outstanding: Outstanding,
    /// Of a guarded mount.
    pub(crate) estate: OnceLock<Arc<Estate>>,
}

impl Openings {
    /// Never given out before by this mount, but for the request that comes again.
    pub(crate) fn number(&self) -> u64 {
        if self.estate.get().is_some() {
            let of_request = Scope::unique_now();
            return if of_request != 0 {
                of_request
            } else {
                NO_REQUEST | self.last.fetch_add(1, Ordering::Relaxed)
            };
        }
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Written down before the kernel is told of it.
    pub(crate) fn insert(&self, file: OpenFile) -> Arc<OpenFile> {
        if let Some(estate) = self.estate.get().filter(|_| file.place.get().is_none()) {
            let number = file.number;
            let record = [
                number,
                file.ino.get(),
                written::opening(file.access, written::Standing::default()),
                Scope::unique_now(),
            ];
            match estate.handles.add(record) {
                Some(place) => drop(file.place.set(place)),
                None => estate.set_incomplete(),
            }
        }
        let file = Arc::new(file);
        self.open.lock().insert(file.number, file.clone());
        file
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<OpenFile>> {
        self.open.lock().get(&number).cloned()
    }

    pub(crate) fn remove(&self, number: u64) -> Option<Arc<OpenFile>> {
        let removed = self.open.lock().remove(&number);
        if let (Some(estate), Some(place)) =
            (self.estate.get(), removed.as_ref().and_then(|file| file.place.get()))
        {
            estate.handles.set(*place, 3, written::CLOSED);
        }
        removed.iter().for_each(|file| self.outstanding.left(file.ino, &file.answered));
        removed
    }

    /// The server knows that it is closed.
    pub(crate) fn strike(&self, place: Option<Place>) {
        if let (Some(estate), Some(place)) = (self.estate.get(), place) {
            estate.handles.remove(place);
        }
    }

    pub(crate) fn made(&self, ino: Ino, number: u64) {
        self.untouched.lock().insert(ino, number);
    }

    /// The opening that made the file, if that has written nothing.
    pub(crate) fn untouched(&self, ino: Ino) -> Option<u64> {
        self.untouched.lock().get(&ino).copied()
    }

    /// A write begins, or the opening ends.
    pub(crate) fn touch(&self, ino: Ino) {
        self.untouched.lock().remove(&ino);
    }

    pub(crate) fn all(&self) -> Vec<Arc<OpenFile>> {
        self.open.lock().values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.open.lock().len()
    }
}
