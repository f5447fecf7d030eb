//! Slots in messages: as runs of those that follow each other.

use prost::Message;
use types::SLOTS;

use crate::Bad;

/// Slots that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Run {
    #[prost(uint32, tag = "1")]
    pub first: u32,
    #[prost(uint32, tag = "2")]
    pub count: u32,
}

/// Of slots, as few as can be.
pub fn runs(slots: impl IntoIterator<Item = u16>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for slot in slots.into_iter().map(u32::from) {
        match runs.last_mut() {
            Some(run) if run.first + run.count == slot => run.count += 1,
            Some(_) | None => runs.push(Run { first: slot, count: 1 }),
        }
    }
    runs
}

/// The slots of runs that were checked.
pub fn slots(runs: &[Run]) -> Vec<u16> {
    let of = |run: &Run| run.first..run.first.saturating_add(run.count).min(SLOTS);
    runs.iter().flat_map(of).filter_map(|slot| u16::try_from(slot).ok()).collect()
}

pub(crate) fn in_order(runs: &[Run]) -> Result<(), Bad> {
    let mut next = 0;
    for run in runs {
        let end = run.first.checked_add(run.count).filter(|end| *end <= SLOTS);
        match end {
            Some(end) if run.first >= next && run.count > 0 => next = end,
            Some(_) | None => return Err(Bad::Range("slots")),
        }
    }
    Ok(())
}
