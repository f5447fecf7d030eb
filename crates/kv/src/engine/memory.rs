//! An engine in memory, for tests. Clones share their content, so that a store can be "reopened" on it.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use bytes::Bytes;
use namespace::txn::{KvError, Visit};
use parking_lot::RwLock;

use super::{ApplyError, Batch, Engine};
use crate::Lsn;

type Map = BTreeMap<Vec<u8>, Bytes>;

#[derive(Clone, Default)]
pub struct MemoryEngine {
    content: Arc<RwLock<(Arc<Map>, Lsn)>>,
}

impl MemoryEngine {
    pub fn new() -> MemoryEngine {
        MemoryEngine::default()
    }

    fn snapshot(&self) -> Arc<Map> {
        Arc::clone(&self.content.read().0)
    }
}

impl Engine for MemoryEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.content.read().0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        let map = self.snapshot();
        for (key, value) in map.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to))) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        let mut content = self.content.write();
        let map = Arc::make_mut(&mut content.0);
        for (key, value) in batch {
            match value {
                Some(value) => drop(map.insert(key.to_vec(), Bytes::copy_from_slice(value))),
                None => drop(map.remove(*key)),
            }
        }
        content.1 = lsn;
        Ok(())
    }

    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        Ok(self.content.read().1)
    }

    fn approximate_bytes(&self) -> u64 {
        self.snapshot().iter().map(|(k, v)| (k.len() + v.len()) as u64).sum()
    }

    fn close(&self) -> Result<(), KvError> {
        Ok(())
    }
}
