//! What the database says of copies, as this server needs it.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use cluster::tail::row::{Change, Refused, Row};
use kv::{Entry, Lsn};

/// What is seen of a writer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TailView {
    pub row: Row<String>,
    /// Its slots may be taken, as far as its lease is concerned.
    pub ended: bool,
}

/// Why nothing was done. Texts are for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TailTrouble {
    Refused(Refused),
    /// Somebody went on in our place.
    Fenced(String),
    /// It may have been done; the same again finds out.
    Failed(String),
}

/// Rows of the store that this server commits to. Calls may wait for the database.
pub trait TailRows: Send + Sync + 'static {
    /// Our own name.
    fn writer(&self) -> String;
    fn see(&self, writer: &str) -> Result<Option<TailView>, String>;
    fn write(&self, change: &Change<String>) -> Result<(), TailTrouble>;
    /// Goes on in the place of `from`, with these commits, which follow each other. Returns the slots that are ours by that.
    fn take_over(
        &self,
        from: &str,
        copy: u64,
        tail: &[(Lsn, Vec<Entry>)],
    ) -> Result<BTreeMap<u16, u64>, TailTrouble>;
}

/// Of a server that may have a standby, and be one.
#[derive(Clone)]
pub struct StandbyOptions {
    pub rows: Arc<dyn TailRows>,
    /// Where copies are.
    pub dir: PathBuf,
    /// False: it has no standby, and says so in the database.
    pub on: bool,
    pub terms: cluster::tail::Terms,
}
