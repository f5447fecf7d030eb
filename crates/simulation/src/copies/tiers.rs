//! What a data server has of objects: `tier` decides what is where and what moves, `layout` keeps in mind what is valid, devices are a model.

use std::{collections::BTreeMap, time::Duration};

use cluster::tenure::Time;
use layout::{ObjectRecord, ReadPlace, Sau, SauIndex, WritePlace, WriteWish, read_place, write_place};
use tier::{Input, MoveId, Need, Placement, Settings, Tiering};
use types::{SAU_BYTES, TierId, TierSet};

use super::{
    cast::{CELLS, Left, OBJECTS, Value, object, offset},
    stage::Stage,
};
use crate::store::Devices;

pub const TIERS: TierSet = TierSet::MEMORY.with(TierId::Ssd);
const JOURNAL_EVERY: Duration = Duration::from_millis(400);
/// Nobody has it open any more after that.
const CLOSES_AFTER: Duration = Duration::from_millis(250);

pub struct Held {
    pub record: ObjectRecord,
    /// Rises with each change.
    pub changes: u64,
    /// A sync was answered: it does not depend on memory alone any more.
    pub in_sync: bool,
    pub open: bool,
    pub written: Time,
}

/// A movement under way.
pub struct Moving {
    pub(super) id: MoveId,
    pub(super) number: u64,
    pub(super) from: TierId,
    pub(super) to: TierId,
    pub(super) keep: bool,
    pub(super) saus: Vec<SauIndex>,
    pub(super) changes: u64,
    pub(super) began: Time,
    pub(super) ready: Time,
    pub(super) cancelled: bool,
}

pub struct Tiers {
    pub devices: Devices,
    pub machine: Tiering,
    pub held: BTreeMap<u64, Held>,
    pub moving: Vec<Moving>,
    pub syncs: BTreeMap<u64, Vec<u64>>,
    pub flushing: BTreeMap<u64, u64>,
    /// What was asked for and is durable by now.
    pub synced: Vec<u64>,
    journal_at: Time,
    left: Left,
}

impl Tiers {
    /// From what an earlier process left.
    pub fn begin(devices: Devices, left: Left, now: Time) -> Tiers {
        let settings = Settings {
            write_behind_closed: Duration::from_millis(400),
            write_behind_idle: Duration::from_millis(900),
            write_behind_latest: Duration::from_millis(1500),
            bandwidth: [64 << 20, 64 << 20, 64 << 20],
            normal_out: [Some(3 * SAU_BYTES), None, None],
            forced_out: [Some(SAU_BYTES), None, None],
            file_bytes_mean: SAU_BYTES,
            ..Settings::default()
        };
        let mut tiers = Tiers {
            devices,
            machine: Tiering::new(settings),
            held: BTreeMap::new(),
            moving: Vec::new(),
            syncs: BTreeMap::new(),
            flushing: BTreeMap::new(),
            synced: Vec::new(),
            journal_at: Time::ZERO,
            left,
        };
        let mut records = tiers.devices.load();
        for number in 0..OBJECTS {
            let mut record = records.remove(&object(number)).unwrap_or_default();
            if record.memory_generation != tiers.devices.generation && left != Left::ForgottenMemory {
                record.map.forget_memory();
            }
            record.memory_generation = tiers.devices.generation;
            let in_sync = record.synced_size > 0;
            let held = Held { record, changes: 0, in_sync, open: false, written: now };
            tiers.held.insert(number, held);
        }
        let count = |tier: TierId| {
            let all = tiers.held.values().map(|held| u64::from(held.record.map.count_in(tier)));
            all.sum::<u64>() * SAU_BYTES
        };
        let used = [count(TierId::Memory), count(TierId::Ssd)];
        // Less memory than all objects need, so that it moves.
        for (tier, units) in [(TierId::Memory, OBJECTS * CELLS * 2 / 3), (TierId::Ssd, OBJECTS * CELLS * 4)] {
            let (limit, used) = (units * SAU_BYTES, used[tier.index()]);
            tiers.machine.handle(now, Input::Space { tier, limit, used });
        }
        for number in 0..OBJECTS {
            let map = &tiers.held[&number].record.map;
            let bytes = TierId::ALL.map(|tier| u64::from(map.count_in(tier)) * SAU_BYTES);
            let dirty = if map.is_dirty() { TierSet::MEMORY } else { TierSet::EMPTY };
            tiers.machine.handle(now, Input::Attached { ino: object(number), bytes, dirty });
        }
        tiers
    }

    pub fn read(&self, number: u64, cell: u64) -> Value {
        let Some(held) = self.held.get(&number) else { return Some(0) };
        match read_place(held.record.map.get(SauIndex::of(offset(cell))), TIERS) {
            ReadPlace::Tier(tier) => Some(self.devices.get(tier, object(number), offset(cell))),
            ReadPlace::Zeros => Some(0),
            ReadPlace::Lost | ReadPlace::Absent => None,
        }
    }

    /// False: there is no room for it yet.
    pub fn write(&mut self, stage: &mut Stage, now: Time, number: u64, cell: u64, value: Value) -> bool {
        let ino = object(number);
        let sau = SauIndex::of(offset(cell));
        let Some(held) = self.held.get_mut(&number) else { return true };
        if !held.open {
            held.open = true;
            self.machine.handle(now, Input::Opened { ino });
        }
        let state = held.record.map.get(sau);
        let Some(value) = value else {
            // An error there is one here.
            let _ = held.record.map.set(sau, Sau::LOST);
            held.changes += 1;
            self.after(stage, now, number, (sau, state));
            return true;
        };
        let sync = held.in_sync || !state.valid.intersect(TierSet::PERSISTENT).is_empty();
        let tier = if state.valid.is_empty() {
            let need = Need { ino, bytes: SAU_BYTES, sync, waited: Duration::ZERO };
            match self.machine.place(now, need) {
                Placement::Tier(tier) => tier,
                Placement::Wait { .. } => return false,
                Placement::NoSpace => {
                    stage.judge(Err("there is no room for what was reckoned with".to_owned()));
                    return false;
                }
            }
        } else {
            let wish = WriteWish { room: TierSet::EMPTY, present: TIERS, sync, whole: false };
            match write_place(state, wish) {
                WritePlace::Over(tier) => tier,
                other => {
                    stage.judge(Err(format!("{state:?} is written to {other:?}")));
                    return true;
                }
            }
        };
        if state.valid.is_empty() {
            held.record.map.note_replaced(sau, tier);
            self.devices.punch(tier, ino, offset(cell)..offset(cell + 1));
        } else {
            let noted = held.record.map.note_written(sau, tier);
            stage.judge(noted.map_err(|why| format!("{why:?}")));
        }
        held.record.memory_generation = self.devices.generation;
        held.changes += 1;
        held.written = now;
        // The map is written before the bytes.
        self.devices.save(ino, &held.record);
        self.devices.put(tier, ino, offset(cell), value);
        if tier == TierId::Memory {
            self.machine.handle(now, Input::Dirty { ino, tier });
        }
        let placed = state.valid.is_empty().then_some(tier);
        let before = Sau { valid: placed.map_or(state.valid, TierSet::of), ..state };
        self.after(stage, now, number, (sau, before));
        true
    }

    /// Says what changed to who decides about room; `before`: what it reckons with.
    fn after(&mut self, stage: &mut Stage, now: Time, number: u64, (sau, before): (SauIndex, Sau)) {
        let ino = object(number);
        let Some(held) = self.held.get(&number) else { return };
        let is = held.record.map.get(sau).valid;
        let clean = !held.record.map.is_dirty();
        stage.judge(held.record.map.check().map_err(str::to_owned));
        self.devices.save(ino, &held.record);
        for tier in before.valid.iter().filter(|tier| !is.contains(*tier)) {
            self.machine.handle(now, Input::Stored { ino, tier, delta: -(SAU_BYTES as i64) });
        }
        if clean {
            self.machine.handle(now, Input::Clean { ino, tier: TierId::Memory });
        }
        self.carry_out(stage, now);
    }

    /// All of it goes.
    pub fn remove(&mut self, stage: &mut Stage, now: Time, number: u64) {
        let ino = object(number);
        let Some(held) = self.held.get_mut(&number) else { return };
        held.record.map.truncate_to(0);
        (held.record.synced_size, held.in_sync, held.open) = (0, false, false);
        held.changes += 1;
        self.devices.save(ino, &held.record);
        self.journal();
        for tier in [TierId::Memory, TierId::Ssd] {
            self.devices.punch(tier, ino, 0..u64::MAX);
        }
        self.machine.handle(now, Input::Removed { ino });
        self.machine.handle(now, Input::Attached { ino, bytes: [0; 3], dirty: TierSet::EMPTY });
        self.carry_out(stage, now);
    }

    pub fn run(&mut self, stage: &mut Stage, now: Time) {
        if now >= self.journal_at {
            self.journal_at = now + JOURNAL_EVERY;
            self.journal();
        }
        for number in 0..OBJECTS {
            let Some(held) = self.held.get_mut(&number) else { continue };
            if held.open && now >= held.written + CLOSES_AFTER {
                held.open = false;
                let dirty_bytes = held.record.map.dirty().count() as u64 * SAU_BYTES;
                self.machine.handle(now, Input::Closed { ino: object(number), dirty_bytes });
            }
        }
        if self.machine.next_deadline().is_some_and(|(at, _)| at <= now) {
            self.machine.handle_deadline(now);
        }
        self.carry_out(stage, now);
        self.end_moves(stage, now);
        self.go_on_syncing(stage, now);
    }

    /// Data first, then the journal that speaks of them.
    pub fn journal(&mut self) {
        if self.left != Left::EarlyCopy {
            self.devices.sync_ssd();
        }
        self.devices.sync_journal();
    }

    pub fn is_at_rest(&self) -> bool {
        self.syncs.is_empty() && self.moving.is_empty()
    }
}
