//! What is done to the bytes of an object at both of its data servers.

use bytes::Bytes;
use cluster::replica::copy::{END, Range, Sent};
use net::Incoming;
use proto::{
    copies::{Change as Kind, StoreCopy},
    data::Object,
};
use types::{Errno, Timestamp};
use wire::frame::Body;

use crate::{answer::No, views::said_view};

/// SHA-256.
pub(super) type Digest = [u8; 32];

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
    /// `lost`: SAUs behind what was copied before, of which the bytes are lost; only at the end of a copy.
    Cut {
        size: u64,
        lost: Vec<u32>,
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
    /// A piece of which the second may have the bytes, from before.
    Same {
        from: u64,
        to: u64,
        digest: Digest,
    },
    /// A piece that is lost at the primary.
    Lost {
        from: u64,
        to: u64,
    },
}

impl Change {
    /// Of which its order depends.
    pub fn range(&self) -> Range {
        match self {
            Change::Bytes { from, to, .. }
            | Change::Zero { from, to }
            | Change::Reserve { from, to }
            | Change::Same { from, to, .. }
            | Change::Lost { from, to } => (*from, *to),
            Change::Cut { size, .. } | Change::Grow { size } => (*size, END),
            Change::Time { .. } => (END - 1, END),
        }
    }

    /// As it is sent to the second.
    pub fn message(&self, object: &Object, sent: &Sent, length: u64) -> (StoreCopy, Body) {
        let (kind, size, mtime) = match self {
            Change::Bytes { .. } => (Kind::Bytes, 0, None),
            Change::Zero { .. } => (Kind::Zero, 0, None),
            Change::Cut { size, .. } => (Kind::Cut, *size, None),
            Change::Grow { size } => (Kind::Grow, *size, None),
            Change::Time { mtime } => (Kind::Time, 0, Some((*mtime).into())),
            Change::Reserve { .. } => (Kind::Reserve, 0, None),
            Change::Same { .. } => (Kind::Same, 0, None),
            Change::Lost { .. } => (Kind::Lost, 0, None),
        };
        let body = match self {
            Change::Bytes { bytes, .. } => Body::new(bytes.clone()),
            Change::Same { digest, .. } => Body::new(digest.to_vec()),
            Change::Cut { lost, .. } if !lost.is_empty() => {
                Body::new(lost.iter().flat_map(|sau| sau.to_le_bytes()).collect::<Vec<u8>>())
            }
            Change::Cut { .. }
            | Change::Zero { .. }
            | Change::Grow { .. }
            | Change::Time { .. }
            | Change::Reserve { .. }
            | Change::Lost { .. } => Body::default(),
        };
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
                let bytes = Bytes::from_owner(incoming.take_body());
                if bytes.len() as u64 > to - from {
                    return Err(Errno::EINVAL.into());
                }
                in_object(Change::Bytes { from, to, bytes })
            }
            Kind::Zero => in_object(Change::Zero { from, to }),
            Kind::Reserve => in_object(Change::Reserve { from, to }),
            Kind::Lost => in_object(Change::Lost { from, to }),
            Kind::Same => {
                let digest = incoming.body().try_into().map_err(|_| Errno::EINVAL)?;
                in_object(Change::Same { from, to, digest })
            }
            Kind::Cut => {
                let (saus, rest) = incoming.body().as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(Errno::EINVAL.into());
                }
                Ok(Change::Cut { size, lost: saus.iter().map(|sau| u32::from_le_bytes(*sau)).collect() })
            }
            Kind::Grow => Ok(Change::Grow { size }),
            Kind::Time => {
                let mtime = message.mtime.ok_or(Errno::EINVAL)?.try_into()?;
                Ok(Change::Time { mtime })
            }
        }
    }
}
