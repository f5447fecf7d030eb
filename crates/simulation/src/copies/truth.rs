//! What bytes may be: reads and writes of a cell have one order; what was answered is lost only with both copies, and what was synced not even then.

use std::{collections::BTreeMap, collections::BTreeSet, time::Duration};

use cluster::replica::{Member, View};

use super::cast::{CELLS, OBJECTS, Value, epoch};

/// A read or write of a cell, by one attempt of a client.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub writes: bool,
    pub value: Value,
    pub called: Duration,
    /// `None`: it was not answered, and may be done at any time.
    pub answered: Option<Duration>,
}

/// Of a cell, from one loss of both copies to the next.
#[derive(Clone, Debug)]
struct Epoch {
    /// `None`: whatever is read first.
    initial: Option<Value>,
    begins: Duration,
    ops: Vec<Op>,
}

/// What one of those that counted goes on with, after both were lost.
pub struct Found {
    /// `None`: it was gone again before anybody looked.
    pub values: Option<Vec<Value>>,
    /// Its machine lost power since it counted.
    pub without_power: bool,
}

pub struct Truth {
    cells: BTreeMap<(u64, u64), BTreeMap<u64, Epoch>>,
    /// Writes that were answered before were made durable.
    durable: BTreeMap<u64, Duration>,
    /// Of the answer by the newest view.
    newest: BTreeMap<u64, View>,
    /// In which epochs a client's writes were answered that it has not synced.
    unsynced: BTreeMap<(usize, u64), BTreeSet<u64>>,
    /// Objects of which nobody may be left who counts.
    pub beyond_budget: BTreeSet<u64>,
}

impl Truth {
    pub fn begin() -> Truth {
        let first = Epoch { initial: Some(Some(0)), begins: Duration::ZERO, ops: Vec::new() };
        let spots = (0..OBJECTS).flat_map(|object| (0..CELLS).map(move |cell| (object, cell)));
        Truth {
            cells: spots.map(|spot| (spot, BTreeMap::from([(0, first.clone())]))).collect(),
            durable: BTreeMap::new(),
            newest: BTreeMap::new(),
            unsynced: BTreeMap::new(),
            beyond_budget: BTreeSet::new(),
        }
    }

    pub fn note(&mut self, (object, cell): (u64, u64), in_epoch: u64, op: Op) {
        let unknown = Epoch { initial: None, begins: op.called, ops: Vec::new() };
        if let Some(epochs) = self.cells.get_mut(&(object, cell)) {
            epochs.entry(in_epoch).or_insert(unknown).ops.push(op);
        }
    }

    /// A write that was called is answered.
    pub fn written(&mut self, (object, cell): (u64, u64), in_epoch: u64, value: u64, now: Duration) {
        let epochs = self.cells.get_mut(&(object, cell));
        let ops = epochs.and_then(|epochs| epochs.get_mut(&in_epoch)).map(|epoch| &mut epoch.ops);
        let it = ops.and_then(|ops| ops.iter_mut().rev().find(|op| op.writes && op.value == Some(value)));
        if let Some(op) = it {
            op.answered = Some(now);
        }
    }

    pub fn wrote(&mut self, client: usize, object: u64, in_epoch: u64) {
        self.unsynced.entry((client, object)).or_default().insert(in_epoch);
    }

    /// Nobody is left to be told.
    pub fn client_ends(&mut self, client: usize) {
        self.unsynced.retain(|(of, _), _| *of != client);
    }

    /// A client's sync is over; `told`: that something may be lost.
    pub fn synced(
        &mut self,
        client: usize,
        object: u64,
        (in_epoch, called): (u64, Duration),
        told: bool,
    ) -> Result<(), String> {
        let of = self.unsynced.remove(&(client, object)).unwrap_or_default();
        if !told && of.iter().any(|other| *other != in_epoch) {
            return Err(format!("client {client} is not told that writes to {object} of {of:?} may be lost"));
        }
        let current = self.cells.get(&(object, 0)).and_then(|epochs| epochs.last_key_value());
        if current.is_none_or(|(current, _)| *current == in_epoch) {
            let durable = self.durable.entry(object).or_default();
            *durable = called.max(*durable);
        }
        Ok(())
    }

    /// A data server answers: nobody may, once somebody has gone on without him.
    pub fn answers(&mut self, object: u64, me: Member, view: View) -> Result<(), String> {
        let newest = *self.newest.entry(object).or_insert(view);
        if newest.number > view.number && !newest.counts(me) {
            return Err(format!("I-REPLICA-3: {me:?} answers for {object} in {view:?} after {newest:?}"));
        }
        if view.number > newest.number {
            self.newest.insert(object, view);
        }
        Ok(())
    }

    /// Somebody goes on after both copies were lost. How many cells are errors now.
    pub fn revived(&mut self, now: Duration, object: u64, view: &View, found: Found) -> Result<u64, String> {
        if !self.beyond_budget.remove(&object) {
            return Err(format!("both copies of {object} are lost, but there was one that counts: {view:?}"));
        }
        let durable =
            if found.without_power { self.durable.get(&object).copied().unwrap_or_default() } else { now };
        let mut lost = 0;
        for cell in 0..CELLS {
            let Some(epochs) = self.cells.get_mut(&(object, cell)) else { continue };
            let value = found.values.as_ref().and_then(|values| values.get(cell as usize)).copied();
            if let (Some(value), Some((_, last))) = (value, epochs.last_key_value()) {
                last.may_be_left(value, durable).map_err(|why| {
                    format!(
                        "{object}:{cell} is {value:?} after both were lost ({durable:?} is durable): {why}"
                    )
                })?;
                lost += u64::from(value.is_none());
            }
            epochs.insert(epoch(view), Epoch { initial: value, begins: now, ops: Vec::new() });
        }
        // What is there by now outlived a power cut.
        if found.values.is_some() && found.without_power {
            self.durable.insert(object, now);
        }
        Ok(lost)
    }

    /// At the end.
    pub fn check(&self) -> Result<(), String> {
        for (spot, epochs) in &self.cells {
            for (number, epoch) in epochs {
                epoch.check().map_err(|why| format!("{spot:?} in {number}: {why}"))?;
            }
        }
        Ok(())
    }
}

impl Epoch {
    /// Nothing that was answered before `durable` is gone, and no error stands for what is.
    fn may_be_left(&self, value: Value, durable: Duration) -> Result<(), String> {
        let writes = || self.ops.iter().filter(|op| op.writes);
        let is_durable = |op: &Op| op.answered.is_some_and(|at| at < durable);
        if value.is_none() && self.initial != Some(None) && self.initial.is_some() {
            // What was written since can be in memory alone, and what a kill had left there.
            let risky = self.begins > durable || writes().any(|op| !is_durable(op));
            let promised = writes().find(|op| is_durable(op));
            return match promised {
                None if risky => Ok(()),
                promised => Err(format!("nothing of it was in memory alone, or {promised:?} was durable")),
            };
        }
        if value == self.initial.flatten() || self.initial.is_none() && !writes().any(|w| w.value == value) {
            let over = writes().find(|op| is_durable(op));
            return over.map_or(Ok(()), |op| Err(format!("{op:?} was durable")));
        }
        let Some(it) = writes().find(|op| op.value == value) else {
            return Err("nobody wrote it".to_owned());
        };
        let after = |op: &&Op| is_durable(op) && it.answered.is_some_and(|at| at < op.called);
        writes().find(after).map_or(Ok(()), |op| Err(format!("{op:?} came later and was durable")))
    }

    /// Values of writes are all different, so an order of the cell is one of values: those between the first answer and the last call about one
    /// are only about that (Gibbons and Korach, 1997).
    fn check(&self) -> Result<(), String> {
        let mut by_value: BTreeMap<Value, Vec<&Op>> = BTreeMap::new();
        self.ops.iter().for_each(|op| by_value.entry(op.value).or_default().push(op));
        let mut initial = self.initial;
        let mut zones = Vec::new();
        for (value, ops) in &by_value {
            let wrote = ops.iter().find(|op| op.writes);
            let from = match wrote {
                Some(wrote) => wrote.called,
                None if *initial.get_or_insert(*value) == *value => self.begins,
                None => return Err(format!("nobody wrote {value:?}: {:?}", ops[0])),
            };
            if ops.iter().all(|op| op.writes && op.answered.is_none()) {
                continue;
            }
            if ops.iter().any(|op| op.answered.is_some_and(|at| at < from) && wrote.is_some()) {
                return Err(format!("{value:?} is read before it is written: {ops:?}"));
            }
            let first = ops.iter().filter_map(|op| op.answered).min();
            let first = if wrote.is_none() { Some(self.begins) } else { first };
            let last = ops.iter().map(|op| op.called).max().unwrap_or_default();
            zones.push((value, first.unwrap_or(Duration::MAX), last));
        }
        for (one, first, last) in &zones {
            for (other, from, to) in zones.iter().filter(|(other, ..)| other != one) {
                let overlaps = from < to && first < to && from < last;
                let inside = from >= to && first < to && from < last;
                if first < last && (overlaps || inside) {
                    return Err(format!(
                        "{one:?} and {other:?} have no order: {:?} {:?}",
                        by_value[*one], by_value[*other]
                    ));
                }
            }
        }
        Ok(())
    }
}
