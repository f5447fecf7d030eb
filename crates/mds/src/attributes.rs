//! Operations on an inode's own attributes, plain and extended.

use namespace::{Found, SetAttr, SetXattr, txn::Bytes, xattr};
use types::{Errno, Ino, ProjectId};

use crate::{server::Mds, slots::SlotSet};

impl Mds {
    /// A size here is only recorded: the data server truncates the object, before (shrinking) or after (growing).
    /// It is charged within what open files of the project left, and the file has no more then than is recorded.
    pub fn setattr(&self, ino: Ino, change: &SetAttr) -> Result<Found, Errno> {
        let before = change.size.map(|size| self.reserve_growth(ino, size)).transpose()?.flatten();
        let result =
            self.change_when_full(SlotSet::of(ino), |txn, env| namespace::setattr(txn, env, ino, change));
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
        xattr::get(self.reader(), ino, name).map_err(|e| self.errno(e))
    }

    /// The names, each with a NUL after it, as listxattr(2) gives them.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let _shared = self.locks.read(ino);
        let mut names = Vec::new();
        xattr::list(self.reader(), ino, &mut |name| {
            names.extend_from_slice(name);
            names.push(0);
        })
        .map_err(|e| self.errno(e))?;
        Ok(names)
    }

    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<(), Errno> {
        self.change(SlotSet::of(ino), |txn, env| xattr::set(txn, env, ino, name, value, how))
    }

    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        self.change_when_full(SlotSet::of(ino), |txn, env| xattr::remove(txn, env, ino, name))
    }
}
