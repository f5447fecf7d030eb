//! Goal: a mounted ONFS behaves as a local file system for one program at a time. Method: the real stack (journal,
//! mds, ds on temporary directories) behind a real mount, driven through the standard library; each test has its own.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
    thread,
    time::{Duration, SystemTime},
};

use harness::Site;

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 7) as u8).collect()
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn bytes_come_back_also_after_a_remount() {
    // Sizes around a page, a request and a SAU.
    let Some(mut site) = Site::mounted() else { return };
    let sizes = [0, 1, 4095, 4096, 4097, 1 << 20, (4 << 20) - 1, (4 << 20) + 3, 9 << 20];
    for round in 0..2 {
        for size in sizes {
            let path = site.path(&format!("f{size}"));
            let bytes = pattern(size, size as u64);
            if round == 0 {
                fs::write(&path, &bytes).unwrap();
            }
            assert_eq!(fs::metadata(&path).unwrap().len(), size as u64);
            assert!(fs::read(&path).unwrap() == bytes, "size {size}, round {round}");
        }
        if round == 0 {
            site.remount();
        }
    }
}

#[test]
fn append_overwrite_truncate_and_holes() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    fs::write(&path, b"hello").unwrap();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b" world").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 11);
    assert_eq!(fs::read(&path).unwrap(), b"hello world");
    let file = read_write(&path);
    file.write_all_at(b"J", 0).unwrap();
    file.write_all_at(b"end", 10_000_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000_003);
    let mut buf = [9; 4];
    file.read_exact_at(&mut buf, 5_000_000).unwrap();
    assert_eq!(buf, [0; 4]);
    file.set_len(6).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"Jello ");
    // What was cut does not come back.
    file.set_len(20).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"Jello \0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    drop(file);
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(fs::read(&path).unwrap(), b"");
}

#[test]
fn stat_is_true_while_a_file_is_written() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    let mut file = File::create(&path).unwrap();
    let before = fs::metadata(&path).unwrap();
    for n in 1..=20_u64 {
        file.write_all(&[7; 100_000]).unwrap();
        let now = fs::metadata(&path).unwrap();
        assert_eq!(now.len(), n * 100_000);
        assert!(now.blocks() * 512 >= n * 100_000, "{} blocks after {n}", now.blocks());
        assert!((now.mtime(), now.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    }
    drop(file);
    let after = fs::metadata(&path).unwrap();
    assert_eq!(after.len(), 2_000_000);
    assert!(after.blocks() > 0);
}

#[test]
fn times_that_are_set_stay() {
    // As tar and cp -p do: set while open and after writing; then also by path; a later write counts again.
    let Some(mut site) = Site::mounted() else { return };
    let path = site.path("f");
    let past = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let mut file = File::create(&path).unwrap();
    file.write_all(b"x").unwrap();
    file.set_modified(past).unwrap();
    assert_eq!(file.metadata().unwrap().modified().unwrap(), past);
    drop(file);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), past);
    // An open for writing that writes nothing changes nothing.
    drop(OpenOptions::new().write(true).open(&path).unwrap());
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), past);
    site.remount();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), past);
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"y").unwrap();
    assert!(fs::metadata(&path).unwrap().modified().unwrap() > past);
}

#[test]
fn names_move_and_vanish() {
    let Some(site) = Site::mounted() else { return };
    let root = site.root();
    fs::create_dir(root.join("a")).unwrap();
    fs::create_dir(root.join("a/b")).unwrap();
    fs::write(root.join("a/f"), b"f").unwrap();
    fs::hard_link(root.join("a/f"), root.join("a/g")).unwrap();
    assert_eq!(fs::metadata(root.join("a/f")).unwrap().nlink(), 2);
    fs::rename(root.join("a/f"), root.join("a/b/h")).unwrap();
    assert!(fs::metadata(root.join("a/f")).is_err());
    assert_eq!(fs::read(root.join("a/b/h")).unwrap(), b"f");
    fs::write(root.join("a/target"), b"old").unwrap();
    fs::rename(root.join("a/b/h"), root.join("a/target")).unwrap();
    assert_eq!(fs::read(root.join("a/target")).unwrap(), b"f");
    fs::remove_file(root.join("a/g")).unwrap();
    assert_eq!(fs::metadata(root.join("a/target")).unwrap().nlink(), 1);
    assert_eq!(fs::remove_dir(root.join("a")).unwrap_err().raw_os_error(), Some(39));
    std::os::unix::fs::symlink("target", root.join("a/link")).unwrap();
    assert_eq!(fs::read_link(root.join("a/link")).unwrap(), Path::new("target"));
    assert_eq!(fs::read(root.join("a/link")).unwrap(), b"f");
    assert_eq!(fs::read_dir(root.join("a")).unwrap().count(), 3);
    fs::remove_dir_all(root.join("a")).unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    // Across the trees of two top-level directories.
    fs::create_dir(root.join("x")).unwrap();
    fs::create_dir(root.join("y")).unwrap();
    fs::write(root.join("x/f"), b"moved").unwrap();
    fs::rename(root.join("x/f"), root.join("y/f")).unwrap();
    assert_eq!(fs::read(root.join("y/f")).unwrap(), b"moved");
}

#[test]
fn an_unlinked_open_file_lives_until_it_is_closed() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    let mut file = read_write(&path);
    file.write_all(&pattern(3 << 20, 1)).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(fs::metadata(&path).is_err());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b"more").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), (3 << 20) + 4);
    assert!(bytes[..3 << 20] == pattern(3 << 20, 1));
    drop(file);
    // Removal is in the background; it has happened when the purger says so.
    let begun = std::time::Instant::now();
    while site.client().stats().purged_inodes == 0 {
        assert!(begun.elapsed().as_secs() < 30, "never purged");
        thread::yield_now();
    }
}

#[test]
fn twenty_thousand_entries_are_listed_once_each() {
    let Some(site) = Site::mounted() else { return };
    let dir = site.path("d");
    fs::create_dir(&dir).unwrap();
    for n in 0..20_000 {
        File::create(dir.join(format!("entry-{n:05}"))).unwrap();
    }
    for _ in 0..2 {
        let mut names: Vec<String> =
            fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names.len(), 20_000);
        assert!(names.iter().enumerate().all(|(n, name)| *name == format!("entry-{n:05}")));
    }
    for entry in fs::read_dir(&dir).unwrap().take(100) {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().ino(), fs::metadata(entry.path()).unwrap().ino());
    }
    fs::remove_dir_all(&dir).unwrap();
    assert!(fs::metadata(&dir).is_err());
}

#[test]
fn modes_and_set_id_bits() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o751).open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o751);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6755);
    // chown takes the set-id bits away.
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::metadata(&path).unwrap().uid(), 1000);
    // So does a write by somebody without privilege, and the mode is shown at once.
    use std::os::unix::process::CommandExt;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    let append = |uid| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "echo more >> \"$0\""]).arg(&path).uid(uid).gid(uid);
        assert!(shell.status().unwrap().success());
    };
    append(0);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
    append(1001);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
}

#[test]
fn threads_on_own_and_shared_files() {
    let Some(site) = Site::mounted() else { return };
    let shared = site.path("shared");
    let file = read_write(&shared);
    file.set_len(2 << 20).unwrap();
    thread::scope(|scope| {
        for who in 0..2_u64 {
            let (site, file) = (&site, &file);
            scope.spawn(move || {
                for n in 0..200 {
                    let path = site.path(&format!("own-{who}-{n}"));
                    fs::write(&path, pattern(3000, who + n)).unwrap();
                    assert!(fs::read(&path).unwrap() == pattern(3000, who + n));
                    file.write_all_at(&pattern(4096, n), (2 * n % 512 + who) * 4096).unwrap();
                    if n % 3 == 0 {
                        fs::remove_file(&path).unwrap();
                    }
                }
            });
        }
    });
    let bytes = fs::read(&shared).unwrap();
    for n in 0..200_u64 {
        for who in 0..2 {
            let at = ((2 * n % 512 + who) * 4096) as usize;
            assert!(bytes[at..at + 4096] == pattern(4096, n), "block {n} of {who}");
        }
    }
}

#[test]
fn fsync_and_synchronous_writes_leave_nothing_at_risk() {
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    let mut file = File::create(&path).unwrap();
    file.write_all(&pattern(1 << 20, 5)).unwrap();
    assert_ne!(dirty(&path), "0");
    file.sync_all().unwrap();
    assert_eq!(dirty(&path), "0");
    let path = site.path("g");
    let file = OpenOptions::new().write(true).create_new(true).custom_flags(0o401_0000).open(&path).unwrap();
    file.write_all_at(&pattern(300_000, 6), 0).unwrap();
    assert_eq!(dirty(&path), "0");
    File::open(site.root()).unwrap().sync_all().unwrap();
}

fn dirty(path: &Path) -> String {
    getxattr(path, "user.onfs.dirty").unwrap()
}

fn getxattr(path: &Path, name: &str) -> Result<String, i32> {
    let mut buf = [0; 4096];
    let len = rustix::fs::getxattr(path, name, &mut buf[..]).map_err(|e| e.raw_os_error())?;
    Ok(String::from_utf8(buf[..len].to_vec()).unwrap())
}

#[test]
fn extended_attributes_stored_and_own() {
    use rustix::fs::{XattrFlags, getxattr as get, listxattr, removexattr, setxattr};
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    fs::write(&path, pattern(5 << 20, 1)).unwrap();
    setxattr(&path, "user.colour", b"blue", XattrFlags::CREATE).unwrap();
    assert!(setxattr(&path, "user.colour", b"red", XattrFlags::CREATE).is_err());
    assert_eq!(getxattr(&path, "user.colour").unwrap(), "blue");
    let mut short = [0; 2];
    assert_eq!(get(&path, "user.colour", &mut short[..]).unwrap_err().raw_os_error(), 34);
    let mut list = [0; 256];
    let len = listxattr(&path, &mut list[..]).unwrap();
    assert_eq!(&list[..len], b"user.colour\0", "what cannot be set must not be listed: copies would fail");
    assert_eq!(getxattr(&path, "user.onfs.tiers").unwrap(), format!("memory:{}", 5 << 20));
    assert_eq!(getxattr(&path, "user.onfs.state").unwrap(), "dirty");
    assert_eq!(getxattr(&site.root(), "user.onfs.control").unwrap(), "/run/onfs/control");
    assert_eq!(getxattr(&path, "user.onfs.nothing"), Err(61));
    assert_eq!(setxattr(&path, "user.onfs.dirty", b"0", XattrFlags::empty()).unwrap_err().raw_os_error(), 1);
    let _open = File::open(&path).unwrap();
    setxattr(&path, "user.onfs.pin", b"memory", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(&path, "user.onfs.pin").unwrap(), "memory");
    setxattr(&path, "user.onfs.pin", b"", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr(&path, "user.onfs.pin"), Err(61));
    removexattr(&path, "user.colour").unwrap();
    assert_eq!(getxattr(&path, "user.colour"), Err(61));
}

#[test]
fn special_files_and_unnamed_ones() {
    use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, linkat, mknodat, openat};
    let Some(site) = Site::mounted() else { return };
    mknodat(CWD, site.path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    use std::os::unix::fs::FileTypeExt;
    assert!(fs::metadata(site.path("fifo")).unwrap().file_type().is_fifo());
    let fd = openat(CWD, site.root(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o640)).unwrap();
    let file = File::from(fd);
    file.write_all_at(b"nameless", 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    linkat(CWD, own, CWD, site.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    assert_eq!(fs::read(site.path("named")).unwrap(), b"nameless");
    assert_eq!(fs::metadata(site.path("named")).unwrap().nlink(), 1);
}

#[test]
fn allocate_punch_zero_seek_and_copy() {
    use rustix::fs::{FallocateFlags as F, SeekFrom as S, copy_file_range, fallocate, seek};
    let Some(site) = Site::mounted() else { return };
    let file = read_write(&site.path("f"));
    file.write_all_at(&pattern(100_000, 3), 0).unwrap();
    fallocate(&file, F::PUNCH_HOLE | F::KEEP_SIZE, 8192, 4096).unwrap();
    fallocate(&file, F::ZERO_RANGE, 90_000, 20_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 110_000);
    let mut want = pattern(100_000, 3);
    want[8192..12288].fill(0);
    want.resize(110_000, 0);
    want[90_000..].fill(0);
    assert!(fs::read(site.path("f")).unwrap() == want);
    fallocate(&file, F::empty(), 0, 200_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 200_000);
    fallocate(&file, F::KEEP_SIZE, 0, 300_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 200_000);
    assert_eq!(fallocate(&file, F::COLLAPSE_RANGE, 0, 4096).unwrap_err().raw_os_error(), 95);
    file.set_len(20 << 20).unwrap();
    file.write_all_at(b"far", 16 << 20).unwrap();
    assert_eq!(seek(&file, S::Data(0)).unwrap(), 0);
    let hole = seek(&file, S::Hole(0)).unwrap();
    assert!((4096..16 << 20).contains(&hole), "{hole}");
    assert_eq!(seek(&file, S::Data(8 << 20)).unwrap(), 16 << 20);
    let copy = read_write(&site.path("g"));
    let (mut from, mut to) = (10, 5);
    let mut left = 80_000;
    while left > 0 {
        left -= copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left).unwrap();
    }
    let got = fs::read(site.path("g")).unwrap();
    assert!(got.len() == 80_005 && got[5..] == want[10..80_010]);
}

/// Goal: copy_file_range past the source's end copies what is there, says so, and lets the target grow to the last
/// copied byte only. Method: every start and length around the end, into an empty, a shorter and a longer file, for
/// sources that were written now, through another descriptor, and before the file was opened.
#[test]
fn copies_end_with_the_source() {
    use rustix::fs::copy_file_range;
    let Some(site) = Site::mounted() else { return };
    let (size, far) = (10_000_u64, 3 << 20);
    let want = pattern(size as usize, 11);
    for how in ["fresh", "elsewhere", "settled"] {
        let path = site.path(how);
        let source = read_write(&path);
        match how {
            "elsewhere" => read_write(&path).write_all_at(&want, 0).unwrap(),
            _ => source.write_all_at(&want, 0).unwrap(),
        }
        let source = if how == "settled" {
            drop(source);
            File::open(&path).unwrap()
        } else {
            source
        };
        for (start, len, before) in [
            (0, far, 0),
            (9_000, 2_000, 5),
            (9_999, far, 20_000),
            (0, 10_000, 1),
            (10_000, 1, 7),
            (50_000, far, 7),
        ] {
            let target = read_write(&site.path("target"));
            target.set_len(0).unwrap();
            target.write_all_at(&vec![b'x'; before], 0).unwrap();
            let (mut from, mut to) = (start, 100);
            let mut copied = 0;
            loop {
                let n =
                    copy_file_range(&source, Some(&mut from), &target, Some(&mut to), len as usize - copied)
                        .unwrap();
                copied += n;
                if n == 0 || copied == len as usize {
                    break;
                }
            }
            let there = size.saturating_sub(start).min(len) as usize;
            assert_eq!(copied, there, "{how} {start} {len}");
            let end = if there == 0 { before } else { before.max(100 + there) };
            assert_eq!(target.metadata().unwrap().len(), end as u64, "{how} {start} {len}");
            let got = fs::read(site.path("target")).unwrap();
            assert!(
                there == 0 || got[100..100 + there] == want[start as usize..][..there],
                "{how} {start} {len}"
            );
        }
    }
    // Within one file: what the copy adds is not copied on.
    let path = site.path("self");
    fs::write(&path, b"0123456789").unwrap();
    let file = read_write(&path);
    let n = copy_file_range(&file, Some(&mut 4), &file, Some(&mut 10), far as usize).unwrap();
    assert_eq!((n, fs::read(&path).unwrap()), (6, b"0123456789456789".to_vec()));
}

#[test]
fn a_cached_reader_sees_what_others_write() {
    // A reader that came first has its pages cached or passed through; a writer then changes them.
    let Some(site) = Site::mounted() else { return };
    let path = site.path("f");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let mut reader = File::open(&path).unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    for n in 0..50_u8 {
        writer.write_all_at(&[n; 4096], u64::from(n) * 4096).unwrap();
        let mut block = [0; 4096];
        reader.read_exact_at(&mut block, u64::from(n) * 4096).unwrap();
        assert_eq!(block, [n; 4096]);
    }
    drop(writer);
    drop(reader);
    assert_eq!(fs::read(&path).unwrap()[49 * 4096], 49);
}

/// Method: the reads that the daemon is asked for while a program reads 16 MiB from start to end in small pieces.
#[test]
fn regression_the_kernel_reads_ahead_in_requests_of_a_mebibyte() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root may raise the readahead: nothing is tested");
        return;
    }
    let Some(mut site) = Site::new() else { return };
    site.passthrough = false;
    site.mount();
    fs::write(site.path("f"), pattern(16 << 20, 1)).unwrap();
    // Beside a writer a reader would get direct I/O.
    site.settle_closed();
    let reads = || {
        let stats = site.client().stats();
        stats.operations.iter().find(|op| op.name == "read").map(|op| op.requests).unwrap()
    };
    let before = reads();
    let mut file = File::open(site.path("f")).unwrap();
    // The pages that came with the writes, if the kernel kept any.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut bytes = 0;
    let mut piece = vec![0; 64 << 10];
    while let n @ 1.. = file.read(&mut piece).unwrap() {
        bytes += n;
    }
    assert_eq!(bytes, 16 << 20);
    let asked = reads() - before;
    assert!((16..32).contains(&asked), "{asked} requests");
}

#[test]
fn the_file_system_has_a_size() {
    let Some(site) = Site::mounted() else { return };
    let fs = rustix::fs::statvfs(site.root()).unwrap();
    assert!(fs.f_blocks > 0 && fs.f_bavail <= fs.f_blocks && fs.f_namemax == 255);
}

#[test]
fn a_quota_stops_growth_and_shows_in_statfs() {
    use mds::Limits;
    use types::{Ino, ProjectId};
    let Some(site) = Site::mounted() else { return };
    let dir = site.path("d");
    fs::create_dir(&dir).unwrap();
    let ino = Ino::from_raw(fs::metadata(&dir).unwrap().ino()).unwrap();
    let project = ProjectId(7);
    site.mds().quota_set(project, Limits { bytes: Some(1 << 20), inodes: None }).unwrap();
    site.mds().quota_assign(ino, project).unwrap();
    let file = read_write(&dir.join("f"));
    file.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    assert_eq!(file.write_all_at(b"x", 1 << 20).unwrap_err().raw_os_error(), Some(122));
    assert_eq!(file.set_len(2 << 20).unwrap_err().raw_os_error(), Some(122));
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    file.write_all_at(b"within", 10).unwrap();
    drop(file);
    let room = rustix::fs::statvfs(&dir).unwrap();
    assert_eq!((room.f_blocks * room.f_frsize, room.f_bavail), (1 << 20, 0));
    assert!(rustix::fs::statvfs(site.root()).unwrap().f_blocks > room.f_blocks);
}

#[test]
fn a_file_that_a_crash_left_unsettled_is_settled_at_its_first_use() {
    // The mds says "being written" with an old size, as after a kill; the next mount asks the object.
    use types::Ino;
    let Some(mut site) = Site::mounted() else { return };
    let paths = [site.path("stat"), site.path("read"), site.path("listed")];
    for path in &paths {
        fs::write(path, pattern(700_000, 4)).unwrap();
        let ino = Ino::from_raw(fs::metadata(path).unwrap().ino()).unwrap();
        site.mds().begin_write(ino).unwrap();
        let old = mds::Settled { size: 5, blocks: None, mtime: None, still_open: true };
        site.mds().settle(ino, &old).unwrap();
    }
    site.remount();
    assert_eq!(fs::metadata(&paths[0]).unwrap().len(), 700_000);
    assert!(fs::read(&paths[1]).unwrap() == pattern(700_000, 4));
    for entry in fs::read_dir(site.root()).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().len(), 700_000);
    }
    let ino = Ino::from_raw(fs::metadata(&paths[0]).unwrap().ino()).unwrap();
    let found = site.mds().find(ino).unwrap();
    assert!(!found.data.live && found.attr.size == 700_000);
}

#[test]
fn regression_times_outlive_a_crash() {
    // Goal: after a kill a file has the time of its last write, whatever else changed later, or else the time that was set.
    // Method: leave two files as a kill would, unsettled; one written before its mode changed, one opened and not written.
    use types::{Ino, Timestamp};
    let Some(mut site) = Site::mounted() else { return };
    let (written, opened) = (site.path("written"), site.path("opened"));
    let (past, begun) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000), SystemTime::now());
    let ino = |path: &Path| Ino::from_raw(fs::metadata(path).unwrap().ino()).unwrap();
    for path in [&written, &opened] {
        fs::write(path, b"x").unwrap();
        site.settle_closed();
        site.mds().begin_write(ino(path)).unwrap();
    }
    let old = Timestamp { sec: 1_000_000_000, nsec: 0 };
    let unsettled = mds::Settled { size: 1, blocks: None, mtime: Some(old), still_open: true };
    site.mds().settle(ino(&written), &unsettled).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o600)).unwrap();

    let settled = mds::Settled { mtime: None, still_open: false, ..unsettled };
    site.mds().settle(ino(&opened), &settled).unwrap();
    let set = mds::SetAttr { mtime: Some(mds::SetTime::At(old)), ..mds::SetAttr::default() };
    site.mds().setattr(ino(&opened), &set).unwrap();
    // What changes no byte and no time is a beginning of writing, too.
    let file = OpenOptions::new().write(true).open(&opened).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 1).unwrap();
    drop(file);
    site.settle_closed();
    site.mds().begin_write(ino(&opened)).unwrap();

    site.remount();
    let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    // The kernel's clock of files ticks.
    assert!(time(&written) > begun - Duration::from_millis(20), "{:?}", time(&written));
    assert_eq!(time(&opened), past);
}

#[test]
fn reads_leave_access_times_alone_where_the_mount_says_so() {
    for no_atime in [false, true] {
        let Some(mut site) = Site::new() else { return };
        site.no_atime = no_atime;
        site.mount();
        let path = site.path("f");
        fs::write(&path, b"bytes").unwrap();
        let set = fs::FileTimes::new()
            .set_accessed(std::time::UNIX_EPOCH)
            .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(9));
        fs::File::options().write(true).open(&path).unwrap().set_times(set).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
        assert_eq!(std::os::unix::fs::MetadataExt::atime(&fs::metadata(&path).unwrap()) == 0, no_atime);
    }
}
