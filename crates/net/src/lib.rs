//! Connections between ONFS processes, over TCP and Unix sockets: the machine of [`wire`] with sockets, threads and a clock.
//!
//! - [`Server`] listens; a [`Handler`] answers, in any order. [`Client`] asks: many threads share a connection, which is made again when it
//!   was lost. Both directions are alike: a handler can be asked on a connection that it made. A client's newest connection takes the place of
//!   those before it: what was asked over them and has not begun does not begin any more ([`Incoming::is_superseded`]).
//! - [`hatch`] descriptors for clients on the same machine.
//! - [`transport`] what carries the bytes; [`key_file`] the cluster key; [`tls`] certificates, for who wants them; [`trace`] which request a
//!   thread works on; [`Queue`] the way to threads that may wait.
//!
//! Threads, and no async runtime: two per connection ([0014](../../../docs/decisions/0014-wire.md)). Every wait has a deadline, every queue a
//! bound: those of [`wire::connection`], and one write's bytes. It refuses to know what a method means.
#![forbid(unsafe_code)]

mod address;
mod channel;
mod client;
mod greet;
pub mod hatch;
pub mod key_file;
mod link;
mod newest;
mod outbox;
mod pool;
mod queue;
mod reader;
mod server;
pub mod tls;
pub mod trace;
pub mod transport;
mod waiter;

use std::io;

use prost::Message;
use types::Errno;
use wire::schema::{Fault, Retry};

pub use address::{Address, NoAddress};
pub use channel::{Call, CallError, Channel, Tuning};
pub use client::{Client, Credentials, Instance, Target, connect};
pub use greet::ConnectError;
pub use link::{Pending, Reply};
pub use pool::Buffer;
pub use queue::{Queue, Refused};
pub use reader::{Handler, Incoming, NobodyAnswers};
pub use server::{Bounds, Server};
pub use waiter::Answered;

/// Random bytes of the kernel's.
fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// The meta of an answer that says no that nobody can say more of.
fn fault(errno: Errno, detail: &str) -> Vec<u8> {
    let retry = Retry::Unknown.into();
    Fault { errno: errno.raw(), retry, detail: detail.to_owned(), ..Fault::default() }.encode_to_vec()
}
