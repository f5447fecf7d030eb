//! Goal: what commands do with files holds on a mounted file system, with many files, and for users who may not do everything.
//! Method: all the parts put together and mounted, requests handed to the handler as the control socket does.

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
    thread,
    time::{Duration, Instant},
};

use onfs::control::{ControlError, ErrorCode, FileRef, MoveReport, Peer, Request, Response};
use site::{PATIENCE, Site, endless, root};
use types::TierId;

fn moved(answer: Result<Response, ControlError>) -> MoveReport {
    match answer.unwrap() {
        Response::Moved(report) => report,
        other => panic!("{other:?}"),
    }
}

impl Site {
    fn until(&self, what: impl Fn(&Site) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !what(self) {
            assert!(Instant::now() < end, "it did not come to that");
            thread::sleep(Duration::from_millis(5));
        }
    }
    fn queued(&self) -> u64 {
        match self.ask(Request::Status {}).unwrap() {
            Response::Status(status) => status.queued_files,
            other => panic!("{other:?}"),
        }
    }
    fn is_in(&self, name: &str, tier: TierId) -> bool {
        self.report(name).residency.iter().any(|r| r.tier == tier)
    }
    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[test]
fn regression_status_counts_the_files_of_a_tier_or_says_that_it_cannot() {
    let Some(mut site) = Site::mounted() else { return };
    let counts = |site: &Site| match site.ask(Request::Status {}).unwrap() {
        Response::Status(status) => TierId::ALL
            .map(|tier| status.tiers.iter().find(|t| t.name == tier).map_or(Some(0), |t| t.objects)),
        other => panic!("{other:?}"),
    };
    // Nothing but the test moves them.
    fs::create_dir(site.path("d")).unwrap();
    site.policy_set(&root(), "d", &["write-behind=1h"]).unwrap();
    for name in ["d/a", "d/b", "d/c"] {
        fs::write(site.path(name), [7; 1000]).unwrap();
    }
    let (a, b) = (vec![site.file("d/a")], vec![site.file("d/b")]);
    moved(site.ask(Request::Pin { files: a, to: Some(TierId::Memory) }));
    let last = TierId::Nearline;
    moved(site.ask(Request::Migrate { files: b, to: last, wait: true }));
    // A pinned file counts; of what is in the last tier nothing is remembered.
    assert_eq!(counts(&site), [Some(2), Some(0), None]);
    assert!(site.is_in("d/b", last));
    site.unmount();
    site.mount();
    let files = |tier| ["d/a", "d/b", "d/c"].iter().filter(|name| site.is_in(name, tier)).count() as u64;
    assert_eq!(counts(&site), [Some(files(TierId::Memory)), Some(files(TierId::Ssd)), None]);
}

#[test]
fn regression_commands_that_do_not_wait_queue_every_file() {
    let Some(site) = Site::mounted() else { return };
    let names: Vec<String> = (0..1100).map(|n| format!("f{n}")).collect();
    let files: Vec<FileRef> = names
        .iter()
        .map(|name| {
            fs::write(site.path(name), [7; 1000]).unwrap();
            site.file(name)
        })
        .collect();
    let done = |request| moved(site.ask(request));
    for (to, back) in [(TierId::Nearline, false), (TierId::Memory, true)] {
        for batch in files.chunks(Request::FILES_MAX) {
            let files = batch.to_vec();
            let report = match back {
                false => done(Request::Migrate { files, to, wait: false }),
                true => done(Request::Prefetch { files, wait: false }),
            };
            assert_eq!(report, MoveReport { files_queued: batch.len() as u64, ..MoveReport::default() });
        }
        site.until(|site| site.queued() == 0);
        let left: Vec<&String> = names.iter().filter(|name| !site.is_in(name, to)).collect();
        assert_eq!(left, Vec::<&String>::new(), "not in {to}");
    }
}

#[test]
fn regression_a_flush_without_wait_queues_and_makes_safe() {
    let Some(site) = Site::mounted() else { return };
    fs::create_dir(site.path("d")).unwrap();
    fs::create_dir(site.path("t")).unwrap();
    // Nothing but the flush writes them down within the time of the test.
    site.policy_set(&root(), "d", &["write-behind=1h"]).unwrap();
    site.policy_set(&root(), "t", &["transient=yes"]).unwrap();
    for name in ["d/a", "d/b", "d/c", "t/x"] {
        fs::write(site.path(name), vec![1; 100_000]).unwrap();
    }
    let flush = |names: &[&str]| {
        let files = names.iter().map(|name| site.file(name)).collect();
        moved(site.ask(Request::Flush { files, wait: false }))
    };
    let report = flush(&["d/a", "t/x"]);
    assert_eq!((report.files_queued, report.files_done, report.at_risk_bytes), (1, 1, 100_000));
    site.wait_until_safe("d/a");
    assert_eq!(site.report("d/b").at_risk_bytes, 100_000);
    let all = moved(site.ask(Request::FlushAll { wait: false }));
    assert_eq!((all.files_queued, all.files_done), (2, 0));
    for name in ["d/b", "d/c"] {
        site.wait_until_safe(name);
    }
    assert_eq!(site.report("t/x").at_risk_bytes, 100_000);
    let nothing = flush(&["d/a"]);
    assert_eq!((nothing.files_queued, nothing.files_done), (0, 1));
}

/// Goal: a flush tells what is only in memory by promise from what is in danger (S-90, S-91). Method: a transient file and one that is not.
#[test]
fn regression_transient_bytes_are_no_failure_of_a_flush() {
    let Some(site) = Site::mounted() else { return };
    fs::create_dir(site.path("t")).unwrap();
    site.policy_set(&root(), "t", &["transient=yes"]).unwrap();
    for name in ["a", "t/x"] {
        fs::write(site.path(name), vec![1; 100_000]).unwrap();
    }
    let files = vec![site.file("a"), site.file("t/x")];
    for request in [Request::Flush { files, wait: true }, Request::FlushAll { wait: true }] {
        let report = moved(site.ask(request));
        assert_eq!((report.at_risk_bytes, report.transient_bytes), (100_000, 100_000));
    }
}

#[test]
fn a_user_commands_the_files_that_he_may_use() {
    let Some(site) = Site::mounted() else { return };
    fs::create_dir(site.path("open")).unwrap();
    fs::write(site.path("open/f"), [1; 1000]).unwrap();
    let owner = fs::metadata(site.path("open/f")).unwrap().uid();
    let user = Peer { uid: owner + 1, gid: 4_000_000, privileged: false, ..root() };
    site.mode("", 0o755);
    site.mode("open", 0o755);
    let files = || vec![site.file("open/f")];
    let requests = || {
        [
            Request::Prefetch { files: files(), wait: true },
            Request::Flush { files: files(), wait: true },
            Request::Migrate { files: files(), to: TierId::Memory, wait: true },
            Request::Pin { files: files(), to: None },
            Request::Unpin { files: files() },
        ]
    };
    // Which of them a file of this mode lets the user do.
    for (mode, may) in [
        (0o600, [false; 5]),
        (0o604, [true, false, false, false, false]),
        (0o602, [false, true, true, true, true]),
        (0o606, [true; 5]),
    ] {
        site.mode("open/f", mode);
        for (request, may) in requests().into_iter().zip(may) {
            let name = request.name();
            let report = moved(site.ask_as(&user, request, &mut endless()));
            let refused: Vec<i32> = report.failed.iter().map(|f| f.errno).collect();
            assert_eq!(refused.is_empty(), may, "{name} of a file of mode {mode:o}: {refused:?}");
            assert!(may || refused == [13], "{refused:?}");
        }
    }
}

#[test]
fn regression_nobody_hears_of_files_that_he_cannot_come_to() {
    let Some(site) = Site::mounted() else { return };
    fs::create_dir_all(site.path("closed/deep")).unwrap();
    fs::write(site.path("closed/deep/f"), [1; 1000]).unwrap();
    fs::write(site.path("closed/deep/linked"), [1; 1000]).unwrap();
    fs::create_dir(site.path("open")).unwrap();
    fs::write(site.path("open/f"), [1; 1000]).unwrap();
    for (name, mode) in [("", 0o755), ("open", 0o755), ("closed", 0o700), ("closed/deep", 0o755)] {
        site.mode(name, mode);
    }
    for name in ["closed/deep/f", "closed/deep/linked", "open/f"] {
        site.mode(name, 0o666);
    }
    site.quota_set("closed", 1 << 20, 0);
    site.quota_set("open", 1 << 20, 0);
    let owner = fs::metadata(site.path("open/f")).unwrap().uid();
    let user = Peer { uid: owner + 1, gid: 4_000_000, privileged: false, ..root() };
    let ask = |request| site.ask_as(&user, request, &mut endless());
    let refused = |request| {
        let error = ask(request).unwrap_err();
        assert_eq!((error.code, error.errno), (ErrorCode::NotAllowed, Some(13)), "{error}");
    };
    // What he could not look at by a path, he cannot by a number.
    let hidden = || site.file("closed/deep/f");
    refused(Request::File { file: hidden() });
    refused(Request::File { file: site.file("closed/deep") });
    refused(Request::PolicyShow { dir: site.file("closed/deep") });
    refused(Request::QuotaShow { dir: site.file("closed/deep") });
    let report = moved(ask(Request::Prefetch { files: vec![hidden()], wait: false }));
    assert_eq!((report.files_queued, report.failed[0].errno), (0, 13));
    // The directory itself he sees in the one above it, and the file in his own directory.
    ask(Request::File { file: site.file("closed") }).unwrap();
    site.mode("open/f", 0o600);
    ask(Request::File { file: site.file("open/f") }).unwrap();
    let Response::Quotas(listed) = ask(Request::QuotaList {}).unwrap() else { panic!("no list") };
    assert_eq!(listed.len(), 2);
    site.mode("", 0o711);
    let group = Peer { gid: fs::metadata(site.path("closed")).unwrap().gid(), ..user.clone() };
    site.mode("closed", 0o710);
    site.ask_as(&group, Request::File { file: hidden() }, &mut endless()).unwrap();
    site.mode("closed", 0o700);
    // An owner knows his file. Another name of a file may be within reach: then its own bits decide.
    std::os::unix::fs::chown(site.path("closed/deep/f"), Some(user.uid), None).unwrap();
    ask(Request::File { file: hidden() }).unwrap();
    let linked = site.file("closed/deep/linked");
    refused(Request::File { file: linked.clone() });
    fs::hard_link(site.path("closed/deep/linked"), site.path("closed/deep/again")).unwrap();
    ask(Request::File { file: linked }).unwrap();
    site.mode("", 0o700);
    refused(Request::File { file: site.file("open/f") });
    let Response::Quotas(listed) = ask(Request::QuotaList {}).unwrap() else { panic!("no list") };
    assert_eq!(listed, []);
    site.ask(Request::File { file: site.file("open/f") }).unwrap();
}
