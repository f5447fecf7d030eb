//! What the user behind a command may do with a file: what the kernel lets him do with it by a path.
//!
//! A command names files by their inode numbers, and anybody may make up such a number. So a file is shown only to whom the
//! way to it is open: each directory above it, up to the root of the mount, must let him through. Root and the user who
//! mounted may do everything.

use std::{cell::RefCell, collections::HashMap};

use mds::Found;
use namespace::acl::{self, Acl, Asker};
use types::{Errno, FileKind, Ino};

use super::parts::Parts;
use crate::control::{Owner, Peer};

/// Deeper than any path.
const DEPTH_MAX: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Want {
    Read = 0o4,
    Write = 0o2,
    Search = 0o1,
}

/// One request's questions.
pub(super) struct Permission<'a> {
    parts: &'a Parts,
    peer: &'a Peer,
    /// Directories that were looked at: may the peer come to what is in them?
    passed: RefCell<HashMap<Ino, bool>>,
}

impl<'a> Permission<'a> {
    pub fn new(parts: &'a Parts, peer: &'a Peer) -> Permission<'a> {
        Permission { parts, peer, passed: RefCell::default() }
    }

    /// Is the peer privileged, or the file's owner?
    pub fn owns(&self, found: &Found) -> bool {
        self.peer.owns(owner(found))
    }

    /// By the file's own permission bits and its ACL.
    pub fn may(&self, found: &Found, want: Want) -> Result<bool, Errno> {
        let (peer, owner) = (self.peer, owner(found));
        if peer.owns(owner) {
            return Ok(peer.may(owner, want as u32));
        }
        let acl = match self.parts.mds.getxattr(found.attr.ino, acl::ACCESS) {
            Ok(bytes) => Acl::parse(&bytes).ok().flatten(),
            Err(Errno::ENODATA | Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        Ok(acl.map_or_else(
            || peer.may(owner, want as u32),
            |acl| {
                acl.allows(
                    &Asker { uid: peer.uid, gid: peer.gid, groups: &peer.groups },
                    (owner.uid, owner.gid),
                    want as u16,
                )
            },
        ))
    }

    /// May the peer know of the file? `EACCES` if not.
    ///
    /// Of a file with several names only the last one given is on record; where that is out of reach, or there is none, the
    /// file is shown to whom it lets read it.
    pub fn reach(&self, found: &Found) -> Result<(), Errno> {
        if self.owns(found) {
            return Ok(());
        }
        let attr = &found.attr;
        let known = match self.parts.mds.parent(attr.ino) {
            Ok(dir) if self.passes(dir)? => true,
            Ok(_) => attr.nlink != 1 && attr.kind != FileKind::Directory && self.may(found, Want::Read)?,
            Err(Errno::ENOENT | Errno::ESTALE) => self.may(found, Want::Read)?,
            Err(errno) => return Err(errno),
        };
        if known { Ok(()) } else { Err(Errno::EACCES) }
    }

    pub fn reaches(&self, ino: Ino) -> bool {
        self.peer.privileged || self.parts.mds.find(ino).is_ok_and(|found| self.reach(&found).is_ok())
    }

    /// May the peer search the directory and all above it?
    fn passes(&self, dir: Ino) -> Result<bool, Errno> {
        let mut passed = self.passed.borrow_mut();
        let (mut way, mut at) = (Vec::new(), dir);
        let open = loop {
            if let Some(known) = passed.get(&at) {
                break *known;
            }
            way.push(at);
            let found = self.parts.mds.find(at)?;
            if way.len() > DEPTH_MAX || !self.may(&found, Want::Search)? {
                break false;
            }
            if at == Ino::ROOT {
                break true;
            }
            at = self.parts.mds.parent(at)?;
        };
        passed.extend(way.into_iter().map(|dir| (dir, open)));
        Ok(open)
    }
}

fn owner(found: &Found) -> Owner {
    Owner { uid: found.attr.uid, gid: found.attr.gid, mode: found.attr.mode }
}
