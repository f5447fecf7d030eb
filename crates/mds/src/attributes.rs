//! Operations on an inode's own attributes, plain and extended.

use link::Attrs;
use namespace::{
    Env, Found, SetAttr, SetXattr,
    apart::{self, Crossing},
    inode,
    mode::FileMode,
    striping,
    txn::{Bytes, Reader},
    xattr,
};
use types::{Errno, FileKind, Ino, ProjectId};

use crate::{
    recorder::Change,
    server::Mds,
    slots::{SlotSet, SlotTxn},
};

impl Mds {
    /// A size here is only recorded: the data server truncates the object, before (shrinking) or after (growing).
    /// It is charged within what open files of the project left, and the file has no more then than is recorded.
    pub fn setattr(&self, ino: Ino, change: &SetAttr) -> Result<Found, Errno> {
        self.admit(Some(ino))?;
        let before = change.size.map(|size| self.reserve_growth(ino, size)).transpose()?.flatten();
        let result = self.change_when_full(SlotSet::of(ino), |txn, env| set(txn, env, ino, change));
        match (&result, before) {
            (Ok(found), _) if change.size.is_some() && found.attr.project != ProjectId::NONE => {
                self.reservations.drop_file(ino);
            }
            (Err(_), Some(before)) => self.reservations.restore(ino, before),
            (Ok(_), _) | (Err(_), None) => {}
        }
        result
    }

    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Bytes, Errno> {
        let _shared = self.locks.read(ino);
        self.read(|reader| xattr::get(reader, ino, name))
    }

    /// The names, each with a NUL after it, as listxattr(2) gives them.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let _shared = self.locks.read(ino);
        let mut names = Vec::new();
        self.read(|reader| {
            xattr::list(reader, ino, &mut |name| {
                names.extend_from_slice(name);
                names.push(0);
            })
        })?;
        Ok(names)
    }

    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Errno> {
        self.admit(Some(ino))?;
        self.change(SlotSet::of(ino), |txn, env| {
            telling(txn, ino, Attrs::NONE, |txn| xattr::set(txn, env, ino, name, value, how))?;
            tell_xattr(txn, ino, name)
        })
    }

    /// What a regular file says of its mode itself.
    pub fn set_file_mode(&self, ino: Ino, mode: Option<FileMode>) -> Result<(), Errno> {
        let linked = self.recorder.get().is_some();
        self.admit(Some(ino))?;
        self.change(SlotSet::of(ino), |txn, env| {
            if let Some(Crossing { apart, dir, name }) = apart::set_file_mode(txn, env, ino, mode, linked)? {
                txn.tell(|| Change::Crossed { ino, apart, dir, name });
            }
            Ok(())
        })
    }

    /// What a directory says of where the data of new files in it go, as it was set.
    pub fn striping(&self, dir: Ino) -> Result<Option<Bytes>, Errno> {
        let _shared = self.locks.read(dir);
        self.read(|reader| striping::get(reader, dir))
    }

    /// New directories in it get the same.
    pub fn set_striping(&self, dir: Ino, record: Option<&[u8]>) -> Result<(), Errno> {
        self.admit(Some(dir))?;
        self.change(SlotSet::of(dir), |txn, env| striping::set(txn, env, dir, record))
    }

    /// Is what is made in the directory kept from the linked directory?
    pub fn is_apart(&self, dir: Ino) -> Result<bool, Errno> {
        self.read(|reader| inode::load(reader, dir)).map(|inode| inode.is_apart())
    }

    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        self.admit(Some(ino))?;
        self.change_when_full(SlotSet::of(ino), |txn, env| {
            xattr::remove(txn, env, ino, name)?;
            tell_xattr(txn, ino, name)
        })
    }
}

fn set(txn: &mut SlotTxn<'_>, env: &Env, ino: Ino, change: &SetAttr) -> namespace::Result<Found> {
    let asked = [
        (change.mode.is_some(), Attrs::MODE),
        (change.uid.is_some() || change.gid.is_some(), Attrs::OWNER),
        (change.atime.is_some() || change.mtime.is_some(), Attrs::TIMES),
    ];
    let asked = asked.into_iter().filter(|(is_asked, _)| *is_asked);
    let asked = asked.fold(Attrs::NONE, |all, (_, one)| all.with(one));
    let found = telling(txn, ino, asked, |txn| namespace::setattr(txn, env, ino, change))?;
    if change.size.is_some() {
        txn.tell(|| Change::Written { ino });
        if !found.data.live {
            // Nobody has it open, so nobody would tell.
            txn.tell(|| Change::Settled { ino });
        }
    }
    Ok(found)
}

/// Runs `change` of an inode's own attributes, and tells of those that were asked for and of what changed with them: the mode,
/// file capabilities.
pub(crate) fn telling<V>(
    txn: &mut SlotTxn<'_>,
    ino: Ino,
    asked: Attrs,
    change: impl FnOnce(&mut SlotTxn<'_>) -> namespace::Result<V>,
) -> namespace::Result<V> {
    if !txn.is_told() {
        return change(txn);
    }
    let before = Told::of(txn, ino)?;
    let value = change(txn)?;
    let now = Told::of(txn, ino)?;
    let what = if before.mode == now.mode { asked } else { asked.with(Attrs::MODE) };
    if !what.is_empty() {
        txn.tell(|| Change::Attributes { ino, kind: now.kind, what });
    }
    if before.capability && !now.capability {
        txn.tell(|| Change::Xattr { ino, kind: now.kind, name: xattr::CAPABILITY.to_vec() });
    }
    Ok(value)
}

/// What may change with something else.
struct Told {
    kind: FileKind,
    mode: u32,
    capability: bool,
}

impl Told {
    fn of<R: Reader + ?Sized>(reader: &R, ino: Ino) -> namespace::Result<Told> {
        let inode = inode::load(reader, ino)?;
        let capability = xattr::has_capability(reader, ino, &inode)?;
        Ok(Told { kind: inode.kind, mode: inode.mode, capability })
    }
}

fn tell_xattr(txn: &mut SlotTxn<'_>, ino: Ino, name: &[u8]) -> namespace::Result<()> {
    if txn.is_told() {
        let kind = inode::load(txn, ino)?.kind;
        txn.tell(|| Change::Xattr { ino, kind, name: name.to_vec() });
    }
    Ok(())
}
