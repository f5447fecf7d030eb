//! Goal: policies of directories, pins and quotas take effect on files of a mounted ONFS. Method: a real mount; what is
//! expected to happen is waited for, what must not happen is looked at when something later of the same kind has happened.

#![allow(clippy::unwrap_used, reason = "tests")]

mod harness;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    time::Duration,
};

use client::Policy;
use harness::Site;
use mds::{DirPolicy, Limits, Mode, Promote, WriteBehind};
use types::{Errno, Ino, TierId, TierSet};

const SOON: Duration = Duration::from_millis(5);
const HOUR: Duration = Duration::from_secs(3600);
const SIZE: usize = 3 << 20;

fn ino(path: &Path) -> Ino {
    Ino::from_raw(fs::metadata(path).unwrap().ino()).unwrap()
}

/// A mount on which closed files are written behind after `delay`, and nothing is read past us.
fn mounted(delay: Duration) -> Option<Site> {
    let mut site = Site::new()?;
    site.passthrough = false;
    site.tiering.write_behind_closed = delay;
    site.tiering.write_behind_latest = delay.max(site.tiering.write_behind_latest);
    site.tiering.promote_on_open = TierSet::of(TierId::Nearline);
    site.policy = Policy { write_behind: WriteBehind::After(delay), ..Policy::default() };
    site.mount();
    Some(site)
}

fn set(site: &Site, dir: &str, change: impl FnOnce(&mut DirPolicy)) {
    site.client().policies().change(ino(&site.path(dir)), change).unwrap();
}

fn write(site: &Site, name: &str) {
    fs::write(site.path(name), vec![7; SIZE]).unwrap();
}

fn errno<V: std::fmt::Debug>(result: io::Result<V>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

#[test]
fn transient_files_and_those_never_written_behind_stay_in_memory() {
    let Some(mut site) = mounted(SOON) else { return };
    fs::create_dir_all(site.path("scratch/deep")).unwrap();
    fs::create_dir_all(site.path("never")).unwrap();
    set(&site, "scratch", |p| p.mode = Some(Mode::Transient));
    set(&site, "never", |p| p.write_behind = Some(WriteBehind::Never));
    let kept = ["scratch/deep/f", "never/f"];
    for name in kept {
        write(&site, name);
    }
    // Due after the others, and the longest due comes first.
    for n in 0..4 {
        write(&site, &format!("f{n}"));
        site.wait_for(&format!("f{n}"), |r| r.at_risk == 0 && r.bytes[TierId::Ssd.index()] == SIZE as u64);
    }
    for name in kept {
        let now = site.report(name);
        assert_eq!((now.at_risk, now.bytes), (SIZE as u64, [SIZE as u64, 0, 0]), "{name}");
        assert_eq!(now.transient, name.starts_with("scratch"));
    }
    // An explicit sync of a transient file promises nothing; of the other it does.
    for name in kept {
        File::open(site.path(name)).unwrap().sync_all().unwrap();
    }
    assert_eq!(site.report(kept[0]).at_risk, SIZE as u64);
    assert_eq!(site.report(kept[1]).at_risk, 0);
    assert_eq!(site.findings(), Vec::<String>::new());
}

#[test]
fn regression_a_transient_file_is_known_as_such_before_its_first_opening() {
    known_before_its_first_opening(Duration::ZERO);
}

/// Copies that became due before anybody had told of policies were made all the same.
#[test]
fn regression_a_transient_file_is_known_as_such_after_a_slow_start() {
    known_before_its_first_opening(20 * SOON);
}

fn known_before_its_first_opening(slow_start: Duration) {
    let Some(mut site) = mounted(SOON) else { return };
    site.slow_start = slow_start;
    fs::create_dir_all(site.path("scratch")).unwrap();
    set(&site, "scratch", |p| p.mode = Some(Mode::Transient));
    for n in 0..4 {
        write(&site, &format!("scratch/f{n}"));
    }
    site.remount();
    for n in 0..4 {
        write(&site, &format!("f{n}"));
        site.wait_for(&format!("f{n}"), |r| r.at_risk == 0);
    }
    for n in 0..4 {
        let now = site.report(&format!("scratch/f{n}"));
        assert_eq!((now.at_risk, now.bytes), (SIZE as u64, [SIZE as u64, 0, 0]), "{n}: {now:?}");
    }
}

#[test]
fn a_directory_has_its_own_delay() {
    let Some(site) = mounted(HOUR) else { return };
    fs::create_dir_all(site.path("soon/late")).unwrap();
    set(&site, "soon", |p| p.write_behind = Some(WriteBehind::After(SOON)));
    set(&site, "soon/late", |p| p.write_behind = Some(WriteBehind::After(HOUR)));
    for name in ["f", "soon/late/f", "soon/f"] {
        write(&site, name);
    }
    site.wait_for("soon/f", |r| r.at_risk == 0);
    assert_eq!(site.report("f").at_risk, SIZE as u64);
    assert_eq!(site.report("soon/late/f").at_risk, SIZE as u64);
}

#[test]
fn policies_follow_names_and_survive_a_remount() {
    let Some(mut site) = mounted(HOUR) else { return };
    fs::create_dir_all(site.path("t/a")).unwrap();
    fs::create_dir_all(site.path("plain")).unwrap();
    write(&site, "t/a/f");
    let opened = |site: &Site, name: &str| {
        drop(File::open(site.path(name)).unwrap());
        site.report(name).transient
    };
    assert!(!opened(&site, "t/a/f"));
    set(&site, "t", |p| p.mode = Some(Mode::Transient));
    assert!(opened(&site, "t/a/f"));
    // The directory moves away and back, then the file alone, then by exchange.
    fs::rename(site.path("t/a"), site.path("plain/a")).unwrap();
    assert!(!opened(&site, "plain/a/f"));
    fs::rename(site.path("plain/a"), site.path("t/a")).unwrap();
    assert!(opened(&site, "t/a/f"));
    fs::rename(site.path("t/a/f"), site.path("plain/f")).unwrap();
    assert!(!opened(&site, "plain/f"));
    fs::hard_link(site.path("plain/f"), site.path("t/a/f")).unwrap();
    assert!(opened(&site, "plain/f"), "where it was last named counts");
    fs::create_dir(site.path("other")).unwrap();
    write(&site, "other/g");
    assert!(!opened(&site, "other/g"));
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    let (a, other) = (site.path("t/a"), site.path("other"));
    rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &other, flags).unwrap();
    assert!(opened(&site, "t/a/g") && !opened(&site, "other/f"));
    site.remount();
    assert!(opened(&site, "t/a/g") && !opened(&site, "other/f"));
    // A directory says no below one that says yes; then nobody says anything.
    set(&site, "t/a", |p| p.mode = Some(Mode::Local));
    assert!(!opened(&site, "t/a/g"));
    set(&site, "t/a", |p| *p = DirPolicy::default());
    assert!(opened(&site, "t/a/g"));
    set(&site, "t", |p| *p = DirPolicy::default());
    assert!(!opened(&site, "t/a/g"));
    // What is removed takes its policy along.
    set(&site, "plain", |p| p.mode = Some(Mode::Transient));
    fs::remove_file(site.path("plain/f")).unwrap();
    fs::remove_dir(site.path("plain")).unwrap();
    assert_eq!(site.findings(), Vec::<String>::new());
}

#[test]
fn opening_brings_up_what_only_near_line_has() {
    let Some(site) = mounted(HOUR) else { return };
    for (dir, promote) in [("stay", Some(Promote::OnRequest)), ("plain", None), ("up", Some(Promote::OnOpen))]
    {
        fs::create_dir(site.path(dir)).unwrap();
        set(&site, dir, |p| p.promote = promote);
    }
    let far = |name: &str, to: TierId| {
        write(&site, name);
        site.ds().migrate(ino(&site.path(name)), to, Some(Duration::from_secs(60))).unwrap();
        site.wait_for(name, |r| r.bytes[TierId::Memory.index()] == 0);
    };
    for name in ["stay/f", "plain/f"] {
        far(name, TierId::Nearline);
    }
    for name in ["plain/ssd", "up/ssd"] {
        far(name, TierId::Ssd);
    }
    // Those that must stay are opened first, and held open.
    let names = ["stay/f", "plain/ssd", "plain/f", "up/ssd"];
    let mut open: Vec<File> = names.iter().map(|name| File::open(site.path(name)).unwrap()).collect();
    for name in ["plain/f", "up/ssd"] {
        site.wait_for(name, |r| r.bytes[TierId::Memory.index()] == SIZE as u64);
    }
    for name in ["stay/f", "plain/ssd"] {
        assert_eq!(site.report(name).bytes[TierId::Memory.index()], 0, "{name}");
    }
    for file in &mut open {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert!(bytes == vec![7; SIZE]);
    }
}

#[test]
fn pins_survive_a_remount_and_end_with_their_file() {
    let Some(mut site) = mounted(SOON) else { return };
    write(&site, "f");
    let object = |site: &Site| site.ds().object(ino(&site.path("f"))).unwrap();
    let held = File::open(site.path("f")).unwrap();
    site.ds().pin(&object(&site), TierId::Memory).unwrap();
    drop(held);
    site.wait_for("f", |r| r.at_risk == 0);
    site.remount();
    assert_eq!(site.report("f").pinned, Some(TierId::Memory));
    assert_eq!(site.findings(), Vec::<String>::new());
    site.mount();
    fs::remove_file(site.path("f")).unwrap();
    // The purger has it; a check finds no pin without a file at any moment.
    assert_eq!(site.findings(), Vec::<String>::new());
}

#[test]
fn a_quota_stops_growth_and_narrows_the_view() {
    let Some(mut site) = mounted(HOUR) else { return };
    fs::create_dir(site.path("q")).unwrap();
    let dir = ino(&site.path("q"));
    let limits = Limits { bytes: Some(4 << 20), inodes: Some(4) };
    let (project, quota) = site.mds().quota_begin(dir, |_| limits).unwrap();
    assert_eq!((quota.limits, quota.inodes, quota.dir), (limits, 1, Some(dir)));
    let quota_exceeded = Some(Errno::EDQUOT.raw());
    // Bytes: a write that does not fit, another that does, growth by truncation and by two open files together.
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(site.path("q/f")).unwrap();
    file.write_all_at(&vec![1; 3 << 20], 0).unwrap();
    assert_eq!(errno(file.write_all_at(&vec![1; 2 << 20], 3 << 20)), quota_exceeded);
    assert_eq!(errno(file.set_len(5 << 20)), quota_exceeded);
    let mut other = File::create(site.path("q/g")).unwrap();
    assert_eq!(errno(other.write_all(&vec![2; 2 << 20])), quota_exceeded);
    drop((file, other));
    let used = site.mds().quota_get(project).unwrap();
    assert!(used.bytes <= 4 << 20, "{used:?}");
    // Inodes: the directory, two files and one more.
    fs::create_dir(site.path("q/d")).unwrap();
    assert_eq!(errno(File::create(site.path("q/h"))), quota_exceeded);
    assert_eq!(errno(fs::create_dir(site.path("q/e"))), quota_exceeded);
    // The directory and what is below it show the limits as the whole; elsewhere there is more.
    for name in ["q", "q/d", "q/f"] {
        let view = rustix::fs::statvfs(site.path(name)).unwrap();
        assert_eq!((view.f_blocks * view.f_bsize, view.f_files, view.f_ffree), (4 << 20, 4, 0), "{name}");
        assert!(view.f_bavail * view.f_bsize <= 1 << 20);
    }
    assert!(rustix::fs::statvfs(site.root()).unwrap().f_files > 4);
    fs::remove_file(site.path("q/g")).unwrap();
    fs::remove_file(site.path("q/f")).unwrap();
    assert_eq!(site.findings(), Vec::<String>::new());
}
