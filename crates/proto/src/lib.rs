//! What the processes of a cluster ask each other: methods, their messages, and the bounds that a message must keep.
//!
//! These structures are the schema, as in [`wire::schema`]: a field has its tag here and nowhere else, a tag is never used again
//! for something else, a field that a version adds has a meaning when it is missing. Golden bytes in the tests pin them.
//!
//! - [`method`] numbers and lanes; [`Request`] ties a message to its method and its answer; [`decode`] is the only way in.
//! - [`head`] who asks, and which of his operations it is; [`attr`] attributes; [`layout`] where a file's data are;
//!   [`fault`] answers that say no.
//! - [`control`], [`metadata`], [`closing`], [`untouched`], [`spread`], [`writes`], [`locks`], [`data`], [`watch`] the messages, [`owners`] and [`circles`] those among metadata servers,
//!   [`moving`] those about stripes that move, [`copies`] those about stripes with two copies, [`lending`] those on one machine; [`meter`] counts requests.
//!
//! It knows no socket and no server, and believes no length.
#![forbid(unsafe_code)]

#[macro_use]
mod requests;

pub mod attr;
pub mod circles;
pub mod closing;
pub mod control;
pub mod copies;
pub mod data;
pub mod fault;
pub mod head;
pub mod layout;
pub mod leases;
pub mod lending;
mod listing;
pub mod locks;
pub mod metadata;
pub mod meter;
pub mod method;
mod modes;
pub mod moving;
pub mod owners;
mod slots;
pub mod spread;
pub mod tail;
pub mod taking_out;
pub mod untouched;
mod views;
pub mod watch;
pub mod writes;

pub use fault::{Bad, Reason};
pub use head::{Head, Nothing, SessionId};
pub use layout::Layout;
pub use method::Method;

use prost::Message;

/// Entries of a list in one message: at 40 bytes each they fit into a meta.
pub const BATCH_MAX: usize = 1024;

/// A message that asks for something. Its answer's meta is an [`Request::Answer`], or with a fault a [`wire::schema::Fault`].
pub trait Request: Message + Default {
    const METHOD: Method;
    type Answer: Message + Default;

    /// Who asks; of requests that need nobody to be known, `None`.
    fn head(&self) -> Option<&Head>;

    /// Is all of it within its bounds?
    fn check(&self) -> Result<(), Bad>;

    /// The inodes whose slots' owner carries it out; none: whoever is asked.
    fn homes(&self, _visit: &mut dyn FnMut(u64)) {}

    /// The directories that it is about as such, each with the name in it that it is about, if it is about one: if such a directory is spread, it is
    /// for the owner of the part.
    fn directories(&mut self, _visit: &mut dyn FnMut(&mut u64, Option<&[u8]>)) {}
}

/// A request out of a meta, within its bounds.
pub fn decode<R: Request>(meta: &[u8]) -> Result<R, Bad> {
    let request = R::decode(meta).map_err(|_| Bad::Undecodable(R::METHOD))?;
    request.check()?;
    Ok(request)
}
