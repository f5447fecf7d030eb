//! Goal: a map stays what it is through bytes and differences, and whatever is not one is an error. Method: golden bytes; each bit
//! changed; random sequences of changes sent as differences; fuzzing.
#![allow(clippy::expect_used)]

use cluster::{
    Change, ClusterMap, Difference, Epoch, Node, NodeId, NodeState, Refused, SlotEpoch,
    difference::{Applied, NotApplied},
    envelope::DecodeError,
    map::{MapError, NODES_MAX},
    node,
    route::{Admission, Owner, Redirected},
};
use proptest::prelude::*;
use types::{Ino, LocalId, Slot, UgsdId};
use wire::{handshake::Roles, schema::WrongOwner};

fn slot(n: u16) -> Slot {
    Slot::new(n).expect("a slot")
}

fn mds(id: u64) -> Node {
    Node {
        id: NodeId(id),
        name: format!("n{id}"),
        addresses: vec![format!("10.0.0.{id}:7400")],
        roles: Roles::MDS.and(Roles::DS),
        labels: [("rack".to_owned(), "r1".to_owned())].into(),
        state: NodeState::Up,
        joined: Epoch(1),
    }
}

fn own(n: u16, owner: u64, epoch: u64) -> Change {
    Change::Own { slot: slot(n), owner: NodeId(owner), epoch: SlotEpoch(epoch) }
}

fn two() -> ClusterMap {
    let first = ClusterMap::first(*b"0123456789abcdef");
    let standby = Change::Standby { of: NodeId(1), by: Some(NodeId(2)) };
    first
        .next(&[Change::Put(mds(1)), Change::Put(mds(2)), standby, own(0, 1, 1), own(4095, 2, 3)])
        .expect("a map")
}

fn shown(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

const MAP: &str = "4f4e434d 0100 0000 86000000 dac0f378 \
    0a10 30313233343536373839616263646566 1002 \
    1a27 0801 12026e31 1a0d31302e302e302e313a37343030 2006 2a0a 0a047261636b 12027231 3002 3801 \
    1a27 0802 12026e32 1a0d31302e302e302e323a37343030 2006 2a0a 0a047261636b 12027231 3002 3801 \
    2206 1001 1801 2001 2205 080110fe1f 2209 08ff1f 1001 1802 2003 2a04 08011002";
const DIFFERENCE: &str = "4f4e4344 0100 0000 2f000000 98554a96 \
    0a10 30313233343536373839616263646566 1002 1803 2a0101 3206 1001 1802 2002 3208 0801 1001 1802 2001 3a02 0801";

/// The sums were worked out by another program, too.
#[test]
fn golden_map() {
    let bytes = two().encode();
    assert_eq!(shown(&bytes), MAP.replace(' ', ""));
    assert_eq!(ClusterMap::decode(&bytes), Ok(two()));
}

#[test]
fn golden_difference() {
    let old = two();
    let new = old.next(&[own(0, 2, 2), own(1, 2, 1), Change::Remove(NodeId(1))]).expect("a map");
    let difference = Difference::between(&old, &new).expect("later");
    assert_eq!(shown(&difference.encode()), DIFFERENCE.replace(' ', ""));
    assert_eq!(Difference::decode(&difference.encode()), Ok(difference));
}

/// A sum tells each changed bit, and a cut or longer end is told by the length.
#[test]
fn damaged_bytes_are_errors() {
    let bytes = two().encode();
    for at in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[at / 8] ^= 1 << (at % 8);
        assert!(ClusterMap::decode(&damaged).is_err(), "bit {at}");
        assert!(ClusterMap::decode(&bytes[..at / 8]).is_err(), "cut at {}", at / 8);
    }
    assert!(ClusterMap::decode(&[&bytes[..], b"\0"].concat()).is_err());
    let mut later = bytes.clone();
    later[4] = 2;
    assert_eq!(ClusterMap::decode(&later), Err(DecodeError::Version { found: 2 }));
    assert!(matches!(Difference::decode(&bytes), Err(DecodeError::Magic { .. })));
}

/// Makes length and sum right again.
fn mend(bytes: &mut [u8]) {
    if bytes.len() >= 16 {
        let len = (bytes.len() - 16) as u32;
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
}

/// What is taken keeps the rules, so it can be sent on as it is.
#[test]
fn fuzz_cluster_map() {
    let good = [ClusterMap::first([7; 16]).encode(), two().encode()];
    fuzzing::fuzz(
        "cluster_map",
        &good,
        |bytes| mend(bytes),
        |bytes| {
            if let Ok(map) = ClusterMap::decode(bytes) {
                assert_eq!(ClusterMap::decode(&map.encode()), Ok(map));
            }
        },
    );
}

#[test]
fn fuzz_cluster_difference() {
    let old = two();
    let new = old.next(&[own(0, 2, 2), own(1, 2, 1), Change::Remove(NodeId(1))]).expect("a map");
    let good = [Difference::between(&old, &new).expect("later").encode()];
    fuzzing::fuzz(
        "cluster_difference",
        &good,
        |bytes| mend(bytes),
        |bytes| {
            if let Ok(difference) = Difference::decode(bytes) {
                let mut map = old.clone();
                match map.apply(&difference) {
                    Ok(Applied::Done) => assert_eq!(ClusterMap::decode(&map.encode()), Ok(map)),
                    Ok(Applied::Known) | Err(_) => assert_eq!(map, old, "as it was"),
                }
            }
        },
    );
}

#[test]
fn the_largest_map_fits_in_a_body() {
    let long = |n: usize, most: usize| format!("{n:0>most$}");
    let node = |n: usize| Node {
        id: NodeId(u64::MAX - n as u64),
        name: long(n, node::NAME_MAX),
        addresses: vec![long(n, node::ADDRESS_MAX); node::ADDRESSES_MAX],
        roles: Roles(u32::MAX),
        labels: (0..node::LABELS_MAX).map(|k| (long(k, node::LABEL_MAX), long(n, node::LABEL_MAX))).collect(),
        state: NodeState::Draining,
        joined: Epoch(1),
    };
    let mut changes: Vec<Change> = (0..NODES_MAX).map(|n| Change::Put(node(n))).collect();
    changes.extend((0..4096).map(|n| own(n, u64::MAX - u64::from(n), u64::MAX)));
    let standby =
        |n: u64| Change::Standby { of: NodeId(u64::MAX - n), by: Some(NodeId(u64::MAX - (n + 1) % 4096)) };
    changes.extend((0..4096).map(standby));
    let map = ClusterMap::first([0; 16]).next(&changes).expect("a map");
    assert!(map.encode().len() <= 4 << 20, "{}", map.encode().len());
    assert_eq!(ClusterMap::decode(&map.encode()), Ok(map.clone()));
    assert_eq!(map.next(&[Change::Put(mds(1))]), Err(Refused::Rule(MapError::TooManyNodes)));
}

#[test]
fn rules_are_kept() {
    let map = two();
    let state = |node, state| Change::State { node: NodeId(node), state };
    let refused = |changes: &[Change]| map.next(changes).expect_err("refused");
    let epochs = |from, to| Refused::SlotEpoch { slot: 4095, from: SlotEpoch(from), to: SlotEpoch(to) };
    assert_eq!(refused(&[own(4095, 1, 3)]), epochs(3, 3));
    assert_eq!(refused(&[own(4095, 2, 2)]), epochs(3, 2));
    assert_eq!(refused(&[own(5, 9, 1)]), Refused::Rule(MapError::Owner { slot: 5, owner: NodeId(9) }));
    assert_eq!(refused(&[own(5, 1, 0)]), Refused::Rule(MapError::OwnedWithoutEpoch { slot: 5 }));
    assert_eq!(
        refused(&[Change::Remove(NodeId(1))]),
        Refused::Rule(MapError::Owner { slot: 0, owner: NodeId(1) })
    );
    assert!(matches!(refused(&[state(1, NodeState::Joining)]), Refused::Rule(MapError::Owner { .. })));
    assert!(matches!(refused(&[state(3, NodeState::Down)]), Refused::Unknown(NodeId(3))));
    assert!(matches!(
        refused(&[Change::Put(Node { name: "n1".into(), ..mds(3) })]),
        Refused::Rule(MapError::Name { .. })
    ));
    assert!(matches!(
        refused(&[Change::Put(Node { name: "a\nb".into(), ..mds(3) })]),
        Refused::Rule(MapError::Text { .. })
    ));
    assert!(matches!(
        refused(&[Change::Put(Node { joined: Epoch(9), ..mds(3) })]),
        Refused::Rule(MapError::JoinedLater { .. })
    ));
    assert!(matches!(
        refused(&[Change::Put(Node { joined: Epoch(0), ..mds(1) })]),
        Refused::Joined(NodeId(1))
    ));
    assert!(matches!(
        refused(&[Change::Standby { of: NodeId(1), by: Some(NodeId(1)) }]),
        Refused::Rule(MapError::Standby { .. })
    ));
    // A slot that was given back keeps its epoch, and the next owner has a higher one.
    let released = map.next(&[Change::Release(slot(4095))]).expect("a map");
    assert!(released.next(&[own(4095, 2, 3)]).is_err());
    assert!(released.next(&[own(4095, 2, 4)]).is_ok());
}

#[test]
fn who_is_asked() {
    let (old, ino) = (two(), |n| Ino::new(UgsdId::new(n).expect("24 bits"), LocalId::TOP));
    let new = old.next(&[own(4095, 1, 4)]).expect("a map");
    assert_eq!(old.owner_of(ino(4095 + 4096)), Some(Owner { node: NodeId(2), epoch: SlotEpoch(3) }));
    assert_eq!(old.owner_of(ino(1)), None);
    let stale = new.admit(NodeId(2), ino(4095), old.epoch());
    assert_eq!(stale, Admission::NotMine(WrongOwner { epoch: 3 }));
    assert_eq!(old.redirected(WrongOwner { epoch: 3 }), Redirected::Refresh { at_least: Epoch(3) });
    assert_eq!(new.redirected(WrongOwner { epoch: 3 }), Redirected::Later);
    // A slot that did not move is served to clients with older maps.
    assert_eq!(new.admit(NodeId(1), ino(0), old.epoch()), Admission::Mine(SlotEpoch(1)));
    assert_eq!(old.admit(NodeId(2), ino(4095), new.epoch()), Admission::Behind { theirs: new.epoch() });
}

fn change() -> impl Strategy<Value = Change> {
    let states = prop_oneof![Just(NodeState::Up), Just(NodeState::Draining), Just(NodeState::Down)];
    prop_oneof![
        2 => (1..6u64).prop_map(|id| Change::Put(mds(id))),
        1 => (1..6u64, states).prop_map(|(node, state)| Change::State { node: NodeId(node), state }),
        1 => (1..6u64).prop_map(|id| Change::Remove(NodeId(id))),
        4 => (0..9u16, 1..6u64, 1..40u64).prop_map(|(n, owner, epoch)| own(n, owner, epoch)),
        1 => (0..9u16).prop_map(|n| Change::Release(slot(n))),
        1 => (1..6u64, prop::option::of(1..6u64))
            .prop_map(|(of, by)| Change::Standby { of: NodeId(of), by: by.map(NodeId) }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Goal: who gets every difference has the map; who misses one knows it. Method: random changes, differences through bytes.
    #[test]
    fn differences_lead_to_the_same_map(steps in prop::collection::vec(prop::collection::vec(change(), 1..3), 1..60)) {
        let first = two();
        let (mut map, mut follower, mut late) = (first.clone(), first.clone(), None);
        for changes in steps {
            let Ok(next) = map.next(&changes) else { continue };
            prop_assert_eq!(next.epoch().0, map.epoch().0 + 1);
            let sent = Difference::between(&map, &next).expect("later").encode();
            let difference = Difference::decode(&sent).expect("as sent");
            match &mut late {
                None => late = Some(map.clone()),
                Some(late) => prop_assert_eq!(
                    late.apply(&difference),
                    Err(NotApplied::Gap { have: late.epoch(), from: map.epoch() })
                ),
            }
            prop_assert_eq!(follower.apply(&difference), Ok(Applied::Done));
            prop_assert_eq!(follower.apply(&difference), Ok(Applied::Known));
            prop_assert_eq!(&follower, &next);
            prop_assert_eq!(&ClusterMap::decode(&next.encode()).expect("good"), &next);
            map = next;
        }
        if first.epoch() < map.epoch() {
            let mut all = first.clone();
            all.apply(&Difference::between(&first, &map).expect("later")).expect("from the first to the last");
            prop_assert_eq!(all, map);
        }
    }
}
