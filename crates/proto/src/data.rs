//! Messages of the data lane. An object is one stripe of a file on one data server; offsets and sizes are the object's own.
//!
//! All of them may be carried out twice without harm, one after the other.

use prost::{Enumeration, Message};
use types::Errno;

use crate::{BATCH_MAX, Bad, Nothing, attr::Time, views::View};

/// Bytes of one read or write: a frame's body.
pub const BYTES_MAX: u32 = 4 << 20;

fn object(of: Option<&Object>) -> Result<(), Bad> {
    let object = of.ok_or(Bad::Missing("object"))?;
    object.view.map_or(Ok(()), |view| view.check())?;
    crate::attr::ino(object.ino).map(|_| ())
}

fn objects(list: &[Object]) -> Result<(), Bad> {
    let len = list.len();
    if len > BATCH_MAX {
        return Err(Bad::TooLong { what: "objects", len, max: BATCH_MAX });
    }
    list.iter().try_for_each(|one| object(Some(one)))
}

fn recorded(list: &[Recorded]) -> Result<(), Bad> {
    let (len, max) = (list.len(), BATCH_MAX / 2);
    if len > max {
        return Err(Bad::TooLong { what: "objects", len, max });
    }
    list.iter().try_for_each(|one| object(one.object.as_ref()))
}

requests_of_anybody! {
    Read -> ReadDone, |it| object(it.object.as_ref())
        .and(if it.length > BYTES_MAX { Err(Bad::Range("length")) } else { Ok(()) });
    Write -> Written, |it| object(it.object.as_ref());
    Sync -> Alive, |it| object(it.object.as_ref());
    Truncate -> Nothing, |it| object(it.object.as_ref());
    Allocate -> Alive, |it| object(it.object.as_ref());
    Seek -> Sought, |it| object(it.object.as_ref());
    Attrs -> ObjectAttrs, |it| objects(&it.objects);
    Remove -> Removed, |it| objects(&it.objects);
    Stat -> DataSpace, |_it| Ok(());
    Settle -> Nothing, |it| recorded(&it.objects);
    SetTime -> Nothing, |it| object(it.object.as_ref());
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Object {
    #[prost(uint64, tag = "1")]
    pub ino: u64,
    /// Of the file's layout.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Of one with two copies: by which it is asked for.
    #[prost(message, optional, tag = "70")]
    pub view: Option<View>,
}

/// The bytes are in the answer's body, short only at the object's end; what was never written is empty.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Read {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    #[prost(uint32, tag = "3")]
    pub length: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ReadDone {
    /// Of the object, when it was read or a little later.
    #[prost(uint64, tag = "1")]
    pub size: u64,
}

/// The bytes are the request's body.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Write {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    /// Durable before the answer.
    #[prost(bool, tag = "3")]
    pub sync: bool,
    /// As which the session came to the metadata server: one that was given up is refused. 0: it does not say.
    #[prost(uint64, tag = "4")]
    pub joined: u64,
    /// The node of that metadata server, where there are several: the owner of the file's slot. 0: there is one.
    #[prost(uint64, tag = "25")]
    pub server: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Written {
    /// Less than were sent only when an error came behind them.
    #[prost(uint32, tag = "1")]
    pub bytes: u32,
    /// As in [`Alive`].
    #[prost(uint64, tag = "2")]
    pub life: u64,
}

/// What was asked for is done.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Alive {
    /// Of the data server's memory: what it answered in another one, and did not make durable, may be gone. 0: it does not say.
    #[prost(uint64, tag = "1")]
    pub life: u64,
}

/// What was answered before is durable then.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Sync {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Truncate {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// A longer object stays as it is.
    #[prost(bool, tag = "3")]
    pub grow_only: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AllocateMode {
    /// Promise space.
    Reserve = 0,
    /// Free the space; it reads as zeros.
    Zero = 1,
}

/// Within the object's size: whoever grows a file tells the metadata server first, which grows the objects.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Allocate {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(enumeration = "AllocateMode", tag = "2")]
    pub mode: i32,
    #[prost(uint64, tag = "3")]
    pub offset: u64,
    #[prost(uint64, tag = "4")]
    pub length: u64,
    /// As in [`Write`].
    #[prost(uint64, tag = "5")]
    pub joined: u64,
    /// As in [`Write`].
    #[prost(uint64, tag = "25")]
    pub server: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Whence {
    Data = 0,
    Hole = 1,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Seek {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(uint64, tag = "2")]
    pub offset: u64,
    #[prost(enumeration = "Whence", tag = "3")]
    pub whence: i32,
}

/// Of an offset at or behind the end there is nothing.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Sought {
    #[prost(uint64, optional, tag = "1")]
    pub offset: Option<u64>,
    #[prost(uint64, tag = "2")]
    pub size: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Attrs {
    /// At most [`BATCH_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<Object>,
}

/// One for each that was asked about, in order.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ObjectAttrs {
    #[prost(message, repeated, tag = "1")]
    pub attrs: Vec<ObjectAttr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ObjectAttr {
    /// Not 0: nothing else is said.
    #[prost(int32, tag = "1")]
    pub errno: i32,
    /// Something was written to it, or it was given a size.
    #[prost(bool, tag = "2")]
    pub known: bool,
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// 512-byte units.
    #[prost(uint64, tag = "4")]
    pub blocks: u64,
    /// When it was last written, unless a time was set since.
    #[prost(message, optional, tag = "5")]
    pub mtime: Option<Time>,
    /// Microseconds for which it did not grow, at least.
    #[prost(uint64, tag = "6")]
    pub still_us: u64,
}

/// From the metadata service alone: their inodes are about to go.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Remove {
    /// At most [`BATCH_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<Object>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Removed {
    /// An error number for each that was asked about, in order; 0: it is gone.
    #[prost(int32, repeated, tag = "1")]
    pub errnos: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Stat {}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct DataSpace {
    /// Bytes of all tiers.
    #[prost(uint64, tag = "1")]
    pub total: u64,
    #[prost(uint64, tag = "2")]
    pub free: u64,
}

/// Nobody has them open for writing any more, and whoever asks has recorded what they came to.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Settle {
    /// At most half of [`BATCH_MAX`].
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<Recorded>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Recorded {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    /// The time of its last write that is recorded. A later one stays the object's.
    #[prost(message, optional, tag = "2")]
    pub mtime: Option<Time>,
}

/// The time of the last write is the metadata server's from now on, until the next write.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct SetTime {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
    #[prost(message, optional, tag = "2")]
    pub mtime: Option<Time>,
}

impl Removed {
    pub fn outcomes(&self) -> impl Iterator<Item = Result<(), Errno>> + '_ {
        self.errnos.iter().map(|raw| crate::attr::outcome(*raw))
    }
}
