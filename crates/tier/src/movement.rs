//! Movements under way: starting, cancelling and ending them, and what they hold meanwhile.
//!
//! I-TIER-2: an object is in one movement at most. I-TIER-3: what a movement will store is reserved at its start, so
//! writers and movements together never exceed a limit.

use std::time::Duration;

use types::{TierId, TierSet};

use crate::api::{Effect, MoveFailure, MoveId, MoveKind};
use crate::machine::{Tiering, Timer};
use crate::table::{NIL, Ob, Object};
use crate::unfinished::{Move, Rest, Start};

/// Drops under way at once: each is short, but answers come back one by one.
pub const DROPS_MAX: usize = 64;
/// How long an object rests that was in use.
const BUSY_PAUSE_S: u64 = 1;

/// Movements that share a bound. Each has its own, so that none keeps another from running.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Out,
    Copy,
    Up,
}

fn group(kind: MoveKind) -> Group {
    match kind {
        MoveKind::NormalOut | MoveKind::ForcedOut => Group::Out,
        MoveKind::WriteBehind => Group::Copy,
        MoveKind::Promote | MoveKind::Request => Group::Up,
    }
}

impl Tiering {
    pub(crate) fn move_of(&self, ob: Ob) -> Option<(MoveId, &Move)> {
        if !self.table.get(ob)?.has(Object::MOVING) {
            return None;
        }
        self.moves.iter().find(|(_, m)| m.ob == ob).map(|(id, m)| (*id, m))
    }

    /// May one more movement of this kind into `to` start?
    pub(crate) fn free_slot(&self, kind: MoveKind, to: TierId) -> bool {
        let same = |m: &&Move| m.to == to && m.kind.is_some_and(|k| group(k) == group(kind));
        self.moves.values().filter(same).count() < self.settings.parallel[to.index()].max(1)
    }

    /// Is an object to be tried again in a moment that did not leave, since it was written or in use? Where no new bytes can go
    /// behind it that is a movement as good as under way: writers wait for it.
    pub(crate) fn leaves_soon(&self) -> bool {
        let soon = |rest: &Rest| {
            rest.failures == 0
                && rest.until > self.now
                && rest.until <= self.now + Duration::from_secs(BUSY_PAUSE_S)
        };
        !self.settings.movements_only.is_empty() && self.resting.values().any(soon)
    }

    pub(crate) fn free_drop(&self) -> bool {
        self.moves.values().filter(|m| m.kind.is_none()).count() < DROPS_MAX
    }

    /// Bytes that a movement would add to `to`: nothing when `to` alone has the copies that make `from` clean.
    pub(crate) fn estimate(&self, object: &Object, from: TierId, to: TierId) -> u64 {
        let clean = to > from && !object.dirty.contains(from);
        let elsewhere = self.slower(from).any(|t| t != to && object.holds(t) > 0);
        let covered = clean && !elsewhere && object.holds(to) >= object.holds(from);
        if covered { 0 } else { object.holds(from) }
    }

    pub(crate) fn start(&mut self, ob: Ob, start: Start) -> MoveId {
        let id = MoveId(self.next_move);
        let Some(object) = self.table.get(ob) else { return id };
        debug_assert!(!object.has(Object::MOVING), "I-TIER-2");
        self.next_move += 1;
        let Start { from, to, kind, keep_source, request, then, most } = start;
        let bytes = self.estimate(object, from, to).min(most);
        let draining = if keep_source { 0 } else { object.holds(from).min(most) };
        let ino = object.ino;
        self.hold(
            id,
            Move {
                ob,
                ino,
                from,
                to,
                kind: Some(kind),
                keep_source,
                bytes,
                reserved: bytes,
                draining,
                started: self.now,
                cancelled: false,
                request,
                then,
            },
        );
        self.effects.push_back(Effect::StartMove { id, ino, from, to, kind, keep_source, most });
        id
    }

    pub(crate) fn start_drop(&mut self, ob: Ob, tier: TierId, most: u64) {
        let Some(object) = self.table.get(ob) else { return };
        let (id, ino, bytes) = (MoveId(self.next_move), object.ino, object.holds(tier).min(most));
        self.next_move += 1;
        self.hold(
            id,
            Move {
                ob,
                ino,
                from: tier,
                to: tier,
                kind: None,
                keep_source: false,
                bytes,
                reserved: 0,
                draining: bytes,
                started: self.now,
                cancelled: false,
                request: None,
                then: TierSet::EMPTY,
            },
        );
        self.effects.push_back(Effect::DropCopy { id, ino, tier, most });
    }

    fn hold(&mut self, id: MoveId, m: Move) {
        if let Some(space) = self.spaces[m.to.index()].as_mut() {
            space.reserved += m.reserved;
        }
        if let Some(space) = self.spaces[m.from.index()].as_mut() {
            space.draining += m.draining;
        }
        self.disarm_copy(m.ob);
        if let Some(object) = self.table.get_mut(m.ob) {
            object.set(Object::MOVING, true);
        }
        self.relink(m.ob);
        self.moves.insert(id, m);
    }

    pub(crate) fn cancel_move_of(&mut self, ob: Ob) {
        if let Some((id, _)) = self.move_of(ob) {
            self.cancel_move(id);
        }
    }

    /// A drop is over before it could be stopped; it is left alone.
    pub(crate) fn cancel_move(&mut self, id: MoveId) {
        let Some(m) = self.moves.get_mut(&id) else { return };
        if m.kind.is_some() && !m.cancelled {
            m.cancelled = true;
            self.effects.push_back(Effect::CancelMove { id });
        }
    }

    pub(crate) fn end_move(&mut self, id: MoveId, result: Result<(u64, Duration), MoveFailure>) {
        let Some(m) = self.moves.remove(&id) else { return };
        if let Some(space) = self.spaces[m.to.index()].as_mut() {
            space.reserved -= m.reserved;
        }
        if let Some(space) = self.spaces[m.from.index()].as_mut() {
            space.draining -= m.draining;
        }
        if let (Ok((bytes, elapsed)), Some(_)) = (result, m.kind) {
            self.measured.note(m.to, bytes, elapsed);
        }
        let now_us = self.now_us();
        if let Some(object) = self.table.get_mut(m.ob) {
            object.set(Object::MOVING, false);
            // T_closed counts from the arrival: what was just brought up is not the first to leave.
            if result.is_ok() && m.to < m.from && !object.is_open() {
                object.since_us = now_us;
            }
        }
        match result {
            Ok(_) => self.moved(&m),
            Err(failure) => self.not_moved(&m, failure),
        }
        // A part of it left: the rest is still the first to leave.
        self.relink_at(m.ob, result.is_ok() && !m.keep_source);
        self.arm_copy(m.ob);
        if let Some(seq) = m.request {
            self.request_moved(seq, id, &m, result.map(|(bytes, _)| bytes));
        }
        self.forget_if_done(m.ob);
        self.stir();
    }

    fn moved(&mut self, m: &Move) {
        if let Some(rest) = self.resting.remove(&m.ob) {
            self.timers.remove(&(rest.until, Timer::Rest(m.ob)));
            if let Some(object) = self.table.get_mut(m.ob) {
                object.set(Object::RESTING | Object::HOMELESS, false);
            }
        }
        if m.from == TierId::Memory && m.keep_source {
            self.note_copied(m.ob);
        }
        if m.kind == Some(MoveKind::Promote) {
            self.promote_from(m.ob, m.to, m.then);
        }
    }

    /// Decides how long the object rests: not at all when we stopped it ourselves.
    fn not_moved(&mut self, m: &Move, failure: MoveFailure) {
        // One that is gone is on its way out, and that takes as long as its files: not to be tried again meanwhile.
        if m.ob == NIL || (failure == MoveFailure::Cancelled && m.cancelled) {
            return;
        }
        if failure == MoveFailure::Uncovered {
            self.dirtied(m.ino, m.from);
        }
        let failures = self.resting.get(&m.ob).map_or(0, |r| r.failures);
        let pause_s = match failure {
            MoveFailure::Io => 1 << failures.min(6),
            MoveFailure::NoSpace => 5,
            MoveFailure::Cancelled | MoveFailure::Busy | MoveFailure::Uncovered | MoveFailure::Gone => {
                BUSY_PAUSE_S
            }
        };
        let failures = failures + u32::from(failure == MoveFailure::Io);
        self.rest(m.ob, Object::RESTING, Duration::from_secs(pause_s), failures);
    }

    /// Keeps the object out of choices for a while: of every one, or as `HOMELESS` of eviction only.
    pub(crate) fn rest(&mut self, ob: Ob, flag: u16, pause: Duration, failures: u32) {
        let until = self.now + pause;
        let Some(object) = self.table.get_mut(ob) else { return };
        object.set(flag, true);
        // An entry without a timer only remembers the failures; its time is past.
        if let Some(before) = self.resting.insert(ob, Rest { until, failures }) {
            self.timers.remove(&(before.until, Timer::Rest(ob)));
        }
        self.timers.insert((until, Timer::Rest(ob)));
        self.arm_copy(ob);
        self.relink(ob);
    }

    pub(crate) fn rested(&mut self, ob: Ob) {
        let Some(object) = self.table.get_mut(ob) else { return };
        object.set(Object::RESTING | Object::HOMELESS, false);
        if self.resting.get(&ob).is_some_and(|r| r.failures == 0) {
            self.resting.remove(&ob);
        }
        self.relink(ob);
        self.arm_copy(ob);
        self.requests_ready = true;
        self.copies_stuck = false;
    }
}
