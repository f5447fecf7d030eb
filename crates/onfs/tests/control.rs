//! Goal: requests and answers survive the wire, nonsense gets an error and ends the connection, and nobody does what
//! he may not. Method: a server with a made-up handler on a socket in a temporary directory. Where a test waits, it
//! waits for an answer or an end, never for a time.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "a test fails by panicking")]

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use onfs::{
    control::{
        Answer, AnswerBody, CallError, Client, ControlError, ControlHandler, ErrorCode, FileRef, Limits,
        MoveReport, Peer, Progress, ProgressSink, Request, Response, Server, ServerOptions, StatusReport,
        Unit, read_frame,
    },
    policy::PolicyChange,
};
use proptest::prelude::*;
use types::TierId;

type Run = dyn Fn(&Peer, Request, &mut dyn ProgressSink) -> Result<Response, ControlError> + Send + Sync;

struct Made(Box<Run>);

impl ControlHandler for Made {
    fn handle(&self, peer: &Peer, r: Request, p: &mut dyn ProgressSink) -> Result<Response, ControlError> {
        (self.0)(peer, r, p)
    }
}

struct Daemon {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    server: Server,
}

fn daemon_with(
    limits: Limits,
    owner_uid: u32,
    run: impl Fn(&Peer, Request, &mut dyn ProgressSink) -> Result<Response, ControlError> + Send + Sync + 'static,
) -> Daemon {
    let dir = tempfile::tempdir().unwrap();
    // Longer than a socket's path may be.
    let state = dir.path().join("a".repeat(120));
    std::fs::create_dir(&state).unwrap();
    let socket = state.join("control.sock");
    let options = ServerOptions { socket: socket.clone(), open_to_all: true, owner_uid, limits };
    let server = Server::start(options, Arc::new(Made(Box::new(run)))).unwrap();
    Daemon { _dir: dir, socket, server }
}

fn daemon(
    run: impl Fn(&Peer, Request, &mut dyn ProgressSink) -> Result<Response, ControlError> + Send + Sync + 'static,
) -> Daemon {
    daemon_with(Limits::default(), rustix::process::getuid().as_raw(), run)
}

impl Daemon {
    fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }
    fn raw(&self) -> UnixStream {
        // Through the directory's descriptor, as the path is too long.
        let dir = std::fs::File::open(self.socket.parent().unwrap()).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&dir);
        UnixStream::connect(format!("/proc/self/fd/{fd}/control.sock")).unwrap()
    }
}

fn quiet(_: &Progress) {}

/// Runs something on a thread of its own, which is another user's. `None`, with a line that says so, when we may not.
fn as_user<T: Send>(uid: u32, groups: &[u32], run: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be other users");
        return None;
    }
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let changed = [
                // SAFETY: the kernel reads as many groups as the slice has; it changes this thread alone.
                unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) },
                // SAFETY: plain numbers; it changes this thread alone.
                unsafe { libc::syscall(libc::SYS_setresgid, uid, uid, uid) },
                // SAFETY: as above.
                unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) },
            ];
            assert_eq!(changed, [0; 3]);
            run()
        });
        Some(other.join().unwrap())
    })
}

/// What a connection is told, without a request.
fn refusal(mut stream: &UnixStream) -> ControlError {
    match read_frame::<Answer>(&mut stream, 1 << 20).unwrap().body {
        AnswerBody::Error(error) => error,
        AnswerBody::Progress(_) | AnswerBody::Result(_) => panic!("an error was expected"),
    }
}

/// Asks for the status over a connection that is there already.
fn is_served(mut stream: &UnixStream) -> bool {
    stream.write_all(&frame("{\"version\":1,\"request\":{\"do\":\"status\"}}")).unwrap();
    matches!(read_frame::<Answer>(&mut stream, 1 << 20).unwrap().body, AnswerBody::Result(Response::Done))
}

#[test]
fn requests_progress_and_answers_make_the_round_trip() {
    let daemon = daemon(|peer, request, progress| {
        assert_eq!(peer.pid, std::process::id() as i32);
        assert!(peer.privileged);
        match request {
            Request::Status {} => Ok(Response::Status(Box::new(StatusReport {
                epoch: 7,
                warnings: vec!["hot".into()],
                ..StatusReport::default()
            }))),
            Request::Migrate { files, to: TierId::Ssd, wait: true } => {
                assert!(progress.remaining().unwrap() <= Duration::from_secs(60));
                progress.report(Progress {
                    done: 1,
                    total: 2,
                    unit: Unit::Items,
                    what: files[0].path.clone(),
                })?;
                let files_done = files.len() as u64;
                Ok(Response::Moved(MoveReport { files_done, ..MoveReport::default() }))
            }
            other => Err(ControlError::new(ErrorCode::NotFound, other.name())),
        }
    });
    let mut client = daemon.client();
    let Response::Status(status) = client.call(Request::Status {}, None, &mut quiet).unwrap() else {
        panic!()
    };
    assert_eq!((status.epoch, status.warnings), (7, vec!["hot".to_owned()]));
    let files = vec![FileRef { ino: 5, path: "a\u{fffd}\n".into() }];
    let mut seen = Vec::new();
    let request = Request::Migrate { files, to: TierId::Ssd, wait: true };
    let answer = client.call(request, Some(Duration::from_secs(60)), &mut |p| seen.push(p.clone())).unwrap();
    assert_eq!(answer, Response::Moved(MoveReport { files_done: 1, ..MoveReport::default() }));
    assert_eq!(seen, [Progress { done: 1, total: 2, unit: Unit::Items, what: "a\u{fffd}\n".into() }]);
    let error = client.call(Request::QuotaList {}, None, &mut quiet).unwrap_err();
    let CallError::Refused(error) = error else { panic!("{error}") };
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::NotFound, "quota list"));
    // The connection is still good after an error.
    client.call(Request::Status {}, None, &mut quiet).unwrap();
    assert_eq!(client.daemon_pid().unwrap().as_raw_nonzero().get(), std::process::id() as i32);
    drop(client);
    assert!(daemon.server.stop(Duration::from_secs(60)));
    assert!(!daemon.socket.exists());
}

/// Sends bytes, and returns the error answer after which the daemon closed.
fn nonsense(daemon: &Daemon, bytes: &[u8]) -> ControlError {
    let mut stream = daemon.raw();
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let answer: Answer = read_frame(&mut stream, 1 << 20).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "one answer, then the end");
    match answer.body {
        AnswerBody::Error(error) => error,
        AnswerBody::Progress(_) | AnswerBody::Result(_) => panic!("an error was expected"),
    }
}

fn frame(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

#[test]
fn malformed_frames_get_an_error_and_the_end() {
    let daemon = daemon(|_, _, _| Ok(Response::Done));
    for text in [
        "",
        "{",
        "[]",
        "{\"version\":1}",
        "{\"version\":1,\"request\":{\"do\":\"dance\"}}",
        "{\"version\":1,\"request\":{\"do\":\"status\",\"extra\":1}}",
        "{\"version\":1,\"request\":{\"do\":\"memory-set\",\"bytes\":-1}}",
        "{\"version\":1,\"request\":{\"do\":\"migrate\",\"files\":[],\"to\":\"tape\",\"wait\":true}}",
    ] {
        assert_eq!(nonsense(&daemon, &frame(text)).code, ErrorCode::BadRequest, "{text}");
    }
    let newer = nonsense(&daemon, &frame("{\"version\":99,\"request\":{\"do\":\"fly\"}}"));
    assert!(newer.message.contains("99"), "{newer}");
    assert!(nonsense(&daemon, &u32::MAX.to_le_bytes()).message.contains("too long"));
    assert!(nonsense(&daemon, &[1, 0]).message.contains("length"));
    assert!(nonsense(&daemon, &[9, 0, 0, 0, b'{']).message.contains("1 of 9"));
    daemon.client().call(Request::Status {}, None, &mut quiet).unwrap();
}

#[test]
fn a_request_with_too_many_files_is_refused() {
    let daemon = daemon(|_, _, _| Ok(Response::Done));
    let file = FileRef { ino: 2, path: "x".into() };
    let files = vec![file; Request::FILES_MAX + 1];
    let error = daemon.client().call(Request::Unpin { files }, None, &mut quiet).unwrap_err();
    assert!(matches!(error, CallError::Refused(e) if e.code == ErrorCode::BadRequest));
}

#[test]
fn the_deadline_answers_for_a_request_that_hangs() {
    // The handler waits for the test, which waits for the answer: only the deadline can end this.
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let daemon = daemon(move |_, _, progress| {
        let _ = wait.lock().unwrap().recv();
        progress.report(Progress::default()).map(|()| Response::Done)
    });
    let deadline = Some(Duration::from_millis(50));
    let error = daemon.client().call(Request::MemorySet { bytes: 1 }, deadline, &mut quiet).unwrap_err();
    assert!(matches!(error, CallError::Refused(e) if e.code == ErrorCode::TimedOut));
    drop(release);
    assert!(daemon.server.stop(Duration::from_secs(60)));
}

#[test]
fn a_silent_request_shows_signs_of_life() {
    // The handler ends when the client has seen two heartbeats.
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let limits = Limits { heartbeat: Duration::from_millis(5), ..Limits::default() };
    let daemon = daemon_with(limits, 0, move |_, _, _| {
        let _ = wait.lock().unwrap().recv();
        Ok(Response::Done)
    });
    let mut release = Some(release);
    let mut beats = 0;
    let answer = daemon.client().call(Request::MemoryShow {}, None, &mut |_| {
        beats += 1;
        if beats == 2 {
            release.take();
        }
    });
    assert_eq!(answer.unwrap(), Response::Done);
}

#[test]
fn a_client_that_goes_away_ends_its_request() {
    let (ended, end) = mpsc::channel();
    let daemon = daemon(move |_, _, progress| {
        // Each report may be sent; one of them meets the closed connection.
        loop {
            if let Err(error) = progress.report(Progress::default()) {
                ended.send(error.clone()).unwrap();
                return Err(error);
            }
        }
    });
    let mut stream = daemon.raw();
    stream.write_all(&frame("{\"version\":1,\"request\":{\"do\":\"status\"}}")).unwrap();
    drop(stream);
    assert_eq!(end.recv().unwrap().code, ErrorCode::Failed);
    assert!(daemon.server.stop(Duration::from_secs(60)));
}

#[test]
fn connections_are_bounded() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let daemon = daemon_with(limits, 0, |_, _, _| Ok(Response::Done));
    let mut first = daemon.client();
    let mut second = daemon.client();
    // Answered, so both have their place.
    first.call(Request::Status {}, None, &mut quiet).unwrap();
    second.call(Request::Status {}, None, &mut quiet).unwrap();
    let error = daemon.client().call(Request::Status {}, None, &mut quiet).unwrap_err();
    assert!(matches!(&error, CallError::Refused(e) if e.code == ErrorCode::Busy), "{error}");
}

#[test]
fn regression_no_user_takes_the_connections_of_others() {
    let limits = Limits { connections: 8, connections_kept: 2, connections_per_user: 3, ..Limits::default() };
    let daemon = daemon_with(limits, 0, |_, _, _| Ok(Response::Done));
    let three = |uid| as_user(uid, &[], || [daemon.raw(), daemon.raw(), daemon.raw()]);
    let Some(first) = three(4001) else { return };
    assert!(first.iter().all(is_served));
    let more = as_user(4001, &[], || daemon.raw()).unwrap();
    let error = refusal(&more);
    assert_eq!(error.code, ErrorCode::Busy);
    assert!(error.message.contains("one user"), "{error}");
    // Another user has his own, and both together leave what is kept.
    let second = three(4002).unwrap();
    assert!(second.iter().all(is_served));
    assert_eq!(refusal(&as_user(4003, &[], || daemon.raw()).unwrap()).code, ErrorCode::Busy);
    let kept = [daemon.raw(), daemon.raw()];
    assert!(kept.iter().all(is_served));
    assert_eq!(refusal(&daemon.raw()).code, ErrorCode::Busy);
    drop((first, second, kept));
    assert!(daemon.server.stop(Duration::from_secs(60)));
}

#[test]
fn regression_a_frame_that_comes_in_drops_is_ended() {
    let limits = Limits { frame: Duration::from_millis(200), ..Limits::default() };
    let daemon = daemon_with(limits, 0, |_, _, _| Ok(Response::Done));
    let mut stream = daemon.raw();
    stream.write_all(&(4_u32 << 20).to_le_bytes()).unwrap();
    // Each byte comes before a wait for one would end; this ends when the daemon has had enough, long before the frame is whole.
    let mut sender = stream.try_clone().unwrap();
    let drops = thread::spawn(move || while sender.write_all(b" ").is_ok() {});
    let error = refusal(&stream);
    assert_eq!(error.code, ErrorCode::TimedOut, "{error}");
    assert!(error.message.contains("0.2 s"), "{error}");
    drops.join().unwrap();
}

#[test]
fn regression_the_bytes_of_requests_are_bounded() {
    // Each request is kept until it is answered, which it is at the end.
    let (release, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let (came, comes) = mpsc::channel();
    let limits = Limits { held_bytes: 4 << 20, held_bytes_per_user: 4 << 20, ..Limits::default() };
    let daemon = daemon_with(limits, 0, move |_, request, _| {
        if !matches!(request, Request::Status {}) {
            came.send(()).unwrap();
            let _ = wait.lock().unwrap().recv();
        }
        Ok(Response::Done)
    });
    let files = vec![FileRef { ino: 2, path: "x".repeat(12_000) }; 200];
    let large = || daemon.client().call(Request::Unpin { files: files.clone() }, None, &mut quiet);
    thread::scope(|scope| {
        let first = scope.spawn(large);
        comes.recv().unwrap();
        let error = large().unwrap_err();
        assert!(matches!(&error, CallError::Refused(e) if e.code == ErrorCode::Busy), "{error}");
        // Small requests have room at any time.
        daemon.client().call(Request::Status {}, None, &mut quiet).unwrap();
        release.send(()).unwrap();
        assert!(first.join().unwrap().is_ok());
    });
    release.send(()).unwrap();
    assert!(large().is_ok(), "the room was not given back");
}

#[test]
fn regression_a_client_that_does_not_read_holds_no_request_up() {
    let (ended, end) = mpsc::channel();
    let limits = Limits { heartbeat: Duration::from_millis(1), ..Limits::default() };
    let daemon = daemon_with(limits, 0, move |_, _, progress| {
        // Far more than the socket takes.
        let what = "x".repeat(10_000);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            progress.report(Progress { what: what.clone(), ..Progress::default() })?;
        }
        ended.send(()).unwrap();
        Ok(Response::Done)
    });
    let mut stream = daemon.raw();
    stream.write_all(&frame("{\"version\":1,\"request\":{\"do\":\"status\"}}")).unwrap();
    end.recv_timeout(Duration::from_secs(20)).expect("the request waits for the client");
    drop(stream);
    assert!(daemon.server.stop(Duration::from_secs(60)));
}

#[test]
fn regression_a_path_longer_than_any_is_refused() {
    let daemon = daemon(|_, _, _| Ok(Response::Done));
    let file = FileRef { ino: 2, path: "x".repeat(Request::PATH_BYTES_MAX + 1) };
    let error = daemon.client().call(Request::File { file }, None, &mut quiet).unwrap_err();
    assert!(matches!(error, CallError::Refused(e) if e.code == ErrorCode::BadRequest));
}

/// The groups are those of the process that connected, though it has ended and its number may be another's.
#[test]
fn regression_the_groups_of_a_peer_are_those_it_connected_with() {
    let (seen, sees) = mpsc::channel();
    let daemon = daemon_with(Limits::default(), 0, move |peer, _, _| {
        seen.send(peer.clone()).unwrap();
        Ok(Response::Done)
    });
    let groups: Vec<u32> = (5000..5200).collect();
    // The thread that connected ends before the request is sent; /proc knows only groups that the process has now.
    let Some(stream) = as_user(4001, &groups, || daemon.raw()) else { return };
    assert!(is_served(&stream));
    let peer = sees.recv().unwrap();
    assert_eq!((peer.uid, peer.gid, peer.privileged), (4001, 4001, false));
    assert_eq!(peer.groups, groups);
}

#[test]
fn a_dead_daemon_is_told_from_a_missing_one() {
    let daemon = daemon(|_, _, _| Ok(Response::Done));
    let socket = daemon.socket.clone();
    assert!(daemon.server.stop(Duration::from_secs(60)));
    assert!(matches!(Client::connect(&socket), Err(CallError::NotRunning(_))));
}

#[test]
fn requests_for_root_are_marked() {
    let dir = FileRef { ino: 1, path: "/".into() };
    assert!(Request::Unmount { lazy: false }.needs_privilege());
    assert!(Request::MemorySet { bytes: 1 }.needs_privilege());
    assert!(Request::QuotaRemove { dir: dir.clone() }.needs_privilege());
    assert!(!Request::Status {}.needs_privilege());
    assert!(!Request::File { file: dir }.needs_privilege());
}

fn any_request() -> impl Strategy<Value = Request> {
    let file = (any::<u64>(), any::<String>()).prop_map(|(ino, path)| FileRef { ino, path });
    let files = prop::collection::vec(file.clone(), 0..4);
    let tier = prop::sample::select(TierId::ALL.to_vec());
    let change = prop::sample::select(vec![
        "promote=on-open",
        "mode=hybrid",
        "sync=forced",
        "write-behind=250ms",
        "write-behind=never",
    ])
    .prop_map(|word| word.parse::<PolicyChange>().unwrap());
    prop_oneof![
        Just(Request::Status {}),
        Just(Request::QuotaList {}),
        file.clone().prop_map(|file| Request::File { file }),
        (files.clone(), tier.clone(), any::<bool>()).prop_map(|(files, to, wait)| Request::Migrate {
            files,
            to,
            wait
        }),
        (files.clone(), any::<bool>()).prop_map(|(files, wait)| Request::Flush { files, wait }),
        (files, prop::option::of(tier)).prop_map(|(files, to)| Request::Pin { files, to }),
        (file.clone(), prop::collection::vec(change, 0..4))
            .prop_map(|(dir, changes)| Request::PolicySet { dir, changes }),
        (file, any::<Option<u64>>(), any::<Option<u64>>())
            .prop_map(|(dir, bytes, inodes)| Request::QuotaSet { dir, bytes, inodes }),
        any::<u64>().prop_map(|bytes| Request::MemorySet { bytes }),
    ]
}

proptest! {
    #[test]
    fn every_request_reads_back_as_it_was_written(request in any_request()) {
        let text = serde_json::to_vec(&request).unwrap();
        prop_assert_eq!(serde_json::from_slice::<Request>(&text).unwrap(), request);
    }

    #[test]
    fn bytes_of_any_kind_are_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = read_frame::<onfs::control::Envelope>(&mut bytes.as_slice(), 1 << 20);
    }
}
