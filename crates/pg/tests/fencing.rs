//! Goal: two owners of a slot never both commit, wherever the first one is paused. Method: a child process is the first owner. It stops
//! itself (SIGSTOP) before its batch, or in its transaction when all is checked and written and only the commit is missing; its
//! lease ends, this process takes the slot over and commits, and the child goes on. And the database's rulings against the pure ones.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod support;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kv::{ApplyError, Engine, Lsn};
use pg::{Options, PgEngine, Sharing, Tuning};
use support::{Server, quick, server, signal};

const CHILD: &str = "PG_FENCING_CHILD";
const KEY: &[u8] = &[0, 0, 7, 1];
const SLOT: u16 = 7;

/// The signal takes effect when the kernel comes to it, so nothing is done until the parent says that it is over.
fn stop_here() {
    signal(std::process::id(), "STOP");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The child: takes the slot, commits once, is stopped, tries once more, says what came of it.
#[test]
fn first_owner() {
    let Ok(setting) = std::env::var(CHILD) else { return };
    let [url, dir, place] = setting.split('|').collect::<Vec<_>>().try_into().unwrap();
    // Only the second batch may stop, so the first is another engine's.
    let open = |before_commit| {
        let tuning = Tuning { before_commit, ..quick() };
        let options = Options::new(url, "fence", None, Sharing::Shared).unwrap().tuned(tuning);
        PgEngine::open(Path::new(dir), options).unwrap()
    };
    let engine = open(None);
    assert_eq!(engine.take(&[SLOT]).unwrap().ours.len(), 1);
    engine.apply(&[(KEY, Some(b"first"))], Lsn(1)).unwrap();
    drop(engine);
    let engine = open((place == "before the commit").then_some(stop_here as fn()));
    assert_eq!(engine.take(&[SLOT]).unwrap().ours[&SLOT], 1);
    println!("ready");
    if place == "before the batch" {
        stop_here();
    }
    let result = engine.apply(&[(KEY, Some(b"late"))], Lsn(2));
    println!("result {}", matches!(result, Err(ApplyError::Fenced(_))));
    assert!(matches!(result, Err(ApplyError::Fenced(_))), "{result:?}");
    let again = engine.apply(&[(KEY, Some(b"later"))], Lsn(2));
    assert!(matches!(again, Err(ApplyError::Fenced(_))), "{again:?}");
}

fn child(server: &Server, dir: &Path, place: &str) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "first_owner", "--nocapture", "--test-threads", "1"])
        .env(CHILD, format!("{}|{}|{place}", server.url(), dir.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // Stopped: the letter after the name in parentheses.
    while !state().rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')) {
        assert!(Instant::now() < until, "the child does not come to its stop: {}", state());
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

fn paused(place: &str) {
    let Some(server) = server() else { return };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut child = child(&server, first.path(), place);
    let engine = PgEngine::open(second.path(), server.shared("fence").tuned(quick())).unwrap();
    // Until the lease has ended, and a transaction that is open was ended by the server.
    let until = Instant::now() + Duration::from_secs(20);
    let mut refused = 0;
    let epoch = loop {
        match engine.take(&[SLOT]) {
            Ok(taken) => match taken.ours.get(&SLOT) {
                Some(epoch) => break *epoch,
                None => refused += 1,
            },
            Err(error) => eprintln!("{error}"),
        }
        assert!(Instant::now() < until, "never taken");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(epoch, 2);
    // In a transaction the wait for its end is longer than the lease.
    assert!(refused > 0 || place == "before the commit", "taken from a lease that had not ended");
    engine.apply(&[(KEY, Some(b"second"))], Lsn(1)).unwrap();
    signal(child.id(), "CONT");
    child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let said = child.stdout.take().unwrap();
    let lines: Vec<String> = BufReader::new(said).lines().map_while(Result::ok).collect();
    let status = child.wait().unwrap();
    assert!(status.success() && lines.iter().any(|line| line.contains("result true")), "{lines:?}");
    assert_eq!(engine.get(KEY).unwrap().as_deref(), Some(&b"second"[..]));
    engine.apply(&[(KEY, Some(b"third"))], Lsn(2)).unwrap();
    assert_eq!(engine.get(KEY).unwrap().as_deref(), Some(&b"third"[..]));
    assert_eq!(server.sql("SELECT applied FROM fence.writer ORDER BY applied"), "1\n2");
}

#[test]
fn paused_before_its_batch() {
    paused("before the batch");
}

#[test]
fn paused_in_its_transaction() {
    paused("before the commit");
}

#[test]
fn slots_are_taken_renewed_and_released() {
    let Some(server) = server() else { return };
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |dir: &Path| PgEngine::open(dir, server.shared("slots").tuned(quick())).unwrap();
    let (first, second) = (open(a.path()), open(b.path()));
    assert_eq!(first.take(&[1, 2, 3]).unwrap().ours, [(1, 1), (2, 1), (3, 1)].into());
    assert_eq!(first.take(&[1]).unwrap().ours, [(1, 1)].into());
    let taken = second.take(&[3, 4]).unwrap();
    assert_eq!((taken.ours, taken.others.len()), ([(4, 1)].into(), 1));
    // A batch is refused as a whole: one of its slots is another's.
    let refused = second.apply(&[(&[0, 0, 3], Some(b"x")), (&[0, 0, 4], Some(b"x"))], Lsn(1));
    assert!(matches!(refused, Err(ApplyError::Fenced(_))), "{refused:?}");
    assert_eq!(second.get(&[0, 0, 4]).unwrap(), None);
    // Renewed: it stays for longer than the lease.
    std::thread::sleep(quick().lease + Duration::from_millis(500));
    let second = {
        drop(second);
        open(b.path())
    };
    assert_eq!(second.take(&[3]).unwrap().others.len(), 1);
    first.release(&[3, 9]).unwrap();
    assert_eq!(second.take(&[3]).unwrap().ours, [(3, 2)].into());
    assert_eq!(first.take(&[3]).unwrap().others.len(), 1);
    // Closed in order: nobody has to wait.
    first.close().unwrap();
    assert_eq!(second.take(&[1, 2]).unwrap().ours, [(1, 2), (2, 2)].into());
}

#[test]
fn the_same_state_directory_twice() {
    // Goal: a copy of a state directory cannot write beside the first. Method: the same writer opened again; the first is fenced.
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let open = || PgEngine::open(dir.path(), server.options("twice").tuned(quick())).unwrap();
    let first = open();
    first.apply(&[(KEY, Some(b"1"))], Lsn(1)).unwrap();
    let second = open();
    let refused = first.apply(&[(KEY, Some(b"x"))], Lsn(2));
    assert!(matches!(refused, Err(ApplyError::Fenced(_))), "{refused:?}");
    second.apply(&[(KEY, Some(b"2"))], Lsn(2)).unwrap();
    assert_eq!(second.get(KEY).unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn a_commit_without_an_answer_is_settled() {
    // Goal: when the connection ends with the commit on its way, what was done is found out, and nothing is done twice or lost.
    // Method: a synchronous standby that is not there keeps the commit waiting; the server is told to end it.
    let Some(server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let tuning = Tuning { answer_wait: Duration::from_secs(2), ..quick() };
    let engine = PgEngine::open(dir.path(), server.options("doubt").tuned(tuning)).unwrap();
    engine.apply(&[(KEY, Some(b"1"))], Lsn(1)).unwrap();
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.sql("SELECT pg_reload_conf()");
    std::thread::sleep(Duration::from_millis(500));
    let doubtful = engine.apply(&[(KEY, Some(b"2"))], Lsn(2));
    assert!(matches!(doubtful, Err(ApplyError::Again(_))), "{doubtful:?}");
    server.sql("ALTER SYSTEM RESET synchronous_standby_names");
    server.sql("SELECT pg_reload_conf()");
    engine.apply(&[(KEY, Some(b"2"))], Lsn(2)).unwrap();
    assert_eq!(engine.get(KEY).unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(engine.applied_lsn().unwrap(), Lsn(2));
}
