//! What must outlive the service for locks and leases to be right: how often it was started, which sessions it gave up, and which are there.
//!
//! Records of type `V`: `lives`; one for each session that was given up since the last time that sessions of earlier lives could
//! come back; and one for each session that may have something. A verdict is durable before what the session had is anybody else's, and that it
//! is there before it has anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use bytes::Bytes;
use kv::{MetaStore, WriteSet};
use lease::coherence::{
    message::{Joined, Life},
    server::Past,
};
use namespace::{
    key::{self, Parsed},
    txn::KvError,
};
use proto::SessionId;

const VERSION: u8 = 1;
/// Of lives whose sessions all have records.
const VERSION_RECORDED: u8 = 2;
/// Of verdicts that say as which the session had come.
const VERSION_NUMBERED: u8 = 2;

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
    /// Since then each session that may have something has a record.
    recorded: bool,
}

impl Lives {
    fn encode(self) -> Bytes {
        let mut bytes = vec![if self.recorded { VERSION_RECORDED } else { VERSION }];
        bytes.extend(self.life.to_le_bytes());
        bytes.extend(self.from.to_le_bytes());
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Option<Lives> {
        let (version, rest) = bytes.split_first()?;
        let (life, from) = rest.split_first_chunk::<4>()?;
        let (life, from) = (u32::from_le_bytes(*life), u32::from_le_bytes(from.try_into().ok()?));
        let known = matches!(*version, VERSION | VERSION_RECORDED) && (1..=life).contains(&from);
        known.then_some(Lives { life, from, recorded: *version == VERSION_RECORDED })
    }
}

/// A session that was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    /// In which that was.
    pub life: Life,
    /// As which it had come. 0: not known.
    pub joined: Joined,
}

impl Verdict {
    fn encode(self) -> Bytes {
        let mut bytes = vec![VERSION_NUMBERED];
        bytes.extend(self.life.0.to_le_bytes());
        bytes.extend(self.joined.0.to_le_bytes());
        bytes.into()
    }

    fn decode(bytes: &[u8]) -> Option<Verdict> {
        let (version, rest) = bytes.split_first()?;
        let (life, rest) = rest.split_first_chunk::<4>()?;
        let joined = match (*version, rest) {
            (VERSION, []) => 0,
            (VERSION_NUMBERED, number) => u64::from_le_bytes(number.try_into().ok()?),
            _ => return None,
        };
        Some(Verdict { life: Life(u32::from_le_bytes(*life)), joined: Joined(joined) })
    }
}

/// What a session may have, each with all that is before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Presence {
    Locks = 0,
    /// Leases.
    Keeping = 1,
    /// Writes that it kept back.
    Writing = 2,
}

fn encode_presence(has: Presence) -> Bytes {
    vec![VERSION, has as u8].into()
}

fn decode_presence(bytes: &[u8]) -> Option<Presence> {
    match bytes {
        [VERSION, 0] => Some(Presence::Locks),
        [VERSION, 1] => Some(Presence::Keeping),
        [VERSION, 2] => Some(Presence::Writing),
        _ => None,
    }
}

/// What is known of earlier lives.
pub(super) struct Before {
    pub past: Past,
    /// As which those that were given up had come, as far as that is known.
    pub given_up: Vec<Joined>,
    /// Sessions that were there, and what they may have. `None`: that was not recorded.
    pub present: Option<BTreeMap<SessionId, Presence>>,
}

impl Before {
    /// Those that may have kept writes back.
    pub(super) fn writers(&self) -> BTreeSet<SessionId> {
        let present = self.present.iter().flatten();
        present.filter(|(_, has)| **has >= Presence::Writing).map(|(session, _)| *session).collect()
    }
}

/// Counts one more life, durably, and says what is known of those before.
pub(super) fn begin_life(store: &MetaStore) -> Result<Before, LifeError> {
    let lives = match store.get(&key::lives())? {
        Some(bytes) => {
            let before = Lives::decode(&bytes).ok_or(LifeError::Damaged)?;
            let life = before.life.checked_add(1).filter(|life| *life < 1 << 24).ok_or(LifeError::Last)?;
            Lives { life, ..before }
        }
        None => Lives { life: 1, from: 1, recorded: true },
    };
    let mut writes = WriteSet::new();
    writes.put(&key::lives(), lives.encode());
    durably(store, writes)?;
    let found = sessions(store)?;
    let given_up = found.given_up.values().map(|verdict| verdict.joined).collect();
    let fenced = found.given_up.into_keys().collect();
    let past = Past { life: Life(lives.life), from: Life(lives.from), fenced };
    Ok(Before { past, given_up, present: lives.recorded.then_some(found.present) })
}

#[derive(Default)]
struct Recorded {
    given_up: BTreeMap<SessionId, Verdict>,
    present: BTreeMap<SessionId, Presence>,
}

fn sessions(store: &MetaStore) -> Result<Recorded, LifeError> {
    let (mut found, mut damaged) = (Recorded::default(), false);
    store.scan(&key::verdict_start(), &key::verdict_end(), &mut |key, value| {
        let rest = Parsed::new(key).map(|parsed| parsed.rest).unwrap_or_default();
        let session = rest.first_chunk::<16>().map(|bytes| SessionId(u128::from_be_bytes(*bytes)));
        let known = match (session, rest.get(16..)) {
            (Some(session), Some([])) => Verdict::decode(value).map(|verdict| {
                found.given_up.insert(session, verdict);
            }),
            (Some(session), Some(_)) => decode_presence(value).map(|has| {
                found.present.insert(session, has);
            }),
            (None, _) | (_, None) => None,
        };
        damaged |= known.is_none();
        ControlFlow::Continue(())
    })?;
    if damaged { Err(LifeError::Damaged) } else { Ok(found) }
}

/// The session is there, and may get something. Returns what is recorded of it: an earlier life's record of more stays.
pub(super) fn arrive(store: &MetaStore, session: SessionId, has: Presence) -> Result<Presence, KvError> {
    let known = store.get(&key::presence(session.0))?.and_then(|bytes| decode_presence(&bytes));
    match known {
        Some(known) if known >= has => Ok(known),
        Some(_) | None => {
            let mut writes = WriteSet::new();
            writes.put(&key::presence(session.0), encode_presence(has));
            durably(store, writes)?;
            Ok(has)
        }
    }
}

/// The same of several, for locks that come with slots.
pub(super) fn arrive_all(
    store: &MetaStore,
    sessions: impl Iterator<Item = SessionId>,
) -> Result<(), KvError> {
    let (mut writes, mut new) = (WriteSet::new(), false);
    for session in sessions {
        if store.get(&key::presence(session.0))?.is_none() {
            writes.put(&key::presence(session.0), encode_presence(Presence::Locks));
            new = true;
        }
    }
    if new { durably(store, writes) } else { Ok(()) }
}

/// It has nothing any more. Lost with a power cut this is only waited for once more.
pub(super) fn depart(store: &MetaStore, session: SessionId) -> Result<(), KvError> {
    if store.get(&key::presence(session.0))?.is_none() {
        return Ok(());
    }
    let mut writes = WriteSet::new();
    writes.delete(&key::presence(session.0));
    writes.use_reserve();
    store.commit(writes).map(drop)
}

/// The session does not come back. Given up once more, with slots that came later, data servers know it as before.
pub(super) fn record(store: &MetaStore, session: SessionId, verdict: Verdict) -> Result<(), KvError> {
    let before = store.get(&key::verdict(session.0))?.and_then(|bytes| Verdict::decode(&bytes));
    let known = before.map(|before| before.joined).filter(|joined| *joined != Joined::default());
    let verdict = Verdict { joined: known.unwrap_or(verdict.joined), ..verdict };
    let mut writes = WriteSet::new();
    writes.put(&key::verdict(session.0), verdict.encode());
    durably(store, writes)
}

/// Sessions of lives before this one come back no more, so of those only the verdicts of this one are needed, and where there are other servers, who may
/// believe them whole, the last `keep`. `missing`: those that did not; that is a verdict, too.
pub(super) fn end_grace(
    store: &MetaStore,
    life: Life,
    missing: &[SessionId],
    keep: usize,
) -> Result<(), LifeError> {
    let mut writes = WriteSet::new();
    let mut earlier: Vec<(SessionId, Verdict)> =
        sessions(store)?.given_up.into_iter().filter(|(_, of)| of.life < life).collect();
    earlier.sort_unstable_by_key(|(_, of)| std::cmp::Reverse(of.life.0));
    for (session, _) in earlier.into_iter().skip(keep) {
        writes.delete(&key::verdict(session.0));
    }
    for session in missing {
        writes.delete(&key::presence(session.0));
        writes.put(&key::verdict(session.0), Verdict { life, joined: Joined(0) }.encode());
    }
    writes.put(&key::lives(), Lives { life: life.0, from: life.0, recorded: true }.encode());
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
        let lives = Lives { life: 0x0102_0304, from: 2, recorded: false };
        assert_eq!(&*lives.encode(), b"\x01\x04\x03\x02\x01\x02\0\0\0");
        assert_eq!(Lives::decode(&lives.encode()), Some(lives));
        let recorded = Lives { recorded: true, ..lives };
        assert_eq!(&*recorded.encode(), b"\x02\x04\x03\x02\x01\x02\0\0\0");
        assert_eq!(Lives::decode(&recorded.encode()), Some(recorded));
        assert_eq!(&*encode_presence(Presence::Locks), b"\x01\0");
        assert_eq!(&*encode_presence(Presence::Keeping), b"\x01\x01");
        assert_eq!(&*encode_presence(Presence::Writing), b"\x01\x02");
        let verdict = Verdict { life: Life(5), joined: Joined(0x0102) };
        assert_eq!(&*verdict.encode(), b"\x02\x05\0\0\0\x02\x01\0\0\0\0\0\0");
        assert_eq!(Verdict::decode(&verdict.encode()), Some(verdict));
        // As it was before.
        assert_eq!(Verdict::decode(b"\x01\x05\0\0\0"), Some(Verdict { joined: Joined(0), ..verdict }));
    }

    /// Goal: what is stored is a record or none, and nothing else. Method: fuzzing.
    #[test]
    fn fuzz_verdicts() {
        let good = [
            Lives { life: 9, from: 3, recorded: true }.encode().to_vec(),
            Verdict { life: Life(7), joined: Joined(8) }.encode().to_vec(),
            b"\x01\x05\0\0\0".to_vec(),
            encode_presence(Presence::Writing).to_vec(),
        ];
        fuzzing::fuzz("verdicts", &good, fuzzing::as_it_is, |bytes| {
            if let Some(lives) = Lives::decode(bytes) {
                assert_eq!(lives.encode(), bytes);
            }
            if let Some(verdict) = Verdict::decode(bytes).filter(|_| bytes[0] == VERSION_NUMBERED) {
                assert_eq!(verdict.encode(), bytes);
            }
            if let Some(has) = decode_presence(bytes) {
                assert_eq!(encode_presence(has), bytes);
            }
        });
    }
}
