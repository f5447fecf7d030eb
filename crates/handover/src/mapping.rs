//! The area as words that any thread may read and write. All accesses are atomic, so that no order of them is undefined.

use std::{
    io,
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(crate) const WORD: usize = size_of::<u64>();

pub(crate) struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: shared memory without any tie to a thread; every access is of an atomic word.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The first `words` words of the file, which must have them for as long as this lives (it is sealed against shrinking).
    pub(crate) fn new(file: BorrowedFd<'_>, words: usize) -> io::Result<Mapping> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory that exists.
        let start = unsafe { mmap(std::ptr::null_mut(), words * WORD, prot, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, words })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.words, "word {index} outside of an area of {}", self.words);
        // SAFETY: inside of the mapping, aligned as pages are, and only accessed as an atomic word.
        unsafe { self.start.add(index).as_ref() }
    }

    pub(crate) fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    /// In the order of the program, also as the next process sees it.
    pub(crate) fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.words * WORD) };
    }
}
