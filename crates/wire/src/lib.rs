//! What ONFS processes say to each other, without a socket: frames, the handshake, and the machine of a connection.
//!
//! - [`frame`] the header and its sums; [`Encoder`], [`Decoder`] frames into bytes, and out of bytes in any pieces.
//! - [`schema`] the messages; [`handshake`] who is there, with the cluster [`key`]; [`connection`] requests, answers, credit,
//!   deadlines, keep-alives, the end; [`backoff`] when to try again; [`PageBuffer`] memory for bodies.
//!
//! Pure: the time, random numbers and bytes come in as arguments. Every number from the wire is held against a limit
//! before anything is allocated for it, and damage is an error that names the field and its place. The invariants I-WIRE-1 to 6
//! stand where they are kept. It refuses to know what a method does: that is the roles' own.
#![forbid(unsafe_code)]

pub mod backoff;
pub mod connection;
pub mod decoder;
pub mod encoder;
pub mod frame;
pub mod handshake;
pub mod key;
mod page;
pub mod schema;
mod sum;

pub use decoder::{Decoder, Piece};
pub use encoder::Encoder;
pub use page::{LARGE, PageBuffer};
