//! The linked directory was moved or replaced on purpose: somebody says that what is there now is the same tree.
//!
//! What we remember of their objects loses its numbers ([`link::Seen::elsewhere`]), before the new root is believed: a number
//! of the old file system may be that of anything in the new one. From then on names, sizes and times say what is the same, and
//! what differs is a change of theirs. So nothing that was changed here is lost: it is applied, or becomes a conflict.

use std::ops::ControlFlow;

use link::{KnownRoot, LinkRecord, Reachable, RootId, Trust, trust};
use namespace::key;
use types::{Errno, Ino};

use crate::{
    Linked, gather,
    records::{self, Committed, Entry},
};

/// Records that are rewritten in one commit, under the log's lock.
const BATCH: usize = 256;

/// The root that we know, and the one that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Roots {
    pub known: Option<KnownRoot>,
    pub now: Reachable,
    pub trust: Trust,
    /// Names in our root that the back end had, and how many of them are in what is there now.
    pub names: u64,
    pub names_there: u64,
}

/// What accepting did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    pub root: RootId,
    /// Objects of theirs that are known by name, size and time from now on.
    pub objects: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotAccepted {
    /// It is the one that we know.
    Known,
    Unreachable,
    /// Not the one that was shown.
    Another(RootId),
    Empty,
    Failed(Errno),
}

impl From<Errno> for NotAccepted {
    fn from(errno: Errno) -> NotAccepted {
        NotAccepted::Failed(errno)
    }
}

impl Linked {
    /// Looks at what is there now.
    pub fn roots(&self) -> Result<Roots, Errno> {
        let (known, now) = (self.known_root(), self.back.root());
        let (mut names, mut names_there) = (0, 0);
        if matches!(now, Reachable::Yes { .. }) {
            let committed = Committed(&self.ledger.mds);
            for (name, ino, _) in gather::names_in(&committed, Ino::ROOT).map_err(records::errno)? {
                if self.record_of(ino)?.is_some() {
                    names += 1;
                    names_there += u64::from(self.back.look(&[name])?.is_some());
                }
            }
        }
        Ok(Roots { known, now, trust: trust(known, now), names, names_there })
    }

    /// Takes the root that is there for the one that was linked, if it is `shown`. An empty one only if `empty_too`: all that
    /// is not changed here counts as deleted there.
    pub fn accept(&self, shown: RootId, empty_too: bool) -> Result<Accepted, NotAccepted> {
        let now = self.back.root();
        let Reachable::Yes { id, empty } = now else { return Err(NotAccepted::Unreachable) };
        match trust(self.known_root(), now) {
            Trust::Known => return Err(NotAccepted::Known),
            Trust::Unreachable => return Err(NotAccepted::Unreachable),
            Trust::Unmounted | Trust::Stranger => {}
        }
        if id != shown {
            return Err(NotAccepted::Another(id));
        }
        if empty && !empty_too {
            return Err(NotAccepted::Empty);
        }
        // In this order: with a root that is believed and numbers of another, anything may be taken for anything.
        let objects = self.forget_numbers()?;
        self.ledger.alter(true, |pending| {
            pending.log.moved_elsewhere();
            ((), Vec::new())
        })?;
        self.ledger.mds.sync()?;
        // Still the one that was shown: it is compared with what is there at each use.
        self.remember_root(KnownRoot { id, empty })?;
        self.ledger.mds.sync()?;
        self.looks.forget_all();
        // Looks and steps are made again from now on; what it finds is for them.
        let _ = self.check_root();
        self.call();
        tracing::warn!(
            device = id.device,
            number = id.fileid,
            objects,
            "another directory was accepted as the linked one"
        );
        Ok(Accepted { root: id, objects })
    }

    fn forget_numbers(&self) -> Result<u64, Errno> {
        let mut forgotten = 0;
        for batch in self.linked_inodes()?.chunks(BATCH) {
            forgotten += self.ledger.alter(false, |_| {
                // Read again under the log's lock: some may be gone.
                let entries: Vec<Entry> = batch.iter().filter_map(|ino| self.without_number(*ino)).collect();
                (entries.len() as u64, entries)
            })?;
        }
        Ok(forgotten)
    }

    fn without_number(&self, ino: Ino) -> Option<Entry> {
        // One that cannot be read is believed by nobody.
        let record = self.record_of(ino).ok().flatten()?;
        let record = LinkRecord { seen: record.seen.elsewhere(), ..record };
        Some(records::link_entry(ino, Some(&record)))
    }

    fn linked_inodes(&self) -> Result<Vec<Ino>, Errno> {
        let mut inos = Vec::new();
        self.ledger.mds.scan(&[0], &[0xff; key::PREFIX_BYTES], &mut |key, _| {
            let parsed = key::Parsed::new(key).filter(|parsed| parsed.kind == key::LINK);
            inos.extend(parsed.and_then(|parsed| Ino::from_raw(parsed.raw_ino)));
            ControlFlow::Continue(())
        })?;
        Ok(inos)
    }
}
