//! Messages by which a client reads the file of an object on its own machine by itself.

use prost::Message;

use crate::{Bad, Head, Method, Nothing, Request, data::Object};

/// A descriptor of the object's file, for reading. The object stays where it is as long as anybody has that, or what was made of it, open or
/// mapped. Refused with `EBUSY` where it cannot be: then it is read by [`crate::data::Read`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Lend {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Lent {
    /// For the descriptor, at the socket that the request came to. 16 bytes; good once, and for a few seconds.
    #[prost(bytes = "vec", tag = "1")]
    pub ticket: Vec<u8>,
}

/// Of an object whose file is lent: from now on programs may store to it through mappings.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct StoreTo {
    #[prost(message, optional, tag = "1")]
    pub object: Option<Object>,
}

fn object(of: Option<&Object>) -> Result<(), Bad> {
    crate::attr::ino(of.ok_or(Bad::Missing("object"))?.ino).map(|_| ())
}

impl Request for Lend {
    const METHOD: Method = Method::Lend;
    type Answer = Lent;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        object(self.object.as_ref())
    }
}

impl Request for StoreTo {
    const METHOD: Method = Method::StoreTo;
    type Answer = Nothing;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        object(self.object.as_ref())
    }
}
