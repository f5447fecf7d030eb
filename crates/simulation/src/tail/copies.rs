//! A standby's copy of one server's tail: the machine, and what is on its way to the file.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
    time::Duration,
};

use cluster::{
    tail::standby::{Input, Standby},
    tenure::Time,
};

use super::disk::File;
use crate::{
    message::{JournalRecords as Records, Known, Record},
    scene::Scene,
};

pub enum Write {
    Start { copy: u64, base: u64 },
    Keep { copy: u64, records: Records, up_to: u64 },
}

pub struct Copying {
    pub machine: Standby,
    /// By the copy and the number.
    pub incoming: BTreeMap<(u64, u64), Rc<Record>>,
    pub known: Known,
    writes: VecDeque<(Duration, Write)>,
}

impl Copying {
    pub fn new(machine: Standby) -> Copying {
        Copying { machine, incoming: BTreeMap::new(), known: Known::new(), writes: VecDeque::new() }
    }

    pub fn writes_later(&mut self, scene: &mut Scene, write: Write) {
        let at = scene.now() + scene.disk();
        let at = self.writes.back().map_or(at, |(last, _)| at.max(*last));
        self.writes.push_back((at, write));
    }

    /// What is ready by now, in order.
    pub fn write(&mut self, now: Duration, clock: Time, file: &mut File) {
        while self.writes.front().is_some_and(|(at, _)| now >= *at) {
            let Some((_, write)) = self.writes.pop_front() else { return };
            let kept = match write {
                Write::Start { copy, base } => {
                    let known = self.known.clone();
                    *file = File { copy, base, records: Records::new(), known };
                    Input::Kept { copy, up_to: base }
                }
                Write::Keep { copy, records, up_to } if file.copy == copy => {
                    file.records.extend(records);
                    Input::Kept { copy, up_to }
                }
                Write::Keep { .. } => continue,
            };
            self.machine.handle(clock, kept);
        }
    }
}
