//! Closing many files with one message: nobody waits for a close, so those of a moment go together.

use prost::Message;

use crate::{
    BATCH_MAX, Bad, Head, Method, Nothing, Request,
    attr::Time,
    metadata::{inode, known},
};

/// Of one message: each can be of the greatest length.
pub const CLOSINGS_MAX: usize = BATCH_MAX / 2;

/// Each is closed as by [`crate::metadata::Close`]. What writing came to is asked of each data server once for all of them.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CloseMany {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// At most [`CLOSINGS_MAX`].
    #[prost(message, repeated, tag = "2")]
    pub closings: Vec<Closing>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Closing {
    /// One that is not there is closed.
    #[prost(uint64, tag = "1")]
    pub opening: u64,
    /// What is open.
    #[prost(uint64, tag = "2")]
    pub ino: u64,
    /// It was read then, and the time is due to be recorded.
    #[prost(message, optional, tag = "3")]
    pub atime: Option<Time>,
}

impl Request for CloseMany {
    const METHOD: Method = Method::CloseMany;
    type Answer = Nothing;

    fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn check(&self) -> Result<(), Bad> {
        known(self.head())?;
        let (len, max) = (self.closings.len(), CLOSINGS_MAX);
        if len > max {
            return Err(Bad::TooLong { what: "closings", len, max });
        }
        self.closings.iter().try_for_each(|closing| inode(closing.ino))
    }

    fn homes(&self, visit: &mut dyn FnMut(u64)) {
        self.closings.iter().map(|closing| closing.ino).for_each(visit);
    }
}
