//! Movements between tiers, as `tier` wants them, and syncs, which are movements that it is asked for.

use std::collections::btree_map::Entry;

use cluster::tenure::Time;
use layout::SauIndex;
use tier::{Effect, Input, MoveFailure, MoveId, Request, RequestId};
use types::{Ino, SAU_BYTES, TierId};

use super::{
    cast::{CELLS, Left, OBJECTS, object},
    stage::Stage,
    tiers::{Moving, Tiers},
};

fn number_of(ino: Ino) -> u64 {
    (0..OBJECTS).find(|number| object(*number) == ino).unwrap_or(0)
}

impl Tiers {
    /// Carries out what `tier` wants.
    pub fn carry_out(&mut self, stage: &mut Stage, now: Time) {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::StartMove { id, ino, from, to, keep_source, most, .. } => {
                    self.start(stage, now, (id, number_of(ino)), (from, to, keep_source), most);
                }
                Effect::DropCopy { id, ino, tier, most } => {
                    self.drop_copy(stage, now, (id, number_of(ino)), tier, most);
                }
                Effect::CancelMove { id } => {
                    self.moving.iter_mut().filter(|m| m.id == id).for_each(|m| m.cancelled = true);
                }
                // Who waits asks again at the next step.
                Effect::WakeWriters { .. } => (),
                Effect::RequestDone { id, .. } => self.flushing.retain(|_, of| *of != id.0),
            }
        }
    }

    /// The bytes go to the device now, and count when they are durable there.
    fn start(
        &mut self,
        stage: &mut Stage,
        now: Time,
        (id, number): (MoveId, u64),
        (from, to, keep): (TierId, TierId, bool),
        most: u64,
    ) {
        let Some(held) = self.held.get(&number) else { return };
        let there = held.record.map.iter().filter(|(_, state)| state.valid.contains(from));
        let lacking = there.filter(|(_, state)| !keep || !state.valid.contains(to));
        let saus: Vec<SauIndex> = lacking.map(|(sau, _)| sau).take((most / SAU_BYTES) as usize).collect();
        let changes = held.changes;
        for sau in &saus {
            if !held.record.map.get(*sau).valid.contains(to) {
                let value = self.devices.get(from, object(number), sau.start());
                self.devices.put(to, object(number), sau.start(), value);
            }
        }
        let ready = now + stage.disk();
        let moving =
            Moving { id, number, from, to, keep, saus, changes, began: now, ready, cancelled: false };
        self.moving.push(moving);
    }

    pub fn end_moves(&mut self, stage: &mut Stage, now: Time) {
        let (due, later) = std::mem::take(&mut self.moving).into_iter().partition(|m| m.ready <= now);
        self.moving = later;
        let due: Vec<Moving> = due;
        due.into_iter().for_each(|moving| self.end_move(stage, now, &moving));
    }

    fn end_move(&mut self, stage: &mut Stage, now: Time, moving: &Moving) {
        let Moving { id, number, from, to, keep, .. } = *moving;
        let ino = object(number);
        let Some(held) = self.held.get_mut(&number) else { return };
        let reason = match (moving.cancelled, held.changes != moving.changes) {
            (true, _) => Some(MoveFailure::Cancelled),
            (false, true) => Some(MoveFailure::Busy),
            (false, false) => None,
        };
        if let Some(reason) = reason {
            self.machine.handle(now, Input::MoveFailed { id, reason });
            return self.carry_out(stage, now);
        }
        if stage.left != Left::EarlyCopy {
            self.devices.sync_ssd();
        }
        let mut inputs = Vec::new();
        for sau in &moving.saus {
            let had = held.record.map.get(*sau).valid.contains(to);
            let noted = held.record.map.note_copied(*sau, to, None);
            stage.judge(noted.map_err(|why| format!("{why:?}")));
            if !had {
                inputs.push(Input::Stored { ino, tier: to, delta: SAU_BYTES as i64 });
            }
            if !keep {
                let noted = held.record.map.note_dropped(*sau, from);
                stage.judge(noted.map_err(|why| format!("{why:?}")));
                self.devices.punch(from, ino, sau.start()..sau.end());
                inputs.push(Input::Stored { ino, tier: from, delta: -(SAU_BYTES as i64) });
            }
        }
        held.changes += 1;
        stage.tally.moved += moving.saus.len() as u64;
        self.devices.save(ino, &held.record);
        if !held.record.map.is_dirty() {
            inputs.push(Input::Clean { ino, tier: TierId::Memory });
        }
        let bytes = moving.saus.len() as u64 * SAU_BYTES;
        inputs.push(Input::MoveDone { id, bytes, elapsed: now.saturating_sub(moving.began) });
        inputs.into_iter().for_each(|input| self.machine.handle(now, input));
        if stage.left == Left::EarlyCopy {
            self.devices.sync_journal();
        }
        self.carry_out(stage, now);
    }

    fn drop_copy(
        &mut self,
        stage: &mut Stage,
        now: Time,
        (id, number): (MoveId, u64),
        tier: TierId,
        most: u64,
    ) {
        let ino = object(number);
        let Some(held) = self.held.get_mut(&number) else { return };
        let mut dropped = 0;
        for sau in (0..CELLS).filter_map(|cell| SauIndex::new(cell as u32)) {
            let valid = held.record.map.get(sau).valid;
            if !valid.contains(tier) || (dropped + 1) * SAU_BYTES > most {
                continue;
            }
            if valid.without(tier).is_empty() {
                stage.judge(Err(format!("I-TIER-3: the only copy of {number} is to be dropped")));
                continue;
            }
            let noted = held.record.map.note_dropped(sau, tier);
            stage.judge(noted.map_err(|why| format!("{why:?}")));
            self.devices.punch(tier, ino, sau.start()..sau.end());
            dropped += 1;
        }
        held.changes += 1;
        stage.tally.dropped += dropped;
        self.devices.save(ino, &held.record);
        for _ in 0..dropped {
            self.machine.handle(now, Input::Stored { ino, tier, delta: -(SAU_BYTES as i64) });
        }
        let bytes = dropped * SAU_BYTES;
        self.machine.handle(now, Input::MoveDone { id, bytes, elapsed: Time::ZERO });
    }

    /// `tag` is given back when all that is stored by now is durable.
    pub fn sync(&mut self, number: u64, tag: u64) {
        self.syncs.entry(number).or_default().push(tag);
    }

    /// At a moment at which nothing is in memory alone, all of before is durable.
    pub fn go_on_syncing(&mut self, stage: &mut Stage, now: Time) {
        let wanted: Vec<u64> = self.syncs.keys().copied().collect();
        for number in wanted {
            let Some(held) = self.held.get_mut(&number) else { continue };
            if held.record.map.is_dirty() && stage.left != Left::EarlySync {
                if let Entry::Vacant(place) = self.flushing.entry(number) {
                    let id = *place.insert(stage.number());
                    let request = Request::Flush { ino: object(number) };
                    self.machine.handle(now, Input::Request { id: RequestId(id), request });
                    self.carry_out(stage, now);
                }
                continue;
            }
            if stage.left != Left::EarlySync {
                (held.in_sync, held.record.synced_size) = (true, CELLS * SAU_BYTES);
                self.devices.save(object(number), &held.record);
                self.journal();
            }
            self.synced.extend(self.syncs.remove(&number).unwrap_or_default());
        }
    }
}
