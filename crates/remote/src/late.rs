//! What was answered and lost is told by the next `fsync` or close of each opening for writing, once. On a guarded mount that it is to be told is written down
//! with the opening until the kernel has the answer that tells it.

use std::{
    cell::RefCell,
    sync::{Arc, atomic::Ordering},
};

use handover::Scope;
use types::{Errno, Ino};

use crate::{
    Remote,
    openings::{OpenFile, Openings},
    written,
};

thread_local! {
    /// Openings of which the answer of this thread's request tells it.
    static TELLING: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Openings {
    fn tell(&self, file: &OpenFile, error: Errno) {
        let mut late = file.late_error.lock();
        if late.is_none() {
            *late = Some(error);
            self.write_standing(file, true);
        }
    }

    pub(crate) fn take_late(&self, file: &OpenFile) -> Option<Errno> {
        let taken = file.late_error.lock().take()?;
        if file.place.get().is_some() && Scope::unique_now() != 0 {
            TELLING.with_borrow_mut(|telling| telling.push(file.number));
        } else {
            self.is_told(file);
        }
        Some(taken)
    }

    fn is_told(&self, file: &OpenFile) {
        let late = file.late_error.lock();
        self.write_standing(file, late.is_some());
    }

    /// The kernel has the answer of this thread's request.
    pub(crate) fn answered(&self) {
        for file in TELLING.take().into_iter().filter_map(|number| self.get(number)) {
            self.is_told(&file);
        }
    }

    /// A lock that was taken through it is lost. Was it not yet?
    pub(crate) fn set_unlocked(&self, file: &OpenFile) -> bool {
        let late = file.late_error.lock();
        let before = file.unlocked.swap(true, Ordering::AcqRel);
        self.write_standing(file, late.is_some());
        !before
    }

    /// With its late error locked.
    fn write_standing(&self, file: &OpenFile, late: bool) {
        if let (Some(estate), Some(place)) = (self.estate.get(), file.place.get()) {
            let standing = written::Standing { late, unlocked: file.unlocked.load(Ordering::Acquire) };
            estate.handles.set(*place, 2, written::opening(file.access, standing));
        }
    }
}

impl Remote {
    /// Each opening for writing is told.
    pub(crate) fn tell_writers(&self, ino: Ino, error: Errno) {
        self.tell_those(ino, error, |file| file.access.write);
    }

    /// And who asks, too.
    pub(crate) fn tell_writers_and(&self, asking: &OpenFile, error: Errno) {
        self.tell_those(asking.ino, error, |file| file.access.write || std::ptr::eq(file, asking));
    }

    fn tell_those(&self, ino: Ino, error: Errno, is_told: impl Fn(&OpenFile) -> bool) {
        let all = self.openings.all().into_iter().filter(|file| file.ino == ino);
        all.filter(|file: &Arc<OpenFile>| is_told(file)).for_each(|file| self.openings.tell(&file, error));
    }
}
