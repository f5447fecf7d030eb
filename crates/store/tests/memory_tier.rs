//! Goal: the memory tier's content is kept exactly when it is what the caller left, never trusted otherwise, and
//! never another's. Method: prepare it again after each way in which it can have changed, on both backings (our
//! own tmpfs only where the test may mount one).
#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;
use fixture::*;
use std::{fs, os::unix::fs::PermissionsExt, path::Path};
use store::*;
use tempfile::TempDir;
use types::{Errno, TierId};

const MIB: u64 = 1 << 20;

struct Case {
    options: MemoryTierOptions,
    _dirs: [TempDir; 2],
}

fn case(own_tmpfs: bool) -> Case {
    let dirs = [on_disk(), in_memory()];
    let mut options = MemoryTierOptions::new(dirs[0].path().join("memory"), 8 * MIB, UUID);
    options.own_tmpfs = own_tmpfs;
    options.shared_root = dirs[1].path().to_owned();
    Case { options, _dirs: dirs }
}

/// Both backings; the first falls back to the second where mounting is not allowed.
fn both(test: impl Fn(MemoryTierOptions)) {
    for own in [true, false] {
        let case = case(own);
        test(case.options.clone());
        // Whatever the test left mounted.
        let _ = rustix::mount::unmount(&case.options.dir, rustix::mount::UnmountFlags::DETACH);
    }
}

fn put(path: &Path, n: u64, bytes: &[u8]) {
    let store = TierStore::open(path, options(TierId::Memory)).unwrap();
    create(&store, n).write_at(bytes, 0).unwrap();
}

fn has(path: &Path, n: u64) -> bool {
    TierStore::open(path, options(TierId::Memory)).unwrap().exists(ino(n)).unwrap()
}

#[test]
fn content_is_kept_only_for_the_one_who_left_it() {
    both(|mut options| {
        let tier = MemoryTier::prepare(&options).unwrap();
        assert_eq!(tier.state(), MemoryTierState::Fresh);
        let (first, path) = (tier.instance(), tier.path().to_owned());
        put(&path, 1, b"kept");
        assert!(matches!(MemoryTier::prepare(&options), Err(StoreError::InUse { .. })), "while it is used");
        drop(tier);

        options.known_instance = Some(first);
        let tier = MemoryTier::prepare(&options).unwrap();
        assert_eq!((tier.state(), tier.instance()), (MemoryTierState::Kept, first));
        assert!(has(&path, 1));
        drop(tier);

        options.known_instance = Some(InstanceId([1; 16]));
        let tier = MemoryTier::prepare(&options).unwrap();
        assert_eq!(tier.state(), MemoryTierState::Fresh);
        assert_ne!(tier.instance(), first);
        assert!(!has(&path, 1), "content of an unknown instance is gone");
        let second = tier.instance();
        tier.unmount().unwrap();

        options.known_instance = Some(second);
        let tier = MemoryTier::prepare(&options).unwrap();
        assert_eq!(tier.state(), MemoryTierState::Fresh, "as after a reboot");
        assert!(!has(&path, 1));
        tier.unmount().unwrap();
    });
}

#[test]
fn content_of_others_is_left_alone() {
    both(|options| {
        let tier = MemoryTier::prepare(&options).unwrap();
        let path = tier.path().to_owned();
        put(&path, 1, b"theirs");
        drop(tier);
        let marker = path.join("onfs-memory.toml");
        let text = fs::read_to_string(&marker).unwrap();
        fs::write(&marker, text.replace("0707", "0808")).unwrap();
        assert!(matches!(MemoryTier::prepare(&options), Err(StoreError::OtherFileSystem { .. })));
        fs::write(&marker, "rubbish").unwrap();
        assert!(matches!(MemoryTier::prepare(&options), Err(StoreError::DamagedMarker { .. })));
        fs::remove_file(&marker).unwrap();
        assert!(matches!(MemoryTier::prepare(&options), Err(StoreError::NotEmpty { .. })));
        fs::write(&marker, &text).unwrap();
        assert!(has(&path, 1));
        MemoryTier::prepare(&options).unwrap().unmount().unwrap();
    });
}

#[test]
fn a_directory_that_others_can_reach_is_refused() {
    let case = case(false);
    let tier = MemoryTier::prepare(&case.options).unwrap();
    assert_eq!(tier.backing(), Backing::SharedTmpfs);
    let path = tier.path().to_owned();
    drop(tier);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
    assert!(matches!(MemoryTier::prepare(&case.options), Err(StoreError::Unsafe { .. })));
    fs::remove_dir_all(&path).unwrap();
    // A link that someone else put there.
    std::os::unix::fs::symlink("/", &path).unwrap();
    assert!(matches!(MemoryTier::prepare(&case.options), Err(StoreError::Unsafe { .. })));
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    assert!(matches!(MemoryTier::prepare(&case.options), Err(StoreError::Unsafe { .. })));
    let on_disk = MemoryTierOptions { shared_root: "/proc".into(), ..case.options.clone() };
    let error = MemoryTier::prepare(&on_disk).unwrap_err();
    assert_eq!((error.errno(), error.to_string().contains("no tmpfs")), (Errno::EPERM, true));
}

#[test]
fn our_own_tmpfs_is_bounded_and_resized() {
    let case = case(true);
    let mut tier = MemoryTier::prepare(&case.options).unwrap();
    if tier.backing() != Backing::OwnTmpfs {
        return;
    }
    let path = tier.path().to_owned();
    {
        let store = TierStore::open(&path, options(TierId::Memory)).unwrap();
        let object = create(&store, 1);
        // 8 MiB and the 16 MiB of slack.
        assert_eq!(store.space().unwrap().total, 24 * MIB);
        assert_eq!(object.write_at(&noise(1, 40 << 20), 0), Err(Errno::ENOSPC));
        tier.resize(32 * MIB).unwrap();
        assert_eq!((tier.limit(), store.space().unwrap().total), (32 * MIB, 48 * MIB));
        object.write_at(&noise(1, 40 << 20), 0).unwrap();
        let error = tier.resize(8 * MIB).unwrap_err();
        assert!(matches!(error, StoreError::StillFull { .. }));
        assert_eq!(tier.limit(), 32 * MIB);
        object.punch(0, 38 * MIB).unwrap();
        tier.resize(8 * MIB).unwrap();
        assert_eq!(store.space().unwrap().total, 24 * MIB);
    }
    tier.unmount().unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "the mount point below is as it was");
    // Something in the way is not hidden under a mount.
    fs::write(path.join("file"), "").unwrap();
    assert!(matches!(MemoryTier::prepare(&case.options), Err(StoreError::NotEmpty { .. })));
}

#[test]
fn a_device_that_is_read_only_is_told_from_a_full_one() {
    let case = case(true);
    let tier = MemoryTier::prepare(&case.options).unwrap();
    if tier.backing() != Backing::OwnTmpfs {
        return;
    }
    let path = tier.path().to_owned();
    put(&path, 1, b"readable");
    let set = |flags| rustix::mount::mount_remount(&path, flags, c"").unwrap();
    set(rustix::mount::MountFlags::RDONLY);
    let error = TierStore::open(&path, options(TierId::Memory)).err().unwrap();
    assert!(matches!(error, StoreError::NotWritable { errno: Errno::EROFS, .. }), "{error}");
    let reader = TierStoreOptions { read_only: true, ..options(TierId::Memory) };
    let store = TierStore::open(&path, reader).unwrap();
    assert_eq!(contents(&store.open_object(ino(1), false).unwrap().unwrap(), 8), b"readable");
    drop(store);
    set(rustix::mount::MountFlags::empty());
    tier.unmount().unwrap();
}
