//! The key-value transaction of the namespace over ordered maps in memory.

use std::{collections::BTreeMap, ops::ControlFlow};

use namespace::txn::{Bytes, KvError, Reader, Txn, Visit};

/// What is committed.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Records(pub BTreeMap<Vec<u8>, Bytes>);

/// `None` deletes.
pub type Changes = BTreeMap<Vec<u8>, Option<Bytes>>;

impl Records {
    pub fn apply(&mut self, changes: &Changes) {
        for (key, value) in changes {
            match value {
                Some(value) => drop(self.0.insert(key.clone(), value.clone())),
                None => drop(self.0.remove(key)),
            }
        }
    }
}

impl Reader for Records {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        for (key, value) in self.0.range(from.to_vec()..to.to_vec()) {
            if let ControlFlow::Break(()) = visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}

/// One transaction over them: it sees its own writes, and nobody else does.
pub struct Batch<'a> {
    base: &'a Records,
    pub changes: Changes,
}

impl<'a> Batch<'a> {
    pub fn over(base: &'a Records) -> Batch<'a> {
        Batch { base, changes: Changes::new() }
    }
}

impl Reader for Batch<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        match self.changes.get(key) {
            Some(changed) => Ok(changed.clone()),
            None => self.base.get(key),
        }
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        let range = || from.to_vec()..to.to_vec();
        let mut seen: BTreeMap<&[u8], Option<&Bytes>> = BTreeMap::new();
        seen.extend(self.base.0.range(range()).map(|(key, value)| (key.as_slice(), Some(value))));
        seen.extend(self.changes.range(range()).map(|(key, value)| (key.as_slice(), value.as_ref())));
        for (key, value) in seen {
            if let Some(value) = value
                && visit(key, value).is_break()
            {
                break;
            }
        }
        Ok(())
    }
}

impl Txn for Batch<'_> {
    fn put(&mut self, key: &[u8], value: Bytes) {
        self.changes.insert(key.to_vec(), Some(value));
    }

    fn delete(&mut self, key: &[u8]) {
        self.changes.insert(key.to_vec(), None);
    }
}
