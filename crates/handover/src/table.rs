//! Records of a few words, each at a place of its own for as long as it is there.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::mapping::Mapping;

/// Where a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u32);

/// Records of `W` words, of which the first is not zero.
pub struct Table<const W: usize> {
    memory: Arc<Mapping>,
    /// Of its first word.
    at: usize,
    /// The word that says how many places were ever used.
    used_at: usize,
    capacity: u32,
    free: Mutex<Free>,
}

struct Free {
    used: u32,
    places: Vec<u32>,
}

impl<const W: usize> Table<W> {
    /// As an earlier process left it.
    pub(crate) fn open(memory: &Arc<Mapping>, at: usize, used_at: usize, capacity: u32) -> Table<W> {
        let used = u32::try_from(memory.load(used_at)).map_or(capacity, |used| used.min(capacity));
        let places = (0..used).rev().filter(|place| memory.load(at + *place as usize * W) == 0).collect();
        let free = Mutex::new(Free { used, places });
        Table { memory: Arc::clone(memory), at, used_at, capacity, free }
    }

    /// `None`: there is no room, or the first word is zero.
    pub fn add(&self, record: [u64; W]) -> Option<Place> {
        if record[0] == 0 {
            return None;
        }
        let place = {
            let mut free = self.free.lock();
            match free.places.pop() {
                Some(place) => place,
                None if free.used < self.capacity => {
                    free.used += 1;
                    self.memory.store(self.used_at, u64::from(free.used));
                    free.used - 1
                }
                None => return None,
            }
        };
        for (field, value) in record.iter().enumerate().rev() {
            self.memory.store(self.word(Place(place)) + field, *value);
        }
        Some(Place(place))
    }

    /// Any field but the first.
    pub fn set(&self, place: Place, field: usize, value: u64) {
        assert!((1..W).contains(&field), "field {field} of a record of {W} words");
        self.memory.store(self.word(place) + field, value);
    }

    pub fn remove(&self, place: Place) {
        self.memory.store(self.word(place), 0);
        self.free.lock().places.push(place.0);
    }

    /// All that are there.
    pub fn records(&self) -> Vec<(Place, [u64; W])> {
        let used = self.free.lock().used;
        let record = |place: u32| {
            let word = self.word(Place(place));
            (Place(place), std::array::from_fn(|field| self.memory.load(word + field)))
        };
        (0..used).map(record).filter(|(_, record)| record[0] != 0).collect()
    }

    fn word(&self, place: Place) -> usize {
        self.at + place.0 as usize * W
    }
}
