//! Messages by which a client reads the file of an object on its own machine by itself.

use prost::Message;

use crate::{Bad, Nothing, data::Object};

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

requests_of_anybody! {
    Lend -> Lent, |it| object(it.object.as_ref());
    StoreTo -> Nothing, |it| object(it.object.as_ref());
}
