//! Goal: the map of an object of many GiB, which is stored in parts, is the same after a restart, and none of its parts
//! is missed or left behind. Method: few bytes far apart, changes that touch the first and other parts, restarts.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{KvMaps, MapStore, Object, ObjectHint, OpenKind};
use harness::{Site, ino};
use kv::{
    BootId, Disk, DiskFile, Engine, MemoryEngine, MetaStore, MetaStoreOptions, Space, SystemDisk, WriteSet,
};
use layout::{ObjectRecord, SauIndex};
use std::{
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use types::{Errno, TierId};

const WRITER: OpenKind = OpenKind { read: false, write: true };
const GIB: u64 = 1 << 30;

fn attach(site: &Site, size: u64, written: bool) -> Result<Arc<Object>, Errno> {
    let memory_generation = site.generation();
    site.server()
        .attach(ino(2), &ObjectHint { size, written, stale_live: false, memory_generation, linked: None })
}

fn byte_at(site: &Site, object: &Object, offset: u64) -> u8 {
    let mut byte = [99];
    site.server().read(object, offset, &mut byte).unwrap();
    byte[0]
}

/// The keys of the object's parts after the first.
fn parts(site: &Site) -> Vec<Vec<u8>> {
    let from = [&ino(2).get().to_be_bytes()[..], b"O\0"].concat();
    let to = [&ino(2).get().to_be_bytes()[..], b"P"].concat();
    let mut keys = Vec::new();
    let each = &mut |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    };
    site.maps().scan(&from, &to, each).unwrap();
    keys
}

/// A file with a byte at 0 and at each of 1.5, 2.5, ... 5.5 GiB.
fn written() -> (Site, Arc<Object>) {
    let mut site = Site::new(64 << 20);
    site.start();
    let object = attach(&site, 0, false).unwrap();
    site.server().open(&object, WRITER);
    for n in 0..6 {
        let offset = if n == 0 { 0 } else { n * GIB + GIB / 2 };
        site.server().write(&object, offset, &[n as u8 + 1]).unwrap();
    }
    (site, object)
}

#[test]
fn a_large_map_survives_restarts_and_cuts() {
    let (mut site, object) = written();
    let size = object.size();
    site.server().close(&object, WRITER);
    drop(object);
    assert_eq!(parts(&site).len(), 5);
    site.restart();
    let object = attach(&site, size, true).unwrap();
    for n in 1..6 {
        assert_eq!(byte_at(&site, &object, n * GIB + GIB / 2), n as u8 + 1);
    }
    // Sealed in all parts by the flush, then one part goes and one becomes another.
    site.server().flush(&object, &mut |_| {}).unwrap();
    site.server().write(&object, 2 * GIB + GIB / 2, &[77]).unwrap();
    site.server().truncate(&object, 4 * GIB).unwrap();
    drop(object);
    assert_eq!(parts(&site).len(), 3);
    site.reboot();
    let object = attach(&site, 4 * GIB, true).unwrap();
    let values: Vec<u8> = (1..4).map(|n| byte_at(&site, &object, n * GIB + GIB / 2)).collect();
    assert_eq!(values, [2, 77, 4]);
    assert_eq!(byte_at(&site, &object, 3 * GIB), 0);
}

#[test]
fn what_only_memory_held_is_lost_in_every_part() {
    let (mut site, object) = written();
    let size = object.size();
    drop(object);
    let before = site.generation();
    site.reboot();
    let hint = ObjectHint { size, written: true, stale_live: false, memory_generation: before, linked: None };
    let object = site.server().attach(ino(2), &hint).unwrap();
    assert_eq!(site.server().report(&object).lost_saus, 6);
    drop(object);
    // The loss is on record now, in every part.
    site.restart();
    let object = attach(&site, size, true).unwrap();
    assert_eq!(site.server().report(&object).lost_saus, 6);
}

#[test]
fn a_part_that_is_gone_is_an_error_and_not_a_hole() {
    let (mut site, object) = written();
    let size = object.size();
    drop(object);
    let mut writes = WriteSet::new();
    writes.delete(&parts(&site)[2]);
    site.maps().commit(writes).unwrap();
    site.restart();
    assert_eq!(attach(&site, size, true).err(), Some(Errno::EIO));
}

/// The machine's disk; when it is told to, it says that nothing is free.
struct Filling(Arc<AtomicBool>);

impl Disk for Filling {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        SystemDisk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        SystemDisk.list(dir)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        SystemDisk.create(path)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        SystemDisk.read(path)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        SystemDisk.sync_dir(dir)
    }
    fn open_or_create(&self, path: &Path) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        SystemDisk.open_or_create(path)
    }
    fn space(&self, _dir: &Path) -> io::Result<Space> {
        let free = if self.0.load(Ordering::Acquire) { 0 } else { 1 << 30 };
        Ok(Space { free, total: 16 << 20 })
    }
    fn boot_id(&self) -> Option<BootId> {
        SystemDisk.boot_id()
    }
}

/// Goal: on a full metadata disk the parts of a removed file's map are struck off. Method: a disk that becomes full, which
/// a checkpoint notices; a record of several parts.
#[test]
fn regression_a_large_map_is_struck_off_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let options = MetaStoreOptions { background: false, ..MetaStoreOptions::default() };
    let engine = |_: &Path, _: u64| Ok(Box::new(MemoryEngine::new()) as Box<dyn Engine>);
    let store =
        Arc::new(MetaStore::open(dir.path(), engine, options, Arc::new(Filling(full.clone()))).unwrap());
    let maps = KvMaps::new(store.clone(), Box::new(|_, _| Ok(0)));
    let mut record = ObjectRecord::default();
    record.map.note_written(SauIndex::new(1000).unwrap(), TierId::Memory).unwrap();
    maps.save(ino(2), &record).unwrap();
    full.store(true, Ordering::Release);
    drop(store.checkpoint());
    let mut refused = WriteSet::new();
    refused.put(b"key", namespace::txn::Bytes::from_static(b"value"));
    assert_eq!(store.commit(refused), Err(namespace::txn::KvError::Full));
    assert_eq!(maps.drop_chunks(ino(2)), Ok(()));
}
