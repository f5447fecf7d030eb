//! Data servers that run full: what leaves one, and which other takes it (paper, sections 6.1, 6.2 and 6.5, between nodes).
//!
//! Each data server says how its lowest tier stands ([`Stand`]); what it holds, and how cool that is, it says when it is asked ([`Held`]). Which
//! of that leaves, [`leaving`] says, and where a stripe goes, [`outlet`].
//!
//! - I-PRESS-1: nothing goes to where it would have to leave again: a server that takes a stripe stays above the mark at which it sends away itself,
//!   and, unless somebody waits, a step above that. So without new writes a cluster is quiet after finitely many movements, and nothing returns.
//! - I-PRESS-2: down, never up: what was in a tier that outlives its machine goes to one that does; what somebody waits for to be safe goes only there.
//! - I-PRESS-3: no more leaves than is lacking, and one stripe at the most beyond it; a look chooses a bounded number of them, however much is lacking.
//! - I-PRESS-4: progress: where something is lacking, and some server has room for something that may leave, something is chosen.

use std::collections::BTreeMap;

use types::SAU_BYTES;

use crate::{
    map::{ClusterMap, NodeId},
    placement::{Measure, Measures, best_of},
};

/// Stripes of one look.
pub const LEAVING_MAX: usize = 64;
/// Bytes of one look, unless the first stripe alone has more.
pub const LEAVING_BYTES_MAX: u64 = 1 << 30;
/// The most that a mark keeps free: a large disk needs no sixteenth.
const MARK_MAX: u64 = 512 << 20;

/// A tier of a data server, of those that are there the fastest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Level {
    pub limit: u64,
    pub available: u64,
    /// It outlives the machine.
    pub persistent: bool,
}

/// How a data server stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stand {
    /// Bytes that are to leave its lowest tier.
    pub lacking: u64,
    /// In haste: open files too.
    pub forced: bool,
    /// Bytes that it can take without having to send any away.
    pub spare: u64,
    /// Bytes that it can take if somebody waits for it.
    pub most: u64,
    /// Its lowest tier outlives the machine.
    pub safe: bool,
}

/// What stays available in the lowest tier: below the second mark something leaves, up to the third; below the first in haste.
fn marks(limit: u64) -> [u64; 3] {
    let step = (limit / 16).max(SAU_BYTES.min(limit / 8)).min(MARK_MAX);
    [step, 2 * step, 3 * step]
}

impl Stand {
    /// `to_come`: bytes that faster tiers will bring down. `starved`: a write waits for room.
    pub fn of(tiers: &[Level], to_come: u64, starved: bool) -> Stand {
        let Some(lowest) = tiers.last() else { return Stand::default() };
        let [forced, normal, enough] = marks(lowest.limit);
        // A tier that is the only one has nothing to come.
        let to_come = if tiers.len() > 1 { to_come } else { 0 };
        let available = lowest.available.saturating_sub(to_come);
        let is_full = lowest.available <= normal;
        let lacking = if is_full { enough.saturating_sub(lowest.available) } else { 0 };
        Stand {
            lacking: if starved { lacking.max(forced) } else { lacking },
            forced: starved || lowest.available <= forced,
            spare: if is_full || starved { 0 } else { available.saturating_sub(enough) },
            most: if is_full || starved { 0 } else { available.saturating_sub(normal + 1) },
            safe: lowest.persistent,
        }
    }
}

/// Why a stripe leaves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// Somebody waits for it to be where it outlives the machine (fsync).
    Safe,
    /// It has been in memory alone for as long as it may.
    Aged,
    /// The room is wanted.
    Room,
}

/// A stripe at a data server that has to, or would, send it away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub object: u64,
    pub bytes: u64,
    pub open: bool,
    /// How cool it is among those that are open, or among those that are not.
    pub cool: u64,
    pub why: Why,
}

/// Which leave now, in the order in which they do.
pub fn leaving(stand: &Stand, held: &[Held]) -> Vec<Held> {
    let mut order: Vec<&Held> = held.iter().collect();
    // Of those that leave for want of room open ones come last, and the coolest first.
    order.sort_by_key(|one| {
        let open = one.why == Why::Room && one.open;
        (one.why, open, std::cmp::Reverse(one.cool), one.object)
    });
    let (mut chosen, mut bytes) = (Vec::new(), 0_u64);
    for one in order {
        let wanted = match one.why {
            Why::Safe | Why::Aged => true,
            Why::Room => one.bytes > 0 && bytes < stand.lacking && (!one.open || stand.forced),
        };
        let fits = chosen.is_empty() || bytes.saturating_add(one.bytes) <= LEAVING_BYTES_MAX;
        if !wanted || !fits {
            continue;
        }
        chosen.push(*one);
        bytes = bytes.saturating_add(one.bytes);
        if chosen.len() == LEAVING_MAX {
            break;
        }
    }
    chosen
}

/// Where data servers stand, and what is on its way to each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peers {
    stands: BTreeMap<NodeId, (Stand, u32)>,
}

impl Peers {
    /// `busy` as in [`Measure`].
    pub fn insert(&mut self, node: NodeId, stand: Stand, busy: u32) {
        self.stands.insert(node, (stand, busy));
    }

    pub fn stand(&self, node: NodeId) -> Option<&Stand> {
        self.stands.get(&node).map(|(stand, _)| stand)
    }

    /// So much is on its way there.
    pub fn promise(&mut self, node: NodeId, bytes: u64) {
        if let Some((stand, _)) = self.stands.get_mut(&node) {
            stand.spare = stand.spare.saturating_sub(bytes);
            stand.most = stand.most.saturating_sub(bytes);
        }
    }

    /// The largest stripe that another could take from here: in a tier that outlives its machine, and in whichever.
    pub fn room_beside(&self, from: NodeId) -> (u64, u64) {
        let others = || self.stands.iter().filter(|(node, _)| **node != from).map(|(_, (stand, _))| stand);
        let safe = others().filter(|stand| stand.safe).map(|stand| stand.most).max().unwrap_or(0);
        let from_safe = self.stand(from).is_some_and(|stand| stand.safe);
        let lower = others().filter(|stand| !stand.safe && !from_safe).map(|stand| stand.spare);
        (safe, lower.max().unwrap_or(0).max(safe))
    }
}

/// Where a stripe goes that leaves: `file` is the nodes of its file's stripes, and its number. To a server that has nothing of the file, if there is one.
/// `None`: it stays.
pub fn outlet(
    map: &ClusterMap,
    peers: &Peers,
    file: (&[u64], u64),
    from: NodeId,
    (bytes, why): (u64, Why),
) -> Option<NodeId> {
    let here = *peers.stand(from)?;
    let spare = |stand: &Stand| stand.spare;
    let most = |stand: &Stand| stand.most;
    let hurried = why == Why::Safe || why == Why::Room && here.forced;
    let safe = best(map, peers, file, from, (bytes, true), &spare);
    let safe = safe.or_else(|| best(map, peers, file, from, (bytes, true), &most).filter(|_| hurried));
    // Memory of another is no better than ours, but it has room.
    let last = why == Why::Room && here.forced && !here.safe;
    safe.or_else(|| best(map, peers, file, from, (bytes, false), &spare).filter(|_| last))
}

fn best(
    map: &ClusterMap,
    peers: &Peers,
    (stripes, seed): (&[u64], u64),
    from: NodeId,
    (bytes, safe): (u64, bool),
    room: &dyn Fn(&Stand) -> u64,
) -> Option<NodeId> {
    let those = peers.stands.iter().filter(|(node, (stand, _))| **node != from && stand.safe == safe);
    let measure = |(node, (stand, busy)): (&NodeId, &(Stand, u32))| {
        (*node, Measure { free: room(stand), busy: *busy, slow: false })
    };
    let measures: Measures = those.map(measure).collect();
    let bytes = bytes.max(1);
    best_of(map, &measures, bytes, seed, &|node| !stripes.contains(&node.0))
        .or_else(|| best_of(map, &measures, bytes, seed, &|_| true))
}
