//! Goal: I-LINK-1 to 3. Method: a directory that both sides agreed on; random changes on either side; the actions carried out
//! by a small shell that refuses to give a name twice or to end bytes that it should not; then what is pending is applied.
//! Beside it the three-way merge by its definition says which versions have to be left.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use link::*;
use proptest::prelude::*;
use types::{FileKind, Ino, Timestamp};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Dir {
    /// The one that is reconciled.
    D,
    /// Another, for renames of ours.
    E,
}
type At = (Dir, Vec<u8>);

/// In the back end. A version is a number that no other has; a directory's is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Object {
    seen: Seen,
    version: u64,
}

#[derive(Clone, Debug)]
struct Node {
    kind: FileKind,
    at: Option<At>,
    /// Where the back end has it, what we saw there, and the version that was.
    place: Option<(At, Seen, u64)>,
    /// `None`: no copy here.
    copy: Option<u64>,
    mode: u32,
    data_pending: bool,
    mode_pending: bool,
}

#[derive(Default)]
struct World {
    theirs: BTreeMap<At, Object>,
    nodes: BTreeMap<Ino, Node>,
    conflicts: Vec<Why>,
    count: u64,
}

fn ino(n: u64) -> Ino {
    Ino::from_raw(n).unwrap()
}

impl World {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn object(&mut self, kind: FileKind) -> Object {
        let n = self.next();
        let time = Timestamp { sec: n as i64, nsec: 0 };
        let seen = Seen {
            kind,
            fileid: n,
            birth: None,
            size: 1,
            mtime: time,
            ctime: time,
            mode: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            proof: Proof::Firm,
        };
        Object { seen, version: if kind == FileKind::Directory { 0 } else { n } }
    }

    fn agree_on(&mut self, name: &[u8], kind: FileKind, proof: Proof, copy: bool) {
        let object = self.object(kind);
        let at = (Dir::D, name.to_vec());
        self.theirs.insert(at.clone(), object);
        let seen = Seen { proof, ..object.seen };
        let node = Node {
            kind,
            at: Some(at.clone()),
            place: Some((at, seen, object.version)),
            copy: copy.then_some(object.version),
            mode: 0o644,
            data_pending: false,
            mode_pending: false,
        };
        let n = self.next();
        self.nodes.insert(ino(n), node);
    }

    fn named(&self, at: &At) -> Option<Ino> {
        self.nodes.iter().find(|(_, n)| n.at.as_ref() == Some(at)).map(|(ino, _)| *ino)
    }

    fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }

    fn unname(&mut self, ino: Ino) {
        self.node(ino).at = None;
        if self.nodes[&ino].place.is_none() {
            self.nodes.remove(&ino);
        }
    }

    fn create(&mut self, at: At, kind: FileKind) {
        let n = self.next();
        let copy = Some(if kind == FileKind::Directory { 0 } else { n });
        let (data_pending, mode_pending) = (true, true);
        self.nodes.insert(
            ino(n),
            Node { kind, at: Some(at), place: None, copy, mode: 0o640, data_pending, mode_pending },
        );
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(u8),
    Chmod(u8),
    Delete(u8),
    /// Over what is there, if that is of its kind.
    Rename(u8, u8),
    /// To the other directory, or back.
    Cross(u8),
    Create(u8, bool),
    /// Theirs: as an editor saves; or by a directory.
    Replace(u8, bool),
    /// Theirs: in the step of time in which we looked.
    Unnoticed(u8),
    Swap(u8, u8),
}

fn name(n: u8) -> Vec<u8> {
    vec![b'a' + n]
}

fn any_op() -> impl Strategy<Value = Op> {
    let n = || 0u8..6;
    prop_oneof![
        3 => n().prop_map(Op::Write),
        1 => n().prop_map(Op::Chmod),
        2 => n().prop_map(Op::Delete),
        3 => (n(), n()).prop_map(|(a, b)| Op::Rename(a, b)),
        2 => n().prop_map(Op::Cross),
        2 => (n(), any::<bool>()).prop_map(|(a, dir)| Op::Create(a, dir)),
        2 => (n(), any::<bool>()).prop_map(|(a, dir)| Op::Replace(a, dir)),
        1 => n().prop_map(Op::Unnoticed),
        1 => (n(), n()).prop_map(|(a, b)| Op::Swap(a, b)),
    ]
}

/// On our side: nothing reaches the back end yet.
fn change_ours(world: &mut World, op: &Op) {
    let d = |n: u8| (Dir::D, name(n));
    match *op {
        Op::Write(n) => {
            let version = world.next();
            if let Some(ino) = world.named(&d(n)) {
                let node = world.node(ino);
                node.copy = Some(if node.kind == FileKind::Directory { 0 } else { version });
                node.data_pending = true;
            }
        }
        Op::Chmod(n) => {
            if let Some(ino) = world.named(&d(n)) {
                (world.node(ino).mode, world.node(ino).mode_pending) = (0o700, true);
            }
        }
        Op::Delete(n) => {
            if let Some(ino) = world.named(&d(n)) {
                world.unname(ino);
            }
        }
        Op::Rename(a, b) => rename_ours(world, d(a), d(b)),
        Op::Cross(n) => {
            let e = (Dir::E, name(n));
            if world.named(&d(n)).is_some() {
                rename_ours(world, d(n), e)
            } else {
                rename_ours(world, e, d(n))
            }
        }
        Op::Create(n, dir) => {
            if world.named(&d(n)).is_none() {
                world.create(d(n), if dir { FileKind::Directory } else { FileKind::Regular });
            }
        }
        Op::Swap(a, b) => {
            if let (Some(x), Some(y)) = (world.named(&d(a)), world.named(&d(b))) {
                (world.node(x).at, world.node(y).at) = (Some(d(b)), Some(d(a)));
            }
        }
        Op::Replace(..) | Op::Unnoticed(_) => {}
    }
}

fn rename_ours(world: &mut World, from: At, to: At) {
    let Some(ino) = world.named(&from).filter(|_| from != to) else { return };
    if let Some(over) = world.named(&to) {
        if world.nodes[&over].kind != world.nodes[&ino].kind {
            return;
        }
        world.unname(over);
    }
    world.node(ino).at = Some(to);
}

fn change_theirs(world: &mut World, op: &Op) {
    let d = |n: u8| (Dir::D, name(n));
    let fresh = world.object(FileKind::Regular);
    match *op {
        Op::Write(n) => {
            if let Some(object) = world.theirs.get_mut(&d(n)) {
                (object.seen.mtime, object.seen.ctime) = (fresh.seen.mtime, fresh.seen.ctime);
                object.version = if object.seen.kind == FileKind::Directory { 0 } else { fresh.version };
            }
        }
        Op::Chmod(n) => {
            if let Some(object) = world.theirs.get_mut(&d(n)) {
                (object.seen.mode, object.seen.ctime) = (0o600, fresh.seen.ctime);
            }
        }
        Op::Delete(n) => drop(world.theirs.remove(&d(n))),
        Op::Rename(a, b) if a != b => {
            let kind = |at: &At| world.theirs.get(at).map(|o| o.seen.kind);
            if kind(&d(a)).is_some() && kind(&d(b)).is_none_or(|k| Some(k) == kind(&d(a))) {
                let mut object = world.theirs.remove(&d(a)).unwrap();
                object.seen.ctime = fresh.seen.ctime;
                world.theirs.insert(d(b), object);
            }
        }
        Op::Create(n, dir) => {
            let object = if dir { world.object(FileKind::Directory) } else { fresh };
            world.theirs.entry(d(n)).or_insert(object);
        }
        Op::Replace(n, dir) => {
            if world.theirs.contains_key(&d(n)) {
                let object = if dir { world.object(FileKind::Directory) } else { fresh };
                world.theirs.insert(d(n), object);
            }
        }
        Op::Unnoticed(n) => {
            let racy = |id| {
                world.nodes.values().any(|n| {
                    n.place.as_ref().is_some_and(|(_, s, _)| s.fileid == id && s.proof == Proof::Racy)
                })
            };
            if let Some(object) = world.theirs.get(&d(n)).copied()
                && object.seen.kind == FileKind::Regular
                && racy(object.seen.fileid)
            {
                world.theirs.insert(d(n), Object { version: fresh.version, ..object });
            }
        }
        Op::Swap(a, b) => {
            if let (Some(x), Some(y)) = (world.theirs.get(&d(a)).copied(), world.theirs.get(&d(b)).copied()) {
                world.theirs.insert(d(a), y);
                world.theirs.insert(d(b), x);
            }
        }
        Op::Rename(..) | Op::Cross(_) => {}
    }
}

fn listing(world: &World) -> Listing {
    let entries = world.theirs.iter().filter(|((dir, _), _)| *dir == Dir::D);
    Listing {
        entries: entries.map(|((_, name), o)| (name.clone(), o.seen)).collect(),
        whole: true,
        busy: BTreeSet::new(),
    }
}

fn sides(world: &World) -> Vec<Ours> {
    let in_d = |at: &Option<At>| at.as_ref().filter(|(dir, _)| *dir == Dir::D).map(|(_, name)| name.clone());
    let standing = |node: &Node| {
        let theirs = in_d(&node.place.as_ref().map(|(at, ..)| at.clone()));
        let agreed = node.place.as_ref().map(|(_, seen, _)| *seen);
        Some(match (in_d(&node.at), theirs.zip(agreed)) {
            (Some(ours), Some((theirs, agreed))) => Standing::Both { ours, theirs, agreed },
            (Some(ours), None) if node.place.is_none() => Standing::Created { ours },
            (Some(ours), None) => Standing::RenamedIn { ours },
            (None, Some((theirs, agreed))) if node.at.is_none() => Standing::Deleted { theirs, agreed },
            (None, Some((theirs, agreed))) => Standing::RenamedOut { theirs, agreed },
            (None, None) => return None,
        })
    };
    let changed = |node: &Node| match (node.data_pending, node.mode_pending) {
        (true, _) => Changed::Data,
        (false, true) => Changed::Attributes,
        (false, false) => Changed::Nothing,
    };
    let nodes = world.nodes.iter();
    nodes
        .filter_map(|(ino, node)| {
            let (changed, kind) = (changed(node), node.kind);
            Some(Ours { ino: *ino, kind, standing: standing(node)?, changed, busy: false })
        })
        .collect()
}

/// The shell.
fn act(world: &mut World, action: Action) {
    let d = |name: Vec<u8>| (Dir::D, name);
    match action {
        Action::Verify { ino, theirs } => {
            let now = *world.theirs.values().find(|o| o.seen.fileid == theirs.fileid).unwrap();
            let (_, seen, agreed) = world.node(ino).place.as_mut().unwrap();
            *seen = if now.version == *agreed { now.seen } else { Seen { proof: Proof::Void, ..*seen } };
        }
        Action::Conflict { why, ino, name: _, aside } => {
            world.conflicts.push(why);
            if let Some((from, to)) = aside {
                assert_eq!(world.named(&d(from)), Some(ino));
                assert_eq!(world.named(&d(to.clone())), None);
                world.node(ino).at = Some(d(to));
            }
            match why {
                Why::BothChanged => {
                    assert!(world.node(ino).data_pending);
                    world.node(ino).place = None;
                }
                Why::DeletedHere => drop(world.nodes.remove(&ino)),
                Why::NameTaken | Why::BytesLost => {}
            }
        }
        Action::Remove { ino, ours } => {
            let node = world.nodes.remove(&ino).unwrap();
            assert!(!node.data_pending || node.at.is_none(), "I-LINK-1: {node:?}");
            assert_eq!(node.at.filter(|(dir, _)| *dir == Dir::D).map(|(_, name)| name), ours);
        }
        Action::Renamed { ino, from, to, exchange } => {
            assert_eq!(world.named(&d(from.clone())), Some(ino));
            let there = world.named(&d(to.clone()));
            assert_eq!(there.is_some(), exchange);
            if let Some(there) = there {
                world.node(there).at = Some(d(from));
            }
            let node = world.node(ino);
            (node.at, node.place.as_mut().unwrap().0) = (Some(d(to.clone())), d(to));
        }
        Action::Placed { ino, name } => {
            let node = world.node(ino);
            assert_eq!(node.at, Some(d(name.clone())));
            node.place.as_mut().unwrap().0 = d(name);
        }
        Action::Moved { ino, from, to } => {
            let place = world.node(ino).place.as_mut().unwrap();
            assert_eq!(place.0, d(from));
            place.0 = d(to);
        }
        Action::Refresh { ino, theirs }
        | Action::DropCopy { ino, theirs }
        | Action::Relist { ino, theirs } => {
            let version = world.theirs.values().find(|o| o.seen == theirs).unwrap().version;
            let drops = matches!(action, Action::DropCopy { .. });
            let node = world.node(ino);
            let (_, seen, agreed) = node.place.as_mut().unwrap();
            if drops {
                assert!(!node.data_pending, "I-LINK-1: {node:?}");
                node.copy = None;
                *agreed = version;
            } else {
                assert_eq!(*agreed, version, "a change of bytes goes unnoticed");
            }
            *seen = theirs;
            if !node.mode_pending {
                node.mode = theirs.mode;
            }
        }
        Action::Adopt { ino, name, theirs } => world.node(ino).place = Some((d(name), theirs, 0)),
        Action::PutBack { ino } => {
            let node = world.node(ino);
            assert!(node.data_pending);
            (node.place, node.mode_pending) = (None, true);
        }
        Action::Import { name, theirs } => {
            assert_eq!(world.named(&d(name.clone())), None);
            let version = world.theirs[&d(name.clone())].version;
            let n = world.next();
            let place = Some((d(name.clone()), theirs, version));
            let (kind, mode) = (theirs.kind, theirs.mode);
            let at = Some(d(name));
            world.nodes.insert(
                ino(n),
                Node { kind, at, place, copy: None, mode, data_pending: false, mode_pending: false },
            );
        }
        Action::Link { .. } => panic!("there are no links here"),
    }
}

/// As the log does: what is pending, and nothing else, reaches the back end.
fn apply_pending(world: &mut World) {
    let mut held = BTreeMap::new();
    for (ino, node) in &world.nodes {
        let Some((place, seen, agreed)) = &node.place else { continue };
        let object = world.theirs.remove(place).expect("their place is right");
        assert_eq!(object.seen.fileid, seen.fileid);
        if node.at.is_none() || node.data_pending {
            assert_eq!(object.version, *agreed, "I-LINK-1: theirs is overwritten or deleted");
        }
        held.insert(*ino, object);
    }
    world.nodes.retain(|_, node| node.at.is_some());
    for ino in world.nodes.keys().copied().collect::<Vec<_>>() {
        let node = world.nodes[&ino].clone();
        let mut object = held.remove(&ino).unwrap_or_else(|| world.object(node.kind));
        if node.data_pending {
            object.seen.mtime.sec = world.next() as i64;
            object.version = node.copy.unwrap();
        }
        object.seen.mode = node.mode;
        let at = node.at.clone().unwrap();
        assert_eq!(world.theirs.insert(at.clone(), object), None, "I-LINK-1: {at:?} is taken");
        let node = world.node(ino);
        (node.data_pending, node.mode_pending) = (false, false);
        node.place = Some((at, Seen { proof: Proof::Firm, ..object.seen }, object.version));
    }
}

/// Which versions of files the merge leaves, and how many conflicts about bytes there are, by definition.
fn merged(world: &World) -> (Vec<u64>, [usize; 2]) {
    let mut left = Vec::new();
    let mut conflicts = [0; 2];
    let known =
        |id: u64| world.nodes.values().any(|n| n.place.as_ref().is_some_and(|(_, s, _)| s.fileid == id));
    let mut merged_objects = Vec::new();
    for node in world.nodes.values() {
        let Some((place, seen, agreed)) = &node.place else {
            left.extend(node.copy.filter(|_| node.kind == FileKind::Regular));
            continue;
        };
        let by_id = world.theirs.values().find(|o| o.seen.fileid == seen.fileid);
        let by_name = world.theirs.get(place).filter(|o| !known(o.seen.fileid) && o.seen.kind == node.kind);
        let theirs = by_id.or(by_name);
        merged_objects.extend(theirs.map(|o| o.seen.fileid));
        if node.kind != FileKind::Regular {
            conflicts[1] += usize::from(node.at.is_none() && by_id.is_none() && by_name.is_some());
            continue;
        }
        let ours = (node.at.is_some(), node.copy.filter(|_| node.data_pending));
        match (ours, theirs.map(|o| o.version)) {
            ((true, Some(ours)), Some(theirs)) if theirs != *agreed => {
                left.extend([ours, theirs]);
                conflicts[0] += 1;
            }
            ((true, Some(ours)), _) => left.push(ours),
            ((true, None), Some(theirs)) => left.push(theirs),
            ((false, _), Some(theirs)) if theirs != *agreed => {
                left.push(theirs);
                conflicts[1] += 1;
            }
            ((_, None), None) | ((false, _), _) => {}
        }
    }
    let new = world.theirs.values().filter(|o| !merged_objects.contains(&o.seen.fileid));
    left.extend(new.filter(|o| o.seen.kind == FileKind::Regular).map(|o| o.version));
    left.sort_unstable();
    (left, conflicts)
}

/// A call when a listing was cut short and steps are under way: it may say less, and nothing else.
fn glance(world: &mut World, missed: u8, busy: u8) {
    assert!(
        reconcile(
            Trust::Unmounted,
            &sides(world),
            &Listing { entries: BTreeMap::new(), whole: true, busy: BTreeSet::new() }
        )
        .is_empty()
    );
    let mut listing = listing(world);
    for n in (0..6).filter(|n| missed & (1 << n) != 0) {
        listing.entries.remove(&name(n));
    }
    listing.whole = false;
    let mut sides = sides(world);
    for ours in &mut sides {
        let names = [&ours.standing].into_iter().flat_map(|s| match s {
            Standing::Both { ours, theirs, .. } => vec![ours, theirs],
            Standing::Created { ours } | Standing::RenamedIn { ours } => vec![ours],
            Standing::RenamedOut { theirs, .. } | Standing::Deleted { theirs, .. } => vec![theirs],
        });
        ours.busy = names.into_iter().any(|name| busy & (1 << ((name[0] - b'a') % 8)) != 0);
    }
    let busy: Vec<Ino> = sides.iter().filter(|o| o.busy).map(|o| o.ino).collect();
    for action in reconcile(Trust::Known, &sides, &listing) {
        let about = match &action {
            Action::Remove { .. } | Action::PutBack { .. } => panic!("I-LINK-2: {action:?}"),
            Action::Conflict { ino, .. } | Action::Verify { ino, .. } | Action::Renamed { ino, .. } => {
                Some(*ino)
            }
            Action::Placed { ino, .. }
            | Action::Moved { ino, .. }
            | Action::Refresh { ino, .. }
            | Action::DropCopy { ino, .. } => Some(*ino),
            Action::Relist { ino, .. } | Action::Adopt { ino, .. } | Action::Link { ino, .. } => Some(*ino),
            Action::Import { .. } => None,
        };
        assert!(about.is_none_or(|ino| !busy.contains(&ino)), "{action:?} of what is busy");
        act(world, action);
    }
}

fn run(base: &[(bool, bool, bool)], ours: &[Op], theirs: &[Op], partial: Option<(u8, u8)>) -> World {
    let mut world = World::default();
    for (n, (dir, racy, copy)) in base.iter().enumerate() {
        let kind = if *dir { FileKind::Directory } else { FileKind::Regular };
        let proof = if *racy { Proof::Racy } else { Proof::Firm };
        world.agree_on(&name(n as u8), kind, proof, *copy);
    }
    ours.iter().for_each(|op| change_ours(&mut world, op));
    theirs.iter().for_each(|op| change_theirs(&mut world, op));
    let (left, [both, deleted]) = merged(&world);
    let names: BTreeMap<u64, At> =
        world.theirs.iter().filter(|(_, o)| o.version != 0).map(|(at, o)| (o.version, at.clone())).collect();
    // But where our rename goes on, with the object or with what has taken its place.
    let renamed = |at: &At, object: &Object| {
        let mut places = world.nodes.values().filter(|n| n.at != n.place.as_ref().map(|(at, ..)| at.clone()));
        places.any(|n| n.place.as_ref().is_some_and(|(p, s, _)| p == at || s.fileid == object.seen.fileid))
    };
    let theirs_alone = world.theirs.iter().filter(|(at, o)| !renamed(at, o));
    let kept_theirs: Vec<u64> = theirs_alone.map(|(_, o)| o.version).collect();

    if let Some((missed, busy)) = partial {
        glance(&mut world, missed, busy);
    }
    let first = reconcile(Trust::Known, &sides(&world), &listing(&world));
    let verified = first.iter().any(|a| matches!(a, Action::Verify { .. }));
    first.into_iter().for_each(|action| act(&mut world, action));
    if verified {
        let rest = reconcile(Trust::Known, &sides(&world), &listing(&world));
        rest.into_iter().for_each(|action| act(&mut world, action));
    }
    let again = reconcile(Trust::Known, &sides(&world), &listing(&world));
    assert!(again.is_empty(), "not at rest: {again:?}");
    let count = |why| world.conflicts.iter().filter(|w| **w == why).count();
    assert_eq!((count(Why::BothChanged), count(Why::DeletedHere)), (both, deleted));

    apply_pending(&mut world);
    let again = reconcile(Trust::Known, &sides(&world), &listing(&world));
    assert!(again.is_empty(), "not equal: {again:?}");
    for node in world.nodes.values() {
        let object = &world.theirs[node.at.as_ref().unwrap()];
        assert_eq!((object.seen.kind, object.seen.mode), (node.kind, node.mode));
        assert!(node.copy.is_none_or(|copy| copy == object.version), "{node:?} {object:?}");
    }
    assert_eq!(world.nodes.len(), world.theirs.len());
    let mut versions: Vec<u64> = world.theirs.values().map(|o| o.version).filter(|v| *v != 0).collect();
    versions.sort_unstable();
    assert_eq!(versions, left, "I-LINK-1");
    for (at, object) in &world.theirs {
        if kept_theirs.contains(&object.version) && object.version != 0 {
            assert_eq!(names.get(&object.version), Some(at), "theirs keeps its name");
        }
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_lost_and_both_sides_agree(
        base in prop::collection::vec((prop::bool::weighted(0.2), prop::bool::weighted(0.3), any::<bool>()), 0..6),
        ours in prop::collection::vec(any_op(), 0..7),
        theirs in prop::collection::vec(any_op(), 0..7),
        partial in prop::option::weighted(0.3, (any::<u8>(), any::<u8>())),
    ) {
        run(&base, &ours, &theirs, partial);
    }
}

/// Two renames there that change places reach our namespace in one call, with both places remembered.
#[test]
fn regression_an_exchange_there_is_known_at_once() {
    let world = run(&[(false, false, false), (false, false, true)], &[Op::Write(1)], &[Op::Swap(0, 1)], None);
    assert!(world.conflicts.is_empty());
}

fn seen(fileid: u64, sec: i64, nlink: u32) -> Seen {
    let time = Timestamp { sec, nsec: 0 };
    let object = World::default().object(FileKind::Regular);
    Seen { fileid, mtime: time, ctime: time, nlink, ..object.seen }
}

fn both(n: u64, name: &[u8], agreed: Seen, changed: Changed) -> Ours {
    let standing = Standing::Both { ours: name.to_vec(), theirs: name.to_vec(), agreed };
    Ours { ino: ino(n), kind: agreed.kind, standing, changed, busy: false }
}

fn whole(entries: &[(&[u8], Seen)]) -> Listing {
    Listing {
        entries: entries.iter().map(|(name, seen)| (name.to_vec(), *seen)).collect(),
        whole: true,
        busy: BTreeSet::new(),
    }
}

/// Goal: names beside that are cut do not meet each other.
#[test]
fn two_long_names_are_set_aside_under_two_names() {
    let names = [[vec![b'x'; 254], vec![b'1']].concat(), [vec![b'x'; 254], vec![b'2']].concat()];
    let ours =
        [both(5, &names[0], seen(1, 1, 1), Changed::Data), both(6, &names[1], seen(2, 1, 1), Changed::Data)];
    let listing = whole(&[(&names[0], seen(1, 2, 1)), (&names[1], seen(2, 2, 1))]);
    let mut kept = Vec::new();
    for action in reconcile(Trust::Known, &ours, &listing) {
        if let Action::Conflict { aside: Some((_, to)), .. } = action {
            kept.push(to);
        }
    }
    assert_eq!(kept.len(), 2);
    assert_ne!(kept[0], kept[1]);
}

/// Goal: another link of a file that we have is not another file; which of several links was renamed is not guessed; names that are
/// ours alone there are nobody's.
#[test]
fn links_and_names_on_the_way() {
    let ours = [both(5, b"a", seen(1, 1, 1), Changed::Nothing)];
    let linked = Seen { ctime: Timestamp { sec: 2, nsec: 0 }, ..seen(1, 1, 2) };
    let listing = whole(&[(b"a", linked), (b"b", linked), (b".onfs-way-9", seen(9, 9, 1))]);
    let refresh = Action::Refresh { ino: ino(5), theirs: linked };
    let link = Action::Link { ino: ino(5), name: b"b".to_vec(), theirs: linked };
    assert_eq!(reconcile(Trust::Known, &ours, &listing), [refresh, link]);

    let ours = [both(5, b"a", linked, Changed::Nothing)];
    let remove = Action::Remove { ino: ino(5), ours: Some(b"a".to_vec()) };
    let import = Action::Import { name: b"b".to_vec(), theirs: linked };
    assert_eq!(reconcile(Trust::Known, &ours, &whole(&[(b"b", linked)])), [remove, import]);
}

/// Goal: an empty or partial view deletes nothing. Method: everything gone, with each reason not to believe it.
#[test]
fn absence_is_not_believed_without_proof() {
    let ours = [both(5, b"a", seen(1, 1, 1), Changed::Nothing), both(6, b"b", seen(2, 1, 1), Changed::Data)];
    let empty = Listing { entries: BTreeMap::new(), whole: true, busy: BTreeSet::new() };
    for trust in [Trust::Unreachable, Trust::Unmounted, Trust::Stranger] {
        assert_eq!(reconcile(trust, &ours, &empty), []);
    }
    assert_eq!(reconcile(Trust::Known, &ours, &Listing { whole: false, ..empty.clone() }), []);
    let remove = Action::Remove { ino: ino(5), ours: Some(b"a".to_vec()) };
    assert_eq!(reconcile(Trust::Known, &ours, &empty), [remove, Action::PutBack { ino: ino(6) }]);
}

/// A file that waited on the way, was deleted here meanwhile, and changed there: nobody would see it again under a name that is
/// never imported.
#[test]
fn regression_what_they_changed_on_its_way_is_imported() {
    let way = Place::on_the_way(Ino::ROOT, ino(5)).name;
    let standing = Standing::Deleted { theirs: way.clone(), agreed: seen(1, 1, 1) };
    let ours = [Ours { standing, ..both(5, b"", seen(1, 1, 1), Changed::Nothing) }];
    let theirs = seen(1, 2, 1);
    let conflict = Action::Conflict { why: Why::DeletedHere, ino: ino(5), name: way.clone(), aside: None };
    let import = Action::Import { name: way.clone(), theirs };
    assert_eq!(reconcile(Trust::Known, &ours, &whole(&[(&way, theirs)])), [conflict, import]);
}
