//! The server over a real store with the memory engine: what survives reopening, references, quotas, many threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kv::{Engine, MemoryEngine, MetaStore, MetaStoreOptions, SystemDisk};
use mds::{
    Caller, DataState, Error, Limits, Mds, MdsOptions, NewNode, RenameMode, SetAttr, SetXattr, Settled, fsck,
};
use namespace::txn::Txn;
use types::{Errno, FileKind, Ino, ProjectId, SLOTS, Timestamp, UgsdId};

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const FILE: NewNode<'static> =
    NewNode { kind: FileKind::Regular, mode: 0o644, rdev: 0, target: None, for_write: false };

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

    /// All is well in the store, which nobody has open.
    fn check(&self) {
        let mut findings = Vec::new();
        fsck(&self.store(), Timestamp::EPOCH, false, &mut |f| findings.push(f.to_string())).unwrap();
        assert_eq!(findings, Vec::<String>::new());
    }
}

fn names(mds: &Mds, dir: Ino) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    mds.readdir(dir, 0, &mut |entry| {
        names.insert(String::from_utf8(entry.name.to_vec()).unwrap());
        ControlFlow::Continue(())
    })
    .unwrap();
    names.remove(".");
    names.remove("..");
    names
}

/// Goal: what was answered is there after reopening, under a new epoch, and numbers are not reused. Method: open, make,
/// drop, open.
#[test]
fn a_file_system_survives_reopening() {
    let rig = Rig::new();
    let mds = rig.open();
    let (uuid, epoch) = (mds.uuid(), mds.epoch());
    let top = mds.mkdir(&ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    assert_eq!((top.ugsd().get(), top.local().get()), (1, 1));
    let file = mds.create(&ROOT, top, b"file", &FILE).unwrap().attr.ino;
    assert_eq!(file.ugsd(), top.ugsd());
    drop(mds);
    let mds = rig.open();
    assert_eq!((mds.uuid(), mds.epoch()), (uuid, epoch + 1));
    assert_eq!(mds.lookup(top, b"file").unwrap().attr.ino, file);
    let next = mds.create(&ROOT, top, b"next", &FILE).unwrap().attr.ino;
    assert!(next > file);
    assert_eq!(mds.statfs_usage().inodes, 4);
    assert_eq!(mds.mkdir(&ROOT, Ino::ROOT, b"second", 0o755).unwrap().ino.ugsd().get(), 2);
    drop(mds);
    rig.check();
}

/// Goal: a newer format and a store without a superblock are told apart from an empty one. Method: such stores.
#[test]
fn strange_stores_are_refused() {
    let rig = Rig::new();
    drop(rig.open());
    let store = rig.store();
    let txn = store.begin();
    let mut record =
        namespace::txn::Reader::get(&txn, &namespace::key::superblock()).unwrap().unwrap().to_vec();
    txn.commit().unwrap();
    for (found, hint) in [(7, "a newer onfs"), (1, "the onfs that it was made with")] {
        let mut txn = store.begin();
        record[8] = found as u8;
        txn.put(&namespace::key::superblock(), record.clone().into());
        txn.commit().unwrap();
        let error = Mds::new(Arc::clone(&store), MdsOptions::default()).err().unwrap();
        assert_eq!(error, Error::OtherFormat { found, supported: 2 });
        assert!(error.to_string().contains(hint), "{error}");
    }
    let mut txn = store.begin();
    txn.delete(&namespace::key::superblock());
    txn.commit().unwrap();
    assert!(matches!(Mds::new(store, MdsOptions::default()).err(), Some(Error::Store(_))));
}

/// Goal: an unlinked file lives while it is referred to, is purged after, and those of earlier mounts come too. Method:
/// hold, unlink, release; a file without a name; reopening.
#[test]
fn orphans_are_purged_when_nobody_refers_to_them() {
    let rig = Rig::new();
    let mds = rig.open();
    let top = mds.mkdir(&ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    let file = mds.create(&ROOT, top, b"file", &FILE).unwrap().attr.ino;
    mds.hold(file, 1);
    assert_eq!(mds.unlink(top, b"file", &|_| true).unwrap().nlink_left, 0);
    assert_eq!(mds.purge_list(9).unwrap(), []);
    assert_eq!(mds.purge(&[file]).unwrap(), 0);
    assert_eq!(mds.find(file).unwrap().attr.nlink, 0);
    mds.release(file, 1);
    assert_eq!(mds.purge_list(9).unwrap(), [file]);
    assert_eq!(mds.purge(&[file]).unwrap(), 1);
    assert_eq!(mds.find(file), Err(Errno::ESTALE));
    let unnamed = mds.create_unnamed(&ROOT, top, 0o600).unwrap().attr.ino;
    assert_eq!(mds.purge_list(9).unwrap(), []);
    mds.hold(unnamed, 1);
    assert_eq!(mds.link(unnamed, top, b"named").unwrap().nlink, 1);
    mds.release(unnamed, 1);
    assert_eq!(mds.purge_list(9).unwrap(), []);
    let left: Vec<Ino> = (0..5).map(|_| mds.create_unnamed(&ROOT, top, 0o600).unwrap().attr.ino).collect();
    drop(mds);
    let mds = rig.open();
    assert_eq!(mds.purge_list(2).unwrap(), left[..2]);
    assert_eq!(mds.purge_list(9).unwrap(), left[2..]);
    assert_eq!(mds.purge_list(9).unwrap(), []);
    assert_eq!(mds.purge(&left).unwrap(), 5);
    assert_eq!(mds.statfs_usage().inodes, 3);
    drop(mds);
    rig.check();
}

/// Goal: a rename's replaced directory and file become orphans. Method: rename over both.
#[test]
fn what_a_rename_replaces_is_purged() {
    let rig = Rig::new();
    let mds = rig.open();
    let [a, b] = [&b"a"[..], b"b"].map(|name| mds.mkdir(&ROOT, Ino::ROOT, name, 0o755).unwrap().ino);
    mds.create(&ROOT, a, b"f", &FILE).unwrap();
    let old = mds.create(&ROOT, b, b"f", &FILE).unwrap().attr.ino;
    let replaced = mds.rename((a, b"f"), (b, b"f"), RenameMode::Replace).unwrap().replaced.unwrap();
    assert_eq!((replaced.ino, replaced.nlink_left), (old, 0));
    assert_eq!(mds.rename((Ino::ROOT, b"a"), (Ino::ROOT, b"b"), RenameMode::Replace), Err(Errno::ENOTEMPTY));
    mds.rename((Ino::ROOT, b"b"), (Ino::ROOT, b"a"), RenameMode::Replace).unwrap();
    assert_eq!(mds.purge_list(9).unwrap(), [old, a]);
    mds.purge(&[old, a]).unwrap();
    assert_eq!(mds.parent(b).unwrap(), Ino::ROOT);
    drop(mds);
    rig.check();
}

/// Goal: the data state follows writing, settling and a crash. Method: begin, settle, reopen.
#[test]
fn the_data_state_follows_writing() {
    let rig = Rig::new();
    let mds = rig.open();
    let file = mds.create(&ROOT, Ino::ROOT, b"f", &FILE).unwrap();
    assert_eq!(file.data, DataState::default());
    let ino = file.attr.ino;
    let live = DataState {
        written: true,
        live: true,
        stale_live: false,
        linked: false,
        mode: None,
        memory_generation: 1,
    };
    assert_eq!(mds.begin_write(ino), Ok(live));
    assert_eq!(mds.begin_write(ino), Ok(live));
    drop(mds);
    let mds = rig.open();
    assert_eq!(mds.find(ino).unwrap().data, DataState { stale_live: true, ..live });
    let mtime = Timestamp { sec: 5, nsec: 6 };
    let settled = Settled { size: 1000, blocks: None, mtime: Some(mtime), still_open: false };
    mds.settle(ino, &settled).unwrap();
    let found = mds.find(ino).unwrap();
    assert_eq!((found.attr.size, found.attr.blocks, found.attr.mtime), (1000, 2, mtime));
    assert_eq!(found.data, DataState { live: false, ..live });
    mds.set_memory_generation(2).unwrap();
    assert_eq!(mds.begin_write(ino).unwrap().memory_generation, 2);
    drop(mds);
    assert_eq!(rig.open().memory_generation(), 2);
    rig.check();
}

/// Goal: a project's limits hold for inodes, recorded sizes and open files together. Method: small limits.
#[test]
fn quotas_hold() {
    let rig = Rig::new();
    let mds = rig.open();
    let project = ProjectId(3);
    let dir = mds.mkdir(&ROOT, Ino::ROOT, b"d", 0o755).unwrap().ino;
    mds.quota_assign(dir, project).unwrap();
    mds.quota_set(project, Limits { bytes: Some(100), inodes: Some(3) }).unwrap();
    let [a, b] = [&b"a"[..], b"b"].map(|name| mds.create(&ROOT, dir, name, &FILE).unwrap().attr.ino);
    assert_eq!(mds.create(&ROOT, dir, b"c", &FILE).err(), Some(Errno::EDQUOT));
    assert_eq!(mds.mkdir(&ROOT, dir, b"c", 0o755).err(), Some(Errno::EDQUOT));
    let grow = |ino, size| mds.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(|_| ());
    assert_eq!(grow(a, 101), Err(Errno::EDQUOT));
    assert_eq!(grow(a, 60), Ok(()));
    assert_eq!(mds.reserve_size(b, 41), Err(Errno::EDQUOT));
    assert_eq!(mds.reserve_size(b, 40), Ok(()));
    let settled = Settled { size: 10, blocks: None, mtime: None, still_open: false };
    mds.settle(b, &settled).unwrap();
    assert_eq!(mds.reserve_size(a, 90), Ok(()));
    let quota = mds.quota_get(project).unwrap();
    assert_eq!((quota.bytes, quota.inodes), (70, 3));
    assert_eq!(mds.quota_list().unwrap(), [(project, quota)]);
    let outside = mds.create(&ROOT, Ino::ROOT, b"o", &FILE).unwrap().attr.ino;
    assert_eq!(mds.link(outside, dir, b"o").err(), Some(Errno::EXDEV));
    drop(mds);
    rig.check();
}

/// Goal: attributes go through. Method: one each.
#[test]
fn attributes_are_kept() {
    let rig = Rig::new();
    let mds = rig.open();
    let link = NewNode { kind: FileKind::Symlink, target: Some(b"to/there"), ..FILE };
    let ino = mds.create(&ROOT, Ino::ROOT, b"l", &link).unwrap().attr.ino;
    assert_eq!(&mds.readlink(ino).unwrap()[..], b"to/there");
    mds.setxattr(ino, b"trusted.b", b"2", SetXattr::default()).unwrap();
    mds.setxattr(ino, b"trusted.a", b"", SetXattr::default()).unwrap();
    assert_eq!(mds.listxattr(ino).unwrap(), b"trusted.a\0trusted.b\0");
    assert_eq!(&mds.getxattr(ino, b"trusted.b").unwrap()[..], b"2");
    mds.removexattr(ino, b"trusted.b").unwrap();
    assert_eq!(mds.getxattr(ino, b"trusted.b"), Err(Errno::ENODATA));
    assert_eq!(mds.getxattr(ino, b"nonsense.b"), Err(Errno::EOPNOTSUPP));
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

fn churn(mds: &Mds, dirs: &[Ino], seed: u64, steps: usize) -> u64 {
    let mut random = Random(seed);
    let mut done = 0;
    for step in 0..steps {
        let (a, b) = (dirs[random.below(dirs.len())], dirs[random.below(dirs.len())]);
        let (from, to) = (format!("n{}", random.below(6)), format!("n{}", random.below(6)));
        let mode = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][random.below(3)];
        let result = match step % 6 {
            0 => mds.create(&ROOT, a, from.as_bytes(), &FILE).map(|_| ()),
            1 => mds.mkdir(&ROOT, a, from.as_bytes(), 0o755).map(|_| ()),
            2 if random.below(4) == 0 => mds.rmdir(a, from.as_bytes()).map(|_| ()),
            3 => match mds.lookup(a, from.as_bytes()) {
                Ok(found) => mds.link(found.attr.ino, b, to.as_bytes()).map(|_| ()),
                Err(errno) => Err(errno),
            },
            _ => mds.rename((a, from.as_bytes()), (b, to.as_bytes()), mode).map(|_| ()),
        };
        assert!(!matches!(result, Err(Errno::EIO | Errno::EROFS)), "{result:?}");
        done += u64::from(result.is_ok());
        if step % 64 == 0 {
            let list = mds.purge_list(16).unwrap();
            mds.purge(&list).unwrap();
        }
    }
    done
}

/// Goal: renames and links across UGSDs neither deadlock nor break the tree, whichever directories they move into
/// which. Method: threads that move the same few directories of several UGSDs into each other, then the check.
#[test]
fn threads_across_ugsds_leave_a_good_tree() {
    let rig = Rig::new();
    let mds = rig.open();
    let mut dirs = vec![Ino::ROOT];
    for n in 0..4 {
        let top = mds.mkdir(&ROOT, Ino::ROOT, format!("n{n}").as_bytes(), 0o755).unwrap().ino;
        dirs.push(top);
        dirs.push(mds.mkdir(&ROOT, top, b"n5", 0o755).unwrap().ino);
    }
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (mds, dirs, done) = (&mds, &dirs, &done);
            scope.spawn(move || {
                done.fetch_add(churn(mds, dirs, 0x9e37_79b9 + thread * 77, 3000), Ordering::Relaxed);
            });
        }
    });
    assert!(done.into_inner() > 500);
    drop(mds);
    rig.check();
}

/// Goal: UGSDs that share a slot, and more top-level directories than slots, work. Method: more directories than slots.
#[test]
fn ugsds_share_slots() {
    let rig = Rig::new();
    let mds = rig.open();
    let tops: Vec<Ino> = (0..SLOTS + 2)
        .map(|n| mds.mkdir(&ROOT, Ino::ROOT, n.to_string().as_bytes(), 0o755).unwrap().ino)
        .collect();
    let (first, same) = (tops[0], tops[SLOTS as usize]);
    assert_eq!(first.ugsd().slot(), same.ugsd().slot());
    assert_eq!(tops[SLOTS as usize - 1].ugsd().slot(), UgsdId::ROOT.slot());
    mds.create(&ROOT, first, b"f", &FILE).unwrap();
    mds.rename((first, b"f"), (same, b"g"), RenameMode::Replace).unwrap();
    assert_eq!(names(&mds, same), BTreeSet::from(["g".to_owned()]));
    assert_eq!(names(&mds, first), BTreeSet::new());
    assert_eq!(mds.find(Ino::ROOT).unwrap().attr.nlink, SLOTS + 4);
    drop(mds);
    rig.check();
}

/// Goal: one damaged record keeps no other orphan from being purged, neither one of its U records nor one of the inodes
/// themselves. Method: orphans of an earlier mount, with a U record of nobody, a damaged one and a damaged inode.
#[test]
fn regression_damage_keeps_no_other_orphan() {
    let rig = Rig::new();
    let mds = rig.open();
    let top = mds.mkdir(&ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    let left: Vec<Ino> = (0..6).map(|_| mds.create_unnamed(&ROOT, top, 0o600).unwrap().attr.ino).collect();
    drop(mds);
    let store = rig.store();
    let mut txn = store.begin();
    let mut nobody = namespace::key::orphan(left[0]).to_vec();
    nobody.pop();
    txn.put(&nobody, namespace::txn::Bytes::from_static(b"?"));
    txn.put(&namespace::key::orphan(left[1]), namespace::txn::Bytes::from_static(b"?"));
    txn.put(&namespace::key::inode(left[3]), namespace::txn::Bytes::from_static(b"?"));
    txn.commit().unwrap();
    drop(store);
    let mds = rig.open();
    let gone = mds.create(&ROOT, top, b"gone", &FILE).unwrap().attr.ino;
    mds.begin_write(gone).unwrap();
    mds.unlink(top, b"gone", &|_| false).unwrap();
    let list = mds.purge_list(99).unwrap();
    assert_eq!(list, [&[gone][..], &left].concat());
    assert_eq!(mds.purge(&list).unwrap(), 6);
    assert_eq!(mds.purge_list(99).unwrap(), []);
    assert_eq!(mds.find(left[5]), Err(Errno::ESTALE));
    assert_eq!(mds.find(left[3]), Err(Errno::EIO));
}

/// Goal: what open files have grown by, and what a new size charges, count once each and together. Method: two files of a
/// project: growth that is not settled beside a size that is set, of the other and of the same file; a size that is refused.
#[test]
fn regression_a_new_size_and_growth_share_the_limit() {
    let rig = Rig::new();
    let mds = rig.open();
    let top = mds.mkdir(&ROOT, Ino::ROOT, b"top", 0o755).unwrap().ino;
    let limits = Limits { bytes: Some(100), inodes: None };
    mds.quota_begin(top, |_| limits).unwrap();
    let a = mds.create(&ROOT, top, b"a", &FILE).unwrap().attr.ino;
    let b = mds.create(&ROOT, top, b"b", &FILE).unwrap().attr.ino;
    let size = |n| SetAttr { size: Some(n), ..SetAttr::default() };
    mds.reserve_size(a, 90).unwrap();
    assert_eq!(mds.setattr(b, &size(90)).err(), Some(Errno::EDQUOT));
    assert_eq!(mds.setattr(b, &size(10)).unwrap().attr.size, 10);
    mds.setattr(a, &size(60)).unwrap();
    mds.reserve_size(b, 40).unwrap();
    assert_eq!(mds.setattr(a, &size(61)).err(), Some(Errno::EDQUOT));
    mds.unreserve(b);
    assert_eq!(mds.setattr(a, &size(200)).err(), Some(Errno::EDQUOT));
    mds.reserve_size(b, 40).unwrap();
    drop(mds);
    rig.check();
}

/// Goal: a file without a name that is found again by its number is purged in this mount all the same; one that nobody
/// refers to is not found. Method: references that come when it is queued.
#[test]
fn regression_an_orphan_held_again_is_purged() {
    let rig = Rig::new();
    let mds = rig.open();
    let file = mds.create(&ROOT, Ino::ROOT, b"file", &FILE).unwrap().attr.ino;
    mds.begin_write(file).unwrap();
    mds.hold(file, 1);
    mds.unlink(Ino::ROOT, b"file", &|_| true).unwrap();
    let found = mds.find_by_number(file).unwrap();
    mds.release(file, 1);
    assert_eq!(mds.find_by_number(file).err(), Some(Errno::ESTALE));
    // As if the reference had gone between the finding and the holding.
    mds.hold(file, 1);
    mds.held_again(&found.attr);
    assert_eq!(mds.purge_list(9).unwrap(), [file]);
    assert_eq!(mds.purge(&[file]).unwrap(), 0);
    mds.release(file, 1);
    assert_eq!(mds.purge_list(9).unwrap(), [file]);
    assert_eq!(mds.purge(&[file]).unwrap(), 1);
}
