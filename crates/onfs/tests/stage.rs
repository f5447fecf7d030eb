//! Goal: what a stage says is there is there, byte for byte and attribute for attribute, and whatever ends it, the same
//! command goes on. Method: the program on trees in directories of the machine, compared afterwards; kills at random
//! moments; sources that change meanwhile.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::Write,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use fuzzing::Ending;
use onfs::stage::StageReport;
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn stage(words: &[&str], from: &Path, to: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onfs"));
    command.args(words).args(["--any-fs", "--json"]).arg(from).arg(to).stdin(Stdio::null());
    command
}

fn done(output: &Output) -> (i32, StageReport) {
    let code = output.status.code().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    (code, report.unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr))))
}

fn run(words: &[&str], from: &Path, to: &Path) -> (i32, StageReport) {
    done(&stage(words, from, to).output().unwrap())
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

fn content(length: usize, mut seed: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend(random(&mut seed).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Everything that `cp -a` keeps, by path; names of one file have the same number.
#[derive(PartialEq, Debug)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    mtime: (i64, i64),
    target: Option<PathBuf>,
    content: Option<u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    first_name: PathBuf,
}

fn look(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut entries: Vec<PathBuf> =
        walkdir::WalkDir::new(top).into_iter().map(|entry| entry.unwrap().into_path()).collect();
    entries.sort();
    for path in entries {
        let below = path.strip_prefix(top).unwrap().to_owned();
        let meta = fs::symlink_metadata(&path).unwrap();
        let first = names.entry(meta.ino()).or_insert(below.clone()).clone();
        let is_dir = meta.is_dir();
        let entry = Seen {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            size: if is_dir { 0 } else { meta.size() },
            mtime: (meta.mtime(), meta.mtime_nsec()),
            target: fs::read_link(&path).ok(),
            content: meta.is_file().then(|| xxhash_rust::xxh3::xxh3_64(&fs::read(&path).unwrap())),
            xattrs: if meta.is_symlink() { BTreeMap::new() } else { xattrs(&path) },
            first_name: first,
        };
        seen.insert(below, entry);
    }
    seen
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|b| *b == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value[..length].to_vec()
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// A tree with something of everything, by a seed.
fn grow(top: &Path, mut seed: u64, files: u64) {
    fs::create_dir_all(top.join("empty")).unwrap();
    let mut dirs = vec![top.to_owned()];
    for n in 0..files {
        let dir = dirs[random(&mut seed) as usize % dirs.len()].clone();
        let path = dir.join(format!("n{n} ä\n"));
        match random(&mut seed) % 8 {
            0 => {
                fs::create_dir(&path).unwrap();
                dirs.push(path);
                continue;
            }
            1 => symlink(format!("to/{n}"), &path).unwrap(),
            2 => rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
                .unwrap(),
            3 => {
                let file = File::create(&path).unwrap();
                file.set_len(random(&mut seed) % (80 * MIB as u64)).unwrap();
                file.write_all_at(b"in a hole", random(&mut seed) % (40 * MIB as u64)).unwrap();
            }
            4 => {
                fs::write(dir.join("first"), content(5000, n)).unwrap();
                let _ = fs::hard_link(dir.join("first"), &path);
            }
            _ => {
                let length = random(&mut seed) as usize % (200 << 10);
                fs::write(&path, content(length, random(&mut seed))).unwrap();
                let _ =
                    rustix::fs::setxattr(&path, "user.n", &n.to_le_bytes(), rustix::fs::XattrFlags::empty());
            }
        }
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if !kind.is_symlink() && !kind.is_fifo() {
            let mode = 0o600 | (random(&mut seed) as u32 & 0o077);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let time = std::time::UNIX_EPOCH + Duration::new(random(&mut seed) % (1 << 31), 123_456_789);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        }
    }
    // Its content changed its time.
    for dir in dirs {
        let time = std::time::UNIX_EPOCH + Duration::new(random(&mut seed) % (1 << 31), 5);
        File::open(&dir).unwrap().set_modified(time).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o750)).unwrap();
    }
}

fn on_the_way(dir: &Path) -> Vec<PathBuf> {
    let entries = walkdir::WalkDir::new(dir).into_iter().map(|entry| entry.unwrap().into_path());
    entries.filter(|p| p.file_name().is_some_and(|name| name.as_bytes().starts_with(b".onfs-"))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_tree_is_copied_with_all_that_it_has(seed in 1u64.., change in 1u64.., out in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        grow(&from, seed, 40);
        let words: &[&str] = if out { &["stage-out", "-T"] } else { &["stage-in", "-T", "--verify"] };
        let (code, report) = run(words, &from, &to);
        prop_assert_eq!(code, 0, "{:?}", report);
        prop_assert!(report.complete && report.verified && report.failed.is_empty());
        prop_assert!(!out || report.durable);
        prop_assert_eq!(look(&from), look(&to));
        prop_assert_eq!(on_the_way(&to), Vec::<PathBuf>::new());
        // Again: nothing is copied. Changed: only that.
        let (code, report) = run(words, &from, &to);
        prop_assert_eq!((code, report.files_copied, report.others, report.links), (0, 0, 0, 0));
        let more = from.join("more");
        grow(&more, change, 12);
        let (code, _) = run(words, &from, &to);
        prop_assert_eq!(code, 0);
        prop_assert_eq!(look(&from), look(&to));
    }
}

#[test]
fn killed_at_any_moment_it_goes_on_and_ends_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    grow(&from, 77, 60);
    fs::write(from.join("large"), content(150 * MIB, 3)).unwrap();
    let wanted = look(&from);
    let mut seed = std::env::var("STAGE_SEED").map_or(0x5eed, |seed| seed.parse().unwrap());
    let (mut kills, mut resumed) = (0, 0);
    let mut ended = false;
    // One that is killed when all was done, and nobody was told, is begun anew: without `-T` into a directory in the copy.
    while kills < 25 && !ended {
        let mut child = stage(&["stage-out", "-T"], &from, &to)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_millis(5 + random(&mut seed) % (40 * (kills + 1)));
        while Instant::now() < end && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        // SIGKILL; mostly. A clean interruption must do no less.
        if random(&mut seed).is_multiple_of(4) {
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        } else {
            let _ = child.kill();
        }
        let output = child.wait_with_output().unwrap();
        if let Ok(report) = serde_json::from_slice::<StageReport>(&output.stdout) {
            resumed += report.bytes_resumed;
            ended = report.complete;
            assert_eq!(output.status.success(), ended, "{report:?}");
        }
        kills += 1;
        // What has its name is whole.
        for (below, there) in if to.exists() { look(&to) } else { BTreeMap::new() } {
            let path = to.join(&below);
            let way = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".onfs-"));
            if path.is_file() && !way && !path.is_symlink() {
                assert_eq!(there.content, wanted[&below].content, "{below:?} after {kills} kills");
                assert_eq!(there.mtime, wanted[&below].mtime);
            }
        }
    }
    let (code, report) =
        if ended { (0, StageReport::default()) } else { run(&["stage-out", "-T"], &from, &to) };
    assert_eq!(code, 0, "{report:?}");
    println!("{kills} kills, {} bytes resumed", resumed + report.bytes_resumed);
    assert_eq!(look(&to), wanted);
    assert_eq!(on_the_way(dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_piece_that_was_damaged_since_is_copied_again() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("large"), content(200 * MIB, 3)).unwrap();
    // Killed when at least two pieces are recorded.
    let mut child = stage(&["stage-out"], &from, &to).stdout(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let journal = || on_the_way(dir.path()).into_iter().find(|p| p.extension().is_some());
    while journal().is_none_or(|p| fs::metadata(p).map_or(0, |m| m.len()) < 300) {
        assert!(Instant::now() < end && child.try_wait().unwrap().is_none(), "it was not caught");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let way = on_the_way(&to).into_iter().find(|p| p.extension().is_none()).unwrap();
    // Each piece loses a byte: none of them may be taken.
    let file = File::options().read(true).write(true).open(&way).unwrap();
    for piece in 0..7 {
        let mut byte = [0];
        file.read_exact_at(&mut byte, piece * (32 << 20) + 4711).unwrap();
        file.write_all_at(&[byte[0] ^ 1], piece * (32 << 20) + 4711).unwrap();
    }
    let (code, report) = run(&["stage-out", "--no-verify"], &from, &to);
    assert_eq!((code, report.bytes_resumed), (0, 0));
    assert_eq!(fs::read(to.join("large")).unwrap(), content(200 * MIB, 3));
}

#[test]
fn a_source_that_changes_is_not_called_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("quiet"), b"quiet").unwrap();
    for (name, length) in [("large", 90 * MIB), ("small", 8 * MIB)] {
        fs::write(from.join(name), content(length, 5)).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = OpenOptions::new().append(true).open(from.join(name));
                let mut file = file.unwrap();
                while !stop.load(Ordering::SeqCst) {
                    file.write_all(b"x").unwrap();
                }
            });
            let ending = Ending(&stop);
            let until = Instant::now() + Duration::from_secs(60);
            let (code, report) = loop {
                let (code, report) = run(&["stage-out", "-T"], &from, &to);
                if code != 0 || Instant::now() > until {
                    break (code, report);
                }
                // Nothing was appended while it copied: who appends had no processor.
                fs::remove_file(to.join(name)).unwrap();
            };
            drop(ending);
            assert_eq!((code, report.complete, report.failed_count), (6, false, 1), "{report:?}");
            assert!(report.failed[0].path.ends_with(name) && report.failed[0].message.contains("changes"));
        });
        assert!(!to.join(name).exists(), "half of it has its name");
        assert_eq!(fs::read(to.join("quiet")).unwrap(), b"quiet");
        let (code, _) = run(&["stage-out", "-T"], &from, &to);
        assert_eq!(code, 0);
        assert_eq!(look(&from), look(&to));
    }
}

#[test]
fn content_is_compared_when_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), dir.path().join("b"));
    fs::write(&from, content(9000, 1)).unwrap();
    assert_eq!(run(&["stage-out"], &from, &to).0, 0);
    let time = fs::metadata(&to).unwrap().modified().unwrap();
    let file = File::options().write(true).open(&to).unwrap();
    file.write_all_at(b"!", 8000).unwrap();
    file.set_modified(time).unwrap();
    assert_eq!(run(&["stage-out"], &from, &to).1.files_skipped, 1, "size and time agree");
    let (code, report) = run(&["stage-out", "--checksum"], &from, &to);
    assert_eq!((code, report.files_copied), (0, 1));
    assert_eq!(run(&["stage-out", "--checksum"], &from, &to).1.files_skipped, 1);
    assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
}

#[test]
fn what_goes_where_is_what_cp_does() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("from/sub")).unwrap();
    fs::write(at("from/sub/f"), b"f").unwrap();
    fs::create_dir(at("there")).unwrap();
    assert_eq!(run(&["stage-out"], &at("from"), &at("there")).0, 0);
    assert!(at("there/from/sub/f").is_file());
    assert_eq!(run(&["stage-out"], &at("from/."), &at("there")).0, 0);
    assert!(at("there/sub/f").is_file());
    assert_eq!(run(&["stage-out"], &at("from"), &at("new")).0, 0);
    assert!(at("new/sub/f").is_file());
    // A manifest makes the directories above a destination.
    let line = format!("'{}' {}\n", at("from/sub/f").display(), at("deep/er/g").display());
    fs::write(at("manifest"), line).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onfs"));
    command.args(["stage-out", "--any-fs", "--manifest"]).arg(at("manifest"));
    assert!(command.output().unwrap().status.success());
    assert!(at("deep/er/g").is_file());
    // Wrong ones change nothing.
    let refused = |words: &[&str], from: &Path, to: &Path| {
        stage(words, from, to).output().unwrap().status.code().unwrap()
    };
    assert_eq!(refused(&["stage-out"], &at("from"), &at("from/sub")), 2, "into itself");
    assert_eq!(refused(&["stage-out"], &at("none"), &at("there")), 1);
    assert_eq!(refused(&["stage-out", "-T"], &at("from"), &at("no/such")), 2);
    let plain =
        Command::new(env!("CARGO_BIN_EXE_onfs")).arg("stage-in").arg(at("from")).arg(at("x")).output();
    assert_eq!(plain.unwrap().status.code(), Some(3), "what is not mounted is not filled");
    assert!(!at("x").exists());
    assert_eq!(run(&["stage-out", "-n"], &at("from"), &at("dry")).1.files_copied, 1);
    assert!(!at("dry").exists());
}

#[test]
fn a_deadline_ends_it_and_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(&from).unwrap();
    fs::write(from.join("large"), content(100 * MIB, 9)).unwrap();
    let (code, report) = run(&["stage-out", "-T", "--deadline", "1ms"], &from, &to);
    // Looked at each 0.1 s: a fast machine may be done by then.
    assert!(code == 5 && !report.complete || code == 0 && report.complete, "{code} {report:?}");
    assert_eq!(run(&["stage-out", "-T"], &from, &to).0, 0);
    assert_eq!(look(&from), look(&to));
}
