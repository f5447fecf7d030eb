//! What the bytes of files are: what was written last, wherever it is kept, and what a power cut may leave of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proto::SessionId;
use types::{Ino, Slot};

use crate::{
    cast::{CELLS, FILES, UGSDS, file, spot},
    versions::Versions,
};

/// A place in a file that is looked at.
pub type Spot = (Ino, u64);

/// `None` is an error: the bytes are lost, and are not zeros.
pub type Value = Option<u64>;

struct Cell {
    seen: Versions<Value>,
    /// Only this session has what was written last.
    kept_by: Option<SessionId>,
    /// At its data server.
    stored: Value,
    /// What was stored since all of it was made durable, that included.
    since_sync: Vec<Value>,
    /// Somebody was told that it is durable.
    safe: bool,
}

#[derive(Default)]
pub struct ContentTruth {
    cells: BTreeMap<Spot, Cell>,
    /// Writes and cuts that were answered: they are over.
    finished: BTreeSet<u64>,
    pub kept: u64,
    pub kept_lost: u64,
    pub lost: u64,
}

impl ContentTruth {
    pub fn begin() -> ContentTruth {
        let inodes = UGSDS.iter().flat_map(|ugsd| (0..FILES).map(|n| file(*ugsd, n)));
        let cells = inodes.flat_map(|ino| (0..CELLS).map(move |cell| (ino, cell))).map(|spot| {
            let (seen, since_sync) = (Versions::begin(Some(0)), vec![Some(0)]);
            (spot, Cell { seen, kept_by: None, stored: Some(0), since_sync, safe: false })
        });
        ContentTruth { cells: cells.collect(), ..ContentTruth::default() }
    }

    /// A client keeps it, and nobody else may look.
    pub fn wrote_here(&mut self, now: Duration, spot: Spot, value: u64, by: SessionId) -> Result<(), String> {
        let Some(cell) = self.cells.get_mut(&spot) else { return Ok(()) };
        if let Some(other) = cell.kept_by.filter(|other| *other != by) {
            return Err(format!("{by} keeps {value} of {spot:?}, of which {other} keeps what is newer"));
        }
        self.kept += 1;
        cell.seen.push(now, Some(value));
        cell.kept_by = Some(by);
        Ok(())
    }

    /// Its program, or who kept it, was told that it is done.
    pub fn finished(&mut self, number: u64) {
        self.finished.insert(number);
    }

    fn is_not_over(&self, number: u64, spot: Spot) -> Result<(), String> {
        let over = self.finished.contains(&number);
        if over {
            Err(format!("{number} is done to {spot:?} once more, after it was answered"))
        } else {
            Ok(())
        }
    }

    /// A data server has it.
    pub fn stored(
        &mut self,
        now: Duration,
        spot: Spot,
        value: u64,
        kept: Option<SessionId>,
    ) -> Result<(), String> {
        self.is_not_over(value, spot)?;
        let Some(cell) = self.cells.get_mut(&spot) else { return Ok(()) };
        cell.stored = Some(value);
        cell.since_sync.push(Some(value));
        match (kept, cell.kept_by) {
            (Some(by), Some(other)) if by == other => {
                if cell.seen.latest() == Some(&Some(value)) {
                    cell.kept_by = None;
                }
                Ok(())
            }
            // It comes again, or late: then what it takes away is seen by who reads.
            (Some(_), _) => Ok(()),
            (None, Some(other)) => Err(format!("{value} is written to {spot:?} below what {other} keeps")),
            (None, None) => {
                cell.seen.push(now, Some(value));
                Ok(())
            }
        }
    }

    /// All of it, at one data server.
    pub fn cut(&mut self, now: Duration, ino: Ino, server: usize, number: u64) -> Result<(), String> {
        self.is_not_over(number, (ino, 0))?;
        for (at, cell) in self.cells.iter_mut().filter(|(at, _)| at.0 == ino && spot(at.1).0 == server) {
            if let Some(other) = cell.kept_by {
                return Err(format!("{at:?} is cut below what {other} keeps"));
            }
            cell.stored = Some(0);
            (cell.since_sync, cell.safe) = (vec![Some(0)], false);
            cell.seen.push(now, Some(0));
        }
        Ok(())
    }

    pub fn spots(&self) -> Vec<Spot> {
        self.cells.keys().copied().collect()
    }

    /// A server's journal is durable: from now on its bytes are these, or lost.
    pub fn journaled(&mut self, server: usize) {
        for (_, cell) in self.cells.iter_mut().filter(|(at, _)| spot(at.1).0 == server) {
            cell.since_sync = vec![cell.stored];
        }
    }

    pub fn synced(&mut self, ino: Ino, server: usize) {
        for (_, cell) in self.cells.iter_mut().filter(|(at, _)| at.0 == ino && spot(at.1).0 == server) {
            (cell.since_sync, cell.safe) = (vec![cell.stored], true);
        }
    }

    /// What only this session had is gone.
    pub fn session_over(&mut self, now: Duration, session: SessionId) {
        self.forget(now, |_, by| by == session);
    }

    /// It cannot be written back, since what it is a part of is lost.
    pub fn not_written(&mut self, now: Duration, spot: Spot, session: SessionId) {
        if let Some(cell) = self.cells.get_mut(&spot).filter(|cell| cell.kept_by == Some(session)) {
            cell.kept_by = None;
            cell.seen.push(now, cell.stored);
        }
    }

    /// Who has not come back by now does not.
    pub fn grace_ended(&mut self, now: Duration, slot: Slot, came: &BTreeSet<SessionId>) {
        self.forget(now, |ino, by| ino.ugsd().slot() == slot && !came.contains(&by));
    }

    fn forget(&mut self, now: Duration, of: impl Fn(Ino, SessionId) -> bool) {
        for (at, cell) in &mut self.cells {
            if cell.kept_by.is_some_and(|by| of(at.0, by)) {
                self.kept_lost += 1;
                cell.kept_by = None;
                cell.seen.push(now, cell.stored);
            }
        }
    }

    /// What a data server has after its machine lost power.
    pub fn recovered(&mut self, now: Duration, spot: Spot, value: Value) -> Result<(), String> {
        let Some(cell) = self.cells.get_mut(&spot) else { return Ok(()) };
        let fine = if value.is_none() {
            !cell.safe || cell.stored.is_none()
        } else {
            cell.since_sync.contains(&value)
        };
        if !fine {
            return Err(format!(
                "after a power cut {spot:?} is {value:?}; since it was synced ({}) it was {:?}",
                cell.safe, cell.since_sync
            ));
        }
        self.lost += u64::from(value.is_none());
        cell.stored = value;
        cell.since_sync = vec![value];
        if cell.kept_by.is_none() {
            cell.seen.revert(now, value);
        }
        Ok(())
    }

    pub fn check(&self, spot: Spot, value: Value, (from, to): (Duration, Duration)) -> Result<(), String> {
        let Some(cell) = self.cells.get(&spot) else { return Ok(()) };
        if cell.seen.held(from, to, |is| *is == value) {
            return Ok(());
        }
        Err(format!("{spot:?} was read as {value:?} ({from:?} to {to:?}), it is {:?}", cell.seen.latest()))
    }

    /// At rest nobody keeps anything, and data servers have what was written last.
    pub fn compare(&self, spot: Spot, value: Value) -> Result<(), String> {
        match self.cells.get(&spot) {
            Some(cell) if cell.kept_by.is_some() => Err(format!("{:?} still keeps {spot:?}", cell.kept_by)),
            Some(cell) if cell.seen.latest() != Some(&value) => {
                Err(format!("{spot:?} is {value:?} at last, not {:?}", cell.seen.latest()))
            }
            Some(_) | None => Ok(()),
        }
    }
}
