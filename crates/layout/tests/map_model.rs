//! Goal: the residency map does what a plain table of states would do, and keeps its invariants.
//! Method: random operations on both; after each, the map's own check and a full comparison.
#![allow(clippy::unwrap_used, reason = "a test")]

use layout::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use types::{SAU_BYTES, TierId, TierSet};

/// A SAU that is not in the table is a hole.
type Model = BTreeMap<u32, Sau>;

/// The chunks after the first, as a store would hold them: only what a save says is written or deleted.
type Stored = BTreeMap<u32, Vec<u8>>;

/// Saves what changed and reads all of it back.
fn save_and_load(map: SauMap, stored: &mut Stored) -> SauMap {
    let record = ObjectRecord { map, ..ObjectRecord::default() };
    for chunk in record.map.changed() {
        match record.encode_chunk(chunk) {
            Some(bytes) => drop(stored.insert(chunk, bytes)),
            None => drop(stored.remove(&chunk)),
        }
    }
    let mut partial = ObjectRecord::decode(&record.encode()).unwrap();
    assert_eq!(partial.missing() as usize, stored.len());
    for (chunk, bytes) in stored.iter() {
        partial.add(*chunk, bytes).unwrap();
    }
    partial.finish().unwrap().map
}

#[derive(Clone, Debug)]
enum Op {
    Written(u32, TierId),
    Replaced(u32, TierId),
    Punched(u32),
    Copied(u32, TierId, Option<Seal>),
    Dropped(u32, TierId),
    Failed(u32, TierId),
    Truncate(u64),
    ForgetMemory,
    Store,
    Keep,
    RollBack,
}

fn any_tier() -> impl Strategy<Value = TierId> {
    prop::sample::select(&TierId::ALL[..])
}

/// Few SAUs, so that operations meet, at the borders of the map's parts.
fn any_sau() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..6, 254u32..259, 1022u32..1027, Just(5000), Just(SAUS_MAX - 1)]
}

fn any_seal() -> impl Strategy<Value = Option<Seal>> {
    prop::option::of((0u32..3, prop_oneof![0u32..3, Just(4 << 20)]).prop_map(|(crc, len)| Seal { crc, len }))
}

fn any_op() -> impl Strategy<Value = Op> {
    let sau = any_sau;
    prop_oneof![
        6 => (sau(), any_tier()).prop_map(|(s, t)| Op::Written(s, t)),
        4 => (sau(), any_tier()).prop_map(|(s, t)| Op::Replaced(s, t)),
        2 => sau().prop_map(Op::Punched),
        6 => (sau(), any_tier(), any_seal()).prop_map(|(s, t, seal)| Op::Copied(s, t, seal)),
        4 => (sau(), any_tier()).prop_map(|(s, t)| Op::Dropped(s, t)),
        1 => (sau(), any_tier()).prop_map(|(s, t)| Op::Failed(s, t)),
        2 => (sau(), 0u64..3).prop_map(|(s, b)| Op::Truncate(u64::from(s) * SAU_BYTES + b)),
        1 => Just(Op::ForgetMemory),
        1 => Just(Op::Store),
        1 => Just(Op::Keep),
        1 => Just(Op::RollBack),
    ]
}

fn put(model: &mut Model, n: u32, state: Sau) {
    if state.is_hole() {
        model.remove(&n);
    } else {
        model.insert(n, state);
    }
}

fn apply(map: &mut SauMap, model: &mut Model, stored: &mut Stored, op: &Op) {
    let at = |n: u32| SauIndex::new(n).unwrap();
    let old = |model: &Model, n: u32| model.get(&n).copied().unwrap_or(Sau::HOLE);
    match *op {
        Op::Written(n, tier) => {
            let was = old(model, n);
            let allowed = was.is_hole() || was.valid.contains(tier);
            assert_eq!(map.note_written(at(n), tier).is_ok(), allowed);
            if allowed {
                put(model, n, Sau::in_tiers(TierSet::of(tier)));
            }
        }
        Op::Replaced(n, tier) => {
            map.note_replaced(at(n), tier);
            put(model, n, Sau::in_tiers(TierSet::of(tier)));
        }
        Op::Punched(n) => {
            map.note_punched(at(n));
            model.remove(&n);
        }
        Op::Copied(n, tier, seal) => {
            let was = old(model, n);
            let clash = was.seal.zip(seal).is_some_and(|(a, b)| a.len == b.len && a.crc != b.crc);
            let allowed = !was.valid.is_empty() && !clash;
            assert_eq!(map.note_copied(at(n), tier, seal).is_ok(), allowed);
            if allowed {
                put(model, n, Sau { valid: was.valid.with(tier), lost: false, seal: seal.or(was.seal) });
            }
        }
        Op::Dropped(n, tier) => {
            let was = old(model, n);
            let left = was.valid.without(tier);
            let allowed = was.valid.contains(tier) && !left.is_empty();
            assert_eq!(map.note_dropped(at(n), tier).is_ok(), allowed);
            if allowed {
                put(model, n, Sau { valid: left, ..was });
            }
        }
        Op::Failed(n, tier) => {
            let was = old(model, n);
            let left = was.valid.without(tier);
            let after = match (was.valid.contains(tier), left.is_empty()) {
                (false, _) => was,
                (true, true) => Sau::LOST,
                (true, false) => Sau { valid: left, ..was },
            };
            assert_eq!(map.note_failed(at(n), tier), after.lost);
            put(model, n, after);
        }
        Op::Truncate(size) => {
            map.truncate_to(size);
            model.retain(|n, _| u64::from(*n) * SAU_BYTES < size);
            for (n, state) in model.iter_mut() {
                let start = u64::from(*n) * SAU_BYTES;
                state.seal = state.seal.filter(|s| start + u64::from(s.len) <= size);
            }
        }
        Op::ForgetMemory => {
            let doomed = model.values().filter(|s| s.valid == TierSet::MEMORY).count();
            assert_eq!(map.forget_memory() as usize, doomed);
            for state in model.values_mut().filter(|s| s.valid.contains(TierId::Memory)) {
                let left = state.valid.without(TierId::Memory);
                *state = if left.is_empty() { Sau::LOST } else { Sau { valid: left, ..*state } };
            }
        }
        Op::Store => {
            *map = save_and_load(std::mem::take(map), stored);
            assert_eq!(map.changed().count(), 0);
        }
        Op::Keep => map.keep(),
        Op::RollBack => map.roll_back(),
    }
}

fn compare(map: &SauMap, model: &Model) {
    map.check().unwrap();
    let found: Vec<_> = map.iter().map(|(sau, state)| (sau.get(), state)).collect();
    let expected: Vec<_> = model.iter().map(|(n, s)| (*n, *s)).collect();
    assert_eq!(found, expected);
    assert_eq!(map.len(), model.last_key_value().map_or(0, |(n, _)| n + 1));
    assert_eq!(map.used() as usize, model.len());
    assert_eq!(map.lost() as usize, model.values().filter(|s| s.lost).count());
    let used = model.values().fold(0, |bits, s| bits | s.valid.bits());
    assert_eq!(map.tiers_used().bits(), used);
    for tier in TierId::ALL {
        assert_eq!(map.is_wholly_in(tier), model.values().all(|s| s.valid.contains(tier)));
        assert_eq!(map.count_in(tier) as usize, model.values().filter(|s| s.valid.contains(tier)).count());
    }
    let dirty: Vec<u32> = model.iter().filter(|(_, s)| s.valid == TierSet::MEMORY).map(|(n, _)| *n).collect();
    assert_eq!(map.dirty().map(SauIndex::get).collect::<Vec<_>>(), dirty);
    assert_eq!(map.is_dirty(), !dirty.is_empty());
    let size = 5 * SAU_BYTES + 7;
    let risk: u64 = dirty.iter().map(|n| size.saturating_sub(u64::from(*n) * SAU_BYTES).min(SAU_BYTES)).sum();
    assert_eq!(map.bytes_at_risk(size), risk);
    for size in [size, 255 * SAU_BYTES + 7, FILE_BYTES_MAX - 5] {
        let within = |n: &u32| size.saturating_sub(u64::from(*n) * SAU_BYTES).min(SAU_BYTES);
        assert_eq!(map.bytes_within(size), model.keys().map(within).sum::<u64>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_map_is_a_table_of_states(ops in prop::collection::vec(any_op(), 0..60)) {
        let (mut map, mut model, mut stored) = (SauMap::new(), Model::new(), Stored::new());
        let mut kept = Model::new();
        for op in &ops {
            apply(&mut map, &mut model, &mut stored, op);
            if matches!(op, Op::Store | Op::Keep) {
                kept.clone_from(&model);
            } else if matches!(op, Op::RollBack) {
                model.clone_from(&kept);
            }
            compare(&map, &model);
        }
    }

    #[test]
    fn pieces_tile_their_range(offset in 0u64..(40 << 20), len in 0u64..(20 << 20)) {
        let mut at = offset;
        for piece in pieces(offset, len) {
            prop_assert_eq!(piece.offset, at);
            prop_assert_eq!(SauIndex::of(piece.offset), piece.sau);
            prop_assert!(piece.len > 0 && piece.end() <= piece.sau.end());
            at = piece.end();
        }
        prop_assert_eq!(at, offset + len);
    }
}

#[test]
fn ranges_at_the_end_of_the_world_are_cut() {
    // Goal: hostile offsets give no panic and no SAU out of range. Method: the extreme values.
    assert_eq!(pieces(u64::MAX, u64::MAX).count(), 0);
    assert_eq!(pieces(FILE_BYTES_MAX, 1).count(), 0);
    assert_eq!(pieces(7, 0).count(), 0);
    let last: Vec<_> = pieces(FILE_BYTES_MAX - 1, u64::MAX).collect();
    assert_eq!(last.len(), 1);
    assert_eq!((last[0].sau.get(), last[0].len), (SAUS_MAX - 1, 1));
    assert_eq!(SauIndex::new(SAUS_MAX), None);
    let mut map = SauMap::new();
    map.note_replaced(last[0].sau, TierId::Ssd);
    map.truncate_to(u64::MAX);
    assert_eq!(map.used(), 1);
    map.truncate_to(0);
    assert!(map.is_empty());
}

#[test]
fn an_inconsistent_state_is_not_set() {
    // Goal: I-LAYOUT-1 and -2 cannot be broken through `set`. Method: each kind of inconsistency.
    let seal = Some(Seal { crc: 1, len: 1 });
    let long = Some(Seal { crc: 1, len: (SAU_BYTES + 1) as u32 });
    let mut map = SauMap::new();
    for bad in [
        Sau { lost: true, valid: TierSet::MEMORY, seal: None },
        Sau { lost: true, valid: TierSet::EMPTY, seal },
        Sau { lost: false, valid: TierSet::EMPTY, seal },
        Sau { lost: false, valid: TierSet::MEMORY, seal: long },
    ] {
        assert!(!map.set(SauIndex::ZERO, bad));
    }
    assert!(map.is_empty());
}
