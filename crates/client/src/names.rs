//! Operations on names: lookup, forget, and everything that makes, moves or removes an entry.
//!
//! Invariants: every entry that is answered counts one kernel reference at the mds before the answer leaves
//! ([`Client::entry`]), and FORGET gives them back; so an unlinked file lives as long as the kernel knows it.

use std::time::Duration;

use fuse::{EntryOut, Header};
use mds::{Caller, Found, NewNode, RenameMode, Unlinked};
use types::{Attr, Errno, FileKind, Ino, ProjectId, Timestamp};

use crate::{
    Client,
    inode::has_set_id,
    turn::{Answer, Turn},
};

/// Where a name is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub parent: Ino,
    pub name: &'a [u8],
}

/// Numbers that no inode has come from handles of another file system, or from a damaged request.
pub(crate) fn ino(node: u64) -> Result<Ino, Errno> {
    Ino::from_raw(node).ok_or(Errno::ESTALE)
}

pub(crate) fn caller(header: &Header, umask: u32) -> Caller {
    Caller { uid: header.uid, gid: header.gid, umask }
}

impl Client {
    pub(crate) fn lookup(&self, turn: Turn, at: Place<'_>) -> Answer<EntryOut> {
        if at.name != b"." && at.name != b".." {
            self.visit_dir(turn, at.parent)?;
        }
        let found = match at.name {
            // By a handle: nobody needs to refer to it.
            b"." => {
                let out = self.entry(turn, self.mds.find_by_number(at.parent)?)?;
                self.mds.held_again(&out.attr);
                return Ok(out);
            }
            b".." => self.mds.find(self.mds.parent(at.parent)?)?,
            name => match self.mds.lookup(at.parent, name) {
                Err(Errno::EIO) => return self.damaged_entry(at),
                found => found?,
            },
        };
        if self.visit(turn, found.attr.ino)? {
            // It may be gone, or another by now.
            return self.entry(turn, self.mds.lookup(at.parent, at.name)?);
        }
        self.entry(turn, found)
    }

    /// What a name names whose inode is damaged, so that the name can be taken away. The attributes are for the kernel alone:
    /// it asks for them again before it shows them, and hears `EIO`.
    fn damaged_entry(&self, at: Place<'_>) -> Answer<EntryOut> {
        let Some((ino, kind)) = self.mds.lookup_damaged(at.parent, at.name)? else {
            return Err(Errno::EIO.into());
        };
        let attr = Attr {
            ino,
            kind,
            mode: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: Timestamp::EPOCH,
            mtime: Timestamp::EPOCH,
            ctime: Timestamp::EPOCH,
            btime: Timestamp::EPOCH,
            project: ProjectId::NONE,
        };
        Ok(EntryOut { entry_timeout: Duration::ZERO, ..self.held_entry(attr, Duration::ZERO) })
    }

    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        if let Some(ino) = Ino::from_raw(node) {
            self.mds.release(ino, lookups);
            self.forget_pages(ino);
            self.wake_purger();
        }
    }

    pub(crate) fn mkdir(&self, header: &Header, at: Place<'_>, mode: u32, umask: u32) -> Answer<EntryOut> {
        let made = self.mds.mkdir(&caller(header, umask), at.parent, at.name, mode & types::MODE_MASK);
        let attr = made.or_else(|e| self.made_before(e, at.parent, at.name).map(|found| found.attr))?;
        self.settled_entry(attr)
    }

    /// Everything but directories and regular files that are opened at once.
    pub(crate) fn mknod(&self, header: &Header, at: Place<'_>, node: MknodArgs) -> Answer<EntryOut> {
        let kind = FileKind::from_mode(node.mode).ok_or(Errno::EINVAL)?;
        let new = NewNode {
            kind,
            mode: node.mode & types::MODE_MASK,
            rdev: node.rdev,
            target: None,
            for_write: false,
        };
        let made = self.mds.create(&caller(header, node.umask), at.parent, at.name, &new);
        let found = made.or_else(|e| self.made_before(e, at.parent, at.name))?;
        self.made(found)
    }

    pub(crate) fn symlink(&self, header: &Header, at: Place<'_>, target: &[u8]) -> Answer<EntryOut> {
        let new =
            NewNode { kind: FileKind::Symlink, mode: 0o777, rdev: 0, target: Some(target), for_write: false };
        let made = self.mds.create(&caller(header, 0), at.parent, at.name, &new);
        let found = made.or_else(|e| self.made_before(e, at.parent, at.name))?;
        self.made(found)
    }

    pub(crate) fn link(&self, turn: Turn, existing: Ino, at: Place<'_>) -> Answer<EntryOut> {
        let found = self.mds.find(existing)?;
        turn.wait_if(found.data.stale_live)?;
        if let Some(inode) = self.inodes.get(existing) {
            inode.wait_for_lock(turn)?;
        }
        let linked = self.mds.link(existing, at.parent, at.name);
        let attr = linked.or_else(|e| self.made_before(e, at.parent, at.name).map(|found| found.attr))?;
        self.made(Found { attr, ..found })
    }

    pub(crate) fn unlink(&self, at: Place<'_>) -> Answer<()> {
        let is_used = |ino| self.inodes.may_be_open(ino) || self.ds.keeps(ino);
        match self.mds.unlink(at.parent, at.name, &is_used) {
            Ok(unlinked) => {
                self.after_unlink(Some(unlinked));
                Ok(())
            }
            Err(error) => Client::done_before(error, Errno::ENOENT),
        }
    }

    pub(crate) fn rmdir(&self, at: Place<'_>) -> Answer<()> {
        let removed = self.mds.rmdir(at.parent, at.name);
        self.purger.wake();
        removed.map(drop).or_else(|error| Client::done_before(error, Errno::ENOENT))
    }

    pub(crate) fn rename(&self, from: Place<'_>, to: Place<'_>, flags: u32) -> Answer<()> {
        let mode = rename_mode(flags)?;
        if matches!(mode, RenameMode::Exchange) && self.is_exchanged(from.parent, from.name)? {
            return Ok(());
        }
        let renamed = match self.mds.rename((from.parent, from.name), (to.parent, to.name), mode) {
            Ok(renamed) => renamed,
            Err(error) => return Client::done_before(error, Errno::ENOENT),
        };
        self.after_unlink(renamed.replaced);
        if self.policies.is_active() && from.parent != to.parent {
            // Both names: they may have been exchanged.
            let dir_at = |at: &Place<'_>| match self.mds.lookup(at.parent, at.name) {
                Ok(found) => found.attr.kind == FileKind::Directory,
                Err(error) => error != Errno::ENOENT,
            };
            if dir_at(&to) || dir_at(&from) {
                self.policies.forget();
            } else if let Ok(found) = self.mds.lookup(to.parent, to.name) {
                self.after_move(&found, (from.parent, to.parent));
            }
        }
        Ok(())
    }

    fn after_unlink(&self, unlinked: Option<Unlinked>) {
        if unlinked.is_some_and(|unlinked| unlinked.nlink_left == 0 && unlinked.gone.is_none()) {
            self.purger.wake();
        }
    }

    /// The answer that names an inode, with true attributes. Counts the kernel's reference.
    pub(crate) fn entry(&self, turn: Turn, mut found: Found) -> Answer<EntryOut> {
        turn.wait_if(found.data.stale_live)?;
        let attr_timeout = self.complete(turn, &mut found)?;
        Ok(self.held_entry(found.attr, attr_timeout))
    }

    /// As [`Client::entry`], when there is no serving it again.
    fn made(&self, found: Found) -> Answer<EntryOut> {
        self.entry(Turn::Worker, found)
    }

    fn settled_entry(&self, attr: Attr) -> Answer<EntryOut> {
        Ok(self.held_entry(attr, self.attr_timeout(&attr, false)))
    }

    pub(crate) fn held_entry(&self, attr: Attr, attr_timeout: Duration) -> EntryOut {
        self.mds.hold(attr.ino, 1);
        EntryOut {
            node: attr.ino.get(),
            // Inode numbers are never used again.
            generation: 0,
            entry_timeout: self.options.entry_timeout,
            attr_timeout,
            attr,
        }
    }

    /// Makes the attributes true, and says how long they stay so.
    pub(crate) fn complete(&self, turn: Turn, found: &mut Found) -> Answer<Duration> {
        let written = found.attr.kind == FileKind::Regular && self.inodes.complete(turn, found)?;
        Ok(self.attr_timeout(&found.attr, written))
    }

    /// All changes pass through this kernel, which drops what it has cached of an inode with each of them. Not so
    /// for writes through a mapping of a backing file, and for set-id bits that we clear at a write.
    pub(crate) fn attr_timeout(&self, attr: &Attr, written: bool) -> Duration {
        let set_id = attr.kind == FileKind::Regular && has_set_id(attr.mode);
        if written || set_id { Duration::ZERO } else { self.options.attr_timeout }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MknodArgs {
    pub mode: u32,
    pub rdev: u32,
    pub umask: u32,
}

fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    // renameat2(2).
    const NOREPLACE: u32 = 1;
    const EXCHANGE: u32 = 2;
    match flags {
        0 => Ok(RenameMode::Replace),
        NOREPLACE => Ok(RenameMode::NoReplace),
        EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: unknown rename flags (whiteout, both at once) are refused, never ignored.
    #[test]
    fn rename_flags() {
        assert!(matches!(rename_mode(0), Ok(RenameMode::Replace)));
        assert!(matches!(rename_mode(1), Ok(RenameMode::NoReplace)));
        assert!(matches!(rename_mode(2), Ok(RenameMode::Exchange)));
        for bad in [3, 4, 5, 8] {
            assert!(matches!(rename_mode(bad), Err(Errno::EINVAL)));
        }
    }

    /// Goal: a node number without an inode is refused. Method: local part 0.
    #[test]
    fn numbers_that_name_nothing_are_stale() {
        assert_eq!(ino(0), Err(Errno::ESTALE));
        assert_eq!(ino(7 << 40), Err(Errno::ESTALE));
        assert_eq!(ino(1), Ok(Ino::ROOT));
    }
}
