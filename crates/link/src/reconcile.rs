//! One directory, both sides: what has to happen so that our namespace shows what was done in the back end, and nothing of
//! either side is lost.
//!
//! Three states meet: what both sides agreed on ([`Seen`]), theirs now, and ours with what is not applied there yet. What
//! only they changed is taken over, what only we changed is left to the log, what both changed is a conflict, in which theirs
//! keeps the name. Of one inode:
//!
//! | ours \ theirs | same | attributes | unproven | data, replaced | gone |
//! |---|---|---|---|---|---|
//! | same, attributes | | refresh | drop the copy | drop the copy | remove |
//! | data | | refresh | verify | conflict, both kept | put back |
//! | deleted | | | verify | conflict, theirs comes back | remove |
//!
//! A directory has no data but its names: it is listed again. Something not applied below it counts as its data, so that
//! it is put back, with what is not applied, and without what was deleted there. Names are not fought over: a rename of ours that is not
//! applied wins over one of theirs. An object that they moved to another directory is new there and gone here; if its data
//! changed here, both are kept.
//!
//! The order of the actions is safe: names are freed before they are given, renames go through no name that is taken, imports
//! come last. Those of one call are one commit, but for [`Action::Verify`] and [`Action::Relist`], which take time; after them
//! what the log held because of this directory is released ([`crate::Log::release`]). Another call with the same listing has
//! nothing to say then.
//!
//! Invariants (checked by `tests/reconcile.rs`):
//! - I-LINK-1: no action ends bytes that only one side has, unless that side itself deleted or replaced them.
//! - I-LINK-2: nothing is concluded from a name's absence unless the root is trusted and the listing whole.
//! - I-LINK-3: with the work that is pending applied, both sides are equal but for conflicts.

use std::collections::{BTreeMap, BTreeSet};

use types::{FileKind, Ino};

use crate::{
    conflict::{Why, beside},
    matching::{Now, matched},
    place::is_on_the_way,
    root::Trust,
    seen::{Change, Seen, compare},
    sides::{Changed, Listing, Name, Ours, Standing},
};

/// What the shell has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Compare their bytes with the checksum of what was last agreed on. The same: remember `theirs` as agreed. Otherwise
    /// remember what was agreed as [`crate::Proof::Void`]. Then reconcile again.
    Verify { ino: Ino, theirs: Seen },
    /// Note the conflict. `aside`: our name is changed, from and to. Ours of `BothChanged` has no place in the back end any
    /// more and is made anew there ([`crate::Log::displaced`]); what of `DeletedHere` was to go stays ([`crate::Log::gone`]).
    Conflict { why: Why, ino: Ino, name: Name, aside: Option<(Name, Name)> },
    /// Deleted there: our name, if there is one, goes, and what is pending with it ([`crate::Log::gone`]). A directory goes with
    /// all below it.
    Remove { ino: Ino, ours: Option<Name> },
    /// Renamed there: both sides have it under `to` now, so the log has nothing to do with it. `exchange`: who has that name
    /// here gets `from`.
    Renamed { ino: Ino, from: Name, to: Name, exchange: bool },
    /// As `Renamed`, of what has got the name already, by an exchange.
    Placed { ino: Ino, name: Name },
    /// Renamed there, while a rename or an unlink of ours is not applied: that starts from the new name
    /// ([`crate::Log::moved`]).
    Moved { ino: Ino, from: Name, to: Name },
    /// Take over the attributes, but for those that are pending here. Of a directory without its times: those are remembered
    /// when it is listed.
    Refresh { ino: Ino, theirs: Seen },
    /// The copy is not theirs any more, or not surely: give it up, and take over all attributes as in `Refresh`.
    DropCopy { ino: Ino, theirs: Seen },
    /// List and reconcile the directory, then remember `theirs`, which was seen before; its attributes as in `Refresh`.
    Relist { ino: Ino, theirs: Seen },
    /// A directory that both sides made: it is one. Then as `Relist`.
    Adopt { ino: Ino, name: Name, theirs: Seen },
    /// Deleted there, changed here: it has no place there any more and is made anew. A directory's content is reconciled with
    /// an empty listing.
    PutBack { ino: Ino },
    /// New there. Without its data, and a directory without its content, until somebody asks.
    Import { name: Name, theirs: Seen },
    /// New there, another link of an inode that we have.
    Link { ino: Ino, name: Name, theirs: Seen },
}

/// What happens to ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It is not judged now, and what it might have to do with is not touched.
    Left,
    Stays,
    Removed,
    PutBack,
    Conflict(Why),
}

struct Plan<'a> {
    ours: &'a Ours,
    now: Now<'a>,
    fate: Fate,
    /// What to do about its content or attributes.
    content: Option<Action>,
    /// Our name as it will be.
    name: Option<Name>,
    aside: Option<Name>,
}

impl Plan<'_> {
    /// Both sides have it, and no rename of ours is pending: their name is its name.
    fn follows(&self) -> bool {
        let same = |a: &Name, b: &Name| a == b;
        matches!(&self.ours.standing, Standing::Both { ours, theirs, .. } if same(ours, theirs))
            && self.fate == Fate::Stays
    }

    fn touches(&self) -> impl Iterator<Item = &Name> {
        let standing = &self.ours.standing;
        let at = self.now.entry().map(|(name, _)| name);
        standing.ours().into_iter().chain(standing.theirs().map(|(name, _)| name)).chain(at)
    }
}

/// All that `theirs` asks for, in order.
pub fn reconcile(trust: Trust, ours: &[Ours], theirs: &Listing) -> Vec<Action> {
    if trust != Trust::Known {
        return Vec::new();
    }
    let mut sorted: Vec<&Ours> = ours.iter().collect();
    sorted.sort_by_key(|o| (o.ino, o.standing.theirs().map(|(name, _)| name), o.standing.ours()));
    let nows = matched(&sorted, theirs);
    let mut plans: Vec<Plan> =
        sorted.into_iter().zip(nows).map(|(ours, now)| plan(ours, now, theirs.whole)).collect();
    let left = leave(&mut plans, &theirs.busy);
    let claimed = claims(&plans);
    let mut imports: BTreeMap<&Name, Action> = BTreeMap::new();
    for (name, seen) in &theirs.entries {
        // What they changed on its way, and is not to go there any more, stays under that name: it is listed as a conflict.
        let stranded = plans.iter().any(|plan| plan.now.entry().is_some_and(|(at, _)| at == name));
        if !claimed.contains_key(name) && !left.contains(name) && (stranded || !is_on_the_way(name)) {
            imports.insert(name, Action::Import { name: name.clone(), theirs: *seen });
        }
    }
    adopt(&mut plans, &mut imports);
    link(&plans, &mut imports);
    if !theirs.whole {
        let held: BTreeSet<&Name> = plans.iter().filter_map(|p| p.ours.standing.ours()).collect();
        imports.retain(|name, _| !held.contains(name));
    }
    set_aside(&mut plans, &imports, theirs);
    in_order(plans, imports.into_values().collect())
}

fn plan<'a>(ours: &'a Ours, now: Now<'a>, whole: bool) -> Plan<'a> {
    let (fate, content) = match ours.standing.theirs() {
        _ if ours.busy => (Fate::Left, None),
        None => (Fate::Stays, None),
        Some((_, agreed)) => judge(ours, agreed, now, whole),
    };
    let content = if fate == Fate::Stays { content } else { None };
    let mut plan = Plan { ours, now, fate, content, name: ours.standing.ours().cloned(), aside: None };
    if plan.follows()
        && let Some((name, _)) = now.entry()
    {
        plan.name = Some(name.clone());
    }
    if plan.fate == Fate::Removed {
        plan.name = None;
    }
    plan
}

/// The table of the module's documentation.
fn judge(ours: &Ours, agreed: &Seen, now: Now<'_>, whole: bool) -> (Fate, Option<Action>) {
    let ino = ours.ino;
    let dir = ours.kind == FileKind::Directory;
    let deleted = matches!(ours.standing, Standing::Deleted { .. });
    let change = match now {
        Now::Same(_, seen) => compare(agreed, Some(seen)),
        Now::Replaced(..) => Change::Replaced,
        Now::Nowhere => Change::Gone,
    };
    let seen = now.entry().map_or(*agreed, |(_, seen)| *seen);
    match change {
        Change::Replaced | Change::OtherKind | Change::Gone if !whole => (Fate::Left, None),
        Change::Nothing => (Fate::Stays, None),
        Change::Attributes if deleted => (Fate::Stays, None),
        // What was deleted in it may be ours, applied already; the rmdir tells whether something is left.
        Change::Unproven | Change::Data if deleted && dir => (Fate::Stays, None),
        Change::Attributes => (Fate::Stays, Some(Action::Refresh { ino, theirs: seen })),
        Change::Unproven | Change::Data | Change::Replaced if dir && !deleted => {
            (Fate::Stays, Some(Action::Relist { ino, theirs: seen }))
        }
        Change::Unproven if deleted || ours.changed == Changed::Data => {
            (Fate::Stays, Some(Action::Verify { ino, theirs: seen }))
        }
        Change::Data | Change::Replaced if deleted => (Fate::Conflict(Why::DeletedHere), None),
        Change::Data | Change::Replaced if ours.changed == Changed::Data => {
            (Fate::Conflict(Why::BothChanged), None)
        }
        Change::Unproven | Change::Data | Change::Replaced => {
            (Fate::Stays, Some(Action::DropCopy { ino, theirs: seen }))
        }
        Change::OtherKind | Change::Gone if ours.changed == Changed::Data && !deleted => {
            (Fate::PutBack, None)
        }
        Change::OtherKind | Change::Gone => (Fate::Removed, None),
    }
}

/// The names that must not be touched: those that are busy, and those of what is left alone. Who would be renamed to one of them, or has one on the other
/// side, is left alone too. What is to be verified keeps its names for the next call.
fn leave(plans: &mut [Plan], busy: &BTreeSet<Name>) -> BTreeSet<Name> {
    let mut left = busy.clone();
    loop {
        let before = left.len();
        for plan in plans.iter_mut() {
            let verified = matches!(plan.content, Some(Action::Verify { .. }));
            if plan.fate == Fate::Left || verified || plan.touches().any(|name| left.contains(name)) {
                left.extend(plan.touches().cloned());
                plan.fate = Fate::Left;
                plan.name = plan.ours.standing.ours().cloned();
                plan.content.take_if(|_| !verified);
            }
        }
        if left.len() == before {
            return left;
        }
    }
}

/// Their names that need no import: whoever stands behind them is ours.
fn claims(plans: &[Plan]) -> BTreeMap<Name, usize> {
    let kept = |plan: &Plan| matches!(plan.fate, Fate::Left | Fate::Stays);
    let named = plans.iter().enumerate().filter(|(_, plan)| kept(plan));
    named.filter_map(|(n, plan)| Some((plan.now.entry()?.0.clone(), n))).collect()
}

fn adopt(plans: &mut [Plan], imports: &mut BTreeMap<&Name, Action>) {
    for plan in plans {
        let Standing::Created { ours: name } = &plan.ours.standing else { continue };
        let dir = plan.ours.kind == FileKind::Directory && plan.fate == Fate::Stays;
        if let Some(Action::Import { theirs, .. }) = imports.get(name).filter(|_| dir)
            && theirs.kind == FileKind::Directory
        {
            plan.content = Some(Action::Adopt { ino: plan.ours.ino, name: name.clone(), theirs: *theirs });
            imports.remove(name);
        }
    }
}

/// What has the number of a file that we know is another link of it.
fn link(plans: &[Plan], imports: &mut BTreeMap<&Name, Action>) {
    let known = |seen: &Seen| {
        let same = |plan: &&Plan| {
            let alive = plan.fate == Fate::Stays && plan.ours.standing.ours().is_some();
            matches!(plan.now, Now::Same(_, own) if alive && own.is_same_object(seen))
        };
        plans.iter().find(same).map(|plan| plan.ours.ino)
    };
    for action in imports.values_mut() {
        if let Action::Import { name, theirs } = action
            && theirs.nlink > 1
            && theirs.kind != FileKind::Directory
            && let Some(ino) = known(theirs)
        {
            *action = Action::Link { ino, name: name.clone(), theirs: *theirs };
        }
    }
}

/// Who has a name that theirs must have gets another.
fn set_aside(plans: &mut [Plan], imports: &BTreeMap<&Name, Action>, theirs: &Listing) {
    let followed: BTreeMap<Name, Ino> =
        plans.iter().filter(|p| p.follows()).filter_map(|p| Some((p.name.clone()?, p.ours.ino))).collect();
    let mut taken: BTreeSet<Name> = theirs.entries.keys().cloned().collect();
    taken.extend(plans.iter().flat_map(|p| p.touches().cloned().collect::<Vec<_>>()));
    for plan in plans.iter_mut().filter(|p| p.fate != Fate::Left && !p.follows()) {
        let Some(name) = &plan.name else { continue };
        if imports.contains_key(name) || followed.contains_key(name) {
            let kept = beside(name, |name| taken.contains(name));
            taken.insert(kept.clone());
            plan.aside = Some(kept);
        }
    }
}

fn in_order(plans: Vec<Plan>, imports: Vec<Action>) -> Vec<Action> {
    let mut actions = Vec::new();
    let (verify, rest): (Vec<_>, Vec<_>) =
        plans.iter().filter_map(|p| p.content.clone()).partition(|a| matches!(a, Action::Verify { .. }));
    actions.extend(verify);
    for plan in &plans {
        let ino = plan.ours.ino;
        let aside = plan.name.clone().zip(plan.aside.clone());
        let theirs = || plan.now.entry().map(|(name, _)| name.clone()).unwrap_or_default();
        match (plan.fate, aside) {
            (Fate::Conflict(why), aside) => {
                let name = theirs();
                actions.push(Action::Conflict { why, ino, name, aside });
            }
            (Fate::Stays | Fate::PutBack, Some((name, kept))) => {
                let aside = Some((name.clone(), kept));
                actions.push(Action::Conflict { why: Why::NameTaken, ino, name, aside });
            }
            (Fate::Removed, _) => {
                let ours = plan.ours.standing.ours().cloned();
                actions.push(Action::Remove { ino, ours });
            }
            (Fate::Left, _) | (Fate::Stays | Fate::PutBack, None) => {}
        }
    }
    actions.extend(renames(&plans));
    for plan in plans.iter().filter(|p| p.fate == Fate::Stays && !p.follows()) {
        if let (Some((from, _)), Some((to, _))) = (plan.ours.standing.theirs(), plan.now.entry())
            && from != to
        {
            actions.push(Action::Moved { ino: plan.ours.ino, from: from.clone(), to: to.clone() });
        }
    }
    actions.extend(
        plans.iter().filter(|p| p.fate == Fate::PutBack).map(|p| Action::PutBack { ino: p.ours.ino }),
    );
    actions.extend(rest);
    actions.extend(imports);
    actions
}

/// Their renames, each to a name that is free or that is exchanged with one that has to move as well.
fn renames(plans: &[Plan]) -> Vec<Action> {
    let mut actions = Vec::new();
    let moving: Vec<&Plan> =
        plans.iter().filter(|p| p.follows() && p.ours.standing.ours() != p.name.as_ref()).collect();
    let mut board: BTreeMap<Name, usize> = BTreeMap::new();
    let mut current: Vec<Name> = Vec::new();
    for (n, plan) in moving.iter().enumerate() {
        let name = plan.ours.standing.ours().cloned().unwrap_or_default();
        board.insert(name.clone(), n);
        current.push(name);
    }
    for (n, plan) in moving.iter().enumerate() {
        let from = current[n].clone();
        let to = plan.name.clone().unwrap_or_default();
        if from == to {
            // It came here by an exchange with another.
            actions.push(Action::Placed { ino: plan.ours.ino, name: to });
            continue;
        }
        board.remove(&from);
        let displaced = board.insert(to.clone(), n);
        if let Some(other) = displaced {
            board.insert(from.clone(), other);
            current[other] = from.clone();
        }
        current[n] = to.clone();
        actions.push(Action::Renamed { ino: plan.ours.ino, from, to, exchange: displaced.is_some() });
    }
    actions
}
