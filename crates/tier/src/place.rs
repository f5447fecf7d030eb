//! Admission of writes that need new space (paper, section 5.2; DESIGN section 5).
//!
//! A write goes to the fastest tier that has its bytes above C_s-w. Where that tier is full, it waits for it only if
//! movement under way is expected to make the room within [`crate::Settings::write_wait_max`], counted over all its waits;
//! otherwise it flows on to the next tier. An object that has an eighth of the tier already is a stream: it flows on at
//! once, since waiting would push everyone else's files out in front of it and go no faster. Out of memory it flows on to
//! the SSD as soon as memory is at C_n-m: what it put there beyond that would be moved out again at once, and written twice. Only when every tier is
//! full does a write wait for longer, as long as anything moves; with nothing moving it is `NoSpace`
//! (I-TIER-5). A tier of [`crate::Settings::movements_only`] is none that a write can go to; with one, an object that is
//! tried again in a moment counts as moving.

use std::time::Duration;

use types::TierId;

use crate::api::{Admit, Need, Placement, Time};
use crate::machine::Tiering;
use crate::table::{Ob, Object};

/// When every tier is full, writers ask again at least this often.
const FULL_POLL: Duration = Duration::from_secs(1);

impl Tiering {
    /// A write that needs new space in any tier. Counts it as stored when the answer is a tier. Drain effects after it.
    pub fn place(&mut self, now: Time, need: Need) -> Placement {
        self.advance(now);
        let ob = self.table.ensure(need.ino, self.now_us());
        let tiers: Vec<TierId> = self.order(ob, need.sync);
        for (i, tier) in tiers.iter().copied().enumerate() {
            let next = tiers.get(i + 1).copied();
            let stream = next.is_some() && self.is_stream(ob, tier);
            if stream && self.flows_on(ob, tier, next, need.bytes) {
                continue;
            }
            if self.charge(ob, tier, need.bytes) {
                return Placement::Tier(tier);
            }
            let left = self.settings.write_wait_max.saturating_sub(need.waited);
            if left.is_zero() || stream {
                continue;
            }
            self.press(tier, need.bytes);
            if self.charge(ob, tier, need.bytes) {
                return Placement::Tier(tier);
            }
            if self.expected(tier, need.bytes).is_some_and(|time| time <= left) {
                self.wait_for(tier, need.bytes);
                return Placement::Wait { tier, for_at_most: left };
            }
        }
        self.last_resort(&tiers, need.bytes)
    }

    /// A write that needs new space in one given tier. Counts it as stored when the answer is yes. Drain effects after
    /// it.
    pub fn admit(&mut self, now: Time, tier: TierId, need: Need) -> Admit {
        self.advance(now);
        if self.settings.movements_only.contains(tier) {
            return Admit::Full;
        }
        let ob = self.table.ensure(need.ino, self.now_us());
        if self.charge(ob, tier, need.bytes) {
            return Admit::Yes;
        }
        match self.last_resort(&[tier], need.bytes) {
            Placement::Tier(_) => Admit::Yes,
            Placement::Wait { for_at_most, .. } => Admit::Wait { for_at_most },
            Placement::NoSpace => Admit::Full,
        }
    }

    /// The tiers a write may go to, in order. A synchronous one goes to a persistent tier first: it would have to be
    /// copied there before its answer. A transient object promises nothing, so its writes stay fast.
    fn order(&self, ob: Ob, sync: bool) -> Vec<TierId> {
        let takes =
            |t: &TierId| self.spaces[t.index()].is_some() && !self.settings.movements_only.contains(*t);
        let all = TierId::ALL.into_iter().filter(takes);
        let transient = self.table.get(ob).is_some_and(|o| o.has(Object::TRANSIENT));
        if sync && !transient {
            let (first, last): (Vec<TierId>, Vec<TierId>) = all.partition(|t| t.is_persistent());
            return self.preferred(first.into_iter()).into_iter().chain(last).collect();
        }
        self.preferred(all)
    }

    /// Counts the bytes as stored and dirty, if they fit.
    fn charge(&mut self, ob: Ob, tier: TierId, bytes: u64) -> bool {
        let Some(space) = self.spaces[tier.index()].as_mut().filter(|s| s.fits(bytes)) else { return false };
        if self.table.get(ob).is_none() {
            return false;
        }
        space.used += bytes;
        space.came += bytes;
        self.table.change_held(ob, tier, bytes.cast_signed());
        // New bytes have no copy anywhere; were it not said here, the eviction below could drop them.
        self.set_dirty(ob, tier);
        self.relink(ob);
        self.evict(tier);
        true
    }

    fn is_stream(&self, ob: Ob, tier: TierId) -> bool {
        let held = self.table.get(ob).map_or(0, |o| o.holds(tier));
        self.space(tier).is_some_and(|s| held > s.limit / 8)
    }

    /// Does a stream leave the rest of this tier to others? Only where the next tier is nearly as fast and has room, and the
    /// object would have to go there anyway.
    fn flows_on(&self, ob: Ob, tier: TierId, next: Option<TierId>, bytes: u64) -> bool {
        let stays = |o: &Object| o.has(Object::TRANSIENT) || o.pinned.contains(tier);
        tier == TierId::Memory
            && next == Some(TierId::Ssd)
            && self.space(tier).is_some_and(|s| !s.fits_easily(bytes))
            && self.space(TierId::Ssd).is_some_and(|s| s.fits(bytes))
            && self.table.get(ob).is_some_and(|o| !stays(o))
    }

    /// Starts what can make room for `bytes`, as if a writer waited for it.
    fn press(&mut self, tier: TierId, bytes: u64) {
        let Some(space) = self.spaces[tier.index()].as_mut() else { return };
        let before = space.wait_most;
        space.wait_most = before.max(bytes);
        self.evict(tier);
        if let Some(space) = self.spaces[tier.index()].as_mut() {
            space.wait_most = before;
        }
    }

    fn wait_for(&mut self, tier: TierId, bytes: u64) {
        if let Some(space) = self.spaces[tier.index()].as_mut() {
            space.wait_for(bytes);
        }
    }

    /// When `bytes` should fit, from what is under way and how fast it goes; `None` when that is not enough.
    fn expected(&self, tier: TierId, bytes: u64) -> Option<Duration> {
        let space = self.space(tier)?;
        let lack = i128::from(bytes) + i128::from(space.thresholds.s_w) - i128::from(space.available());
        let lack = u64::try_from(lack).unwrap_or(0);
        if space.draining < lack {
            return None;
        }
        let drains = |m: &&crate::unfinished::Move| m.from == tier && m.draining > 0;
        // A drop takes no time to speak of.
        let dropped: u64 =
            self.moves.values().filter(drains).filter(|m| m.kind.is_none()).map(|m| m.draining).sum();
        let lack = lack.saturating_sub(dropped);
        // Movements into one tier share its bandwidth less than they add to it; each counts as measured alone.
        let rate: f64 = self
            .moves
            .values()
            .filter(drains)
            .filter(|m| m.kind.is_some())
            .map(|m| self.measured.mover[m.to.index()])
            .sum();
        if lack == 0 {
            return Some(Duration::ZERO);
        }
        Duration::try_from_secs_f64(lack as f64 / rate.max(1.0)).ok()
    }

    /// Every tier is full: wait as long as something moves.
    fn last_resort(&mut self, tiers: &[TierId], bytes: u64) -> Placement {
        for tier in tiers {
            self.press(*tier, bytes);
        }
        self.pump_copies();
        let draining = |t: &TierId| self.space(*t).is_some_and(|s| s.draining > 0);
        let possible = |t: &TierId| self.space(*t).is_some_and(|s| s.limit >= bytes);
        let tier = tiers.iter().copied().filter(possible).find(draining);
        // A movement that drains nothing (a copy, a promotion) holds room, or makes something droppable.
        let moves = !self.moves.is_empty() || self.leaves_soon();
        let tier = tier.or_else(|| tiers.iter().copied().find(possible).filter(|_| moves));
        match tier {
            Some(tier) => {
                self.wait_for(tier, bytes);
                Placement::Wait { tier, for_at_most: FULL_POLL }
            }
            None => Placement::NoSpace,
        }
    }
}
