//! Goal: who has a complete copy of a dead writer's journal goes on in its place, nobody else does, and the writer, wherever it was paused,
//! commits nothing more. Method: engines of one namespace on a real server; a child process that stops itself (SIGSTOP) before its batch, or
//! in its transaction when only the commit is missing, and goes on after the take-over.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod support;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cluster::tail::row::{Change, Refused, Row};
use kv::{ApplyError, Engine, Lsn};
use pg::{Options, PgEngine, Rights, Sharing, TailBatch, TailError, Taken, Tuning};
use support::{Server, quick, server, signal};

const CHILD: &str = "PG_TAIL_CHILD";
const SLOT: u16 = 7;

fn key(slot: u8) -> [u8; 4] {
    [0, 0, slot, 1]
}

fn batch(lsn: u64, slot: u8, value: &'static str) -> TailBatch {
    (Lsn(lsn), vec![(Box::from(key(slot)), Some(Bytes::from_static(value.as_bytes())))])
}

fn open(server: &Server, dir: &Path) -> (PgEngine, Rights) {
    let engine = PgEngine::open(dir, server.shared("tails").tuned(quick())).unwrap();
    let rights = engine.rights();
    (engine, rights)
}

fn complete(rights: &Rights, standby: &str, copy: u64) {
    rights.write_tail(&Change::Begin { copy, standby: standby.to_owned() }).unwrap();
    let row = rights.write_tail(&Change::Complete { copy }).unwrap();
    assert_eq!(row, Row { standby: Some(standby.to_owned()), copy, complete: true });
}

fn refused(result: Result<Taken, TailError>) -> Refused {
    match result {
        Err(TailError::Refused(refused)) => refused,
        other => panic!("{other:?}"),
    }
}

/// Until the lease has ended, and a transaction that is open was ended by the server.
fn taken_over(rights: &Rights, from: &str, tail: &[TailBatch]) -> (Taken, usize) {
    let until = Instant::now() + Duration::from_secs(30);
    let mut early = 0;
    loop {
        match rights.take_over(from, 1, tail) {
            Ok(taken) => return (taken, early),
            Err(TailError::Refused(Refused::Lease)) => early += 1,
            Err(TailError::Failed(error)) => eprintln!("{error}"),
            Err(other) => panic!("{other:?}"),
        }
        assert!(Instant::now() < until, "never taken");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn only_a_complete_copy_is_taken_over() {
    let Some(server) = server() else { return };
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let (first, owner) = open(&server, dirs[0].path());
    let (second, standby) = open(&server, dirs[1].path());
    let (_third, stranger) = open(&server, dirs[2].path());
    let name = owner.writer().to_owned();
    assert_eq!(first.take(&[1, 2, 3]).unwrap().ours.len(), 3);
    assert_eq!(stranger.take_free(&[9]).unwrap().ours.len(), 1);
    first.apply(&[(&key(1), Some(b"one"))], Lsn(1)).unwrap();
    let tail = [batch(1, 1, "not again"), batch(2, 2, "two"), batch(3, 1, "three")];
    assert_eq!(refused(standby.take_over(&name, 0, &tail)), Refused::Standby);
    owner.write_tail(&Change::Begin { copy: 1, standby: standby.writer().to_owned() }).unwrap();
    assert_eq!(refused(standby.take_over(&name, 1, &tail)), Refused::Incomplete);
    complete(&owner, standby.writer(), 1);
    let seen = standby.tail_of(&name).unwrap().unwrap();
    assert!(seen.row.complete && !seen.ended && seen.applied == Lsn(1), "{seen:?}");
    assert_eq!(refused(standby.take_over(&name, 1, &tail)), Refused::Lease);
    assert_eq!(refused(stranger.take_over(&name, 1, &tail)), Refused::Standby);
    assert_eq!(standby.tail_of("nobody").unwrap(), None);
    // It dies without a word.
    drop((first, owner));
    let (_, early) = taken_over(&standby, &name, &tail);
    assert!(early > 0, "taken from a lease that had not ended");
    let taken = standby.take_over(&name, 1, &tail).unwrap();
    assert_eq!(taken.ours, [(1, 2), (2, 2), (3, 2)].into(), "the same again has the same answer");
    assert_eq!(standby.ours(), taken.ours);
    assert_eq!(second.get(&key(1)).unwrap().as_deref(), Some(&b"three"[..]));
    assert_eq!(second.get(&key(2)).unwrap().as_deref(), Some(&b"two"[..]));
    assert_eq!(refused(stranger.take_over(&name, 1, &tail)), Refused::Standby);
    second.apply(&[(&key(3), Some(b"mine"))], Lsn(1)).unwrap();
    // Who comes back is told so, until it begins anew.
    let (first, owner) = open(&server, dirs[0].path());
    assert_eq!((first.taken_over(), first.applied_lsn(), owner.ours()), (Ok(true), Ok(Lsn(3)), [].into()));
    let late = first.apply(&[(&key(1), Some(b"late"))], Lsn(4));
    assert!(matches!(late, Err(ApplyError::Fenced(_))), "{late:?}");
    drop((first, owner));
    let (first, owner) = open(&server, dirs[0].path());
    first.begin_anew().unwrap();
    // An answer to who took over may have been lost: it is the same also now.
    assert_eq!(standby.take_over(&name, 1, &tail), Ok(taken.clone()));
    assert_eq!(first.taken_over(), Ok(false));
    let row = owner.tail_of(&name).unwrap().unwrap().row;
    assert_eq!(row, Row { standby: None, copy: 2, complete: false });
    assert!(owner.write_tail(&Change::Complete { copy: 1 }).is_err(), "of the time before");
    owner.write_tail(&Change::Alone { copy: 3 }).unwrap();
}

#[test]
fn what_is_no_whole_copy_is_applied_by_nobody() {
    let Some(server) = server() else { return };
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let (first, owner) = open(&server, dirs[0].path());
    let (second, standby) = open(&server, dirs[1].path());
    let name = owner.writer().to_owned();
    first.take(&[1]).unwrap();
    complete(&owner, standby.writer(), 1);
    // Closed in order: nobody has to wait.
    first.close().unwrap();
    for wrong in [[batch(2, 1, "x")], [batch(1, 5, "another's")]] {
        let result = standby.take_over(&name, 1, &wrong);
        assert!(matches!(result, Err(TailError::Failed(_))), "{result:?}");
        assert_eq!(
            (standby.ours(), second.get(&key(1)), second.get(&key(5))),
            ([].into(), Ok(None), Ok(None))
        );
    }
    assert_eq!(standby.take_over(&name, 1, &[batch(1, 1, "x")]).unwrap().ours, [(1, 2)].into());
    assert_eq!(server.sql("SELECT count(*) FROM tails.entry"), "1");
}

/// The signal takes effect when the kernel comes to it, so nothing is done until the parent says that it is over.
fn stop_here() {
    signal(std::process::id(), "STOP");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The child: the owner of a slot whose copy is complete, is stopped, and tries once more.
#[test]
fn the_owner() {
    let Ok(setting) = std::env::var(CHILD) else { return };
    let [url, dir, place, standby] = setting.split('|').collect::<Vec<_>>().try_into().unwrap();
    // Only the last batch may stop, so what comes before it is another engine's.
    let open = |before_commit| {
        let tuning = Tuning { before_commit, ..quick() };
        let options = Options::new(url, "tails", None, Sharing::Shared).unwrap().tuned(tuning);
        PgEngine::open(Path::new(dir), options).unwrap()
    };
    let engine = open(None);
    assert_eq!(engine.take(&[SLOT]).unwrap().ours.len(), 1);
    engine.apply(&[(&key(7), Some(b"first"))], Lsn(1)).unwrap();
    complete(&engine.rights(), standby, 1);
    drop(engine);
    let engine = open((place == "before the commit").then_some(stop_here as fn()));
    if place == "before the batch" {
        stop_here();
    }
    // It was not confirmed by the standby, so it was not answered.
    let late = engine.apply(&[(&key(7), Some(b"late"))], Lsn(3));
    let alone = engine.rights().write_tail(&Change::Alone { copy: 2 });
    let fenced = matches!(late, Err(ApplyError::Fenced(_))) && matches!(alone, Err(TailError::Fenced(_)));
    println!("result {fenced}");
    assert!(fenced, "{late:?} {alone:?}");
}

fn child(server: &Server, dir: &Path, (place, standby): (&str, &str)) -> Child {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_owner", "--nocapture", "--test-threads", "1"])
        .env(CHILD, format!("{}|{}|{place}|{standby}", server.url(), dir.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
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
    let (engine, standby) = open(&server, second.path());
    let mut child = child(&server, first.path(), (place, standby.writer()));
    let sql = format!("SELECT id FROM tails.writer WHERE id <> '{}'", standby.writer());
    let owner = server.sql(&sql);
    let (taken, _) = taken_over(&standby, &owner, &[batch(1, 7, "first"), batch(2, 7, "answered")]);
    assert_eq!(taken.ours, [(SLOT, 2)].into());
    assert_eq!(engine.get(&key(7)).unwrap().as_deref(), Some(&b"answered"[..]));
    engine.apply(&[(&key(7), Some(b"second"))], Lsn(1)).unwrap();
    signal(child.id(), "CONT");
    child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let said = child.stdout.take().unwrap();
    let lines: Vec<String> = BufReader::new(said).lines().map_while(Result::ok).collect();
    let status = child.wait().unwrap();
    assert!(status.success() && lines.iter().any(|line| line.contains("result true")), "{lines:?}");
    assert_eq!(engine.get(&key(7)).unwrap().as_deref(), Some(&b"second"[..]));
    engine.apply(&[(&key(7), Some(b"third"))], Lsn(2)).unwrap();
    assert_eq!(engine.get(&key(7)).unwrap().as_deref(), Some(&b"third"[..]));
}

#[test]
fn an_owner_that_was_paused_before_its_batch_commits_nothing_more() {
    paused("before the batch");
}

#[test]
fn an_owner_that_was_paused_in_its_transaction_commits_nothing_more() {
    paused("before the commit");
}
