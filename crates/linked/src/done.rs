//! A step that is to be made, and what became of it.

use std::sync::Arc;

use ds::Snapshot;
use link::{Entry, LinkRecord, Source};

use crate::Held;

/// What became of a step that is done.
pub(crate) struct Done {
    pub record: Record,
    /// What it changed and is to be made durable: directories, and files whose attributes it set.
    pub changed: Vec<Vec<Vec<u8>>>,
    /// Their file is this version now.
    pub published: Option<(Copied, Arc<dyn Source>)>,
    /// Of what lost its name by it, if it was known by that name and they have another.
    pub victim: Option<LinkRecord>,
    /// Somebody wrote the file when the version was taken, and perhaps does so still.
    pub live: bool,
}

impl Done {
    pub fn with(record: Record, changed: Vec<Vec<Vec<u8>>>) -> Done {
        Done { record, changed, published: None, victim: None, live: false }
    }
}

/// The record of the inode after a step.
pub(crate) enum Record {
    Stays,
    Is(LinkRecord),
    Goes,
}

/// A step with what it needs to know, looked up once.
pub(crate) struct Task<'a> {
    pub entry: &'a Entry,
    pub own: Option<LinkRecord>,
    pub over: Option<LinkRecord>,
}

/// What was copied into a version, of a file that is in use until that is recorded.
pub(crate) struct Copied {
    pub snapshot: Snapshot,
    pub held: Box<dyn Held>,
    pub live: bool,
}
