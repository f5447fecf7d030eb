//! Goal: objects hold what is written, on a disk and in memory alike, holes and all; copies between the two are
//! exact. Method: the same operations on both kinds of directory; random operations against a byte vector.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;
use fixture::*;
use proptest::{prelude::*, test_runner::TestRunner};
use std::{ops::ControlFlow, os::fd::AsRawFd};
use store::*;
use tempfile::TempDir;
use types::{Errno, TierId};

const MIB: u64 = 1 << 20;

fn both(test: impl Fn(TempDir, TierId)) {
    test(on_disk(), TierId::Ssd);
    test(in_memory(), TierId::Memory);
}

#[test]
fn bytes_come_back_and_stay() {
    both(|dir, tier| {
        let store = open(&dir, tier);
        assert!(store.open_object(ino(1), false).unwrap().is_none());
        assert!(!store.exists(ino(1)).unwrap());
        let object = create(&store, 1);
        assert!(object.newly_created());
        let bytes = noise(1, 3 << 20);
        object.write_at(&bytes, 5).unwrap();
        object.data_sync().unwrap();
        object.sync().unwrap();
        let mut read = vec![0; 4 << 20];
        assert_eq!(object.read_at(&mut read, 5).unwrap(), bytes.len(), "short at the end only");
        assert_eq!(read[..bytes.len()], bytes);
        assert_eq!(object.read_at(&mut read, 100 * MIB).unwrap(), 0);
        if let Some(n) = object.read_nowait(&mut read, 5).unwrap() {
            assert_eq!((n, &read[..n]), (bytes.len(), &bytes[..]));
        }
        assert_eq!(object.stat().unwrap().size, 5 + bytes.len() as u64);
        assert!(store.used_bytes().unwrap() >= bytes.len() as u64);
        drop((object, store));

        let store = open(&dir, tier);
        let object = store.open_object(ino(1), true).unwrap().unwrap();
        assert!(!object.newly_created());
        assert_eq!(contents(&object, bytes.len() + 5)[5..], bytes);
        assert!(store.remove(ino(1)).unwrap());
        assert!(!store.remove(ino(1)).unwrap());
        assert!(store.open_object(ino(1), false).unwrap().is_none());
        assert_eq!(contents(&object, 10)[5..], bytes[..5], "still readable by those who hold it");
        assert_eq!(store.used_bytes().unwrap(), 0);
    });
}

#[test]
fn holes_are_free_and_read_as_zeros() {
    both(|dir, tier| {
        let store = open(&dir, tier);
        assert!(store.can_punch());
        let object = create(&store, 2);
        object.write_at(&noise(2, 16 << 20), 0).unwrap();
        object.data_sync().unwrap();
        let before = object.stat().unwrap().blocks;
        object.punch(4 * MIB, 8 * MIB).unwrap();
        let after = object.stat().unwrap();
        assert_eq!(after.size, 16 * MIB);
        assert_eq!((before - after.blocks) * 512, 8 * MIB);
        assert_eq!(object.seek_hole(0).unwrap(), Some(4 * MIB));
        assert_eq!(object.seek_data(4 * MIB).unwrap(), Some(12 * MIB));
        assert_eq!(object.seek_data(16 * MIB).unwrap(), None);
        assert!(contents(&object, 12 << 20)[4 << 20..].iter().all(|b| *b == 0));
        object.zero_range(MIB, MIB).unwrap();
        assert!(contents(&object, 2 << 20)[1 << 20..].iter().all(|b| *b == 0));
        object.allocate(20 * MIB, MIB).unwrap();
        let reserved = object.stat().unwrap();
        assert_eq!((reserved.size, reserved.blocks > after.blocks), (16 * MIB, true));
        object.truncate(10).unwrap();
        assert_eq!(object.stat().unwrap().size, 10);
    });
}

#[test]
fn a_copy_is_exact_and_clears_what_was_there() {
    // Old bytes at the destination must not show through the holes of the source, nor past its end.
    let (fast, slow) = (in_memory(), on_disk());
    let (from, to) = (open(&fast, TierId::Memory), open(&slow, TierId::Ssd));
    for (n, checksum) in [(1, false), (2, true)] {
        let (source, copy) = (create(&from, n), create(&to, n));
        source.write_at(&noise(3, 1_000_001), 0).unwrap();
        source.write_at(&noise(4, 5000), 6 * MIB).unwrap();
        copy.write_at(&[9; 12 << 20], 0).unwrap();
        let mut heard = 0;
        let copied = source
            .copy_to(&copy, range(0, 8 * MIB, checksum), &mut |n| {
                heard += n;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(contents(&copy, 8 << 20), contents(&source, 8 << 20));
        assert_eq!(contents(&copy, 12 << 20)[8 << 20..], [9; 4 << 20], "outside the range nothing changes");
        assert_eq!((heard, copied.stopped), (8 * MIB, false));
        let crc = crc32c::crc32c(&contents(&source, 8 << 20));
        assert_eq!(copied.crc, checksum.then_some(crc));
        assert_eq!(copy.checksum(0, 8 * MIB), Ok(crc));
        assert_eq!(source.checksum(0, 8 * MIB), Ok(crc));
    }
}

#[test]
fn a_copy_within_one_device_is_exact_too() {
    // The kernel copies here where it can; both answers of it must be right.
    both(|dir, tier| {
        let other = TempDir::new_in(dir.path().parent().unwrap()).unwrap();
        let (from, to) = (open(&dir, tier), open(&other, TierId::Nearline));
        let (source, copy) = (create(&from, 1), create(&to, 1));
        source.write_at(&noise(5, 3 << 20), MIB).unwrap();
        source.copy_to(&copy, range(0, 8 * MIB, false), &mut go_on).unwrap();
        assert_eq!(contents(&copy, 8 << 20), contents(&source, 8 << 20));
    });
}

#[test]
fn a_copy_can_be_stopped() {
    let (fast, slow) = (in_memory(), on_disk());
    let (from, to) = (open(&fast, TierId::Memory), open(&slow, TierId::Ssd));
    let (source, copy) = (create(&from, 1), create(&to, 1));
    source.write_at(&noise(6, 8 << 20), 0).unwrap();
    let mut left = 3;
    let copied = source
        .copy_to(&copy, range(0, 8 * MIB, true), &mut |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert!(copied.stopped && copied.crc.is_none());
    assert!(copied.data > 0 && copied.data < 8 * MIB);
}

#[test]
fn a_scan_finds_all_objects_and_names_strangers() {
    both(|dir, tier| {
        let store = open(&dir, tier);
        let inos: Vec<_> = (1..600).map(ino).collect();
        for i in &inos {
            store.open_object(*i, true).unwrap().unwrap().write_at(&[1; 100], 0).unwrap();
        }
        // Another directory's name, not a name of ours, a directory, upper case.
        let strangers = ["00/0000000000000001", "01/hello", "02/0000000000000002/", "0a/000000000000000A"];
        for name in strangers {
            match name.strip_suffix('/') {
                Some(name) => std::fs::create_dir(dir.path().join(name)).unwrap(),
                None => std::fs::write(dir.path().join(name), "x").unwrap(),
            }
        }
        let (mut found, mut strange) = (Vec::new(), 0);
        store
            .scan(&mut |entry| {
                match entry {
                    ScanEntry::Object { ino, size, .. } => {
                        assert_eq!(size, 100);
                        found.push(ino);
                    }
                    ScanEntry::Stranger(path) => {
                        assert!(dir.path().join(path).exists());
                        strange += 1;
                    }
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        found.sort();
        assert_eq!((found, strange), (inos, strangers.len()));
        let mut seen = 0;
        store
            .scan(&mut |_| {
                seen += 1;
                ControlFlow::Break(())
            })
            .unwrap();
        assert_eq!(seen, 1);
    });
}

#[test]
fn a_read_only_store_changes_nothing() {
    let dir = on_disk();
    create(&open(&dir, TierId::Ssd), 1).write_at(b"here", 0).unwrap();
    let store =
        TierStore::open(dir.path(), TierStoreOptions { read_only: true, ..options(TierId::Ssd) }).unwrap();
    let object = store.open_object(ino(1), false).unwrap().unwrap();
    assert_eq!(contents(&object, 4), b"here");
    assert_eq!(object.write_at(b"no", 0), Err(Errno::EROFS));
    assert_eq!(object.truncate(0), Err(Errno::EROFS));
    assert_eq!(object.punch(0, 1), Err(Errno::EROFS));
    assert_eq!(store.remove(ino(1)), Err(Errno::EROFS));
    assert_eq!(store.open_object(ino(2), true).unwrap_err(), Errno::EROFS);
    assert_eq!(object.data_sync(), Ok(()));
}

#[test]
fn the_cache_is_bounded_and_closes_only_what_nobody_uses() {
    // Method: eight threads on 200 objects with room for 20; each object must always answer with its own bytes.
    let dir = in_memory();
    let store =
        TierStore::open(dir.path(), TierStoreOptions { fd_cache: 20, ..options(TierId::Memory) }).unwrap();
    let held = create(&store, 1);
    held.write_at(&1u64.to_le_bytes(), 0).unwrap();
    let fd = std::os::fd::AsFd::as_fd(&*held).as_raw_fd();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let store = &store;
            scope.spawn(move || {
                for step in 0..2000u64 {
                    let n = 2 + (thread * 7919 + step * 31) % 200;
                    let object = create(store, n);
                    if (thread + step) % 97 == 0 {
                        store.remove(ino(n)).unwrap();
                        continue;
                    }
                    object.write_at(&n.to_le_bytes(), 0).unwrap();
                    let mut bytes = [0; 8];
                    object.read_at(&mut bytes, 0).unwrap();
                    assert_eq!(u64::from_le_bytes(bytes), n);
                    assert!(store.cached_fds() <= 20);
                }
            });
        }
    });
    assert_eq!(store.cached_fds(), 20);
    assert_eq!(contents(&held, 8), 1u64.to_le_bytes(), "evicted long ago, still open");
    assert_eq!(std::os::fd::AsFd::as_fd(&*held).as_raw_fd(), fd);
    // What the cache gives out is the file that is there, not one that was removed.
    for n in 2..202 {
        if let Some(cached) = store.open_object(ino(n), false).unwrap() {
            cached.write_at(b"mark", 0).unwrap();
            let name = format!("{:02x}/{:016x}", ino(n).get() % 256, ino(n).get());
            assert_eq!(std::fs::read(dir.path().join(name)).unwrap()[..4], *b"mark");
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, usize),
    Punch(u64, u64),
    Zero(u64, u64),
    Allocate(u64, u64),
    Truncate(u64),
    CopyOver(u64, u64),
}

fn any_op() -> impl Strategy<Value = Op> {
    let at = || 0u64..300_000;
    prop_oneof![
        3 => (at(), 0usize..70_000).prop_map(|(o, n)| Op::Write(o, n)),
        1 => (at(), 0u64..100_000).prop_map(|(o, n)| Op::Punch(o, n)),
        1 => (at(), 0u64..100_000).prop_map(|(o, n)| Op::Zero(o, n)),
        1 => (at(), 0u64..100_000).prop_map(|(o, n)| Op::Allocate(o, n)),
        1 => at().prop_map(Op::Truncate),
        2 => (at(), 0u64..200_000).prop_map(|(o, n)| Op::CopyOver(o, n)),
    ]
}

#[test]
fn an_object_is_a_byte_vector() {
    // One pair of stores for all cases: each case has objects of its own.
    let (fast, slow) = (in_memory(), on_disk());
    let (memory, disk) = (open(&fast, TierId::Memory), open(&slow, TierId::Ssd));
    let config = ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() };
    let next = std::cell::Cell::new(1);
    TestRunner::new(config)
        .run(&prop::collection::vec(any_op(), 1..25), |ops| {
            next.set(next.get() + 1);
            compare(&create(&memory, next.get()), &create(&disk, next.get()), &ops)
        })
        .unwrap();
}

fn compare(a: &ObjectFd, b: &ObjectFd, ops: &[Op]) -> Result<(), TestCaseError> {
    const ALL: usize = 512 << 10;
    let (mut model, mut copy) = (vec![0u8; ALL], vec![0u8; ALL]);
    let mut size = 0;
    for (step, op) in ops.iter().enumerate() {
        match *op {
            Op::Write(at, n) => {
                let bytes = noise(step as u64, n);
                a.write_at(&bytes, at).unwrap();
                model[at as usize..][..n].copy_from_slice(&bytes);
                if n > 0 {
                    size = size.max(at + n as u64);
                }
            }
            Op::Punch(at, n) => {
                a.punch(at, n).unwrap();
                model[at as usize..][..n as usize].fill(0);
            }
            Op::Zero(at, n) => {
                a.zero_range(at, n).unwrap();
                model[at as usize..][..n as usize].fill(0);
            }
            Op::Allocate(at, n) => a.allocate(at, n).unwrap(),
            Op::Truncate(to) => {
                a.truncate(to).unwrap();
                model[to as usize..].fill(0);
                size = to;
            }
            Op::CopyOver(at, n) => {
                let copied = a.copy_to(b, range(at, n, step % 2 == 0), &mut go_on).unwrap();
                let (at, n) = (at as usize, n as usize);
                if let Some(crc) = copied.crc {
                    prop_assert_eq!(crc, crc32c::crc32c(&model[at..][..n]));
                }
                copy[at..][..n].copy_from_slice(&model[at..][..n]);
            }
        }
        prop_assert_eq!(a.stat().unwrap().size, size);
    }
    prop_assert!(contents(a, ALL) == model);
    prop_assert!(contents(b, ALL) == copy);
    for (object, bytes) in [(a, &model), (b, &copy)] {
        for (from, to) in [(0, ALL), (4096, 4097), (8192, 300_001)] {
            let crc = object.checksum_on_device(from as u64, (to - from) as u64);
            prop_assert_eq!(crc, Ok(crc32c::crc32c(&bytes[from..to])));
        }
    }
    Ok(())
}

/// Goal: who creates an object learns that it did, whatever happens to others. Method: one thread creates, another
/// removes other objects, which makes the descriptor cache refuse what was opened meanwhile.
#[test]
fn regression_a_created_object_is_new_while_others_are_removed() {
    let dir = in_memory();
    let store = TierStore::open(dir.path(), options(TierId::Memory)).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 1_000_000;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                n += 1;
                store.open_object(ino(n), true).unwrap();
                store.remove(ino(n)).unwrap();
            }
        });
        let _ending = fuzzing::Ending(&done);
        for n in 1..20_000 {
            let object = store.open_object(ino(n), true).unwrap().unwrap();
            assert!(object.newly_created(), "object {n}");
        }
    });
}
