//! Decides all movement of data between the tiers of one data server. (Signatures first; bodies follow.)
#![forbid(unsafe_code)]

mod api;

pub use api::*;
use types::{Ino, SAU_BYTES, TierId};

/// Would a read or write at `offset`, after one in SAU `last` (if any), move an open file to the tail of the LRU table?
/// If so, the SAU to remember.
pub fn touch_counts(offset: u64, last: Option<u32>) -> Option<u32> {
    let sau = u32::try_from(offset / SAU_BYTES).unwrap_or(u32::MAX);
    (offset % SAU_BYTES < 1 << 20 && last != Some(sau)).then_some(sau)
}

/// The machine.
pub struct Tiering {
    _settings: Settings,
}

impl Tiering {
    pub fn new(settings: Settings) -> Tiering {
        Tiering { _settings: settings }
    }
    /// One input. Afterwards: drain [`Self::poll_effect`].
    pub fn handle(&mut self, _now: Time, _input: Input) {
        todo!()
    }
    /// A write that needs new space in any tier. Counts it as stored when the answer is a tier. Drain effects after it.
    pub fn place(&mut self, _now: Time, _need: Need) -> Placement {
        todo!()
    }
    /// A write that needs new space in one given tier. Counts it as stored when the answer is yes. Drain effects after it.
    pub fn admit(&mut self, _now: Time, _tier: TierId, _need: Need) -> Admit {
        todo!()
    }
    /// When [`Self::handle_deadline`] should next be called, unless something else happens before.
    pub fn next_deadline(&self) -> Option<(Time, Why)> {
        todo!()
    }
    pub fn handle_deadline(&mut self, _now: Time) {
        todo!()
    }
    pub fn poll_effect(&mut self) -> Option<Effect> {
        todo!()
    }
    /// For `onfs file`. `None`: no record, so nothing of it is in a tier that data can leave.
    pub fn coolness(&self, _ino: Ino, _now: Time) -> Option<CoolnessReport> {
        todo!()
    }
    /// `None`: there is no such tier.
    pub fn tier(&self, _tier: TierId) -> Option<TierReport> {
        todo!()
    }
    /// Movements and drops under way, oldest first.
    pub fn moves(&self) -> impl Iterator<Item = MoveReport> + '_ {
        std::iter::empty()
    }
    /// Objects with bytes that are only in memory, and how many bytes were so at their last close.
    pub fn dirty(&self) -> (u64, u64) {
        todo!()
    }
}
