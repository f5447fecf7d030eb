//! Where an object's bytes are, without taking it into use: for lists of many files.

use crate::{DataServer, ObjectHint, object::Object};
use layout::SauMap;
use types::{Errno, Ino, TierId};

/// Where an object is, in short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Glance {
    pub size: u64,
    /// Bytes of the file that each tier holds.
    pub bytes: [u64; 3],
    /// Bytes that a power cut now would lose.
    pub at_risk: u64,
    pub lost_saus: u32,
    /// A device refused to make bytes durable, and they were not made anew since.
    pub distrusted: bool,
    pub transient: bool,
    /// Programs may write to it.
    pub written: bool,
}

impl DataServer {
    /// Of an object that somebody uses as it is, else as it is recorded; nothing is loaded. `None`: nobody uses it, and its size is
    /// not known before it is.
    pub fn glance(&self, ino: Ino, hint: &ObjectHint) -> Result<Option<Glance>, Errno> {
        if let Some(object) = self.table.get(ino) {
            return Ok(Some(glance_at(&object)));
        }
        if hint.stale_live {
            return Ok(None);
        }
        let transient = self.policies.lock().get(&ino).is_some_and(|policy| policy.transient);
        let linked = hint.linked.filter(|_| self.linked.is_some());
        if !hint.written && linked.is_none() {
            return Ok(Some(Glance { size: hint.size, transient, ..Glance::default() }));
        }
        let map = match (self.maps.load(ino)?, linked) {
            (Some(record), _) => {
                let mut map = record.map;
                if record.memory_generation != self.memory_generation {
                    map.forget_memory();
                }
                map
            }
            (None, Some(theirs)) => {
                let mut map = SauMap::new();
                map.fill(hint.size.min(theirs), TierId::Nearline);
                map
            }
            (None, None) => SauMap::new(),
        };
        Ok(Some(Glance { transient, ..of_map(&map, hint.size) }))
    }

    /// Objects that programs may write to now.
    pub fn written(&self) -> Vec<Ino> {
        let mut written = self.table.select(&|object: &Object| object.is_open_for_write());
        written.extend(self.all_mapped().iter().map(|object| object.ino()));
        written
    }
}

fn glance_at(object: &Object) -> Glance {
    let state = object.state.read();
    Glance {
        distrusted: !object.unsynced.distrusted().is_empty(),
        transient: state.transient,
        written: object.is_open_for_write() || state.mapped.is_some(),
        ..of_map(&state.map, state.size)
    }
}

fn of_map(map: &SauMap, size: u64) -> Glance {
    let mut bytes = [0; 3];
    for (sau, now) in map.iter() {
        for tier in now.valid.iter() {
            bytes[tier.index()] += u64::from(sau.bytes_within(size));
        }
    }
    Glance { size, bytes, at_risk: map.bytes_at_risk(size), lost_saus: map.lost(), ..Glance::default() }
}
