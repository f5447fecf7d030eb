//! Goal: a directory that is not ours, not this tier, damaged, newer, busy or missing is refused with its own
//! error, and stays as it was. Method: each case by hand; random bytes as a marker.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;
use fixture::*;
use proptest::prelude::*;
use std::fs;
use store::*;
use types::{Errno, TierId};

fn refused(dir: &std::path::Path, tier: TierId) -> StoreError {
    TierStore::open(dir, options(tier)).err().unwrap()
}

const GOLDEN: &str = "format = 1\nfile_system = \"07070707070707070707070707070707\"\ntier = \"ssd\"\n";

#[test]
fn the_marker_has_golden_bytes() {
    let dir = on_disk();
    drop(open(&dir, TierId::Ssd));
    let marker = dir.path().join("onfs-tier.toml");
    assert_eq!(fs::read_to_string(&marker).unwrap(), GOLDEN);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 257, "the fan-out and the marker, no leftovers");
}

#[test]
fn what_is_not_ours_is_refused_and_untouched() {
    let dir = on_disk();
    let inside = |name: &str| dir.path().join(name);
    assert!(matches!(refused(&inside("no"), TierId::Ssd), StoreError::Missing { .. }));
    fs::write(inside("file"), "precious").unwrap();
    assert!(matches!(refused(&inside("file"), TierId::Ssd), StoreError::NotADirectory { .. }));
    assert!(matches!(refused(dir.path(), TierId::Ssd), StoreError::NotEmpty { .. }));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    fs::remove_file(inside("file")).unwrap();
    for read_only in [true, false] {
        let careful = TierStoreOptions { create: false, read_only, ..options(TierId::Ssd) };
        let error = TierStore::open(dir.path(), careful).err().unwrap();
        assert!(matches!(error, StoreError::NoMarker { .. }));
        assert_eq!(error.errno(), Errno::ENOENT);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    // A marker that a crash left half made, and a new ext4's own directory, do not count.
    fs::write(inside("onfs-tier.toml.new"), "form").unwrap();
    fs::create_dir(inside("lost+found")).unwrap();
    drop(open(&dir, TierId::Ssd));
}

#[test]
fn another_file_system_tier_or_process_is_refused() {
    let dir = on_disk();
    let store = open(&dir, TierId::Ssd);
    assert!(matches!(refused(dir.path(), TierId::Ssd), StoreError::InUse { .. }));
    let object = create(&store, 1);
    drop(store);
    drop(object);
    assert!(matches!(
        refused(dir.path(), TierId::Nearline),
        StoreError::OtherTier { found: TierId::Ssd, expected: TierId::Nearline, .. }
    ));
    let stranger = TierStoreOptions::new(TierId::Ssd, FsUuid([8; 16]));
    let error = TierStore::open(dir.path(), stranger).err().unwrap();
    assert!(matches!(error, StoreError::OtherFileSystem { found: UUID, .. }));
    assert!(error.to_string().contains("0808080808"), "{error}");
    // Readers share.
    let look = || TierStore::open(dir.path(), TierStoreOptions { read_only: true, ..options(TierId::Ssd) });
    let (_one, _two) = (look().unwrap(), look().unwrap());
    assert!(matches!(refused(dir.path(), TierId::Ssd), StoreError::InUse { .. }));
}

#[test]
fn damaged_and_newer_markers_are_told_apart() {
    let dir = on_disk();
    drop(open(&dir, TierId::Ssd));
    let marker = dir.path().join("onfs-tier.toml");
    let with = |text: &[u8]| {
        fs::write(&marker, text).unwrap();
        refused(dir.path(), TierId::Ssd)
    };
    for newer in ["format = 2\nshape = \"unknown\"\n", "format = 4000000000\n"] {
        assert!(matches!(with(newer.as_bytes()), StoreError::NewerFormat { known: 1, .. }), "{newer}");
    }
    let broken = [
        "",
        "format = 0\n",
        "format = -1\n",
        "format = 1\n",
        "format",
        "\u{0}",
        &GOLDEN.replace("ssd", "floppy"),
        &GOLDEN.replace("0707", "07"),
        &GOLDEN.replace("0707", "+707"),
        &format!("{GOLDEN}extra = 1\n"),
        &GOLDEN[..GOLDEN.len() - 6],
        &format!("{GOLDEN}#{}", "x".repeat(5000)),
    ];
    for text in broken {
        assert!(matches!(with(text.as_bytes()), StoreError::DamagedMarker { .. }), "{text:?}");
    }
    assert!(matches!(with(&[0xff; 10]), StoreError::DamagedMarker { .. }));
    fs::remove_file(&marker).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &marker).unwrap();
    assert!(matches!(refused(dir.path(), TierId::Ssd), StoreError::Io { .. }));
    fs::remove_file(&marker).unwrap();
    fs::write(&marker, GOLDEN).unwrap();
    drop(open(&dir, TierId::Ssd));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_marker_never_opens_as_another_tier(at in any::<prop::sample::Index>(), byte: u8) {
        let dir = in_memory();
        let mut bytes = GOLDEN.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        fs::write(dir.path().join("onfs-tier.toml"), &bytes).unwrap();
        if let Ok(store) = TierStore::open(dir.path(), options(TierId::Ssd)) {
            // Only what TOML reads as the same.
            prop_assert_eq!(store.tier(), TierId::Ssd);
        }
    }
}
