//! Transactions of who keeps a linked directory in step: imports, and what was changed there. And the records that are theirs.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use kv::WriteSet;
use namespace::{
    Env, Renamed, Unlinked, inode,
    key::Parsed,
    txn::{Bytes, KvError, Reader, Txn, Visit},
};
use types::{Attr, Errno, FileKind, Ino, UgsdId};

use crate::{
    numbers::{Fresh, Wanted},
    server::Mds,
    slots::SlotSet,
};

/// What such a transaction asks of the server, and has to tell it. All of it counts only if the transaction is committed.
pub struct Context<'a> {
    mds: &'a Mds,
    /// The last of each UGSD.
    fresh: BTreeMap<UgsdId, Fresh>,
    /// The last UGSD.
    ugsd: Option<Fresh>,
    /// What has to be reserved before it can go on.
    wanted: Option<Wanted>,
    reserve: bool,
    made: i64,
    gone: Vec<Attr>,
    orphaned: Vec<Ino>,
    named: Vec<Ino>,
}

impl Context<'_> {
    fn new(mds: &Mds) -> Context<'_> {
        Context {
            mds,
            fresh: BTreeMap::new(),
            ugsd: None,
            wanted: None,
            reserve: false,
            made: 0,
            gone: Vec::new(),
            orphaned: Vec::new(),
            named: Vec::new(),
        }
    }

    /// A number for an inode that is made in `dir`, counted as one more. A directory below the root is a UGSD of its own.
    pub fn fresh(&mut self, txn: &mut dyn Txn, dir: Ino, kind: FileKind) -> namespace::Result<Ino> {
        // So that the slot which guards the numbers is one of the transaction's.
        inode::load_dir(txn, dir)?;
        let top = dir == Ino::ROOT && kind == FileKind::Directory;
        self.made += 1;
        if top {
            match self.mds.find_ugsd(txn, self.ugsd.as_ref())? {
                Ok(Some((ino, [number, first]))) => {
                    self.ugsd = Some(number);
                    self.fresh.insert(ino.ugsd(), first);
                    return Ok(ino);
                }
                Ok(None) => {}
                Err(wanted) => return Err(self.wants(wanted)),
            }
        }
        let ugsd = dir.ugsd();
        match self.mds.find_fresh(txn, Wanted::Inodes(ugsd), self.fresh.get(&ugsd))? {
            Ok(fresh) => {
                let ino = fresh.ino(ugsd)?;
                self.fresh.insert(ugsd, fresh);
                Ok(ino)
            }
            Err(wanted) => Err(self.wants(wanted)),
        }
    }

    fn wants(&mut self, wanted: Wanted) -> namespace::Error {
        self.wanted = Some(wanted);
        KvError::Io(String::new()).into()
    }

    /// A number that was given is not used after all.
    pub fn unused(&mut self) {
        self.made -= 1;
    }

    /// By `namespace::unlink`.
    pub fn unlinked(&mut self, unlinked: &Unlinked) {
        match unlinked.gone {
            Some(attr) => self.gone.push(attr),
            None if unlinked.nlink_left == 0 => self.orphaned.push(unlinked.ino),
            None => {}
        }
    }

    /// A directory, by `namespace::rmdir`.
    pub fn removed(&mut self, dir: Ino) {
        self.orphaned.push(dir);
    }

    /// By `namespace::rename`.
    pub fn renamed(&mut self, renamed: &Renamed) {
        if let Some(replaced) = &renamed.replaced {
            self.unlinked(replaced);
        }
    }

    /// By `namespace::link`, with what it returned.
    pub fn linked(&mut self, attr: &Attr) {
        if attr.nlink == 1 {
            self.named.push(attr.ino);
        }
    }

    /// The transaction makes room, or only changes what is there: a full disk does not refuse it.
    pub fn use_reserve(&mut self) {
        self.reserve = true;
    }
}

impl Mds {
    /// Runs `operation` as one transaction under the locks of the slots of `inos`, and of whatever else it turns out to touch.
    /// It may run more than once; only the last run counts. It calls nothing of the server. No [`crate::Recorder`] is told; a
    /// lock that [`crate::Recorder::record`] takes may be taken in `operation`, but not before. Some hundred inodes at a
    /// time: others wait for it.
    pub fn transact<V>(
        &self,
        inos: &[Ino],
        operation: &mut dyn FnMut(&mut dyn Txn, &Env, &mut Context<'_>) -> namespace::Result<V>,
    ) -> Result<V, Errno> {
        let set = match inos {
            [] => SlotSet::root(),
            [first, others @ ..] => {
                others.iter().fold(SlotSet::of(*first), |set, ino| set.with(ino.ugsd().slot()))
            }
        };
        self.change_around(
            set,
            |txn, env| {
                // The quota lock comes before those of who is told, here as well.
                txn.lock_quotas();
                let mut context = Context::new(self);
                let value = operation(txn, env, &mut context);
                if let Some(wanted) = context.wanted {
                    return Err(txn.wants(wanted).into());
                }
                let value = value?;
                if context.reserve {
                    txn.use_reserve();
                }
                Ok((value, context))
            },
            |_| {},
            |(value, context), committed| {
                committed?;
                self.count(context);
                Ok(value)
            },
        )
    }

    /// What a committed transaction came to.
    fn count(&self, context: Context<'_>) {
        let Context { fresh, ugsd, made, gone, orphaned, named, .. } = context;
        let lsn = self.store.last_lsn();
        fresh.into_values().chain(ugsd).for_each(|fresh| self.numbers.took(fresh, lsn));
        self.inodes.fetch_add(made - gone.len() as i64, Ordering::Relaxed);
        named.into_iter().for_each(|ino| self.orphans.named(ino));
        orphaned.into_iter().for_each(|ino| self.orphans.orphaned(ino));
        gone.into_iter().for_each(|attr| self.orphans.gone(attr));
    }

    /// Number of the last commit, or of a later one.
    pub fn last_lsn(&self) -> u64 {
        self.store.last_lsn().0
    }

    /// A committed record.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Errno> {
        self.read(|reader| Ok(reader.get(key)?))
    }

    /// Committed records with `from <= key < to`, in order, until `visit` breaks. What is committed meanwhile may be seen or not.
    pub fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), Errno> {
        self.read(|reader| Ok(reader.scan(from, to, visit)?))
    }

    /// Commits records of types `L`, `W` and `C` (`None`: deleted), under no lock of the server's; `EINVAL` for any other. A
    /// full disk does not refuse them. `durable`: they survive a power cut when this returns.
    pub fn put_records(&self, records: &[(Box<[u8]>, Option<Bytes>)], durable: bool) -> Result<(), Errno> {
        if records.iter().any(|(key, _)| !Parsed::new(key).is_some_and(|parsed| parsed.is_linked())) {
            return Err(Errno::EINVAL);
        }
        let mut writes = WriteSet::new();
        writes.use_reserve();
        for (key, value) in records {
            match value {
                Some(value) => writes.put(key, value.clone()),
                None => writes.delete(key),
            }
        }
        let committed = self.store.commit(writes);
        let done = if durable {
            committed.and_then(|lsn| self.store.wait_synced(lsn))
        } else {
            committed.map(|_| ())
        };
        done.map_err(|e| self.errno(e.into()))
    }
}
