//! A small file system of ours, a back end, and the shell between them: it feeds the log, looks before each step, stores what it
//! has to store and no more, and checks each name of the back end after each step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::random::Random;
use link::*;
use types::{Errno, FileKind, Ino, Timestamp};

#[derive(Clone, Debug)]
pub struct Inode {
    pub kind: FileKind,
    pub version: u64,
    pub mode: u32,
    pub xattr: u64,
    /// Every name that it ever had.
    had: BTreeSet<Place>,
    /// The version when it was last renamed.
    renamed: u64,
    /// It was open for writing from the beginning: never seen without data.
    filled: bool,
}

#[derive(Clone, Debug)]
struct Object {
    kind: FileKind,
    ino: Ino,
    version: u64,
    mode: u32,
    xattr: u64,
    ctime: i64,
}

const DIR: FileKind = FileKind::Directory;
pub const ROOT: Ino = Ino::ROOT;
const ROOT_ID: u64 = 1;

pub struct World {
    pub random: Random,
    pub now: Timestamp,
    pub inodes: BTreeMap<Ino, Inode>,
    pub names: BTreeMap<Place, Ino>,
    gone: BTreeMap<Ino, Inode>,
    next: u64,
    objects: BTreeMap<u64, Object>,
    theirs: BTreeMap<(u64, Vec<u8>), u64>,
    pub log: Log,
    stored: BTreeMap<Ino, Work>,
    agreed: BTreeMap<Ino, Seen>,
    stored_agreed: BTreeMap<Ino, Seen>,
    /// With the shell, not done; and done, not told.
    pub flights: Vec<Entry>,
    pub done: Vec<Ino>,
    pub doomed: BTreeSet<Ino>,
    pub again: usize,
}

pub fn settings() -> Settings {
    Settings {
        root: ROOT,
        entries_max: 1000,
        retry_first: Duration::from_secs(1),
        retry_most: Duration::from_secs(60),
        held_retry: Duration::from_secs(300),
    }
}

impl World {
    pub fn new(seed: u64) -> World {
        let root = Object { kind: FileKind::Directory, ino: ROOT, version: 0, mode: 0, xattr: 0, ctime: 0 };
        let mut world = World {
            random: Random(seed),
            now: Timestamp { sec: 1_000_000, nsec: 0 },
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            gone: BTreeMap::new(),
            next: 1,
            objects: BTreeMap::from([(ROOT_ID, root)]),
            theirs: BTreeMap::new(),
            log: Log::new(settings()),
            stored: BTreeMap::new(),
            agreed: BTreeMap::new(),
            stored_agreed: BTreeMap::new(),
            flights: Vec::new(),
            done: Vec::new(),
            doomed: BTreeSet::new(),
            again: 0,
        };
        world.agreed.insert(ROOT, world.seen(ROOT_ID));
        world.stored_agreed = world.agreed.clone();
        world
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn push(&mut self, ino: Ino, op: Op) {
        let kind = self.inodes.get(&ino).or_else(|| self.gone.get(&ino)).unwrap().kind;
        self.log.push(self.now, ino, kind, op);
    }

    /// The end of a commit: all that changed is stored.
    pub fn commit(&mut self) {
        for (ino, work) in self.log.changed() {
            match work {
                Some(work) => drop(self.stored.insert(ino, work)),
                None => drop(self.stored.remove(&ino)),
            }
        }
        self.stored_agreed = self.agreed.clone();
    }

    pub fn crash(&mut self) {
        self.log = Log::rebuild(settings(), self.stored.clone()).unwrap();
        self.agreed = self.stored_agreed.clone();
        self.flights.clear();
        self.done.clear();
    }

    // Our side.

    pub fn dirs(&self) -> Vec<Ino> {
        let dirs = self.inodes.iter().filter(|(_, i)| i.kind == FileKind::Directory);
        [ROOT].into_iter().chain(dirs.map(|(ino, _)| *ino)).collect()
    }

    pub fn parent(&self, ino: Ino) -> Option<Ino> {
        self.names.iter().find(|(_, i)| **i == ino).map(|(at, _)| at.dir)
    }

    fn is_within(&self, dir: Ino, top: Ino) -> bool {
        let mut at = Some(dir);
        while let Some(dir) = at {
            if dir == top {
                return true;
            }
            at = self.parent(dir);
        }
        false
    }

    fn is_empty(&self, dir: Ino) -> bool {
        !self.names.keys().any(|at| at.dir == dir)
    }

    pub fn create(&mut self, at: Place, kind: FileKind, writing: bool) {
        if self.names.contains_key(&at) {
            return;
        }
        let ino = Ino::from_raw(100 + self.number()).unwrap();
        let had = BTreeSet::from([at.clone()]);
        let filled = writing && kind == FileKind::Regular;
        let inode = Inode { kind, version: 0, mode: 0, xattr: 0, had, renamed: 0, filled };
        self.inodes.insert(ino, inode);
        self.names.insert(at.clone(), ino);
        self.push(ino, Op::Create { at, writing: filled });
    }

    pub fn write(&mut self, ino: Ino) {
        let version = self.number();
        self.inodes.get_mut(&ino).unwrap().version = version;
        self.push(ino, Op::Written { version });
    }

    pub fn publish(&mut self, ino: Ino) {
        let inode = self.inodes.get_mut(&ino).unwrap();
        // Closed as it was opened: empty it is whole.
        inode.filled &= inode.version > 0;
        let version = inode.version;
        self.push(ino, Op::Publish { version });
    }

    pub fn set_attr(&mut self, ino: Ino) {
        self.inodes.get_mut(&ino).unwrap().mode = self.next as u32 % 8;
        self.push(ino, Op::SetAttr { what: Attrs::MODE });
    }

    pub fn set_xattr(&mut self, ino: Ino) {
        self.inodes.get_mut(&ino).unwrap().xattr = self.next % 8;
        self.push(ino, Op::SetXattr { name: b"user.x".to_vec() });
    }

    pub fn remove(&mut self, at: &Place) -> bool {
        let Some(ino) = self.names.get(at).copied() else { return true };
        let dir = self.inodes[&ino].kind == FileKind::Directory;
        if dir && !self.is_empty(ino) {
            return false;
        }
        self.names.remove(at);
        let last = !self.names.values().any(|i| *i == ino);
        if last {
            let inode = self.inodes.remove(&ino).unwrap();
            self.gone.insert(ino, inode);
        }
        let at = at.clone();
        self.push(ino, if dir { Op::Rmdir { at } } else { Op::Unlink { at, last } });
        true
    }

    pub fn link(&mut self, ino: Ino, at: Place) {
        if !self.names.contains_key(&at) && self.inodes[&ino].kind != FileKind::Directory {
            self.name(ino, at.clone());
            self.push(ino, Op::Link { at });
        }
    }

    fn name(&mut self, ino: Ino, at: Place) {
        let inode = self.inodes.get_mut(&ino).unwrap();
        inode.renamed = inode.version;
        inode.had.insert(at.clone());
        self.names.insert(at, ino);
    }

    pub fn rename(&mut self, from: Place, to: Place) {
        let Some(ino) = self.names.get(&from).copied() else { return };
        let over = self.names.get(&to).copied();
        let dir = |ino: Ino| self.inodes[&ino].kind == FileKind::Directory;
        let fits = over.is_none_or(|over| over != ino && dir(over) == dir(ino));
        if !fits
            || (dir(ino) && self.is_within(to.dir, ino))
            || over.is_some_and(|o| self.is_within(from.dir, o))
        {
            return;
        }
        if !self.remove(&to) {
            return;
        }
        self.names.remove(&from);
        self.name(ino, to.clone());
        self.push(ino, Op::Rename { from, to });
    }

    pub fn exchange(&mut self, a: Place, b: Place) {
        let (Some(x), Some(y)) = (self.names.get(&a).copied(), self.names.get(&b).copied()) else { return };
        let dir = |ino: Ino| self.inodes[&ino].kind == FileKind::Directory;
        if x == y || (dir(x) && self.is_within(b.dir, x)) || (dir(y) && self.is_within(a.dir, y)) {
            return;
        }
        self.name(x, b.clone());
        self.name(y, a.clone());
        self.push(x, Op::Rename { from: a.clone(), to: b.clone() });
        self.push(y, Op::Rename { from: b, to: a });
    }

    // The back end.

    fn seen(&self, id: u64) -> Seen {
        let object = &self.objects[&id];
        let time = |sec| Timestamp { sec, nsec: 0 };
        Seen {
            kind: object.kind,
            fileid: id,
            birth: None,
            size: 0,
            mtime: time(object.version as i64),
            ctime: time(object.ctime),
            mode: object.mode,
            uid: 0,
            gid: 0,
            nlink: self.theirs.values().filter(|i| **i == id).count() as u32,
            proof: Proof::Firm,
        }
    }

    /// The number of a directory, found by walking their places from the root.
    fn dir_id(&self, dir: Ino) -> u64 {
        if dir == ROOT {
            return ROOT_ID;
        }
        let at = self.their_place(dir);
        let Some(id) = self.at(&at) else { panic!("{dir:?} is not at {at:?}: {:?}", self.log.get(dir)) };
        assert_eq!(self.objects[&id].ino, dir, "the way leads elsewhere");
        id
    }

    fn at(&self, at: &Place) -> Option<u64> {
        self.theirs.get(&(self.dir_id(at.dir), at.name.clone())).copied()
    }

    fn their_place(&self, ino: Ino) -> Place {
        let work = self.log.get(ino);
        if let Some(at) = work.and_then(|work| work.minus.first()) {
            return at.clone();
        }
        let mut ours = self.names.iter().filter(|(_, i)| **i == ino).map(|(at, _)| at);
        ours.find(|at| work.is_none_or(|work| !work.plus.contains(*at)))
            .expect("it has a place there")
            .clone()
    }

    /// Finds out what a step would meet, and does it. Returns whether it is done.
    pub fn execute(&mut self, entry: &Entry) -> Result<(), Trouble> {
        if self.doomed.contains(&entry.ino) {
            return Err(Trouble::Refused(Errno::EACCES));
        }
        let from = match &entry.step {
            Step::Create { .. } => None,
            Step::Publish { .. } | Step::Link { .. } | Step::SetAttr { .. } | Step::SetXattr { .. } => {
                self.at(&self.their_place(entry.ino))
            }
            Step::Rename { from: at, .. } | Step::Unlink { at } | Step::Rmdir { at } => self.at(at),
        };
        let to = entry.step.target().and_then(|at| self.at(at));
        let over = entry.step.over().and_then(|over| self.agreed.get(&over).copied());
        let (own, staged) = (self.agreed.get(&entry.ino).copied(), entry.staged);
        let agreed = Agreed { own: own.as_ref(), over: over.as_ref(), staged };
        let (from_seen, to_seen) = (from.map(|id| self.seen(id)), to.map(|id| self.seen(id)));
        let look = Look { from: from_seen.as_ref(), to: to_seen.as_ref() };
        match judge(entry.kind, &entry.step, agreed, look) {
            // All but the name is done.
            Verdict::Do if self.random.chance(5) && entry.staged.is_none() => {
                let id = self.stage(entry.ino);
                if matches!(entry.step, Step::Create { .. } | Step::Publish { .. })
                    && !self.seen(id).kind.eq(&DIR)
                {
                    self.stored_stage(entry.ino, Staged::Aside(self.seen(id)));
                }
                self.objects.remove(&id);
                return Err(Trouble::Later);
            }
            Verdict::Do => self.act(entry, from, to),
            Verdict::Done => assert!(entry.again, "done before it began: {entry:?}"),
            verdict @ (Verdict::Verify | Verdict::Trouble(_)) => {
                panic!("nobody else is there: {verdict:?} of {entry:?}, {look:?}, {agreed:?}")
            }
        }
        self.check_names();
        Ok(())
    }

    fn stage(&mut self, ino: Ino) -> u64 {
        // As it is when it is read: not older than the step says.
        let inode = self.inodes.get(&ino).or_else(|| self.gone.get(&ino)).unwrap().clone();
        let id = 1000 + self.number();
        let Inode { kind, version, mode, xattr, .. } = inode;
        self.objects.insert(id, Object { kind, ino, version, mode, xattr, ctime: id as i64 });
        id
    }

    fn give(&mut self, at: &Place, id: u64, over: bool) {
        let key = (self.dir_id(at.dir), at.name.clone());
        let before = self.theirs.insert(key, id);
        assert_eq!(before.is_some(), over, "{at:?}");
    }

    fn act(&mut self, entry: &Entry, from: Option<u64>, to: Option<u64>) {
        let ino = entry.ino;
        let over = to.is_some();
        match &entry.step {
            Step::Create { at, data, .. } => {
                let id = self.stage(ino);
                if data.is_none() {
                    self.objects.get_mut(&id).unwrap().version = 0;
                }
                if entry.kind != FileKind::Directory {
                    self.stored_stage(ino, Staged::Aside(self.seen(id)));
                }
                self.give(at, id, over);
            }
            Step::Publish { .. } => {
                let id = from.unwrap();
                let version = self.inodes.get(&ino).or_else(|| self.gone.get(&ino)).unwrap().version;
                if self.seen(id).nlink > 1 {
                    self.stored_stage(ino, Staged::InPlace);
                    self.objects.get_mut(&id).unwrap().version = version;
                } else {
                    let new = self.stage(ino);
                    let old = self.objects.remove(&id).unwrap();
                    let object = self.objects.get_mut(&new).unwrap();
                    (object.mode, object.xattr) = (old.mode, old.xattr);
                    self.stored_stage(ino, Staged::Aside(self.seen(new)));
                    let name =
                        self.theirs.iter().find(|(_, i)| **i == id).map(|(name, _)| name.clone()).unwrap();
                    self.theirs.insert(name, new);
                }
            }
            Step::Rename { from: source, to: target, .. } => {
                assert!(entry.kind != FileKind::Directory || !self.their_way(target.dir).contains(&ino));
                let id = self.theirs.remove(&(self.dir_id(source.dir), source.name.clone())).unwrap();
                self.give(target, id, over);
            }
            Step::Link { at, .. } => self.give(at, from.unwrap(), over),
            Step::Unlink { at } | Step::Rmdir { at } => {
                let id = self.theirs.remove(&(self.dir_id(at.dir), at.name.clone())).unwrap();
                assert!(!self.theirs.keys().any(|(dir, _)| *dir == id), "ENOTEMPTY");
            }
            Step::SetAttr { .. } => {
                let mode = self.inodes.get(&ino).map_or(0, |i| i.mode);
                self.objects.get_mut(&from.unwrap()).unwrap().mode = mode;
            }
            Step::SetXattr { .. } => {
                let xattr = self.inodes.get(&ino).map_or(0, |i| i.xattr);
                self.objects.get_mut(&from.unwrap()).unwrap().xattr = xattr;
            }
        }
    }

    pub fn all(&self) -> BTreeSet<Ino> {
        self.inodes.keys().chain(self.gone.keys()).copied().collect()
    }

    /// From a directory up; by our names where it is not there.
    pub fn their_way(&self, dir: Ino) -> Vec<Ino> {
        let mut way = vec![dir];
        while *way.last().unwrap() != ROOT {
            let at = *way.last().unwrap();
            let there = self.log.get(at).is_none_or(|work| work.there);
            way.push(if there { self.their_place(at).dir } else { self.parent(at).unwrap() });
        }
        way
    }

    fn stored_stage(&mut self, ino: Ino, staged: Staged) {
        self.log.staged(ino, staged);
        self.commit();
    }

    /// What the shell notes when a step is done.
    pub fn tell(&mut self, ino: Ino) {
        self.log.applied(ino);
        let id = self.theirs.values().find(|id| self.objects[*id].ino == ino).copied();
        match id {
            Some(id) => drop(self.agreed.insert(ino, self.seen(id))),
            None => drop(self.agreed.remove(&ino)),
        }
    }

    /// I-LINK-5.
    fn check_names(&self) {
        for ((dir, name), id) in &self.theirs {
            let object = &self.objects[id];
            let inode = self.inodes.get(&object.ino).or_else(|| self.gone.get(&object.ino)).unwrap();
            let place = Place { dir: self.objects[dir].ino, name: name.clone() };
            assert!(
                is_on_the_way(name) || inode.had.contains(&place),
                "{place:?} never named {:?}",
                object.ino
            );
            assert!(object.version <= inode.version);
            assert!(!inode.filled || object.version > 0, "seen without its data: {:?}", object.ino);
        }
    }

    fn difference(&self, ino: Ino) -> (BTreeSet<Place>, BTreeSet<Place>) {
        let theirs = self.theirs.iter().filter(|(_, id)| self.objects[*id].ino == ino);
        let theirs: BTreeSet<Place> =
            theirs.map(|((dir, name), _)| Place { dir: self.objects[dir].ino, name: name.clone() }).collect();
        let ours: BTreeSet<Place> =
            self.names.iter().filter(|(_, i)| **i == ino).map(|(at, _)| at.clone()).collect();
        (&theirs - &ours, &ours - &theirs)
    }

    /// I-LINK-7, when no step is under way, or may have been done.
    pub fn check_size(&self) {
        if self.stored.values().any(|work| work.begun.is_some()) {
            return;
        }
        for ino in self.all() {
            let (minus, plus) = self.difference(ino);
            match self.log.get(ino) {
                Some(work) => {
                    assert_eq!((&work.minus, &work.plus), (&minus, &plus), "{ino:?}: {work:?}");
                    let data = work.written > work.published || work.due.is_some();
                    let attributes = !work.attrs.is_empty() || !work.xattrs.is_empty();
                    assert!(data || attributes || !minus.is_empty() || !plus.is_empty(), "{ino:?}: {work:?}");
                }
                None => assert!(minus.is_empty() && plus.is_empty(), "{ino:?}: {minus:?} {plus:?}"),
            }
        }
    }

    /// I-LINK-4.
    pub fn check_equal(&self) {
        assert_eq!(self.log.lag().entries, 0, "{:#?}", (&self.stored, self.log.held().collect::<Vec<_>>()));
        assert!(self.stored.is_empty());
        for ino in self.inodes.keys().chain(self.gone.keys()) {
            assert_eq!(self.difference(*ino), (BTreeSet::new(), BTreeSet::new()), "{ino:?}");
        }
        for (at, id) in &self.theirs {
            let object = &self.objects[id];
            let inode = &self.inodes[&object.ino];
            let theirs = (object.kind, object.version, object.mode, object.xattr);
            assert_eq!(
                theirs,
                (inode.kind, inode.version, inode.mode, inode.xattr),
                "{at:?} {:?}",
                object.ino
            );
        }
    }

    pub fn ready(&mut self, max: usize) -> Vec<Entry> {
        let there = |ino: &&Ino| self.log.get(**ino).is_none_or(|work| work.there);
        let parents: BTreeMap<Ino, Ino> =
            self.inodes.keys().filter(there).map(|ino| (*ino, self.their_place(*ino).dir)).collect();
        let entries = self.log.ready(self.now, max, &|ino| parents.get(&ino).copied());
        self.commit();
        self.again += entries.iter().filter(|e| e.again).count();
        for entry in entries.iter().filter(|e| !e.again && e.step.over().is_some()) {
            let theirs = self.objects.values().filter(|o| o.ino == entry.ino).map(|o| o.version).max();
            let renamed = self.inodes[&entry.ino].renamed;
            assert!(theirs.is_none_or(|v| v >= renamed), "I-LINK-5: an old version takes a name: {entry:?}");
        }
        entries
    }

    /// Applies until nothing more can be.
    pub fn drain(&mut self) {
        for _ in 0..10_000 {
            let entries = self.ready(3);
            self.flights.extend(entries);
            if let Some(entry) = self.flights.pop() {
                match self.execute(&entry) {
                    Ok(()) => self.tell(entry.ino),
                    Err(trouble) => self.log.failed(self.now, entry.ino, trouble),
                }
            } else if self.log.held().all(|(_, trouble)| trouble != Trouble::Later) {
                return self.commit();
            } else {
                self.now = self.log.next_deadline().unwrap();
            }
        }
        panic!("it does not come to an end");
    }
}
