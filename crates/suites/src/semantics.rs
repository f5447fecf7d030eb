//! What each operation does to the reference tree, and which error Linux gives: as root, on a file system of
//! ordinary POSIX semantics. The order of checks follows the kernel's path walk, so that error numbers can be compared.

use std::{ops::Range, sync::Arc};

use rustix::io::Errno;

use crate::{
    op::{AllocateKind, Op, RenameKind, XattrKind},
    random::pattern,
    tree::{Body, Found, Mtime, NodeId, Tree},
};

/// What an operation gives back besides success.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// Bytes that a read returned.
    pub data: Option<Vec<u8>>,
}

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

impl Tree {
    /// Applies one operation, or gives the error that it must give (and changes nothing).
    pub fn apply(&mut self, op: &Op) -> Result<Answer, Errno> {
        self.touched.clear();
        match op {
            Op::Create { path, mode, exclusive } => self.create(path, *mode, *exclusive).map(|_| ()),
            Op::Rewrite { path, len, fill } => self.rewrite(path, *len, *fill),
            Op::Write { path, offset, len, fill } => {
                let id = self.open_file(path)?;
                self.write(id, *offset, *len, *fill)
            }
            Op::Append { path, len, fill } => {
                let id = self.open_file(path)?;
                let end = self.size(id)?;
                self.write(id, end, *len, *fill)
            }
            Op::Truncate { path, size } => {
                let id = self.open_file(path)?;
                self.truncate(id, *size)
            }
            Op::Allocate { path, kind, offset, len } => {
                let id = self.open_file(path)?;
                self.allocate(id, *kind, *offset, *len)
            }
            Op::CopyRange { from, to, from_offset, to_offset, len } => {
                self.copy_range((from, *from_offset), (to, *to_offset), *len)
            }
            Op::Read { path, offset, len } => {
                let id = self.open_file(path)?;
                return self.read(id, *offset, *len);
            }
            Op::Mkdir { path, mode } => self.mkdir(path, *mode),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Unlink { path } => self.unlink(path),
            Op::Symlink { target, path } => self.add_leaf(path, Body::Symlink(target.clone()), 0o777),
            Op::Link { from, to } => self.link(from, to),
            Op::Mkfifo { path, mode } => self.add_leaf(path, Body::Fifo, *mode),
            Op::Rename { from, to, kind } => self.rename(from, to, *kind),
            Op::Tmpfile { path, len, fill } => self.tmpfile(path, *len, *fill),
            Op::Chmod { path, mode } => {
                let id = self.resolve(path)?;
                self.node_mut(id)?.mode = *mode;
                Ok(())
            }
            Op::Chown { path, uid, gid } => self.chown(path, *uid, *gid),
            Op::SetTimes { path, seconds, nanos } => {
                let id = self.existing(path)?;
                self.node_mut(id)?.mtime = Mtime::Is(*seconds, *nanos);
                Ok(())
            }
            Op::SetXattr { path, name, len, fill, kind } => {
                let mut value = vec![0; *len as usize];
                pattern(*fill, 0, &mut value);
                self.set_xattr(path, name, value, *kind)
            }
            Op::RemoveXattr { path, name } => self.remove_xattr(path, name),
            Op::Fsync { path, .. } => {
                let id = self.open_file(path)?;
                self.mark_synced(id)
            }
            Op::Open { slot, path } => self.open(*slot, path),
            Op::WriteOpen { slot, offset, len, fill } => {
                let id = self.handle(*slot)?;
                self.write(id, *offset, *len, *fill)
            }
            Op::ReadOpen { slot, offset, len } => {
                let id = self.handle(*slot)?;
                return self.read(id, *offset, *len);
            }
            Op::TruncateOpen { slot, size } => {
                let id = self.handle(*slot)?;
                self.truncate(id, *size)
            }
            Op::SyncOpen { slot } => {
                let id = self.handle(*slot)?;
                self.mark_synced(id)
            }
            Op::Close { slot } => {
                let id = self.handles.remove(slot).ok_or(Errno::BADF)?;
                self.collect(id);
                Ok(())
            }
            Op::Move { path, .. } => self.open_file(path).map(|_| ()),
            Op::Remount => {
                self.close_all();
                Ok(())
            }
        }?;
        Ok(Answer::default())
    }

    /// As `open(path, O_NOFOLLOW)` for reading and writing: regular files only.
    fn open_file(&self, path: &str) -> Result<NodeId, Errno> {
        let id = self.existing(path)?;
        match self.node(id)?.body {
            Body::File(_) => Ok(id),
            Body::Dir(_) => Err(Errno::ISDIR),
            Body::Symlink(_) => Err(Errno::LOOP),
            // Not opened: a FIFO with no other end would wait.
            Body::Fifo => Err(Errno::NXIO),
        }
    }
    fn handle(&self, slot: u8) -> Result<NodeId, Errno> {
        self.handles.get(&slot).copied().ok_or(Errno::BADF)
    }
    pub fn size(&self, id: NodeId) -> Result<u64, Errno> {
        Ok(self.node(id)?.content().map_or(0, |bytes| bytes.len() as u64))
    }
    fn bytes_mut(&mut self, id: NodeId) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.node_mut(id)?.body {
            Body::File(bytes) => Ok(Arc::make_mut(bytes)),
            Body::Dir(_) | Body::Symlink(_) | Body::Fifo => Err(Errno::INVAL),
        }
    }
    fn note_unsynced(&mut self, id: NodeId, range: Range<u64>) -> Result<(), Errno> {
        if !range.is_empty() {
            self.node_mut(id)?.unsynced.push(range);
        }
        Ok(())
    }
    fn mark_synced(&mut self, id: NodeId) -> Result<(), Errno> {
        let node = self.node_mut(id)?;
        node.synced = node.content().cloned();
        node.unsynced.clear();
        Ok(())
    }

    fn new_entry(&self, path: &str) -> Result<Found, Errno> {
        let found = self.find(path)?;
        if found.node.is_some() { Err(Errno::EXIST) } else { Ok(found) }
    }
    fn insert(&mut self, parent: NodeId, name: &str, id: NodeId) -> Result<(), Errno> {
        self.entries_mut(parent)?.insert(name.to_owned(), id);
        self.node_mut(parent)?.mtime = Mtime::Changed;
        Ok(())
    }
    fn remove(&mut self, parent: NodeId, name: &str) -> Result<(), Errno> {
        self.entries_mut(parent)?.remove(name);
        self.node_mut(parent)?.mtime = Mtime::Changed;
        Ok(())
    }
    /// The group of a new node: the directory's own where that has the set-group-id bit.
    fn group_in(&self, parent: NodeId) -> Result<u32, Errno> {
        let node = self.node(parent)?;
        Ok(if node.mode & SET_GID != 0 { node.gid } else { 0 })
    }

    fn create(&mut self, path: &str, mode: u32, exclusive: bool) -> Result<NodeId, Errno> {
        let found = self.find(path)?;
        if let Some(id) = found.node {
            return if exclusive { Err(Errno::EXIST) } else { self.open_file(path).map(|_| id) };
        }
        let gid = self.group_in(found.parent)?;
        let id = self.add(Body::File(Arc::default()), mode, gid);
        self.insert(found.parent, &found.name, id)?;
        Ok(id)
    }
    fn rewrite(&mut self, path: &str, len: u64, fill: u32) -> Result<(), Errno> {
        let id = self.create(path, 0o644, false)?;
        self.truncate(id, 0)?;
        self.write(id, 0, len, fill)
    }
    fn add_leaf(&mut self, path: &str, body: Body, mode: u32) -> Result<(), Errno> {
        let found = self.new_entry(path)?;
        let gid = self.group_in(found.parent)?;
        let id = self.add(body, mode, gid);
        self.insert(found.parent, &found.name, id)
    }
    fn tmpfile(&mut self, path: &str, len: u64, fill: u32) -> Result<(), Errno> {
        let found = self.new_entry(path)?;
        let gid = self.group_in(found.parent)?;
        let id = self.add(Body::File(Arc::default()), 0o600, gid);
        self.write(id, 0, len, fill)?;
        self.insert(found.parent, &found.name, id)
    }

    fn write(&mut self, id: NodeId, offset: u64, len: u64, fill: u32) -> Result<(), Errno> {
        if len == 0 {
            return Ok(());
        }
        let old = self.size(id)?;
        let bytes = self.bytes_mut(id)?;
        let end = (offset + len) as usize;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        pattern(fill, offset, &mut bytes[offset as usize..end]);
        self.node_mut(id)?.mtime = Mtime::Changed;
        self.note_unsynced(id, old.min(offset)..offset + len)
    }
    fn truncate(&mut self, id: NodeId, size: u64) -> Result<(), Errno> {
        let old = self.size(id)?;
        self.bytes_mut(id)?.resize(size as usize, 0);
        self.node_mut(id)?.mtime = Mtime::Changed;
        self.note_unsynced(id, old.min(size)..old.max(size))
    }
    fn allocate(&mut self, id: NodeId, kind: AllocateKind, offset: u64, len: u64) -> Result<(), Errno> {
        let old = self.size(id)?;
        let end = offset + len;
        let bytes = self.bytes_mut(id)?;
        match kind {
            AllocateKind::KeepSize => {}
            AllocateKind::Extend if end > old => bytes.resize(end as usize, 0),
            AllocateKind::Extend => {}
            AllocateKind::Punch => {
                let to = end.min(old) as usize;
                if (offset as usize) < to {
                    bytes[offset as usize..to].fill(0);
                }
            }
            AllocateKind::Zero => {
                if end > old {
                    bytes.resize(end as usize, 0);
                }
                bytes[offset as usize..end as usize].fill(0);
            }
        }
        // Whether a call that changes no byte changes the time is left open.
        self.node_mut(id)?.mtime = Mtime::Unknown;
        self.note_unsynced(id, old.min(offset)..end)
    }
    fn copy_range(&mut self, from: (&str, u64), to: (&str, u64), len: u64) -> Result<(), Errno> {
        let (source, target) = (self.open_file(from.0)?, self.open_file(to.0)?);
        let size = self.size(source)?;
        let end = size.min(from.1 + len);
        if from.1 >= end {
            return Ok(());
        }
        // What would be copied is cut at the end of the source first.
        let len = end - from.1;
        if source == target && from.1 < to.1 + len && to.1 < from.1 + len {
            return Err(Errno::INVAL);
        }
        let copied = self.bytes_mut(source)?[from.1 as usize..end as usize].to_vec();
        let old = self.size(target)?;
        let bytes = self.bytes_mut(target)?;
        let (start, stop) = (to.1 as usize, to.1 as usize + copied.len());
        if bytes.len() < stop {
            bytes.resize(stop, 0);
        }
        bytes[start..stop].copy_from_slice(&copied);
        self.node_mut(target)?.mtime = Mtime::Changed;
        self.note_unsynced(target, old.min(to.1)..stop as u64)
    }
    fn read(&self, id: NodeId, offset: u64, len: u64) -> Result<Answer, Errno> {
        let content = self.node(id)?.content().ok_or(Errno::INVAL)?;
        let start = (offset as usize).min(content.len());
        let end = ((offset + len) as usize).min(content.len());
        Ok(Answer { data: Some(content[start..end].to_vec()) })
    }

    fn mkdir(&mut self, path: &str, mode: u32) -> Result<(), Errno> {
        let found = self.new_entry(path)?;
        let (gid, inherited) = (self.group_in(found.parent)?, self.node(found.parent)?.mode & SET_GID);
        // mkdir(2) drops set-user-id and set-group-id of what is asked for.
        let id = self.add(Body::Dir(Default::default()), (mode & 0o1777) | inherited, gid);
        self.insert(found.parent, &found.name, id)
    }
    fn rmdir(&mut self, path: &str) -> Result<(), Errno> {
        let found = self.find(path)?;
        let id = found.node.ok_or(Errno::NOENT)?;
        if !self.entries(id)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.remove(found.parent, &found.name)?;
        self.drop_name(id)
    }
    fn unlink(&mut self, path: &str) -> Result<(), Errno> {
        let found = self.find(path)?;
        let id = found.node.ok_or(Errno::NOENT)?;
        if self.node(id)?.is_dir() {
            return Err(Errno::ISDIR);
        }
        self.remove(found.parent, &found.name)?;
        self.drop_name(id)
    }
    fn link(&mut self, from: &str, to: &str) -> Result<(), Errno> {
        let id = self.existing(from)?;
        let found = self.new_entry(to)?;
        if self.node(id)?.is_dir() {
            return Err(Errno::PERM);
        }
        self.insert(found.parent, &found.name, id)?;
        self.node_mut(id)?.nlink += 1;
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str, kind: RenameKind) -> Result<(), Errno> {
        // The kernel looks both parents up before either last name.
        let (old, new) = match (self.find(from), self.find(to)) {
            (Err(Errno::NAMETOOLONG), Err(e)) if e != Errno::NAMETOOLONG => return Err(e),
            (old, new) => match old {
                Ok(found) if found.node.is_none() && new.as_ref().err() == Some(&Errno::NAMETOOLONG) => {
                    return Err(Errno::NOENT);
                }
                old => (old?, new?),
            },
        };
        let id = old.node.ok_or(Errno::NOENT)?;
        match kind {
            RenameKind::NoReplace if new.node.is_some() => return Err(Errno::EXIST),
            RenameKind::Exchange if new.node.is_none() => return Err(Errno::NOENT),
            RenameKind::Replace | RenameKind::NoReplace | RenameKind::Exchange => {}
        }
        let exchange = kind == RenameKind::Exchange;
        if old.parent != new.parent {
            if self.is_above(id, new.parent) {
                return Err(Errno::INVAL);
            }
            if new.node.is_some_and(|there| self.is_above(there, old.parent)) {
                return Err(if exchange { Errno::INVAL } else { Errno::NOTEMPTY });
            }
        }
        if new.node == Some(id) {
            return Ok(());
        }
        match new.node {
            Some(there) if exchange => {
                self.insert(new.parent, &new.name, id)?;
                self.insert(old.parent, &old.name, there)
            }
            there => {
                self.may_replace(id, there)?;
                self.remove(old.parent, &old.name)?;
                self.insert(new.parent, &new.name, id)?;
                there.map_or(Ok(()), |gone| self.drop_name(gone))
            }
        }
    }
    fn may_replace(&self, id: NodeId, there: Option<NodeId>) -> Result<(), Errno> {
        let Some(there) = there else { return Ok(()) };
        match (self.node(id)?.is_dir(), self.node(there)?.is_dir()) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if !self.entries(there)?.is_empty() => Err(Errno::NOTEMPTY),
            (true, true) | (false, false) => Ok(()),
        }
    }

    fn chown(&mut self, path: &str, uid: u32, gid: u32) -> Result<(), Errno> {
        let id = self.existing(path)?;
        let node = self.node_mut(id)?;
        (node.uid, node.gid) = (uid, gid);
        // Also root's chown takes the set-id bits of what is not a directory.
        if !node.is_dir() && !matches!(node.body, Body::Symlink(_)) {
            node.mode &= !SET_UID;
            if node.mode & GROUP_EXECUTE != 0 {
                node.mode &= !SET_GID;
            }
        }
        Ok(())
    }
    /// `user.` attributes exist on files and directories only, `trusted.` on everything.
    fn may_set_xattr(&self, id: NodeId, name: &str) -> Result<(), Errno> {
        let plain = matches!(self.node(id)?.body, Body::File(_) | Body::Dir(_));
        if name.starts_with("user.") && !plain { Err(Errno::PERM) } else { Ok(()) }
    }
    fn set_xattr(&mut self, path: &str, name: &str, value: Vec<u8>, kind: XattrKind) -> Result<(), Errno> {
        let id = self.existing(path)?;
        self.may_set_xattr(id, name)?;
        let there = self.node(id)?.xattrs.contains_key(name);
        match kind {
            XattrKind::Create if there => return Err(Errno::EXIST),
            XattrKind::Replace if !there => return Err(Errno::NODATA),
            XattrKind::Any | XattrKind::Create | XattrKind::Replace => {}
        }
        self.node_mut(id)?.xattrs.insert(name.to_owned(), value);
        Ok(())
    }
    fn remove_xattr(&mut self, path: &str, name: &str) -> Result<(), Errno> {
        let id = self.existing(path)?;
        self.may_set_xattr(id, name)?;
        self.node_mut(id)?.xattrs.remove(name).map(|_| ()).ok_or(Errno::NODATA)
    }

    fn open(&mut self, slot: u8, path: &str) -> Result<(), Errno> {
        let id = self.open_file(path)?;
        if let Some(before) = self.handles.insert(slot, id) {
            self.collect(before);
        }
        self.touched.insert(id);
        Ok(())
    }
}
