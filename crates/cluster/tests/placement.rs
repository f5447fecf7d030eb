//! Goal: data go where there is room, two copies never where one fault takes both, and the same question has one answer. Method: random
//! clusters and wishes, each rule looked up in the layout; shares counted over many seeds.
#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};

use cluster::{
    Change, ClusterMap, Epoch, Node, NodeId, NodeState,
    placement::{GROUP_COUNT, Measure, Measures, NoPlace, Striping, Wish, Writers, place},
};
use proptest::prelude::*;
use types::SAU_BYTES;
use wire::handshake::Roles;

fn ds(id: u64, rack: u64, state: NodeState) -> Node {
    let labels = if rack == 0 { BTreeMap::new() } else { [("rack".to_owned(), format!("r{rack}"))].into() };
    let (name, joined) = (format!("n{id}"), Epoch(1));
    Node { id: NodeId(id), name, addresses: Vec::new(), roles: Roles::DS, labels, state, joined }
}

fn map_of(nodes: impl IntoIterator<Item = Node>) -> ClusterMap {
    ClusterMap::first([1; 16]).next(&nodes.into_iter().map(Change::Put).collect::<Vec<_>>()).expect("a map")
}

fn wish(writers: Writers) -> Wish {
    Wish { writers, fixed: None, replicated: false, job: BTreeSet::new(), seed: 1 }
}

fn free(gib: u64) -> Measure {
    Measure { free: gib << 30, busy: 0, slow: false }
}

#[test]
fn layouts_of_first_writes() {
    let map = map_of((1..=6).map(|id| ds(id, id % 2 + 1, NodeState::Up)));
    let measures: Measures = (1..=6).map(|id| (NodeId(id), free(8))).collect();
    let local = place(&map, &measures, &wish(Writers::One(NodeId(3)))).expect("room");
    assert_eq!((local.stripes.len(), local.stripes[0].primary, local.unit), (1, NodeId(3), 4 << 20));
    let several = place(&map, &measures, &wish(Writers::Several)).expect("room");
    assert_eq!((several.stripes.len(), several.unit), (4, 4 << 20));
    let elsewhere = place(&map, &measures, &wish(Writers::One(NodeId(99)))).expect("room");
    assert_eq!(elsewhere.stripes.len(), 4, "a writer without a data server is striped");
    let fixed = |count, unit| Wish { fixed: Some(Striping { count, unit }), ..wish(Writers::One(NodeId(3))) };
    let two = place(&map, &measures, &fixed(2, 8 << 20)).expect("room");
    assert_eq!((two.stripes.len(), two.stripes[0].primary, two.unit), (2, NodeId(3), 8 << 20));
    assert_eq!(place(&map, &measures, &fixed(7, 4 << 20)), Err(NoPlace::TooFew { wanted: 7, found: 6 }));
    assert_eq!(place(&map, &measures, &fixed(0, 4 << 20)), Err(NoPlace::Count(0)));
    assert_eq!(place(&map, &measures, &fixed(2, 5)), Err(NoPlace::Unit(5)));
    let none = place(&map, &Measures::new(), &wish(Writers::Several));
    assert_eq!(none, Err(NoPlace::TooFew { wanted: 1, found: 0 }));
}

/// Both primaries could take node 3; only the second has no other.
#[test]
fn a_choice_of_secondary_is_taken_back() {
    for seed in 0..50 {
        let map = map_of([(1, 1), (2, 2), (3, 3), (4, 2)].map(|(id, rack)| ds(id, rack, NodeState::Up)));
        let measures: Measures =
            [(1, 900), (2, 900), (3, 4), (4, 1)].map(|(id, gib)| (NodeId(id), free(gib))).into();
        let fixed = Some(Striping { count: 2, unit: SAU_BYTES });
        let wish = Wish { fixed, replicated: true, seed, ..wish(Writers::One(NodeId(1))) };
        let layout = place(&map, &measures, &wish).expect("there is a way");
        if layout.stripes[1].primary == NodeId(2) {
            let secondaries: Vec<_> = layout.stripes.iter().map(|stripe| stripe.secondary).collect();
            assert_eq!(secondaries, [Some(NodeId(4)), Some(NodeId(3))]);
        }
    }
    let map = map_of([1, 2].map(|id| ds(id, 1, NodeState::Up)));
    let measures: Measures = [1, 2].map(|id| (NodeId(id), free(1))).into();
    let wish = Wish { replicated: true, ..wish(Writers::One(NodeId(1))) };
    assert_eq!(place(&map, &measures, &wish), Err(NoPlace::NoSecondary { primary: NodeId(1) }));
}

#[test]
fn a_secondary_is_not_on_the_jobs_nodes_if_it_can_be() {
    let map = map_of((1..=4).map(|id| ds(id, id, NodeState::Up)));
    let measures: Measures = (1..=4).map(|id| (NodeId(id), free(if id == 4 { 1 } else { 500 }))).collect();
    for seed in 0..50 {
        let job = [1, 2, 3].map(NodeId).into();
        let one = Wish { replicated: true, job, seed, ..wish(Writers::One(NodeId(1))) };
        assert_eq!(place(&map, &measures, &one).expect("room").stripes[0].secondary, Some(NodeId(4)));
        let all = Wish { job: (1..=4).map(NodeId).collect(), ..one };
        assert!(place(&map, &measures, &all).is_ok(), "better there than nowhere");
    }
}

/// I-PLACE-2. Method: 20,000 files on one server each; a share may differ by five standard deviations.
#[test]
fn shares_are_as_free_space_and_idleness() {
    let map = map_of((1..=4).map(|id| ds(id, 0, NodeState::Up)));
    let mut measures: Measures = (1..=4).map(|id| (NodeId(id), free(10 * id))).collect();
    measures.insert(NodeId(4), Measure { free: 40 << 30, busy: 500, slow: false });
    let mut count: BTreeMap<NodeId, u64> = BTreeMap::new();
    let files = 20_000;
    for seed in 0..files {
        let fixed = Some(Striping { count: 1, unit: SAU_BYTES });
        let layout = place(&map, &measures, &Wish { fixed, seed, ..wish(Writers::Several) }).expect("room");
        *count.entry(layout.stripes[0].primary).or_default() += 1;
    }
    for (id, weight) in [(1, 10.0), (2, 20.0), (3, 30.0), (4, 20.0)] {
        let (share, all) = (weight / 80.0, files as f64);
        let (want, slack) = (share * all, 5.0 * (all * share * (1.0 - share)).sqrt());
        let got = count[&NodeId(id)] as f64;
        assert!((got - want).abs() < slack, "node {id}: {got}, where {want} are its share");
    }
}

fn clusters() -> impl Strategy<Value = (ClusterMap, Measures)> {
    let states = prop_oneof![
        6 => Just(NodeState::Up),
        1 => Just(NodeState::Draining),
        1 => Just(NodeState::Down),
        1 => Just(NodeState::Joining)
    ];
    let frees = prop_oneof![1 => 0..SAU_BYTES, 4 => SAU_BYTES..1 << 40];
    let node = (0..5u64, states, prop::option::weighted(0.9, (frees, 0..2000u32)));
    prop::collection::vec(node, 0..14).prop_map(|nodes| {
        let ids = 1..;
        let each: Vec<_> = ids.zip(nodes).collect();
        let map = map_of(each.iter().map(|(id, (rack, state, _))| ds(*id, *rack, *state)));
        let measured = each.iter().filter_map(|(id, (_, _, measure))| {
            measure.map(|(free, busy)| (NodeId(*id), Measure { free, busy, slow: false }))
        });
        (map, measured.collect())
    })
}

fn wishes() -> impl Strategy<Value = Wish> {
    let writers = prop_oneof![Just(Writers::Several), (1..15u64).prop_map(|id| Writers::One(NodeId(id)))];
    let fixed = prop::option::of((1..6u16, 1..3u64));
    let job = prop::collection::btree_set((1..15u64).prop_map(NodeId), 0..4);
    (writers, fixed, any::<bool>(), job, any::<u64>()).prop_map(|(writers, fixed, replicated, job, seed)| {
        Wish {
            writers,
            fixed: fixed.map(|(count, units)| Striping { count, unit: units * SAU_BYTES }),
            replicated,
            job,
            seed,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// I-PLACE-1, and that an error is right.
    #[test]
    fn layouts_keep_the_rules((map, measures) in clusters(), wish in wishes()) {
        let found = place(&map, &measures, &wish);
        prop_assert_eq!(&found, &place(&map, &measures, &wish), "determined");
        let unit = wish.fixed.map_or(SAU_BYTES, |fixed| fixed.unit);
        let usable = |id: NodeId| {
            map.node(id).is_some_and(|node| node.state == NodeState::Up)
                && measures.get(&id).is_some_and(|measure| measure.free >= unit)
        };
        let many = map.nodes().filter(|node| usable(node.id)).count();
        let local = match wish.writers {
            Writers::One(id) => Some(id).filter(|id| usable(*id)),
            Writers::Several => None,
        };
        let count = match (wish.fixed, local) {
            (Some(fixed), _) => usize::from(fixed.count),
            (None, Some(_)) => 1,
            (None, None) => many.clamp(1, usize::from(GROUP_COUNT)),
        };
        match found {
            Ok(layout) => {
                prop_assert_eq!((layout.unit, layout.stripes.len()), (unit, count));
                let all: Vec<NodeId> = layout.stripes.iter().flat_map(|s| [Some(s.primary), s.secondary]).flatten().collect();
                prop_assert!(all.iter().all(|id| usable(*id)));
                prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "no duplicates");
                prop_assert_eq!(all.len(), count * if wish.replicated { 2 } else { 1 });
                prop_assert!(local.is_none_or(|id| layout.stripes[0].primary == id));
                for stripe in &layout.stripes {
                    let rack = |id| map.node(id).and_then(Node::rack);
                    let same = stripe.secondary.and_then(rack).is_some_and(|r| rack(stripe.primary) == Some(r));
                    prop_assert!(!same, "in one rack");
                }
            }
            Err(NoPlace::TooFew { wanted, found }) => {
                prop_assert_eq!((usize::from(wanted), usize::from(found)), (count, many));
                prop_assert!(many < count);
            }
            Err(NoPlace::NoSecondary { .. }) => prop_assert!(wish.replicated && many >= count),
            Err(NoPlace::Count(_) | NoPlace::Unit(_)) => prop_assert!(false, "the wish was good"),
        }
    }
}

/// I-PLACE-3. Method: by hand, and 200 seeds.
#[test]
fn a_server_with_a_slow_device_is_taken_last() {
    let map = map_of((1..=4).map(|id| ds(id, id, NodeState::Up)));
    let slow = Measure { slow: true, ..free(100) };
    let mut measures: Measures =
        [(1, free(1)), (2, slow), (3, free(1)), (4, free(1))].map(|(id, m)| (NodeId(id), m)).into();
    for seed in 0..200 {
        let layout = place(&map, &measures, &Wish { seed, ..wish(Writers::Several) }).expect("room");
        assert!(layout.stripes.iter().all(|stripe| stripe.primary != NodeId(2)), "{layout:?}");
        assert_eq!(layout.stripes.len(), 3);
        let own = place(&map, &measures, &Wish { seed, ..wish(Writers::One(NodeId(2))) }).expect("room");
        assert!(
            own.stripes.iter().all(|stripe| stripe.primary != NodeId(2)),
            "also not on its own node: {own:?}"
        );
    }
    let fixed = Some(Striping { count: 4, unit: SAU_BYTES });
    let all =
        place(&map, &measures, &Wish { fixed, ..wish(Writers::Several) }).expect("better there than nowhere");
    assert_eq!(all.stripes.len(), 4);
    measures.values_mut().for_each(|measure| measure.slow = true);
    assert_eq!(place(&map, &measures, &wish(Writers::Several)).expect("all are").stripes.len(), 4);
}
