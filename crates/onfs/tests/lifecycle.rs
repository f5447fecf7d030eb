//! Goal: however a mount ends, data is made safe first, nothing is unmounted under data that is not safe, and the
//! command hears the truth. Method: a made-up file system that writes down what is done to it, driven through the
//! real server and by the signals' own function.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test fails by panicking")]

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use onfs::{
    control::{
        CallError, Client, ControlError, ControlHandler, ErrorCode, FileOutcome, Limits, MoveReport, Peer,
        Progress, ProgressSink, Request, Response, Server, ServerOptions,
    },
    daemon::Lifecycle,
    monitor::Sample,
    running::{MountedFs, Running, UnmountError},
};
use parking_lot::{Condvar, Mutex};

#[derive(Default)]
struct Script {
    /// Files that cannot be made safe.
    unsafe_files: usize,
    /// Unmounting finds the mount in use, unless lazily.
    busy: bool,
    /// What `finish` says.
    finish_error: Option<String>,
}

#[derive(Default)]
struct Fake {
    script: Mutex<Script>,
    done: Mutex<Vec<&'static str>>,
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Fake {
    fn note(&self, what: &'static str) {
        self.done.lock().push(what);
    }
    fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }
}

impl MountedFs for Fake {
    fn flush_all(&self, lazy: bool, progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        self.note(if lazy { "save" } else { "flush" });
        progress.report(Progress { done: 1, total: 1, ..Progress::default() })?;
        let bad = FileOutcome { path: "/bad".into(), ino: 9, errno: 5, message: "input/output error".into() };
        let failed = vec![bad; self.script.lock().unsafe_files];
        Ok(MoveReport { files_done: 1, failed, ..MoveReport::default() })
    }
    fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        self.note(if lazy { "detach" } else { "unmount" });
        if self.script.lock().busy {
            return if lazy { Ok(()) } else { Err(UnmountError::Busy) };
        }
        self.end();
        Ok(())
    }
    fn abort(&self) {
        self.note("abort");
        self.end();
    }
    fn wait(&self) {
        let mut ended = self.ended.lock();
        while !*ended {
            self.changed.wait(&mut ended);
        }
    }
    fn sample(&self, _: &mut Sample) {}
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }
    fn finish(&self) -> Result<(), String> {
        self.note("finish");
        self.script.lock().finish_error.take().map_or(Ok(()), Err)
    }
}

struct Nothing;

impl ControlHandler for Nothing {
    fn handle(&self, _: &Peer, _: Request, _: &mut dyn ProgressSink) -> Result<Response, ControlError> {
        Ok(Response::Done)
    }
}

struct Daemon {
    fake: Arc<Fake>,
    life: Arc<Lifecycle>,
    socket: PathBuf,
    server: Option<Server>,
    _dir: tempfile::TempDir,
}

impl Daemon {
    fn new(script: Script) -> Daemon {
        let fake = Arc::new(Fake { script: Mutex::new(script), ..Fake::default() });
        let running = Running { fs: fake.clone(), handler: Arc::new(Nothing) };
        let dir = tempfile::tempdir().unwrap();
        let life = Lifecycle::new(running, Some(dir.path()), Duration::from_secs(60), None);
        let socket = dir.path().join("control.sock");
        let owner_uid = rustix::process::getuid().as_raw();
        let limits = Limits::default();
        let options = ServerOptions { socket: socket.clone(), open_to_all: false, owner_uid, limits };
        let server = Some(Server::start(options, life.clone()).unwrap());
        Daemon { fake, life, socket, server, _dir: dir }
    }

    /// Sends an unmount from another thread while this one is the daemon's main thread.
    fn unmount_and_end(&mut self, lazy: bool) -> (Result<Response, CallError>, Result<(), String>) {
        let socket = self.socket.clone();
        let command = thread::spawn(move || {
            Client::connect(&socket).unwrap().call(Request::Unmount { lazy }, None, &mut |_| {})
        });
        let end = self.life.run();
        assert!(self.server.take().unwrap().stop(Duration::from_secs(60)));
        (command.join().unwrap(), end)
    }

    fn unmount(&self, lazy: bool) -> Result<Response, CallError> {
        Client::connect(&self.socket).unwrap().call(Request::Unmount { lazy }, None, &mut |_| {})
    }

    fn done(&self) -> Vec<&'static str> {
        self.fake.done.lock().clone()
    }
}

fn code(result: Result<Response, CallError>) -> ErrorCode {
    match result {
        Err(CallError::Refused(error)) => error.code,
        other => panic!("an error of the daemon was expected: {other:?}"),
    }
}

#[test]
fn an_unmount_flushes_unmounts_and_finishes_before_it_answers() {
    let mut daemon = Daemon::new(Script::default());
    let (answer, end) = daemon.unmount_and_end(false);
    assert!(matches!(answer, Ok(Response::Moved(report)) if report.files_done == 1));
    assert_eq!(end, Ok(()));
    assert_eq!(daemon.done(), ["flush", "unmount", "finish"]);
}

#[test]
fn trouble_at_the_very_end_is_data_at_risk() {
    let finish_error = Some("the journal could not be closed".to_owned());
    let mut daemon = Daemon::new(Script { finish_error, ..Script::default() });
    let (answer, end) = daemon.unmount_and_end(false);
    assert_eq!(code(answer), ErrorCode::DataAtRisk);
    assert!(end.is_err());
}

#[test]
fn a_busy_mount_stays_and_can_be_unmounted_later() {
    let mut daemon = Daemon::new(Script { busy: true, ..Script::default() });
    assert_eq!(code(daemon.unmount(false)), ErrorCode::Busy);
    assert_eq!(daemon.done(), ["flush", "unmount"]);
    daemon.fake.script.lock().busy = false;
    let (answer, _) = daemon.unmount_and_end(false);
    assert!(answer.is_ok());
}

#[test]
fn data_that_is_not_safe_keeps_the_mount() {
    let daemon = Daemon::new(Script { unsafe_files: 2, ..Script::default() });
    assert_eq!(code(daemon.unmount(false)), ErrorCode::DataAtRisk);
    assert_eq!(daemon.done(), ["flush"]);
}

#[test]
fn a_lazy_unmount_answers_though_the_mount_is_in_use() {
    let daemon = Daemon::new(Script { busy: true, ..Script::default() });
    assert!(daemon.unmount(true).is_ok());
    assert_eq!(daemon.done(), ["save", "detach"]);
    assert_eq!(code(daemon.unmount(true)), ErrorCode::Busy, "once is enough");
}

#[test]
fn a_signal_detaches_a_busy_mount_after_the_flush_and_a_second_one_ends_it() {
    let daemon = Daemon::new(Script { busy: true, ..Script::default() });
    daemon.life.stop_by_signal();
    assert_eq!(daemon.done(), ["flush", "unmount", "detach"]);
    daemon.life.abort();
    assert_eq!(daemon.life.run(), Ok(()));
    assert_eq!(daemon.done(), ["flush", "unmount", "detach", "abort", "finish"]);
}

#[test]
fn a_signal_detaches_even_when_data_cannot_be_made_safe() {
    // The data stays in the memory tier and in the state; the end must not hang on it.
    let daemon = Daemon::new(Script { unsafe_files: 1, ..Script::default() });
    daemon.life.stop_by_signal();
    assert_eq!(daemon.life.run(), Ok(()));
    assert_eq!(daemon.done(), ["flush", "detach", "finish"]);
}

#[test]
fn other_requests_reach_the_file_system() {
    let daemon = Daemon::new(Script::default());
    let mut client = Client::connect(&daemon.socket).unwrap();
    assert_eq!(client.call(Request::QuotaList {}, None, &mut |_| {}).unwrap(), Response::Done);
    assert!(daemon.done().is_empty());
}

#[test]
fn a_deadline_that_is_past_unmounts_nothing() {
    struct Past;
    impl ProgressSink for Past {
        fn report(&mut self, _: Progress) -> Result<(), ControlError> {
            Err(ControlError::new(ErrorCode::TimedOut, "past"))
        }
        fn deadline(&self) -> Option<Instant> {
            Some(Instant::now())
        }
    }
    let daemon = Daemon::new(Script::default());
    let peer = Peer { pid: 1, uid: 0, gid: 0, groups: vec![], privileged: true };
    let error = daemon.life.handle(&peer, Request::Unmount { lazy: false }, &mut Past).unwrap_err();
    assert_eq!((error.code, daemon.done()), (ErrorCode::TimedOut, vec!["flush"]));
}
