//! Goal: what is recorded late, or not at all, is never seen to be so: sizes and times of closed files, access times,
//! files that were made and removed without a byte. Method: the real stack behind a real mount.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use harness::Site;
use kv::{BootId, Disk, DiskFile, Space, SystemDisk};
use types::Ino;

fn ino(path: &Path) -> Ino {
    Ino::from_raw(fs::metadata(path).unwrap().ino()).unwrap()
}

fn orphans(site: &Site) -> u64 {
    site.mds().statfs_usage().orphans_waiting
}

/// Method: more files than are settled at once, looked at right after their close, then settled, then mounted anew.
#[test]
fn closed_files_have_their_size_and_time_before_and_after_they_are_settled() {
    let Some(mut site) = Site::mounted() else { return };
    let paths: Vec<_> = (0..150).map(|n| site.path(&format!("f{n}"))).collect();
    let begun = SystemTime::now() - Duration::from_millis(20);
    let check = || {
        for (n, path) in paths.iter().enumerate() {
            let found = fs::metadata(path).unwrap();
            assert_eq!((found.len(), found.blocks()), (n as u64 * 10, (n as u64 * 10).div_ceil(512)));
            assert!(found.modified().unwrap() >= begun);
        }
    };
    for (n, path) in paths.iter().enumerate() {
        fs::write(path, vec![7; n * 10]).unwrap();
        assert_eq!(fs::metadata(path).unwrap().len(), n as u64 * 10);
    }
    check();
    site.settle_closed();
    for path in &paths {
        assert!(!site.mds().find(ino(path)).unwrap().data.live);
    }
    check();
    site.remount();
    check();
}

/// Method: a file that is opened for writing and closed; the mds must not have been told of anything.
#[test]
fn a_file_that_is_opened_for_writing_and_not_written_is_not_recorded() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    fs::write(&path, b"x").unwrap();
    site.settle_closed();
    let before = site.mds().find(ino(&path)).unwrap();
    let open = OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(site.mds().find(ino(&path)).unwrap(), before);
    (&open).write_all(b"yz").unwrap();
    assert!(site.mds().find(ino(&path)).unwrap().data.live);
    drop(open);
    let made = OpenOptions::new().write(true).create_new(true).open(site.path("empty")).unwrap();
    let found = site.mds().find(ino(&site.path("empty"))).unwrap();
    assert!(!found.data.live && !found.data.written);
    made.set_len(3).unwrap();
    assert!(site.mds().find(ino(&site.path("empty"))).unwrap().data.live);
}

/// Method: a file that is read for the first time, one whose access time was set in between.
#[test]
fn access_times_are_seen_at_once_and_kept() {
    let Some(mut site) = Site::mounted() else { return };
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let read = |path: &Path| File::open(path).unwrap().read_to_end(&mut Vec::new()).unwrap();
    for name in ["read", "set"] {
        fs::write(site.path(name), b"bytes").unwrap();
        let times = fs::FileTimes::new().set_accessed(long_ago);
        OpenOptions::new().write(true).open(site.path(name)).unwrap().set_times(times).unwrap();
        read(&site.path(name));
        assert!(fs::metadata(site.path(name)).unwrap().accessed().unwrap() > long_ago);
    }
    let times = fs::FileTimes::new().set_accessed(long_ago);
    OpenOptions::new().write(true).open(site.path("set")).unwrap().set_times(times).unwrap();
    site.settle_closed();
    let check = |site: &Site| {
        assert!(fs::metadata(site.path("read")).unwrap().accessed().unwrap() > long_ago);
        assert_eq!(fs::metadata(site.path("set")).unwrap().accessed().unwrap(), long_ago);
    };
    check(&site);
    site.remount();
    check(&site);
}

/// Method: files without a byte, one closed, one open, one held by an `O_PATH` descriptor; a file with bytes.
#[test]
fn a_file_without_bytes_is_gone_with_its_name_unless_it_is_open() {
    let Some(site) = Site::mounted() else { return };
    let make = |name: &str| {
        let file = OpenOptions::new().write(true).create_new(true).open(site.path(name)).unwrap();
        (file, site.path(name), ino(&site.path(name)))
    };
    let (file, path, number) = make("closed");
    drop(file);
    site.settle_closed();
    let before = orphans(&site);
    fs::remove_file(&path).unwrap();
    assert!(site.mds().find(number).is_err());
    assert_eq!(orphans(&site), before);

    let (mut file, path, number) = make("open");
    fs::remove_file(&path).unwrap();
    file.write_all(b"still here").unwrap();
    assert_eq!((file.metadata().unwrap().len(), file.metadata().unwrap().nlink()), (10, 0));
    assert!(site.mds().find(number).is_ok());

    drop(file);
    let (file, path, number) = make("held");
    drop(file);
    site.settle_closed();
    let held = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(site.mds().find(number).is_err());
    assert_eq!((held.metadata().unwrap().nlink(), held.metadata().unwrap().ino()), (0, number.get()));
    assert!(File::open(format!("/proc/self/fd/{}", held.as_raw_fd())).is_err());
}

/// Method: the attributes that stat shows between the writes of a file that stays open.
#[test]
fn attributes_that_the_kernel_keeps_are_true_while_a_file_is_written() {
    let Some(site) = Site::mounted() else { return };
    let mut file = OpenOptions::new().write(true).create_new(true).open(site.path("f")).unwrap();
    let mut last = fs::metadata(site.path("f")).unwrap().modified().unwrap();
    for n in 1..=20 {
        file.write_all(&[1; 100]).unwrap();
        let found = fs::metadata(site.path("f")).unwrap();
        assert_eq!(found.len(), n * 100);
        assert!(found.modified().unwrap() >= last && found.ctime() >= found.mtime());
        last = found.modified().unwrap();
    }
}

/// Method: an empty file that is pinned, then removed: the pin goes with it.
#[test]
fn regression_a_pin_of_a_file_without_bytes_ends_with_it() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("pinned");
    drop(File::create(&path).unwrap());
    let number = ino(&path);
    rustix::fs::setxattr(&path, "user.onfs.pin", b"ssd", rustix::fs::XattrFlags::empty()).unwrap();
    assert!(site.ds().keeps(number));
    site.settle_closed();
    fs::remove_file(&path).unwrap();
    let begun = std::time::Instant::now();
    while site.ds().keeps(number) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the pin stays");
        std::thread::yield_now();
    }
}

/// The machine's disk, which can refuse one commit.
#[derive(Clone, Default)]
struct RefusingDisk(Arc<AtomicBool>);

struct RefusingFile(Arc<dyn DiskFile>, RefusingDisk);

impl RefusingDisk {
    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(RefusingFile(file, self.clone()))
    }
}

impl Disk for RefusingDisk {
    fn create_dir(&self, dir: &Path) -> std::io::Result<()> {
        SystemDisk.create_dir(dir)
    }
    fn list(&self, dir: &Path) -> std::io::Result<Vec<PathBuf>> {
        SystemDisk.list(dir)
    }
    fn create(&self, path: &Path) -> std::io::Result<Arc<dyn DiskFile>> {
        SystemDisk.create(path).map(|file| self.wrap(file))
    }
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        SystemDisk.read(path)
    }
    fn remove(&self, path: &Path) -> std::io::Result<()> {
        SystemDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
        SystemDisk.sync_dir(dir)
    }
    fn open_or_create(&self, path: &Path) -> std::io::Result<(Arc<dyn DiskFile>, u64)> {
        SystemDisk.open_or_create(path)
    }
    fn space(&self, dir: &Path) -> std::io::Result<Space> {
        SystemDisk.space(dir)
    }
    fn boot_id(&self) -> Option<BootId> {
        SystemDisk.boot_id()
    }
}

impl DiskFile for RefusingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        // What comes before is a segment's header.
        if offset >= 1024 && self.1.0.swap(false, Ordering::SeqCst) {
            return Err(std::io::Error::from_raw_os_error(libc::EIO));
        }
        self.0.write_at(bytes, offset)
    }
    fn allocate(&self, offset: u64, len: u64) -> std::io::Result<()> {
        self.0.allocate(offset, len)
    }
    fn shrink(&self, len: u64) -> std::io::Result<()> {
        self.0.shrink(len)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.0.sync()
    }
}

/// Method: a new file whose first write fails before a byte is stored, so that the record of the next one is to tell the
/// mds of it; an allocation that would tell it earlier and cannot; then a write.
#[test]
fn regression_a_refused_commit_does_not_hide_what_is_written_after_it() {
    let Some(mut site) = Site::new() else { return };
    let disk = RefusingDisk::default();
    site.disk = Arc::new(disk.clone());
    site.mount();
    let path = site.path("f");
    let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    let beyond = file.write_all_at(b"x", 65 << 40).unwrap_err();
    assert_eq!(beyond.raw_os_error(), Some(libc::EFBIG));
    disk.0.store(true, Ordering::SeqCst);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 4096).unwrap_err();
    assert!(!disk.0.load(Ordering::SeqCst));
    file.write_all_at(b"kept", 0).unwrap();
    drop(file);
    site.settle_closed();
    assert!(site.mds().find(ino(&path)).unwrap().data.written);
    site.remount();
    assert_eq!(fs::read(&path).unwrap(), b"kept");
}
