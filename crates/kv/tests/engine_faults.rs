//! Goal: when a call of the default engine to its files fails, what was acknowledged before is there afterwards, what is
//! shown is never wrong, and the store opens again once the device is well.
//! Method: fail the n-th call, for every n until none fails. A child process runs a fixed script on a store while
//! `support/failing_calls.c`, loaded before the C library, counts the calls on the engine's files and fails one, or all
//! from one on. Commit n writes its number and a few keys, so a state tells which prefix of the commits it is. Then the
//! parent opens the store without faults. All calls of the engine go through the C library but one, the rename that puts
//! the name of a manifest in place (seen with strace); failing, it would leave what a failing sync before it leaves.
//!
//! `FAULTS=all` tries every n with every kind of fault; otherwise a sample.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::{
    collections::BTreeMap,
    io::Write,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use kv::{MetaStore, MetaStoreOptions, OpenError, SystemDisk, WriteSet, lsm};
use namespace::txn::KvError;

type State = BTreeMap<Vec<u8>, Vec<u8>>;

const COMMITS: u64 = 60;
/// Where the child works.
const CHILD: &str = "ENGINE_FAULTS_CHILD";

fn open(dir: &Path) -> Result<MetaStore, OpenError> {
    let options = MetaStoreOptions {
        background: false,
        // Small: most reads go to the engine, and its runs are many.
        checkpoint_bytes: 4096,
        cache_bytes: 4096,
        ..MetaStoreOptions::default()
    };
    MetaStore::open(dir, lsm, options, Arc::new(SystemDisk))
}

/// In memory where that is possible: the calls are the same.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn key(n: u64) -> [u8; 4] {
    [(n % 3) as u8, 0, 0, (n % 7) as u8]
}

fn value(n: u64) -> Vec<u8> {
    vec![n as u8; (n * 37 % 500) as usize]
}

fn writes(n: u64) -> WriteSet {
    let mut writes = WriteSet::new();
    writes.put(b"last", Bytes::copy_from_slice(&n.to_le_bytes()));
    writes.put(&key(n), value(n).into());
    if n.is_multiple_of(5) {
        writes.delete(&key(n + 4));
    }
    writes
}

/// After commit `n`.
fn state(n: u64) -> State {
    let mut state = State::new();
    for n in 1..=n {
        state.insert(b"last".to_vec(), n.to_le_bytes().to_vec());
        state.insert(key(n).to_vec(), value(n));
        if n.is_multiple_of(5) {
            state.remove(&key(n + 4)[..]);
        }
    }
    state
}

fn content(store: &MetaStore) -> Result<State, KvError> {
    let mut found = State::new();
    store.scan(b"", &[0xff; 20], &mut |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// What is shown is right, or an error.
fn look(store: &MetaStore, last: u64) {
    let wanted = state(last);
    if let Ok(found) = content(store) {
        assert_eq!(found, wanted, "after commit {last}");
    }
    for n in 0..21 {
        if let Ok(found) = store.get(&key(n)) {
            assert_eq!(found.as_deref(), wanted.get(&key(n)[..]).map(Vec::as_slice), "after commit {last}");
        }
    }
}

/// The child's script: three lives of a store, of which any step may fail. Ends at the first commit that is refused, and
/// says how many were acknowledged.
#[test]
fn script() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let mut last = 0;
    'lives: for life in 1..=3 {
        let Ok(store) = open(&dir) else { break };
        look(&store, last);
        while last < COMMITS * life / 3 {
            if store.commit(writes(last + 1)).is_err() {
                break 'lives;
            }
            last += 1;
            // The line goes through no file below the store.
            println!("acknowledged {last}");
            std::io::stdout().flush().unwrap();
            match last % 10 {
                3 | 7 => drop(store.checkpoint()),
                5 => drop(store.sync()),
                8 => look(&store, last),
                _ => {}
            }
        }
        drop(store.close());
    }
    println!("ended after {last}");
}

/// The library to load before the C library.
fn failing_calls(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/failing_calls.c");
    let library = dir.join("failing_calls.so");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output();
    let output = output.expect("cc");
    assert!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
    library
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    errno: i32,
    at: u64,
    count: u64,
    /// Of these calls alone.
    call: Option<&'static str>,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs the script with a fault and checks what is left. Returns the number of calls, if none failed.
fn survives(library: &Path, fault: Fault) -> Option<u64> {
    // Another test's child would hold the lock of this one's store from its fork to its exec.
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = scratch();
    let (store, report) = (dir.path().join("store"), dir.path().join("report"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.envs(fault.call.map(|call| ("FAIL_CALL", call)));
    let output = command
        .args(["--exact", "script", "--nocapture", "--test-threads", "1"])
        .env(CHILD, &store)
        .env("LD_PRELOAD", library)
        .env("FAIL_BELOW", store.join("engine"))
        .env("FAIL_AT", fault.at.to_string())
        .env("FAIL_COUNT", fault.count.to_string())
        .env("FAIL_ERRNO", fault.errno.to_string())
        .env("FAIL_REPORT", &report)
        .output()
        .unwrap();
    let report = std::fs::read_to_string(&report).unwrap();
    let told = || format!("{fault:?}: {report}\n{}", text(&output));
    assert!(output.status.success(), "{}", told());
    let acknowledged = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split("acknowledged ").nth(1)?.parse().ok())
        .max()
        .unwrap_or(0);
    let again = open(&store).unwrap_or_else(|e| panic!("{e}\n{}", told()));
    let found = content(&again).unwrap_or_else(|e| panic!("{e}\n{}", told()));
    // The commit that was refused may be there all the same.
    let kept = (acknowledged..=acknowledged + 1).find(|n| state(*n) == found);
    let kept = kept.unwrap_or_else(|| panic!("{acknowledged} commits, but {found:?}\n{}", told()));
    for n in kept + 1..=kept + 3 {
        again.commit(writes(n)).unwrap_or_else(|e| panic!("{e}\n{}", told()));
    }
    again.checkpoint().unwrap_or_else(|e| panic!("{e}\n{}", told()));
    look(&again, kept + 3);
    again.close().unwrap_or_else(|e| panic!("{e}\n{}", told()));
    drop(again);
    assert_eq!(content(&open(&store).unwrap()).unwrap(), state(kept + 3), "{}", told());
    let calls = report.lines().find_map(|line| line.strip_prefix("calls ")?.trim().parse().ok());
    let failed = report.lines().any(|line| !line.starts_with("calls "));
    assert!(failed || acknowledged == COMMITS, "{}", told());
    calls.filter(|_| !failed)
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const ALL: u64 = u32::MAX as u64;

/// `step` is how many calls are left out between two that fail, at most and at random.
fn every_call_fails(errno: i32, count: u64, step: u64) {
    every_one_fails(errno, count, step, None);
}

fn every_one_fails(errno: i32, count: u64, step: u64, call: Option<&'static str>) {
    let dir = scratch();
    let library = failing_calls(dir.path());
    let all = survives(&library, Fault { errno, at: 0, count: 0, call }).expect("no call fails");
    assert!(all > 20, "the calls of the engine are seen: {all}");
    let step = if std::env::var("FAULTS").is_ok_and(|v| v == "all") { 1 } else { step };
    // Not the same ones for each kind.
    let mut at = 1 + (errno as u64 + count) % step;
    while survives(&library, Fault { errno, at, count, call }).is_none() {
        at += step;
    }
    assert!(at > all / 2, "{at} of {all} calls");
}

#[test]
fn one_call_gives_eio() {
    every_call_fails(EIO, 1, 29);
}

#[test]
fn all_calls_from_one_on_give_eio() {
    every_call_fails(EIO, ALL, 41);
}

#[test]
fn one_call_finds_no_room() {
    every_call_fails(ENOSPC, 1, 23);
}

#[test]
fn all_calls_from_one_on_find_no_room() {
    every_call_fails(ENOSPC, ALL, 37);
}

/// A manifest that was in place when the sync of its directory found no room was followed by the removal of the files that it
/// names.
#[test]
fn regression_what_the_manifest_names_is_not_removed() {
    every_one_fails(ENOSPC, ALL, 4, Some("fsync"));
}
