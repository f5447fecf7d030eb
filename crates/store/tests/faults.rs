//! Goal: whatever operation fails, the caller hears of it, with the number that was planned, and what was done
//! before is still there. Method: one script, its n-th I/O failing, for every n until none fails.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;
use fixture::*;
use store::*;
use types::{Errno, TierId};

const KINDS: [IoKind; 10] = [
    IoKind::Open,
    IoKind::Read,
    IoKind::Write,
    IoKind::Allocate,
    IoKind::Truncate,
    IoKind::Sync,
    IoKind::Stat,
    IoKind::Seek,
    IoKind::Remove,
    IoKind::Space,
];

/// Uses every operation; the first failure ends it.
fn script(memory: &TierStore, disk: &TierStore) -> Result<(), Errno> {
    let absent = Errno::ENOENT;
    let a = memory.open_object(ino(1), true)?.ok_or(absent)?;
    let b = disk.open_object(ino(1), true)?.ok_or(absent)?;
    a.write_at(&noise(1, 1 << 20), 0)?;
    a.copy_to(&b, range(0, 2 << 20, true), &mut go_on)?;
    b.data_sync()?;
    b.punch(0, 4096)?;
    b.zero_range(4096, 4096)?;
    b.truncate(8192)?;
    b.stat()?;
    b.seek_hole(0)?;
    disk.space()?;
    disk.exists(ino(1))?;
    a.copy_to(&b, range(0, 1 << 20, false), &mut go_on)?;
    b.sync()?;
    memory.remove(ino(1))?;
    Ok(())
}

fn stores(faults: &Faults) -> (TierStore, TierStore, [tempfile::TempDir; 2]) {
    let dirs = [in_memory(), on_disk()];
    let with = |tier| TierStoreOptions { faults: faults.clone(), ..options(tier) };
    let memory = TierStore::open(dirs[0].path(), with(TierId::Memory)).unwrap();
    let disk = TierStore::open(dirs[1].path(), with(TierId::Ssd)).unwrap();
    (memory, disk, dirs)
}

#[test]
fn every_failure_is_heard() {
    let faults = Faults::armed();
    let (memory, disk, _dirs) = stores(&faults);
    let mut n = 1;
    loop {
        let errno = if n % 2 == 0 { Errno::EIO } else { Errno::ENOSPC };
        let fired = faults.fired();
        faults.plan(Fault { kind: None, nth: n, errno, span: FaultSpan::Once, torn: false });
        let result = script(&memory, &disk);
        faults.clear();
        if faults.fired() == fired {
            assert_eq!(result, Ok(()));
            break;
        }
        assert_eq!(result, Err(errno), "failure {n} was swallowed");
        assert_eq!(script(&memory, &disk), Ok(()), "and a repetition succeeds");
        n += 1;
    }
    assert!(n > 20, "the script has more operations than {n}");
    for kind in KINDS {
        assert!(faults.count(kind) > 0, "{kind:?} is not in the script");
    }
    assert_eq!(faults.total(), KINDS.iter().map(|k| faults.count(*k)).sum::<u64>());
}

#[test]
fn a_kind_can_fail_from_now_on_and_a_write_can_be_torn() {
    let faults = Faults::armed();
    let (memory, _disk, _dirs) = stores(&faults);
    let object = create(&memory, 5);
    object.write_at(&[1; 100], 0).unwrap();
    let fault =
        Fault { kind: Some(IoKind::Write), nth: 2, errno: Errno::EIO, span: FaultSpan::Onwards, torn: true };
    faults.plan(fault);
    object.write_at(&[2; 10], 0).unwrap();
    assert_eq!(object.write_at(&[3; 100], 0), Err(Errno::EIO));
    assert_eq!(object.write_at(&[3; 0], 0), Err(Errno::EIO));
    let bytes = contents(&object, 100);
    assert_eq!((bytes[49], bytes[50]), (3, 1), "half of it was written");
    faults.clear();
    object.write_at(&[4; 100], 0).unwrap();
    let off = Faults::default();
    off.plan(fault);
    assert_eq!((off.total(), off.fired()), (0, 0));
}

#[test]
fn the_first_sync_of_a_new_object_syncs_its_entry_and_the_second_does_not() {
    // I-STORE-3, seen through the count of syncs; also for an object that an earlier process made.
    let faults = Faults::armed();
    let (memory, disk, dirs) = stores(&faults);
    let syncs = |object: &ObjectFd| {
        let before = faults.count(IoKind::Sync);
        object.data_sync().unwrap();
        faults.count(IoKind::Sync) - before
    };
    let object = create(&disk, 1);
    assert_eq!((syncs(&object), syncs(&object)), (2, 1));
    let neighbour = create(&disk, 257);
    assert_eq!((syncs(&object), syncs(&neighbour)), (2, 1), "one sync serves all of a directory");
    assert_eq!(syncs(&create(&memory, 1)), 1, "memory has nothing to sync");
    drop((object, neighbour, disk));
    let with = TierStoreOptions { faults: faults.clone(), ..options(TierId::Ssd) };
    let disk = TierStore::open(dirs[1].path(), with).unwrap();
    let object = create(&disk, 1);
    assert!(!object.newly_created());
    assert_eq!((syncs(&object), syncs(&object)), (2, 1));
    // A sync of the entry that fails must be done again.
    let fresh = create(&disk, 2);
    faults.plan(Fault {
        kind: Some(IoKind::Sync),
        nth: 2,
        errno: Errno::EIO,
        span: FaultSpan::Once,
        torn: false,
    });
    assert_eq!(fresh.data_sync(), Err(Errno::EIO));
    assert_eq!((syncs(&fresh), syncs(&fresh)), (2, 1));
}
