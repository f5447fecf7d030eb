//! An engine that several stores write to, each in slots of its own; a batch in another's slot is refused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, dead_code, reason = "a test")]

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kv::{ApplyError, Batch, Engine, Lsn};
use namespace::txn::{Bytes, KvError, Visit};
use parking_lot::Mutex;
use types::SLOTS;

/// What all servers write to.
#[derive(Default)]
pub struct Common {
    pub entries: Mutex<BTreeMap<Vec<u8>, Bytes>>,
    pub owners: Mutex<BTreeMap<u16, usize>>,
    pub full: AtomicBool,
}

/// As one of them has it.
pub struct Part {
    pub common: Arc<Common>,
    pub me: usize,
    pub applied: Arc<Mutex<Lsn>>,
}

impl Engine for Part {
    fn name(&self) -> &'static str {
        "common"
    }
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.common.entries.lock().get(key).cloned())
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        let range = (Bound::Included(from), Bound::Excluded(to));
        let found: Vec<(Vec<u8>, Bytes)> = {
            let entries = self.common.entries.lock();
            entries.range::<[u8], _>(range).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        for (key, value) in found {
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }
    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        if self.common.full.load(Ordering::SeqCst) {
            return Err(ApplyError::Nothing(KvError::Io("not now".to_owned())));
        }
        let (mut entries, owners) = (self.common.entries.lock(), self.common.owners.lock());
        for (key, _) in batch {
            let slot = (u16::from(key[1]) << 8 | u16::from(key[2])) % SLOTS as u16;
            if owners.get(&slot) != Some(&self.me) {
                return Err(ApplyError::Fenced(KvError::Io(format!("slot {slot} is not of {}", self.me))));
            }
        }
        for (key, value) in batch {
            match value {
                Some(value) => drop(entries.insert(key.to_vec(), Bytes::copy_from_slice(value))),
                None => drop(entries.remove(*key)),
            }
        }
        *self.applied.lock() = lsn;
        Ok(())
    }
    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        Ok(*self.applied.lock())
    }
    fn approximate_bytes(&self) -> u64 {
        0
    }
    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}
