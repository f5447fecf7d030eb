//! Goal: I-PRESS-1 to 4. Method: random clusters of full and empty servers whose files are written, closed and removed, with the movements that are chosen
//! carried out one after the other; each rule looked up in what was chosen, and the cluster left alone at the end.
#![allow(clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};

use cluster::{
    Change, ClusterMap, Epoch, Node, NodeId, NodeState,
    pressure::{Held, LEAVING_BYTES_MAX, LEAVING_MAX, Level, Peers, Stand, Why, leaving, outlet},
};
use proptest::prelude::*;
use wire::handshake::Roles;

const MIB: u64 = 1 << 20;

fn map_of(nodes: u64) -> ClusterMap {
    let node = |id| {
        let (name, joined, state) = (format!("n{id}"), Epoch(1), NodeState::Up);
        let (labels, addresses) = (BTreeMap::new(), Vec::new());
        Change::Put(Node { id: NodeId(id), name, addresses, roles: Roles::DS, labels, state, joined })
    };
    ClusterMap::first([1; 16]).next(&(1..=nodes).map(node).collect::<Vec<_>>()).expect("a map")
}

fn memory(limit: u64, used: u64) -> Level {
    Level { limit, available: limit.saturating_sub(used), persistent: false }
}

fn ssd(limit: u64, used: u64) -> Level {
    Level { persistent: true, ..memory(limit, used) }
}

fn held(object: u64, bytes: u64, open: bool, cool: u64, why: Why) -> Held {
    Held { object, bytes, open, cool, why }
}

#[test]
fn how_a_data_server_stands() {
    // Marks of 1024 MiB: 64, 128 and 192.
    let at = |available: u64| Stand::of(&[memory(1024 * MIB, (1024 - available) * MIB)], 7 * MIB, false);
    assert_eq!(at(129), Stand { lacking: 0, forced: false, spare: 0, most: MIB - 1, safe: false });
    assert_eq!(at(128), Stand { lacking: 64 * MIB, ..Stand::default() });
    assert_eq!(at(64), Stand { lacking: 128 * MIB, forced: true, ..Stand::default() });
    assert_eq!(at(200).spare, 8 * MIB);
    let below = |to_come| Stand::of(&[memory(64 * MIB, 0), ssd(1024 * MIB, 0)], to_come, false);
    let free = below(0);
    assert_eq!((free.safe, free.spare), (true, (1024 - 192) * MIB));
    assert_eq!(below(10 * MIB).spare, free.spare - 10 * MIB, "what memory brings down needs room as well");
    // The lowest alone counts.
    assert_eq!(Stand::of(&[memory(64 * MIB, 64 * MIB), ssd(1024 * MIB, 0)], 0, false).lacking, 0);
    let starved = Stand::of(&[ssd(1024 * MIB, 0)], 0, true);
    assert_eq!((starved.lacking, starved.forced, starved.spare), (64 * MIB, true, 0));
    assert_eq!(Stand::of(&[], 0, false), Stand::default());
    // A large disk needs no sixteenth.
    assert_eq!(Stand::of(&[ssd(1 << 40, (1 << 40) - (1 << 30))], 0, false).lacking, 512 * MIB);
}

#[test]
fn the_coolest_closed_ones_leave_first_and_no_more_than_is_lacking() {
    let all = [
        held(1, 10, false, 5, Why::Room),
        held(2, 10, false, 9, Why::Room),
        held(3, 10, true, 99, Why::Room),
        held(4, 10, false, 7, Why::Room),
    ];
    let chosen = |lacking, forced| {
        let stand = Stand { lacking, forced, ..Stand::default() };
        leaving(&stand, &all).iter().map(|one| one.object).collect::<Vec<_>>()
    };
    assert_eq!(chosen(0, true), []);
    assert_eq!(chosen(11, false), [2, 4]);
    assert_eq!(chosen(1000, false), [2, 4, 1], "open ones only in haste");
    assert_eq!(chosen(1000, true), [2, 4, 1, 3]);
    let waited = [held(7, 10, true, 1, Why::Safe), held(8, 10, false, 1, Why::Aged), all[0]];
    let chosen = leaving(&Stand::default(), &waited);
    assert_eq!(chosen.iter().map(|one| one.object).collect::<Vec<_>>(), [7, 8], "whatever room there is");
}

#[test]
fn a_look_is_bounded() {
    let stand = Stand { lacking: u64::MAX, forced: true, ..Stand::default() };
    let many: Vec<Held> = (0..1000).map(|n| held(n, 10, false, n, Why::Room)).collect();
    assert_eq!(leaving(&stand, &many).len(), LEAVING_MAX);
    let large: Vec<Held> = (0..10).map(|n| held(n, 3 * LEAVING_BYTES_MAX, false, n, Why::Room)).collect();
    assert_eq!(leaving(&stand, &large).len(), 1, "one that is larger goes alone");
}

#[test]
fn what_is_safe_stays_safe() {
    let map = map_of(3);
    let mut peers = Peers::default();
    let full = Stand { lacking: 10, forced: true, ..Stand::default() };
    let roomy = Stand { spare: 1000, most: 2000, ..Stand::default() };
    peers.insert(NodeId(1), full, 0);
    peers.insert(NodeId(2), roomy, 0);
    let to = |peers: &Peers, bytes, why| outlet(&map, peers, (&[1], 5), NodeId(1), (bytes, why));
    assert_eq!(to(&peers, 100, Why::Room), Some(NodeId(2)), "another's memory rather than an error");
    assert_eq!((to(&peers, 100, Why::Safe), to(&peers, 100, Why::Aged)), (None, None));
    assert_eq!(peers.room_beside(NodeId(1)), (0, 1000));
    peers.insert(NodeId(3), Stand { safe: true, ..roomy }, 0);
    for why in [Why::Room, Why::Safe, Why::Aged] {
        assert_eq!(to(&peers, 100, why), Some(NodeId(3)));
    }
    assert_eq!(to(&peers, 1500, Why::Safe), Some(NodeId(3)));
    assert_eq!(to(&peers, 1500, Why::Aged), None, "nobody waits for it");
    assert_eq!(peers.room_beside(NodeId(1)), (2000, 2000));
    peers.promise(NodeId(3), 1900);
    assert_eq!(to(&peers, 150, Why::Safe), None);
    // From a disk to a disk.
    peers.insert(NodeId(1), Stand { safe: true, ..full }, 0);
    assert_eq!(to(&peers, 150, Why::Room), None);
    assert_eq!(peers.room_beside(NodeId(1)), (100, 100));
}

#[derive(Clone, Debug)]
struct Server {
    limit: u64,
    persistent: bool,
    /// Bytes, open, by file.
    files: BTreeMap<u64, (u64, bool)>,
    starved: bool,
}

impl Server {
    fn level(&self) -> Level {
        let used = self.files.values().map(|(bytes, _)| bytes).sum();
        Level { persistent: self.persistent, ..memory(self.limit, used) }
    }

    fn stand(&self) -> Stand {
        Stand::of(&[self.level()], 0, self.starved)
    }

    fn held(&self) -> Vec<Held> {
        let one = |(file, (bytes, open)): (&u64, &(u64, bool))| held(*file, *bytes, *open, *file, Why::Room);
        self.files.iter().map(one).collect()
    }
}

/// Everybody chooses once. Returns the movements: file, from, to.
fn round(map: &ClusterMap, servers: &mut BTreeMap<u64, Server>) -> Vec<(u64, u64, u64)> {
    let mut moved = Vec::new();
    let mut peers = Peers::default();
    servers.iter().for_each(|(node, server)| peers.insert(NodeId(*node), server.stand(), 0));
    for node in servers.keys().copied().collect::<Vec<_>>() {
        let stand = servers[&node].stand();
        let chosen = leaving(&stand, &servers[&node].held());
        let bytes: u64 = chosen.iter().map(|one| one.bytes).sum();
        let last = chosen.last().map_or(0, |one| one.bytes);
        assert!(bytes - last <= stand.lacking, "no more than is lacking, and one");
        assert!(chosen.len() <= LEAVING_MAX && (bytes <= LEAVING_BYTES_MAX || chosen.len() == 1));
        let mut found = false;
        for one in &chosen {
            assert!(!one.open || stand.forced, "open files leave in haste alone");
            let Some(to) = outlet(map, &peers, (&[node], one.object), NodeId(node), (one.bytes, one.why))
            else {
                continue;
            };
            found = true;
            assert_ne!(to.0, node);
            assert!(servers[&to.0].persistent || !servers[&node].persistent, "never from a disk to memory");
            peers.promise(to, one.bytes);
            let file = servers.get_mut(&node).and_then(|server| server.files.remove(&one.object));
            let there = servers.get_mut(&to.0).expect("a server");
            there.files.insert(one.object, file.expect("a file"));
            assert_eq!(there.stand().lacking, 0, "nobody becomes full by what comes");
            moved.push((one.object, node, to.0));
        }
        // Where something could leave and there was room for it somewhere, something left.
        if let Some(first) = chosen.first() {
            let room = peers.stands_with_room(NodeId(node), first.bytes);
            assert!(found || !room, "nothing leaves though there is room");
        }
    }
    moved
}

trait Room {
    fn stands_with_room(&self, from: NodeId, bytes: u64) -> bool;
}

impl Room for Peers {
    fn stands_with_room(&self, from: NodeId, bytes: u64) -> bool {
        (1..=6)
            .map(NodeId)
            .filter(|node| *node != from)
            .filter_map(|node| self.stand(node))
            .any(|stand| stand.safe && stand.spare >= bytes)
    }
}

#[derive(Clone, Debug)]
enum Act {
    Write { node: u64, mib: u64, open: bool },
    Remove { at: usize },
    Close,
    Rounds,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1..=6_u64, 1..=40_u64, any::<bool>()).prop_map(|(node, mib, open)| Act::Write { node, mib, open }),
        1 => (0..50_usize).prop_map(|at| Act::Remove { at }),
        1 => Just(Act::Close),
        3 => Just(Act::Rounds),
    ]
}

proptest! {
    #[test]
    fn a_cluster_comes_to_rest_and_nothing_returns(
        kinds in prop::collection::vec((64..1024_u64, any::<bool>()), 6),
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let map = map_of(6);
        let server = |(n, (mib, persistent)): (usize, (u64, bool))| {
            (n as u64 + 1, Server { limit: mib * MIB, persistent, files: BTreeMap::new(), starved: false })
        };
        let mut servers: BTreeMap<u64, Server> = kinds.into_iter().enumerate().map(server).collect();
        let mut next = 1;
        for act in acts {
            match act {
                Act::Write { node, mib, open } => {
                    let server = servers.get_mut(&node).expect("a server");
                    // A write that finds no room waits.
                    server.starved = server.level().available < mib * MIB;
                    if !server.starved {
                        server.files.insert(next, (mib * MIB, open));
                        next += 1;
                    }
                }
                Act::Remove { at } => {
                    let all: Vec<u64> = servers.values().flat_map(|server| server.files.keys().copied()).collect();
                    if let Some(file) = all.get(at) {
                        servers.values_mut().for_each(|server| { server.files.remove(file); });
                    }
                }
                Act::Close => {
                    servers.values_mut().flat_map(|server| server.files.values_mut()).for_each(|file| file.1 = false);
                }
                Act::Rounds => {
                    round(&map, &mut servers);
                }
            }
        }
        // Nobody writes any more.
        servers.values_mut().for_each(|server| server.starved = false);
        let (mut left, mut rounds) = (BTreeSet::new(), 0);
        loop {
            let moved = round(&map, &mut servers);
            if moved.is_empty() {
                break;
            }
            for (file, from, to) in moved {
                prop_assert!(!left.contains(&(file, to)), "file {} returns to {}", file, to);
                left.insert((file, from));
            }
            rounds += 1;
            prop_assert!(rounds < 100, "it does not come to rest");
        }
        for (node, server) in &servers {
            let stand = server.stand();
            // Who is still full has nothing that may leave, or nobody has room for it.
            for one in leaving(&stand, &server.held()) {
                let mut peers = Peers::default();
                servers.iter().for_each(|(node, server)| peers.insert(NodeId(*node), server.stand(), 0));
                prop_assert_eq!(outlet(&map, &peers, (&[*node], one.object), NodeId(*node), (one.bytes, one.why)), None);
            }
        }
    }
}
