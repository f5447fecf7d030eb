//! Copies of what is read from below, and who makes way for them (2Q: Johnson and Shasha, VLDB 1994).
//!
//! - What comes up because somebody reads it is on probation. It leaves before everything that was read again or written, the
//!   oldest first, from its front; so who reads more than a tier holds, once, takes nothing of what others use.
//! - It is off probation when it is opened again, read a second time, or written.
//! - What left on probation is remembered, as much of it as half of the tier: what is read again within that time comes up without
//!   probation. So a tier that is full of what was in use once can become another's.
//! - Of a tier that is full of other things an eighth is for what is on probation: the coolest of the clean closed files make way.
//! - A copy counts as stored at once, and as clean: it is one of what a slower tier has.

use types::{Ino, SAU_BYTES, TierId};

use crate::api::Time;
use crate::coolness;
use crate::machine::{PROBATION, Tiering, class_of};
use crate::table::{NIL, Ob, Object};

/// Of a tier's limit.
const SHARE: u64 = 8;
/// Drops that one copy may begin: where small files make way for a large one, the next copy begins the others.
const DROPS: usize = 16;

/// Where a copy of what a slower tier has can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Counted as stored there already.
    Here(TierId),
    /// Ask again in a moment: something makes way.
    Soon(TierId),
    /// Nowhere, for now.
    None,
}

impl Tiering {
    /// A copy of `bytes` that a slower tier has, for an object that is being read: in the fastest tier that could have half of its
    /// `whole` at once, else in the fastest. Only above C_n-m; what is on probation makes way. Drain effects after it.
    pub fn place_copy(&mut self, now: Time, ino: Ino, (bytes, whole): (u64, u64)) -> Room {
        self.advance(now);
        let ob = self.table.find(ino).unwrap_or(NIL);
        if self.table.get(ob).is_none() {
            return Room::None;
        }
        let takes = |t: &TierId| self.space(*t).is_some() && !self.settings.movements_only.contains(*t);
        let tiers: Vec<TierId> = [TierId::Memory, TierId::Ssd].into_iter().filter(takes).collect();
        let large = |t: &TierId| self.space(*t).is_some_and(|s| s.limit / 2 >= whole);
        let Some(tier) = tiers.iter().copied().find(large).or(tiers.first().copied()) else {
            return Room::None;
        };
        if !self.space(tier).is_some_and(|s| s.fits_easily(bytes)) {
            return self.make_way(tier, ob, bytes);
        }
        let is_new = |object: &Object| tiers.iter().all(|t| object.holds(*t) == 0);
        if self.table.get(ob).is_some_and(is_new) {
            let remembered = self.remembered.contains(ino);
            self.set_probation(ob, !remembered);
        }
        self.hold_copy(ino, tier, bytes);
        // In time for the next ones.
        if !self.space(tier).is_some_and(|s| s.fits_easily(4 * SAU_BYTES)) {
            self.make_way(tier, ob, 4 * SAU_BYTES);
        }
        Room::Here(tier)
    }

    /// Begins what makes room for `bytes` above C_n-m, for a copy of `ob`.
    fn make_way(&mut self, tier: TierId, ob: Ob, bytes: u64) -> Room {
        let mut began = 0;
        loop {
            let Some(space) = self.space(tier) else { return Room::None };
            let (limit, n_m) = (space.limit, space.thresholds.n_m);
            let soon = space.available().saturating_add_unsigned(space.draining);
            let wanted = i64::try_from(n_m.saturating_add(bytes)).unwrap_or(i64::MAX);
            if soon > wanted {
                return Room::Soon(tier);
            }
            let on_probation = self.table.on_probation(tier);
            let chosen = self.oldest_on_probation(tier, (ob, limit / SHARE));
            let chosen =
                chosen.or_else(|| if on_probation < limit / SHARE { self.coolest_clean(tier) } else { None });
            let Some(chosen) = chosen.filter(|_| began < DROPS) else {
                return if began > 0 { Room::Soon(tier) } else { Room::None };
            };
            let lacks = u64::try_from(wanted.saturating_sub(soon)).unwrap_or(0).next_multiple_of(SAU_BYTES);
            self.start_drop(chosen, tier, lacks.max(SAU_BYTES) + SAU_BYTES);
            began += 1;
        }
    }

    /// What is first to leave of what is on probation: closed files in the order in which they were closed, then open ones. The
    /// object `own` keeps a share of the tier.
    fn oldest_on_probation(&self, tier: TierId, (own, share): (Ob, u64)) -> Option<Ob> {
        if !self.free_drop() {
            return None;
        }
        let list = &self.lists[tier.index()][PROBATION];
        let leaves = |(ob, object): &(Ob, &Object)| *ob != own || object.holds(tier) > share;
        let closed = list.closed_part(&self.table).take(2).find(leaves);
        closed.or_else(|| list.open_part(&self.table).take(2).find(leaves)).map(|(ob, _)| ob)
    }

    /// As `oldest_on_probation`, for whatever needs room.
    pub(crate) fn first_on_probation(&self, tier: TierId) -> Option<Ob> {
        self.oldest_on_probation(tier, (NIL, 0))
    }

    /// The coolest of the closed files that have copies in slower tiers.
    fn coolest_clean(&self, tier: TierId) -> Option<Ob> {
        if !self.free_drop() {
            return None;
        }
        let now_us = self.now_us();
        let list = &self.lists[tier.index()][class_of(false, false)];
        let window = list.closed_part(&self.table).take(self.settings.window.max(1));
        let with = window.map(|(ob, object)| (ob, coolness::report(object, now_us, None).value));
        with.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(ob, _)| ob)
    }

    pub(crate) fn hold_copy(&mut self, ino: Ino, tier: TierId, bytes: u64) {
        let Some(ob) = self.table.find(ino) else { return };
        if let Some(space) = self.spaces[tier.index()].as_mut() {
            space.used += bytes;
        }
        self.table.change_held(ob, tier, bytes.cast_signed());
        self.relink(ob);
    }

    /// It was read a second time.
    pub(crate) fn read_again(&mut self, ino: Ino) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        self.set_probation(ob, false);
        self.relink(ob);
    }

    /// The caller relinks.
    pub(crate) fn set_probation(&mut self, ob: Ob, on: bool) {
        if self.table.get(ob).is_some_and(|object| object.has(Object::PROBATION) != on) {
            self.unlink(ob);
            self.table.set_probation(ob, on);
        }
    }

    /// Something of it left a tier; if it was the last of it in tiers of ours, it is remembered.
    pub(crate) fn note_left(&mut self, ob: Ob) {
        let Some(object) = self.table.get(ob) else { return };
        let kept = object.holds(TierId::Memory) + object.holds(TierId::Ssd);
        if object.has(Object::PROBATION) && kept == 0 {
            let (ino, bytes) = (object.ino, object.holds(TierId::Nearline));
            let limits = [TierId::Memory, TierId::Ssd].map(|t| self.space(t).map_or(0, |s| s.limit));
            let most = limits.into_iter().max().unwrap_or(0) / 2;
            self.set_probation(ob, false);
            self.remembered.add(ino, bytes, most);
        }
    }
}
