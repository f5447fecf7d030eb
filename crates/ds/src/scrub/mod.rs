//! All bytes that have a checksum are read again and again, long before somebody needs them: what a device has changed by itself is found
//! while another tier still has it.
//!
//! - [`course`] when a pass is due and how far it is.
//! - [`compare`] one object: its copies against their checksums, and what becomes of one that is wrong.
//!
//! No lock is held while bytes are read, each round reads a bounded number of them, and those of devices past the page cache: what the device has counts,
//! and nobody's pages are driven out.

mod compare;
mod course;

use std::{
    collections::{BTreeSet, VecDeque},
    ops::ControlFlow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use compare::Compared;
pub use course::{Found, Pass, Record};
use layout::SauIndex;
use parking_lot::Mutex;
use store::ScanEntry;
use types::{Errno, Ino};

use self::course::Course;
use crate::DataServer;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubOptions {
    /// From the end of one pass to the beginning of the next; `None`: only when somebody asks.
    pub every: Option<Duration>,
    /// Bytes that a round reads, that is [`crate::DsOptions::sync_period`].
    pub round_bytes: u64,
}

/// A pass, and what of its present part is still to be read.
pub(crate) struct Scrub {
    state: Mutex<State>,
    /// Held by whoever reads.
    round: Mutex<()>,
    round_bytes: u64,
}

struct State {
    course: Course,
    part: Option<Part>,
    /// Nothing is kept yet: the time to the first pass would begin anew with each start.
    is_new: bool,
}

#[derive(Clone)]
struct Part {
    number: u16,
    objects: VecDeque<Ino>,
    /// In the first of them.
    from: SauIndex,
    found: Found,
}

impl Default for ScrubOptions {
    fn default() -> ScrubOptions {
        ScrubOptions { every: None, round_bytes: 32 << 20 }
    }
}

impl Scrub {
    pub fn new(options: ScrubOptions, record: Option<Vec<u8>>) -> Scrub {
        let kept = record.and_then(|bytes| {
            let kept = Record::decode(&bytes);
            if kept.is_none() {
                tracing::error!("how far the checksums were compared cannot be read: it begins anew");
            }
            kept
        });
        let course = Course::new(options.every, kept, clock());
        let state = Mutex::new(State { course, part: None, is_new: kept.is_none() });
        Scrub { state, round: Mutex::default(), round_bytes: options.round_bytes }
    }
}

impl DataServer {
    /// How far the present pass is, or what the last one found.
    pub fn scrubbed(&self) -> Record {
        let state = self.scrub.state.lock();
        let mut record = *state.course.record();
        if let Some(part) = &state.part {
            record.found.add(&part.found);
        }
        record
    }

    /// Begins a pass. `false`: one is under way.
    pub fn scrub(&self) -> Result<bool, Errno> {
        let begins = self.scrub.state.lock().course.ask(clock());
        if begins {
            self.save_course()?;
            tracing::info!("all checksums are compared");
        }
        Ok(begins)
    }

    /// Ends the present pass where it is.
    pub fn stop_scrub(&self) -> Result<(), Errno> {
        {
            let mut state = self.scrub.state.lock();
            let found = state.part.take().map(|part| part.found);
            state.course.stop(&found.unwrap_or_default(), clock());
        }
        self.save_course()
    }

    /// One round.
    pub(crate) fn scrub_round(&self) {
        let _round = self.scrub.round.lock();
        let is_new = std::mem::take(&mut self.scrub.state.lock().is_new);
        if is_new && let Err(errno) = self.save_course() {
            self.scrub.state.lock().is_new = true;
            tracing::warn!(%errno, "when checksums are compared is not kept yet");
            return;
        }
        let mut left = self.scrub.round_bytes;
        while left > 0 && !self.stopping() {
            match self.scrub_some(&mut left) {
                Ok(true) => (),
                Ok(false) => return,
                Err(errno) => {
                    tracing::warn!(%errno, "comparing checksums was interrupted");
                    return;
                }
            }
        }
    }

    /// The next object, or the next part. `false`: there is nothing to do.
    fn scrub_some(&self, left: &mut u64) -> Result<bool, Errno> {
        let (number, next) = {
            let mut state = self.scrub.state.lock();
            let Some(number) = state.course.due(clock()) else { return Ok(false) };
            let part = state.part.as_ref().filter(|part| part.number == number);
            (number, part.map(|part| part.objects.front().map(|ino| (*ino, part.from))))
        };
        match next {
            None => {
                let objects = self.objects_of_part(number)?;
                let part = Part { number, objects, from: SauIndex::ZERO, found: Found::default() };
                self.scrub.state.lock().part = Some(part);
            }
            Some(None) => return self.end_part(number),
            Some(Some((ino, from))) => {
                let compared = self.compare_object(ino, from, left);
                self.note_compared(number, ino, compared);
            }
        }
        Ok(true)
    }

    fn note_compared(&self, number: u16, ino: Ino, compared: Result<Compared, Errno>) {
        let mut state = self.scrub.state.lock();
        // Somebody may have stopped it meanwhile.
        let Some(part) = state.part.as_mut().filter(|part| part.number == number) else { return };
        let compared = compared.unwrap_or_else(|errno| {
            if errno == Errno::ENOENT {
                return Compared::default();
            }
            tracing::warn!(%ino, %errno, "the checksums of an object were not compared");
            Compared { found: Found { passed_over: 1, ..Found::default() }, next: None }
        });
        part.found.add(&compared.found);
        if let Some(next) = compared.next {
            part.from = next;
        } else {
            part.objects.pop_front();
            part.from = SauIndex::ZERO;
        }
    }

    /// `true`: there is more of the pass.
    fn end_part(&self, number: u16) -> Result<bool, Errno> {
        let (ends, record) = {
            let mut state = self.scrub.state.lock();
            let Some(part) = state.part.take_if(|part| part.number == number) else { return Ok(true) };
            let ends = state.course.read(number, part.found, clock());
            (ends, *state.course.record())
        };
        self.save_course()?;
        if ends {
            let Found { bytes, damaged, repaired, hopeless, passed_over } = record.found;
            tracing::info!(bytes, damaged, repaired, hopeless, passed_over, "all checksums were compared");
        }
        Ok(!ends)
    }

    fn save_course(&self) -> Result<(), Errno> {
        let record = *self.scrub.state.lock().course.record();
        self.maps.save_scrub(&record.encode())
    }

    fn objects_of_part(&self, number: u16) -> Result<VecDeque<Ino>, Errno> {
        let mut objects = BTreeSet::new();
        for store in self.stores.iter().flatten() {
            let _ = store.scan_part(number.into(), &mut |entry| {
                if let ScanEntry::Object { ino, .. } = entry {
                    objects.insert(ino);
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(objects.into_iter().collect())
    }
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
