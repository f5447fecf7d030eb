//! Write-behind: every object that has bytes in memory only gets a copy in a persistent tier within a bounded time.
//!
//! I-TIER-4: the copy is due `write_behind_closed` (or the policy's delay) after the close or the last write of a closed
//! file, `write_behind_idle` after the last write of an open one, and `write_behind_latest` after the first write in any
//! case; after a copy that left new bytes behind, `write_behind_closed` after its end. It starts then as soon as a slot and room are there, the longest due first. Before the latest time a write
//! cancels the copy; after it the shell notes the extents written meanwhile, so a file that is always being
//! written is saved too. Transient objects are never written behind; pinned and passthrough ones are (they stay where
//! they are).

use std::time::Duration;

use types::TierId;

use crate::api::{MoveKind, Time};
use crate::machine::{Tiering, Timer};
use crate::table::{Ob, Object};
use crate::unfinished::{Armed, Start, Unsaved};

/// Due objects looked at per try when the first ones find no room.
const TRIED_MAX: usize = 16;

impl Tiering {
    /// A write to memory. Only the first one needs a timer: an early timer finds the later time by itself.
    pub(crate) fn note_unsaved(&mut self, ob: Ob) {
        let now = self.now;
        if let Some(unsaved) = self.unsaved.get_mut(&ob) {
            unsaved.last_write = now;
            let late = now >= unsaved.first + self.settings.write_behind_latest;
            if let Some((id, m)) = self.move_of(ob)
                && m.kind == Some(MoveKind::WriteBehind)
                && m.request.is_none()
                && !late
            {
                self.cancel_move(id);
            }
            return;
        }
        let armed = Armed::No;
        self.unsaved
            .insert(ob, Unsaved { first: now, last_write: now, not_before: Time::ZERO, armed, bytes: 0 });
        self.arm_copy(ob);
    }

    pub(crate) fn note_saved(&mut self, ob: Ob) {
        self.disarm_copy(ob);
        self.unsaved.remove(&ob);
    }

    /// A copy ended and bytes written meanwhile are left (otherwise the object would be saved by now).
    pub(crate) fn note_copied(&mut self, ob: Ob) {
        let Some(unsaved) = self.unsaved.get_mut(&ob) else { return };
        unsaved.first = self.now;
        unsaved.not_before = self.now + self.settings.write_behind_closed;
    }

    /// When its copy is due; `None` when it gets none, or cannot now.
    fn copy_due(&self, ob: Ob) -> Option<Time> {
        let (object, unsaved) = (self.table.get(ob)?, self.unsaved.get(&ob)?);
        let held = Object::TRANSIENT | Object::MOVING | Object::RESTING;
        if object.has(held) || object.holds(TierId::Memory) == 0 || self.persistent().next().is_none() {
            return None;
        }
        let settled = if object.is_open() {
            unsaved.last_write + self.settings.write_behind_idle
        } else {
            let delay = match object.delay_ms {
                u32::MAX => self.settings.write_behind_closed,
                ms => Duration::from_millis(u64::from(ms)),
            };
            unsaved.last_write.max(Duration::from_micros(object.since_us)) + delay
        };
        // A policy that asks for more time than the latest has it.
        let latest = match object.delay_ms {
            u32::MAX => self.settings.write_behind_latest,
            ms => self.settings.write_behind_latest.max(Duration::from_millis(u64::from(ms))),
        };
        Some(settled.min(unsaved.first + latest).max(unsaved.not_before))
    }

    /// Sets the timer, or queues the object if its time has come.
    pub(crate) fn arm_copy(&mut self, ob: Ob) {
        self.disarm_copy(ob);
        let Some(due) = self.copy_due(ob) else { return };
        let armed = if due <= self.now {
            self.due.insert((due, ob));
            self.copies_stuck = false;
            Armed::Due(due)
        } else {
            self.timers.insert((due, Timer::WriteBehind(ob)));
            Armed::Timer(due)
        };
        if let Some(unsaved) = self.unsaved.get_mut(&ob) {
            unsaved.armed = armed;
        }
    }

    pub(crate) fn disarm_copy(&mut self, ob: Ob) {
        let Some(unsaved) = self.unsaved.get_mut(&ob) else { return };
        match std::mem::replace(&mut unsaved.armed, Armed::No) {
            Armed::No => {}
            Armed::Timer(at) => drop(self.timers.remove(&(at, Timer::WriteBehind(ob)))),
            Armed::Due(at) => drop(self.due.remove(&(at, ob))),
        }
    }

    pub(crate) fn pump_copies(&mut self) {
        while !self.copies_stuck {
            // An object may have been written or opened since it became due: then it has a later time now.
            let first: Vec<Ob> = self.due.iter().take(TRIED_MAX).map(|(_, ob)| *ob).collect();
            let later = |ob: &Ob| self.copy_due(*ob).is_none_or(|due| due > self.now);
            if let Some(ob) = first.iter().copied().find(later) {
                self.arm_copy(ob);
                continue;
            }
            let start = first.into_iter().find_map(|ob| Some((ob, self.copy_target(ob)?)));
            let Some((ob, to)) = start else {
                self.copies_stuck = true;
                return;
            };
            self.start(
                ob,
                Start {
                    from: TierId::Memory,
                    to,
                    kind: MoveKind::WriteBehind,
                    keep_source: true,
                    request: None,
                    then: types::TierSet::EMPTY,
                    most: u64::MAX,
                },
            );
        }
    }

    /// The fastest persistent tier with a slot and room.
    fn copy_target(&self, ob: Ob) -> Option<TierId> {
        let object = self.table.get(ob)?;
        self.persistent().find(|to| {
            let bytes = self.estimate(object, TierId::Memory, *to);
            self.free_slot(MoveKind::WriteBehind, *to) && self.space(*to).is_some_and(|s| s.fits(bytes))
        })
    }
}
