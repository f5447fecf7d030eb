//! Numbers that were given before the power was cut: clients and data servers of other machines remember them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

#[allow(dead_code, reason = "shared with the tests of kv")]
#[path = "../../kv/tests/support/fault_disk.rs"]
mod fault_disk;

use std::{collections::BTreeSet, sync::Arc};

use fault_disk::{FaultDisk, FaultEngine};
use kv::{MemoryEngine, MetaStore, MetaStoreOptions};
use mds::{Caller, Mds, MdsOptions, NewNode, fsck};
use types::{FileKind, Ino, Timestamp};

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const FILE: NewNode<'static> =
    NewNode { kind: FileKind::Regular, mode: 0o644, rdev: 0, target: None, for_write: false };

/// A machine without a thread that syncs: nothing is durable but what has to be.
struct Machine {
    dir: tempfile::TempDir,
    disk: FaultDisk,
    engine: MemoryEngine,
}

impl Machine {
    fn new() -> Machine {
        let (disk, engine) = (FaultDisk::new(), MemoryEngine::default());
        Machine { dir: tempfile::tempdir().unwrap(), disk, engine }
    }

    fn store(&self) -> Arc<MetaStore> {
        let engine = FaultEngine { disk: self.disk.clone(), inner: self.engine.clone() };
        let options = MetaStoreOptions { background: false, ..MetaStoreOptions::default() };
        let disk = Arc::new(self.disk.clone());
        Arc::new(MetaStore::open(self.dir.path(), |_, _| Ok(Box::new(engine)), options, disk).unwrap())
    }

    fn start(&self) -> (Mds, Arc<MetaStore>) {
        let store = self.store();
        (Mds::new(store.clone(), MdsOptions::default()).unwrap(), store)
    }

    /// What was not synced is lost, and what the server still does comes to nothing.
    fn power_cut(&mut self, random: &mut dyn FnMut(u64) -> u64) {
        self.disk = self.disk.power_cut(random);
    }

    /// All is well in the store, which nobody has open.
    fn check(&self) {
        let mut findings = Vec::new();
        fsck(&self.store(), Timestamp::EPOCH, false, &mut |f| findings.push(f.to_string())).unwrap();
        assert_eq!(findings, Vec::<String>::new());
    }
}

/// Makes `n` files and directories in `dir`, in all ways, and none of it is made durable here.
fn make(mds: &Mds, dir: Ino, n: usize, life: usize) -> Vec<Ino> {
    let mut made = Vec::new();
    for n in 0..n {
        let name = |what| format!("{what}-{life}-{n}").into_bytes();
        made.push(mds.mkdir(&ROOT, dir, &name("dir"), 0o755).unwrap().ino);
        made.push(mds.create(&ROOT, dir, &name("file"), &FILE).unwrap().attr.ino);
        made.push(mds.create_unnamed(&ROOT, dir, 0o600).unwrap().attr.ino);
    }
    made
}

/// Goal (I-MDS-2): a number that somebody was told is never another file's, though nothing of the file is left. Method: lives of a
/// server that end in power cuts, in which all that was not synced is lost, or any part of the end; in each files and directories
/// at the root, in a directory of an earlier life, and in one that is new.
#[test]
fn regression_numbers_are_not_given_again_after_a_power_cut() {
    let mut machine = Machine::new();
    let mut random = 7_u64;
    let mut given = BTreeSet::new();
    let (mds, _store) = machine.start();
    let old = mds.mkdir(&ROOT, Ino::ROOT, b"old", 0o755).unwrap().ino;
    mds.sync().unwrap();
    given.insert(old);
    drop((mds, _store));
    for life in 0..20 {
        let (mds, store) = machine.start();
        let mut made = make(&mds, Ino::ROOT, 3, life);
        made.extend(make(&mds, old, 2, life));
        let top = made[0];
        made.extend(make(&mds, top, 2, life));
        for ino in made {
            assert!(given.insert(ino), "{ino} is given again in life {life}");
        }
        machine.power_cut(&mut |n| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if life % 2 == 0 { 0 } else { (random >> 33) % n.max(1) }
        });
        drop((mds, store));
        machine.check();
    }
}

/// Goal: who makes many files seldom waits for a disk, and none of their numbers comes again, also where a range ends. Method: more files
/// than a range has numbers, with the syncs counted; a power cut; more.
#[test]
fn a_range_is_reserved_before_it_is_needed() {
    const FILES: usize = 70_000;
    let mut machine = Machine::new();
    let (mds, store) = machine.start();
    let first = mds.create(&ROOT, Ino::ROOT, b"first", &FILE).unwrap().attr.ino;
    let syncs = store.stats().syncs;
    let make = |mds: &Mds, life: &str| -> Vec<Ino> {
        let name = |n: usize| format!("{life}{n}").into_bytes();
        (0..FILES).map(|n| mds.create(&ROOT, Ino::ROOT, &name(n), &FILE).unwrap().attr.ino).collect()
    };
    let mut given: BTreeSet<Ino> = make(&mds, "a").into_iter().collect();
    assert_eq!(given.len(), FILES);
    assert!(store.stats().syncs <= syncs + 1, "one, where nobody else syncs");
    assert!(given.insert(first));
    machine.power_cut(&mut |_| 0);
    drop((mds, store));
    let (mds, _store) = machine.start();
    assert!(make(&mds, "b").into_iter().all(|ino| given.insert(ino)));
}
