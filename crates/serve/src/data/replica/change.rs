//! What is done to the bytes of an object at both of its data servers.

use bytes::Bytes;
use cluster::replica::copy::{END, Range, Sent};
use net::Incoming;
use proto::{
    copies::{Change as Kind, StoreCopy},
    data::{Allocate, AllocateMode, Object, Truncate},
};
use types::{Errno, Timestamp};
use wire::frame::Body;

use crate::{answer::No, data::DataService, views::said_view};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// And zeros up to `to`.
    Bytes {
        from: u64,
        to: u64,
        bytes: Bytes,
    },
    Zero {
        from: u64,
        to: u64,
    },
    Cut {
        size: u64,
    },
    Grow {
        size: u64,
    },
    Time {
        mtime: Timestamp,
    },
    Reserve {
        from: u64,
        to: u64,
    },
}

impl Change {
    /// Of which its order depends.
    pub fn range(&self) -> Range {
        match self {
            Change::Bytes { from, to, .. } | Change::Zero { from, to } | Change::Reserve { from, to } => {
                (*from, *to)
            }
            Change::Cut { size } | Change::Grow { size } => (*size, END),
            Change::Time { .. } => (END - 1, END),
        }
    }

    /// As it is sent to the second.
    pub fn message(&self, object: &Object, sent: &Sent, length: u64) -> (StoreCopy, Body) {
        let (kind, size, mtime) = match self {
            Change::Bytes { .. } => (Kind::Bytes, 0, None),
            Change::Zero { .. } => (Kind::Zero, 0, None),
            Change::Cut { size } => (Kind::Cut, *size, None),
            Change::Grow { size } => (Kind::Grow, *size, None),
            Change::Time { mtime } => (Kind::Time, 0, Some((*mtime).into())),
            Change::Reserve { .. } => (Kind::Reserve, 0, None),
        };
        let body =
            if let Change::Bytes { bytes, .. } = self { Body::new(bytes.clone()) } else { Body::default() };
        let message = StoreCopy {
            object: Some(Object { view: Some(said_view(&sent.view)), ..*object }),
            serial: sent.serial,
            from: sent.range.0,
            to: sent.range.1,
            done: sent.done,
            length,
            change: kind.into(),
            size,
            mtime,
        };
        (message, body)
    }

    /// As it came.
    pub fn of_message(message: &StoreCopy, incoming: &mut Incoming) -> Result<Change, No> {
        let (from, to) = (message.from, message.to);
        let in_object = |change| if to > i64::MAX as u64 { Err(No::from(Errno::EFBIG)) } else { Ok(change) };
        let size = message.size;
        if size > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        match Kind::try_from(message.change).map_err(|_| Errno::EINVAL)? {
            Kind::Bytes => {
                let bytes = Bytes::from(incoming.take_body());
                if bytes.len() as u64 > to - from {
                    return Err(Errno::EINVAL.into());
                }
                in_object(Change::Bytes { from, to, bytes })
            }
            Kind::Zero => in_object(Change::Zero { from, to }),
            Kind::Reserve => in_object(Change::Reserve { from, to }),
            Kind::Cut => Ok(Change::Cut { size }),
            Kind::Grow => Ok(Change::Grow { size }),
            Kind::Time => {
                let mtime = message.mtime.ok_or(Errno::EINVAL)?.try_into()?;
                Ok(Change::Time { mtime })
            }
        }
    }
}

impl DataService {
    /// Does it to the bytes that are here.
    pub(super) fn carry_out_change(&self, object: &Object, change: &Change) -> Result<(), No> {
        match change {
            Change::Bytes { from, to, bytes } => {
                self.put(object, *from, bytes)?;
                self.make_zero(object, *from + bytes.len() as u64, *to)
            }
            Change::Zero { from, to } => self.make_zero(object, *from, *to),
            Change::Cut { size } => {
                let cut = Truncate { object: Some(*object), size: *size, grow_only: false };
                self.resize(&cut, object).map(drop)
            }
            Change::Grow { size } => {
                let grow = Truncate { object: Some(*object), size: *size, grow_only: true };
                self.resize(&grow, object).map(drop)
            }
            Change::Time { mtime } => self.set_time_of(object, *mtime).map(drop),
            Change::Reserve { from, to } => self.allot_range(object, AllocateMode::Reserve, *from, *to),
        }
    }

    /// Up to the object's end.
    fn make_zero(&self, object: &Object, from: u64, to: u64) -> Result<(), No> {
        self.allot_range(object, AllocateMode::Zero, from, to)
    }

    fn allot_range(&self, object: &Object, mode: AllocateMode, from: u64, to: u64) -> Result<(), No> {
        if from >= to {
            return Ok(());
        }
        let (mode, length) = (mode.into(), to - from);
        let asked = Allocate { object: Some(*object), mode, offset: from, length, joined: 0, server: 0 };
        self.allot(&asked, object).map(drop)
    }
}
