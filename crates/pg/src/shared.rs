//! What the engine's callers and its thread share.

use std::{collections::BTreeMap, sync::atomic::AtomicU64};

use kv::Lsn;
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;

use crate::{Identity, connection::Session, options::Options, pool::Pool, reach::Reach, writer::AppliedNote};

pub(crate) struct Shared {
    pub runtime: Runtime,
    pub options: Options,
    pub identity: Identity,
    /// Random: this process, of all that ever were this writer.
    pub holder: String,
    pub pool: Pool,
    pub reach: Reach,
    pub writer: Mutex<Writer>,
    /// Of the slots that are ours, as far as we know.
    pub epochs: Mutex<BTreeMap<u16, u64>>,
    pub bytes: AtomicU64,
    pub stop: (Mutex<bool>, Condvar),
}

/// What this process is to the database. One at a time uses it.
pub(crate) struct Writer {
    pub session: Option<Session>,
    /// Of the row, as we know it.
    pub number: i64,
    pub applied: Lsn,
    /// A batch may have been applied or not.
    pub doubt: bool,
    /// Why nothing is written any more.
    pub fenced: Option<String>,
    pub note: AppliedNote,
}
