//! Who is told of each commit, so that a copy of the journal's end can be kept elsewhere; and what such a commit says.

use bytes::Bytes;
use namespace::txn::KvError;

use crate::{Lsn, frame};

/// See [`crate::MetaStore::set_follower`].
pub trait Follower: Send + Sync {
    /// The commit is in the journal. In the order of the numbers, without holes, under the journal's lock: it returns at once, and calls
    /// nothing of the store. `body` is what [`entries_of`] reads.
    fn added(&self, lsn: Lsn, body: &[u8]);
    /// May the engine have all up to this? An error puts it off: it is asked again. It may wait.
    fn before_apply(&self, lsn: Lsn) -> Result<(), KvError>;
    /// The engine has it.
    fn applied(&self, lsn: Lsn);
}

/// A key, and what it has from then on; `None`: nothing.
pub type Entry = (Box<[u8]>, Option<Bytes>);

/// What a commit says, in rising order of distinct keys; `None`: these are not the bytes of a whole one.
pub fn entries_of(body: &[u8]) -> Option<Vec<Entry>> {
    let entries = frame::entries(body)?;
    let rises = entries.windows(2).all(|two| two[0].0 < two[1].0);
    rises.then(|| entries.into_iter().map(|(key, value)| (Box::from(&*key), value)).collect())
}
