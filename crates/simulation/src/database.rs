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
    message::{Ask, Commit, Message, Process, RowSeen, Writer},
    names::name_of,
    network::{Happened, Ticket},
    records::{Batch, Records},
    scene::Scene,
    tail::Writers,
};

const HERE: Place = Place::Database;
const SYNC_EVERY: Duration = Duration::from_millis(700);

pub(crate) struct Row {
    pub(crate) owner: Option<NodeId>,
    pub(crate) epoch: SlotEpoch,
    pub(crate) life: u32,
    from: u32,
    /// And in which life.
    fenced: BTreeMap<SessionId, u32>,
    /// With journals: the owner has let it go.
    pub(crate) free: bool,
    /// The owner, and who has his journal's end, knows what was answered in its last life.
    pub(crate) knows: bool,
}

struct Writing {
    ready: Duration,
    ticket: Ticket,
    work: Work,
}

enum Work {
    Commit(Commit),
    Writer(Writer, Ask),
}

pub struct Database {
    pub data: Records,
    synced: Records,
    pub(crate) rows: BTreeMap<Slot, Row>,
    pub(crate) writers: Writers,
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
            let epoch = SlotEpoch(0);
            let (free, knows) = (false, false);
            (slot, Row { owner: None, epoch, life: 0, from: 1, fenced: BTreeMap::new(), free, knows })
        };
        Database {
            synced: data.clone(),
            data,
            rows: slots().into_iter().map(row).collect(),
            writers: Writers::default(),
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

    /// What was not synced is gone. Where servers have journals a commit is synced when it is answered.
    pub fn power_cut(&mut self, scene: &mut Scene) {
        self.kill();
        if scene.journals {
            return;
        }
        self.incarnation += 1;
        self.data = self.synced.clone();
        self.last.clear();
        // What clients have by leases of earlier lives may be about what is gone: they may not come back with it.
        for row in self.rows.values_mut().filter(|_| scene.broken != Broken::LostTail) {
            row.from = row.life + 1;
        }
        let now = scene.now();
        let lives = self.rows.iter().map(|(slot, row)| (*slot, row.life)).collect();
        scene.names.power_cut(now, lives);
    }

    pub fn run(&mut self, scene: &mut Scene) {
        while let Some(happened) = scene.net.next_event(HERE) {
            if let Happened::Asked { ticket, message, .. } = happened {
                self.asked(scene, ticket, message);
            }
        }
        while self.queue.front().is_some_and(|writing| writing.ready <= scene.now()) {
            if let Some(writing) = self.queue.pop_front() {
                match writing.work {
                    Work::Commit(commit) => self.write(scene, writing.ticket, &commit),
                    Work::Writer(by, ask) => self.writer(scene, writing.ticket, &by, &ask),
                }
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
            Message::TakeOn { slot, owner, epoch, incarnation, writer } => {
                if scene.journals && !self.may_take_on(slot, (owner, epoch), writer) {
                    Message::Fenced
                } else {
                    self.take_on(scene, slot, (owner, epoch), incarnation)
                }
            }
            Message::Writer(by, ask) => match *ask {
                Ask::Apply { .. } | Ask::Take { .. } => {
                    return self.later(scene, ticket, Work::Writer(by, *ask));
                }
                ask => return self.writer(scene, ticket, &by, &ask),
            },
            Message::Commit(commit) => {
                return self.later(scene, ticket, Work::Commit(*commit));
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

    fn later(&mut self, scene: &mut Scene, ticket: Ticket, work: Work) {
        let behind = self.queue.back().map_or(Duration::ZERO, |writing| writing.ready);
        let ready = behind.max(scene.now() + scene.disk());
        self.queue.push_back(Writing { ready, ticket, work });
    }

    fn writer(&mut self, scene: &mut Scene, ticket: Ticket, by: &Writer, ask: &Ask) {
        let now = scene.local(HERE);
        let told = self.writer_asked(scene, now, by, ask);
        scene.net.answer(ticket, Message::Told(told));
    }

    /// Those of an owner.
    pub(crate) fn rows_of(&mut self, owner: NodeId) -> impl Iterator<Item = (&Slot, &mut Row)> {
        self.rows.iter_mut().filter(move |(_, row)| row.owner == Some(owner))
    }

    /// The rows rule: what somebody else has, and did not let go, is nobody's to take.
    fn may_take_on(&self, slot: Slot, (owner, epoch): (NodeId, SlotEpoch), writer: u64) -> bool {
        let lives = self.writers.0.get(&owner).is_some_and(|line| line.life == writer);
        let Some(row) = self.rows.get(&slot) else { return false };
        let may = row.owner == Some(owner) || (row.owner.is_none() || row.free) && epoch > row.epoch;
        lives && may
    }

    fn owned(&mut self, slot: Slot, epoch: SlotEpoch) -> Option<&mut Row> {
        self.rows.get_mut(&slot).filter(|row| row.epoch == epoch)
    }

    fn claim(&mut self, now: Time, by: Process, asked: Time) -> Message {
        let free = self.holder.is_none_or(|(holder, until)| holder == by || now >= until);
        if free {
            self.holder = Some((by, TERMS.ended_at(now)));
        }
        let seen = |(slot, row): (&Slot, &Row)| RowSeen {
            slot: *slot,
            owner: row.owner,
            epoch: row.epoch,
            free: row.free,
        };
        let rows = self.rows.iter().map(seen).collect();
        Message::Claimed { asked, map: free.then(|| Box::new(self.map.clone())), rows }
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
        (row.free, row.knows) = (false, true);
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
