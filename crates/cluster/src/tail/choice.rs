//! Who is whose standby: another metadata server that is up, of another rack if there is one, and none more than others.

use std::collections::BTreeMap;

use crate::{Change, ClusterMap, Node, NodeId};

/// What has to change in the map. A standby that can stay does, so that no copy ends without need. `may` says whether a server may be one:
/// it was heard.
pub fn choose(map: &ClusterMap, may: impl Fn(NodeId) -> bool) -> Vec<Change> {
    let servers: Vec<&Node> = map.nodes().filter(|node| node.takes_slots()).collect();
    let can = |node: &&&Node| may(node.id);
    let stays = |of: NodeId| {
        let by = map.standby_of(of)?;
        servers.iter().filter(can).any(|node| node.id == by && by != of).then_some(by)
    };
    let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
    servers.iter().filter_map(|of| stays(of.id)).for_each(|by| *load.entry(by).or_default() += 1);
    let mut changes = Vec::new();
    for of in &servers {
        if stays(of.id).is_some() {
            continue;
        }
        let others = servers.iter().filter(can).filter(|by| by.id != of.id);
        let best = others.min_by_key(|by| {
            let near = of.rack().is_some() && by.rack() == of.rack();
            (near, load.get(&by.id).copied().unwrap_or(0), by.id)
        });
        let by = best.map(|by| by.id);
        if let Some(by) = by {
            *load.entry(by).or_default() += 1;
        }
        if by != map.standby_of(of.id) {
            changes.push(Change::Standby { of: of.id, by });
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    //! Goal: each server has a standby if there are two, of another rack if there can be, and they change only when they have to.
    //! Method: maps by hand.
    use wire::handshake::Roles;

    use super::*;
    use crate::{NodeState, node::RACK};

    fn map(servers: &[(u64, &str)]) -> ClusterMap {
        let put = |(id, rack): &(u64, &str)| {
            Change::Put(Node {
                id: NodeId(*id),
                name: format!("meta-{id}"),
                addresses: Vec::new(),
                roles: Roles::MDS,
                labels: [(RACK.to_owned(), (*rack).to_owned())].into(),
                state: NodeState::Up,
                joined: crate::Epoch(1),
            })
        };
        let changes: Vec<Change> = servers.iter().map(put).collect();
        ClusterMap::first([1; 16]).next(&changes).unwrap()
    }

    fn settled(map: &ClusterMap, away: Option<u64>) -> (ClusterMap, usize) {
        let changes = choose(map, |node| Some(node.0) != away);
        (map.next(&changes).unwrap(), changes.len())
    }

    fn standbys(map: &ClusterMap) -> Vec<Option<u64>> {
        map.nodes().map(|node| map.standby_of(node.id).map(|by| by.0)).collect()
    }

    #[test]
    fn each_has_another_one() {
        assert_eq!(standbys(&settled(&map(&[(1, "a")]), None).0), [None]);
        assert_eq!(standbys(&settled(&map(&[(1, "a"), (2, "a")]), None).0), [Some(2), Some(1)]);
        let (four, changed) = settled(&map(&[(1, "a"), (2, "a"), (3, "b"), (4, "b")]), None);
        assert_eq!((standbys(&four), changed), (vec![Some(3), Some(4), Some(1), Some(2)], 4));
        assert_eq!(settled(&four, None).1, 0, "nothing has to change");
        // One is silent: who had it as standby gets another, and the rest stays.
        let (without, changed) = settled(&four, Some(3));
        assert_eq!((standbys(&without), changed), (vec![Some(4), Some(4), Some(1), Some(2)], 1));
        assert_eq!(standbys(&settled(&map(&[(1, "a"), (2, "a")]), Some(2)).0), [None, Some(1)]);
    }
}
