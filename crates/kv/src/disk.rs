//! The journal's file operations, so that tests can fail, tear and lose them.
//!
//! Invariants: what `write_at` took survives the process; what `sync` took survives a power cut, and so do the names
//! that `sync_dir` took. A failed `sync` says nothing about what is on the disk, and is never retried.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::FallocateFlags;

/// One run of the kernel: two equal ones mean that no power cut came between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// As the kernel shows it: 32 hex digits, with dashes.
    pub(crate) fn parse(text: &str) -> Option<BootId> {
        let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
        let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
        Some(BootId(number.to_be_bytes()))
    }
}

pub trait Disk: Send + Sync {
    /// Also when it is there already.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// The files in `dir`.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
    /// A new file; one of that name is emptied.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// A file, with its content if it is there already, and its length.
    fn open_or_create(&self, path: &Path) -> io::Result<(Arc<dyn DiskFile>, u64)>;
    fn space(&self, dir: &Path) -> io::Result<Space>;
    /// The kernel's run in which this is asked; `None` when it does not say.
    fn boot_id(&self) -> Option<BootId>;
}

/// Of the file system below a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// What an unprivileged process may still write.
    pub free: u64,
    pub total: u64,
}

pub trait DiskFile: Send + Sync {
    /// All of `bytes`, or an error after any part of them.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Room for `len` bytes at `offset`; they read as zeros until written.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Gives the room behind `len` back.
    fn shrink(&self, len: u64) -> io::Result<()>;
    /// Content, and the size as far as it is needed to read the content.
    fn sync(&self) -> io::Result<()>;
}

/// The file system of the machine.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        std::fs::read_dir(dir)?.map(|entry| entry.map(|e| e.path())).collect()
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Arc::new(SystemFile(file)))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn open_or_create(&self, path: &Path) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let len = file.metadata()?.len();
        Ok((Arc::new(SystemFile(file)), len))
    }

    fn space(&self, dir: &Path) -> io::Result<Space> {
        let stat = rustix::fs::statvfs(dir)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { free: bytes(stat.f_bavail), total: bytes(stat.f_blocks) })
    }

    fn boot_id(&self) -> Option<BootId> {
        BootId::parse(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
    }
}

struct SystemFile(File);

impl DiskFile for SystemFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset, len) {
            Ok(()) => Ok(()),
            // A file system without it: room is found as the bytes come.
            Err(rustix::io::Errno::OPNOTSUPP) => self.0.set_len(offset + len),
            Err(e) => Err(e.into()),
        }
    }

    fn shrink(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_is_named_by_sixteen_bytes_or_not_at_all() {
        let id = BootId::parse("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!((id.0[0], id.0[1], id.0[15]), (0, 0x11, 0xff));
        assert_eq!(BootId::parse("0011"), None);
        assert_eq!(BootId::parse(""), None);
        assert_eq!(SystemDisk.boot_id(), SystemDisk.boot_id());
    }
}
