//! Goal: what is said of where data is safe is true, on a mounted file system with tiers of its own and on one with a linked
//! directory: a gate opens when everything is where it is promised and never before, a flush says what it could not do, and a
//! directory that was moved is accepted without a loss. Method: all the parts put together and mounted, requests handed to
//! the handler as the control socket does, files used through the mount and in the linked directory.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

mod site;

use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use fuzzing::Ending;
use onfs::control::{
    ConflictReport, DataState, EntryReport, ErrorCode, FileRef, GateReport, LinkState, MoveReport, Peer,
    Reason, Request, Response, RootsReport, StatusReport,
};
use site::{PATIENCE, Site, endless, root};

impl Site {
    fn top(&self) -> FileRef {
        self.file("")
    }
    fn gate(&self, names: &[&str], wait_ms: u64) -> GateReport {
        let places = names.iter().map(|name| self.file(name)).collect();
        match self.ask(Request::Gate { places, wait_ms }).unwrap() {
            Response::Gate(report) => report,
            other => panic!("{other:?}"),
        }
    }
    fn reasons(&self, name: &str) -> Vec<(String, Reason)> {
        let report = self.gate(&[name], 0);
        assert_eq!(report.open, report.findings.is_empty());
        let top = self.path("");
        let short = |path: &str| Path::new(path).strip_prefix(&top).unwrap().display().to_string();
        let mut found: Vec<_> = report.findings.iter().map(|f| (short(&f.path), f.reason)).collect();
        found.sort();
        found
    }
    fn list(&self, dir: &str) -> Vec<EntryReport> {
        let (mut entries, mut after) = (Vec::new(), 0);
        loop {
            match self.ask(Request::List { dir: self.file(dir), after }).unwrap() {
                Response::List(mut list) => {
                    entries.append(&mut list.entries);
                    let Some(next) = list.next else { return entries };
                    after = next;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    fn state(&self, name: &str) -> DataState {
        match self.ask(Request::States { files: vec![self.file(name)] }).unwrap() {
            Response::States(states) => states[0].state,
            other => panic!("{other:?}"),
        }
    }
    fn drain(&self, name: &str) -> MoveReport {
        match self.ask(Request::Drain { places: vec![self.file(name)] }).unwrap() {
            Response::Moved(report) => report,
            other => panic!("{other:?}"),
        }
    }
    fn status(&self) -> StatusReport {
        match self.ask(Request::Status {}).unwrap() {
            Response::Status(report) => *report,
            other => panic!("{other:?}"),
        }
    }
    fn conflicts(&self, name: &str) -> Vec<ConflictReport> {
        match self.ask(Request::Conflicts { place: self.file(name), after: 0 }).unwrap() {
            Response::Conflicts(list) => list,
            other => panic!("{other:?}"),
        }
    }
    fn link(&self, request: Request) -> RootsReport {
        match self.ask(request).unwrap() {
            Response::Link(report) => report,
            other => panic!("{other:?}"),
        }
    }
    fn theirs(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("theirs").join(name)
    }
    fn until(&self, what: impl Fn(&Site) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !what(self) {
            assert!(Instant::now() < end, "it did not come to that");
            thread::sleep(Duration::from_millis(20));
        }
    }
    /// A directory whose files stay in memory until somebody asks.
    fn unsafe_dir(&self, name: &str) {
        fs::create_dir_all(self.path(name)).unwrap();
        self.policy_set(&root(), name, &["write-behind=1h"]).unwrap();
    }
}

fn append(path: &Path, text: &str) {
    fs::File::options().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

#[test]
fn a_gate_opens_when_all_is_in_a_persistent_tier() {
    let Some(site) = Site::mounted() else { return };
    site.unsafe_dir("d/sub");
    assert!(site.gate(&["d"], 0).open);
    fs::write(site.path("d/sub/f"), "bytes").unwrap();
    fs::write(site.path("outside"), "bytes").unwrap();
    let only = vec![("d/sub/f".to_owned(), Reason::Memory)];
    assert_eq!(site.reasons("d"), only);
    assert_eq!(site.reasons("d/sub/f"), only);
    assert_eq!(site.state("d/sub/f"), DataState::Memory);
    // Looked at alone it does not become safe; flushed, it is.
    assert_eq!(site.gate(&["d"], 300).findings.len(), 1);
    site.ask(Request::Flush { files: vec![site.file("d/sub/f")], wait: true }).unwrap();
    assert_eq!((site.reasons("d"), site.state("d/sub/f")), (vec![], DataState::Safe));
    // Written behind by itself: a gate that waits sees it.
    fs::write(site.path("outside"), "more").unwrap();
    assert!(site.gate(&[""], 20_000).open);
    // A transient directory is promised nothing.
    site.unsafe_dir("t");
    site.policy_set(&root(), "t", &["transient=yes"]).unwrap();
    fs::write(site.path("t/f"), "bytes").unwrap();
    assert_eq!((site.reasons("t"), site.state("t/f")), (vec![], DataState::Transient));
    // What a program may still write to.
    let open = fs::File::create(site.path("d/open")).unwrap();
    assert_eq!(site.reasons("d"), [("d/open".to_owned(), Reason::OpenForWriting)]);
    drop(open);
    assert!(site.gate(&["d"], 0).open, "closed a moment ago, it counts as closed");
}

/// Goal: no file that was not safe when the gate began is missed, wherever it is moved meanwhile. Method: one unsafe file goes to
/// and fro between directories at the two ends of a tree, while gates look.
#[test]
fn a_file_that_moves_while_a_gate_looks_is_not_missed() {
    let Some(site) = Site::mounted() else { return };
    for dir in ["d/a", "d/m", "d/z"] {
        site.unsafe_dir(dir);
    }
    for n in 0..1500 {
        fs::write(site.path(&format!("d/m/{n}")), "").unwrap();
    }
    fs::write(site.path("d/a/f"), "bytes").unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(site.path("d/a/f"), site.path("d/z/f")).unwrap();
                fs::rename(site.path("d/z/f"), site.path("d/a/f")).unwrap();
            }
        });
        let ending = Ending(&stop);
        let looks = (0..50).map(|_| site.gate(&["d"], 0)).collect::<Vec<_>>();
        drop(ending);
        for look in looks {
            assert_eq!(
                look.findings.iter().map(|f| f.reason).collect::<Vec<_>>(),
                [Reason::Memory],
                "{look:?}"
            );
        }
    });
}

#[test]
fn large_directories_are_listed_in_parts_and_to_whom_may_list_them() {
    let Some(site) = Site::mounted() else { return };
    fs::create_dir_all(site.path("big/dir")).unwrap();
    for n in 0..2500 {
        fs::write(site.path(&format!("big/{n}")), if n % 2 == 0 { "x" } else { "" }).unwrap();
    }
    std::os::unix::fs::symlink("x", site.path("big/link")).unwrap();
    let entries = site.list("big");
    let mut names: Vec<&str> = entries.iter().map(|e| e.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!((entries.len(), names.len()), (2502, 2502));
    let kind = |name: &str| entries.iter().find(|e| e.name == name).unwrap().kind.clone();
    assert_eq!((kind("dir"), kind("link"), kind("7")), ("directory".into(), "symlink".into(), "file".into()));
    let other = Peer { uid: 1001, gid: 1001, privileged: false, ..root() };
    let ask = |request| site.ask_as(&other, request, &mut endless());
    assert!(ask(Request::List { dir: site.file("big"), after: 0 }).is_ok());
    fs::set_permissions(site.path("big"), fs::Permissions::from_mode(0o711)).unwrap();
    let refused = ask(Request::List { dir: site.file("big"), after: 0 }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotAllowed);
    // A gate that may not look everywhere does not open.
    let Response::Gate(report) = ask(Request::Gate { places: vec![site.top()], wait_ms: 0 }).unwrap() else {
        panic!("no gate")
    };
    assert!(!report.open && report.findings.iter().any(|f| f.reason == Reason::Unreadable), "{report:?}");
    assert!(site.ask(Request::Conflicts { place: site.top(), after: 0 }).is_err(), "nothing is linked");
}

#[test]
fn a_linked_mount_says_what_is_not_there_yet_and_drains_it() {
    let Some(site) = Site::linked() else { return };
    fs::create_dir_all(site.theirs("a")).unwrap();
    fs::write(site.theirs("a/stub"), "theirs").unwrap();
    assert_eq!(site.list("a")[0].state, DataState::Stub);
    assert!(site.gate(&[""], 0).open);
    fs::create_dir_all(site.path("job/deep")).unwrap();
    fs::write(site.path("job/deep/f"), "ours").unwrap();
    std::os::unix::fs::symlink("deep/f", site.path("job/link")).unwrap();
    let before = site.status().link.unwrap();
    assert_eq!(before.state, LinkState::Ok);
    let drained = site.drain("job");
    assert_eq!(drained.failed, []);
    assert_eq!(fs::read_to_string(site.theirs("job/deep/f")).unwrap(), "ours");
    assert_eq!(fs::read_link(site.theirs("job/link")).unwrap(), Path::new("deep/f"));
    // Whether a copy of it is kept here is another matter.
    let state = site.state("job/deep/f");
    assert!(matches!(state, DataState::Published | DataState::Stub), "{state:?}");
    assert_eq!(site.reasons("job"), []);
    // Of a transient directory the linked one gets nothing, and nothing is promised.
    fs::create_dir(site.path("scratch")).unwrap();
    site.policy_set(&root(), "scratch", &["transient=yes"]).unwrap();
    fs::write(site.path("scratch/f"), "ours alone").unwrap();
    assert_eq!(site.drain("").failed, []);
    assert_eq!((site.state("scratch/f"), site.reasons("")), (DataState::Transient, vec![]));
    assert!(!site.theirs("scratch/f").exists());
    // A removal counts, too, though nothing of it is left here.
    fs::remove_file(site.path("job/deep/f")).unwrap();
    fs::remove_dir(site.path("job/deep")).unwrap();
    if fs::symlink_metadata(site.theirs("job/deep")).is_ok() {
        assert!(site.reasons("job").iter().all(|(_, reason)| *reason == Reason::Pending));
    }
    assert_eq!(site.drain("").failed, []);
    assert!(!site.theirs("job/deep").exists() && site.gate(&[""], 0).open);
    let link = site.status().link.unwrap();
    assert!(link.applied > before.applied && link.pending == 0 && link.oldest_ms.is_none(), "{link:?}");
    let tier = site.status().tiers.into_iter().find(|t| t.linked).unwrap();
    assert!(tier.limit_bytes > 0 && tier.available_bytes <= tier.limit_bytes, "{tier:?}");
}

/// By its second name a file is below a path of which its record says nothing.
#[test]
fn a_second_name_is_below_its_directory() {
    let Some(site) = Site::linked() else { return };
    for dir in ["one", "two"] {
        fs::create_dir(site.path(dir)).unwrap();
    }
    fs::write(site.path("one/f"), "ours").unwrap();
    fs::hard_link(site.path("one/f"), site.path("two/g")).unwrap();
    assert_eq!(site.drain("").failed, []);
    append(&site.path("one/f"), "more");
    assert_eq!(site.drain("one").failed, []);
    assert_eq!(fs::read_to_string(site.theirs("one/f")).unwrap(), "oursmore");
    for dir in ["one", "two"] {
        assert_eq!(site.reasons(dir), []);
    }
}

#[test]
fn conflicts_are_found_below_a_path_and_taken_off_the_list() {
    let Some(site) = Site::linked() else { return };
    fs::create_dir(site.path("d")).unwrap();
    fs::write(site.path("d/f"), "agreed").unwrap();
    fs::create_dir(site.path("e")).unwrap();
    assert_eq!(site.drain("").failed, []);
    // In this order: an open looks there first.
    append(&site.path("d/f"), ", changed here");
    fs::write(site.theirs("d/f"), "changed there").unwrap();
    site.until(|site| fs::read_dir(site.path("d")).unwrap().count() == 2);
    let listed = site.conflicts("");
    let path = |name: &str| site.path(name).display().to_string();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].theirs.clone(), listed[0].ours.clone()),
        (path("d/f"), path("d/f.onfs-conflict-1"))
    );
    assert_eq!((site.conflicts("d"), site.conflicts("e")), (listed.clone(), vec![]));
    assert_eq!(site.conflicts("d/f"), listed);
    assert_eq!(site.drain("").failed, []);
    assert_eq!(site.reasons("d"), [("d/f.onfs-conflict-1".to_owned(), Reason::Conflict)]);
    // Moved meanwhile: it is listed where it is.
    fs::rename(site.path("d/f.onfs-conflict-1"), site.path("e/kept")).unwrap();
    assert_eq!(site.conflicts("e")[0].ours, path("e/kept"));
    let forget = |numbers| Request::ForgetConflicts { place: site.top(), numbers };
    assert_eq!(site.ask(forget(vec![1, 99])).unwrap_err().code, ErrorCode::NotFound);
    let other = Peer { uid: 1001, gid: 1001, privileged: false, ..root() };
    let refused = site.ask_as(&other, forget(vec![1]), &mut endless()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotAllowed);
    assert_eq!(site.conflicts("").len(), 1);
    site.ask(forget(vec![1])).unwrap();
    assert_eq!(site.conflicts(""), []);
    assert_eq!(site.drain("").failed, []);
    assert!(site.gate(&[""], 0).open);
}

/// The directory is replaced by a copy with the same times, as after a move to another disk. What was changed here meanwhile
/// goes there; what was changed in the copy is theirs; both is a conflict; nothing is lost.
#[test]
fn a_copy_of_the_directory_is_accepted_without_a_loss() {
    let Some(site) = Site::linked() else { return };
    fs::create_dir(site.theirs("d")).unwrap();
    for name in ["clean", "ours", "theirs", "both", "deleted", "renamed", "gone", "deleted-changed"] {
        let path = site.theirs("d").join(name);
        fs::write(&path, format!("agreed {name}")).unwrap();
        // Long ago, so that one look proves that it was not changed since.
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    assert_eq!(site.list("d").len(), 8);
    // Only what is here can be changed while theirs cannot be read.
    for name in ["clean", "gone", "ours", "both"] {
        site.until(|site| {
            fs::read(site.path("d").join(name)).unwrap();
            site.state(&format!("d/{name}")) == DataState::Published
        });
    }
    let copied = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    let (theirs, old) = (site.theirs("."), site.dir.path().join("old"));
    let theirs = theirs.parent().unwrap().join("theirs");
    fs::rename(&theirs, &old).unwrap();
    copied(&old, &theirs);
    fs::write(site.theirs("d/theirs"), "changed in the copy").unwrap();
    fs::write(site.theirs("d/both"), "changed in the copy").unwrap();
    fs::write(site.theirs("d/deleted-changed"), "changed in the copy").unwrap();
    fs::write(site.theirs("d/new"), "made in the copy").unwrap();
    fs::remove_file(site.theirs("d/gone")).unwrap();
    site.until(|site| site.link(Request::LinkShow {}).state == LinkState::Stranger);
    append(&site.path("d/ours"), ", changed here");
    append(&site.path("d/both"), ", changed here");
    fs::remove_file(site.path("d/deleted")).unwrap();
    fs::remove_file(site.path("d/deleted-changed")).unwrap();
    fs::rename(site.path("d/renamed"), site.path("d/new-name")).unwrap();
    // Nothing is written to a stranger, and a gate says so.
    assert!(!site.gate(&["d"], 0).open);
    assert!(!site.drain("d").failed.is_empty());
    assert_eq!(fs::read_to_string(site.theirs("d/ours")).unwrap(), "agreed ours");
    let shown = site.link(Request::LinkShow {});
    assert_eq!((shown.names, shown.names_there), (1, 1));
    let now = shown.now.unwrap();
    let accept = |number| Request::LinkAccept { device: now.device, number, empty_too: false };
    assert_eq!(site.ask(accept(now.number + 1)).unwrap_err().code, ErrorCode::Failed, "not the one shown");
    assert_eq!(site.link(accept(now.number)).state, LinkState::Ok);
    assert_eq!(site.ask(accept(now.number)).unwrap_err().code, ErrorCode::BadRequest);
    fs::read_dir(site.path("d")).unwrap().count();
    assert_eq!(site.drain("").failed, []);
    site.until(|site| {
        fs::read_dir(site.path("d")).unwrap().count();
        site.drain("").failed.is_empty() && site.status().link.unwrap().pending == 0
    });
    let read = |name: &str| fs::read_to_string(site.theirs("d").join(name)).ok();
    let agreed = |name: &str| Some(format!("agreed {name}"));
    let changed = || Some("changed in the copy".to_owned());
    assert_eq!((read("clean"), read("ours")), (agreed("clean"), Some("agreed ours, changed here".into())));
    assert_eq!((read("theirs"), read("both"), read("deleted-changed")), (changed(), changed(), changed()));
    assert_eq!(read("both.onfs-conflict-1"), Some("agreed both, changed here".into()));
    assert_eq!((read("deleted"), read("gone"), read("renamed")), (None, None, None));
    assert_eq!((read("new-name"), read("new")), (agreed("renamed"), Some("made in the copy".into())));
    // The same here, and both conflicts are listed.
    for entry in fs::read_dir(site.theirs("d")).unwrap() {
        let name = entry.unwrap().file_name();
        let ours = fs::read(site.path("d").join(&name)).unwrap();
        assert_eq!(ours, fs::read(site.theirs("d").join(&name)).unwrap(), "{name:?}");
    }
    assert_eq!(
        fs::read_dir(site.path("d")).unwrap().count(),
        fs::read_dir(site.theirs("d")).unwrap().count()
    );
    // A file that is looked at before its directory is listed is on it twice: for its bytes, and for its name.
    let mut kept: Vec<String> = site.conflicts("").into_iter().map(|conflict| conflict.ours).collect();
    kept.sort();
    kept.dedup();
    let ours = site.path("d/both.onfs-conflict-1").display().to_string();
    assert_eq!(kept, [String::new(), ours], "{:#?}", site.conflicts(""));
}

#[test]
fn an_empty_directory_is_accepted_only_if_somebody_says_so() {
    let Some(site) = Site::linked() else { return };
    fs::write(site.theirs("f"), "theirs").unwrap();
    assert_eq!(site.list("").len(), 1);
    // Known as not empty from now on.
    site.until(|site| !site.link(Request::LinkShow {}).known.unwrap().empty);
    fs::rename(site.dir.path().join("theirs"), site.dir.path().join("old")).unwrap();
    fs::create_dir(site.dir.path().join("theirs")).unwrap();
    site.until(|site| site.link(Request::LinkShow {}).state == LinkState::Unmounted);
    let now = site.link(Request::LinkShow {}).now.unwrap();
    let accept = |empty_too| Request::LinkAccept { device: now.device, number: now.number, empty_too };
    assert_eq!(site.ask(accept(false)).unwrap_err().code, ErrorCode::BadRequest);
    assert_eq!(fs::read_dir(site.path("")).unwrap().count(), 1, "it is served");
    assert_eq!(site.link(accept(true)).state, LinkState::Ok);
    site.until(|site| fs::read_dir(site.path("")).unwrap().count() == 0);
}

/// The command takes it for the whole mount.
#[test]
fn the_root_is_number_one() {
    let Some(site) = Site::mounted() else { return };
    assert_eq!(fs::metadata(site.path("")).unwrap().ino(), types::Ino::ROOT.get());
    assert_eq!(site.gate(&[""], 0).looked_at, 1);
}
