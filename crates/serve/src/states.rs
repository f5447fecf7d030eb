//! Which state directory the number of each data server stands for: who comes with the number and another one has none of its data.
//!
//! - I-STATE-1: the first that reports under a number has it until the node is removed, across restarts of this server.
//!
//! Record, version 1 (`docs/data-model.md`), under the key `0, E, node`: version u8 | the 16 bytes that name the state.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use kv::{MetaStore, WriteSet};
use namespace::{key, txn::KvError};
use parking_lot::Mutex;

const VERSION: u8 = 1;

pub(crate) type StateId = [u8; 16];

/// What is to be said of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Right,
    /// The number is another's. `news`: this one was not refused before.
    Other {
        news: bool,
    },
}

pub(crate) struct States {
    store: Arc<MetaStore>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    of: BTreeMap<u64, StateId>,
    /// The last that was refused under each number.
    refused: BTreeMap<u64, StateId>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum StatesError {
    #[error(transparent)]
    Store(#[from] KvError),
    #[error("the record of which state a data server has cannot be read")]
    Damaged,
}

fn encode(state: &StateId) -> Bytes {
    let mut bytes = vec![VERSION];
    bytes.extend(state);
    bytes.into()
}

fn decode(bytes: &[u8]) -> Option<StateId> {
    let [VERSION, state @ ..] = bytes else { return None };
    state.try_into().ok()
}

impl States {
    pub fn load(store: Arc<MetaStore>) -> Result<States, StatesError> {
        let (mut of, mut damaged) = (BTreeMap::new(), false);
        store.scan(&key::state_start(), &key::state_end(), &mut |key, value| {
            let node = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
            match node.zip(decode(value)) {
                Some((node, state)) => drop(of.insert(node, state)),
                None => damaged = true,
            }
            ControlFlow::Continue(())
        })?;
        if damaged {
            return Err(StatesError::Damaged);
        }
        Ok(States { store, known: Mutex::new(Known { of, ..Known::default() }) })
    }

    /// Durable when it returns. Who does not say which state it has is believed.
    pub fn who(&self, node: u64, state: &[u8]) -> Result<Who, KvError> {
        let Ok(state) = StateId::try_from(state) else { return Ok(Who::Right) };
        let mut known = self.known.lock();
        match known.of.get(&node) {
            Some(of) if *of == state => Ok(Who::Right),
            Some(_) => Ok(Who::Other { news: known.refused.insert(node, state) != Some(state) }),
            None => {
                let mut writes = WriteSet::new();
                writes.use_reserve();
                writes.put(&key::state(node), encode(&state));
                self.store.commit(writes)?;
                self.store.sync()?;
                known.of.insert(node, state);
                Ok(Who::Right)
            }
        }
    }

    /// Has there been a data server with this number, in whichever life of this one?
    pub fn knows(&self, node: u64) -> bool {
        self.known.lock().of.contains_key(&node)
    }

    /// The number stands for nothing any more. What is not stored is forgotten by the next removal.
    pub fn forget(&self, node: u64) -> Result<(), KvError> {
        let mut known = self.known.lock();
        if known.of.remove(&node).is_none() {
            return Ok(());
        }
        let mut writes = WriteSet::new();
        writes.use_reserve();
        writes.delete(&key::state(node));
        self.store.commit(writes).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        assert_eq!(&encode(&[7; 16])[..], &[1, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(decode(&encode(&[7; 16])), Some([7; 16]));
    }

    /// Goal: what is stored is a state or none. Method: fuzzing.
    #[test]
    fn fuzz_state() {
        let good = [encode(&[1; 16]).to_vec(), encode(&[255; 16]).to_vec()];
        fuzzing::fuzz("state", &good, fuzzing::as_it_is, |bytes| {
            if let Some(state) = decode(bytes) {
                assert_eq!(&encode(&state)[..], bytes);
            }
        });
    }
}
