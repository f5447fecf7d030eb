//! The stored records: what was seen of an inode (`L`), what is not applied of it (`W`), conflicts (`C`).

use std::ops::ControlFlow;

use link::{Conflict, LinkRecord, Work};
use mds::Mds;
use namespace::{
    key,
    txn::{Bytes, KvError, Reader, Txn, Visit},
};
use types::{Errno, Ino};

/// A record as it goes into a commit; `None` deletes it.
pub(crate) type Entry = (Box<[u8]>, Option<Bytes>);

/// What is committed, for those who read outside of a transaction.
pub(crate) struct Committed<'a>(pub &'a Mds);

impl Reader for Committed<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.0.get(key).map_err(|errno| KvError::Io(errno.to_string()))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.0.scan(from, to, visit).map_err(|errno| KvError::Io(errno.to_string()))
    }
}

fn damaged(key: &[u8]) -> KvError {
    KvError::Corrupt(format!("record {} does not have its form", key::describe(key)))
}

fn load<R: Reader + ?Sized, T>(
    reader: &R,
    key: &[u8],
    decode: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<Option<T>, KvError> {
    match reader.get(key)? {
        None => Ok(None),
        Some(bytes) => decode(&bytes).map(Some).ok_or_else(|| damaged(key)),
    }
}

pub(crate) fn link_of<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Option<LinkRecord>, KvError> {
    load(reader, &key::link(ino), LinkRecord::decode)
}

pub(crate) fn work_of<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Option<Work>, KvError> {
    load(reader, &key::work(ino), Work::decode)
}

pub(crate) fn put_link<T: Txn + ?Sized>(txn: &mut T, ino: Ino, record: &LinkRecord) {
    txn.put(&key::link(ino), Bytes::from(record.encode()));
}

pub(crate) fn delete_link<T: Txn + ?Sized>(txn: &mut T, ino: Ino) {
    txn.delete(&key::link(ino));
}

pub(crate) fn put_work<T: Txn + ?Sized>(txn: &mut T, ino: Ino, work: Option<&Work>) {
    match work {
        Some(work) => txn.put(&key::work(ino), Bytes::from(work.encode())),
        None => txn.delete(&key::work(ino)),
    }
}

pub(crate) fn link_entry(ino: Ino, record: Option<&LinkRecord>) -> Entry {
    (Box::from(&*key::link(ino)), record.map(|record| Bytes::from(record.encode())))
}

pub(crate) fn work_entry(ino: Ino, work: Option<&Work>) -> Entry {
    (Box::from(&*key::work(ino)), work.map(|work| Bytes::from(work.encode())))
}

/// All that is pending.
pub(crate) fn works<R: Reader + ?Sized>(reader: &R) -> Result<Vec<(Ino, Work)>, KvError> {
    let (mut found, mut bad) = (Vec::new(), None);
    reader.scan(&key::work_start(), &key::work_end(), &mut |key, value| {
        let ino = key::Parsed::new(key).and_then(|parsed| key::ino_of(parsed.rest));
        match ino.zip(Work::decode(value)) {
            Some(work) => {
                found.push(work);
                ControlFlow::Continue(())
            }
            None => {
                bad = Some(damaged(key));
                ControlFlow::Break(())
            }
        }
    })?;
    bad.map_or(Ok(found), Err)
}

/// All conflicts, with their numbers.
pub(crate) fn conflicts<R: Reader + ?Sized>(reader: &R) -> Result<Vec<(u64, Conflict)>, KvError> {
    let (mut found, mut bad) = (Vec::new(), None);
    reader.scan(&key::conflict_start(), &key::conflict_end(), &mut |key, value| {
        let number = key::Parsed::new(key).and_then(|parsed| parsed.conflict());
        match number.zip(Conflict::decode(value)) {
            Some(conflict) => {
                found.push(conflict);
                ControlFlow::Continue(())
            }
            None => {
                bad = Some(damaged(key));
                ControlFlow::Break(())
            }
        }
    })?;
    bad.map_or(Ok(found), Err)
}

/// For errors of the store that are met outside of the metadata server.
pub(crate) fn errno(error: namespace::Error) -> Errno {
    match error {
        namespace::Error::Errno(errno) => errno,
        namespace::Error::Store(error) => {
            tracing::error!(%error, "a record of linked near-line");
            Errno::EIO
        }
    }
}
