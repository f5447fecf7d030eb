//! The engine's rows of slots.

use std::collections::BTreeMap;

use types::Slot;

/// Takes and gives back slots for the store that this server commits to. Errors are for people.
pub trait SlotRights: Send + Sync + 'static {
    /// Takes those that are nobody's. Returns all of the asked ones that are ours then, with their epochs.
    fn take_free(&self, slots: &[u16]) -> Result<BTreeMap<u16, u64>, String>;
    /// What was committed in them is in the engine.
    fn release(&self, slots: &[u16]) -> Result<(), String>;
    fn ours(&self) -> BTreeMap<u16, u64>;
}

pub(super) fn as_slots(numbers: &[u16]) -> Vec<Slot> {
    numbers.iter().filter_map(|n| Slot::new(*n)).collect()
}
