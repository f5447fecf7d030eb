//! What must outlive the service for locks to be right: how often it was started, and which sessions it gave up.
//!
//! Records of type `V`: `lives`, and one for each session that was given up since the last time that sessions of earlier lives could
//! come back. A verdict is durable before what the session had is anybody else's.

use std::{collections::BTreeSet, ops::ControlFlow};

use bytes::Bytes;
use kv::{MetaStore, WriteSet};
use lease::coherence::{message::Life, server::Past};
use namespace::{key, txn::KvError};
use proto::SessionId;

const VERSION: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub(super) enum LifeError {
    #[error(transparent)]
    Store(#[from] KvError),
    #[error("the record of the service's lives, or of a session that it gave up, cannot be read")]
    Damaged,
    #[error("the service was started as often as can be counted")]
    Last,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lives {
    life: u32,
    /// The last one that ended the time for coming back.
    from: u32,
}

impl Lives {
    fn encode(self) -> Bytes {
        let mut bytes = vec![VERSION];
        bytes.extend(self.life.to_le_bytes());
        bytes.extend(self.from.to_le_bytes());
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Option<Lives> {
        let (life, from) = bytes.strip_prefix(&[VERSION])?.split_first_chunk::<4>()?;
        let (life, from) = (u32::from_le_bytes(*life), u32::from_le_bytes(from.try_into().ok()?));
        (1..=life).contains(&from).then_some(Lives { life, from })
    }
}

/// The life in which a session was given up.
fn encode(life: Life) -> Bytes {
    let mut bytes = vec![VERSION];
    bytes.extend(life.0.to_le_bytes());
    bytes.into()
}

fn decode(bytes: &[u8]) -> Option<Life> {
    Some(Life(u32::from_le_bytes(bytes.strip_prefix(&[VERSION])?.try_into().ok()?)))
}

/// Counts one more life, durably, and says what is known of those before.
pub(super) fn begin_life(store: &MetaStore) -> Result<Past, LifeError> {
    let lives = match store.get(&key::lives())? {
        Some(bytes) => {
            let before = Lives::decode(&bytes).ok_or(LifeError::Damaged)?;
            let life = before.life.checked_add(1).filter(|life| *life < 1 << 24).ok_or(LifeError::Last)?;
            Lives { life, ..before }
        }
        None => Lives { life: 1, from: 1 },
    };
    let mut writes = WriteSet::new();
    writes.put(&key::lives(), lives.encode());
    durably(store, writes)?;
    let fenced = given_up(store)?.into_iter().map(|(session, _)| session).collect();
    Ok(Past { life: Life(lives.life), from: Life(lives.from), fenced })
}

fn given_up(store: &MetaStore) -> Result<BTreeSet<(SessionId, Life)>, LifeError> {
    let (mut found, mut damaged) = (BTreeSet::new(), false);
    store.scan(&key::verdict_start(), &key::verdict_end(), &mut |key, value| {
        let session = key.last_chunk::<16>().map(|bytes| SessionId(u128::from_be_bytes(*bytes)));
        match session.zip(decode(value)) {
            Some(verdict) => drop(found.insert(verdict)),
            None => damaged = true,
        }
        ControlFlow::Continue(())
    })?;
    if damaged { Err(LifeError::Damaged) } else { Ok(found) }
}

/// The session does not come back.
pub(super) fn record(store: &MetaStore, session: SessionId, life: Life) -> Result<(), KvError> {
    let mut writes = WriteSet::new();
    writes.put(&key::verdict(session.0), encode(life));
    durably(store, writes)
}

/// Sessions of lives before this one come back no more, so of those only the verdicts of this one are needed.
pub(super) fn end_grace(store: &MetaStore, life: Life) -> Result<(), LifeError> {
    let mut writes = WriteSet::new();
    for (session, _) in given_up(store)?.into_iter().filter(|(_, of)| *of < life) {
        writes.delete(&key::verdict(session.0));
    }
    writes.put(&key::lives(), Lives { life: life.0, from: life.0 }.encode());
    Ok(durably(store, writes)?)
}

/// A full disk does not refuse them: they are few, and without them locks could be had twice.
fn durably(store: &MetaStore, mut writes: WriteSet) -> Result<(), KvError> {
    writes.use_reserve();
    let lsn = store.commit(writes)?;
    store.wait_synced(lsn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let lives = Lives { life: 0x0102_0304, from: 2 };
        assert_eq!(&*lives.encode(), b"\x01\x04\x03\x02\x01\x02\0\0\0");
        assert_eq!(Lives::decode(&lives.encode()), Some(lives));
        assert_eq!(&*encode(Life(5)), b"\x01\x05\0\0\0");
        assert_eq!(decode(&encode(Life(5))), Some(Life(5)));
    }

    /// Goal: what is stored is a record or none, and nothing else. Method: fuzzing.
    #[test]
    fn fuzz_verdicts() {
        let good = [Lives { life: 9, from: 3 }.encode().to_vec(), encode(Life(7)).to_vec()];
        fuzzing::fuzz("verdicts", &good, fuzzing::as_it_is, |bytes| {
            if let Some(lives) = Lives::decode(bytes) {
                assert_eq!(lives.encode(), bytes);
            }
            if let Some(life) = decode(bytes) {
                assert_eq!(encode(life), bytes);
            }
        });
    }
}
