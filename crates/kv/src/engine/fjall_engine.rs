//! The default engine: one fjall keyspace (a log-structured merge tree).
//!
//! Invariants: the applied [`Lsn`] is the value of [`RESERVED_KEY`] and travels in the same atomic batch; that key
//! is never shown. The block cache and the write buffers are bounded by what the caller gives.

use std::{io, path::Path};

use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use namespace::txn::{KvError, Visit};

use super::{Batch, Engine, RESERVED_KEY};
use crate::{
    Lsn, OpenError,
    error::{is_full, kv_error},
};

const KEYSPACE: &str = "metadata";
/// Batches come from the journal's overlay, which has gathered them already: a large buffer would only be a copy.
const WRITE_BUFFER_BYTES: u64 = 16 << 20;
/// The least that fjall takes. What lies in it is replayed at each open.
const ENGINE_JOURNAL_BYTES: u64 = 64 << 20;
const OPEN_FILES_MAX: usize = 256;
const WORKERS: usize = 2;
/// fjall's own format.
const KNOWN_VERSION: u8 = 3;

pub struct FjallEngine {
    db: Database,
    keyspace: Keyspace,
}

/// Opens or creates the default engine in `dir`: the opener to give to [`crate::MetaStore::open`].
pub fn fjall(dir: &Path, cache_bytes: u64) -> Result<Box<dyn Engine>, OpenError> {
    Ok(Box::new(FjallEngine::open(dir, cache_bytes)?))
}

impl FjallEngine {
    /// `cache_bytes` bounds the block cache.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<FjallEngine, OpenError> {
        refuse_newer(dir)?;
        let db = Database::builder(dir)
            .cache_size(cache_bytes)
            .manual_journal_persist(true)
            .max_journaling_size(ENGINE_JOURNAL_BYTES)
            .max_cached_files(Some(OPEN_FILES_MAX))
            .worker_threads(WORKERS)
            .open()
            .map_err(|e| open_error(dir, e))?;
        let options = || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(WRITE_BUFFER_BYTES)
                .manual_journal_persist(true)
        };
        let keyspace = db.keyspace(KEYSPACE, options).map_err(|e| open_error(dir, e))?;
        Ok(FjallEngine { db, keyspace })
    }
}

impl Engine for FjallEngine {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        if key == RESERVED_KEY {
            return Ok(None);
        }
        // Copied: a slice would keep its whole block alive.
        Ok(self.keyspace.get(key).map_err(engine_error)?.map(|v| Bytes::copy_from_slice(&v)))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        for entry in self.keyspace.range(from..to) {
            let (key, value) = entry.into_inner().map_err(engine_error)?;
            if *key != *RESERVED_KEY && visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), KvError> {
        let mut writes = self.db.batch().durability(Some(PersistMode::SyncAll));
        for (key, value) in batch {
            match value {
                Some(value) => writes.insert(&self.keyspace, *key, *value),
                None => writes.remove(&self.keyspace, *key),
            }
        }
        writes.insert(&self.keyspace, RESERVED_KEY, lsn.0.to_le_bytes());
        writes.commit().map_err(engine_error)
    }

    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        match self.keyspace.get(RESERVED_KEY).map_err(engine_error)? {
            None => Ok(Lsn(0)),
            Some(bytes) => {
                let bytes: [u8; 8] = (*bytes)
                    .try_into()
                    .map_err(|_| KvError::Corrupt("the engine's applied number is not 8 bytes".to_owned()))?;
                Ok(Lsn(u64::from_le_bytes(bytes)))
            }
        }
    }

    fn approximate_bytes(&self) -> u64 {
        self.keyspace.disk_space() + self.db.journal_disk_space().unwrap_or(0)
    }

    fn close(&self) -> Result<(), KvError> {
        self.db.persist(PersistMode::SyncAll).map_err(engine_error)
    }
}

/// fjall marks its errors as open-ended, so what is not about the device is taken as damage.
#[expect(clippy::wildcard_enum_match_arm, reason = "an enum of another crate, marked non-exhaustive")]
fn engine_error(error: fjall::Error) -> KvError {
    match error {
        fjall::Error::Io(e) => kv_error("engine", &e),
        fjall::Error::Storage(e) => match io_cause(&e) {
            Some(cause) if is_full(cause) => KvError::Full,
            Some(cause) => KvError::Io(format!("engine: {cause}")),
            None => KvError::Corrupt(format!("engine: {e}")),
        },
        fjall::Error::Poisoned => KvError::ReadOnly("the engine failed before".to_owned()),
        other => KvError::Corrupt(format!("engine: {other}")),
    }
}

fn io_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    std::iter::successors(Some(error), |e| e.source()).find_map(|e| e.downcast_ref::<io::Error>())
}

#[expect(clippy::wildcard_enum_match_arm, reason = "an enum of another crate, marked non-exhaustive")]
fn open_error(dir: &Path, error: fjall::Error) -> OpenError {
    match error {
        fjall::Error::Locked => OpenError::Locked { path: dir.to_owned(), pid: None },
        fjall::Error::Io(e) => OpenError::io(dir, &e),
        other => OpenError::Engine(engine_error(other)),
    }
}

/// fjall itself cannot tell a newer version from a damaged marker. Its marker is `FJL` and one byte.
fn refuse_newer(dir: &Path) -> Result<(), OpenError> {
    match std::fs::read(dir.join("version")) {
        Ok(marker) if marker.len() >= 4 && marker[..3] == *b"FJL" && marker[3] > KNOWN_VERSION => {
            Err(OpenError::Newer {
                path: dir.to_owned(),
                found: marker[3].into(),
                known: KNOWN_VERSION.into(),
            })
        }
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(OpenError::io(dir, &e)),
    }
}
