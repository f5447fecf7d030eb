//! The log of what is not applied in the back end yet, and the order in which it may be.
//!
//! Of each inode only the difference of the two sides is kept ([`Work`]), so that changes which undo each other vanish. A step
//! is worked out from it when it can be done; several are under way at once if they have nothing to do with each other. What
//! waits for what:
//! - one step of an inode at a time, its data before its names: so publish before rename, where that takes a name from another;
//! - a name is given when whoever has it there has left it; a file takes it from a file that only has to go in one step, so
//!   that the name always shows one of them;
//! - a directory before what is in it, what is in it before its rmdir, and nothing is moved into its own inside;
//! - while a directory is being renamed, no step goes through it.
//!
//! Where these wait for each other in a circle (two names exchanged), one goes out of the way, under a name that is ours alone.
//!
//! A step that is begun is in the stored state, so [`Log::changed`] must be stored, durably, between [`Log::ready`] and the
//! first step. After a crash [`Log::rebuild`] gives the same steps again, and [`crate::judge`] knows those that were applied.
//!
//! Invariants (checked by `tests/log.rs`):
//! - I-LINK-4: whatever comes between, all that is applied ends in our namespace.
//! - I-LINK-5: a name in the back end shows nothing, or a whole version of an inode that had this name here.
//! - I-LINK-6: what has nothing to do with held work is not held up by it.
//! - I-LINK-7: the log holds what the two sides differ in, and nothing else.
//! - I-LINK-8: steps that are under way together may be applied in any order.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use types::{FileKind, Ino, Timestamp};

use crate::{
    board::{Board, Next},
    place::Place,
    step::{Staged, Step, Trouble},
    work::{Op, Work},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The linked directory.
    pub root: Ino,
    /// Inodes with something to apply, at the most.
    pub entries_max: usize,
    /// The first pause after a failure, doubled with each further one, and the longest.
    pub retry_first: Duration,
    pub retry_most: Duration,
    /// Until what was refused is tried again.
    pub held_retry: Duration,
}

/// A step to be done. What becomes of it is told by [`Log::applied`] or [`Log::failed`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub ino: Ino,
    pub kind: FileKind,
    pub step: Step,
    /// It was begun before, and may have been done.
    pub again: bool,
    pub staged: Option<Staged>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lag {
    pub entries: usize,
    pub oldest: Option<Timestamp>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pause {
    /// `None`: until the inode changes or is reconciled.
    until: Option<Timestamp>,
    trouble: Trouble,
}

/// Two inodes have, or want, one name: stored state that cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("two pending changes of one name in directory {}", .0.dir)]
pub struct Clash(pub Place);

/// See the module's documentation. All work of one linked directory.
pub struct Log {
    settings: Settings,
    board: Board,
    by_seq: BTreeSet<(u64, Ino)>,
    next_seq: u64,
    /// Who may have a step to do.
    candidates: BTreeSet<(u64, Ino)>,
    waiting_on: BTreeMap<Ino, Ino>,
    waiters: BTreeMap<Ino, BTreeSet<Ino>>,
    /// Directories among those who wait that are to be renamed.
    turning: BTreeSet<Ino>,
    pauses: BTreeMap<Ino, Pause>,
    /// Failures in a row.
    tries: BTreeMap<Ino, u32>,
    timers: BTreeSet<(Timestamp, Ino)>,
    changed: BTreeSet<Ino>,
}

impl Log {
    pub fn new(settings: Settings) -> Log {
        Log {
            settings,
            board: Board::new(settings.root),
            by_seq: BTreeSet::new(),
            next_seq: 1,
            candidates: BTreeSet::new(),
            waiting_on: BTreeMap::new(),
            waiters: BTreeMap::new(),
            turning: BTreeSet::new(),
            pauses: BTreeMap::new(),
            tries: BTreeMap::new(),
            timers: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// From what was stored. Pauses begin anew.
    pub fn rebuild(settings: Settings, works: impl IntoIterator<Item = (Ino, Work)>) -> Result<Log, Clash> {
        let mut log = Log::new(settings);
        for (ino, work) in works {
            if let Some(at) = log.board.clash(&work) {
                return Err(Clash(at));
            }
            log.next_seq = log.next_seq.max(work.seq.saturating_add(1));
            log.candidates.insert((work.seq, ino));
            log.by_seq.insert((work.seq, ino));
            log.board.put(ino, work);
        }
        Ok(log)
    }

    /// A change of ours.
    pub fn push(&mut self, now: Timestamp, ino: Ino, kind: FileKind, op: Op) {
        if self.pauses.get(&ino).is_some_and(|pause| pause.trouble != Trouble::Later) {
            self.lift(ino);
        }
        self.edit(ino, Some((now, kind)), |work| work.change(op));
    }

    /// Whether a new inode has to wait until something was applied.
    pub fn is_full(&self) -> bool {
        self.board.works.len() >= self.settings.entries_max
    }

    /// Whether a change of this inode has to wait until something was applied. One that makes the log no longer need not.
    pub fn must_wait(&self, ino: Ino) -> bool {
        self.is_full() && !self.board.works.contains_key(&ino)
    }

    /// What has to be stored, or deleted if there is nothing, since the last call.
    pub fn changed(&mut self) -> Vec<(Ino, Option<Work>)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|ino| (ino, self.board.works.get(&ino).cloned())).collect()
    }

    pub fn get(&self, ino: Ino) -> Option<&Work> {
        self.board.works.get(&ino)
    }

    /// Grows with each inode that comes into the log ([`Work::seq`]).
    pub fn newest(&self) -> u64 {
        self.next_seq - 1
    }

    /// The oldest work's.
    pub fn oldest(&self) -> Option<u64> {
        self.by_seq.first().map(|(seq, _)| *seq)
    }

    pub fn lag(&self) -> Lag {
        let oldest =
            self.by_seq.first().and_then(|(_, ino)| self.board.works.get(ino)).map(|work| work.since);
        Lag { entries: self.board.works.len(), oldest }
    }

    /// Work that waits for something other than its turn, and why.
    pub fn held(&self) -> impl Iterator<Item = (Ino, Trouble)> + '_ {
        self.pauses.iter().map(|(ino, pause)| (*ino, pause.trouble))
    }

    /// Why it waits, if it waits for something other than its turn.
    pub fn trouble_of(&self, ino: Ino) -> Option<Trouble> {
        self.pauses.get(&ino).map(|pause| pause.trouble)
    }

    /// Who has to go first, as it was when its turn last came.
    pub fn waits_for(&self, ino: Ino) -> Option<Ino> {
        self.waiting_on.get(&ino).copied()
    }

    /// Names in a directory that begun steps give: for [`crate::Listing::busy`].
    pub fn under_way(&self, dir: Ino) -> BTreeSet<Vec<u8>> {
        self.board.landing_in(dir).map(|(at, _)| at.name.clone()).collect()
    }

    /// Who is to leave a name in a directory, and the name: they have it still.
    pub fn left_in(&self, dir: Ino) -> impl Iterator<Item = (Ino, &[u8])> {
        self.board.leaving_in(dir).map(|(at, ino)| (*ino, at.name.as_slice()))
    }

    /// Is somebody to get a name in a directory, or does a begun step give one?
    pub fn gains_in(&self, dir: Ino) -> bool {
        self.board.is_wanted_in(dir) || self.board.landing_in(dir).next().is_some()
    }

    /// Is a step of it with the shell?
    pub fn is_in_flight(&self, ino: Ino) -> bool {
        self.board.flights.contains_key(&ino)
    }

    /// All that has something to apply.
    pub fn works(&self) -> impl Iterator<Item = (Ino, &Work)> {
        self.board.works.iter().map(|(ino, work)| (*ino, work))
    }

    /// What is stored of an inode counts, and not what was done to it since: a commit failed.
    pub fn restore(&mut self, ino: Ino, stored: Option<Work>) {
        if let Some(work) = self.board.take(ino) {
            self.by_seq.remove(&(work.seq, ino));
            self.candidates.remove(&(work.seq, ino));
        }
        self.stop_waiting(ino);
        if let Some(work) = stored {
            self.by_seq.insert((work.seq, ino));
            self.board.put(ino, work);
            self.candidate(ino);
        }
        self.changed.remove(&ino);
        self.wake(ino);
    }

    /// When [`Log::ready`] may have something that it had not.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Steps that may be done now, oldest work first. `parent`: of a directory, the one that holds it in our namespace; of
    /// anything else, the directory of the name by which the shell will find it in the back end.
    pub fn ready(&mut self, now: Timestamp, max: usize, parent: &dyn Fn(Ino) -> Option<Ino>) -> Vec<Entry> {
        self.end_pauses(now);
        let mut entries = Vec::new();
        while entries.len() < max {
            let Some((_, ino)) = self.candidates.pop_first() else { break };
            match self.board.next_step(ino, parent) {
                Next::Step(step) => entries.extend(self.begin(ino, step, parent)),
                Next::Idle => {}
                Next::Blocked(by) => {
                    if let Some((mover, step)) = self.wait(ino, by, parent) {
                        entries.extend(self.begin(mover, step, parent));
                    }
                }
            }
        }
        entries
    }

    /// Of a step under way: what will be renamed, or that bytes there are about to be changed. To be stored before.
    pub fn staged(&mut self, ino: Ino, staged: Staged) {
        if let Some(work) = self.board.works.get_mut(&ino) {
            work.staged = Some(staged);
            self.changed.insert(ino);
        }
    }

    /// The back end's tree was copied or moved to another file system: what was staged has another number there. What was
    /// refused is tried again.
    pub fn moved_elsewhere(&mut self) {
        for (ino, work) in &mut self.board.works {
            if let Some(Staged::Aside(seen)) = work.staged {
                work.staged = Some(Staged::Aside(seen.elsewhere()));
                self.changed.insert(*ino);
            }
        }
        let held: Vec<Ino> = self.pauses.keys().copied().collect();
        held.into_iter().for_each(|ino| self.release(ino));
    }

    /// The step under way is done, or was found done.
    pub fn applied(&mut self, ino: Ino) {
        self.board.flights.remove(&ino);
        self.lift(ino);
        self.tries.remove(&ino);
        let Some((kind, since, step)) = self.board.works.get(&ino).and_then(|work| {
            let step = work.begun.clone()?;
            Some((work.kind, work.since, step))
        }) else {
            return;
        };
        // First, so that no name is left and given by two.
        if let (Some(victim), Some(at)) = (step.over(), step.target()) {
            self.edit(victim, Some((since, kind)), |work| {
                work.vacated(at.clone());
                work.note_gone();
            });
        }
        self.edit(ino, None, Work::end);
        // Others may have a free way now, whomever they wait for.
        if kind == FileKind::Directory && matches!(step, Step::Rename { .. }) {
            for ino in std::mem::take(&mut self.turning) {
                self.stop_waiting(ino);
                self.candidate(ino);
            }
        }
    }

    /// The step under way was not done, or perhaps ([`Trouble::Later`]).
    pub fn failed(&mut self, now: Timestamp, ino: Ino, trouble: Trouble) {
        self.board.flights.remove(&ino);
        self.lift(ino);
        let Settings { retry_first, retry_most, held_retry, .. } = self.settings;
        let until = match trouble {
            Trouble::Later => {
                let tries = self.tries.entry(ino).or_default();
                let pause = retry_first.saturating_mul(1 << (*tries).min(20)).min(retry_most);
                *tries = tries.saturating_add(1);
                Some(now.plus(pause))
            }
            Trouble::Refused(_) => Some(now.plus(held_retry)),
            Trouble::Conflict(_) | Trouble::Gone => None,
        };
        self.pauses.insert(ino, Pause { until, trouble });
        self.timers.extend(until.map(|until| (until, ino)));
        if matches!(trouble, Trouble::Refused(_)) {
            self.board.refused.insert(ino);
        }
        self.edit(ino, None, |work| {
            if trouble != Trouble::Later {
                work.undo();
            }
        });
    }

    /// Its directory was reconciled, or somebody says that what refused it is mended: it is tried again.
    pub fn release(&mut self, ino: Ino) {
        self.lift(ino);
        self.candidate(ino);
    }

    /// They have the name `theirs` no more, or have given it to something else, and we take ours off, `last` if it has no
    /// other ([`crate::Action::Remove`], and `Conflict` of what was deleted here).
    pub fn gone(&mut self, ino: Ino, theirs: Place, ours: Option<Place>, last: bool) {
        self.lift(ino);
        self.edit(ino, None, |work| work.gone(theirs, ours, last));
    }

    /// They renamed it, and our name does not follow ([`crate::Action::Moved`]).
    pub fn moved(&mut self, ino: Ino, from: Place, to: Place) {
        self.lift(ino);
        self.edit(ino, None, |work| {
            work.vacated(from);
            work.gained(to);
        });
    }

    /// They have it no more, and it is made anew with these names and this version of its data ([`crate::Action::PutBack`], and
    /// `Conflict` where ours lost its place).
    pub fn displaced(
        &mut self,
        now: Timestamp,
        (ino, kind): (Ino, FileKind),
        names: BTreeSet<Place>,
        version: Option<u64>,
    ) {
        self.board.flights.remove(&ino);
        self.lift(ino);
        self.edit(ino, Some((now, kind)), |work| work.displaced(names, version));
    }

    /// Nothing of it is to be applied any more, whatever its names.
    pub fn forget(&mut self, ino: Ino) {
        self.board.flights.remove(&ino);
        self.lift(ino);
        if let Some(work) = self.board.take(ino) {
            self.drop_state(ino, &work);
            self.changed.insert(ino);
        }
        self.stop_waiting(ino);
        self.wake(ino);
    }

    fn begin(&mut self, ino: Ino, step: Step, parent: &dyn Fn(Ino) -> Option<Ino>) -> Option<Entry> {
        self.stop_waiting(ino);
        let work = self.board.works.get(&ino)?;
        self.candidates.remove(&(work.seq, ino));
        let above = self.board.above(ino, work, &step, parent);
        self.board.flights.insert(ino, above);
        self.board.index(ino, Some(&step));
        let work = self.board.works.get_mut(&ino)?;
        let again = work.begun.is_some();
        if !again {
            work.begin(&step);
            self.changed.insert(ino);
        }
        Some(Entry { ino, kind: work.kind, step, again, staged: work.staged })
    }

    /// Has `ino` wait for `by`. If that closes a circle: who goes out of the way, and how.
    fn wait(&mut self, ino: Ino, by: Ino, parent: &dyn Fn(Ino) -> Option<Ino>) -> Option<(Ino, Step)> {
        self.wait_for(ino, by);
        let mut circle = vec![ino];
        let mut at = by;
        while at != ino {
            if circle.contains(&at) {
                return None;
            }
            circle.push(at);
            at = *self.waiting_on.get(&at)?;
        }
        let movers = circle.into_iter().filter_map(|ino| {
            let work = self.board.works.get(&ino)?;
            Some((work.seq, ino, work, self.board.way_out(ino, work)?))
        });
        let (_, mover, work, step) = movers.min_by_key(|(seq, ..)| *seq)?;
        match self.board.in_the_way(mover, work, &step, parent) {
            None => Some((mover, step)),
            Some(flight) => {
                // A rename that is under way: the circle is looked at again when it has ended.
                self.stop_waiting(mover);
                self.wait_for(mover, flight);
                None
            }
        }
    }

    fn wait_for(&mut self, ino: Ino, by: Ino) {
        self.waiting_on.insert(ino, by);
        self.waiters.entry(by).or_default().insert(ino);
        if self.board.works.get(&ino).is_some_and(|work| work.is_dir() && !work.minus.is_empty()) {
            self.turning.insert(ino);
        }
    }

    fn stop_waiting(&mut self, ino: Ino) {
        self.turning.remove(&ino);
        if let Some(by) = self.waiting_on.remove(&ino)
            && let Some(waiters) = self.waiters.get_mut(&by)
        {
            waiters.remove(&ino);
            if waiters.is_empty() {
                self.waiters.remove(&by);
            }
        }
    }

    /// Something about `by` changed.
    fn wake(&mut self, by: Ino) {
        for ino in self.waiters.remove(&by).unwrap_or_default() {
            self.waiting_on.remove(&ino);
            self.turning.remove(&ino);
            self.candidate(ino);
        }
    }

    fn candidate(&mut self, ino: Ino) {
        let idle = !self.board.flights.contains_key(&ino) && !self.pauses.contains_key(&ino);
        if let Some(work) = self.board.works.get(&ino).filter(|_| idle) {
            self.candidates.insert((work.seq, ino));
        }
    }

    fn end_pauses(&mut self, now: Timestamp) {
        // A clock that was set back must not make a pause of an hour.
        let most = now.plus(self.settings.retry_most.max(self.settings.held_retry));
        let over = |time: Timestamp| time <= now || time > most;
        let ended: Vec<Ino> =
            self.timers.iter().filter(|(time, _)| over(*time)).map(|(_, ino)| *ino).collect();
        for ino in ended {
            self.lift(ino);
            self.candidate(ino);
        }
    }

    fn lift(&mut self, ino: Ino) {
        self.board.refused.remove(&ino);
        if let Some(Pause { until: Some(until), .. }) = self.pauses.remove(&ino) {
            self.timers.remove(&(until, ino));
        }
    }

    /// Changes the work of an inode, making it if `new` says how.
    fn edit(&mut self, ino: Ino, new: Option<(Timestamp, FileKind)>, change: impl FnOnce(&mut Work)) {
        let mut work = match (self.board.take(ino), new) {
            (Some(work), _) => work,
            (None, Some((since, kind))) => {
                self.next_seq += 1;
                Work::new(self.next_seq - 1, since, kind)
            }
            (None, None) => return,
        };
        change(&mut work);
        self.stop_waiting(ino);
        if work.is_done() {
            self.drop_state(ino, &work);
        } else {
            self.by_seq.insert((work.seq, ino));
            self.board.put(ino, work);
            self.candidate(ino);
        }
        self.changed.insert(ino);
        self.wake(ino);
    }

    /// There is nothing more to do.
    fn drop_state(&mut self, ino: Ino, work: &Work) {
        self.by_seq.remove(&(work.seq, ino));
        self.candidates.remove(&(work.seq, ino));
        self.lift(ino);
        self.tries.remove(&ino);
    }
}
