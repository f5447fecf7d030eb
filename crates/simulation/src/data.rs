//! A data server's process: residency maps of `layout`, and the shell that keeps the map ahead of the bytes (I-DS-2), makes copies and
//! refuses who was fenced. Maps and their decisions are the product's; devices and journal are a model.

use std::{collections::BTreeMap, time::Duration};

use layout::{ObjectRecord, ReadPlace, SauIndex, WritePlace, WriteWish, read_place, write_place};
use lease::coherence::message::{Life, Party};
use proto::SessionId;
use types::{Ino, SAU_BYTES, Slot, TierId, TierSet};

use crate::{
    cast::{Broken, CELLS, Place, spot},
    content::Value,
    message::{CallId, DataWrite, Message},
    network::{Happened, Ticket},
    scene::Scene,
    store::Devices,
};

const TIERS: TierSet = TierSet::MEMORY.with(TierId::Ssd);
const SYNC_EVERY: Duration = Duration::from_millis(500);
const BEHIND_AFTER: Duration = Duration::from_millis(600);

/// What was fenced; durable at once.
#[derive(Default)]
pub struct Fences {
    /// In which slot, by a verdict of which life.
    sessions: BTreeMap<SessionId, (Slot, Life)>,
    lives: BTreeMap<Slot, Life>,
}

#[derive(Default)]
struct Object {
    record: ObjectRecord,
    /// Rises with each change.
    changes: u64,
    /// An fsync was answered: it does not depend on memory alone any more.
    in_sync: bool,
    written: Duration,
}

/// Bytes on their way to the disk.
struct Copying {
    ready: Duration,
    changes: u64,
    tickets: Vec<Ticket>,
}

pub struct DataServer {
    at: usize,
    pub devices: Devices,
    pub fences: Fences,
    objects: BTreeMap<Ino, Object>,
    copying: BTreeMap<Ino, Copying>,
    /// Answered when the disk has it.
    late: Vec<(Duration, Ticket, Message)>,
    next_sync: Duration,
}

impl DataServer {
    /// From what an earlier process left.
    pub fn begin(at: usize, devices: Devices, fences: Fences, broken: Broken) -> DataServer {
        let mut objects: BTreeMap<Ino, Object> = BTreeMap::new();
        for (ino, mut record) in devices.load() {
            if record.memory_generation != devices.generation && broken != Broken::ForgottenMemory {
                record.map.forget_memory();
            }
            record.memory_generation = devices.generation;
            let in_sync = record.synced_size > 0;
            objects.insert(ino, Object { record, in_sync, ..Object::default() });
        }
        let next_sync = Duration::ZERO;
        DataServer { at, devices, fences, objects, copying: BTreeMap::new(), late: Vec::new(), next_sync }
    }

    fn place(&self) -> Place {
        Place::Data(self.at)
    }

    pub fn run(&mut self, scene: &mut Scene) {
        while let Some(happened) = scene.net.next_event(self.place()) {
            if let Happened::Asked { ticket, message, .. } = happened
                && let Some(answer) = self.asked(scene, ticket, message)
            {
                scene.net.answer(ticket, answer);
            }
        }
        let now = scene.now();
        let (due, later) = std::mem::take(&mut self.late).into_iter().partition(|(at, ..)| *at <= now);
        self.late = later;
        let due: Vec<(Duration, Ticket, Message)> = due;
        due.into_iter().for_each(|(_, ticket, answer)| scene.net.answer(ticket, answer));
        if now >= self.next_sync {
            self.next_sync = now + SYNC_EVERY;
            self.sync(scene);
        }
        self.write_behind(scene);
        let done: Vec<Ino> =
            self.copying.iter().filter(|(_, c)| c.ready <= now).map(|(ino, _)| *ino).collect();
        done.into_iter().for_each(|ino| self.copied(scene, ino));
    }

    fn asked(&mut self, scene: &mut Scene, ticket: Ticket, message: Message) -> Option<Message> {
        match message {
            Message::Read { slot, by, ino, cell } => {
                let may = self.may(scene, slot, by);
                Some(if may { Message::Value(self.read(ino, cell)) } else { Message::Refused })
            }
            Message::Write(write) => {
                let may = self.may(scene, write.slot, write.by);
                Some(if may { self.write(scene, &write) } else { Message::Refused })
            }
            Message::Cut { slot, by, ino, call } => {
                if !self.may(scene, slot, by) {
                    return Some(Message::Refused);
                }
                self.cut(scene, ino, call);
                self.late.push((scene.now() + scene.disk(), ticket, Message::Yes));
                None
            }
            Message::Sync { ino } if scene.broken == Broken::EarlySync => {
                scene.content.synced(ino, self.at);
                Some(Message::Yes)
            }
            Message::Sync { ino } => {
                self.copy(scene, ino, Some(ticket));
                None
            }
            Message::Refuse { slot, life, session } => {
                if self.fences.lives.get(&slot).is_none_or(|from| *from <= life) {
                    self.fences.sessions.insert(session, (slot, life));
                }
                Some(Message::Yes)
            }
            // What was fenced in earlier lives is refused with all that is of them.
            Message::LifeFrom { slot, life } => {
                let from = self.fences.lives.entry(slot).or_default();
                *from = life.max(*from);
                self.fences.sessions.retain(|_, (of, in_life)| *of != slot || *in_life >= life);
                Some(Message::Yes)
            }
            _ => None,
        }
    }

    fn may(&self, scene: &mut Scene, slot: Slot, by: Party) -> bool {
        let from = self.fences.lives.get(&slot).copied().unwrap_or_default();
        let behind = Life::of(by.joined.0) < from;
        let refused = behind || self.fences.sessions.contains_key(&by.session);
        scene.tally.refused_data += u64::from(refused);
        !refused || scene.broken == Broken::DataFence
    }

    pub fn read(&self, ino: Ino, cell: u64) -> Value {
        let (_, offset) = spot(cell);
        let Some(object) = self.objects.get(&ino) else { return Some(0) };
        match read_place(object.record.map.get(SauIndex::of(offset)), TIERS) {
            ReadPlace::Tier(tier) => Some(self.devices.get(tier, ino, offset)),
            ReadPlace::Zeros => Some(0),
            ReadPlace::Lost | ReadPlace::Absent => None,
        }
    }

    /// The map is written before the first byte changes.
    fn write(&mut self, scene: &mut Scene, write: &DataWrite) -> Message {
        let ino = write.ino;
        let (_, offset) = spot(write.cell);
        let sau = SauIndex::of(offset);
        let generation = self.devices.generation;
        let object = self.objects.entry(ino).or_default();
        let map = &mut object.record.map;
        let state = map.get(sau);
        let safe = !state.valid.intersect(TierSet::PERSISTENT).is_empty();
        let room = if scene.random.one_in(5) { TierSet::of(TierId::Ssd) } else { TIERS };
        let wish = WriteWish { room, present: TIERS, sync: object.in_sync || safe, whole: false };
        let tier = match write_place(state, wish) {
            WritePlace::Over(tier) => tier,
            WritePlace::Fresh(tier) => {
                self.devices.punch(tier, ino, sau.start()..sau.start() + SAU_BYTES);
                tier
            }
            WritePlace::Move { from, to } => {
                for half in [0, SAU_BYTES / 2] {
                    let value = self.devices.get(from, ino, sau.start() + half);
                    self.devices.put(to, ino, sau.start() + half, value);
                }
                let noted = map.note_copied(sau, to, None);
                assert!(noted.is_ok(), "{noted:?}");
                to
            }
            WritePlace::Lost | WritePlace::Absent | WritePlace::Full => return Message::Value(None),
        };
        let noted = map.note_written(sau, tier);
        assert!(noted.is_ok() && map.check().is_ok(), "{noted:?}");
        object.record.memory_generation = generation;
        object.changes += 1;
        object.written = scene.now();
        if scene.broken != Broken::LateMap {
            self.devices.save(ino, &object.record);
        }
        self.devices.put(tier, ino, offset, write.value);
        let kept = write.kept.then_some(write.by.session);
        let verdict = scene.content.stored(scene.net.now, (ino, write.cell), write.value, kept);
        scene.judge(verdict);
        Message::Value(Some(write.value))
    }

    /// To nothing: durable in the map before the blocks go.
    fn cut(&mut self, scene: &mut Scene, ino: Ino, call: CallId) {
        let object = self.objects.entry(ino).or_default();
        object.record.map.truncate_to(0);
        (object.record.synced_size, object.in_sync) = (0, false);
        object.changes += 1;
        self.devices.save(ino, &object.record);
        self.sync(scene);
        for tier in [TierId::Memory, TierId::Ssd] {
            self.devices.punch(tier, ino, 0..u64::MAX);
        }
        let verdict = scene.content.cut(scene.net.now, ino, self.at, call.0);
        scene.judge(verdict);
    }

    /// What nobody changes for a while gets a copy that a power cut leaves.
    fn write_behind(&mut self, scene: &mut Scene) {
        let now = scene.now();
        let due = |object: &Object| object.record.map.is_dirty() && object.written + BEHIND_AFTER <= now;
        let inos: Vec<Ino> = self.objects.iter().filter(|(_, o)| due(o)).map(|(ino, _)| *ino).collect();
        for ino in inos {
            if !self.copying.contains_key(&ino) {
                self.copy(scene, ino, None);
            }
        }
    }

    fn copy(&mut self, scene: &mut Scene, ino: Ino, ticket: Option<Ticket>) {
        let changes = self.objects.entry(ino).or_default().changes;
        let ready = scene.now() + scene.disk();
        let copying = self.copying.entry(ino).or_insert(Copying { ready, changes, tickets: Vec::new() });
        copying.tickets.extend(ticket);
    }

    /// The copy counts if nothing changed meanwhile; else it is made again.
    fn copied(&mut self, scene: &mut Scene, ino: Ino) {
        let Some(copying) = self.copying.remove(&ino) else { return };
        let Some(object) = self.objects.get_mut(&ino) else { return };
        if object.changes != copying.changes {
            let tickets = copying.tickets;
            self.copy(scene, ino, None);
            if let Some(again) = self.copying.get_mut(&ino) {
                again.tickets = tickets;
            }
            return;
        }
        let dirty: Vec<SauIndex> = object.record.map.dirty().collect();
        for sau in &dirty {
            for half in [0, SAU_BYTES / 2] {
                let value = self.devices.get(TierId::Memory, ino, sau.start() + half);
                self.devices.put(TierId::Ssd, ino, sau.start() + half, value);
            }
        }
        self.devices.sync_ssd();
        for sau in &dirty {
            let noted = object.record.map.note_copied(*sau, TierId::Ssd, None);
            assert!(noted.is_ok(), "{noted:?}");
        }
        if !copying.tickets.is_empty() {
            object.in_sync = true;
            object.record.synced_size = CELLS * SAU_BYTES;
        }
        self.devices.save(ino, &object.record);
        self.sync(scene);
        if !copying.tickets.is_empty() {
            scene.content.synced(ino, self.at);
        }
        if scene.random.one_in(2) {
            self.drop_memory(scene, ino);
        }
        copying.tickets.into_iter().for_each(|ticket| scene.net.answer(ticket, Message::Yes));
    }

    /// Data first, then the journal that speaks of them.
    fn sync(&mut self, scene: &mut Scene) {
        self.devices.sync_ssd();
        self.devices.sync_journal();
        scene.content.journaled(self.at);
    }

    fn drop_memory(&mut self, scene: &mut Scene, ino: Ino) {
        let Some(object) = self.objects.get_mut(&ino) else { return };
        let held: Vec<SauIndex> = object.record.map.iter().map(|(sau, _)| sau).collect();
        for sau in held {
            if object.record.map.note_dropped(sau, TierId::Memory).is_ok() {
                scene.tally.moved_down += 1;
                self.devices.save(ino, &object.record);
                self.devices.punch(TierId::Memory, ino, sau.start()..sau.start() + SAU_BYTES);
            }
        }
    }

    /// After a power cut: what there is now has to be what may be left.
    pub fn look_after_power_cut(&self, scene: &mut Scene) {
        for (ino, cell) in scene.content.spots().into_iter().filter(|(_, cell)| spot(*cell).0 == self.at) {
            let verdict = scene.content.recovered(scene.net.now, (ino, cell), self.read(ino, cell));
            scene.judge(verdict);
        }
    }

    pub fn is_at_rest(&self) -> bool {
        self.copying.is_empty() && self.late.is_empty()
    }
}
