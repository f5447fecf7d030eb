//! Has the log's steps made: hands them out to a few threads, makes what they did durable, several at once, and records it.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, bounded};
use link::{Entry, Log, Op, Trouble};
use types::{Errno, FileKind, Ino, Timestamp};

use crate::{
    Linked,
    done::{Copied, Done, Record},
    pending::Pending,
    records,
};

/// Steps whose results are recorded in one commit, at the most.
const BATCH: usize = 64;
/// The runner looks around this often though nothing calls it.
const ROUND: Duration = Duration::from_secs(1);

type Made = (Entry, Result<Done, Trouble>);

impl Linked {
    pub(crate) fn run(self: &Arc<Linked>) -> std::io::Result<()> {
        let threads = self.settings.threads.max(1);
        // A step is handed out only to a thread that is free, so neither is ever full.
        let (jobs, queue) = bounded::<Entry>(threads);
        let (made, results) = bounded::<Made>(threads);
        for n in 0..threads {
            let (this, queue, made) = (self.clone(), queue.clone(), made.clone());
            self.spawn(format!("link-step-{n}"), move || this.run_steps(&queue, &made))?;
        }
        let this = self.clone();
        self.spawn("link-log".to_owned(), move || this.run_log(&jobs, &results, threads))
    }

    fn run_steps(&self, queue: &Receiver<Entry>, made: &Sender<Made>) {
        for entry in queue {
            let result = self.do_step(&entry);
            if made.send((entry, result)).is_err() {
                return;
            }
        }
    }

    fn run_log(&self, jobs: &Sender<Entry>, results: &Receiver<Made>, threads: usize) {
        let mut flying = 0;
        loop {
            if !self.is_stopping() && self.may_write() {
                for entry in self.begin_steps(threads - flying) {
                    flying += 1;
                    if jobs.send(entry).is_err() {
                        return;
                    }
                }
            }
            if self.is_stopping() && flying == 0 {
                return;
            }
            let mut batch = Vec::new();
            crossbeam_channel::select! {
                recv(results) -> result => batch.extend(result.ok()),
                recv(self.called) -> _ => {}
                default(self.until_next()) => {}
            }
            batch.extend(results.try_iter().take(BATCH));
            flying -= batch.len();
            if !batch.is_empty() {
                self.record_steps(batch);
            }
        }
    }

    fn until_next(&self) -> Duration {
        let next = self.ledger.lock().next_moment();
        next.map_or(ROUND, |moment| moment.since(self.now()).clamp(Duration::from_millis(1), ROUND))
    }

    /// Steps that may be made now, and are recorded as begun.
    fn begin_steps(&self, most: usize) -> Vec<Entry> {
        if most == 0 {
            return Vec::new();
        }
        let now = self.now();
        let mut begun = Vec::new();
        {
            let mut change = self.ledger.change();
            change.pending.make_due(now);
            let parent = |ino: Ino| self.parent_of(ino);
            begun.extend(change.pending.log.ready(now, most, &parent));
            begun.iter().for_each(|entry| change.pending.touch(entry));
            let entries = change.entries();
            if entries.is_empty() {
                change.commit();
                return begun;
            }
            match self.ledger.mds.put_records(&entries, !begun.is_empty()) {
                Ok(()) => {
                    change.commit();
                    return begun;
                }
                Err(errno) => {
                    tracing::error!(%errno, "what is to be applied in the linked directory cannot be recorded")
                }
            }
        }
        // It is as it was, but that they fly.
        self.put_off(now, begun.iter());
        Vec::new()
    }

    /// What was done is durable there before we say that it is done.
    fn record_steps(&self, batch: Vec<Made>) {
        let mut unsynced: BTreeSet<Vec<Vec<u8>>> = BTreeSet::new();
        for (_, result) in &batch {
            unsynced.extend(result.iter().flat_map(|done| done.changed.iter().cloned()));
        }
        let failed: BTreeSet<Vec<Vec<u8>>> =
            unsynced.into_iter().filter(|way| !self.is_synced(way)).collect();
        // What was done in another directory that had its place meanwhile is not done.
        let known = self.check_root().is_ok();
        let settled = |result: Result<Done, Trouble>| match result {
            _ if !known => Err(Trouble::Later),
            Ok(done) if done.changed.iter().any(|way| failed.contains(way)) => Err(Trouble::Later),
            other => other,
        };
        let batch: Vec<Made> = batch.into_iter().map(|(entry, result)| (entry, settled(result))).collect();
        let now = self.now();
        let is_published = |(_, result): &&Made| result.as_ref().is_ok_and(|done| done.published.is_some());
        let published: Vec<Ino> = batch.iter().filter(is_published).map(|(entry, _)| entry.ino).collect();
        self.ledger.lock().telling.extend(&published);
        let recorded = self.ledger.alter(false, |pending| {
            let entries = batch
                .iter()
                .flat_map(|(entry, result)| self.note_result(now, pending, entry, result))
                .collect();
            ((), entries)
        });
        match recorded {
            Ok(()) => batch.into_iter().for_each(|(entry, result)| self.after_step(&entry, result)),
            Err(errno) => {
                tracing::error!(%errno, "what was applied in the linked directory cannot be recorded: it is found done later");
                self.put_off(now, batch.iter().map(|(entry, _)| entry));
            }
        }
        // Whoever waited for it finds it everywhere.
        self.ledger.lock().telling.retain(|ino| !published.contains(ino));
        self.ledger.turned.notify_all();
    }

    /// They are tried again; what is stored of them is as it was.
    fn put_off<'a>(&self, now: Timestamp, entries: impl Iterator<Item = &'a Entry>) {
        let mut pending = self.ledger.lock();
        for entry in entries {
            pending.landed(entry);
            pending.log.failed(now, entry.ino, Trouble::Later);
        }
    }

    fn is_synced(&self, way: &[Vec<u8>]) -> bool {
        match self.back.sync(way) {
            // It was removed since; what was in it is gone with it.
            Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => true,
            Err(error) => {
                tracing::warn!(%error, way = %show(way), "what was changed in the linked directory cannot be made durable: it is tried again");
                false
            }
        }
    }

    fn after_step(&self, entry: &Entry, result: Result<Done, Trouble>) {
        match result {
            Ok(done) => {
                self.counters.applied.add(1);
                if let Some((Copied { snapshot, held, .. }, source)) = done.published {
                    let noted = self.ds().and_then(|ds| ds.note_published(snapshot, source));
                    if let Err(errno) = noted {
                        tracing::warn!(ino = %entry.ino, %errno, "what was published counts as unpublished still");
                    }
                    drop(held);
                }
            }
            Err(trouble @ (Trouble::Conflict(_) | Trouble::Gone)) => {
                tracing::debug!(ino = %entry.ino, ?trouble, step = ?entry.step, "a step waits for a look");
                self.look_soon(entry);
            }
            Err(Trouble::Refused(errno)) => {
                self.counters.refused.add(1);
                tracing::warn!(ino = %entry.ino, %errno, step = ?entry.step, "the linked directory refuses a change of ours");
            }
            Err(Trouble::Later) => self.counters.put_off.add(1),
        }
    }

    /// Waits until `done` says so, a step fails for this inode, or `stop`. Wakes the runner.
    pub(crate) fn wait_for(
        &self,
        ino: Ino,
        until: Option<Instant>,
        stop: &dyn Fn() -> bool,
        done: &dyn Fn(&Log) -> bool,
    ) -> Result<(), Errno> {
        let mut pending = self.ledger.lock();
        let mut patience = Patience::new(self);
        loop {
            if done(&pending.log) {
                return Ok(());
            }
            if let Some(errno) = pending.log.trouble_of(ino).and_then(of_trouble) {
                return Err(errno);
            }
            if stop() || self.is_stopping() {
                return Err(Errno::EINTR);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(Errno::ETIMEDOUT);
            }
            if until.is_none() && patience.has_ended(&pending.log, ino) {
                return Err(Errno::ETIMEDOUT);
            }
            self.ledger.turned.wait_for(&mut pending, Duration::from_millis(100));
        }
    }

    /// What a step's result does to the log, and the records that it leaves.
    fn note_result(
        &self,
        now: Timestamp,
        pending: &mut Pending,
        entry: &Entry,
        result: &Result<Done, Trouble>,
    ) -> Vec<records::Entry> {
        pending.landed(entry);
        let done = match result {
            Ok(done) => done,
            Err(trouble) => {
                pending.log.failed(now, entry.ino, *trouble);
                return Vec::new();
            }
        };
        if done.live {
            // Of what is written to it from now on nobody is told before it is closed. Before this version is done with: who
            // waits for it knows it by its number.
            let version = pending.next_version(entry.ino);
            pending.log.push(now, entry.ino, FileKind::Regular, Op::Written { version });
            pending.note_open(entry.ino, now, &self.settings);
        }
        let deleted = |victim: &Ino| pending.log.get(*victim).is_none_or(|work| work.deleted);
        let has_no_name = entry.step.over().is_some_and(|victim| deleted(&victim));
        pending.log.applied(entry.ino);
        let mut entries = Vec::new();
        match &done.record {
            Record::Stays => {}
            Record::Is(record) => entries.push(records::link_entry(entry.ino, Some(record))),
            Record::Goes => entries.push(records::link_entry(entry.ino, None)),
        }
        if let Some(victim) = entry.step.over() {
            let is_there = match pending.log.get(victim) {
                Some(work) => work.there,
                // All of it is applied: it is there by the names that it has.
                None => !has_no_name,
            };
            match &done.victim {
                // Who lost the name and has no other there has nothing there.
                _ if !is_there => entries.push(records::link_entry(victim, None)),
                Some(record) => entries.push(records::link_entry(victim, Some(record))),
                None => {}
            }
        }
        entries
    }
}

/// Of who waits as long as it goes on: a version of any size takes its time, a back end in trouble has its deadline.
struct Patience<'a> {
    linked: &'a Linked,
    applied: u64,
    /// Since when nothing was applied, and since when its own steps fail.
    idle: Instant,
    failing: Option<Instant>,
}

impl Patience<'_> {
    fn new(linked: &Linked) -> Patience<'_> {
        Patience { linked, applied: linked.counters.applied.get(), idle: Instant::now(), failing: None }
    }

    fn has_ended(&mut self, log: &Log, ino: Ino) -> bool {
        let deadline = self.linked.settings.deadline;
        let applied = self.linked.counters.applied.get();
        if applied != self.applied || log.is_in_flight(ino) {
            (self.applied, self.idle) = (applied, Instant::now());
        }
        if log.trouble_of(ino).is_some() {
            self.failing.get_or_insert_with(Instant::now);
        }
        let root = self.linked.current_trouble().map(|trouble| trouble.since);
        [Some(self.idle), self.failing, root].into_iter().flatten().any(|since| since.elapsed() >= deadline)
    }
}

/// What ends the waiting.
fn of_trouble(trouble: Trouble) -> Option<Errno> {
    match trouble {
        Trouble::Refused(errno) => Some(errno),
        Trouble::Later => None,
        Trouble::Conflict(_) | Trouble::Gone => Some(Errno::EBUSY),
    }
}

/// A way for messages.
pub(crate) fn show(way: &[Vec<u8>]) -> String {
    way.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>().join("/")
}
