//! Downward migration (paper, sections 6.1 and 6.2): what leaves a tier, when, and where to.
//!
//! - At or below C_n-m, counting what is about to be free, closed files leave (normal out); at or below C_f-m, or while
//!   writers wait, open ones leave too (forced out).
//! - A choice compares windows of [`crate::Settings::window`] objects from the heads of the LRU tables of clean and of
//!   dirty objects, and takes the coolest of those that can leave now. Forced out prefers closed files to open ones, and clean to dirty ones: dropping
//!   a copy frees memory at once. Transient objects leave only when forced, after the others of their state.
//! - Before all of them leaves what came up for a first reading (`probation.rs`).
//! - No more leaves than is lacking: a large file leaves in part, from its front, and is the first to go on.
//! - Destination: closed -> near-line; open, or forced -> SSD; and closed files through SSD too while memory is filled
//!   faster than near-line takes it. An object with nowhere to go rests, so that it does not hold up the next one.

use std::time::Duration;

use types::{SAU_BYTES, TierId, TierSet};

use crate::api::MoveKind;
use crate::coolness;
use crate::machine::{Tiering, class_of};
use crate::space::Pressure;
use crate::table::{Ob, Object};
use crate::unfinished::Start;

/// Time between two windows that make way, so that a tier with nowhere to move its files to costs little per input.
const MAKE_WAY: Duration = Duration::from_millis(10);

/// How an object can leave.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exit {
    Drop,
    Move(TierId),
}

struct Choice {
    ob: Ob,
    exit: Exit,
    coolness: f64,
}

impl Choice {
    fn better_than(&self, other: &Choice, prefer_drops: bool) -> bool {
        let drops = |c: &Choice| prefer_drops && c.exit == Exit::Drop;
        (drops(self), self.coolness) > (drops(other), other.coolness)
    }
}

impl Tiering {
    fn pressure(&self, tier: TierId) -> Pressure {
        let Some(space) = self.space(tier) else { return Pressure::None };
        let soon = space.available().saturating_add_unsigned(space.draining);
        let at_most = |level: u64| soon <= i64::try_from(level).unwrap_or(i64::MAX);
        let below = |need: u64| need > 0 && !at_least(soon, need.saturating_add(space.thresholds.s_w));
        if below(space.wait_most) || (at_most(space.thresholds.f_m) && space.limit > 0) || soon < 0 {
            Pressure::ForcedOut
        } else if at_most(space.thresholds.n_m) || below(space.asked) {
            Pressure::NormalOut
        } else {
            Pressure::None
        }
    }

    /// How much should leave: to a step above C_n-m, so that the next write does not begin the next movement, and to what is
    /// asked for; whole SAUs. A file that is larger leaves in part: emptying a tier for the last byte helps nobody.
    fn lacking(&self, tier: TierId) -> u64 {
        let Some(space) = self.space(tier) else { return u64::MAX };
        let at = space.thresholds;
        let step = (at.n_m - at.f_m).min(space.limit / 8).max(SAU_BYTES);
        let needed = space.wait_most.max(space.asked);
        let level = at.n_m.saturating_add(step).max(needed.saturating_add(at.s_w)).min(space.limit);
        let soon = space.available().saturating_add_unsigned(space.draining);
        let lack = i64::try_from(level).unwrap_or(i64::MAX).saturating_sub(soon);
        u64::try_from(lack).unwrap_or(0).next_multiple_of(SAU_BYTES).max(SAU_BYTES)
    }

    /// Starts movements out of `tier` until enough is on its way, or nothing more can start.
    pub(crate) fn evict(&mut self, tier: TierId) {
        if self.slower(tier).next().is_none() {
            return;
        }
        loop {
            let pressure = self.pressure(tier);
            if pressure == Pressure::None || self.space(tier).is_none_or(|s| s.stuck >= pressure) {
                return;
            }
            let forced = pressure == Pressure::ForcedOut;
            let resting = self.resting.len();
            let Some(choice) = self.choose(tier, forced) else {
                // If a window of homeless ones made way, the next input looks at those behind them.
                let made_way = self.resting.len() > resting;
                if let Some(space) = self.spaces[tier.index()].as_mut() {
                    space.stuck = if made_way { Pressure::None } else { pressure };
                }
                return;
            };
            let most = self.lacking(tier);
            match choice.exit {
                Exit::Drop => self.start_drop(choice.ob, tier, most),
                Exit::Move(to) => {
                    let kind = if forced { MoveKind::ForcedOut } else { MoveKind::NormalOut };
                    let (from, keep_source, then) = (tier, false, TierSet::EMPTY);
                    self.start(choice.ob, Start { from, to, kind, keep_source, request: None, then, most });
                }
            }
        }
    }

    fn choose(&mut self, tier: TierId, forced: bool) -> Option<Choice> {
        // Also of open files: near-line has what was only read.
        if let Some(ob) = self.first_on_probation(tier) {
            return Some(Choice { ob, exit: Exit::Drop, coolness: f64::INFINITY });
        }
        // (open, transient), in the order in which they have to go.
        let parts: &[(bool, bool)] = if forced {
            &[(false, false), (false, true), (true, false), (true, true)]
        } else {
            &[(false, false)]
        };
        parts.iter().find_map(|(open, transient)| self.choose_in(tier, *open, *transient, forced))
    }

    fn choose_in(&mut self, tier: TierId, open: bool, transient: bool, forced: bool) -> Option<Choice> {
        let (mut best, mut homeless) = (None::<Choice>, Vec::new());
        for dirty in [false, true] {
            self.look(tier, open, (transient, dirty), &mut |ob, coolness, object| {
                let Some(exit) = self.exit(object, tier, forced) else {
                    homeless.push(ob);
                    return;
                };
                let choice = Choice { ob, exit, coolness };
                if best.as_ref().is_none_or(|b| choice.better_than(b, forced)) {
                    best = Some(choice);
                }
            });
        }
        let may_make_way = self.now >= self.made_way + MAKE_WAY || self.made_way.is_zero();
        if best.is_none()
            && homeless.len() >= self.settings.window
            && may_make_way
            && self.has_some_room(tier)
        {
            // A whole window of files too large for the room there is: let the ones behind them come forward.
            self.made_way = self.now;
            homeless.into_iter().for_each(|ob| self.rest(ob, Object::HOMELESS, Duration::from_secs(5), 0));
        }
        best
    }

    /// Shows the window at the head of one part of one list.
    fn look(
        &self,
        tier: TierId,
        open: bool,
        (transient, dirty): (bool, bool),
        see: &mut dyn FnMut(Ob, f64, &Object),
    ) {
        let (now_us, window) = (self.now_us(), self.settings.window.max(1));
        let list = &self.lists[tier.index()][class_of(transient, dirty)];
        if open {
            for (place, (ob, object)) in list.open_part(&self.table).enumerate().take(window) {
                let rank = u32::try_from(list.open.saturating_sub(place as u64)).unwrap_or(u32::MAX);
                see(ob, coolness::report(object, now_us, Some(rank)).value, object);
            }
        } else {
            for (ob, object) in list.closed_part(&self.table).take(window) {
                see(ob, coolness::report(object, now_us, None).value, object);
            }
        }
    }

    /// Is there a slower tier with a slot and some room?
    fn has_some_room(&self, from: TierId) -> bool {
        let takes = |to: &TierId| {
            self.free_slot(MoveKind::NormalOut, *to) && self.space(*to).is_some_and(|s| s.fits(1))
        };
        self.slower(from).any(|to| takes(&to))
    }

    /// How the object can leave `tier` now, if it can.
    fn exit(&self, object: &Object, tier: TierId, forced: bool) -> Option<Exit> {
        if !object.dirty.contains(tier) {
            return self.free_drop().then_some(Exit::Drop);
        }
        let most = self.lacking(tier);
        let takes = |to: TierId| {
            let bytes = self.estimate(object, tier, to).min(most);
            self.free_slot(MoveKind::NormalOut, to) && self.space(to).is_some_and(|s| s.fits(bytes))
        };
        let mut slower = self.preferred(self.slower(tier));
        if object.is_open() || forced || slower.len() < 2 || slower.first() > slower.last() {
            return slower.into_iter().find(|to| takes(*to)).map(Exit::Move);
        }
        let through_ssd = self.space(slower[0]).is_some_and(|s| s.fits_easily(object.holds(tier).min(most)));
        if !through_ssd {
            slower.remove(0);
        } else if !self.nearline_behind(tier) {
            slower.reverse();
        }
        slower.into_iter().find(|to| takes(*to)).map(Exit::Move)
    }

    /// Is `tier` filled faster than near-line takes it?
    fn nearline_behind(&self, tier: TierId) -> bool {
        let index = TierId::Nearline.index();
        let takes = self.measured.mover[index] * self.settings.parallel[index].max(1) as f64;
        self.space(tier).is_some_and(|s| s.in_rate > takes)
    }
}

fn at_least(available: i64, need: u64) -> bool {
    available >= i64::try_from(need).unwrap_or(i64::MAX)
}
