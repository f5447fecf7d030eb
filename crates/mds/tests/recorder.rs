//! What is told of changes, and the transactions of who keeps a linked directory in step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use kv::{Engine, MemoryEngine, MetaStore, MetaStoreOptions, SystemDisk};
use link::Attrs;
use mds::{
    Bytes, Caller, Change, DirPolicy, FileMode, Mds, MdsOptions, Mode, NewNode, Recorded, Recorder,
    RenameMode, SetAttr, SetTime, SetXattr, Settled, fsck,
};
use namespace::{Keep, Place, Theirs, acl, inode, key, quota::Limits, txn::Txn};
use types::{Errno, FileKind, Ino, Timestamp};

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const FILE: NewNode<'static> =
    NewNode { kind: FileKind::Regular, mode: 0o644, rdev: 0, target: None, for_write: false };
const TIME: Timestamp = Timestamp { sec: 7, nsec: 8 };

struct Rig {
    dir: tempfile::TempDir,
    engine: MemoryEngine,
}

impl Rig {
    fn new() -> Rig {
        Rig { dir: tempfile::tempdir().unwrap(), engine: MemoryEngine::new() }
    }

    fn store(&self) -> Arc<MetaStore> {
        let engine = self.engine.clone();
        let open = move |_: &Path, _: u64| Ok(Box::new(engine) as Box<dyn Engine>);
        let options = MetaStoreOptions { background: false, ..MetaStoreOptions::default() };
        Arc::new(MetaStore::open(self.dir.path(), open, options, Arc::new(SystemDisk)).unwrap())
    }

    fn open(&self) -> Mds {
        Mds::new(self.store(), MdsOptions::default()).unwrap()
    }

    fn open_told(&self) -> (Mds, Arc<Shadow>) {
        let (mds, shadow) = (self.open(), Arc::new(Shadow::default()));
        mds.set_recorder(&(shadow.clone() as Arc<dyn Recorder>)).unwrap();
        (mds, shadow)
    }

    /// All is well in the store, which nobody has open.
    fn check(&self) {
        let mut findings = Vec::new();
        fsck(&self.store(), Timestamp::EPOCH, false, &mut |f| findings.push(f.to_string())).unwrap();
        assert_eq!(findings, Vec::<String>::new());
    }
}

/// What the changes that were told of come to.
#[derive(Default)]
struct Shadow {
    state: Mutex<State>,
    admitted: Mutex<Vec<Option<Ino>>>,
    /// Refuses the next operation: 1 before it begins, 2 at its end.
    refuse: AtomicU32,
    /// Is looked at in the next transaction.
    look_at: AtomicU64,
}

#[derive(Default)]
struct State {
    names: BTreeMap<Ino, BTreeMap<Vec<u8>, Ino>>,
    writing: BTreeSet<Ino>,
    gone: BTreeSet<Ino>,
    told: Vec<Change>,
    /// Operations that were committed, and that were not.
    ended: [u64; 2],
}

/// Holds the state as a log's lock is held.
struct Told<'a> {
    state: MutexGuard<'a, State>,
    changes: Vec<Change>,
}

impl Recorder for Shadow {
    fn record<'a>(
        &'a self,
        now: Timestamp,
        changes: &[Change],
        txn: &mut dyn Txn,
    ) -> Result<Box<dyn Recorded + 'a>, Errno> {
        assert!(!changes.is_empty() && now > Timestamp::EPOCH);
        if self.refuse.compare_exchange(2, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return Err(Errno::ETIMEDOUT);
        }
        let state = self.state.lock().unwrap();
        for change in changes {
            let (ino, count) = (ino_of(change), state.ended[0].to_le_bytes());
            txn.put(&key::work(ino), Bytes::copy_from_slice(&count));
        }
        if let Some(other) = Ino::from_raw(self.look_at.load(Ordering::SeqCst)) {
            let found = inode::get(txn, other);
            assert!(found.is_err() || self.look_at.swap(0, Ordering::SeqCst) != 0);
        }
        Ok(Box::new(Told { state, changes: changes.to_vec() }))
    }

    fn admit(&self, ino: Option<Ino>) -> Result<(), Errno> {
        self.admitted.lock().unwrap().push(ino);
        match self.refuse.compare_exchange(1, 0, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => Err(Errno::EAGAIN),
            Err(_) => Ok(()),
        }
    }
}

impl Recorded for Told<'_> {
    fn ended(mut self: Box<Self>, committed: bool) {
        self.state.ended[usize::from(!committed)] += 1;
        if committed {
            for change in std::mem::take(&mut self.changes) {
                self.state.apply(&change);
                self.state.told.push(change);
            }
        }
    }
}

fn ino_of(change: &Change) -> Ino {
    match change {
        Change::Created { ino, .. }
        | Change::Unnamed { ino }
        | Change::Renamed { ino, .. }
        | Change::Linked { ino, .. }
        | Change::Unlinked { ino, .. }
        | Change::Removed { ino, .. }
        | Change::Attributes { ino, .. }
        | Change::Xattr { ino, .. }
        | Change::Written { ino }
        | Change::Settled { ino }
        | Change::Crossed { ino, .. }
        | Change::Gone { ino } => *ino,
    }
}

impl State {
    fn links(&self, ino: Ino) -> usize {
        self.names.values().flat_map(BTreeMap::values).filter(|named| **named == ino).count()
    }

    fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        let before = self.names.entry(dir).or_default().insert(name.to_vec(), ino);
        assert_eq!(before, None, "what had the name is told of first");
    }

    fn leave(&mut self, dir: Ino, name: &[u8], ino: Ino) {
        assert_eq!(self.names.get_mut(&dir).unwrap().remove(name), Some(ino));
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Created { ino, dir, name, writing, .. } => {
                self.enter(*dir, name, *ino);
                if *writing {
                    self.writing.insert(*ino);
                }
            }
            Change::Unnamed { ino } => _ = self.writing.insert(*ino),
            Change::Renamed { ino, from, to, .. } => {
                // Of an exchange the first gives the name that the second leaves.
                let left = self.names.get_mut(&from.0).unwrap();
                if left.get(&from.1) == Some(ino) {
                    left.remove(&from.1);
                }
                self.names.entry(to.0).or_default().insert(to.1.clone(), *ino);
            }
            Change::Linked { ino, dir, name, nlink, .. } => {
                self.enter(*dir, name, *ino);
                assert_eq!(self.links(*ino), *nlink as usize);
            }
            Change::Unlinked { ino, dir, name, last, .. } => {
                self.leave(*dir, name, *ino);
                assert_eq!(self.links(*ino) == 0, *last);
            }
            Change::Removed { ino, dir, name } => {
                self.leave(*dir, name, *ino);
                assert!(self.names.remove(ino).unwrap_or_default().is_empty());
            }
            Change::Written { ino } => _ = self.writing.insert(*ino),
            Change::Settled { ino } => assert!(self.writing.remove(ino)),
            Change::Attributes { what, .. } => assert!(!what.is_empty()),
            Change::Xattr { name, .. } => assert!(!name.is_empty()),
            Change::Crossed { ino, dir, name, .. } => assert_eq!(self.names[dir][name], *ino),
            Change::Gone { ino } => {
                assert!(self.links(*ino) == 0 && self.gone.insert(*ino));
                self.writing.remove(ino);
            }
        }
    }
}

impl Shadow {
    fn take(&self) -> Vec<Change> {
        std::mem::take(&mut self.state.lock().unwrap().told)
    }

    fn compare(&self, mds: &Mds) {
        let state = self.state.lock().unwrap();
        assert!(!state.names.is_empty());
        for (dir, told) in &state.names {
            assert_eq!(&names(mds, *dir), told, "{dir}");
        }
    }
}

fn names(mds: &Mds, dir: Ino) -> BTreeMap<Vec<u8>, Ino> {
    let mut names = BTreeMap::new();
    mds.readdir(dir, 0, &mut |entry| {
        names.insert(entry.name.to_vec(), entry.ino);
        ControlFlow::Continue(())
    })
    .unwrap();
    names.retain(|name, _| name != b"." && name != b"..");
    names
}

fn created(ino: Ino, kind: FileKind, dir: Ino, name: &[u8], writing: bool) -> Change {
    Change::Created { ino, kind, dir, name: name.to_vec(), writing }
}

fn unlinked(ino: Ino, dir: Ino, name: &[u8], last: bool) -> Change {
    Change::Unlinked { ino, kind: FileKind::Regular, dir, name: name.to_vec(), last }
}

fn renamed(ino: Ino, kind: FileKind, from: (Ino, &[u8]), to: (Ino, &[u8])) -> Change {
    Change::Renamed { ino, kind, from: (from.0, from.1.to_vec()), to: (to.0, to.1.to_vec()) }
}

/// Goal: changes of names are told whole, in order, and only if they were. Method: each operation, and what it tells.
#[test]
fn names_are_told() {
    let rig = Rig::new();
    let (mds, shadow) = rig.open_told();
    let (dir, file) = (FileKind::Directory, FileKind::Regular);
    let top = mds.mkdir(&ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    let sub = mds.mkdir(&ROOT, top, b"sub", 0o755).unwrap().ino;
    let a = mds.create(&ROOT, top, b"a", &FILE).unwrap().attr.ino;
    let b = mds.create(&ROOT, top, b"b", &NewNode { for_write: true, ..FILE }).unwrap().attr.ino;
    assert_eq!(mds.create(&ROOT, top, b"b", &FILE).err(), Some(Errno::EEXIST));
    let made = [
        created(top, dir, Ino::ROOT, b"top", false),
        created(sub, dir, top, b"sub", false),
        created(a, file, top, b"a", false),
        created(b, file, top, b"b", true),
    ];
    assert_eq!(shadow.take(), made);
    let t = mds.create_unnamed(&ROOT, top, 0o600).unwrap().attr.ino;
    mds.hold(t, 1);
    mds.link(t, top, b"t").unwrap();
    mds.link(a, sub, b"a2").unwrap();
    let linked =
        |ino, dir, name: &[u8], nlink| Change::Linked { ino, kind: file, dir, name: name.to_vec(), nlink };
    assert_eq!(
        shadow.take(),
        [Change::Unnamed { ino: t }, linked(t, top, b"t", 1), linked(a, sub, b"a2", 2)]
    );
    let replace = RenameMode::Replace;
    mds.rename((top, b"a"), (sub, b"a2"), replace).unwrap();
    assert_eq!(shadow.take(), [], "two names of one inode stay");
    mds.rename((top, b"a"), (top, b"b"), replace).unwrap();
    mds.rename((top, b"b"), (top, b"sub"), RenameMode::Exchange).unwrap();
    let told = [
        unlinked(b, top, b"b", true),
        renamed(a, file, (top, b"a"), (top, b"b")),
        renamed(a, file, (top, b"b"), (top, b"sub")),
        renamed(sub, dir, (top, b"sub"), (top, b"b")),
    ];
    assert_eq!(shadow.take(), told);
    let other = mds.mkdir(&ROOT, Ino::ROOT, b"other", 0o755).unwrap().ino;
    mds.unlink(sub, b"a2", &|_| false).unwrap();
    mds.rename((top, b"b"), (Ino::ROOT, b"other"), replace).unwrap();
    mds.unlink(top, b"sub", &|_| false).unwrap();
    mds.rmdir(Ino::ROOT, b"other").unwrap();
    let removed = |ino, name: &[u8]| Change::Removed { ino, dir: Ino::ROOT, name: name.to_vec() };
    let told = [
        created(other, dir, Ino::ROOT, b"other", false),
        unlinked(a, sub, b"a2", false),
        removed(other, b"other"),
        renamed(sub, dir, (top, b"b"), (Ino::ROOT, b"other")),
        unlinked(a, top, b"sub", true),
        Change::Gone { ino: a },
        removed(sub, b"other"),
    ];
    assert_eq!(shadow.take(), told);
    let list = mds.purge_list(9).unwrap();
    assert_eq!(mds.purge(&list).unwrap(), 3);
    let gone: BTreeSet<Ino> = shadow.take().iter().map(ino_of).collect();
    assert_eq!(gone, BTreeSet::from([b, other, sub]));
    shadow.compare(&mds);
    assert_eq!(mds.set_recorder(&(shadow.clone() as Arc<dyn Recorder>)), Err(Errno::EBUSY));
    drop(mds);
    rig.check();
}

/// Owner rwx, one named user, mask r-x, others nothing.
fn access_acl() -> Vec<u8> {
    let entries =
        [(1u16, 7u16, u32::MAX), (2, 6, 5), (4, 4, u32::MAX), (0x10, 5, u32::MAX), (0x20, 0, u32::MAX)];
    let fields = entries
        .map(|(tag, perm, id)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat());
    [&2u32.to_le_bytes()[..], &fields.concat()].concat()
}

/// Goal: changes of attributes and of data are told, those that come with another one too, and access times and what changes
/// nothing are not. Method: each operation, and what it tells.
#[test]
fn attributes_and_data_are_told() {
    let rig = Rig::new();
    let (mds, shadow) = rig.open_told();
    let kind = FileKind::Regular;
    let ino = mds.create(&ROOT, Ino::ROOT, b"f", &FILE).unwrap().attr.ino;
    shadow.take();
    let attributes = |what| Change::Attributes { ino, kind, what };
    let xattr = |name: &[u8]| Change::Xattr { ino, kind, name: name.to_vec() };
    let (written, settled) = (Change::Written { ino }, Change::Settled { ino });
    let set = |change: SetAttr| mds.setattr(ino, &change).unwrap();
    let own = SetXattr::default();
    let capability = namespace::xattr::CAPABILITY;
    let none = SetAttr::default();
    set(SetAttr { mode: Some(0o6755), ..none });
    assert_eq!(shadow.take(), [attributes(Attrs::MODE)]);
    set(SetAttr { uid: Some(5), ..none });
    assert_eq!(shadow.take(), [attributes(Attrs::OWNER.with(Attrs::MODE))], "set-id bits went");
    set(SetAttr { atime: Some(SetTime::At(TIME)), ..none });
    assert_eq!(shadow.take(), [attributes(Attrs::TIMES)]);
    mds.setxattr(ino, capability, b"x", own).unwrap();
    set(SetAttr { gid: Some(5), ..none });
    assert_eq!(shadow.take(), [xattr(capability), attributes(Attrs::OWNER), xattr(capability)]);
    mds.setxattr(ino, acl::ACCESS, &access_acl(), own).unwrap();
    assert_eq!(shadow.take(), [attributes(Attrs::MODE), xattr(acl::ACCESS)]);
    mds.setxattr(ino, b"user.a", b"1", own).unwrap();
    mds.removexattr(ino, b"user.a").unwrap();
    assert_eq!(mds.removexattr(ino, b"user.a"), Err(Errno::ENODATA));
    assert_eq!(shadow.take(), [xattr(b"user.a"), xattr(b"user.a")]);
    // A size of a file that nobody has open, then of one that is being written.
    set(SetAttr { size: Some(10), ..none });
    assert_eq!(shadow.take(), [written.clone(), settled.clone()]);
    mds.setxattr(ino, capability, b"x", own).unwrap();
    set(SetAttr { mode: Some(0o6755), ..none });
    shadow.take();
    mds.begin_write(ino).unwrap();
    mds.begin_write(ino).unwrap();
    set(SetAttr { size: Some(20), ..none });
    assert_eq!(shadow.take(), [written.clone(), xattr(capability), written.clone()]);
    mds.kill_privileges(ino, true).unwrap();
    mds.kill_privileges(ino, true).unwrap();
    assert_eq!(shadow.take(), [attributes(Attrs::MODE)]);
    let with = |still_open| Settled { size: 30, blocks: None, mtime: Some(TIME), still_open };
    mds.settle(ino, &with(true)).unwrap();
    assert_eq!(shadow.take(), []);
    mds.settle(ino, &with(false)).unwrap();
    mds.settle(ino, &with(false)).unwrap();
    assert_eq!(shadow.take(), std::slice::from_ref(&settled));
    let entry = (Box::from(&*key::object(ino)), Some(Bytes::from_static(b"?")));
    mds.begin_write_with(ino, &[entry]).unwrap();
    let closed = |settled| mds::Closed { ino, settled, atime: Some(TIME) };
    mds.settle_all(&mut [closed(None)]).unwrap();
    assert_eq!(shadow.take(), [written]);
    mds.settle_all(&mut [closed(Some(with(false)))]).unwrap();
    assert_eq!(shadow.take(), [settled]);
    mds.quota_begin(Ino::ROOT, |_| Limits::default()).unwrap();
    assert_eq!(shadow.take(), []);
}

/// Goal: a file that begins or ends to be apart is told of with its name, one whose mode is another and that stays where it is
/// is not; and what is in a transient directory is apart. Method: each change of a mode, and what it tells.
#[test]
fn files_that_cross_are_told() {
    let rig = Rig::new();
    let (mds, shadow) = rig.open_told();
    let dir = mds.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    let ino = mds.create(&ROOT, dir, b"f", &FILE).unwrap().attr.ino;
    shadow.take();
    let crossed = |apart| Change::Crossed { ino, apart, dir, name: b"f".to_vec() };
    let steps = [
        (Some(FileMode::Global), None),
        (Some(FileMode::Transient), Some(true)),
        (Some(FileMode::Transient), None),
        (Some(FileMode::Local), Some(false)),
        (None, None),
    ];
    for (mode, told) in steps {
        mds.set_file_mode(ino, mode).unwrap();
        assert_eq!(shadow.take(), Vec::from_iter(told.map(crossed)), "{mode:?}");
        assert_eq!(mds.find(ino).unwrap().data.mode, mode);
    }
    let transient = DirPolicy { mode: Some(Mode::Transient), ..DirPolicy::default() };
    assert_eq!(mds.policy_set(dir, &transient), Err(Errno::ENOTEMPTY));
    assert_eq!(mds.policy_set(Ino::ROOT, &transient), Err(Errno::EINVAL));
    mds.rename((dir, b"f"), (Ino::ROOT, b"f"), RenameMode::Replace).unwrap();
    mds.policy_set(dir, &transient).unwrap();
    assert_eq!(mds.rename((Ino::ROOT, b"f"), (dir, b"f"), RenameMode::Replace).err(), Some(Errno::EXDEV));
    assert!(mds.is_apart(dir).unwrap() && !mds.is_apart(Ino::ROOT).unwrap());
    drop(mds);
    rig.check();
}

/// Goal: what is recorded is committed with its change, a commit that fails is told as such, and who is told can refuse, before
/// and at the end; nothing of a refused change stays. Method: refusals; a store that was closed under the server.
#[test]
fn what_is_not_committed_is_told() {
    let rig = Rig::new();
    let store = rig.store();
    let (mds, shadow) =
        (Mds::new(Arc::clone(&store), MdsOptions::default()).unwrap(), Arc::new(Shadow::default()));
    mds.set_recorder(&(shadow.clone() as Arc<dyn Recorder>)).unwrap();
    let top = mds.mkdir(&ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    let file = mds.create(&ROOT, top, b"file", &FILE).unwrap().attr.ino;
    assert_eq!(&mds.get(&key::work(file)).unwrap().unwrap()[..], 1u64.to_le_bytes());
    shadow.admitted.lock().unwrap().clear();
    let (from, to) = ((top, &b"file"[..]), (top, &b"to"[..]));
    type Refused<'a> = (&'static str, Box<dyn Fn() -> Errno + 'a>);
    let refused: [Refused<'_>; 8] = [
        ("create", Box::new(|| mds.create(&ROOT, top, b"x", &FILE).unwrap_err())),
        ("mkdir", Box::new(|| mds.mkdir(&ROOT, top, b"x", 0).unwrap_err())),
        ("link", Box::new(|| mds.link(file, top, b"x").unwrap_err())),
        ("rename", Box::new(|| mds.rename(from, to, RenameMode::Replace).unwrap_err())),
        ("unlink", Box::new(|| mds.unlink(top, b"file", &|_| false).unwrap_err())),
        (
            "setattr",
            Box::new(|| mds.setattr(file, &SetAttr { mode: Some(0), ..SetAttr::default() }).unwrap_err()),
        ),
        ("setxattr", Box::new(|| mds.setxattr(file, b"user.a", b"", SetXattr::default()).unwrap_err())),
        ("write", Box::new(|| mds.begin_write(file).unwrap_err())),
    ];
    let (count, attr) = (mds.statfs_usage().inodes, mds.find(file).unwrap());
    for (what, operation) in &refused {
        for (refuse, errno) in [(1, Errno::EAGAIN), (2, Errno::ETIMEDOUT)] {
            shadow.refuse.store(refuse, Ordering::SeqCst);
            assert_eq!(operation(), errno, "{what}");
            assert_eq!(shadow.refuse.load(Ordering::SeqCst), 0, "{what}");
        }
    }
    let asked: BTreeSet<Option<Ino>> = shadow.admitted.lock().unwrap().drain(..).collect();
    assert_eq!(asked, BTreeSet::from([None, Some(file)]));
    assert_eq!((mds.statfs_usage().inodes, mds.find(file).unwrap()), (count, attr));
    shadow.compare(&mds);
    let before = shadow.state.lock().unwrap().ended;
    store.close().unwrap();
    for (what, operation) in &refused {
        assert_eq!(operation(), Errno::EROFS, "{what}");
    }
    assert_eq!(
        mds.transact(&[top], &mut |txn, _, _| {
            txn.put(&key::link(file), Bytes::from_static(b"x"));
            Ok(())
        }),
        Err(Errno::EROFS)
    );
    let after = shadow.state.lock().unwrap().ended;
    assert_eq!(after, [before[0], before[1] + refused.len() as u64]);
    shadow.compare(&mds);
}

/// Goal: one who is told may look at an inode of another slot: the operation then runs again with it. Method: a look in the
/// middle of one.
#[test]
fn a_look_elsewhere_widens_the_locks() {
    let rig = Rig::new();
    let (mds, shadow) = rig.open_told();
    let [a, b] = [&b"a"[..], b"b"].map(|name| mds.mkdir(&ROOT, Ino::ROOT, name, 0o755).unwrap().ino);
    let before = shadow.state.lock().unwrap().ended;
    shadow.look_at.store(b.get(), Ordering::SeqCst);
    mds.create(&ROOT, a, b"f", &FILE).unwrap();
    assert_eq!(shadow.look_at.load(Ordering::SeqCst), 0);
    assert_eq!(shadow.state.lock().unwrap().ended, [before[0] + 1, before[1] + 1]);
    shadow.compare(&mds);
}

/// A generator that needs no clock: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn churn(mds: &Mds, dirs: &[Ino], random: &mut Random, step: usize) -> Result<(), Errno> {
    let (a, b) = (dirs[random.below(dirs.len())], dirs[random.below(dirs.len())]);
    let (from, to) = (format!("n{}", random.below(6)), format!("n{}", random.below(6)));
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][random.below(3)];
    let named = mds.lookup(a, from).map(|found| found.attr.ino);
    match step % 9 {
        0 => mds.create(&ROOT, a, from, &NewNode { for_write: random.below(2) == 0, ..FILE }).map(|_| ()),
        1 => mds.mkdir(&ROOT, a, from, 0o755).map(|_| ()),
        2 => mds.rmdir(a, from).map(|_| ()),
        3 => mds.link(named?, b, to).map(|_| ()),
        4 => mds.unlink(a, from, &|_| false).map(|_| ()),
        5 => mds.begin_write(named?).map(|_| ()),
        6 => {
            let settled = Settled { size: step as u64, blocks: None, mtime: Some(TIME), still_open: false };
            mds.settle(named?, &settled)
        }
        _ => mds.rename((a, from), (b, to), mode).map(|_| ()),
    }
}

/// Goal (I-MDS-4): whatever happens to names, at once in several UGSDs, what was told comes to the same. Method: threads with random
/// operations; the shadow's names and readdir's; those that are gone; no write without its end unless it is under way.
#[test]
fn the_shadow_has_the_same_names() {
    let rig = Rig::new();
    let (mds, shadow) = rig.open_told();
    let mut dirs = vec![Ino::ROOT];
    for n in 0..4 {
        let top = mds.mkdir(&ROOT, Ino::ROOT, format!("n{n}").as_bytes(), 0o755).unwrap().ino;
        dirs.push(top);
        dirs.push(mds.mkdir(&ROOT, top, b"n5", 0o755).unwrap().ino);
    }
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (mds, dirs, done) = (&mds, &dirs, &done);
            scope.spawn(move || {
                let mut random = Random(0x9e37_79b9 + thread * 77);
                for step in 0..4000 {
                    let result = churn(mds, dirs, &mut random, step);
                    assert!(!matches!(result, Err(Errno::EIO | Errno::EROFS)), "{result:?}");
                    done.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
                    if step % 64 == 0 {
                        let list = mds.purge_list(16).unwrap();
                        mds.purge(&list).unwrap();
                    }
                }
            });
        }
    });
    assert!(done.into_inner() > 1000);
    shadow.compare(&mds);
    while let list @ [_, ..] = &mds.purge_list(99).unwrap()[..] {
        mds.purge(list).unwrap();
    }
    let state = shadow.state.lock().unwrap();
    assert!(state.told.iter().any(|change| matches!(change, Change::Linked { .. })));
    for ino in state.told.iter().map(ino_of).collect::<BTreeSet<_>>() {
        match mds.find(ino) {
            Ok(found) => {
                assert!(!state.gone.contains(&ino));
                assert_eq!(found.data.live, state.writing.contains(&ino), "{ino}");
            }
            Err(errno) => assert_eq!((errno, state.gone.contains(&ino)), (Errno::ESTALE, true)),
        }
    }
    drop(state);
    drop(mds);
    rig.check();
}

fn theirs(kind: FileKind, size: u64) -> Theirs {
    let (blocks, time) = (size.div_ceil(512), TIME);
    Theirs {
        kind,
        mode: 0o750,
        uid: 3,
        gid: 4,
        rdev: 0,
        size,
        blocks,
        atime: time,
        mtime: time,
        ctime: time,
        btime: None,
    }
}

/// Imports `names` into `dir`, each with an `L`. Returns the inodes, and how often it ran.
fn import(mds: &Mds, dir: Ino, kind: FileKind, names: &[String]) -> Result<(Vec<Ino>, u32), Errno> {
    let mut runs = 0;
    let inos = mds.transact(&[dir], &mut |txn, env, context| {
        runs += 1;
        let mut inos = Vec::new();
        for name in names {
            let at = Place { dir, name: name.as_bytes() };
            let ino = context.fresh(txn, dir, kind)?;
            match namespace::import(txn, env, at, &theirs(kind, 5), b"", ino) {
                Ok(_) => inos.push(ino),
                Err(namespace::Error::Errno(Errno::EEXIST)) => context.unused(),
                Err(error) => return Err(error),
            }
            txn.put(&key::link(ino), Bytes::copy_from_slice(name.as_bytes()));
        }
        Ok(inos)
    })?;
    Ok((inos, runs))
}

/// Goal: a large directory and many top-level ones are imported in batches, nobody is told, and the counts and numbers are
/// right, also after reopening. Method: 10,000 files, 300 directories of UGSDs of their own, names that are there, then ours.
#[test]
fn directories_are_imported_in_batches() {
    let rig = Rig::new();
    let (mds, shadow) = rig.open_told();
    let (tops, runs) =
        import(&mds, Ino::ROOT, FileKind::Directory, &(0..300).map(|n| format!("t{n}")).collect::<Vec<_>>())
            .unwrap();
    assert!(runs <= 4, "{runs} runs");
    assert_eq!(tops.iter().map(|ino| ino.ugsd()).collect::<BTreeSet<_>>().len(), 300);
    let dir = tops[7];
    let wanted: Vec<String> = (0..10_000).map(|n| format!("file-{n}")).collect();
    let mut inos = BTreeSet::new();
    for batch in wanted.chunks(700) {
        inos.extend(import(&mds, dir, FileKind::Regular, batch).unwrap().0);
    }
    assert_eq!(inos.len(), 10_000);
    let (sub, _) = import(&mds, dir, FileKind::Directory, &["sub".to_owned()]).unwrap();
    assert_eq!(sub[0].ugsd(), dir.ugsd());
    // All but one are there.
    let (again, _) =
        import(&mds, dir, FileKind::Regular, &["file-1", "new", "file-2"].map(str::to_owned)).unwrap();
    assert_eq!(again.len(), 1);
    assert_eq!(mds.statfs_usage().inodes, 1 + 300 + 10_000 + 1 + 1);
    assert_eq!((mds.find(dir).unwrap().attr.nlink, mds.find(Ino::ROOT).unwrap().attr.nlink), (3, 302));
    let listed = names(&mds, dir);
    assert_eq!(listed.len(), 10_002);
    assert!(inos.iter().all(|ino| mds.find(*ino).unwrap().data.linked));
    assert_eq!(shadow.take(), []);
    let mut used: BTreeSet<Ino> = listed.values().copied().collect();
    for n in 0..100 {
        let ino = mds.create(&ROOT, dir, format!("ours-{n}").as_bytes(), &FILE).unwrap().attr.ino;
        assert!(used.insert(ino));
    }
    drop(mds);
    // Those of the names that were there have an `L` of nobody.
    let findings = |rig: &Rig, repair| fsck(&rig.store(), TIME, repair, &mut |_| ()).unwrap();
    assert_eq!((findings(&rig, true).found, findings(&rig, false).found), (2, 0));
    let mds = rig.open();
    assert_eq!(mds.statfs_usage().inodes, 10_403);
    assert!(used.insert(mds.create(&ROOT, dir, b"last", &FILE).unwrap().attr.ino));
    assert!(used.is_superset(&import(&mds, dir, FileKind::Regular, &[]).unwrap().0.into_iter().collect()));
    drop(mds);
    rig.check();
}

/// Goal: what was done there with names is done here, and what has no name any more is purged; nothing of a transaction that
/// fails counts. Method: an unlinking, a removal, a rename over something, a link, in one transaction and again in one that is refused.
#[test]
fn names_are_changed_as_they_were_there() {
    let rig = Rig::new();
    let (mds, shadow) = rig.open_told();
    let top = mds.mkdir(&ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    let inos = ["a", "b", "c", "d"].map(|n| mds.create(&ROOT, top, n.as_bytes(), &FILE).unwrap().attr.ino);
    let [a, b, c, d] = inos;
    let sub = mds.mkdir(&ROOT, top, b"sub", 0o755).unwrap().ino;
    mds.begin_write(a).unwrap();
    mds.hold(d, 1);
    let count = mds.statfs_usage().inodes;
    shadow.take();
    let at = |name: &'static [u8]| Place { dir: top, name };
    let change = |fails: bool| {
        mds.transact(&[top, a], &mut |txn, env, context| {
            context.use_reserve();
            for name in [&b"a"[..], b"d"] {
                context.unlinked(&namespace::unlink(txn, env, at(name), &|_| false)?);
            }
            context.removed(namespace::rmdir(txn, env, at(b"sub"))?);
            context.linked(&namespace::link(txn, env, b, at(b"e"))?);
            context.renamed(&namespace::rename(txn, env, at(b"b"), at(b"c"), RenameMode::Replace)?);
            namespace::refresh(txn, env, top, &theirs(FileKind::Directory, 0), Keep::empty())?;
            if fails { Err(Errno::EBUSY.into()) } else { Ok(()) }
        })
    };
    assert_eq!(change(true), Err(Errno::EBUSY));
    assert_eq!((names(&mds, top).len(), mds.statfs_usage().inodes), (5, count));
    assert_eq!(mds.purge_list(9).unwrap(), []);
    assert_eq!(change(false), Ok(()));
    assert_eq!(names(&mds, top), BTreeMap::from([(b"c".to_vec(), b), (b"e".to_vec(), b)]));
    assert_eq!(mds.find(top).unwrap().attr.mtime, TIME);
    assert_eq!(shadow.take(), []);
    // d never had a byte and went at once; it is referred to and keeps its attributes.
    assert_eq!(mds.statfs_usage().inodes, count - 1);
    assert_eq!(mds.gone(d).map(|attr| attr.nlink), Some(0));
    let list: BTreeSet<Ino> = mds.purge_list(9).unwrap().into_iter().collect();
    assert_eq!(list, BTreeSet::from([a, c, sub]));
    // What was not told is not in the shadow.
    shadow.state.lock().unwrap().names.clear();
    mds.purge(&Vec::from_iter(list)).unwrap();
    assert_eq!(shadow.take(), [a, c, sub].map(|ino| Change::Gone { ino }));
    assert_eq!(mds.statfs_usage().inodes, count - 4);
    // A file without a name gets one there: it is no orphan any more.
    let unnamed = mds.create_unnamed(&ROOT, top, 0o600).unwrap().attr.ino;
    mds.hold(unnamed, 1);
    mds.transact(&[top], &mut |txn, env, context| {
        context.linked(&namespace::link(txn, env, unnamed, at(b"f"))?);
        Ok(())
    })
    .unwrap();
    mds.release(unnamed, 1);
    assert_eq!(mds.purge_list(9).unwrap(), []);
    drop(mds);
    rig.check();
}

/// Goal: a lock that is taken when changes are told may be taken in a transaction of the keeper's too, whatever quotas both
/// charge. Method: both at once in two UGSDs with quotas, many times; it would hang.
#[test]
fn the_keepers_lock_comes_after_the_quota_lock() {
    let rig = Rig::new();
    let (mds, shadow) = rig.open_told();
    let limits = Limits { bytes: Some(1 << 40), inodes: None };
    let [a, b] = [&b"a"[..], b"b"].map(|name| {
        let dir = mds.mkdir(&ROOT, Ino::ROOT, name, 0o755).unwrap().ino;
        mds.quota_begin(dir, |_| limits).unwrap();
        dir
    });
    let file = mds.create(&ROOT, a, b"file", &FILE).unwrap().attr.ino;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for size in 0..500 {
                mds.setattr(file, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
            }
        });
        for n in 0..500 {
            mds.transact(&[b], &mut |txn, env, context| {
                let _state = shadow.state.lock().unwrap();
                std::thread::yield_now();
                let ino = context.fresh(txn, b, FileKind::Regular)?;
                let name = format!("f{n}");
                let at = Place { dir: b, name: name.as_bytes() };
                namespace::import(txn, env, at, &theirs(FileKind::Regular, 1), b"", ino)
            })
            .unwrap();
        }
    });
    drop(mds);
    rig.check();
}

/// Goal: records of the linked directory's keeper are stored without locks, and nothing else is. Method: each type, and others;
/// under a lock of the inode's slot.
#[test]
fn records_are_put_and_read() {
    let rig = Rig::new();
    let mds = rig.open();
    let top = mds.mkdir(&ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    let put = |key: key::Key| (Box::<[u8]>::from(&*key), Some(Bytes::from_static(b"v")));
    for key in [key::inode(top), key::object(top), key::superblock(), key::policy(top)] {
        assert_eq!(mds.put_records(&[put(key::link(top)), put(key)], false), Err(Errno::EINVAL));
    }
    assert_eq!(mds.get(&key::link(top)), Ok(None));
    let other = mds.create(&ROOT, top, b"other", &FILE).unwrap().attr.ino;
    mds.transact(&[top], &mut |txn, _, _| {
        txn.put(&key::link(other), Bytes::from_static(b"far"));
        // The slot is locked, and this does not wait for it.
        mds.put_records(&[put(key::link(top)), put(key::work(top)), put(key::work(other))], true)
            .map_err(Into::into)
    })
    .unwrap();
    mds.put_records(&(0..3).map(|n| put(key::conflict(n))).collect::<Vec<_>>(), false).unwrap();
    let found = |from: key::Key, to: key::Key| {
        let mut found = Vec::new();
        mds.scan(&from, &to, &mut |key, _| {
            found.push(key.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
        found
    };
    assert_eq!(
        found(key::work_start(), key::work_end()),
        [key::work(top).to_vec(), key::work(other).to_vec()]
    );
    assert_eq!(found(key::conflict_start(), key::conflict_end()).len(), 3);
    assert_eq!(mds.get(&key::link(other)), Ok(Some(Bytes::from_static(b"far"))));
    let delete = |key: key::Key| (Box::<[u8]>::from(&*key), None);
    mds.put_records(&[delete(key::work(top)), delete(key::link(top))], true).unwrap();
    assert_eq!(found(key::work_start(), key::work_end()), [key::work(other).to_vec()]);
    drop(mds);
    rig.check();
}
