//! What a metadata server among others has.

use std::sync::Arc;

use cluster::{ClusterMap, node::Node};
use types::Slot;

use super::{
    following::Following, gates::Gates, peers::Peers, rights::SlotRights, standby::Tails, start::Shared,
    states::StateTable, turn::Duty,
};

pub(crate) struct Owners {
    pub(super) me: Node,
    pub(super) rights: Arc<dyn SlotRights>,
    pub(super) gates: Gates,
    pub(super) peers: Peers,
    pub(super) states: StateTable,
    /// Of the server on duty.
    pub(super) duty: Option<Duty>,
    pub(crate) following: Following,
    /// Where there are standbys.
    pub(crate) tails: Option<Tails>,
}

impl Owners {
    pub(crate) fn new(shared: Shared, tails: Option<Tails>) -> Owners {
        let Shared { joining, duty, is_new: _, notes: _ } = shared;
        Owners {
            me: joining.me.clone(),
            rights: joining.rights.clone(),
            gates: Gates::new(),
            peers: Peers::new(joining.credentials.clone()),
            states: StateTable::default(),
            duty: duty.then(|| Duty::new(joining.relief)),
            following: Following::new(joining),
            tails,
        }
    }

    pub(crate) fn is_on_duty(&self) -> bool {
        self.duty.is_some()
    }

    pub(crate) fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The map of who is on duty from now on: what is ours is in it.
    pub(crate) fn first_map(&self, cluster: [u8; 16], epoch: u32) -> Result<ClusterMap, cluster::Refused> {
        use cluster::{Change, Epoch, map::SlotEpoch};
        let first = ClusterMap::begin(cluster, Epoch(u64::from(epoch) << 32));
        let ours = self.rights.ours();
        let own = ours.into_iter().filter_map(|(slot, epoch)| {
            Some(Change::Own { slot: Slot::new(slot)?, owner: self.me.id, epoch: SlotEpoch(epoch) })
        });
        first.next(&std::iter::once(Change::Put(self.me.clone())).chain(own).collect::<Vec<_>>())
    }
}
