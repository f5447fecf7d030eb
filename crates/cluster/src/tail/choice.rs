//! Who is whose standby: another metadata server that is up, of another rack if there is one, one that only keeps copies if there is one
//! there, and none more than others.

use std::collections::BTreeMap;

use crate::{Change, ClusterMap, Node, NodeId};

/// What has to change in the map. A standby that can stay does, so that no copy ends without need; for one that only keeps copies it is
/// ended. `may` says whether a server may be one: it was heard.
pub fn choose(map: &ClusterMap, may: impl Fn(NodeId) -> bool) -> Vec<Change> {
    let servers: Vec<&Node> = map.nodes().filter(|node| node.may_serve()).collect();
    let others = |of: &Node| {
        let of = of.id;
        servers.iter().copied().filter(move |by| by.id != of).filter(|by| may(by.id))
    };
    let is_near = |of: &Node, by: &Node| of.rack().is_some() && by.rack() == of.rack();
    let stays = |of: &Node| {
        let by = others(of).find(|by| map.standby_of(of.id) == Some(by.id))?;
        let better = |other: &Node| other.is_standby_only() && is_near(of, other) <= is_near(of, by);
        let ends = !by.is_standby_only() && others(of).any(better);
        (!ends).then_some(by.id)
    };
    let mut load: BTreeMap<NodeId, usize> = BTreeMap::new();
    servers.iter().filter_map(|of| stays(of)).for_each(|by| *load.entry(by).or_default() += 1);
    let mut changes = Vec::new();
    for of in &servers {
        if stays(of).is_some() {
            continue;
        }
        let best = others(of).min_by_key(|by| {
            (is_near(of, by), !by.is_standby_only(), load.get(&by.id).copied().unwrap_or(0), by.id)
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

    fn server(id: u64, rack: &str, roles: Roles) -> Change {
        Change::Put(Node {
            id: NodeId(id),
            name: format!("meta-{id}"),
            addresses: Vec::new(),
            roles,
            labels: [(RACK.to_owned(), rack.to_owned())].into(),
            state: NodeState::Up,
            joined: crate::Epoch(1),
        })
    }

    fn map(servers: &[(u64, &str)]) -> ClusterMap {
        let changes: Vec<Change> = servers.iter().map(|(id, rack)| server(*id, rack, Roles::MDS)).collect();
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

    #[test]
    fn who_only_keeps_copies_is_taken_first() {
        let only = Roles::MDS.and(Roles::STANDBY_ONLY);
        let (two, _) = settled(&map(&[(1, "a"), (2, "a")]), None);
        let three = two.next(&[server(3, "b", only)]).unwrap();
        let (three, changed) = settled(&three, None);
        assert_eq!((standbys(&three), changed), (vec![Some(3), Some(3), Some(1)], 3));
        assert_eq!(settled(&three, None).1, 0, "nothing has to change");
        // It is silent, and comes again.
        let (without, _) = settled(&three, Some(3));
        assert_eq!(standbys(&without), [Some(2), Some(1), Some(1)]);
        assert_eq!(standbys(&settled(&without, None).0), [Some(3), Some(3), Some(1)]);
        // What fails together with its server is no better for that.
        let (apart, _) = settled(&map(&[(1, "a"), (2, "b")]), None);
        let near = settled(&apart.next(&[server(3, "a", only)]).unwrap(), None).0;
        assert_eq!(standbys(&near), [Some(2), Some(3), Some(2)]);
    }
}
