//! The ObjectID table (paper, section 6.3): inode number -> OB-i, and the records that OB-i indexes.
//!
//! OB-i are small numbers from zero, reused after a removal. Records live in fixed chunks, so that growing copies
//! nothing; the index holds only OB-i and looks the inode number up in the record. Bound: `u32::MAX - 1` objects.

use hashbrown::HashTable;
use types::{Ino, TierId, TierSet};

/// OB-i.
pub type Ob = u32;
/// No object: the end of a list.
pub const NIL: Ob = Ob::MAX;
const CHUNK: usize = 1024;

/// One object's neighbours in the LRU table of one tier.
#[derive(Clone, Copy)]
pub struct Link {
    pub prev: Ob,
    pub next: Ob,
}

/// What is remembered of one object: 88 bytes, and about 8 in the index.
pub struct Object {
    pub ino: Ino,
    bytes: [u64; 3],
    /// When it was last opened (open files) or closed, microseconds.
    pub since_us: u64,
    /// Means over `co_n` and `oc_n` periods, seconds.
    pub t_co: f32,
    pub t_oc: f32,
    pub co_n: u16,
    pub oc_n: u16,
    /// In the LRU tables of memory and of SSD.
    pub links: [Link; 2],
    pub opens: u32,
    /// The SAU whose access last moved it to the tail; `u32::MAX` for none.
    pub last_sau: u32,
    /// Write-behind delay of its policy, milliseconds; `u32::MAX` for the default.
    pub delay_ms: u32,
    pub flags: u16,
    /// Tiers that hold bytes which no slower tier has.
    pub dirty: TierSet,
    pub pinned: TierSet,
    /// Kept for the shell, with [`Object::FILES`].
    pub files: TierSet,
}

impl Object {
    /// In the LRU table of tier `i`: bit `i`.
    pub const LINKED: [u16; 2] = [1, 2];
    pub const TRANSIENT: u16 = 4;
    /// Its policy says that opening brings it up, or ([`Object::STAY`]) that it does not.
    pub const PROMOTE: u16 = 8;
    pub const PASSTHROUGH: u16 = 16;
    /// A movement or drop of it is under way.
    pub const MOVING: u16 = 32;
    /// Its last movement failed; not tried again before a timer.
    pub const RESTING: u16 = 64;
    /// Found no room anywhere when it had to leave; left alone for a while. Copies and requests may still try.
    pub const HOMELESS: u16 = 256;
    pub const STAY: u16 = 512;
    /// Came up for a first reading, and was neither read again nor written. Clean in every tier.
    pub const PROBATION: u16 = 2048;
    /// `files` is known.
    pub const FILES: u16 = 1024;
    /// The shell has no state of it.
    pub const DETACHED: u16 = 128;

    fn new(ino: Ino, now_us: u64) -> Object {
        let none = Link { prev: NIL, next: NIL };
        Object {
            ino,
            bytes: [0; 3],
            since_us: now_us,
            t_co: 0.0,
            t_oc: 0.0,
            co_n: 0,
            oc_n: 0,
            links: [none; 2],
            opens: 0,
            last_sau: u32::MAX,
            delay_ms: u32::MAX,
            flags: 0,
            dirty: TierSet::EMPTY,
            pinned: TierSet::EMPTY,
            files: TierSet::EMPTY,
        }
    }
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
    pub fn set(&mut self, flag: u16, on: bool) {
        if on { self.flags |= flag } else { self.flags &= !flag }
    }
    pub fn is_open(&self) -> bool {
        self.opens > 0
    }
    pub fn bytes(&self) -> [u64; 3] {
        self.bytes
    }
    pub fn holds(&self, tier: TierId) -> u64 {
        self.bytes[tier.index()]
    }
}

/// A chunk's slots; a slot is `None` while its OB-i is unused.
type Chunk = Box<[Option<Object>]>;

pub struct ObjectTable {
    chunks: Vec<Chunk>,
    index: HashTable<Ob>,
    free: Vec<Ob>,
    /// OB-i from here on were never used.
    fresh: Ob,
    /// Records with bytes in each tier.
    holding: [u64; 3],
    /// Bytes of what is on probation.
    probation: [u64; 3],
}

/// Inode numbers are ours and sequential: no attacker chooses them, a multiplicative hash spreads them well.
fn hash(ino: Ino) -> u64 {
    let x = ino.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 32)
}

fn slot(chunks: &[Chunk], ob: Ob) -> Option<&Object> {
    chunks.get(ob as usize / CHUNK)?[ob as usize % CHUNK].as_ref()
}

impl ObjectTable {
    pub fn new() -> ObjectTable {
        ObjectTable {
            chunks: Vec::new(),
            index: HashTable::new(),
            free: Vec::new(),
            fresh: 0,
            holding: [0; 3],
            probation: [0; 3],
        }
    }

    pub fn find(&self, ino: Ino) -> Option<Ob> {
        let same = |ob: &Ob| slot(&self.chunks, *ob).is_some_and(|o| o.ino == ino);
        self.index.find(hash(ino), same).copied()
    }

    pub fn get(&self, ob: Ob) -> Option<&Object> {
        slot(&self.chunks, ob)
    }

    pub fn get_mut(&mut self, ob: Ob) -> Option<&mut Object> {
        self.chunks.get_mut(ob as usize / CHUNK)?[ob as usize % CHUNK].as_mut()
    }

    /// The record of `ino`, made if there is none; `NIL` (which finds nothing) when the numbers are used up.
    pub fn ensure(&mut self, ino: Ino, now_us: u64) -> Ob {
        if let Some(ob) = self.find(ino) {
            return ob;
        }
        let ob = match self.free.pop() {
            Some(ob) => ob,
            None if self.fresh == NIL => return NIL,
            None => {
                if self.fresh as usize == self.chunks.len() * CHUNK {
                    self.chunks.push((0..CHUNK).map(|_| None).collect());
                }
                self.fresh += 1;
                self.fresh - 1
            }
        };
        self.chunks[ob as usize / CHUNK][ob as usize % CHUNK] = Some(Object::new(ino, now_us));
        let chunks = &self.chunks;
        let rehash = |ob: &Ob| slot(chunks, *ob).map_or(0, |o| hash(o.ino));
        self.index.insert_unique(hash(ino), ob, rehash);
        ob
    }

    /// Takes the record out; its OB-i is free for another. It must not be in any list.
    pub fn remove(&mut self, ob: Ob) -> Option<Object> {
        let object = self.chunks.get_mut(ob as usize / CHUNK)?[ob as usize % CHUNK].take()?;
        if let Ok(entry) = self.index.find_entry(hash(object.ino), |o| *o == ob) {
            entry.remove();
        }
        self.free.push(ob);
        for (count, bytes) in self.holding.iter_mut().zip(object.bytes) {
            *count -= u64::from(bytes > 0);
        }
        if object.has(Object::PROBATION) {
            self.probation.iter_mut().zip(object.bytes).for_each(|(all, bytes)| *all -= bytes);
        }
        Some(object)
    }

    /// What an object holds in a tier changes by so much; never below nothing.
    pub fn change_held(&mut self, ob: Ob, tier: TierId, delta: i64) {
        let Some(object) = self.get(ob) else { return };
        let mut bytes = object.bytes;
        let held = &mut bytes[tier.index()];
        *held = held.saturating_add_signed(delta);
        self.set_held(ob, bytes);
    }

    pub fn set_held(&mut self, ob: Ob, bytes: [u64; 3]) {
        let Some(object) = self.get_mut(ob) else { return };
        let before = std::mem::replace(&mut object.bytes, bytes);
        if object.has(Object::PROBATION) {
            for (all, (before, after)) in self.probation.iter_mut().zip(before.into_iter().zip(bytes)) {
                *all = *all + after - before;
            }
        }
        for (count, (before, after)) in self.holding.iter_mut().zip(before.into_iter().zip(bytes)) {
            *count = *count + u64::from(after > 0) - u64::from(before > 0);
        }
    }

    /// It must not be in any list.
    pub fn set_probation(&mut self, ob: Ob, on: bool) {
        let Some(object) = self.get_mut(ob).filter(|object| object.has(Object::PROBATION) != on) else {
            return;
        };
        object.set(Object::PROBATION, on);
        let bytes = object.bytes;
        for (all, bytes) in self.probation.iter_mut().zip(bytes) {
            *all = if on { *all + bytes } else { *all - bytes };
        }
    }

    /// Bytes on probation in the tier.
    pub fn on_probation(&self, tier: TierId) -> u64 {
        self.probation[tier.index()]
    }

    /// Records with bytes in the tier.
    pub fn holding(&self, tier: TierId) -> u64 {
        self.holding[tier.index()]
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.index.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_reused_and_small() {
        // Goal: OB-i start at zero, are found by inode number, and come back after a removal; the record stays small.
        let ino = |n| Ino::from_raw(n).unwrap();
        let mut table = ObjectTable::new();
        for n in 1..=3000u64 {
            assert_eq!(table.ensure(ino(n), 0), n as Ob - 1);
        }
        assert_eq!(table.ensure(ino(7), 0), 6);
        assert_eq!(table.remove(6).unwrap().ino, ino(7));
        assert!(table.find(ino(7)).is_none() && table.get(6).is_none());
        assert_eq!(table.ensure(ino(9999), 0), 6);
        assert_eq!(table.find(ino(9999)), Some(6));
        assert_eq!(table.find(ino(3000)), Some(2999));
        assert_eq!(table.len(), 3000);
        assert!(size_of::<Option<Object>>() <= 96, "{}", size_of::<Option<Object>>());
    }

    #[test]
    fn records_with_bytes_are_counted() {
        // Goal: the count of each tier is that of the records with bytes there. Method: some of each kind of change.
        let mut table = ObjectTable::new();
        let a = table.ensure(Ino::from_raw(1).unwrap(), 0);
        let b = table.ensure(Ino::from_raw(2).unwrap(), 0);
        let counts = |table: &ObjectTable| TierId::ALL.map(|tier| table.holding(tier));
        table.set_held(a, [5, 0, 7]);
        table.change_held(b, TierId::Memory, 3);
        table.change_held(b, TierId::Memory, 3);
        assert_eq!(counts(&table), [2, 0, 1]);
        table.change_held(b, TierId::Memory, -6);
        table.set_held(a, [1, 1, 0]);
        assert_eq!(counts(&table), [1, 1, 0]);
        table.remove(a);
        table.remove(b);
        assert_eq!(counts(&table), [0; 3]);
    }
}
