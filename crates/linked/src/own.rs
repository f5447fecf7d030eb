//! What an inode is on our side, as the back end is to get it.

use link::Attributes;
use mds::Mds;
use types::{Attr, Errno, FileKind, Ino};

pub(crate) struct Own {
    pub attr: Attr,
    pub data: mds::DataState,
    pub target: Vec<u8>,
    pub xattrs: Vec<link::Xattr>,
}

impl Own {
    pub fn of(mds: &Mds, ino: Ino) -> Result<Own, Errno> {
        let found = mds.find(ino)?;
        let target = match found.attr.kind {
            FileKind::Symlink => mds.readlink(ino)?.to_vec(),
            FileKind::Regular
            | FileKind::Directory
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => Vec::new(),
        };
        let mut xattrs = Vec::new();
        for name in mds.listxattr(ino)?.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            match mds.getxattr(ino, name) {
                Ok(value) => xattrs.push((name.to_vec(), value.to_vec())),
                Err(Errno::ENODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Own { attr: found.attr, data: found.data, target, xattrs })
    }

    pub fn attributes(&self) -> Attributes<'_> {
        Attributes {
            mode: self.attr.mode,
            uid: self.attr.uid,
            gid: self.attr.gid,
            atime: self.attr.atime,
            mtime: self.attr.mtime,
            xattrs: &self.xattrs,
        }
    }
}
