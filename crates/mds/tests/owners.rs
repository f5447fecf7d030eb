//! Several servers of one file system, each with slots of its own, over one engine that refuses batches in slots of others.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod common_engine;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use common_engine::{Common, Part};
use kv::{Engine, Lsn, MetaStore, MetaStoreOptions, OpenError, SystemDisk};
use mds::{Caller, Gather, Mds, MdsOptions, NewNode, RenameMode, fsck};
use parking_lot::Mutex;
use types::{Errno, FileKind, Ino, SLOTS, Slot, Timestamp};

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0 };
/// Of slots, while they are used.
const MOVES: usize = 400;
const FILE: NewNode<'static> =
    NewNode { kind: FileKind::Regular, mode: 0o644, rdev: 0, target: None, for_write: false };

struct Member {
    dir: tempfile::TempDir,
    applied: Arc<Mutex<Lsn>>,
    store: Arc<MetaStore>,
    mds: Arc<Mds>,
}

fn open_store(common: &Arc<Common>, dir: &Path, me: usize, applied: &Arc<Mutex<Lsn>>) -> Arc<MetaStore> {
    let part = Part { common: Arc::clone(common), me, applied: Arc::clone(applied) };
    let engine = |_: &Path, _: u64| -> Result<Box<dyn Engine>, OpenError> { Ok(Box::new(part)) };
    let options = MetaStoreOptions { background: false, ..MetaStoreOptions::default() };
    Arc::new(MetaStore::open(dir, engine, options, Arc::new(SystemDisk)).unwrap())
}

fn slot(n: u16) -> Slot {
    Slot::new(n).unwrap()
}

/// Servers, of which the first has all slots at the beginning.
struct Site {
    common: Arc<Common>,
    members: OnceLock<Vec<Member>>,
    /// One hand-over at a time.
    moving: Mutex<()>,
    gathered: AtomicUsize,
}

/// What one of them gathers through.
struct Hand {
    site: Arc<Site>,
    me: usize,
}

impl Gather for Hand {
    fn gather(&self, slots: &[Slot]) -> Result<(), Errno> {
        self.site.gathered.fetch_add(1, Ordering::Relaxed);
        self.site.bring(slots, self.me)
    }
}

impl Site {
    fn new(n: usize) -> (Arc<Site>, Vec<Arc<dyn Gather>>) {
        let common = Arc::new(Common::default());
        common.owners.lock().extend((0..SLOTS as u16).map(|slot| (slot, 0)));
        let (members, moving) = (OnceLock::new(), Mutex::default());
        let site = Arc::new(Site { common: common.clone(), members, moving, gathered: AtomicUsize::new(0) });
        let mut members: Vec<Member> = Vec::new();
        let mut hands: Vec<Arc<dyn Gather>> = Vec::new();
        for me in 0..n {
            let (dir, applied) = (tempfile::tempdir().unwrap(), Arc::new(Mutex::new(Lsn(0))));
            let store = open_store(&common, dir.path(), me, &applied);
            let mds = match members.first() {
                None => {
                    let all: Vec<Slot> = Slot::all().collect();
                    Mds::first(store.clone(), MdsOptions::default(), &all).unwrap()
                }
                Some(first) => {
                    Mds::join(store.clone(), MdsOptions::default(), &first.mds.welcome().unwrap(), &[])
                }
            };
            let hand: Arc<dyn Gather> = Arc::new(Hand { site: site.clone(), me });
            mds.set_gatherer(&hand).unwrap();
            hands.push(hand);
            members.push(Member { dir, applied, store, mds: Arc::new(mds) });
        }
        assert!(site.members.set(members).is_ok());
        (site, hands)
    }

    fn mds(&self, n: usize) -> &Mds {
        &self.members.get().unwrap()[n].mds
    }

    fn owner(&self, slot: Slot) -> usize {
        self.common.owners.lock()[&slot.get()]
    }

    fn bring(&self, slots: &[Slot], to: usize) -> Result<(), Errno> {
        let _one = self.moving.lock();
        let next_ugsd = self.mds(self.owner(slot(0))).next_ugsd()?;
        for slot in slots.iter().copied().filter(|slot| self.owner(*slot) != to) {
            self.mds(self.owner(slot)).let_go(&[slot])?;
            self.common.owners.lock().insert(slot.get(), to);
            self.mds(to).take_on(&[slot], next_ugsd)?;
        }
        Ok(())
    }

    /// At the server that has the inode's slot, wherever that is by then.
    fn ask<V>(&self, ino: Ino, ask: impl Fn(&Mds) -> Result<V, Errno>) -> Result<V, Errno> {
        loop {
            match ask(self.mds(self.owner(ino.ugsd().slot()))) {
                Err(Errno::EREMOTE | Errno::EAGAIN) => thread::yield_now(),
                other => return other,
            }
        }
    }

    fn names(&self, dir: Ino) -> BTreeSet<String> {
        self.ask(dir, |mds| {
            let mut names = BTreeSet::new();
            mds.readdir(dir, 0, &mut |entry| {
                names.insert(String::from_utf8(entry.name.to_vec()).unwrap());
                ControlFlow::Continue(())
            })?;
            Ok(names)
        })
        .unwrap()
        .into_iter()
        .filter(|name| !name.starts_with('.'))
        .collect()
    }

    /// All is well in what they wrote together.
    fn check(&self) {
        for member in self.members.get().unwrap() {
            member.store.checkpoint().unwrap();
        }
        let mut findings = Vec::new();
        let store = &self.members.get().unwrap()[0].store;
        store.forget_reads();
        fsck(store, Timestamp::EPOCH, false, &mut |finding| findings.push(finding.to_string())).unwrap();
        // The count of those that others made is nobody's.
        findings.retain(|finding| !finding.contains("count"));
        assert_eq!(findings, Vec::<String>::new());
    }
}

/// Goal: an operation is carried out by the owner of its home, which gets what else is needed; nobody else answers. Method: two servers.
#[test]
fn an_operation_is_for_the_owner_of_its_home() {
    let (site, _hands) = Site::new(2);
    let (a, b) = (site.mds(0), site.mds(1));
    assert_ne!(a.epoch(), b.epoch());
    site.bring(&[slot(1)], 1).unwrap();
    // The new directory's slot is b's: a gathers it.
    let one = a.mkdir(&ROOT, Ino::ROOT, b"one", 0o755).unwrap().ino;
    assert_eq!(
        (one.ugsd().slot(), site.owner(slot(1)), site.gathered.load(Ordering::SeqCst)),
        (slot(1), 0, 1)
    );
    site.bring(&[slot(1)], 1).unwrap();
    assert_eq!(a.create(&ROOT, one, b"x", &FILE).err(), Some(Errno::EREMOTE));
    assert_eq!(a.find(one).err(), Some(Errno::EREMOTE));
    assert_eq!(a.readdir(one, 0, &mut |_| ControlFlow::Continue(())), Err(Errno::EREMOTE));
    assert_eq!(b.mkdir(&ROOT, Ino::ROOT, b"no", 0o755).err(), Some(Errno::EREMOTE));
    let x = b.create(&ROOT, one, b"x", &FILE).unwrap().attr.ino;
    // A name here, what it names there.
    assert_eq!(a.lookup(Ino::ROOT, b"one").err(), Some(Errno::EREMOTE));
    assert_eq!(a.lookup_entry(Ino::ROOT, b"one"), Ok((one, FileKind::Directory)));
    assert_eq!(a.lookup_entry(Ino::ROOT, b"two"), Err(Errno::ENOENT));
    assert_eq!(b.lookup_entry(one, b".."), Ok((Ino::ROOT, FileKind::Directory)));
    assert_eq!(b.find(one).unwrap().attr.ino, one);
    // A rename from b's to a's: one commit, of b.
    let two = a.mkdir(&ROOT, Ino::ROOT, b"two", 0o755).unwrap().ino;
    b.rename((one, b"x"), (two, b"y"), RenameMode::Replace).unwrap();
    assert_eq!(site.owner(two.ugsd().slot()), 1);
    assert_eq!(b.lookup(two, b"y").unwrap().attr.ino, x);
    assert_eq!(b.settle_all(&mut []), Ok(()));
    site.check();
}

/// Goal: who gets a slot back sees what was done elsewhere meanwhile, whatever he had read or not found. Method: a name that is not
/// there, an inode that is known, both changed by the other.
#[test]
fn what_was_read_before_a_slot_went_is_forgotten() {
    let (site, _hands) = Site::new(2);
    let dir = site.mds(0).mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let moved = dir.ugsd().slot();
    site.bring(&[moved], 1).unwrap();
    site.bring(&[moved], 0).unwrap();
    let before = site.mds(0).find(dir).unwrap().attr;
    assert_eq!(site.mds(0).lookup(dir, b"new").err(), Some(Errno::ENOENT));
    site.bring(&[moved], 1).unwrap();
    let new = site.mds(1).create(&ROOT, dir, b"new", &FILE).unwrap().attr.ino;
    site.bring(&[moved], 0).unwrap();
    assert_eq!(site.mds(0).lookup(dir, b"new").unwrap().attr.ino, new);
    assert_ne!(site.mds(0).find(dir).unwrap().attr, before);
    let next = site.mds(0).create(&ROOT, dir, b"next", &FILE).unwrap().attr.ino;
    assert_ne!(next, new, "a number is given out once");
    site.check();
}

/// Goal: a slot that cannot be let go stays, with all that is in it. Method: an engine that takes nothing for a while.
#[test]
fn a_slot_that_cannot_be_let_go_stays() {
    let (site, _hands) = Site::new(2);
    let dir = site.mds(0).mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    site.common.full.store(true, Ordering::SeqCst);
    assert_eq!(site.mds(0).let_go(&[dir.ugsd().slot()]), Err(Errno::EIO));
    site.mds(0).create(&ROOT, dir, b"file", &FILE).unwrap();
    site.common.full.store(false, Ordering::SeqCst);
    site.bring(&[dir.ugsd().slot()], 1).unwrap();
    assert_eq!(site.names(dir), ["file".to_owned()].into());
    site.check();
}

/// Goal: what has no name and no reference is purged by whoever has its slot, also when it came from elsewhere. Method: an open file
/// that is unlinked, and a slot that moves before the last reference goes.
#[test]
fn orphans_are_purged_by_the_next_owner() {
    let (site, _hands) = Site::new(2);
    let (a, b) = (site.mds(0), site.mds(1));
    let dir = a.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let file = a.create(&ROOT, dir, b"file", &FILE).unwrap().attr.ino;
    a.hold(file, 1);
    a.unlink(dir, b"file", &|_| true).unwrap();
    assert_eq!(a.purge_list(9), Ok(vec![]));
    b.hold(file, 1);
    site.bring(&[dir.ugsd().slot()], 1).unwrap();
    assert_eq!(a.purge(&[file]), Ok(0), "not its own any more");
    assert_eq!(b.purge_list(9), Ok(vec![]), "somebody refers to it");
    b.held_again(&b.find(file).unwrap().attr);
    b.release(file, 1);
    assert_eq!(b.purge_list(9), Ok(vec![file]));
    assert_eq!(b.purge(&[file]), Ok(1));
    site.check();
}

/// Goal: slots that move while they are used lose nothing, and no number is given out twice. Method: threads that make, rename and remove
/// files of their own in directories in four slots, at whoever has them, across slots too; another that moves slots about, the root's too; then
/// the names that each thread expects, and a check of all records.
#[test]
fn slots_move_under_load() {
    let (site, _hands) = Site::new(3);
    let dirs: Vec<Ino> = (0..4)
        .map(|n| site.mds(0).mkdir(&ROOT, Ino::ROOT, format!("d{n}").as_bytes(), 0o755).unwrap().ino)
        .collect();
    let moves = AtomicUsize::new(0);
    let expected: Vec<(BTreeMap<String, usize>, Vec<Ino>)> = thread::scope(|scope| {
        let (site, dirs, moves) = (&site, &dirs, &moves);
        let workers: Vec<_> = (0..3).map(|who| scope.spawn(move || work(site, dirs, (who, moves)))).collect();
        let mut seed = 7_u64;
        for n in 1..=MOVES {
            let dice = next(&mut seed);
            let moved = site.bring(&[slot(dice % 5)], usize::from(dice / 5 % 3));
            // Those who wait for the last must not wait for ever.
            moves.store(if moved.is_ok() { n } else { MOVES }, Ordering::Release);
            moved.unwrap();
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for (n, dir) in dirs.iter().enumerate() {
        let of_dir = expected.iter().flat_map(|(names, _)| names.iter().filter(|(_, at)| **at == n));
        assert_eq!(site.names(*dir), of_dir.map(|(name, _)| name.clone()).collect());
    }
    let made: Vec<Ino> = expected.iter().flat_map(|(_, made)| made.iter().copied()).collect();
    assert_eq!(made.iter().collect::<HashSet<_>>().len(), made.len());
    assert!(site.gathered.load(Ordering::SeqCst) > 0);
    site.check();
}

fn next(seed: &mut u64) -> u16 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as u16
}

/// Returns where its names are, and the numbers that it was given.
fn work(
    site: &Site,
    dirs: &[Ino],
    (who, moves): (usize, &AtomicUsize),
) -> (BTreeMap<String, usize>, Vec<Ino>) {
    let (mut names, mut made) = (BTreeMap::<String, usize>::new(), Vec::new());
    let mut seed = who as u64;
    for n in 0.. {
        if n >= 400 && moves.load(Ordering::Acquire) >= MOVES {
            break;
        }
        let (dice, at) = (next(&mut seed) % 10, usize::from(next(&mut seed)) % dirs.len());
        let some = names.keys().nth(usize::from(next(&mut seed)) % names.len().max(1)).cloned();
        match some {
            Some(name) if dice < 3 => {
                let from = names[&name];
                let (old, new) = (dirs[from], dirs[at]);
                let mode = RenameMode::Replace;
                site.ask(old, |mds| mds.rename((old, name.as_bytes()), (new, name.as_bytes()), mode))
                    .unwrap();
                names.insert(name, at);
            }
            Some(name) if dice < 5 => {
                let dir = dirs[names[&name]];
                site.ask(dir, |mds| mds.unlink(dir, name.as_bytes(), &|_| false)).unwrap();
                names.remove(&name);
            }
            _ => {
                let (name, dir) = (format!("w{who}-{n}"), dirs[at]);
                let found = site.ask(dir, |mds| mds.create(&ROOT, dir, name.as_bytes(), &FILE)).unwrap();
                made.push(found.attr.ino);
                let again = site.ask(dir, |mds| mds.create(&ROOT, dir, name.as_bytes(), &FILE));
                assert_eq!(again.err(), Some(Errno::EEXIST));
                names.insert(name, at);
            }
        }
    }
    (names, made)
}

/// Goal: a server that was killed comes back with its slots and what was answered in them. Method: one is dropped with its journal not
/// carried anywhere, and opened again.
#[test]
fn a_killed_server_comes_back_with_its_slots() {
    let (site, _hands) = Site::new(2);
    let dir = site.mds(0).mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let moved = dir.ugsd().slot();
    site.bring(&[moved], 1).unwrap();
    let made = site.mds(1).create(&ROOT, dir, b"file", &FILE).unwrap().attr.ino;
    let Member { dir: state, applied, .. } = &site.members.get().unwrap()[1];
    // As a kill leaves it: what is in the files.
    let copy = tempfile::tempdir().unwrap();
    copy_dir(state.path(), copy.path());
    let store = open_store(&site.common, copy.path(), 1, applied);
    let again = Mds::join(store, MdsOptions::default(), &site.mds(0).welcome().unwrap(), &[moved]);
    assert_eq!(again.lookup(dir, b"file").unwrap().attr.ino, made);
    assert!(again.create(&ROOT, dir, b"next", &FILE).unwrap().attr.ino > made);
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy_dir(&source, &target);
        } else {
            std::fs::copy(&source, &target).unwrap();
        }
    }
}
