//! Which object of a listing is which of ours: first by name, then by number, for what they renamed.

use std::collections::{BTreeMap, BTreeSet};

use types::FileKind;

use crate::{
    place::is_on_the_way,
    seen::Seen,
    sides::{Listing, Name, Ours},
};

/// What the back end has of one of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Now<'a> {
    /// The object itself, under its name or another.
    Same(&'a Name, &'a Seen),
    /// It is gone, and another of its kind has its name.
    Replaced(&'a Name, &'a Seen),
    Nowhere,
}

impl<'a> Now<'a> {
    pub(crate) fn entry(self) -> Option<(&'a Name, &'a Seen)> {
        match self {
            Now::Same(name, seen) | Now::Replaced(name, seen) => Some((name, seen)),
            Now::Nowhere => None,
        }
    }
}

/// In the order of `ours`. No entry belongs to two.
pub(crate) fn matched<'a>(ours: &[&Ours], theirs: &'a Listing) -> Vec<Now<'a>> {
    let mut found = vec![Now::Nowhere; ours.len()];
    let mut free: BTreeMap<&Name, &Seen> = theirs.entries.iter().collect();
    let by_name = |name: &Name| theirs.entries.get_key_value(name);
    for (now, ours) in found.iter_mut().zip(ours) {
        if let Some((name, agreed)) = ours.standing.theirs()
            && let Some((name, seen)) = by_name(name)
            && agreed.is_same_object(seen)
        {
            *now = Now::Same(name, seen);
            free.remove(name);
        }
    }
    // With several links it cannot be told which of them was renamed.
    let alone = |seen: &Seen| seen.nlink == 1 || seen.kind == FileKind::Directory;
    let mut by_id: BTreeMap<u64, &Name> = free
        .iter()
        .filter(|(name, seen)| alone(seen) && !is_on_the_way(name))
        .map(|(name, seen)| (seen.fileid, *name))
        .collect();
    for (now, ours) in found.iter_mut().zip(ours).filter(|(now, _)| **now == Now::Nowhere) {
        if let Some((_, agreed)) = ours.standing.theirs()
            && agreed.is_numbered()
            && let Some(name) = by_id.get(&agreed.fileid).copied()
            && let Some(seen) = free.get(name).copied()
            && agreed.is_same_object(seen)
        {
            *now = Now::Same(name, seen);
            free.remove(name);
            by_id.remove(&agreed.fileid);
        }
    }
    let mut given = BTreeSet::new();
    for (now, ours) in found.iter_mut().zip(ours).filter(|(now, _)| **now == Now::Nowhere) {
        if let Some((name, _)) = ours.standing.theirs()
            && let Some((name, seen)) = free.get_key_value(name)
            && seen.kind == ours.kind
            && given.insert(*name)
        {
            *now = Now::Replaced(name, seen);
        }
    }
    found
}
