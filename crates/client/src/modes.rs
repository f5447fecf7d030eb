//! Modes: set for a directory or a file, shown, and what they ask for beside the opening of files.
//!
//! A file says its mode itself only where its directory leaves it to the files (`hybrid`); what it said then stays with it.
//! Refuses to know what a mode promises: that is in `policies`.

use mds::{CloseSync, DirPolicy, FileMode, Found, Mode};
use types::{Errno, FileKind, Ino};

use crate::{
    Client, Policy,
    inode::Inode,
    turn::{Answer, Turn},
};

impl Client {
    /// Changes what a directory says. `ENOTEMPTY`: with a linked directory it becomes transient, or ends to be, only while it
    /// is empty. `EINVAL`: not there.
    pub fn set_dir_policy(&self, dir: Ino, change: impl Fn(&mut DirPolicy)) -> Result<(), Errno> {
        let mut wanted = self.policies.own(dir);
        change(&mut wanted);
        // What they have in it is seen before: it would not be after.
        if let Some(linked) = self.options.linked.as_ref().filter(|_| wanted.mode == Some(Mode::Transient)) {
            linked.visit_dir(dir)?;
        }
        self.policies.change(dir, change)
    }

    /// What holds for a file or in a directory.
    pub(crate) fn policy_of(&self, ino: Ino) -> Result<Policy, Errno> {
        match self.mds.find(ino)?.attr.kind {
            FileKind::Directory => self.policies.holds_in(ino),
            FileKind::Regular => self.policies.holds_for(ino),
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => Err(Errno::ENODATA),
        }
    }

    /// By an attribute; nothing, or `inherit`: as the directory above has it.
    pub(crate) fn set_mode(&self, turn: Turn, caller_uid: u32, ino: Ino, value: &[u8]) -> Answer<()> {
        let found = self.mds.find(ino)?;
        turn.wait()?;
        if found.attr.kind == FileKind::Regular {
            return Ok(self.set_file_mode(&found, value)?);
        }
        let mode = word(value, Mode::from_name)?;
        owns_dir(caller_uid, &found)?;
        Ok(self.set_dir_policy(ino, |policy| policy.mode = mode)?)
    }

    pub(crate) fn set_close_sync(&self, turn: Turn, caller_uid: u32, ino: Ino, value: &[u8]) -> Answer<()> {
        let found = self.mds.find(ino)?;
        let sync = word(value, CloseSync::from_name)?;
        owns_dir(caller_uid, &found)?;
        turn.wait()?;
        Ok(self.set_dir_policy(ino, |policy| policy.sync = sync)?)
    }

    fn set_file_mode(&self, found: &Found, value: &[u8]) -> Result<(), Errno> {
        let ino = found.attr.ino;
        let mode = word(value, FileMode::from_name)?;
        if mode.is_some() && self.policies.holds_in(self.mds.parent(ino)?)?.mode != Mode::Hybrid {
            tracing::info!(%ino, "a file says its mode itself only in a hybrid directory");
            return Err(Errno::EPERM);
        }
        self.mds.set_file_mode(ino, mode)?;
        if let Some(inode) = self.inodes.get(ino) {
            self.apply_policy(&inode, mode);
        }
        Ok(())
    }

    /// A file left a transient directory: its data are to be kept from now on, and not only when it is opened again.
    pub(crate) fn after_move(&self, found: &Found, (from, to): (Ino, Ino)) {
        let is_transient = |dir| self.policies.holds_in(dir).is_ok_and(|holds| holds.is_transient());
        if found.attr.kind == FileKind::Regular
            && !found.data.stale_live
            && is_transient(from) != is_transient(to)
            && let Ok((inode, found)) = self.inodes.acquire(found.attr.ino)
        {
            self.apply_policy(&inode, found.data.mode);
        }
    }

    /// When this returns near-line has the file, under its name.
    pub(crate) fn bring_through(&self, inode: &Inode) -> Result<(), Errno> {
        self.ds.sync_through(&inode.object)?;
        self.options.linked.as_ref().map_or(Ok(()), |linked| linked.settle_names_of(inode.ino).map_err(told))
    }

    /// Of a directory whose names are to be in near-line when an fsync of it returns.
    pub(crate) fn bring_names_through(&self, dir: Ino) -> Result<(), Errno> {
        let Some(linked) = self.options.linked.as_ref().filter(|_| self.policies.is_active()) else {
            return Ok(());
        };
        if self.policies.holds_in(dir)?.mode != Mode::Global {
            return Ok(());
        }
        linked.settle_names(dir).map_err(told)
    }
}

/// What a program is told that waited for near-line in vain.
fn told(errno: Errno) -> Errno {
    if matches!(errno, Errno::ENOSPC | Errno::EDQUOT) { errno } else { Errno::EIO }
}

/// The owner of a directory says where what is made in it goes, as by a command.
fn owns_dir(caller_uid: u32, found: &Found) -> Result<(), Errno> {
    let is_dir = found.attr.kind == FileKind::Directory;
    if is_dir && (caller_uid == 0 || caller_uid == found.attr.uid) { Ok(()) } else { Err(Errno::EPERM) }
}

fn word<T>(value: &[u8], from_name: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Errno> {
    let text = std::str::from_utf8(value).map_err(|_| Errno::EINVAL)?.trim();
    match text {
        "" | "inherit" => Ok(None),
        name => from_name(name).map(Some).ok_or(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: words are known, and wrong ones refused. Method: a table.
    #[test]
    fn words_of_attributes() {
        assert_eq!(word(b"global\n", Mode::from_name), Ok(Some(Mode::Global)));
        assert_eq!(word(b"transient", FileMode::from_name), Ok(Some(FileMode::Transient)));
        assert_eq!(word(b"hybrid", FileMode::from_name), Err(Errno::EINVAL));
        assert_eq!(word(b"forced", CloseSync::from_name), Ok(Some(CloseSync::Forced)));
        for nothing in [&b""[..], b"inherit", b" \n"] {
            assert_eq!(word(nothing, Mode::from_name), Ok(None));
        }
        for wrong in [&b"Global"[..], b"\xff", b"local,global"] {
            assert_eq!(word(wrong, Mode::from_name), Err(Errno::EINVAL));
        }
    }
}
