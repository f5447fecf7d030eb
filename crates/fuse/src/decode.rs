//! From a request's bytes to an [`Operation`]: the one decoder that both transports use.
//!
//! A request is a fixed structure and then names or data. /dev/fuse hands them over as one run of bytes, a ring
//! entry in two places; [`Body`] hides that. Invariant: no bytes, however short or odd, make it panic or read
//! outside of them; what does not decode is `EINVAL`.

use types::{Errno, Timestamp};

use crate::{
    abi::{self, Plain, fattr, op},
    operation::{
        CopyArgs, CreateArgs, ForgetList, Header, IoctlArgs, Lock, LockArgs, Operation, ReadArgs,
        ReleaseArgs, SetattrArgs, SetxattrArgs, TimeOrNow, WriteArgs,
    },
};

/// What was agreed at INIT that changes how requests look.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dialect {
    pub(crate) setxattr_ext: bool,
}

/// A request without its header.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    /// The fixed structure and what follows it, in one piece.
    Joined(&'a [u8]),
    /// A ring entry: `fixed` is 128 bytes, of which the structure is the first part.
    Split { fixed: &'a [u8], rest: &'a [u8] },
}

impl<'a> Body<'a> {
    /// The fixed structure, and what follows it.
    fn take<T: Plain>(self) -> Result<(T, &'a [u8]), Errno> {
        let (bytes, rest) = match self {
            Body::Joined(bytes) => (bytes, bytes.get(size_of::<T>()..)),
            Body::Split { fixed, rest } => (fixed, Some(rest)),
        };
        abi::read(bytes).zip(rest).ok_or(Errno::EINVAL)
    }

    fn fixed<T: Plain>(self) -> Result<T, Errno> {
        self.take().map(|(fixed, _)| fixed)
    }

    /// What follows when there is no fixed structure.
    fn rest(self) -> &'a [u8] {
        match self {
            Body::Joined(rest) | Body::Split { rest, .. } => rest,
        }
    }

    /// The last `len` bytes.
    pub(crate) fn tail(self, len: usize) -> Option<&'a [u8]> {
        let rest = self.rest();
        rest.get(rest.len().checked_sub(len)?..)
    }
}

pub(crate) fn header(wire: &abi::InHeader) -> Header {
    Header {
        unique: wire.unique,
        node: wire.nodeid,
        uid: wire.uid,
        gid: wire.gid,
        pid: wire.pid,
        opcode: wire.opcode,
    }
}

pub(crate) fn operation(opcode: u32, body: Body<'_>, dialect: Dialect) -> Result<Operation<'_>, Errno> {
    Ok(match opcode {
        op::LOOKUP => Operation::Lookup { name: name(body.rest())?.0 },
        op::FORGET => Operation::Forget { lookups: body.fixed::<abi::ForgetIn>()?.nlookup },
        op::BATCH_FORGET => batch_forget(body)?,
        op::SYMLINK => {
            let (name, rest) = name(body.rest())?;
            Operation::Symlink { name, target: text(rest)?.0 }
        }
        op::MKNOD => {
            let (a, rest) = body.take::<abi::MknodIn>()?;
            Operation::Mknod { name: name(rest)?.0, mode: a.mode, rdev: a.rdev, umask: a.umask }
        }
        op::MKDIR => {
            let (a, rest) = body.take::<abi::MkdirIn>()?;
            Operation::Mkdir { name: name(rest)?.0, mode: a.mode, umask: a.umask }
        }
        op::UNLINK => Operation::Unlink { name: name(body.rest())?.0 },
        op::RMDIR => Operation::Rmdir { name: name(body.rest())?.0 },
        op::RENAME => {
            let (a, rest) = body.take::<abi::RenameIn>()?;
            rename(rest, a.newdir, 0)?
        }
        op::RENAME2 => {
            let (a, rest) = body.take::<abi::Rename2In>()?;
            rename(rest, a.newdir, a.flags)?
        }
        op::LINK => {
            let (a, rest) = body.take::<abi::LinkIn>()?;
            Operation::Link { node: a.oldnodeid, name: name(rest)?.0 }
        }
        op::CREATE => Operation::Create(create(body, name)?),
        // The kernel names an unnamed file "/".
        op::TMPFILE => Operation::Tmpfile(create(body, text)?),
        op::READ => Operation::Read(read(body)?),
        op::WRITE => Operation::Write(write(body)?),
        op::READDIR => Operation::Readdir(read(body)?),
        op::READDIRPLUS => Operation::Readdirplus(read(body)?),
        op::SETXATTR => Operation::Setxattr(setxattr(body, dialect)?),
        op::GETXATTR => {
            let (a, rest) = body.take::<abi::GetxattrIn>()?;
            Operation::Getxattr { name: name_of_xattr(rest)?, size: a.size }
        }
        op::LISTXATTR => Operation::Listxattr { size: body.fixed::<abi::GetxattrIn>()?.size },
        op::REMOVEXATTR => Operation::Removexattr { name: name_of_xattr(body.rest())? },
        op::IOCTL => Operation::Ioctl(ioctl(body)?),
        _ => return fixed_operation(opcode, body),
    })
}

/// The operations whose arguments are one fixed structure, or none.
fn fixed_operation(opcode: u32, body: Body<'_>) -> Result<Operation<'_>, Errno> {
    Ok(match opcode {
        op::GETATTR => {
            let a: abi::GetattrIn = body.fixed()?;
            Operation::Getattr { fh: (a.flags & abi::GETATTR_FH != 0).then_some(a.fh) }
        }
        op::STATX => {
            let a: abi::StatxIn = body.fixed()?;
            let fh = (a.getattr_flags & abi::GETATTR_FH != 0).then_some(a.fh);
            Operation::Statx { fh, flags: a.sx_flags, mask: a.sx_mask }
        }
        op::SETATTR => Operation::Setattr(setattr(&body.fixed()?)),
        op::READLINK => Operation::Readlink,
        op::OPEN => {
            let a: abi::OpenIn = body.fixed()?;
            Operation::Open { flags: a.flags, kill_suidgid: a.open_flags & abi::OPEN_KILL_SUIDGID != 0 }
        }
        op::STATFS => Operation::Statfs,
        op::RELEASE => Operation::Release(release(body)?),
        op::RELEASEDIR => Operation::Releasedir(release(body)?),
        op::FLUSH => {
            let a: abi::FlushIn = body.fixed()?;
            Operation::Flush { fh: a.fh, lock_owner: a.lock_owner }
        }
        op::FSYNC => {
            let a: abi::FsyncIn = body.fixed()?;
            Operation::Fsync { fh: a.fh, datasync: a.flags & abi::FSYNC_FDATASYNC != 0 }
        }
        op::OPENDIR => Operation::Opendir { flags: body.fixed::<abi::OpenIn>()?.flags },
        op::FSYNCDIR => {
            let a: abi::FsyncIn = body.fixed()?;
            Operation::Fsyncdir { fh: a.fh, datasync: a.flags & abi::FSYNC_FDATASYNC != 0 }
        }
        op::ACCESS => Operation::Access { mask: body.fixed::<abi::AccessIn>()?.mask },
        op::GETLK => Operation::Getlk(lock(body)?),
        op::SETLK => Operation::Setlk(lock(body)?),
        op::SETLKW => Operation::Setlkw(lock(body)?),
        op::INTERRUPT => Operation::Interrupt { unique: body.fixed::<abi::InterruptIn>()?.unique },
        op::BMAP => {
            let a: abi::BmapIn = body.fixed()?;
            Operation::Bmap { block: a.block, block_size: a.blocksize }
        }
        op::DESTROY => Operation::Destroy,
        op::POLL => {
            let a: abi::PollIn = body.fixed()?;
            Operation::Poll { fh: a.fh, kernel_handle: a.kh, flags: a.flags, events: a.events }
        }
        op::FALLOCATE => {
            let a: abi::FallocateIn = body.fixed()?;
            Operation::Fallocate { fh: a.fh, offset: a.offset, length: a.length, mode: a.mode }
        }
        op::LSEEK => {
            let a: abi::LseekIn = body.fixed()?;
            Operation::Lseek { fh: a.fh, offset: a.offset, whence: a.whence }
        }
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => Operation::CopyFileRange(copy(body)?),
        op::SYNCFS => Operation::Syncfs,
        _ => Operation::Unknown(opcode),
    })
}

/// A NUL-terminated run of bytes, and what follows it.
fn text(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let end = bytes.iter().position(|b| *b == 0).ok_or(Errno::EINVAL)?;
    if end == 0 {
        return Err(Errno::EINVAL);
    }
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// A directory entry's name, and what follows it.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let (name, rest) = text(bytes)?;
    if name.contains(&b'/') { Err(Errno::EINVAL) } else { Ok((name, rest)) }
}

/// Names of extended attributes may hold anything but NUL.
fn name_of_xattr(bytes: &[u8]) -> Result<&[u8], Errno> {
    text(bytes).map(|(name, _)| name)
}

fn batch_forget(body: Body<'_>) -> Result<Operation<'_>, Errno> {
    let (a, rest) = body.take::<abi::BatchForgetIn>()?;
    let len = (a.count as usize).checked_mul(size_of::<abi::ForgetOne>()).ok_or(Errno::EINVAL)?;
    rest.get(..len).map(|list| Operation::BatchForget(ForgetList(list))).ok_or(Errno::EINVAL)
}

fn rename(rest: &[u8], new_parent: u64, flags: u32) -> Result<Operation<'_>, Errno> {
    let (old, rest) = name(rest)?;
    Ok(Operation::Rename { name: old, new_parent, new_name: name(rest)?.0, flags })
}

type Parse = fn(&[u8]) -> Result<(&[u8], &[u8]), Errno>;

fn create(body: Body<'_>, parse: Parse) -> Result<CreateArgs<'_>, Errno> {
    let (a, rest) = body.take::<abi::CreateIn>()?;
    Ok(CreateArgs {
        name: parse(rest)?.0,
        flags: a.flags,
        mode: a.mode,
        umask: a.umask,
        kill_suidgid: a.open_flags & abi::OPEN_KILL_SUIDGID != 0,
    })
}

fn read(body: Body<'_>) -> Result<ReadArgs, Errno> {
    let a: abi::ReadIn = body.fixed()?;
    Ok(ReadArgs {
        fh: a.fh,
        offset: a.offset,
        size: a.size,
        flags: a.flags,
        lock_owner: (a.read_flags & abi::READ_LOCKOWNER != 0).then_some(a.lock_owner),
    })
}

fn write(body: Body<'_>) -> Result<WriteArgs<'_>, Errno> {
    let (a, rest) = body.take::<abi::WriteIn>()?;
    Ok(WriteArgs {
        fh: a.fh,
        offset: a.offset,
        data: rest.get(..a.size as usize).ok_or(Errno::EINVAL)?,
        cache: a.write_flags & abi::WRITE_CACHE != 0,
        kill_suidgid: a.write_flags & abi::WRITE_KILL_SUIDGID != 0,
        flags: a.flags,
        lock_owner: (a.write_flags & abi::WRITE_LOCKOWNER != 0).then_some(a.lock_owner),
    })
}

fn release(body: Body<'_>) -> Result<ReleaseArgs, Errno> {
    let a: abi::ReleaseIn = body.fixed()?;
    Ok(ReleaseArgs {
        fh: a.fh,
        flags: a.flags,
        lock_owner: a.lock_owner,
        flush: a.release_flags & abi::RELEASE_FLUSH != 0,
        flock_unlock: a.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0,
    })
}

fn setxattr(body: Body<'_>, dialect: Dialect) -> Result<SetxattrArgs<'_>, Errno> {
    let (size, flags, extra, rest) = if dialect.setxattr_ext {
        let (a, rest) = body.take::<abi::SetxattrExtIn>()?;
        (a.size, a.flags, a.setxattr_flags, rest)
    } else {
        let (a, rest) = body.take::<abi::SetxattrIn>()?;
        (a.size, a.flags, 0, rest)
    };
    let (name, rest) = text(rest)?;
    Ok(SetxattrArgs {
        name,
        value: rest.get(..size as usize).ok_or(Errno::EINVAL)?,
        flags,
        acl_kill_sgid: extra & abi::SETXATTR_ACL_KILL_SGID != 0,
    })
}

fn ioctl(body: Body<'_>) -> Result<IoctlArgs<'_>, Errno> {
    let (a, rest) = body.take::<abi::IoctlIn>()?;
    Ok(IoctlArgs {
        fh: a.fh,
        flags: a.flags,
        cmd: a.cmd,
        arg: a.arg,
        data: rest.get(..a.in_size as usize).ok_or(Errno::EINVAL)?,
        out_size: a.out_size,
    })
}

fn lock(body: Body<'_>) -> Result<LockArgs, Errno> {
    let a: abi::LkIn = body.fixed()?;
    Ok(LockArgs {
        fh: a.fh,
        owner: a.owner,
        lock: Lock { start: a.lock.start, end: a.lock.end, kind: a.lock.kind, pid: a.lock.pid },
        flock: a.lk_flags & abi::LK_FLOCK != 0,
    })
}

fn copy(body: Body<'_>) -> Result<CopyArgs, Errno> {
    let a: abi::CopyFileRangeIn = body.fixed()?;
    Ok(CopyArgs {
        fh_in: a.fh_in,
        offset_in: a.off_in,
        node_out: a.nodeid_out,
        fh_out: a.fh_out,
        offset_out: a.off_out,
        len: a.len,
        flags: a.flags,
    })
}

fn setattr(a: &abi::SetattrIn) -> SetattrArgs {
    let has = |bit: u32| a.valid & bit != 0;
    let time = |bit, now, sec: u64, nsec| match (has(now), has(bit)) {
        (true, _) => Some(TimeOrNow::Now),
        (false, true) => Some(TimeOrNow::At(timestamp(sec, nsec))),
        (false, false) => None,
    };
    SetattrArgs {
        mode: has(fattr::MODE).then_some(a.mode),
        uid: has(fattr::UID).then_some(a.uid),
        gid: has(fattr::GID).then_some(a.gid),
        size: has(fattr::SIZE).then_some(a.size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, a.atime, a.atimensec),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, a.mtime, a.mtimensec),
        ctime: has(fattr::CTIME).then(|| timestamp(a.ctime, a.ctimensec)),
        fh: has(fattr::FH).then_some(a.fh),
        lock_owner: has(fattr::LOCKOWNER).then_some(a.lock_owner),
        kill_suidgid: has(fattr::KILL_SUIDGID),
    }
}

/// Seconds travel as unsigned but mean signed; nanoseconds beyond a second are cut.
fn timestamp(sec: u64, nsec: u32) -> Timestamp {
    Timestamp { sec: sec.cast_signed(), nsec: nsec.min(999_999_999) }
}

/// The group that a request to create was sent with (`CREATE_SUPP_GROUP`), from the extensions at its end.
pub(crate) fn supplementary_group(extensions: &[u8]) -> Option<u32> {
    let mut left = extensions;
    loop {
        let ext: abi::ExtHeader = abi::read(left)?;
        let size = ext.size as usize;
        if size < size_of::<abi::ExtHeader>() {
            return None;
        }
        let body = left.get(size_of::<abi::ExtHeader>()..size)?;
        if ext.kind == abi::EXT_GROUPS {
            // The number of groups, then the groups; the kernel sends one.
            let pair: abi::ExtHeader = abi::read(body)?;
            return (pair.size >= 1).then_some(pair.kind);
        }
        left = left.get(size..)?;
    }
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
