//! redb behind the engine trait: only for the conformance suite and for measuring.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use bytes::Bytes;
use kv::{ApplyError, Batch, Engine, Lsn};
use namespace::txn::{KvError, Visit};
use redb::{Database, ReadableDatabase, TableDefinition};

const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entries");
const APPLIED: TableDefinition<'_, (), u64> = TableDefinition::new("applied");

pub struct RedbEngine {
    db: Database,
    path: std::path::PathBuf,
}

impl RedbEngine {
    pub fn open(dir: &Path, cache_bytes: u64) -> RedbEngine {
        let path = dir.join("redb");
        let db = Database::builder().set_cache_size(cache_bytes as usize).create(&path).unwrap();
        let txn = db.begin_write().unwrap();
        txn.open_table(ENTRIES).unwrap();
        txn.open_table(APPLIED).unwrap();
        txn.commit().unwrap();
        RedbEngine { db, path }
    }

    fn try_apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), KvError> {
        let txn = self.db.begin_write().map_err(failed)?;
        {
            let mut table = txn.open_table(ENTRIES).map_err(failed)?;
            for (key, value) in batch {
                match value {
                    Some(value) => drop(table.insert(*key, *value).map_err(failed)?),
                    None => drop(table.remove(*key).map_err(failed)?),
                }
            }
            txn.open_table(APPLIED).map_err(failed)?.insert((), lsn.0).map_err(failed)?;
        }
        txn.commit().map_err(failed)
    }
}

fn failed(e: impl std::fmt::Display) -> KvError {
    KvError::Io(e.to_string())
}

impl Engine for RedbEngine {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let txn = self.db.begin_read().map_err(failed)?;
        let table = txn.open_table(ENTRIES).map_err(failed)?;
        Ok(table.get(key).map_err(failed)?.map(|v| Bytes::copy_from_slice(v.value())))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        let txn = self.db.begin_read().map_err(failed)?;
        let table = txn.open_table(ENTRIES).map_err(failed)?;
        for entry in table.range::<&[u8]>(from..to).map_err(failed)? {
            let (key, value) = entry.map_err(failed)?;
            if visit(key.value(), value.value()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        self.try_apply(batch, lsn).map_err(ApplyError::Unknown)
    }

    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        let txn = self.db.begin_read().map_err(failed)?;
        let table = txn.open_table(APPLIED).map_err(failed)?;
        Ok(Lsn(table.get(()).map_err(failed)?.map_or(0, |v| v.value())))
    }

    fn approximate_bytes(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |m| m.len())
    }

    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}
