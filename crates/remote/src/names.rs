//! Names and attributes. Whatever answers with an inode gives one reference, which the kernel returns by forgetting it.

use fuse::{SetattrArgs, TimeOrNow};
use lease::coherence::rights::Key;
use proto::{
    Head,
    attr::{Caller, Changes, SetTime},
    metadata,
    untouched::GetUntouched,
};
use types::{Attr, Errno, FileKind, Ino};

use crate::{
    Remote,
    keys::{entry, inode},
};

/// Where a name is.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
}

impl Remote {
    pub fn lookup(&self, at: Place<'_>) -> Result<Attr, Errno> {
        let attr = self.lookup_there(at)?;
        if !self.backlog.has(attr.ino) {
            return Ok(attr);
        }
        // What is there is not all.
        self.getattr(attr.ino).inspect_err(|_| self.references.forget(attr.ino.get(), 1))
    }

    fn lookup_there(&self, at: Place<'_>) -> Result<Attr, Errno> {
        if self.keeps() {
            return self.kept_lookup(at).unwrap_or_else(|| self.look_name(at));
        }
        let entry = self.look(|head| metadata::Lookup {
            head: Some(head),
            dir: at.dir.get(),
            name: at.name.to_vec(),
        });
        self.named(entry)
    }

    /// As of this moment, also of a file that others write.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Errno> {
        self.write_out(ino)?;
        if let Some(opening) = self.openings.untouched(ino) {
            let entry = self.look(|head| GetUntouched { head: Some(head), ino: ino.get(), opening })?;
            // What was written meanwhile is not in it, and may be older than what is.
            if self.openings.untouched(ino) == Some(opening) {
                return attr_of(entry.attr);
            }
        }
        if self.keeps() {
            return self.kept_attr(ino).map_or_else(|| self.look_inode(ino), Ok);
        }
        self.attr_of_all(ino)
    }

    pub fn setattr(&self, ino: Ino, args: &SetattrArgs) -> Result<Attr, Errno> {
        let changes = Changes {
            mode: args.mode.map(|mode| mode & types::MODE_MASK),
            uid: args.uid,
            gid: args.gid,
            size: args.size,
            atime: args.atime.map(set_time),
            mtime: args.mtime.map(set_time),
            ctime: args.ctime.map(Into::into),
            kill_suidgid: args.kill_suidgid,
        };
        self.apply(ino, changes, false)
    }

    pub(crate) fn apply(&self, ino: Ino, changes: Changes, grow_only: bool) -> Result<Attr, Errno> {
        // What is told of the file goes on from what was written.
        let _direct = changes.size.map(|_| self.go_past(ino)).transpose()?;
        self.write_out(ino)?;
        let mut changing = changes.size.map(|_| self.change_bytes(ino, None));
        let entry = self.change_of(&[inode(ino)], |head| metadata::SetAttr {
            head: Some(head),
            ino: ino.get(),
            changes: Some(changes),
            grow_only,
        });
        if let Some(changing) = &mut changing {
            changing.ended(&entry);
        }
        attr_of(entry?.attr)
    }

    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let target = self.look(|head| metadata::ReadLink { head: Some(head), ino: ino.get() })?;
        Ok(target.target)
    }

    pub fn mkdir(&self, caller: Caller, at: Place<'_>, mode: u32) -> Result<Attr, Errno> {
        let entry = self.change_of(&[entry(at.dir, at.name), inode(at.dir)], |head| metadata::Mkdir {
            head: Some(head),
            caller: Some(caller),
            dir: at.dir.get(),
            name: at.name.to_vec(),
            mode: mode & types::MODE_MASK,
        });
        self.named(entry)
    }

    /// `mode` with the file's type.
    pub fn mknod(&self, caller: Caller, at: Place<'_>, mode: u32, rdev: u32) -> Result<Attr, Errno> {
        let kind = FileKind::from_mode(mode).ok_or(Errno::EINVAL)?;
        let entry = self.change_of(&[entry(at.dir, at.name), inode(at.dir)], |head| metadata::Mknod {
            head: Some(head),
            caller: Some(caller),
            dir: at.dir.get(),
            name: at.name.to_vec(),
            kind: kind as u32,
            mode: mode & types::MODE_MASK,
            rdev,
        });
        self.named(entry)
    }

    pub fn symlink(&self, caller: Caller, at: Place<'_>, target: &[u8]) -> Result<Attr, Errno> {
        let entry = self.change_of(&[entry(at.dir, at.name), inode(at.dir)], |head| metadata::Symlink {
            head: Some(head),
            caller: Some(caller),
            dir: at.dir.get(),
            name: at.name.to_vec(),
            target: target.to_vec(),
        });
        self.named(entry)
    }

    pub fn link(&self, ino: Ino, at: Place<'_>) -> Result<Attr, Errno> {
        self.write_out(ino)?;
        let entry = self.change_of(&[entry(at.dir, at.name), inode(at.dir), inode(ino)], |head| {
            metadata::Link { head: Some(head), ino: ino.get(), dir: at.dir.get(), name: at.name.to_vec() }
        });
        self.named(entry)
    }

    pub fn unlink(&self, at: Place<'_>) -> Result<(), Errno> {
        let (keys, dropped) = self.taken_away(&[at]);
        let head = |head| Some(Head { dropped: dropped[0], ..head });
        let make = |of| metadata::Unlink { head: head(of), dir: at.dir.get(), name: at.name.to_vec() };
        self.change_of(&keys, make).map(drop)
    }

    pub fn rmdir(&self, at: Place<'_>) -> Result<(), Errno> {
        let (keys, dropped) = self.taken_away(&[at]);
        let head = |head| Some(Head { dropped: dropped[0], ..head });
        let make = |of| metadata::Rmdir { head: head(of), dir: at.dir.get(), name: at.name.to_vec() };
        self.change_of(&keys, make).map(drop)
    }

    /// `flags` as in renameat2(2).
    pub fn rename(&self, from: Place<'_>, to: Place<'_>, flags: u32) -> Result<(), Errno> {
        let mode = rename_mode(flags)?;
        let (keys, dropped) = self.taken_away(&[from, to]);
        let [dropped, dropped_too] = dropped;
        self.change_of(&keys, |head| metadata::Rename {
            head: Some(Head { dropped, dropped_too, ..head }),
            from_dir: from.dir.get(),
            from_name: from.name.to_vec(),
            to_dir: to.dir.get(),
            to_name: to.name.to_vec(),
            mode: mode.into(),
        })
        .map(drop)
    }

    /// What an operation changes that takes these names away or moves them, and as far as it is known what they name.
    fn taken_away(&self, names: &[Place<'_>]) -> (Vec<Key>, [u64; 2]) {
        let (mut keys, mut dropped) = (Vec::new(), [0; 2]);
        for (at, dropped) in names.iter().zip(&mut dropped) {
            keys.extend([entry(at.dir, at.name), inode(at.dir)]);
            if let Some(ino) = self.known_as(*at) {
                keys.push(inode(ino));
                *dropped = ino.get();
            }
        }
        (keys, dropped)
    }

    /// The kernel gives up references.
    pub fn forget(&self, ino: u64, count: u64) {
        self.references.forget(ino, count);
    }

    /// The kernel will not hear of an entry that came.
    pub(crate) fn named(&self, entry: Result<metadata::Entry, Errno>) -> Result<Attr, Errno> {
        let entry = entry?;
        let attr = match entry.attr {
            // The inode is another metadata server's, who is asked for the reference, too.
            None if entry.ino != 0 => {
                let found = self.look(|head| metadata::Find { head: Some(head), ino: entry.ino });
                // Removed since the name was read.
                found.map_err(|error| if error == Errno::ESTALE { Errno::ENOENT } else { error })?.attr
            }
            attr => attr,
        };
        let attr = attr_of(attr)?;
        self.references.add(attr.ino);
        Ok(attr)
    }
}

/// An answer's attributes, within their bounds.
pub(crate) fn attr_of(attr: Option<proto::attr::Attr>) -> Result<Attr, Errno> {
    let attr = attr.ok_or(Errno::EIO)?;
    Attr::try_from(attr).map_err(|bad| {
        tracing::error!(%bad, "attributes that make no sense");
        Errno::EIO
    })
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime { at: None },
        TimeOrNow::At(time) => SetTime { at: Some(time.into()) },
    }
}

fn rename_mode(flags: u32) -> Result<metadata::RenameMode, Errno> {
    match flags {
        0 => Ok(metadata::RenameMode::Replace),
        1 => Ok(metadata::RenameMode::NoReplace),
        2 => Ok(metadata::RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: unknown flags of a rename are refused, never passed over.
    use super::*;

    #[test]
    fn rename_flags() {
        let known: Vec<u32> = (0..16).filter(|flags| rename_mode(*flags).is_ok()).collect();
        assert_eq!(known, [0, 1, 2]);
    }
}
