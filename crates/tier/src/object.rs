//! What happens to one object: found, opened, written, pinned, removed.

use std::time::Duration;

use types::{Ino, TierId, TierSet};

use crate::api::{Effect, MoveKind, ObjectPolicy};
use crate::coolness;
use crate::machine::Tiering;
use crate::table::{NIL, Ob, Object};
use crate::unfinished::Start;

impl Tiering {
    pub(crate) fn attached(&mut self, ino: Ino, bytes: [u64; 3], dirty: TierSet) {
        let ob = self.table.ensure(ino, self.now_us());
        self.unlink(ob);
        self.table.set_held(ob, bytes);
        if !dirty.is_empty() {
            self.table.set_probation(ob, false);
        }
        let Some(object) = self.table.get_mut(ob) else { return };
        object.dirty = dirty;
        object.set(Object::DETACHED, false);
        if !dirty.contains(TierId::Memory) {
            self.note_saved(ob);
        } else if !self.unsaved.contains_key(&ob) {
            // One that is known is only looked at again, and not written.
            self.note_unsaved(ob);
        }
        self.relink(ob);
        self.requests_ready = true;
    }

    pub(crate) fn detached(&mut self, ino: Ino) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        if let Some(object) = self.table.get_mut(ob) {
            object.set(Object::DETACHED, true);
            self.forget_if_done(ob);
        }
    }

    pub(crate) fn removed(&mut self, ino: Ino) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        self.cancel_move_of(ob);
        let Some(object) = self.forget(ob) else { return };
        for (space, bytes) in self.spaces.iter_mut().zip(object.bytes()) {
            if let Some(space) = space {
                space.used = space.used.saturating_sub(bytes);
            }
        }
        // Its number may be another object's by the time the movement ends.
        if let Some(m) = self.moves.values_mut().find(|m| m.ob == ob) {
            m.ob = NIL;
        }
        self.stir();
    }

    pub(crate) fn opened(&mut self, ino: Ino) {
        let (ob, now_us) = (self.table.find(ino).unwrap_or(NIL), self.now_us());
        let Some(object) = self.table.get(ob) else { return };
        if object.is_open() {
            if let Some(object) = self.table.get_mut(ob) {
                object.opens = object.opens.saturating_add(1);
            }
            return;
        }
        self.unlink(ob);
        self.table.set_probation(ob, false);
        if let Some(object) = self.table.get_mut(ob) {
            coolness::note_open(object, now_us);
            object.opens = 1;
            object.last_sau = u32::MAX;
        }
        if self.move_of(ob).is_some_and(|(_, m)| m.is_eviction()) {
            self.cancel_move_of(ob);
        }
        self.relink(ob);
        self.promote(ob);
    }

    pub(crate) fn closed(&mut self, ino: Ino, dirty_bytes: u64) {
        let (ob, now_us) = (self.table.find(ino).unwrap_or(NIL), self.now_us());
        let Some(object) = self.table.get_mut(ob) else { return };
        if object.opens > 1 {
            object.opens -= 1;
            return;
        }
        if object.opens == 1 {
            self.unlink(ob);
            if let Some(object) = self.table.get_mut(ob) {
                object.opens = 0;
                coolness::note_close(object, now_us);
            }
        }
        if let Some(unsaved) = self.unsaved.get_mut(&ob) {
            unsaved.bytes = dirty_bytes;
        }
        self.relink(ob);
        self.arm_copy(ob);
        self.forget_if_done(ob);
    }

    /// What a tier holds changed. Progress of the object's own movement is set against what was promised to it.
    pub(crate) fn stored(&mut self, ino: Ino, tier: TierId, delta: i64) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        let (mut came, mut went) = (delta.max(0) as u64, 0);
        let moving = self.table.get(ob).is_some_and(|o| o.has(Object::MOVING));
        let mover = self.moves.values_mut().find(|m| moving && m.ob == ob);
        let raised = mover.as_ref().is_some_and(|m| m.to == tier && m.to < m.from);
        let Some(space) = self.spaces[tier.index()].as_mut() else { return };
        if let Some(m) = mover {
            if delta > 0 && m.to == tier && m.from != tier {
                let landed = came.min(m.reserved);
                m.reserved -= landed;
                space.reserved -= landed;
                came -= landed;
            } else if delta < 0 && m.to == tier && m.from != tier {
                // What had been copied was overwritten or cut in the source: it will have to come again.
                m.reserved += delta.unsigned_abs();
                space.reserved += delta.unsigned_abs();
            } else if delta < 0 && m.from == tier {
                went = delta.unsigned_abs().min(m.draining);
                m.draining -= went;
                space.draining -= went;
            }
        }
        space.came += came;
        space.went += went;
        space.change_used(delta);
        if self.table.get(ob).is_none() {
            return;
        }
        self.table.change_held(ob, tier, delta);
        // What was brought up has its source below. Of anything else only the shell knows whether it has.
        if delta > 0 && !raised {
            self.set_dirty(ob, tier);
        }
        if delta < 0 {
            self.note_left(ob);
        }
        self.relink(ob);
        if delta < 0 {
            self.stir();
            self.forget_if_done(ob);
        }
    }

    pub(crate) fn dirtied(&mut self, ino: Ino, tier: TierId) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        self.set_dirty(ob, tier);
        self.relink(ob);
    }

    /// Marks it dirty; the caller relinks.
    pub(crate) fn set_dirty(&mut self, ob: Ob, tier: TierId) {
        self.set_probation(ob, false);
        let Some(object) = self.table.get(ob) else { return };
        if !object.dirty.contains(tier) {
            self.unlink(ob);
        }
        if let Some(object) = self.table.get_mut(ob) {
            object.dirty = object.dirty.with(tier);
        }
        if tier == TierId::Memory {
            self.note_unsaved(ob);
        }
    }

    pub(crate) fn cleaned(&mut self, ino: Ino, tier: TierId) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        let Some(object) = self.table.get(ob) else { return };
        if !object.dirty.contains(tier) {
            return;
        }
        self.unlink(ob);
        if let Some(object) = self.table.get_mut(ob) {
            object.dirty = object.dirty.without(tier);
        }
        if tier == TierId::Memory {
            self.note_saved(ob);
        }
        self.relink(ob);
        self.stir();
    }

    pub(crate) fn passthrough(&mut self, ino: Ino, on: bool) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        let Some(object) = self.table.get_mut(ob) else { return };
        object.set(Object::PASSTHROUGH, on);
        // Copies leave the object where it is; anything else must stop.
        if on && self.move_of(ob).is_some_and(|(_, m)| !m.leaves_in_place()) {
            self.cancel_move_of(ob);
        }
        self.relink(ob);
        self.requests_ready |= !on;
    }

    pub(crate) fn pinned(&mut self, ino: Ino, tier: TierId, on: bool) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        let Some(object) = self.table.get_mut(ob) else { return };
        object.pinned = if on { object.pinned.with(tier) } else { object.pinned.without(tier) };
        if on && self.move_of(ob).is_some_and(|(_, m)| m.from == tier && !m.keep_source) {
            self.cancel_move_of(ob);
        }
        self.relink(ob);
        self.requests_ready |= !on;
    }

    pub(crate) fn set_policy(&mut self, ino: Ino, policy: ObjectPolicy) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        self.unlink(ob);
        let Some(object) = self.table.get_mut(ob) else { return };
        object.set(Object::TRANSIENT, policy.transient);
        object.set(Object::PROMOTE, policy.promote == Some(true));
        object.set(Object::STAY, policy.promote == Some(false));
        object.delay_ms = policy.write_behind_delay.map_or(u32::MAX, |delay: Duration| {
            u32::try_from(delay.as_millis()).unwrap_or(u32::MAX).min(u32::MAX - 1)
        });
        // It began when nobody had said so.
        if policy.transient
            && let Some((id, m)) = self.move_of(ob)
            && matches!(m.kind, Some(MoveKind::WriteBehind | MoveKind::NormalOut))
            && m.request.is_none()
        {
            self.cancel_move(id);
        }
        self.relink(ob);
        self.arm_copy(ob);
    }

    /// Brings an opened file up if its policy or the settings say so, to the fastest tier that stays above C_n-m with it. What is pinned
    /// where it is stays.
    /// When one movement ended the next begins, until all has come up that was in slower tiers when it was opened.
    fn promote(&mut self, ob: Ob) {
        let Some(object) = self.table.get(ob) else { return };
        let held = Object::PASSTHROUGH | Object::MOVING | Object::RESTING;
        if object.has(held | Object::STAY) {
            return;
        }
        let explicit = object.has(Object::PROMOTE);
        let wanted = |tier: &TierId| {
            // Without a word of the user's, not what faster tiers have copies of.
            let above: u64 = TierId::ALL.into_iter().filter(|t| t < tier).map(|t| object.holds(t)).sum();
            let least = if explicit { 0 } else { above };
            let asked = explicit || self.settings.promote_on_open.contains(*tier);
            asked && object.holds(*tier) > least && !object.pinned.contains(*tier)
        };
        for to in TierId::ALL {
            let Some(space) = self.space(to) else { continue };
            let sources = self.slower(to).filter(wanted).fold(TierSet::EMPTY, TierSet::with);
            if sources.is_empty() {
                return;
            }
            if space.fits_easily(sources.iter().map(|t| object.holds(t)).sum()) {
                return self.promote_from(ob, to, sources);
            }
        }
    }

    pub(crate) fn promote_from(&mut self, ob: Ob, to: TierId, sources: TierSet) {
        let (Some(from), Some(object)) = (sources.fastest(), self.table.get(ob)) else { return };
        let held = Object::PASSTHROUGH | Object::MOVING | Object::RESTING;
        let room = self.space(to).is_some_and(|s| s.fits_easily(object.holds(from)));
        if room && object.is_open() && !object.has(held) && self.free_slot(MoveKind::Promote, to) {
            let then = sources.without(from);
            self.start(
                ob,
                Start {
                    from,
                    to,
                    kind: MoveKind::Promote,
                    keep_source: true,
                    request: None,
                    then,
                    most: u64::MAX,
                },
            );
        }
    }

    pub(crate) fn wake_writers(&mut self) {
        for tier in TierId::ALL {
            let idle = self.moves.is_empty() && !self.leaves_soon();
            let Some(space) = self.spaces[tier.index()].as_mut() else { continue };
            // With nothing under way there is nothing to wait for: they should ask again and look elsewhere.
            if space.wait_least > 0 && (space.fits(space.wait_least) || idle) {
                (space.wait_least, space.wait_most) = (0, 0);
                self.effects.push_back(Effect::WakeWriters { tier });
            }
        }
    }
}
