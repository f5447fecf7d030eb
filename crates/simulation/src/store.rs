//! What a data server's process leaves behind: devices, and the journal of its residency maps. A model of both.

use std::collections::BTreeMap;

use layout::ObjectRecord;
use types::{Ino, TierId};

use crate::chance::Random;

/// Cells of one object on one device, by offset.
pub type Cells = BTreeMap<u64, u64>;

#[derive(Clone, Default)]
struct OnDisk {
    now: Cells,
    /// What a power cut leaves for sure.
    synced: Cells,
}

/// Outlives the process; of the machine without power only what is synced stays.
#[derive(Default)]
pub struct Devices {
    memory: BTreeMap<Ino, Cells>,
    ssd: BTreeMap<Ino, OnDisk>,
    written: BTreeMap<Ino, Vec<u8>>,
    synced: BTreeMap<Ino, Vec<u8>>,
    pub generation: u32,
}

impl Devices {
    pub fn get(&self, tier: TierId, ino: Ino, offset: u64) -> u64 {
        let cells = match tier {
            TierId::Memory => self.memory.get(&ino),
            TierId::Ssd | TierId::Nearline => self.ssd.get(&ino).map(|disk| &disk.now),
        };
        cells.and_then(|cells| cells.get(&offset)).copied().unwrap_or(0)
    }

    pub fn put(&mut self, tier: TierId, ino: Ino, offset: u64, value: u64) {
        match tier {
            TierId::Memory => drop(self.memory.entry(ino).or_default().insert(offset, value)),
            TierId::Ssd | TierId::Nearline => {
                self.ssd.entry(ino).or_default().now.insert(offset, value);
            }
        }
    }

    /// The blocks of a range are given back.
    pub fn punch(&mut self, tier: TierId, ino: Ino, range: std::ops::Range<u64>) {
        match tier {
            TierId::Memory => {
                if let Some(cells) = self.memory.get_mut(&ino) {
                    cells.retain(|at, _| !range.contains(at));
                }
            }
            TierId::Ssd | TierId::Nearline => {
                if let Some(disk) = self.ssd.get_mut(&ino) {
                    disk.now.retain(|at, _| !range.contains(at));
                }
            }
        }
    }

    pub fn sync_ssd(&mut self) {
        self.ssd.values_mut().for_each(|disk| disk.synced.clone_from(&disk.now));
    }

    pub fn save(&mut self, ino: Ino, record: &ObjectRecord) {
        self.written.insert(ino, record.encode());
    }

    pub fn sync_journal(&mut self) {
        self.synced = self.written.clone();
    }

    pub fn load(&self) -> BTreeMap<Ino, ObjectRecord> {
        let decode = |(ino, bytes): (&Ino, &Vec<u8>)| {
            let record = ObjectRecord::decode(bytes).and_then(layout::Partial::finish);
            assert!(record.is_ok(), "what was saved can be read: {record:?}");
            record.ok().map(|record| (*ino, record))
        };
        self.written.iter().filter_map(decode).collect()
    }

    /// Of what is not synced each cell may be on the disk or not.
    pub fn power_cut(&mut self, random: &mut Random) {
        self.memory.clear();
        self.generation += 1;
        self.written = self.synced.clone();
        for disk in self.ssd.values_mut() {
            let offsets: Vec<u64> = disk.now.keys().chain(disk.synced.keys()).copied().collect();
            for at in offsets {
                if random.one_in(2) {
                    match disk.synced.get(&at).copied() {
                        Some(value) => drop(disk.now.insert(at, value)),
                        None => drop(disk.now.remove(&at)),
                    }
                }
            }
            disk.synced = disk.now.clone();
        }
    }
}
