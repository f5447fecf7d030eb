//! Goal: what the kernel reads by itself is never old and never cut from under a program. Method: a real mount with
//! passthrough, files that are mapped, moved between tiers and written, in the orders that could go wrong.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt},
    time::Duration,
};

use harness::{Site, map::Map};
use types::{Ino, TierId};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

fn passthrough_site() -> Option<Site> {
    let site = Site::mounted()?;
    if !site.client().passthrough_is_on() {
        eprintln!("no passthrough here: nothing is tested");
        return None;
    }
    Some(site)
}

fn ino_of(path: &std::path::Path) -> Ino {
    Ino::from_raw(fs::metadata(path).unwrap().ino()).unwrap()
}

/// Passthrough ends a moment after the last use.
fn wait_until_none_lingers(site: &Site) {
    let begun = std::time::Instant::now();
    while site.client().stats().passthrough_inodes > 0 {
        assert!(begun.elapsed().as_secs() < 30, "passthrough never ended");
        std::thread::yield_now();
    }
}

#[test]
fn readers_of_a_whole_file_are_passed_through() {
    let Some(site) = passthrough_site() else { return };
    let path = site.path("f");
    fs::write(&path, vec![7; 3 << 20]).unwrap();
    let (a, b) = (File::open(&path).unwrap(), File::open(&path).unwrap());
    assert_eq!(site.client().stats().passthrough_inodes, 1);
    let before = site.client().stats().read_bytes;
    let mut block = [0; 4096];
    a.read_exact_at(&mut block, 1 << 20).unwrap();
    b.read_exact_at(&mut block, 0).unwrap();
    assert_eq!(block, [7; 4096]);
    assert_eq!(site.client().stats().read_bytes, before, "the daemon was asked");
    // A writer's bytes are seen by those readers.
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all_at(&[8; 4096], 4096).unwrap();
    a.read_exact_at(&mut block, 4096).unwrap();
    assert_eq!(block, [8; 4096]);
}

#[test]
fn a_mapping_outlives_its_descriptor_and_a_move() {
    // As the loader does with programs and libraries: map, close, go on using the pages.
    let Some(site) = passthrough_site() else { return };
    let path = site.path("f");
    fs::write(&path, vec![7; 5 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    let map = Map::private(&file, 5 << 20);
    drop(file);
    // Refused, or done without touching what is mapped.
    let _ = site.ds().migrate(ino_of(&path), TierId::Ssd, Some(Duration::from_millis(300)));
    assert!(map.read(0, 5 << 20).iter().all(|b| *b == 7), "the mapping lost its bytes");
    drop(map);
    wait_until_none_lingers(&site);
    site.ds().migrate(ino_of(&path), TierId::Ssd, PATIENCE).unwrap();
    assert!(fs::read(&path).unwrap().iter().all(|b| *b == 7));
}

#[test]
fn writes_through_a_mapping_are_not_lost_with_the_memory_copy() {
    // The file is safe on the SSD and in memory; a program changes it through a mapping of the memory copy, which
    // is then dropped.
    let Some(site) = passthrough_site() else { return };
    let path = site.path("f");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let reader = File::open(&path).unwrap();
    assert_eq!(site.client().stats().passthrough_inodes, 1);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let map = Map::shared(&file, 1 << 20);
    map.write(5000, b"changed");
    // The mapping goes last.
    drop((file, reader));
    map.write(6000, b"after close");
    drop(map);
    wait_until_none_lingers(&site);
    site.ds().migrate(ino_of(&path), TierId::Ssd, PATIENCE).unwrap();
    assert_eq!(&fs::read(&path).unwrap()[6000..6011], b"after close");
    assert_eq!(&fs::read(&path).unwrap()[5000..5007], b"changed");
}

#[test]
fn a_reader_that_passes_us_by_sees_every_write() {
    // Writes that might go elsewhere: after an fsync, past the end, into new SAUs, after a truncation.
    let Some(site) = passthrough_site() else { return };
    let path = site.path("f");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let reader = File::open(&path).unwrap();
    assert_eq!(site.client().stats().passthrough_inodes, 1);
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    let check = |offset: u64, value: u8, what: &str| {
        writer.write_all_at(&[value; 8192], offset).unwrap();
        let mut block = [0; 8192];
        reader.read_exact_at(&mut block, offset).unwrap();
        assert!(block == [value; 8192], "{what}");
    };
    check(0, 2, "before fsync");
    writer.sync_all().unwrap();
    check(0, 3, "after fsync");
    check(1 << 20, 4, "at the end");
    check(9 << 20, 5, "in a new SAU");
    writer.set_len(5000).unwrap();
    check(100_000, 6, "after truncation");
    assert_eq!(reader.metadata().unwrap().len(), 108_192);
    drop(writer);
    let mut block = [9; 100];
    reader.read_exact_at(&mut block, 50_000).unwrap();
    assert_eq!(block, [0; 100]);
}

#[test]
fn programs_run_from_the_mount() {
    let Some(site) = passthrough_site() else { return };
    let path = site.path("true");
    fs::copy("/bin/true", &path).unwrap();
    for _ in 0..3 {
        assert!(std::process::Command::new(&path).status().unwrap().success());
    }
    wait_until_none_lingers(&site);
    site.ds().migrate(ino_of(&path), TierId::Ssd, PATIENCE).unwrap();
    assert!(std::process::Command::new(&path).status().unwrap().success());
}

#[test]
fn a_full_memory_tier_does_not_split_a_file_that_is_read_in_place() {
    // The writer's new SAUs find no room in memory while a reader passes us by: whatever the writer is told, the
    // reader reads what was acknowledged.
    let Some(mut site) = Site::new() else { return };
    site.memory_limit = 16 << 20;
    site.mount();
    if !site.client().passthrough_is_on() {
        return;
    }
    let path = site.path("f");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let reader = File::open(&path).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    let mut block = vec![0; 1 << 20];
    for n in 1..32_u8 {
        let offset = u64::from(n) << 20;
        if writer.write_all_at(&vec![n; 1 << 20], offset).is_err() {
            break;
        }
        reader.read_exact_at(&mut block, offset).unwrap();
        assert!(block.iter().all(|b| *b == n), "MiB {n}");
    }
}
