//! What those who write ask of the database. Who takes over does it here, in one transaction. A commit is durable when it is written.

use std::rc::Rc;

use cluster::{
    NodeId, SlotEpoch,
    tail::row::{Change, Refused, Row},
    tenure::Time,
};
use lease::coherence::message::Life;

use super::LEASE;
use crate::{
    cast::Broken,
    database::Database,
    message::{Ask, JournalRecords, Record, Taken, Writer, WriterTold as Told},
    scene::Scene,
};

impl Database {
    pub(crate) fn writer_asked(&mut self, scene: &mut Scene, now: Time, by: &Writer, ask: &Ask) -> Told {
        let me = by.by;
        let line = self.writers.0.entry(me).or_default();
        if let Ask::Look { of } = ask {
            let of = self.writers.0.entry(*of).or_default();
            return Told::Seen { row: of.tail.clone(), ended: now >= of.until };
        }
        if let Ask::Open = ask {
            let taken = line.times;
            (line.life, line.session, line.until) = (by.life, line.session + 1, now + LEASE);
            let (session, copy, applied) = (line.session, line.tail.copy, line.applied);
            // What it answered last may be known to nobody (S-163).
            self.rows_of(me).for_each(|(_, row)| row.knows = false);
            return Told::Opened { session, copy, applied, taken };
        }
        let fences = scene.broken != Broken::TailFence;
        if line.life != by.life && fences {
            return Told::Fenced;
        }
        if let Ask::Claim = ask {
            (line.session, line.until) = (line.session + 1, now + LEASE);
            return Told::Claimed(line.session);
        }
        if line.session != by.session && fences {
            return Told::NotDone;
        }
        match ask {
            Ask::Renew => {
                line.until = now + LEASE;
                let rows = self.rows_of(me).filter(|(_, row)| !row.free);
                Told::Renewed(rows.map(|(slot, row)| (*slot, row.epoch, Life(row.life))).collect())
            }
            Ask::Write { change } => match line.tail.change(change) {
                Ok(next) => {
                    let whole = matches!(change, Change::Begin { .. }) && scene.broken == Broken::HalfTail;
                    line.tail = Row { complete: next.complete || whole, ..next };
                    Told::Done
                }
                Err(_) => Told::NotDone,
            },
            Ask::Apply { up_to, records } => {
                line.until = now + LEASE;
                self.apply(scene, me, *up_to, records);
                Told::Done
            }
            Ask::Take { from, copy, up_to, records } => {
                Told::Took(self.take(scene, now, (me, *from), *copy, (*up_to, records)))
            }
            Ask::Free { slot, life } => {
                let rows = self.rows_of(me).find(|(of, row)| *of == slot && row.life == life.0);
                if let Some((_, row)) = rows {
                    row.free = true;
                }
                Told::Done
            }
            Ask::Look { .. } | Ask::Open | Ask::Claim => Told::NotDone,
        }
    }

    fn apply(&mut self, scene: &mut Scene, of: NodeId, up_to: u64, records: &JournalRecords) -> u64 {
        let applied = self.writers.0.entry(of).or_default().applied;
        let new: Vec<&Rc<Record>> = records.iter().filter(|(n, _)| **n > applied).map(|(_, r)| r).collect();
        new.iter().for_each(|record| self.write_record(scene, of, record));
        let line = self.writers.0.entry(of).or_default();
        line.applied = line.applied.max(up_to);
        new.len() as u64
    }

    fn write_record(&mut self, scene: &mut Scene, of: NodeId, record: &Rc<Record>) {
        let counts = scene.tail.written(record.id);
        let Some(commit) = &record.commit else { return };
        let row = self.rows.get(&commit.slot);
        let owns = row.is_some_and(|row| row.owner == Some(of) && row.epoch == commit.epoch);
        if !owns && scene.broken != Broken::TailFence {
            scene.judge(Err(format!("{of} has a record of a slot that is not its own: {:?}", commit.done)));
        }
        self.data.apply(&commit.changes);
        if let Some(done) = commit.done.as_ref().filter(|_| counts) {
            scene.note(|| format!("written: {done:?}"));
            let verdict = scene.names.commit(scene.net.now, done, &self.data);
            scene.judge(verdict);
        }
    }

    fn take(
        &mut self,
        scene: &mut Scene,
        now: Time,
        (me, from): (NodeId, NodeId),
        copy: u64,
        (up_to, records): (u64, &JournalRecords),
    ) -> Result<Vec<Taken>, Refused> {
        let line = self.writers.0.entry(from).or_default();
        if let Some(taken) = line.taken.get(&(me, copy)) {
            return Ok(taken.clone());
        }
        line.tail = line.tail.take_over(&me, copy, now >= line.until)?;
        (line.life, line.times) = (0, line.times + 1);
        scene.note(|| format!("{me} goes on for {from} with what it had up to {up_to}"));
        let missing = (line.applied + 1..=up_to).find(|number| !records.contains_key(number));
        if let Some(number) = missing {
            scene.judge(Err(format!("{number} of the journal of {from} is missing")));
        }
        scene.tail.brought += self.apply(scene, from, up_to, records);
        let mut all = Vec::new();
        for (slot, row) in self.rows_of(from).filter(|(_, row)| !row.free) {
            (row.owner, row.epoch) = (Some(me), SlotEpoch(row.epoch.0 + 1));
            all.push(Taken { slot: *slot, life: Life(row.life), knows: std::mem::take(&mut row.knows) });
        }
        let verdict = scene.tail.taken_over(from);
        scene.judge(verdict);
        self.writers.0.entry(from).or_default().taken.insert((me, copy), all.clone());
        Ok(all)
    }
}
