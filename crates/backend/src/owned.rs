//! What a thread needs of the arguments when the caller may be gone.

use link::{Attributes, Making};
use types::{FileKind, Timestamp};

pub(crate) struct OwnedAttributes {
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl OwnedAttributes {
    pub(crate) fn of(from: &Attributes<'_>) -> OwnedAttributes {
        let Attributes { mode, uid, gid, atime, mtime, xattrs } = *from;
        OwnedAttributes { mode, uid, gid, atime, mtime, xattrs: xattrs.to_vec() }
    }

    pub(crate) fn as_ref(&self) -> Attributes<'_> {
        let OwnedAttributes { mode, uid, gid, atime, mtime, ref xattrs } = *self;
        Attributes { mode, uid, gid, atime, mtime, xattrs }
    }
}

pub(crate) struct OwnedMaking {
    kind: FileKind,
    rdev: u32,
    target: Vec<u8>,
    with: OwnedAttributes,
}

impl OwnedMaking {
    pub(crate) fn of(from: &Making<'_>) -> OwnedMaking {
        let Making { kind, rdev, target, with } = *from;
        OwnedMaking { kind, rdev, target: target.to_vec(), with: OwnedAttributes::of(with) }
    }

    pub(crate) fn use_by<T>(&self, user: impl FnOnce(&Making<'_>) -> T) -> T {
        let with = self.with.as_ref();
        user(&Making { kind: self.kind, rdev: self.rdev, target: &self.target, with: &with })
    }
}
