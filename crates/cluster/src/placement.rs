//! Where a file's data go, decided at its first write: the layout.
//!
//! - I-PLACE-1: targets are data servers that are up, measured and have room for a stripe unit; no two of a layout are the same node, and no
//!   secondary is in its primary's rack.
//! - I-PLACE-2: the same wish, map, measures and seed give the same layout; over many seeds the share of a server is as its free
//!   space, less what it is busy.
//! - I-PLACE-3: a server with a slow device is taken only where those without one do not make a layout.
//!
//! It does not know bytes, nor what a server does with an object.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;
use types::SAU_BYTES;

use crate::{
    map::ClusterMap,
    node::{Node, NodeId},
};

/// Data servers of a striped file (paper, section 5.3: four give what a client's network takes).
pub const GROUP_COUNT: u16 = 4;
/// G-size: bytes on one server before the next (paper, section 5.3).
pub const GROUP_UNIT: u64 = SAU_BYTES;
/// More would be connections that one client cannot feed.
pub const GROUP_MAX: u16 = 64;
const BUSY_MAX: u32 = 1000;

/// What a data server said of itself last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measure {
    /// Above the level at which writes wait (C_s-w).
    pub free: u64,
    /// Thousandths of what it can do.
    pub busy: u32,
    /// A device of it is slow or fails: it is taken only where there is no other.
    pub slow: bool,
}

pub type Measures = BTreeMap<NodeId, Measure>;

/// Who has the file open for writing when the first byte comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Writers {
    One(NodeId),
    Several,
}

/// What a directory fixes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Striping {
    pub count: u16,
    /// Bytes; whole storage allocation units.
    pub unit: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    pub writers: Writers,
    /// Of the directory, in place of what the writers suggest.
    pub fixed: Option<Striping>,
    /// With a secondary for each primary.
    pub replicated: bool,
    /// Nodes of the job that writes. A secondary is elsewhere if it can be: a job that breaks its nodes should not take both copies.
    pub job: BTreeSet<NodeId>,
    /// Such as the inode's number.
    pub seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stripe {
    pub primary: NodeId,
    pub secondary: Option<NodeId>,
}

/// Unit n of the file is on stripe n modulo their number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    pub unit: u64,
    pub stripes: Vec<Stripe>,
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum NoPlace {
    #[error("{wanted} data servers are wanted, and {found} are up and have room")]
    TooFew { wanted: u16, found: u16 },
    #[error("no data server with room is outside the rack of {primary}")]
    NoSecondary { primary: NodeId },
    #[error("a file can be on 1 to {GROUP_MAX} data servers, not on {0}")]
    Count(u16),
    #[error("a stripe unit of {0} bytes is not a whole number of storage allocation units")]
    Unit(u64),
}

/// The layout of a file at its first write.
pub fn place(map: &ClusterMap, measures: &Measures, wish: &Wish) -> Result<Layout, NoPlace> {
    match well(measures).map(|well| place_among(map, &well, wish)) {
        Some(Ok(layout)) => Ok(layout),
        Some(Err(_)) | None => place_among(map, measures, wish),
    }
}

/// Without those that are slow; `None`: there is none, or nothing else.
fn well(measures: &Measures) -> Option<Measures> {
    let well: Measures = measures.iter().filter(|(_, m)| !m.slow).map(|(node, m)| (*node, *m)).collect();
    (!well.is_empty() && well.len() < measures.len()).then_some(well)
}

fn place_among(map: &ClusterMap, measures: &Measures, wish: &Wish) -> Result<Layout, NoPlace> {
    let (striping, local) = striping(map, measures, wish)?;
    let Striping { count, unit } = striping;
    let mut primaries: Vec<&Node> = local.into_iter().collect();
    let mut rest: Vec<&Node> = map
        .nodes()
        .filter(|node| usable(node, measures, unit) && Some(node.id) != local.map(|node| node.id))
        .collect();
    rest.sort_by(|a, b| rank(b, measures, wish.seed, 1).total_cmp(&rank(a, measures, wish.seed, 1)));
    primaries.extend(rest.iter().copied().take(usize::from(count).saturating_sub(primaries.len())));
    if primaries.len() < usize::from(count) {
        return Err(NoPlace::TooFew { wanted: count, found: primaries.len() as u16 });
    }
    if !wish.replicated {
        let stripes = primaries.iter().map(|node| Stripe { primary: node.id, secondary: None });
        return Ok(Layout { unit, stripes: stripes.collect() });
    }
    let stripes = with_secondaries(map, measures, wish, unit, &primaries)?;
    Ok(Layout { unit, stripes })
}

/// The best of the servers that may be taken, for something of which none is the writer's own.
pub(crate) fn best_of(
    map: &ClusterMap,
    measures: &Measures,
    room: u64,
    seed: u64,
    may: &dyn Fn(NodeId) -> bool,
) -> Option<NodeId> {
    let best = |measures: &Measures| {
        let usable = map.nodes().filter(|node| usable(node, measures, room) && may(node.id));
        let rank = |node: &&Node| rank(node, measures, seed, 3);
        usable.max_by(|a, b| rank(a).total_cmp(&rank(b))).map(|node| node.id)
    };
    well(measures).and_then(|well| best(&well)).or_else(|| best(measures))
}

/// How many servers, how large a unit, and the writer's own server if the file begins there.
fn striping<'a>(
    map: &'a ClusterMap,
    measures: &Measures,
    wish: &Wish,
) -> Result<(Striping, Option<&'a Node>), NoPlace> {
    let writer = match wish.writers {
        Writers::One(node) => map.node(node),
        Writers::Several => None,
    };
    let unit = wish.fixed.map_or(GROUP_UNIT, |fixed| fixed.unit);
    let local = writer.filter(|node| usable(node, measures, unit));
    if let Some(fixed) = wish.fixed {
        if fixed.count == 0 || fixed.count > GROUP_MAX {
            return Err(NoPlace::Count(fixed.count));
        }
        if fixed.unit == 0 || !fixed.unit.is_multiple_of(SAU_BYTES) {
            return Err(NoPlace::Unit(fixed.unit));
        }
        return Ok((fixed, local));
    }
    if local.is_some() {
        return Ok((Striping { count: 1, unit }, local));
    }
    // A small cluster stripes over what it has.
    let usable = map.nodes().filter(|node| usable(node, measures, unit)).count();
    let count = usable.clamp(1, usize::from(GROUP_COUNT)) as u16;
    Ok((Striping { count, unit }, None))
}

/// For each primary the best server of another rack that is none of the job's, else one of the job's; no server twice. A choice that
/// leaves a later primary without any is taken back (augmenting paths), so there is an error only if there is no way.
fn with_secondaries(
    map: &ClusterMap,
    measures: &Measures,
    wish: &Wish,
    unit: u64,
    primaries: &[&Node],
) -> Result<Vec<Stripe>, NoPlace> {
    let mut others: Vec<&Node> = map
        .nodes()
        .filter(|node| usable(node, measures, unit) && primaries.iter().all(|one| one.id != node.id))
        .collect();
    let key = |node: &Node| (!wish.job.contains(&node.id), rank(node, measures, wish.seed, 2));
    others.sort_by(|a, b| {
        let ((a_far, a_rank), (b_far, b_rank)) = (key(a), key(b));
        b_far.cmp(&a_far).then(b_rank.total_cmp(&a_rank))
    });
    let mut taken: BTreeMap<NodeId, usize> = BTreeMap::new();
    for at in 0..primaries.len() {
        if !match_one(at, primaries, &others, &mut taken, &mut BTreeSet::new()) {
            return Err(NoPlace::NoSecondary { primary: primaries[at].id });
        }
    }
    let of: BTreeMap<usize, NodeId> = taken.into_iter().map(|(node, at)| (at, node)).collect();
    let stripe = |(at, node): (usize, &&Node)| Stripe { primary: node.id, secondary: of.get(&at).copied() };
    Ok(primaries.iter().enumerate().map(stripe).collect())
}

/// No deeper than there are primaries: each step takes up another one.
fn match_one(
    at: usize,
    primaries: &[&Node],
    others: &[&Node],
    taken: &mut BTreeMap<NodeId, usize>,
    tried: &mut BTreeSet<NodeId>,
) -> bool {
    for other in others.iter().filter(|other| apart(primaries[at], other)) {
        if !tried.insert(other.id) {
            continue;
        }
        let owner = taken.get(&other.id).copied();
        if owner.is_none_or(|owner| match_one(owner, primaries, others, taken, tried)) {
            taken.insert(other.id, at);
            return true;
        }
    }
    false
}

/// Of nodes without a rack nothing is known: each counts as a rack of its own.
fn apart(one: &Node, other: &Node) -> bool {
    one.id != other.id && (one.rack().is_none() || one.rack() != other.rack())
}

fn usable(node: &Node, measures: &Measures, unit: u64) -> bool {
    node.takes_data() && measures.get(&node.id).is_some_and(|measure| measure.free >= unit)
}

/// Rendezvous hashing with weights: the server with the highest rank wins with a chance as its weight. When a server comes or goes, only
/// choices that it wins or won change.
fn rank(node: &Node, measures: &Measures, seed: u64, purpose: u64) -> f64 {
    let Some(measure) = measures.get(&node.id) else { return f64::NEG_INFINITY };
    // One that is wholly busy still takes a little, or all would go to the idle ones at once.
    let idle = f64::from(BUSY_MAX - measure.busy.min(BUSY_MAX * 9 / 10)) / f64::from(BUSY_MAX);
    let weight = measure.free as f64 * idle;
    let mixed = mix(mix(mix(seed) ^ node.id.0) ^ purpose);
    // In (0, 1).
    let even = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -weight / even.ln()
}

/// The finalizer of splitmix64.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}
