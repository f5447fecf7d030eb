//! A mapping of a file.

use std::{fs::File, ptr};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

pub struct Map {
    start: *mut u8,
    len: usize,
}

impl Map {
    pub fn shared(file: &File, len: usize) -> Map {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) }.unwrap();
        Map { start: start.cast(), len }
    }

    /// As the loader maps programs.
    pub fn private(file: &File, len: usize) -> Map {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, file, 0) }.unwrap();
        Map { start: start.cast(), len }
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: inside the mapping; volatile-free copies are enough, since nobody writes meanwhile.
        unsafe { ptr::copy_nonoverlapping(self.start.add(at), bytes.as_mut_ptr(), len) };
        bytes
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: inside the mapping, which is writable; no reference into it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    pub fn sync(&self) {
        // SAFETY: the mapping is ours.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Map {
    /// This process serves the file too: munmap(2) writes changed pages back while it holds the lock of the address space,
    /// which the thread that is to take them may need. So they are written back before.
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        let _ = unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) };
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
