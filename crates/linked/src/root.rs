//! Whether the linked directory is there and is the one that we know, and what is wrong with it.
//!
//! Record, version 1, 18 bytes, under the name `linked`: version u8 | device u64 | number u64 | empty u8.

use std::time::{Duration, Instant};

use link::{KnownRoot, Reachable, RootId, Trust, trust};
use namespace::{key, txn::Bytes};
use types::{Errno, Ino};

use crate::Linked;

const NAME: &[u8] = b"linked";
const VERSION: u8 = 1;
/// In trouble, the root is looked at this often.
const PROBE: Duration = Duration::from_secs(1);

/// What is wrong with the back end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    pub since: Instant,
    pub what: String,
    pub errno: Errno,
}

#[derive(Default)]
pub(crate) struct RootState {
    known: Option<KnownRoot>,
    /// The last look, and what it said.
    last: Option<(Instant, Trust)>,
    trouble: Option<Trouble>,
    /// It does not answer, or it is not there: whoever keeps the log looks for it, and nobody else waits for it.
    away: bool,
}

fn encode(root: &KnownRoot) -> Bytes {
    let mut record = vec![VERSION];
    record.extend(root.id.device.to_le_bytes());
    record.extend(root.id.fileid.to_le_bytes());
    record.push(u8::from(root.empty));
    Bytes::from(record)
}

fn decode(bytes: &[u8]) -> Option<KnownRoot> {
    let [VERSION, rest @ .., empty @ (0 | 1)] = bytes else { return None };
    let (device, fileid) = rest.split_first_chunk::<8>()?;
    let id =
        RootId { device: u64::from_le_bytes(*device), fileid: u64::from_le_bytes(fileid.try_into().ok()?) };
    Some(KnownRoot { id, empty: *empty == 1 })
}

impl Linked {
    /// Reads which root this file system knows.
    pub(crate) fn load_root(&self) -> Result<(), Errno> {
        let stored = self.ledger.mds.get(&key::global(NAME))?;
        let known = match stored {
            None => None,
            Some(bytes) => Some(decode(&bytes).ok_or_else(|| {
                tracing::error!("the record of the linked directory does not have its form");
                Errno::EIO
            })?),
        };
        self.root.lock().known = known;
        Ok(())
    }

    /// What is there now.
    pub fn look_at_root(&self) -> Trust {
        let _ = self.check_root();
        self.root.lock().last.map_or(Trust::Unreachable, |(_, trust)| trust)
    }

    /// `Ok`: it is the directory that we know, and may be believed and written to. It is looked at each time: what was found or
    /// done before counts only if this comes after, since an older answer may be of what was there then.
    pub(crate) fn check_root(&self) -> Result<(), Errno> {
        self.judge_root(Instant::now(), self.back.root())
    }

    /// As [`Linked::check_root`], of what was found there after `asked`.
    pub(crate) fn judge_root(&self, asked: Instant, found: Reachable) -> Result<(), Errno> {
        let known = self.root.lock().known;
        let verdict = trust(known, found);
        {
            let mut root = self.root.lock();
            root.last = Some((asked, verdict));
            root.away = verdict != Trust::Known;
        }
        match (verdict, found) {
            (Trust::Known, Reachable::Yes { id, empty }) => self.remember_root(KnownRoot { id, empty }),
            (Trust::Known | Trust::Unreachable, _) => {
                Err(self.root_trouble(Errno::EIO, "it cannot be reached"))
            }
            (Trust::Unmounted, _) => Err(self
                .root_trouble(Errno::EIO, "an empty directory is in its place: is its file system mounted?")),
            (Trust::Stranger, _) => Err(self.root_trouble(
                Errno::EIO,
                "another directory is in its place: nothing is applied to it; mount the one that was linked, or say that it is the same tree (onfs link accept)",
            )),
        }
    }

    pub(crate) fn last_trust(&self) -> Option<Trust> {
        self.root.lock().last.map(|(_, trust)| trust)
    }

    pub(crate) fn known_root(&self) -> Option<KnownRoot> {
        self.root.lock().known
    }

    pub(crate) fn remember_root(&self, root: KnownRoot) -> Result<(), Errno> {
        if self.root.lock().known != Some(root) {
            self.ledger.mds.transact(&[Ino::ROOT], &mut |txn, _, _| {
                txn.put(&key::global(NAME), encode(&root));
                Ok(())
            })?;
            self.root.lock().known = Some(root);
        }
        self.over();
        Ok(())
    }

    fn root_trouble(&self, errno: Errno, what: &str) -> Errno {
        self.begin_trouble(errno, what, &mut self.root.lock());
        errno
    }

    /// Something of it gave an error.
    pub(crate) fn trouble(&self, errno: Errno, what: &str) {
        let mut root = self.root.lock();
        root.away |= errno == Errno::ETIMEDOUT;
        // That the root is not the one that we know says more than what came of it.
        if root.trouble.is_some() && root.last.is_some_and(|(_, trust)| trust != Trust::Known) {
            return;
        }
        self.begin_trouble(errno, what, &mut root);
    }

    /// Said once, when it begins.
    fn begin_trouble(&self, errno: Errno, what: &str, root: &mut RootState) {
        if root.trouble.is_none() {
            tracing::warn!(%errno, "the linked directory is in trouble: {what}; what we have of it is served, and what is not written down there waits");
        }
        let since = root.trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        root.trouble = Some(Trouble { since, what: what.to_owned(), errno });
        root.last = root.last.filter(|(_, trust)| *trust != Trust::Known);
    }

    fn over(&self) {
        if let Some(trouble) = self.root.lock().trouble.take() {
            tracing::info!(after = ?trouble.since.elapsed(), "the linked directory is back");
            self.call();
        }
    }

    /// Looks are not made now: they would be waited for in vain.
    pub(crate) fn is_away(&self) -> bool {
        self.root.lock().away
    }

    pub fn current_trouble(&self) -> Option<Trouble> {
        self.root.lock().trouble.clone()
    }

    /// Steps are made only in a directory that we know.
    pub(crate) fn may_write(&self) -> bool {
        let recent = |at: Instant| at.elapsed() < PROBE;
        if let Some((at, trust)) = self.root.lock().last
            && recent(at)
        {
            return trust == Trust::Known;
        }
        self.check_root().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the record never changes its form, and what has another is refused. Method: golden bytes, cuts.
    #[test]
    fn the_record_has_its_golden_bytes() {
        let root = KnownRoot { id: RootId { device: 0x0102, fileid: 3 }, empty: true };
        let bytes = encode(&root);
        assert_eq!(&bytes[..], b"\x01\x02\x01\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x01");
        assert_eq!(decode(&bytes), Some(root));
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), None);
        }
        for (at, byte) in [(0, 2), (17, 2)] {
            let mut bad = bytes.to_vec();
            bad[at] = byte;
            assert_eq!(decode(&bad), None);
        }
    }
}
