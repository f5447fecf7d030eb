//! The two buffers above the engine: what was committed since the last checkpoint (active), and what a running
//! checkpoint carries into the engine (frozen).
//!
//! Invariants: active hides frozen, frozen hides the engine. For one key the commit with the highest [`Lsn`] wins,
//! in whatever order they arrive. Divided by UGSD, so that two UGSDs do not wait for each other; the locks are held
//! for single map operations and short copies only, never while a caller's code runs.

use std::{collections::BTreeMap, ops::Bound, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use namespace::txn::{KvError, Visit};
use parking_lot::RwLock;

use crate::{
    Lsn,
    key::{Key, ugsd_of},
};

const SHARDS: usize = 64;
/// What an entry costs in a map beyond its bytes: its node share, and the value's allocation.
const ENTRY_BYTES: usize = 112;

pub(crate) type Map = BTreeMap<Key, Slot>;
pub(crate) type Entries = Vec<(Key, Option<Bytes>)>;

/// A value, or `None` for a deletion.
pub(crate) struct Slot {
    lsn: Lsn,
    pub value: Option<Bytes>,
}

#[derive(Default)]
struct Shard {
    active: Map,
    active_bytes: usize,
    frozen: Option<Arc<Map>>,
    frozen_bytes: usize,
}

pub(crate) struct Overlay {
    shards: Box<[RwLock<Shard>]>,
}

/// A part of a range: its entries in order, and where it ends when that is before the range does (exclusive).
pub(crate) struct Part {
    pub entries: Entries,
    pub end: Option<Vec<u8>>,
}

impl Overlay {
    pub(crate) fn new() -> Overlay {
        Overlay { shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    /// `Some(None)`: known to be absent.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let inline = Key::inline(key);
        // Keys compare faster with each other than with bytes.
        let find = |map: &Map| match &inline {
            Some(inline) => map.get(inline).map(|slot| slot.value.clone()),
            None => map.get(key).map(|slot| slot.value.clone()),
        };
        let shard = self.shards[shard_of(ugsd_of(key))].read();
        find(&shard.active).or_else(|| find(shard.frozen.as_deref()?))
    }

    pub(crate) fn insert(&self, entries: Entries, lsn: Lsn) {
        let mut entries = entries.into_iter().peekable();
        while let Some(ugsd) = entries.peek().map(|(key, _)| ugsd_of(key)) {
            let mut shard = self.shards[shard_of(ugsd)].write();
            while let Some((key, value)) = entries.next_if(|(key, _)| ugsd_of(key) == ugsd) {
                shard.insert(key, Slot { lsn, value });
            }
        }
    }

    /// Active becomes frozen. The caller excludes commits.
    pub(crate) fn freeze(&self) {
        for shard in &self.shards {
            let mut shard = shard.write();
            debug_assert!(shard.frozen.is_none());
            if !shard.active.is_empty() {
                shard.frozen = Some(Arc::new(std::mem::take(&mut shard.active)));
                shard.frozen_bytes = std::mem::take(&mut shard.active_bytes);
            }
        }
    }

    pub(crate) fn frozen(&self) -> Vec<Arc<Map>> {
        self.shards.iter().filter_map(|shard| shard.read().frozen.clone()).collect()
    }

    pub(crate) fn drop_frozen(&self) {
        for shard in &self.shards {
            let mut shard = shard.write();
            let freed = shard.frozen.take();
            shard.frozen_bytes = 0;
            drop(shard);
            drop(freed);
        }
    }

    /// In memory, estimated.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.read()).map(|s| s.active_bytes + s.frozen_bytes).sum()
    }

    /// The first entries of `from <= key < to`, about `limit` of each buffer.
    pub(crate) fn part(&self, from: &[u8], to: &[u8], limit: usize) -> Part {
        let mut part = Part { entries: Vec::new(), end: None };
        match single_ugsd(from, to) {
            Some(ugsd) => self.shards[shard_of(ugsd)].read().collect(from, to, limit, &mut part),
            None => {
                for shard in &self.shards {
                    shard.read().collect(from, to, limit, &mut part);
                }
            }
        }
        // Stable: where both buffers have a key, active comes first.
        part.entries.sort_by(|a, b| a.0.cmp(&b.0));
        part.entries.dedup_by(|later, earlier| later.0 == earlier.0);
        if let Some(end) = &part.end {
            let keep = part.entries.partition_point(|(key, _)| **key < **end);
            part.entries.truncate(keep);
        }
        part
    }
}

impl Shard {
    fn insert(&mut self, key: Key, slot: Slot) {
        let cost = |key: &Key, slot: &Slot| {
            ENTRY_BYTES + key.heap_bytes() + slot.value.as_ref().map_or(0, Bytes::len)
        };
        let added = cost(&key, &slot);
        match self.active.entry(key) {
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(slot);
                self.active_bytes += added;
            }
            std::collections::btree_map::Entry::Occupied(mut there) => {
                if there.get().lsn <= slot.lsn {
                    let removed = cost(there.key(), there.get());
                    there.insert(slot);
                    self.active_bytes = (self.active_bytes + added).saturating_sub(removed);
                }
            }
        }
    }

    fn collect(&self, from: &[u8], to: &[u8], limit: usize, part: &mut Part) {
        for map in [Some(&self.active), self.frozen.as_deref()].into_iter().flatten() {
            if map.is_empty() {
                continue;
            }
            let range = map.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
            let before = part.entries.len();
            part.entries.extend(range.take(limit).map(|(key, slot)| (key.clone(), slot.value.clone())));
            if part.entries.len() - before < limit {
                continue;
            }
            let Some((last, _)) = part.entries.last() else { continue };
            let after_last = [&**last, &[0]].concat();
            if part.end.as_ref().is_none_or(|end| after_last < *end) {
                part.end = Some(after_last);
            }
        }
    }
}

fn shard_of(ugsd: u32) -> usize {
    ugsd as usize % SHARDS
}

/// The UGSD that every key of `from <= key < to` belongs to.
fn single_ugsd(from: &[u8], to: &[u8]) -> Option<u32> {
    let (first, end) = (ugsd_of(from), ugsd_of(to));
    let to_is_a_boundary = to.iter().skip(3).all(|b| *b == 0) && to.len() >= 3;
    (first == end || (to_is_a_boundary && first + 1 == end)).then_some(first)
}

/// Shows `above` over what `below` visits: both in key order, `above` wins, its `None` hides.
pub(crate) fn merge(
    above: &[(Key, Option<Bytes>)],
    below: impl FnOnce(Visit<'_>) -> Result<(), KvError>,
    visit: Visit<'_>,
) -> Result<ControlFlow<()>, KvError> {
    let mut above = above.iter().peekable();
    let mut flow = ControlFlow::Continue(());
    below(&mut |key, value| {
        while let Some((own, own_value)) = above.next_if(|(own, _)| **own < *key) {
            if let Some(own_value) = own_value {
                flow = visit(own, own_value);
                if flow.is_break() {
                    return flow;
                }
            }
        }
        flow = match above.next_if(|(own, _)| **own == *key) {
            Some((own, Some(own_value))) => visit(own, own_value),
            Some((_, None)) => ControlFlow::Continue(()),
            None => visit(key, value),
        };
        flow
    })?;
    while flow.is_continue()
        && let Some((own, own_value)) = above.next()
    {
        if let Some(own_value) = own_value {
            flow = visit(own, own_value);
        }
    }
    Ok(flow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_commit_wins_in_any_order_of_arrival() {
        let overlay = Overlay::new();
        let entry = |text: &'static str| vec![(Key::new(b"key"), Some(Bytes::from(text)))];
        overlay.insert(entry("second"), Lsn(2));
        overlay.insert(entry("first"), Lsn(1));
        assert_eq!(overlay.get(b"key"), Some(Some(Bytes::from("second"))));
    }

    #[test]
    fn ranges_of_one_ugsd_are_recognised() {
        let at = |n: u64| n.to_be_bytes();
        assert_eq!(single_ugsd(&at(5 << 40), &at((5 << 40) + 9)), Some(5));
        assert_eq!(single_ugsd(&at(5 << 40), &at(6 << 40)), Some(5));
        assert_eq!(single_ugsd(&at(5 << 40), &at((6 << 40) + 1)), None);
        assert_eq!(single_ugsd(&at(5 << 40), &at(7 << 40)), None);
        assert_eq!(single_ugsd(b"", &[0, 0, 0, 4]), Some(0));
    }

    #[test]
    fn parts_cover_a_range_without_a_hole_or_a_repeat() {
        // Goal: part after part gives exactly the map's content. Method: keys in both buffers and in several
        // UGSDs, every small limit.
        let overlay = Overlay::new();
        let key = |n: u64| (n * 7_000_000_000_000).to_be_bytes();
        let put = |n: u64, text: &'static str| {
            overlay.insert(vec![(Key::new(&key(n)), Some(Bytes::from(text)))], Lsn(n))
        };
        (0..40).for_each(|n| put(n, "frozen"));
        overlay.freeze();
        (0..40).filter(|n| n % 3 == 0).for_each(|n| put(n, "active"));
        for limit in 1..50 {
            let (mut from, mut seen) = (Vec::new(), Vec::new());
            loop {
                let part = overlay.part(&from, &[255; 9], limit);
                seen.extend(part.entries);
                match part.end {
                    Some(end) => from = end,
                    None => break,
                }
            }
            let expected: Entries = (0..40)
                .map(|n| (Key::new(&key(n)), Some(Bytes::from(if n % 3 == 0 { "active" } else { "frozen" }))))
                .collect();
            assert_eq!(seen, expected, "limit {limit}");
        }
    }
}
