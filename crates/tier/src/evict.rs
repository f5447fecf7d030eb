//! Downward migration (paper, sections 6.1 and 6.2): what leaves a tier, when, and where to.
//!
//! - At or below C_n-m, counting what is about to be free, closed files leave (normal out); at or below C_f-m, or while
//!   writers wait, open ones leave too (forced out).
//! - A choice compares a window of [`crate::Settings::window`] objects from the head of the LRU table and takes the
//!   coolest of those that can leave now. Forced out prefers closed files to open ones, and clean to dirty ones: dropping
//!   a copy frees memory at once. Transient objects leave only when forced, after the others of their state.
//! - Destination: closed -> near-line; open, or forced -> SSD; and closed files through SSD too while memory is filled
//!   faster than near-line takes it. An object with nowhere to go rests, so that it does not hold up the next one.

use std::time::Duration;

use types::{TierId, TierSet};

use crate::api::MoveKind;
use crate::coolness;
use crate::machine::Tiering;
use crate::movement::Start;
use crate::table::{Ob, Object};

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

/// How much a tier has to free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pressure {
    None,
    NormalOut,
    ForcedOut,
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

    /// Starts movements out of `tier` until enough is on its way, or nothing more can start.
    pub(crate) fn evict(&mut self, tier: TierId) {
        if self.slower(tier).next().is_none() {
            return;
        }
        loop {
            let pressure = self.pressure(tier);
            if pressure == Pressure::None || self.space(tier).is_none_or(|s| s.stuck) {
                return;
            }
            let forced = pressure == Pressure::ForcedOut;
            let Some(choice) = self.choose(tier, forced) else {
                if let Some(space) = self.spaces[tier.index()].as_mut() {
                    space.stuck = true;
                }
                return;
            };
            match choice.exit {
                Exit::Drop => self.start_drop(choice.ob, tier),
                Exit::Move(to) => {
                    let kind = if forced { MoveKind::ForcedOut } else { MoveKind::NormalOut };
                    let (from, keep_source, then) = (tier, false, TierSet::EMPTY);
                    self.start(choice.ob, Start { from, to, kind, keep_source, request: None, then });
                }
            }
        }
    }

    fn choose(&mut self, tier: TierId, forced: bool) -> Option<Choice> {
        // (open, transient), in the order in which they have to go.
        let parts: &[(bool, bool)] = if forced {
            &[(false, false), (false, true), (true, false), (true, true)]
        } else {
            &[(false, false)]
        };
        parts.iter().find_map(|(open, transient)| self.choose_in(tier, *open, *transient, forced))
    }

    fn choose_in(&mut self, tier: TierId, open: bool, transient: bool, forced: bool) -> Option<Choice> {
        let now_us = self.now_us();
        let list = &self.lists[tier.index()][usize::from(transient)];
        let (mut best, mut homeless) = (None::<Choice>, Vec::new());
        let mut consider = |(place, (ob, object)): (usize, (Ob, &Object))| {
            let Some(exit) = self.exit(object, tier, forced) else {
                homeless.push(ob);
                return;
            };
            let rank =
                open.then(|| u32::try_from(list.open.saturating_sub(place as u64)).unwrap_or(u32::MAX));
            let coolness = coolness::report(object, now_us, rank).value;
            let choice = Choice { ob, exit, coolness };
            if best.as_ref().is_none_or(|b| choice.better_than(b, forced)) {
                best = Some(choice);
            }
        };
        let window = self.settings.window.max(1);
        if open {
            list.open_part(&self.table).enumerate().take(window).for_each(&mut consider);
        } else {
            list.closed_part(&self.table).enumerate().take(window).for_each(&mut consider);
        }
        if best.is_none() && homeless.len() >= window && self.has_some_room(tier) {
            // A whole window of files too large for the room there is: let the ones behind them come forward.
            homeless.into_iter().for_each(|ob| self.rest(ob, Duration::from_secs(5), 0));
        }
        best
    }

    /// Is there a slower tier with a slot and room for a file of mean size?
    fn has_some_room(&self, from: TierId) -> bool {
        let mean = self.measured.file_bytes as u64;
        let takes = |to: &TierId| {
            self.free_slot(MoveKind::NormalOut, *to) && self.space(*to).is_some_and(|s| s.fits(mean))
        };
        self.slower(from).any(|to| takes(&to))
    }

    /// How the object can leave `tier` now, if it can.
    fn exit(&self, object: &Object, tier: TierId, forced: bool) -> Option<Exit> {
        if !object.dirty.contains(tier) {
            return self.free_drop().then_some(Exit::Drop);
        }
        let takes = |to: TierId| {
            let bytes = self.estimate(object, tier, to);
            self.free_slot(MoveKind::NormalOut, to) && self.space(to).is_some_and(|s| s.fits(bytes))
        };
        let mut slower: Vec<TierId> = self.slower(tier).collect();
        if object.is_open() || forced || slower.len() < 2 {
            return slower.into_iter().find(|to| takes(*to)).map(Exit::Move);
        }
        let through_ssd = self.space(slower[0]).is_some_and(|s| s.fits_easily(object.holds(tier)));
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
