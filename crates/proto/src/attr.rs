//! Attributes and times, and their values in the rest of the code.

use prost::Message;
use types::{Errno, FileKind, Ino, MODE_MASK, ProjectId, Timestamp};

use crate::Bad;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Time {
    #[prost(sint64, tag = "1")]
    pub sec: i64,
    /// Below 1e9.
    #[prost(uint32, tag = "2")]
    pub nsec: u32,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Time {
        Time { sec: time.sec, nsec: time.nsec }
    }
}

impl TryFrom<Time> for Timestamp {
    type Error = Bad;

    fn try_from(time: Time) -> Result<Timestamp, Bad> {
        if time.nsec >= 1_000_000_000 {
            return Err(Bad::Range("nanoseconds"));
        }
        Ok(Timestamp { sec: time.sec, nsec: time.nsec })
    }
}

/// See [`types::Attr`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Attr {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// The number of [`FileKind`].
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    #[prost(uint32, tag = "3")]
    pub mode: u32,
    #[prost(uint32, tag = "4")]
    pub nlink: u32,
    #[prost(uint32, tag = "5")]
    pub uid: u32,
    #[prost(uint32, tag = "6")]
    pub gid: u32,
    #[prost(uint32, tag = "7")]
    pub rdev: u32,
    #[prost(uint64, tag = "8")]
    pub size: u64,
    #[prost(uint64, tag = "9")]
    pub blocks: u64,
    #[prost(message, optional, tag = "10")]
    pub atime: Option<Time>,
    #[prost(message, optional, tag = "11")]
    pub mtime: Option<Time>,
    #[prost(message, optional, tag = "12")]
    pub ctime: Option<Time>,
    #[prost(message, optional, tag = "13")]
    pub btime: Option<Time>,
    #[prost(uint32, tag = "14")]
    pub project: u32,
}

impl From<types::Attr> for Attr {
    fn from(attr: types::Attr) -> Attr {
        Attr {
            ino: attr.ino.get(),
            kind: attr.kind as u32,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            blocks: attr.blocks,
            atime: Some(attr.atime.into()),
            mtime: Some(attr.mtime.into()),
            ctime: Some(attr.ctime.into()),
            btime: Some(attr.btime.into()),
            project: attr.project.0,
        }
    }
}

/// An inode number that names one.
pub fn ino(raw: u64) -> Result<Ino, Bad> {
    Ino::from_raw(raw).ok_or(Bad::Range("inode number"))
}

pub fn kind(raw: u32) -> Result<FileKind, Bad> {
    u8::try_from(raw).ok().and_then(FileKind::from_u8).ok_or(Bad::Range("file type"))
}

fn time(of: Option<Time>) -> Result<Timestamp, Bad> {
    of.unwrap_or_default().try_into()
}

impl TryFrom<Attr> for types::Attr {
    type Error = Bad;

    fn try_from(attr: Attr) -> Result<types::Attr, Bad> {
        if attr.mode & !MODE_MASK != 0 {
            return Err(Bad::Range("mode"));
        }
        Ok(types::Attr {
            ino: ino(attr.ino)?,
            kind: kind(attr.kind)?,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime)?,
            mtime: time(attr.mtime)?,
            ctime: time(attr.ctime)?,
            btime: time(attr.btime)?,
            project: ProjectId(attr.project),
        })
    }
}

/// Who makes an inode, see [`namespace::Caller`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Caller {
    #[prost(uint32, tag = "1")]
    pub uid: u32,
    #[prost(uint32, tag = "2")]
    pub gid: u32,
    #[prost(uint32, tag = "3")]
    pub umask: u32,
}

impl From<namespace::Caller> for Caller {
    fn from(caller: namespace::Caller) -> Caller {
        Caller { uid: caller.uid, gid: caller.gid, umask: caller.umask }
    }
}

impl From<Caller> for namespace::Caller {
    fn from(caller: Caller) -> namespace::Caller {
        namespace::Caller { uid: caller.uid, gid: caller.gid, umask: caller.umask }
    }
}

/// A time to be set: the given one, or the server's.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SetTime {
    /// Without it: now.
    #[prost(message, optional, tag = "1")]
    pub at: Option<Time>,
}

impl From<namespace::SetTime> for SetTime {
    fn from(time: namespace::SetTime) -> SetTime {
        match time {
            namespace::SetTime::Now => SetTime { at: None },
            namespace::SetTime::At(time) => SetTime { at: Some(time.into()) },
        }
    }
}

impl TryFrom<SetTime> for namespace::SetTime {
    type Error = Bad;

    fn try_from(time: SetTime) -> Result<namespace::SetTime, Bad> {
        time.at.map_or(Ok(namespace::SetTime::Now), |at| Ok(namespace::SetTime::At(at.try_into()?)))
    }
}

/// See [`namespace::SetAttr`]. What is missing stays.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Changes {
    #[prost(uint32, optional, tag = "1")]
    pub mode: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub uid: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub gid: Option<u32>,
    #[prost(uint64, optional, tag = "4")]
    pub size: Option<u64>,
    #[prost(message, optional, tag = "5")]
    pub atime: Option<SetTime>,
    #[prost(message, optional, tag = "6")]
    pub mtime: Option<SetTime>,
    #[prost(message, optional, tag = "7")]
    pub ctime: Option<Time>,
    /// Set-id bits and file capabilities go, as with a write of somebody without the right to keep them.
    #[prost(bool, tag = "8")]
    pub kill_suidgid: bool,
}

impl From<&namespace::SetAttr> for Changes {
    fn from(set: &namespace::SetAttr) -> Changes {
        Changes {
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(Into::into),
            mtime: set.mtime.map(Into::into),
            ctime: set.ctime.map(Into::into),
            kill_suidgid: set.kill_suidgid,
        }
    }
}

impl TryFrom<Changes> for namespace::SetAttr {
    type Error = Bad;

    fn try_from(changes: Changes) -> Result<namespace::SetAttr, Bad> {
        if changes.mode.is_some_and(|mode| mode & !MODE_MASK != 0) {
            return Err(Bad::Range("mode"));
        }
        Ok(namespace::SetAttr {
            mode: changes.mode,
            uid: changes.uid,
            gid: changes.gid,
            size: changes.size,
            atime: changes.atime.map(TryInto::try_into).transpose()?,
            mtime: changes.mtime.map(TryInto::try_into).transpose()?,
            ctime: changes.ctime.map(TryInto::try_into).transpose()?,
            kill_suidgid: changes.kill_suidgid,
        })
    }
}

/// An error number in a list of outcomes; 0 is success.
pub fn outcome(raw: i32) -> Result<(), Errno> {
    if raw == 0 { Ok(()) } else { Err(Errno::from_raw(raw)) }
}
