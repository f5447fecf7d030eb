//! PostgreSQL as the engine under the metadata: an ordered map of byte strings in two tables, and in others who may write to it.
//!
//! Invariants
//! - I-PG-1: a batch is one transaction, with its number in it; `apply` answers yes only when a commit that waits for the
//!   disk (and the synchronous standby, if the server has one) was confirmed.
//! - I-PG-2: a commit without an answer counts for nothing until a later commit of the same writer, under a raised session number,
//!   has shown whether it was done. What was sent under the number before can then not be done any more.
//! - I-PG-3: a batch is refused as a whole if one of the slots that it touches is not its writer's under the epoch that the
//!   writer knows. The rows that say so stay locked until the commit, so of two owners of a slot one commits.
//! - I-PG-4: who may take a slot is decided by [`lease`] with the database's clock alone.
//! - I-PG-5: every wait has a deadline.
//! - I-PG-6: whoever goes on in a writer's place ends its session, takes its slots and applies the end of its journal in one transaction, if
//!   [`cluster::tail::row`] lets it. What the writer had beside that is refused from then on, and left out when it is opened again.
//!
//! It refuses to know what keys and values mean, except that the first three bytes of a key are its UGSD, by which it belongs to a
//! slot. The runtime that the client library wants is inside, with the connections; callers' threads wait.

mod address;
mod apply;
mod connection;
mod engine;
mod error;
pub mod lease;
mod options;
mod ownership;
mod passfile;
mod patience;
mod pool;
mod reach;
mod read;
mod schema;
mod shared;
mod slots;
mod tail;
mod tls;
mod writer;

pub use engine::{ENGINE_NAME, PgEngine};
pub use options::{Options, Sharing, Tuning, check_address, check_namespace};
pub use ownership::{Rights, Taken};
pub use passfile::PassfileError;
pub use patience::without_waiting;
pub use slots::{SLOTS, slot_of};
pub use tail::{TailBatch, TailError, TailSeen};
pub use writer::{Identity, identity_of};
