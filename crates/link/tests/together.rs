//! Goal: the log and the reconciling of a directory together lose nothing and come to rest, whatever the two sides do meanwhile.
//! Method: one directory of files; random changes on both sides, looks, and steps that are done and told late. No step ends a
//! version of theirs that we did not know of, no action one of ours that they do not have; in the end both sides are equal.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod random;

use std::collections::BTreeMap;
use std::time::Duration;

use link::*;
use random::Random;
use types::{FileKind, Ino, Timestamp};

type Name = Vec<u8>;
const ROOT: Ino = Ino::ROOT;
const FILE: FileKind = FileKind::Regular;

#[derive(Clone, Debug)]
struct Node {
    at: Option<Name>,
    /// Their place, and what we saw there.
    place: Option<(Name, Seen)>,
    /// Our bytes, if there is a copy, and whether they are to be published.
    copy: Option<u64>,
    dirty: bool,
}

struct World {
    random: Random,
    now: Timestamp,
    count: u64,
    theirs: BTreeMap<Name, Seen>,
    nodes: BTreeMap<Ino, Node>,
    log: Log,
    flights: Vec<Entry>,
    done: Vec<(Entry, Option<Seen>)>,
    seen: BTreeMap<&'static str, usize>,
}

fn at(name: &[u8]) -> Place {
    Place::new(ROOT, name)
}

/// The version is the time.
fn version(seen: &Seen) -> u64 {
    seen.mtime.sec as u64
}

impl World {
    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn object(&mut self, version: u64) -> Seen {
        let fileid = self.next();
        let mtime = Timestamp { sec: version as i64, nsec: 0 };
        let (kind, proof) = (FILE, Proof::Firm);
        Seen {
            kind,
            fileid,
            birth: None,
            size: 1,
            mtime,
            ctime: mtime,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            proof,
        }
    }

    fn name(&mut self) -> Name {
        vec![self.random.pick(b"abcde").unwrap()]
    }

    fn named(&self, name: &Name) -> Option<Ino> {
        self.nodes.iter().find(|(_, n)| n.at.as_ref() == Some(name)).map(|(ino, _)| *ino)
    }

    fn push(&mut self, ino: Ino, op: Op) {
        self.log.push(self.now, ino, FILE, op);
    }

    fn tidy(&mut self) {
        let log = &self.log;
        self.nodes.retain(|ino, n| n.at.is_some() || n.place.is_some() || log.get(*ino).is_some());
    }

    fn unlink(&mut self, name: &Name) {
        if let Some(ino) = self.named(name) {
            self.nodes.get_mut(&ino).unwrap().at = None;
            self.push(ino, Op::Unlink { at: at(name), last: true });
            self.tidy();
        }
    }

    fn change_ours(&mut self) {
        let (a, b) = (self.name(), self.name());
        let there = self.named(&a);
        match (self.random.below(6), there) {
            (0, None) => {
                let ino = Ino::from_raw(1000 + self.next()).unwrap();
                self.nodes.insert(ino, Node { at: Some(a.clone()), place: None, copy: Some(0), dirty: true });
                self.push(ino, Op::Create { at: at(&a), writing: true });
                self.write(ino);
            }
            (1 | 2, Some(ino)) => self.write(ino),
            (3, _) => self.unlink(&a),
            (_, Some(ino)) if a != b => {
                self.unlink(&b);
                self.nodes.get_mut(&ino).unwrap().at = Some(b.clone());
                self.push(ino, Op::Rename { from: at(&a), to: at(&b) });
            }
            (_, _) => {}
        }
    }

    fn write(&mut self, ino: Ino) {
        let version = self.next();
        let node = self.nodes.get_mut(&ino).unwrap();
        (node.copy, node.dirty) = (Some(version), true);
        self.push(ino, Op::Publish { version });
    }

    fn change_theirs(&mut self) {
        let (a, b) = (self.name(), self.name());
        let n = self.next();
        let fresh = self.object(n);
        match self.random.below(6) {
            0 => drop(self.theirs.remove(&a)),
            1 | 2 => {
                let mtime = fresh.mtime;
                self.theirs
                    .entry(a)
                    .and_modify(|seen| (seen.mtime, seen.ctime) = (mtime, mtime))
                    .or_insert(fresh);
            }
            3 => drop(self.theirs.insert(a, fresh)),
            _ => {
                if let Some(seen) = self.theirs.remove(&a) {
                    self.theirs.insert(b, seen);
                }
            }
        }
    }

    fn look(&mut self) {
        let listing = Listing { entries: self.theirs.clone(), whole: true, busy: self.log.under_way(ROOT) };
        let sides: Vec<Ours> = self
            .nodes
            .iter()
            .filter_map(|(ino, node)| {
                let standing = match (node.at.clone(), node.place.clone()) {
                    (Some(ours), Some((theirs, agreed))) => Standing::Both { ours, theirs, agreed },
                    (Some(ours), None) => Standing::Created { ours },
                    (None, Some((theirs, agreed))) => Standing::Deleted { theirs, agreed },
                    (None, None) => return None,
                };
                let changed = if node.dirty { Changed::Data } else { Changed::Nothing };
                let busy = self.log.get(*ino).is_some_and(|work| work.begun.is_some());
                Some(Ours { ino: *ino, kind: FILE, standing, changed, busy })
            })
            .collect();
        for action in reconcile(Trust::Known, &sides, &listing) {
            self.act(action);
        }
        for (ino, trouble) in self.log.held().collect::<Vec<_>>() {
            if matches!(trouble, Trouble::Conflict(_) | Trouble::Gone) {
                self.log.release(ino);
            }
        }
        self.tidy();
    }

    fn displaced(&mut self, ino: Ino) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.place = None;
        let names = node.at.iter().map(|name| at(name)).collect();
        self.log.displaced(self.now, (ino, FILE), names, node.copy);
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "the rest is not counted")]
    fn act(&mut self, action: Action) {
        let kind = match &action {
            Action::Conflict { why: Why::BothChanged, .. } => "both changed",
            Action::Conflict { why: Why::NameTaken, .. } => "name taken",
            Action::Conflict { why: Why::DeletedHere, .. } => "deleted here",
            Action::Conflict { why: Why::BytesLost, .. } => "bytes lost",
            Action::PutBack { .. } => "put back",
            Action::Moved { .. } => "moved",
            Action::Renamed { exchange: true, .. } => "exchanged",
            _ => return self.carry_out(action),
        };
        *self.seen.entry(kind).or_default() += 1;
        self.carry_out(action);
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Conflict { why, ino, name: _, aside } => {
                if let Some((from, to)) = aside {
                    assert_eq!(self.named(&to), None);
                    self.nodes.get_mut(&ino).unwrap().at = Some(to.clone());
                    self.push(ino, Op::Rename { from: at(&from), to: at(&to) });
                }
                match why {
                    Why::BothChanged => self.displaced(ino),
                    Why::NameTaken | Why::BytesLost => {}
                    Why::DeletedHere => self.lost(ino, None),
                }
            }
            Action::Remove { ino, ours } => {
                let node = &self.nodes[&ino];
                assert!(node.at.is_none() || !node.dirty, "a version of ours is lost: {node:?}");
                self.lost(ino, ours);
            }
            Action::PutBack { ino } => self.displaced(ino),
            Action::Renamed { ino, from, to, exchange } => {
                let there = self.named(&to);
                assert_eq!(there.is_some(), exchange);
                if let Some(there) = there {
                    self.nodes.get_mut(&there).unwrap().at = Some(from);
                }
                let node = self.nodes.get_mut(&ino).unwrap();
                node.place.as_mut().unwrap().0 = to.clone();
                node.at = Some(to);
            }
            Action::Placed { ino, name } => {
                self.nodes.get_mut(&ino).unwrap().place.as_mut().unwrap().0 = name;
            }
            Action::Moved { ino, from, to } => {
                self.nodes.get_mut(&ino).unwrap().place.as_mut().unwrap().0 = to.clone();
                self.log.moved(ino, at(&from), at(&to));
            }
            Action::Refresh { ino, theirs } => {
                self.nodes.get_mut(&ino).unwrap().place.as_mut().unwrap().1 = theirs;
            }
            Action::DropCopy { ino, theirs } => {
                let node = self.nodes.get_mut(&ino).unwrap();
                assert!(!node.dirty, "a version of ours is lost: {node:?}");
                node.copy = None;
                node.place.as_mut().unwrap().1 = theirs;
            }
            Action::Import { name, theirs } => {
                assert_eq!(self.named(&name), None);
                let ino = Ino::from_raw(1000 + self.next()).unwrap();
                let place = Some((name.clone(), theirs));
                self.nodes.insert(ino, Node { at: Some(name), place, copy: None, dirty: false });
            }
            Action::Verify { .. } | Action::Relist { .. } | Action::Adopt { .. } | Action::Link { .. } => {
                panic!("{action:?} in a directory of files with firm looks")
            }
        }
    }

    fn lost(&mut self, ino: Ino, ours: Option<Name>) {
        let node = self.nodes.remove(&ino).unwrap();
        let theirs = at(&node.place.unwrap().0);
        self.log.gone(ino, theirs, ours.map(|name| at(&name)), true);
    }

    fn execute(&mut self, entry: Entry) {
        let place = |ino: Ino| self.nodes.get(&ino).and_then(|n| n.place.clone());
        let own = place(entry.ino);
        let over = entry.step.over().and_then(place).map(|(_, seen)| seen);
        let from_name =
            entry.step.source().map(|at| at.name.clone()).or(own.as_ref().map(|(name, _)| name.clone()));
        let from = from_name.as_ref().and_then(|name| self.theirs.get(name).copied());
        let to = entry.step.target().and_then(|at| self.theirs.get(&at.name).copied());
        let own = own.map(|(_, seen)| seen);
        let agreed = Agreed { own: own.as_ref(), over: over.as_ref(), staged: entry.staged };
        match judge(FILE, &entry.step, agreed, Look { from: from.as_ref(), to: to.as_ref() }) {
            Verdict::Do => {}
            Verdict::Done => return self.done.push((entry, own)),
            Verdict::Verify => panic!("all looks are firm"),
            Verdict::Trouble(trouble) => return self.log.failed(self.now, entry.ino, trouble),
        }
        let known = |seen: &Seen| [own, over].iter().flatten().any(|k| version(k) == version(seen));
        let seen = match entry.step.clone() {
            Step::Create { at, data, .. } => {
                assert!(to.is_none_or(|seen| known(&seen)), "a version of theirs is lost");
                let seen = self.object(data.unwrap());
                self.theirs.insert(at.name, seen);
                Some(seen)
            }
            Step::Publish { version } => {
                assert!(from.is_none_or(|seen| known(&seen)), "a version of theirs is lost");
                let seen = self.object(version);
                self.theirs.insert(from_name.unwrap(), seen);
                Some(seen)
            }
            Step::Rename { to: target, .. } => {
                assert!(to.is_none_or(|seen| known(&seen)), "a version of theirs is lost");
                let seen = self.theirs.remove(&from_name.unwrap()).unwrap();
                self.theirs.insert(target.name, seen);
                own
            }
            Step::Unlink { at } => {
                assert!(from.is_none_or(|seen| known(&seen)), "a version of theirs is lost");
                self.theirs.remove(&at.name);
                None
            }
            Step::Link { .. } | Step::Rmdir { .. } | Step::SetAttr { .. } | Step::SetXattr { .. } => {
                panic!("{entry:?}")
            }
        };
        self.done.push((entry, seen));
    }

    fn tell(&mut self, (entry, seen): (Entry, Option<Seen>)) {
        self.log.applied(entry.ino);
        if let Some(node) = entry.step.over().and_then(|over| self.nodes.get_mut(&over)) {
            node.place = None;
        }
        let node = self.nodes.get_mut(&entry.ino).expect("what is under way is known");
        let name = entry.step.target().map(|at| at.name.clone());
        let name = name.or(node.place.take().map(|(name, _)| name));
        node.place = name.zip(seen).filter(|_| !matches!(entry.step, Step::Unlink { .. }));
        let published = matches!(entry.step, Step::Create { .. } | Step::Publish { .. });
        if published && node.copy == seen.map(|seen| version(&seen)) {
            node.dirty = false;
        }
        self.tidy();
    }

    fn work(&mut self) {
        let entries = self.log.ready(self.now, 2, &|_| Some(ROOT));
        self.flights.extend(entries);
        if !self.flights.is_empty() && self.random.chance(60) {
            let n = self.random.below(self.flights.len());
            let entry = self.flights.swap_remove(n);
            self.execute(entry);
        }
        if !self.done.is_empty() && self.random.chance(60) {
            let n = self.random.below(self.done.len());
            let done = self.done.swap_remove(n);
            self.tell(done);
        }
    }

    fn rest(&mut self) {
        for _ in 0..200 {
            self.work();
            if self.flights.is_empty() && self.done.is_empty() {
                self.look();
            }
        }
        assert_eq!(self.log.lag().entries, 0, "{:?} {:?}", self.log.held().collect::<Vec<_>>(), self.nodes);
        assert_eq!(self.nodes.len(), self.theirs.len());
        for node in self.nodes.values() {
            let (name, seen) = node.place.as_ref().unwrap();
            assert_eq!(node.at.as_ref(), Some(name));
            assert_eq!(self.theirs[name].fileid, seen.fileid);
            assert!(
                !node.dirty && node.copy.is_none_or(|copy| copy == version(&self.theirs[name])),
                "{node:?}"
            );
        }
    }
}

/// What was met, and how often.
fn run(seed: u64) -> BTreeMap<&'static str, usize> {
    let settings = Settings {
        root: ROOT,
        entries_max: 1000,
        retry_first: Duration::from_secs(1),
        retry_most: Duration::from_secs(60),
        held_retry: Duration::from_secs(300),
    };
    let mut world = World {
        random: Random(seed),
        now: Timestamp { sec: 1, nsec: 0 },
        count: 0,
        theirs: BTreeMap::new(),
        nodes: BTreeMap::new(),
        log: Log::new(settings),
        flights: Vec::new(),
        done: Vec::new(),
        seen: BTreeMap::new(),
    };
    let (steps, looks) = (world.random.below(80), world.random.below(40));
    for _ in 0..steps {
        match world.random.below(100) {
            0..25 => world.change_ours(),
            25..45 => world.change_theirs(),
            n if n < 45 + looks => world.look(),
            _ => world.work(),
        }
    }
    world.rest();
    world.seen
}

#[test]
fn both_sides_come_to_rest_and_nothing_is_lost() {
    let setting = |name, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (first, seeds) = (setting("LINK_FIRST", 0), setting("LINK_SEEDS", 2000));
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in first..first + seeds {
        let met = std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| {
            panic!("again: LINK_FIRST={seed} LINK_SEEDS=1 cargo test -p link --test together")
        });
        met.into_iter().for_each(|(kind, count)| *seen.entry(kind).or_default() += count);
    }
    for kind in ["both changed", "name taken", "deleted here", "put back", "moved"] {
        assert!(
            seeds < 1000 || seen.get(kind).is_some_and(|count| *count > 10),
            "too little of {kind}: {seen:?}"
        );
    }
    println!("{seen:?}");
}
