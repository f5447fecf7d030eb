//! The database: records, the rows that say who owns which slot, the map, and who may make maps.
//!
//! A model, not the product's code (that is `pg` and `kv`). A commit is written, then answered. Rows, lives and the map are durable at
//! once; commits are in a journal that is synced now and then: a kill loses what is not written yet, a power cut what is not synced.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use cluster::{ClusterMap, NodeId, SlotEpoch, tenure::Time};
use lease::coherence::{message::Life, server::Past};
use namespace::{
    Caller, Env, NameHasher, NewNode, Place as At,
    superblock::{self, FormatOptions},
};
use proto::SessionId;
use types::{FileKind, Ino, Slot, Timestamp};

use crate::{
    cast::{Broken, FILES, Place, TERMS, UGSDS, directory, file, slots, ugsd_of},
    message::{Commit, Message, Process},
    names::name_of,
    network::{Happened, Ticket},
    records::{Batch, Records},
    scene::Scene,
};

const HERE: Place = Place::Database;
const SYNC_EVERY: Duration = Duration::from_millis(700);

struct Row {
    owner: Option<NodeId>,
    epoch: SlotEpoch,
    life: u32,
    from: u32,
    /// And in which life.
    fenced: BTreeMap<SessionId, u32>,
}

struct Writing {
    ready: Duration,
    ticket: Ticket,
    commit: Commit,
}

pub struct Database {
    pub data: Records,
    synced: Records,
    rows: BTreeMap<Slot, Row>,
    pub map: ClusterMap,
    holder: Option<(Process, Time)>,
    queue: VecDeque<Writing>,
    /// Of each owner's commits the last.
    last: BTreeMap<u64, u64>,
    /// Answered when they are synced.
    unsynced: Vec<Ticket>,
    next_sync: Duration,
    incarnation: u64,
}

pub fn env(seconds: u64) -> Env {
    let now = Timestamp { sec: seconds as i64, nsec: 0 };
    Env { now, epoch: 1, memory_generation: 1, names: NameHasher::new(&[3; 16]) }
}

pub const CALLER: Caller = Caller { uid: 1000, gid: 100, umask: 0 };

pub fn regular(mode: u32) -> NewNode<'static> {
    NewNode { kind: FileKind::Regular, mode, rdev: 0, target: None, for_write: false }
}

/// A directory in each UGSD, with the files that stay.
fn genesis() -> Result<Records, namespace::Error> {
    let empty = Records::default();
    let mut batch = Batch::over(&empty);
    let env = env(1);
    let options =
        FormatOptions { uuid: [7; 16], hash_key: [3; 16], uid: 0, gid: 0, mode: 0o755, now: env.now };
    let mut superblock = superblock::format(&mut batch, &options);
    superblock.epoch = 1;
    superblock.next_ugsd = UGSDS.len() as u32 + 1;
    superblock::store(&mut batch, &superblock);
    for ugsd in UGSDS {
        let (dir, name) = (directory(ugsd), format!("dir{ugsd}"));
        let at = At { dir: Ino::ROOT, name: name.as_bytes() };
        namespace::mkdir(&mut batch, &env, &CALLER, at, 0o755, dir)?;
        namespace::alloc::reserve(&mut batch, dir.ugsd(), FILES)?;
        for n in 0..FILES {
            let name = name_of(n);
            let at = At { dir, name: name.as_bytes() };
            namespace::create(&mut batch, &env, &CALLER, at, &regular(0o644), file(ugsd, n))?;
        }
    }
    let changes = batch.changes;
    let mut records = Records::default();
    records.apply(&changes);
    Ok(records)
}

impl Database {
    pub fn new() -> Database {
        let made = genesis();
        assert!(made.is_ok(), "a new file system: {made:?}");
        let data = made.unwrap_or_default();
        let row = |slot| {
            (slot, Row { owner: None, epoch: SlotEpoch(0), life: 0, from: 1, fenced: BTreeMap::new() })
        };
        Database {
            synced: data.clone(),
            data,
            rows: slots().into_iter().map(row).collect(),
            map: ClusterMap::first([7; 16]),
            holder: None,
            queue: VecDeque::new(),
            last: BTreeMap::new(),
            unsynced: Vec::new(),
            next_sync: SYNC_EVERY,
            incarnation: 1,
        }
    }

    /// What was not written is gone.
    pub fn kill(&mut self) {
        self.queue.clear();
        self.unsynced.clear();
    }

    /// What was not synced is gone.
    pub fn power_cut(&mut self, scene: &mut Scene) {
        self.kill();
        self.incarnation += 1;
        self.data = self.synced.clone();
        self.last.clear();
        // What clients have by leases of earlier lives may be about what is gone: they may not come back with it.
        for row in self.rows.values_mut().filter(|_| scene.broken != Broken::LostTail) {
            row.from = row.life + 1;
        }
        let now = scene.now();
        scene.names.power_cut(now);
    }

    pub fn run(&mut self, scene: &mut Scene) {
        while let Some(happened) = scene.net.next_event(HERE) {
            if let Happened::Asked { ticket, message, .. } = happened {
                self.asked(scene, ticket, message);
            }
        }
        while self.queue.front().is_some_and(|writing| writing.ready <= scene.now()) {
            if let Some(writing) = self.queue.pop_front() {
                self.write(scene, writing.ticket, &writing.commit);
            }
        }
        if scene.now() >= self.next_sync {
            self.next_sync = scene.now() + SYNC_EVERY;
            self.sync(scene);
        }
    }

    fn sync(&mut self, scene: &mut Scene) {
        self.synced = self.data.clone();
        scene.names.sync();
        for ticket in std::mem::take(&mut self.unsynced) {
            scene.net.answer(ticket, Message::Yes);
        }
    }

    fn asked(&mut self, scene: &mut Scene, ticket: Ticket, message: Message) {
        let answer = match message {
            Message::Claim { by, asked } => self.claim(scene.local(HERE), by, asked),
            Message::Store { by, map } => self.store(scene, by, *map),
            Message::FetchMap => Message::Map(Some(Box::new(self.map.clone()))),
            Message::Incarnation => Message::IncarnationIs(self.incarnation),
            Message::TakeOn { slot, owner, epoch, incarnation } => {
                self.take_on(scene, slot, (owner, epoch), incarnation)
            }
            Message::Commit(commit) => {
                let behind = self.queue.back().map_or(Duration::ZERO, |writing| writing.ready);
                let ready = behind.max(scene.now() + scene.disk());
                self.queue.push_back(Writing { ready, ticket, commit: *commit });
                return;
            }
            Message::Verdict { slot, epoch, session } => match self.owned(slot, epoch) {
                Some(row) => {
                    row.fenced.insert(session, row.life);
                    Message::Yes
                }
                None => Message::Fenced,
            },
            Message::EndGrace { slot, epoch, life } => match self.owned(slot, epoch) {
                Some(row) if row.life == life.0 => {
                    row.from = life.0;
                    row.fenced.retain(|_, of| *of == life.0);
                    Message::Yes
                }
                Some(_) | None => Message::Fenced,
            },
            _ => return,
        };
        scene.net.answer(ticket, answer);
    }

    fn owned(&mut self, slot: Slot, epoch: SlotEpoch) -> Option<&mut Row> {
        self.rows.get_mut(&slot).filter(|row| row.epoch == epoch)
    }

    fn claim(&mut self, now: Time, by: Process, asked: Time) -> Message {
        let free = self.holder.is_none_or(|(holder, until)| holder == by || now >= until);
        if free {
            self.holder = Some((by, TERMS.ended_at(now)));
        }
        Message::Claimed { asked, map: free.then(|| Box::new(self.map.clone())) }
    }

    fn store(&mut self, scene: &mut Scene, by: Process, map: ClusterMap) -> Message {
        let (held, epoch) = (self.holder.is_some_and(|(holder, _)| holder == by), map.epoch());
        if held && epoch.0 == self.map.epoch().0 + 1 {
            let owners: Vec<_> = slots().iter().map(|slot| map.slot(*slot).owner).collect();
            scene.note(|| format!("map {epoch:?}, owners {owners:?}"));
            self.map = map.clone();
        }
        Message::Stored { epoch, is: held && map == self.map }
    }

    /// The row changes only to a later epoch. Each taking on is a life of its own.
    fn take_on(
        &mut self,
        scene: &mut Scene,
        slot: Slot,
        (owner, epoch): (NodeId, SlotEpoch),
        incarnation: u64,
    ) -> Message {
        let Some(row) = self.rows.get_mut(&slot).filter(|_| incarnation == self.incarnation) else {
            return Message::Fenced;
        };
        if epoch < row.epoch || (epoch == row.epoch && row.owner != Some(owner)) {
            return Message::Fenced;
        }
        (row.owner, row.epoch) = (Some(owner), epoch);
        row.life += 1;
        let fenced: BTreeSet<SessionId> = row.fenced.keys().copied().collect();
        let past = Past { life: Life(row.life), from: Life(row.from), fenced };
        scene.tally.take_overs += u64::from(row.life > 1);
        scene.note(|| format!("{owner} takes on {slot:?} under {epoch:?}: {past:?}"));
        let of = |key: &[u8]| namespace::key::Parsed::new(key).and_then(|p| p.ugsd());
        let records = self.data.0.iter().filter(|(key, _)| of(key).is_some_and(|u| u.get() == ugsd_of(slot)));
        let view = Records(records.map(|(key, value)| (key.clone(), value.clone())).collect());
        Message::TakenOn { past, view: Box::new(view) }
    }

    fn write(&mut self, scene: &mut Scene, ticket: Ticket, commit: &Commit) {
        let last = self.last.get(&commit.stream).copied().unwrap_or(0);
        let row = self.rows.get(&commit.slot);
        let owns = row.is_some_and(|row| row.owner == Some(commit.owner) && row.epoch == commit.epoch);
        let fenced = !owns && scene.broken != Broken::RowFence;
        let answer = if commit.number <= last && commit.incarnation == self.incarnation {
            Message::Yes
        } else if fenced || commit.incarnation != self.incarnation {
            scene.tally.fenced_commits += 1;
            Message::Fenced
        } else if commit.number != last + 1 {
            Message::OutOfTurn
        } else {
            self.last.insert(commit.stream, commit.number);
            self.data.apply(&commit.changes);
            if let Some(done) = &commit.done {
                scene.note(|| format!("written: {done:?}"));
                let verdict = scene.names.commit(scene.net.now, done, &self.data);
                scene.judge(verdict);
            }
            Message::Yes
        };
        if commit.durable && matches!(answer, Message::Yes) {
            return self.unsynced.push(ticket);
        }
        scene.net.answer(ticket, answer);
    }
}

impl Default for Database {
    fn default() -> Database {
        Database::new()
    }
}
