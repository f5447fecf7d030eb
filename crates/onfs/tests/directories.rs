//! Goal: what commands say about directories (policies, quotas) holds on a mounted file system, over a remount, and a check
//! finds nothing afterwards. Method: all the parts put together and mounted, requests handed to the handler as the control
//! socket does, files used through the mount.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

mod site;

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use onfs::{
    control::{ErrorCode, Peer, Request, Response},
    policy::{Mode, WriteBehind},
};
use site::{PATIENCE, Sink, Site, root};

const EDQUOT: i32 = 122;

#[test]
fn quotas_are_listed_by_path_count_what_was_there_and_end() {
    let Some(mut site) = Site::mounted() else { return };
    fs::create_dir_all(site.path("home/ann/deep")).unwrap();
    fs::create_dir_all(site.path("home/bob")).unwrap();
    fs::write(site.path("home/ann/deep/f"), vec![1; 1000]).unwrap();
    fs::write(site.path("home/ann/g"), vec![1; 500]).unwrap();
    let ann = site.quota_set("home/ann", 1 << 20, 10);
    assert_eq!((ann.bytes_used, ann.inodes_used, ann.bytes_limit, ann.inodes_limit), (1500, 4, 1 << 20, 10));
    // Below what is used: that stays, and stops growth. A second directory has its own; one inside another, too.
    let bob = site.quota_set("home/bob", 100, 0);
    assert_ne!(ann.project, bob.project);
    let deep = site.quota_set("home/ann/deep", 10, 0);
    assert_eq!((deep.bytes_used, deep.inodes_used), (1000, 2));
    let refused = fs::write(site.path("home/ann/deep/h"), vec![1; 100]).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(EDQUOT));
    fs::remove_file(site.path("home/ann/deep/h")).unwrap();
    fs::rename(site.path("home/bob"), site.path("home/bert")).unwrap();
    let paths = |site: &Site| site.quotas().into_iter().map(|q| q.path).collect::<Vec<_>>();
    let base = site.path("");
    let path = |name: &str| base.join(name).display().to_string();
    let all = [path("home/ann"), path("home/ann/deep"), path("home/bert")];
    assert_eq!(paths(&site), all);
    // What a directory without its own shows is the one above.
    fs::create_dir(site.path("home/ann/other")).unwrap();
    let Response::Quota(shown) = site.ask(Request::QuotaShow { dir: site.file("home/ann/other") }).unwrap()
    else {
        panic!("no quota")
    };
    assert_eq!((shown.path, shown.project, shown.inodes_limit), (path("home/ann"), ann.project, 10));
    let below = site.ask(Request::QuotaRemove { dir: site.file("home/ann/other") }).unwrap_err();
    assert_eq!(below.code, ErrorCode::BadRequest);
    assert_eq!(
        site.ask(Request::QuotaRemove { dir: site.file("home") }).unwrap_err().code,
        ErrorCode::NotFound
    );
    let view = rustix::fs::statvfs(site.path("home/ann")).unwrap();
    assert_eq!((view.f_blocks * view.f_bsize, view.f_files), (1 << 20, 10));
    site.unmount();
    site.mount();
    assert_eq!(paths(&site), all);
    // Removed: the one inside counts for the one around it again. A directory that is removed takes its own along.
    site.ask(Request::QuotaRemove { dir: site.file("home/ann/deep") }).unwrap();
    fs::remove_dir(site.path("home/bert")).unwrap();
    let end = Instant::now() + PATIENCE;
    while site.quotas().len() > 1 {
        assert!(Instant::now() < end, "{:?}", site.quotas());
        thread::sleep(Duration::from_millis(5));
    }
    let left = site.quotas();
    assert_eq!((left[0].path.clone(), left[0].bytes_used, left[0].inodes_used), (path("home/ann"), 1500, 5));
    site.ask(Request::QuotaRemove { dir: site.file("home/ann") }).unwrap();
    assert_eq!(site.quotas(), []);
    fs::write(site.path("home/ann/deep/h"), vec![1; 2 << 20]).unwrap();
    assert_eq!(site.findings(), Vec::<String>::new());
}

#[test]
fn quotas_set_at_once_are_different_ones() {
    let Some(mut site) = Site::mounted() else { return };
    for n in 0..6 {
        fs::create_dir(site.path(&format!("d{n}"))).unwrap();
        fs::write(site.path(&format!("d{n}/f")), b"x").unwrap();
    }
    let together = Barrier::new(6);
    thread::scope(|scope| {
        for n in 0..6 {
            let (site, together) = (&site, &together);
            scope.spawn(move || {
                together.wait();
                site.quota_set(&format!("d{n}"), 1000 + n, 0);
            });
        }
    });
    let list = site.quotas();
    let mut projects: Vec<u32> = list.iter().map(|q| q.project).collect();
    projects.sort_unstable();
    projects.dedup();
    assert_eq!(projects.len(), 6);
    for (n, quota) in list.iter().enumerate() {
        assert_eq!((quota.bytes_limit, quota.inodes_used), (1000 + n as u64, 2), "{quota:?}");
    }
    assert_eq!(site.findings(), Vec::<String>::new());
}

#[test]
fn a_quota_that_was_cut_short_is_finished_by_the_next_try() {
    let Some(mut site) = Site::mounted() else { return };
    for n in 0..5 {
        fs::create_dir_all(site.path(&format!("d/{n}"))).unwrap();
        fs::write(site.path(&format!("d/{n}/f")), [0; 10]).unwrap();
    }
    let set = |most| {
        let request = Request::QuotaSet { dir: site.file("d"), bytes: Some(100), inodes: None };
        site.ask_as(&root(), request, &mut Sink { reports: 0, most })
    };
    assert_eq!(set(2).unwrap_err().code, ErrorCode::TimedOut);
    let Response::Quota(whole) = set(usize::MAX).unwrap() else { panic!("no quota") };
    assert_eq!((whole.bytes_used, whole.inodes_used), (50, 11));
    // The same for the way back.
    let remove = |most| {
        let request = Request::QuotaRemove { dir: site.file("d") };
        site.ask_as(&root(), request, &mut Sink { reports: 0, most })
    };
    assert_eq!(remove(2).unwrap_err().code, ErrorCode::TimedOut);
    assert_eq!(remove(usize::MAX).unwrap(), Response::Done);
    assert_eq!(site.quotas(), []);
    assert_eq!(site.findings(), Vec::<String>::new());
}

#[test]
fn owners_set_policies_and_files_show_what_holds() {
    let Some(mut site) = Site::mounted() else { return };
    fs::create_dir_all(site.path("t/below")).unwrap();
    fs::set_permissions(site.path("t"), fs::Permissions::from_mode(0o777)).unwrap();
    let uid = fs::metadata(site.path("t")).unwrap().uid();
    let stranger = Peer { uid: uid + 1, privileged: false, ..root() };
    let owner = Peer { uid, privileged: false, ..root() };
    assert!(site.policy_set(&stranger, "t", &["transient=yes"]).is_err());
    let words = ["transient=yes", "promote=on-request", "write-behind=never"];
    let set = site.policy_set(&owner, "t", &words).unwrap();
    assert_eq!((set.own.mode, set.transient), (Some(Mode::Transient), true));
    fs::write(site.path("t/below/f"), vec![3; 100_000]).unwrap();
    fs::write(site.path("f"), vec![3; 100_000]).unwrap();
    let shown = site.report("t/below/f").policy;
    assert_eq!((shown.own, shown.transient), (onfs::policy::DirPolicy::default(), true));
    assert_eq!((shown.promote.name(), shown.write_behind), ("on-request", WriteBehind::Never));
    assert!(!site.report("f").policy.transient);
    // The other file was due later.
    site.wait_until_safe("f");
    assert_eq!(site.report("t/below/f").at_risk_bytes, 100_000);
    // The policy goes; what is opened afterwards is written behind again.
    site.policy_set(&owner, "t", &["mode=inherit", "write-behind=inherit"]).unwrap();
    drop(fs::File::open(site.path("t/below/f")).unwrap());
    site.wait_until_safe("t/below/f");
    site.unmount();
    site.mount();
    assert_eq!(site.report("t/below/f").policy.promote.name(), "on-request");
    assert_eq!(site.findings(), Vec::<String>::new());
}
