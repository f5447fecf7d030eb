//! Goal: what the kernel reads by itself is never old and never cut from under a program. Method: a real mount with
//! passthrough, files that are mapped, moved between tiers and written, in the orders that could go wrong.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File, OpenOptions},
    os::{
        fd::BorrowedFd,
        unix::fs::{FileExt, MetadataExt, PermissionsExt},
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use harness::{Site, map::Map};
use parking_lot::Mutex;
use types::{Errno, Ino, TierId};

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

/// Opens the only file that passes us by. The kernel may tell of a close before it a moment late, and then there is a writer still.
fn passed_through(site: &Site, path: &Path) -> File {
    let begun = std::time::Instant::now();
    loop {
        let file = File::open(path).unwrap();
        let passing = site.client().stats().passthrough_inodes;
        if passing == 1 {
            return file;
        }
        assert!(passing == 0 && begun.elapsed().as_secs() < 30, "it does not pass us by");
    }
}

#[test]
fn readers_of_a_whole_file_are_passed_through() {
    let Some(site) = passthrough_site() else { return };
    let path = site.path("f");
    fs::write(&path, vec![7; 3 << 20]).unwrap();
    let (a, b) = (passed_through(&site, &path), File::open(&path).unwrap());
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
    let reader = passed_through(&site, &path);
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
    let reader = passed_through(&site, &path);
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

/// A file of 1 MiB in memory and on the SSD, which a reader has in passthrough and a program mapped for writing, both closed.
fn mapped_file(site: &Site) -> (std::path::PathBuf, Map) {
    let path = site.path("f");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let _reader = File::open(&path).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_eq!(site.client().stats().passthrough_inodes, 1);
    let map = Map::shared(&file, 1 << 20);
    (path, map)
}

#[test]
fn regression_an_unmount_writes_down_what_was_stored_through_a_mapping() {
    // The unmount comes before passthrough has ended, of a file that counts as safe on the SSD; then memory is gone.
    for all_in_use in [true, false] {
        let Some(mut site) = Site::new() else { return };
        site.all_in_use = all_in_use;
        site.mount();
        if !site.client().passthrough_is_on() {
            return;
        }
        let (path, map) = mapped_file(&site);
        map.write(5000, b"stored");
        drop(map);
        site.reboot();
        assert_eq!(&fs::read(path).unwrap()[5000..5006], b"stored", "in use at the end: {all_in_use}");
    }
}

#[test]
fn regression_a_flush_makes_safe_what_was_stored_through_a_mapping() {
    let Some(site) = passthrough_site() else { return };
    let (path, map) = mapped_file(&site);
    let ino = ino_of(&path);
    let on_ssd = || {
        let ssd = site.ds().tiers().into_iter().find(|t| t.tier == TierId::Ssd).unwrap().dir;
        let name = format!("{:016x}", ino.get());
        fs::read(ssd.join(&name[14..]).join(name)).unwrap()
    };
    map.write(0, b"one");
    site.ds().flush(site.client().use_file(ino).unwrap().object(), &mut |_| {}).unwrap();
    assert_eq!(&on_ssd()[..3], b"one");
    map.write(0, b"all");
    site.ds().flush_all(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert_eq!(&on_ssd()[..3], b"all");
}

#[test]
fn regression_stores_through_a_mapping_change_the_time_of_the_file() {
    let Some(mut site) = passthrough_site() else { return };
    let (path, map) = mapped_file(&site);
    let set = File::options().write(true).open(&path).unwrap();
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    set.set_modified(long_ago).unwrap();
    drop(set);
    let time = || fs::metadata(&path).unwrap().modified().unwrap();
    assert_eq!(time(), long_ago);
    map.write(5000, b"stored");
    let stored = time();
    assert!(stored > long_ago);
    assert!(fs::metadata(&path).unwrap().ctime() > 1_000_000_000);
    drop(map);
    wait_until_none_lingers(&site);
    assert_eq!(time(), stored);
    site.remount();
    assert_eq!(time(), stored);
}

#[test]
fn regression_stores_that_nobody_looked_at_change_the_time_when_the_mapping_ends() {
    let Some(mut site) = passthrough_site() else { return };
    let (path, map) = mapped_file(&site);
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    map.write(5000, b"stored");
    drop(map);
    wait_until_none_lingers(&site);
    let time = || fs::metadata(&path).unwrap().modified().unwrap();
    let stored = time();
    assert!(stored > long_ago);
    site.remount();
    assert_eq!(time(), stored);
}

#[test]
fn regression_the_time_of_a_write_stands_when_nothing_is_stored_after_it() {
    // The file below has the kernel's coarse time, which must not take the finer one's place.
    let Some(site) = passthrough_site() else { return };
    let (path, map) = mapped_file(&site);
    let writer = File::options().write(true).open(&path).unwrap();
    writer.write_all_at(b"written", 0).unwrap();
    let written = writer.metadata().unwrap().modified().unwrap();
    drop(writer);
    let time = || fs::metadata(&path).unwrap().modified().unwrap();
    assert_eq!(time(), written);
    site.client().settle_closed();
    assert_eq!(time(), written);
    drop(map);
    wait_until_none_lingers(&site);
    assert_eq!(time(), written);
}

#[test]
fn regression_a_writer_shares_the_pages_of_a_mapping_whose_file_was_closed() {
    let Some(site) = passthrough_site() else { return };
    let (path, first) = mapped_file(&site);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let second = Map::shared(&file, 1 << 20);
    first.write(100, b"by the first");
    assert_eq!(second.read(100, 12), b"by the first");
    second.write(101, b"Y");
    assert_eq!(first.read(100, 12), b"bY the first");
    second.sync();
    file.sync_all().unwrap();
    drop((second, file, first));
    wait_until_none_lingers(&site);
    assert_eq!(&fs::read(&path).unwrap()[100..112], b"bY the first");
}

#[test]
fn regression_a_writer_that_comes_after_the_readers_does_not_keep_the_file_in_its_tier() {
    let Some(site) = passthrough_site() else { return };
    let path = site.path("f");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    for to in [TierId::Ssd, TierId::Memory, TierId::Ssd, TierId::Memory] {
        fs::read(&path).unwrap();
        // The kernel tells of the reader's close when it likes: the writer must come after that, and before it is seen
        // that nobody maps the file.
        std::thread::sleep(Duration::from_millis(10));
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        site.ds().migrate(ino_of(&path), to, PATIENCE).unwrap();
        drop(writer);
    }
}

#[test]
fn regression_what_lingers_stays_charged() {
    // The budget of passthrough is for what cannot move, open or not.
    let Some(site) = passthrough_site() else { return };
    let (path, map) = mapped_file(&site);
    let other = site.path("g");
    fs::write(&other, vec![8; 1 << 20]).unwrap();
    site.client().set_passthrough_budget(TierId::Memory, 3 << 19);
    let reader = File::open(&other).unwrap();
    assert_eq!(site.client().stats().passthrough_inodes, 1, "no room for a second one");
    drop((reader, map));
    wait_until_none_lingers(&site);
    // The kernel tells of the reader's close when it likes, and a cached opening keeps passthrough away.
    site.settle_closed();
    let _reader = passed_through(&site, &other);
    drop(path);
}

#[test]
fn regression_direct_readers_of_a_device_need_no_alignment() {
    use std::os::unix::fs::OpenOptionsExt;
    let Some(site) = passthrough_site() else { return };
    let path = site.path("f");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    site.settle_closed();
    site.ds().migrate(ino_of(&path), TierId::Ssd, PATIENCE).unwrap();
    // Compared, so that it may be passed through.
    fs::read(&path).unwrap();
    site.settle_closed();
    let direct = || OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let check = |file: &File| {
        let mut odd = [0; 1001];
        file.read_exact_at(&mut odd[..], 333).unwrap();
        assert_eq!(odd, [7; 1001]);
    };
    check(&direct());
    site.settle_closed();
    let reader = passed_through(&site, &path);
    check(&direct());
    check(&reader);
}

#[test]
fn regression_nothing_is_kept_of_a_file_that_the_kernel_forgot_while_it_lingered() {
    let Some(site) = passthrough_site() else { return };
    let (path, map) = mapped_file(&site);
    fs::remove_file(&path).unwrap();
    drop(map);
    wait_until_none_lingers(&site);
    let begun = std::time::Instant::now();
    while site.client().stats().remembered_inodes > 0 {
        assert!(begun.elapsed().as_secs() < 30, "something is kept");
        std::thread::yield_now();
    }
}

#[test]
fn regression_a_file_that_lingers_is_listed_once() {
    // A library that some program has mapped is opened and closed by every other program that starts. Method: so often that
    // more would linger than may, if each time counted; then another file must find a place.
    let Some(site) = passthrough_site() else { return };
    let (path, map) = mapped_file(&site);
    for _ in 0..4000 {
        File::open(&path).unwrap();
    }
    let other = site.path("g");
    fs::write(&other, vec![8; 1 << 20]).unwrap();
    site.client().settle_closed();
    let _reader = File::open(&other).unwrap();
    assert_eq!(site.client().stats().passthrough_inodes, 2);
    drop(map);
}

#[test]
fn regression_the_kernel_does_not_keep_times_that_stores_change() {
    // Method: the attributes are asked for before a program maps the file, and asked for again after it stored.
    let Some(site) = passthrough_site() else { return };
    let path = site.path("f");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    site.settle_closed();
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    site.settle_closed();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago);
    let _reader = passed_through(&site, &path);
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let map = Map::shared(&file, 1 << 20);
    map.write(5000, b"stored");
    // Without the access time, which the kernel asks for anew since the mapping.
    let time = rustix::fs::StatxFlags::MTIME;
    let found = rustix::fs::statx(rustix::fs::CWD, &path, rustix::fs::AtFlags::empty(), time).unwrap();
    assert!(found.stx_mtime.tv_sec > 1_000_000_000);
}

#[test]
fn regression_a_store_is_seen_when_the_metadata_take_nothing() {
    let Some(site) = passthrough_site() else { return };
    let (path, map) = mapped_file(&site);
    let begun = Instant::now();
    while site.mds().find(ino_of(&path)).unwrap().data.live {
        assert!(begun.elapsed() < Duration::from_secs(30), "the file is never settled");
        site.client().settle_closed();
    }
    site.meta().close().unwrap();
    map.write(5000, b"stored");
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    assert_eq!(fs::read(&path).unwrap()[5000..5006], *b"stored");
}

static GATE: Mutex<()> = Mutex::new(());
static AT_THE_GATE: AtomicBool = AtomicBool::new(false);

fn is_in_use_behind_the_gate(_: BorrowedFd<'_>) -> Result<bool, Errno> {
    AT_THE_GATE.store(true, Ordering::Release);
    let _open = GATE.lock();
    Ok(true)
}

/// Goal: who waits for a device with a file in hand holds up nothing but that file. Method: the look whether it is mapped
/// waits at a gate; what is asked about the file meanwhile must leave the thread that it arrived on.
#[test]
fn regression_a_file_that_somebody_works_on_is_waited_for_by_workers() {
    let Some(mut site) = Site::new() else { return };
    site.in_use = is_in_use_behind_the_gate;
    site.mount();
    if !site.client().passthrough_is_on() {
        return;
    }
    let path = site.path("f");
    fs::write(&path, vec![7; 1 << 20]).unwrap();
    site.client().settle_closed();
    let closed = GATE.lock();
    drop(File::open(&path).unwrap());
    let begun = Instant::now();
    let wait_until = |what: &str, done: &dyn Fn() -> bool| {
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
            thread::yield_now();
        }
    };
    wait_until("nobody looks", &|| AT_THE_GATE.load(Ordering::Acquire));
    let looks: [fn(&std::path::Path); 3] = [
        |path| drop(File::open(path).unwrap()),
        |path| drop(OpenOptions::new().write(true).open(path).unwrap()),
        |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap(),
    ];
    let mut asking = Vec::new();
    for look in looks {
        let before = site.client().stats().deferred;
        let path = path.clone();
        asking.push(thread::spawn(move || look(&path)));
        wait_until("it stays on the transport's thread", &|| site.client().stats().deferred > before);
    }
    site.mds().sync().unwrap();
    fs::write(site.path("another"), b"file").unwrap();
    drop(closed);
    asking.into_iter().for_each(|thread| thread.join().unwrap());
}
