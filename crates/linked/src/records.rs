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
    all(reader, (&key::work_start(), &key::work_end()), |key, value| {
        key::ino_of(key.rest).zip(Work::decode(value))
    })
}

/// All conflicts, with their numbers.
pub(crate) fn conflicts<R: Reader + ?Sized>(reader: &R) -> Result<Vec<(u64, Conflict)>, KvError> {
    all(reader, (&key::conflict_start(), &key::conflict_end()), |key, value| {
        key.conflict().zip(Conflict::decode(value))
    })
}

/// All records of a range; one that is damaged is an error.
fn all<R: Reader + ?Sized, T>(
    reader: &R,
    (from, to): (&[u8], &[u8]),
    decode: impl Fn(&key::Parsed<'_>, &[u8]) -> Option<T>,
) -> Result<Vec<T>, KvError> {
    let (mut found, mut bad) = (Vec::new(), None);
    reader.scan(from, to, &mut |key, value| match key::Parsed::new(key)
        .and_then(|parsed| decode(&parsed, value))
    {
        Some(one) => {
            found.push(one);
            ControlFlow::Continue(())
        }
        None => {
            bad = Some(damaged(key));
            ControlFlow::Break(())
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
