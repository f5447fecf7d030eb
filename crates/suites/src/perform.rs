//! The operations as system calls on a real directory, as root.

#![expect(clippy::wildcard_enum_match_arm, reason = "one kind of operation at a time is picked out of many")]

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        self, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
        Uid, XattrFlags,
    },
    io::{self, Errno},
};

use crate::{
    op::{Abilities, AllocateKind, Op, RenameKind, XattrKind},
    random::pattern,
    semantics::Answer,
};

/// Does operations below `root`; keeps the open handles.
pub struct Performer {
    root: PathBuf,
    handles: BTreeMap<u8, OwnedFd>,
    buffer: Vec<u8>,
}

/// One write call takes at most this much: the size that programs use.
const CHUNK: usize = 1 << 20;

impl Performer {
    pub fn new(root: &Path) -> Performer {
        Performer { root: root.to_owned(), handles: BTreeMap::new(), buffer: Vec::new() }
    }
    pub fn root(&self) -> &Path {
        &self.root
    }
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
    pub fn close_all(&mut self) {
        self.handles.clear();
    }

    /// Tier moves and remounts are the caller's; here they only check that the file is there.
    pub fn perform(&mut self, op: &Op) -> Result<Answer, Errno> {
        match op {
            Op::Create { path, mode, exclusive } => {
                let flags = if *exclusive { OFlags::EXCL } else { OFlags::empty() };
                self.open(path, flags | OFlags::CREATE, *mode).map(drop)
            }
            Op::Rewrite { path, len, fill } => {
                let file = self.open(path, OFlags::CREATE | OFlags::TRUNC, 0o644)?;
                self.write(&file, Some(0), *len, *fill)
            }
            Op::Write { path, offset, len, fill } => {
                let file = self.open(path, OFlags::empty(), 0)?;
                self.write(&file, Some(*offset), *len, *fill)
            }
            Op::Append { path, len, fill } => {
                let file = self.open(path, OFlags::APPEND, 0)?;
                self.write(&file, None, *len, *fill)
            }
            Op::Truncate { path, size } => fs::ftruncate(self.open(path, OFlags::empty(), 0)?, *size),
            Op::Allocate { path, kind, offset, len } => {
                let file = self.open(path, OFlags::empty(), 0)?;
                fs::fallocate(file, allocate_flags(*kind), *offset, *len)
            }
            Op::CopyRange { from, to, from_offset, to_offset, len } => {
                let (source, target) =
                    (self.open(from, OFlags::empty(), 0)?, self.open(to, OFlags::empty(), 0)?);
                copy_range(&source, &target, (*from_offset, *to_offset), *len)
            }
            Op::Read { path, offset, len } => {
                let file = self.open(path, OFlags::empty(), 0)?;
                return read(&file, *offset, *len);
            }
            Op::Open { slot, path } => {
                let file = self.open(path, OFlags::empty(), 0)?;
                self.handles.insert(*slot, file);
                Ok(())
            }
            Op::Fsync { path, data_only } => {
                let file = self.open(path, OFlags::empty(), 0)?;
                if *data_only { fs::fdatasync(file) } else { fs::fsync(file) }
            }
            Op::Move { path, .. } => self.open(path, OFlags::empty(), 0).map(drop),
            Op::Remount => {
                self.close_all();
                Ok(())
            }
            Op::WriteOpen { .. }
            | Op::ReadOpen { .. }
            | Op::TruncateOpen { .. }
            | Op::SyncOpen { .. }
            | Op::Close { .. } => return self.perform_open(op),
            Op::Mkdir { .. }
            | Op::Rmdir { .. }
            | Op::Unlink { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Mkfifo { .. }
            | Op::Rename { .. }
            | Op::Tmpfile { .. } => self.perform_names(op),
            Op::Chmod { .. }
            | Op::Chown { .. }
            | Op::SetTimes { .. }
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. } => self.perform_attributes(op),
        }?;
        Ok(Answer::default())
    }

    fn perform_open(&mut self, op: &Op) -> Result<Answer, Errno> {
        let slot = match op {
            Op::WriteOpen { slot, .. } | Op::ReadOpen { slot, .. } | Op::TruncateOpen { slot, .. } => slot,
            Op::SyncOpen { slot } | Op::Close { slot } => slot,
            _ => return Err(Errno::INVAL),
        };
        let file = self.handles.remove(slot).ok_or(Errno::BADF)?;
        let outcome = match op {
            Op::WriteOpen { offset, len, fill, .. } => self.write(&file, Some(*offset), *len, *fill),
            Op::ReadOpen { offset, len, .. } => {
                let answer = read(&file, *offset, *len);
                self.handles.insert(*slot, file);
                return answer;
            }
            Op::TruncateOpen { size, .. } => fs::ftruncate(&file, *size),
            Op::SyncOpen { .. } => fs::fsync(&file),
            _ => return Ok(Answer::default()),
        };
        self.handles.insert(*slot, file);
        outcome.map(|()| Answer::default())
    }

    fn perform_names(&mut self, op: &Op) -> Result<(), Errno> {
        match op {
            Op::Mkdir { path, mode } => fs::mkdir(self.path(path), Mode::from_raw_mode(*mode)),
            Op::Rmdir { path } => fs::rmdir(self.path(path)),
            Op::Unlink { path } => fs::unlink(self.path(path)),
            Op::Symlink { target, path } => fs::symlink(target.as_str(), self.path(path)),
            Op::Link { from, to } => fs::linkat(CWD, self.path(from), CWD, self.path(to), AtFlags::empty()),
            Op::Mkfifo { path, mode } => {
                fs::mknodat(CWD, self.path(path), FileType::Fifo, Mode::from_raw_mode(*mode), 0)
            }
            Op::Rename { from, to, kind } => {
                let flags = match kind {
                    RenameKind::Replace => RenameFlags::empty(),
                    RenameKind::NoReplace => RenameFlags::NOREPLACE,
                    RenameKind::Exchange => RenameFlags::EXCHANGE,
                };
                fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags)
            }
            Op::Tmpfile { path, len, fill } => {
                let full = self.path(path);
                // The name first: an unnamed file that cannot be linked proves nothing.
                match fs::lstat(&full) {
                    Ok(_) => return Err(Errno::EXIST),
                    Err(Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
                let dir = full.parent().ok_or(Errno::NOENT)?;
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = fs::open(dir, flags, Mode::from_raw_mode(0o600))?;
                self.write(&file, Some(0), *len, *fill)?;
                fs::linkat(&file, "", CWD, &full, AtFlags::EMPTY_PATH)
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn perform_attributes(&mut self, op: &Op) -> Result<(), Errno> {
        match op {
            Op::Chmod { path, mode } => fs::chmod(self.path(path), Mode::from_raw_mode(*mode)),
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                fs::chownat(CWD, self.path(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::SetTimes { path, seconds, nanos } => {
                let at = Timespec { tv_sec: *seconds, tv_nsec: i64::from(*nanos) };
                let times = Timestamps { last_access: at, last_modification: at };
                fs::utimensat(CWD, self.path(path), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::SetXattr { path, name, len, fill, kind } => {
                let mut value = vec![0; *len as usize];
                pattern(*fill, 0, &mut value);
                let flags = match kind {
                    XattrKind::Any => XattrFlags::empty(),
                    XattrKind::Create => XattrFlags::CREATE,
                    XattrKind::Replace => XattrFlags::REPLACE,
                };
                fs::lsetxattr(self.path(path), name.as_str(), &value, flags)
            }
            Op::RemoveXattr { path, name } => fs::lremovexattr(self.path(path), name.as_str()),
            _ => Err(Errno::INVAL),
        }
    }

    /// Opens a regular file for reading and writing. A FIFO is not opened: without another end it would wait.
    fn open(&self, path: &str, flags: OFlags, mode: u32) -> Result<OwnedFd, Errno> {
        let full = self.path(path);
        if !flags.contains(OFlags::EXCL) {
            match fs::lstat(&full) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Fifo => {
                    return Err(Errno::NXIO);
                }
                Ok(_) | Err(_) => {}
            }
        }
        let all = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::open(full, all, Mode::from_raw_mode(mode))
    }

    fn write(&mut self, file: &OwnedFd, offset: Option<u64>, len: u64, fill: u32) -> Result<(), Errno> {
        // The pattern of an appended byte depends on where it lands.
        let base = offset.map_or_else(|| fs::fstat(file).map(|s| s.st_size as u64), Ok)?;
        self.buffer.resize(len as usize, 0);
        pattern(fill, base, &mut self.buffer);
        let mut done = 0;
        while done < self.buffer.len() {
            let part = &self.buffer[done..self.buffer.len().min(done + CHUNK)];
            let wrote = match offset {
                Some(offset) => io::pwrite(file, part, offset + done as u64)?,
                None => io::write(file, part)?,
            };
            if wrote == 0 {
                return Err(Errno::IO);
            }
            done += wrote;
        }
        Ok(())
    }
}

fn allocate_flags(kind: AllocateKind) -> FallocateFlags {
    match kind {
        AllocateKind::Extend => FallocateFlags::empty(),
        AllocateKind::KeepSize => FallocateFlags::KEEP_SIZE,
        AllocateKind::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        AllocateKind::Zero => FallocateFlags::ZERO_RANGE,
    }
}

fn copy_range(source: &OwnedFd, target: &OwnedFd, offsets: (u64, u64), len: u64) -> Result<(), Errno> {
    // What there is to copy is decided once: within one file each part would move the end.
    let there = (fs::fstat(source)?.st_size as u64).saturating_sub(offsets.0);
    let (mut from, mut to, mut left) = (offsets.0, offsets.1, len.min(there) as usize);
    while left > 0 {
        let copied = fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), left)?;
        if copied == 0 {
            break;
        }
        left -= copied;
    }
    Ok(())
}

fn read(file: &OwnedFd, offset: u64, len: u64) -> Result<Answer, Errno> {
    let mut data = vec![0; len as usize];
    let mut done = 0;
    while done < data.len() {
        match io::pread(file, &mut data[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    data.truncate(done);
    Ok(Answer { data: Some(data) })
}

/// Finds out, in a scratch file below `root`, what the file system under test offers.
pub fn abilities(root: &Path, tiers: bool) -> Result<Abilities, Errno> {
    let (path, other) = (root.join(".abilities"), root.join(".abilities2"));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = fs::open(&path, flags, Mode::from_raw_mode(0o600))?;
    fs::open(&other, flags, Mode::from_raw_mode(0o600))?;
    let found = Abilities {
        zero_range: fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 4096).is_ok(),
        tmpfile: fs::open(root, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600)).is_ok(),
        exchange: fs::renameat_with(CWD, &path, CWD, &other, RenameFlags::EXCHANGE).is_ok(),
        xattrs: fs::lsetxattr(&path, "user.a", b"x", XattrFlags::empty()).is_ok(),
        tiers,
    };
    fs::unlink(&path)?;
    fs::unlink(&other)?;
    Ok(found)
}
