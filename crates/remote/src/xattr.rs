//! Extended attributes, and the one of ours: where commands are answered.

use fuse::SetxattrArgs;
use proto::metadata::{self, XattrMode};
use types::{Errno, Ino, XATTR_SIZE_MAX};
use wire::frame::Body;

use crate::{Remote, keys::inode};

const PREFIX: &[u8] = b"user.onfs.";
const CONTROL: &[u8] = b"user.onfs.control";
/// The metadata server answers it.
const LAYOUT: &[u8] = b"user.onfs.layout";

fn is_ours(name: &[u8]) -> bool {
    name.starts_with(PREFIX) && name != LAYOUT
}

impl Remote {
    /// `size` 0 asks for the length alone; `ERANGE` if the value does not fit.
    pub fn getxattr(&self, ino: Ino, name: &[u8], size: u32) -> Result<Xattr, Errno> {
        if is_ours(name) {
            let socket = self.options.control_socket.as_ref().filter(|_| name == CONTROL);
            let socket = socket.ok_or(Errno::ENODATA)?;
            return sized(socket.as_os_str().as_encoded_bytes().to_vec(), size);
        }
        let (_, body) = self.ask(
            |head| metadata::GetXattr { head: Some(head), ino: ino.get(), name: name.to_vec() },
            self.answered_within(size),
        )?;
        sized(body, size)
    }

    /// Each name with a NUL behind it. `trusted.` names are root's to see.
    pub fn listxattr(&self, uid: u32, ino: Ino, size: u32) -> Result<Xattr, Errno> {
        // All of them: some may be left out.
        let (_, body) = self
            .ask(|head| metadata::ListXattr { head: Some(head), ino: ino.get() }, self.answered_within(0))?;
        if uid == 0 {
            return sized(body, size);
        }
        let names = body.split_inclusive(|byte| *byte == 0);
        sized(names.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect(), size)
    }

    pub fn setxattr(&self, ino: Ino, args: &SetxattrArgs<'_>) -> Result<(), Errno> {
        if is_ours(args.name) {
            return Err(Errno::EPERM);
        }
        if args.value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        let mode = match args.flags {
            0 => XattrMode::Set,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let mut want = self.want(true);
        want.body = Body::new(args.value.to_vec());
        let make = |head| metadata::SetXattr {
            head: Some(head),
            ino: ino.get(),
            name: args.name.to_vec(),
            mode: mode.into(),
            kill_sgid: args.acl_kill_sgid,
        };
        self.ask_changing(&[inode(ino)], make, want).map(drop)
    }

    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<(), Errno> {
        if is_ours(name) {
            return Err(Errno::EPERM);
        }
        let make = |head| metadata::RemoveXattr { head: Some(head), ino: ino.get(), name: name.to_vec() };
        self.change_of(&[inode(ino)], make).map(drop)
    }

    fn answered_within(&self, size: u32) -> crate::remote::Want {
        let mut want = self.want(false);
        let most = XATTR_SIZE_MAX as u32;
        want.answer_bytes_max = if size == 0 { most } else { size.min(most) };
        want
    }
}

/// An answer of either kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Xattr {
    Size(u32),
    Bytes(Vec<u8>),
}

fn sized(bytes: Vec<u8>, size: u32) -> Result<Xattr, Errno> {
    let len = u32::try_from(bytes.len()).map_err(|_| Errno::E2BIG)?;
    match size {
        0 => Ok(Xattr::Size(len)),
        _ if len > size => Err(Errno::ERANGE),
        _ => Ok(Xattr::Bytes(bytes)),
    }
}
