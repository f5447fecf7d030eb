//! Answers that are not known to be durable, of the files that are open, and for a while of those that were: who opens one again and syncs it means what
//! he wrote before, too. On a guarded mount they are written down for the process that goes on with it.
//!
//! - I-OUT-1: an answer is written down before the kernel has it, and no more when it is durable, told as lost, or forgotten.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use handover::{Estate, Place};
use parking_lot::Mutex;
use proto::data::Object;
use types::Ino;

use crate::answered::Answered;

/// A data server has made safe by itself what was written before this, however busy it is.
const LEFT_LASTS: Duration = Duration::from_secs(120);
const LEFT_MAX: usize = 65_536;
const PRUNE_MIN: usize = 1024;

/// Of all openings of a file.
pub(crate) type OfFile = Arc<Mutex<Answered>>;

#[derive(Default)]
pub(crate) struct Outstanding {
    files: Mutex<Files>,
    written: Mutex<HashMap<(Ino, usize), Place>>,
    /// Of a guarded mount.
    estate: OnceLock<Arc<Estate>>,
}

#[derive(Default)]
struct Files {
    by_ino: HashMap<Ino, Weak<Mutex<Answered>>>,
    /// Nobody has them open any more.
    left: VecDeque<(Instant, Ino, OfFile)>,
    /// Those that are gone are looked for when there are so many.
    prune_at: usize,
}

impl Outstanding {
    /// Of a file that is being opened: the one that its other openings have.
    pub(crate) fn of(&self, ino: Ino) -> OfFile {
        let mut files = self.files.lock();
        self.forget_old(&mut files, Instant::now());
        if let Some(one) = files.by_ino.get(&ino).and_then(Weak::upgrade) {
            return one;
        }
        if files.by_ino.len() >= files.prune_at {
            files.by_ino.retain(|_, one| one.strong_count() > 0);
            files.prune_at = files.by_ino.len() * 2 + PRUNE_MIN;
        }
        let one = OfFile::default();
        files.by_ino.insert(ino, Arc::downgrade(&one));
        one
    }

    /// One of its openings is closed.
    pub(crate) fn left(&self, ino: Ino, of_file: &OfFile) {
        if of_file.lock().has_any() {
            let mut files = self.files.lock();
            let now = Instant::now();
            files.left.push_back((now, ino, of_file.clone()));
            self.forget_old(&mut files, now);
        }
    }

    fn forget_old(&self, files: &mut Files, now: Instant) {
        let is_old = |(since, ..): &(Instant, Ino, OfFile)| now.duration_since(*since) > LEFT_LASTS;
        while files.left.len() > LEFT_MAX || files.left.front().is_some_and(is_old) {
            let Some((_, ino, one)) = files.left.pop_front() else { return };
            // Nobody can come to it any more but through this table.
            if Arc::strong_count(&one) == 1 && self.estate.get().is_some() {
                one.lock().stripes().for_each(|stripe| self.strike(ino, stripe));
            }
        }
    }

    /// What is known has changed. Before the kernel is answered.
    pub(crate) fn write_down(&self, ino: Ino, answered: &mut Answered) {
        let changes = answered.changes();
        let Some(estate) = self.estate.get() else { return };
        for (stripe, now) in changes {
            let Some(((node, object), life)) = now else {
                self.strike(ino, stripe);
                continue;
            };
            let record = [ino.get(), stripe as u64, node, object.generation.into(), life];
            let Some(place) = estate.answers.add(record) else {
                estate.set_incomplete();
                continue;
            };
            let before = self.written.lock().insert((ino, stripe), place);
            before.into_iter().for_each(|place| estate.answers.remove(place));
        }
    }

    fn strike(&self, ino: Ino, stripe: usize) {
        let place = self.written.lock().remove(&(ino, stripe));
        if let (Some(estate), Some(place)) = (self.estate.get(), place) {
            estate.answers.remove(place);
        }
    }

    /// What is written down there holds from now on. Before a file is opened.
    pub(crate) fn take_over(&self, estate: &Arc<Estate>) {
        if self.estate.set(estate.clone()).is_err() {
            tracing::error!("answers are written down already");
        }
        for (place, [node, stripe, at, generation, life]) in estate.answers.records() {
            let known = Ino::from_raw(node).zip(usize::try_from(stripe).ok().zip(generation.try_into().ok()));
            let Some((ino, (stripe, generation))) = known else { continue };
            let there = self.written.lock().insert((ino, stripe), place);
            // The process before ended between writing the new one down and striking the old one.
            there.into_iter().for_each(|place| estate.answers.remove(place));
            let of = self.of(ino);
            of.lock().inherited(stripe, (at, Object { ino: node, generation, view: None }), life);
            self.files.lock().left.push_back((Instant::now(), ino, of));
        }
    }
}
