//! The life of a data server's memory, which its answers to writes and syncs say: what was answered in one life and not made durable is gone in the
//! next ([`proto::data::Alive`]).
//!
//! - I-LIFE-1: a number stands for one life, also where a power cut takes what was stored of the last one: it is drawn, not counted. It stays over starts that
//!   lost nothing, be it after a kill or after an end in order.
//!
//! It refuses to know whether anything was lost: who opens the tiers does, and says so with [`forget_life`] before the new memory is on record.
//!
//! Stored under the name `life` of the file system's values, 9 bytes: version u8 = 1 | life u64, little-endian, not 0 (`docs/data-model.md`).

use std::io;

use kv::{MetaStore, WriteSet};
use namespace::{key, txn::KvError};

const NAME: &[u8] = b"life";
const VERSION: u8 = 1;

/// The memory of the last start is gone, and was not empty.
pub fn forget_life(store: &MetaStore) -> Result<(), KvError> {
    if store.get(&key::global(NAME))?.is_none() {
        return Ok(());
    }
    let mut writes = WriteSet::new();
    writes.use_reserve();
    writes.delete(&key::global(NAME));
    store.commit(writes).map(drop)
}

/// That of this start.
pub(super) fn life(store: &MetaStore) -> io::Result<u64> {
    let stored = store.get(&key::global(NAME)).map_err(io::Error::other)?;
    match stored.as_deref().map(decode) {
        Some(Some(life)) => return Ok(life),
        Some(None) => tracing::error!("the record of the memory's life is damaged: another begins"),
        None => {}
    }
    let mut drawn = [0; 8];
    getrandom::fill(&mut drawn).map_err(|error| io::Error::other(error.to_string()))?;
    let life = u64::from_le_bytes(drawn).max(1);
    let mut writes = WriteSet::new();
    writes.use_reserve();
    writes.put(&key::global(NAME), encode(life).into());
    store.commit(writes).map_err(io::Error::other)?;
    Ok(life)
}

fn encode(life: u64) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(life.to_le_bytes());
    bytes
}

/// `None`: not such a record.
fn decode(bytes: &[u8]) -> Option<u64> {
    let [VERSION, life @ ..] = bytes else { return None };
    let life = u64::from_le_bytes(life.try_into().ok()?);
    (life != 0).then_some(life)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let golden = b"\x01\x08\x07\x06\x05\x04\x03\x02\x01";
        assert_eq!(encode(0x0102_0304_0506_0708), golden);
        assert_eq!(decode(golden), Some(0x0102_0304_0506_0708));
        assert_eq!((decode(&[1; 8]), decode(&[1, 0, 0, 0, 0, 0, 0, 0, 0])), (None, None));
    }

    #[test]
    fn a_life_stays_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let store = MetaStore::open_default(dir.path(), kv::MetaStoreOptions::default()).unwrap();
        forget_life(&store).unwrap();
        let first = life(&store).unwrap();
        assert_eq!(life(&store).unwrap(), first);
        forget_life(&store).unwrap();
        assert_ne!(life(&store).unwrap(), first);
    }

    /// Goal: what is stored is a life or none, and nothing else. Method: fuzzing.
    #[test]
    fn fuzz_life() {
        fuzzing::fuzz("life", &[encode(1), encode(u64::MAX)], fuzzing::as_it_is, |bytes| {
            if let Some(life) = decode(bytes) {
                assert_eq!(encode(life), bytes);
            }
        });
    }
}
