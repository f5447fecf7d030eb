//! What a metadata server among others has.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use cluster::{Change, ClusterMap, Epoch, NodeId, map::SlotEpoch, node::Node, relief::Settings};
use types::Slot;

use super::{
    bares::Bares,
    following::Following,
    gates::Gates,
    peers::Peers,
    rights::SlotRights,
    standby::Tails,
    start::Shared,
    states::StateTable,
    turn::{Duty, Heard},
};

pub(crate) struct Owners {
    pub(super) me: Node,
    pub(super) rights: Arc<dyn SlotRights>,
    pub(super) gates: Gates,
    pub(super) peers: Peers,
    pub(super) states: StateTable,
    /// Of the server on duty. Whoever has it gives it away once, before his end.
    duty: OnceLock<Duty>,
    resigned: AtomicBool,
    relief: Settings,
    /// It is about to end: it takes no slots.
    leaving: AtomicBool,
    pub(super) bares: Bares,
    pub(crate) following: Following,
    /// Where there are standbys.
    pub(crate) tails: Option<Tails>,
}

impl Owners {
    pub(crate) fn new(shared: Shared, tails: Option<Tails>) -> Owners {
        let Shared { joining, duty, is_new: _, found: _, notes: _ } = shared;
        let relief = joining.relief;
        let known = OnceLock::new();
        if duty {
            known.get_or_init(|| Duty::new(relief));
        }
        Owners {
            me: joining.me.clone(),
            rights: joining.rights.clone(),
            gates: Gates::new(),
            peers: Peers::new(joining.credentials.clone()),
            states: StateTable::default(),
            duty: known,
            resigned: AtomicBool::new(false),
            relief,
            leaving: AtomicBool::new(false),
            bares: Bares::default(),
            following: Following::new(joining),
            tails,
        }
    }

    pub(crate) fn is_on_duty(&self) -> bool {
        self.duty().is_some()
    }

    pub(super) fn duty(&self) -> Option<&Duty> {
        self.duty.get().filter(|_| !self.resigned.load(Ordering::Acquire))
    }

    /// Another said a moment ago that it is there; for who is on duty.
    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        self.duty().is_some_and(|duty| duty.heard.lock().get(&node).is_some_and(Heard::is_lately))
    }

    /// Its map is made.
    pub(super) fn come_on_duty(&self) {
        self.duty.get_or_init(|| Duty::new(self.relief));
        self.resigned.store(false, Ordering::Release);
    }

    /// Another makes the map from now on.
    pub(super) fn resign(&self) {
        self.resigned.store(true, Ordering::Release);
    }

    pub(super) fn relief(&self) -> Settings {
        self.relief
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    pub(super) fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn node(&self) -> u64 {
        self.me.id.0
    }

    /// Of the slots that are ours by the rows.
    pub(crate) fn epochs(&self) -> BTreeMap<u16, u64> {
        self.rights.ours()
    }

    pub(crate) fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The map of who is on duty from now on: what is ours is in it.
    pub(crate) fn first_map(&self, cluster: [u8; 16], epoch: u32) -> Result<ClusterMap, cluster::Refused> {
        let first = ClusterMap::begin(cluster, Epoch(u64::from(epoch) << 32));
        first.next(&std::iter::once(Change::Put(self.me.clone())).chain(self.own()).collect::<Vec<_>>())
    }

    /// The same, of who comes on duty in the place of another, and knows the other's last map.
    pub(super) fn next_map(&self, last: &ClusterMap, epoch: u32) -> Result<ClusterMap, cluster::Refused> {
        let first = ClusterMap::begin(last.cluster(), Epoch(u64::from(epoch) << 32));
        let mut changes: Vec<Change> = last.nodes().cloned().map(Change::Put).collect();
        if last.node(self.me.id).is_none() {
            changes.push(Change::Put(self.me.clone()));
        }
        for (slot, entry) in last.slots() {
            // Also of those that nobody has the epoch is known on.
            let owner = entry.owner.unwrap_or(self.me.id);
            if entry.epoch != SlotEpoch(0) {
                changes.push(Change::Own { slot, owner, epoch: entry.epoch });
                if entry.owner.is_none() {
                    changes.push(Change::Release(slot));
                }
            }
        }
        changes.extend(self.own());
        first.next(&changes)
    }

    fn own(&self) -> impl Iterator<Item = Change> {
        let owner = self.me.id;
        let own = self.rights.ours().into_iter();
        own.filter_map(move |(slot, epoch)| {
            Some(Change::Own { slot: Slot::new(slot)?, owner, epoch: SlotEpoch(epoch) })
        })
    }
}
