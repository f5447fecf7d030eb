//! Data servers that are being drained or were removed, as it is stored.
//!
//! Record, version 1 (`docs/data-model.md`), under the key `0, N, node`: version u8 | kind u8 (1 draining, 2 removed) | its name. Under node 0, which is no
//! server: version u8 | 3: a data server with a tier that outlives its machine has been there.

use std::{collections::BTreeMap, ops::ControlFlow};

use bytes::Bytes;
use kv::{MetaStore, WriteSet};
use namespace::{key, txn::KvError};
use proto::moving::StandingKind;

const VERSION: u8 = 1;
const OUTLIVES: [u8; 2] = [VERSION, 3];

/// Of one data server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    pub kind: StandingKind,
    pub name: String,
}

impl Standing {
    fn encode(&self) -> Bytes {
        let mut bytes = vec![VERSION, self.kind as u8];
        bytes.extend(self.name.as_bytes());
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Option<Standing> {
        let [VERSION, kind, name @ ..] = bytes else { return None };
        let kind = match kind {
            1 => StandingKind::Draining,
            2 => StandingKind::Removed,
            _ => return None,
        };
        Some(Standing { kind, name: str::from_utf8(name).ok()?.to_owned() })
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StandingError {
    #[error(transparent)]
    Store(#[from] KvError),
    #[error("the record of a data server that is drained, or was removed, cannot be read")]
    Damaged,
}

pub(crate) fn load(store: &MetaStore) -> Result<BTreeMap<u64, Standing>, StandingError> {
    let (mut found, mut damaged) = (BTreeMap::new(), false);
    store.scan(&key::standing_start(), &key::standing_end(), &mut |key, value| {
        let node = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
        if node == Some(0) && value == OUTLIVES {
            return ControlFlow::Continue(());
        }
        match node.zip(Standing::decode(value)) {
            Some((node, standing)) => drop(found.insert(node, standing)),
            None => damaged = true,
        }
        ControlFlow::Continue(())
    })?;
    if damaged { Err(StandingError::Damaged) } else { Ok(found) }
}

/// Has there been a data server with a tier that outlives its machine?
pub(crate) fn outlives(store: &MetaStore) -> Result<bool, KvError> {
    Ok(store.get(&key::standing(0))?.is_some_and(|value| value[..] == OUTLIVES))
}

/// Durable when it returns.
pub(crate) fn save_outlives(store: &MetaStore) -> Result<(), KvError> {
    let mut writes = WriteSet::new();
    writes.use_reserve();
    writes.put(&key::standing(0), Bytes::from_static(&OUTLIVES));
    store.commit(writes)?;
    store.sync()
}

/// `None`: it is as all others. Durable when it returns.
pub(crate) fn save(store: &MetaStore, node: u64, standing: Option<&Standing>) -> Result<(), KvError> {
    let mut writes = WriteSet::new();
    writes.use_reserve();
    match standing {
        Some(standing) => writes.put(&key::standing(node), standing.encode()),
        None => writes.delete(&key::standing(node)),
    }
    store.commit(writes)?;
    store.sync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let standing = Standing { kind: StandingKind::Removed, name: "n3".into() };
        assert_eq!(&standing.encode()[..], b"\x01\x02n3");
        assert_eq!(Standing::decode(b"\x01\x02n3"), Some(standing));
        assert_eq!(Standing::decode(b"\x01\x00n3"), None);
    }

    /// Goal: what is stored is a standing or none. Method: fuzzing.
    #[test]
    fn fuzz_standing() {
        let good = [b"\x01\x01n3".to_vec(), b"\x01\x02".to_vec()];
        fuzzing::fuzz("standing", &good, fuzzing::as_it_is, |bytes| {
            if let Some(standing) = Standing::decode(bytes) {
                assert_eq!(&standing.encode()[..], bytes);
            }
        });
    }
}
