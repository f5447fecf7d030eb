//! One connection: requests one after the other, each under its deadline, with a heartbeat while it runs.

use std::{
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    access::Peer,
    frame::{
        Answer, AnswerBody, Envelope, FrameError, REQUEST_BYTES_MAX, VersionOnly, parse, read_bytes,
        write_frame,
    },
    held::{Held, Holding},
    limits::Limits,
    message::{ControlError, ControlHandler, ErrorCode, Progress, ProgressSink, Request, VERSION},
    seldom::{Lines, shown},
    timed::{Incoming, Outgoing, takes_more},
    weigh,
};

/// Progress is sent at most this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// JSON values of one request: three for each file that it may name, one where each is a group, and more than the rest has.
const VALUES_MAX: usize = 5 * Request::FILES_MAX;

pub struct Session<'a> {
    pub peer: Peer,
    pub handler: &'a dyn ControlHandler,
    pub limits: Limits,
    pub held: &'a Arc<Held>,
    pub lines: &'a Lines,
}

/// The writing side of a connection, shared by the request and its heartbeat.
struct Reply {
    stream: Mutex<UnixStream>,
    /// See [`Limits::frame`].
    frame: Duration,
    /// The client is gone, or has had its last answer: nothing may be written any more.
    closed: AtomicBool,
}

impl Session<'_> {
    /// Until the client closes, is silent for too long, or sends nonsense.
    pub fn run(&self, stream: &UnixStream) {
        let Ok(writer) = stream.try_clone() else { return };
        let frame = self.limits.frame;
        let reply = Arc::new(Reply { stream: Mutex::new(writer), frame, closed: AtomicBool::new(false) });
        while !reply.closed.load(Ordering::Acquire) {
            match self.next_request(stream) {
                Ok((envelope, held)) => {
                    self.answer(&reply, envelope);
                    drop(held);
                }
                Err(Refused::Quiet) => return,
                Err(Refused::Answer(error)) => {
                    reply.last(AnswerBody::Error(error));
                    return;
                }
            }
        }
    }

    /// The request, and its room, which is taken until it is answered.
    fn next_request(&self, stream: &UnixStream) -> Result<(Envelope, Holding), Refused> {
        let mut from = Incoming::new(stream, self.limits.idle, self.limits.frame);
        let mut held = self.held.begin(&self.peer);
        let error = match read_bytes(&mut from, REQUEST_BYTES_MAX, &mut |len| held.grow_to(len)) {
            Ok(bytes) => return Ok((understand(&bytes)?, held)),
            Err(error) => error,
        };
        match error {
            FrameError::TimedOut if from.has_begun() => {
                let seconds = self.limits.frame.as_secs_f32();
                let message = format!("the request did not come whole within {seconds} s");
                Err(Refused::Answer(ControlError::new(ErrorCode::TimedOut, message)))
            }
            FrameError::Closed | FrameError::TimedOut | FrameError::Io(_) => Err(Refused::Quiet),
            FrameError::NoRoom => {
                self.lines.refusal(&self.peer, "too many bytes of requests are held");
                let message = "too many large requests at the same time: try again";
                Err(Refused::Answer(ControlError::new(ErrorCode::Busy, message)))
            }
            FrameError::TooLong(_) | FrameError::Malformed(_) => Err(bad(error.to_string())),
        }
    }

    fn answer(&self, reply: &Arc<Reply>, envelope: Envelope) {
        let request = envelope.request;
        let name = request.name();
        if let Err(error) = self.check(&request) {
            reply.send(AnswerBody::Error(error));
            return;
        }
        let deadline = envelope.deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms.min(YEAR_MS)));
        let last = Arc::new(Mutex::new(Progress::default()));
        let (done, is_done) = mpsc::channel::<()>();
        let heart = {
            let (reply, last) = (reply.clone(), last.clone());
            let beat = self.limits.heartbeat;
            std::thread::Builder::new()
                .name("control-beat".into())
                .spawn(move || heartbeat(&reply, &last, &is_done, beat, deadline))
        };
        let mut sink = Sink { reply, last: &last, deadline, sent: None };
        let result = self.handler.handle(&self.peer, request, &mut sink);
        drop(done);
        if let Ok(heart) = heart {
            let _ = heart.join();
        }
        match result {
            Ok(response) => reply.send(AnswerBody::Result(response)),
            Err(error) => {
                self.note_failure(name, &error);
                reply.send(AnswerBody::Error(error));
            }
        }
    }

    fn note_failure(&self, request: &str, error: &ControlError) {
        let left_out = if self.peer.privileged { Some(0) } else { self.lines.failed.due(Instant::now()) };
        if let Some(left_out) = left_out {
            let error = shown(&error.message);
            tracing::info!(request, uid = self.peer.uid, error, left_out, "a command failed");
        }
    }

    fn check(&self, request: &Request) -> Result<(), ControlError> {
        if request.needs_privilege() && !self.peer.privileged {
            return Err(ControlError::not_allowed(request.name()));
        }
        let bad = |message: String| Err(ControlError::new(ErrorCode::BadRequest, message));
        let files = request.files();
        if files.len() > Request::FILES_MAX {
            return bad(format!("{} files in one request: at most {}", files.len(), Request::FILES_MAX));
        }
        if let Some(file) = files.iter().find(|file| file.path.len() > Request::PATH_BYTES_MAX) {
            return bad(format!("a path of {} bytes: at most {}", file.path.len(), Request::PATH_BYTES_MAX));
        }
        Ok(())
    }
}

/// No deadline is longer; keeps the arithmetic of `Instant` in range.
const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

enum Refused {
    /// The client is gone or silent.
    Quiet,
    /// The client is told, then the connection ends.
    Answer(ControlError),
}

fn bad(message: String) -> Refused {
    Refused::Answer(ControlError::new(ErrorCode::BadRequest, message))
}

fn understand(bytes: &[u8]) -> Result<Envelope, Refused> {
    let version: VersionOnly = parse(bytes).map_err(|e| bad(e.to_string()))?;
    if version.version != VERSION {
        let theirs = version.version;
        return Err(bad(format!(
            "the command speaks version {theirs} of the protocol, this daemon {VERSION}: use the onfs of the daemon"
        )));
    }
    // Before anything is made of them.
    weigh::at_most(VALUES_MAX, bytes).map_err(|e| bad(format!("not a message: {e}")))?;
    parse(bytes).map_err(|e| bad(e.to_string()))
}

/// Repeats the last progress so that the client knows that the daemon lives; at the deadline it answers in place of
/// the request, which goes on and notices at its next step.
fn heartbeat(
    reply: &Reply,
    last: &Mutex<Progress>,
    is_done: &mpsc::Receiver<()>,
    beat: Duration,
    deadline: Option<Instant>,
) {
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        match is_done.recv_timeout(left.map_or(beat, |left| left.min(beat))) {
            Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            return reply.last(AnswerBody::Error(timed_out()));
        }
        reply.offer(&last.lock().clone());
    }
}

fn timed_out() -> ControlError {
    ControlError::new(ErrorCode::TimedOut, "the deadline passed before it was done; what was begun goes on")
}

impl Reply {
    fn send(&self, body: AnswerBody) {
        self.write(&self.stream.lock(), body);
    }

    /// Sends progress if the client takes it at once: a request waits for no client that does not read.
    fn offer(&self, progress: &Progress) {
        if let Some(stream) = self.stream.try_lock()
            && takes_more(&stream)
        {
            self.write(&stream, AnswerBody::Progress(progress.clone()));
        }
    }

    fn write(&self, stream: &UnixStream, body: AnswerBody) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let answer = Answer { version: VERSION, body };
        if write_frame(&mut Outgoing::new(stream, self.frame), &answer).is_err() {
            self.closed.store(true, Ordering::Release);
            // Ends the reader too: a half-written frame cannot be followed by another.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Sends the connection's last answer.
    fn last(&self, body: AnswerBody) {
        self.send(body);
        self.closed.store(true, Ordering::Release);
        let _ = self.stream.lock().shutdown(std::net::Shutdown::Both);
    }
}

struct Sink<'a> {
    reply: &'a Reply,
    last: &'a Mutex<Progress>,
    deadline: Option<Instant>,
    sent: Option<Instant>,
}

impl ProgressSink for Sink<'_> {
    fn report(&mut self, progress: Progress) -> Result<(), ControlError> {
        let now = Instant::now();
        if self.deadline.is_some_and(|at| now >= at) {
            return Err(timed_out());
        }
        *self.last.lock() = progress.clone();
        if self.sent.is_none_or(|at| now.duration_since(at) >= PROGRESS_EVERY) {
            self.sent = Some(now);
            self.reply.offer(&progress);
        }
        if self.reply.closed.load(Ordering::Acquire) {
            return Err(ControlError::new(ErrorCode::Failed, "the command was ended"));
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    //! Goal: whatever a peer sends, the daemon answers or closes, and memory grows with what arrived; what the daemon
    //! understood means the same when it is sent again. Method: [`fuzzing`] of frames with one request of each kind, and
    //! of answers.
    use std::io::Cursor;

    use super::*;
    use crate::{
        control::{
            frame::{ANSWER_BYTES_MAX, read_frame},
            ledger::{Finding, GateReport, ListReport, Reason},
            message::{FileRef, Response},
            report::{MemoryReport, MoveReport, StatusReport},
        },
        policy::{PolicyChange, Promote},
    };
    use fuzzing::{as_it_is, fuzz};
    use types::TierId;

    fn framed(message: &impl serde::Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, message).unwrap();
        bytes
    }

    /// Makes the length right.
    fn mend(bytes: &mut [u8]) {
        let len = bytes.len().saturating_sub(4) as u32;
        if let Some(head) = bytes.first_chunk_mut() {
            *head = len.to_le_bytes();
        }
    }

    fn requests() -> Vec<Request> {
        let file = || FileRef { ino: 0x0102_0304_0506, path: "/mnt/\"a\" ä".to_owned() };
        vec![
            Request::Status {},
            Request::File { file: file() },
            Request::Migrate { files: vec![file(), file()], to: TierId::Ssd, wait: true },
            Request::Pin { files: vec![file()], to: None },
            Request::PolicySet { dir: file(), changes: vec![PolicyChange::Promote(Some(Promote::OnOpen))] },
            Request::QuotaSet { dir: file(), bytes: Some(1 << 40), inodes: None },
            Request::MemorySet { bytes: 2 << 30 },
            Request::Scrub { action: crate::control::ScrubAction::StartAndWait },
            Request::Run { run: Some(7), files: vec![file()], groups: vec![1], joined: true, more: true },
            Request::PlanShow { name: "python train.py".into(), uid: Some(1000) },
            Request::List { dir: file(), after: 7 },
            Request::Gate { places: vec![file()], wait_ms: 1500 },
            Request::ForgetConflicts { place: file(), numbers: vec![1, u64::MAX] },
            Request::LinkAccept { device: u64::MAX, number: 2, empty_too: false },
            Request::Unmount { lazy: true },
        ]
    }

    fn read_request(bytes: &[u8]) -> Result<Envelope, FrameError> {
        let body = read_bytes(&mut Cursor::new(bytes), REQUEST_BYTES_MAX, &mut |_| true)?;
        understand(&body).map_err(|refused| match refused {
            Refused::Answer(error) => FrameError::Malformed(error.message),
            Refused::Quiet => FrameError::Closed,
        })
    }

    #[test]
    fn fuzz_control_request() {
        let envelope = |request| Envelope { version: VERSION, deadline_ms: Some(1500), request };
        let good: Vec<_> = requests().into_iter().map(|request| framed(&envelope(request))).collect();
        fuzz(
            "control-request",
            &good,
            |bytes| mend(bytes),
            |bytes| match read_request(bytes) {
                Ok(request) => {
                    assert_eq!(read_request(&framed(&request)).unwrap(), request);
                    assert_eq!(request.version, VERSION);
                }
                Err(FrameError::Malformed(why)) => assert!(!why.is_empty()),
                Err(FrameError::TooLong(len)) => assert!(len > REQUEST_BYTES_MAX),
                Err(error) => assert!(bytes.is_empty(), "silence is for those who closed: {error}"),
            },
        );
    }

    #[test]
    fn fuzz_control_answer() {
        let answer = |body| framed(&Answer { version: VERSION, body });
        let moved = MoveReport { files_done: 3, bytes: 1 << 40, ..MoveReport::default() };
        let good = [
            answer(AnswerBody::Progress(Progress {
                done: 1,
                total: 2,
                unit: Default::default(),
                what: "x".to_owned(),
            })),
            answer(AnswerBody::Result(Response::Status(Box::<StatusReport>::default()))),
            answer(AnswerBody::Result(Response::Moved(moved))),
            answer(AnswerBody::Result(Response::Memory(MemoryReport::default()))),
            answer(AnswerBody::Result(Response::List(ListReport::default()))),
            answer(AnswerBody::Result(Response::Gate(GateReport {
                findings: vec![Finding {
                    path: "/a".to_owned(),
                    ino: 2,
                    reason: Reason::Memory,
                    message: "x".to_owned(),
                }],
                ..GateReport::default()
            }))),
            answer(AnswerBody::Result(Response::Done)),
            answer(AnswerBody::Error(timed_out())),
        ];
        fuzz(
            "control-answer",
            &good,
            |bytes| mend(bytes),
            |bytes| {
                if let Ok(answer) = read_frame::<Answer>(&mut Cursor::new(bytes), ANSWER_BYTES_MAX) {
                    let again =
                        read_frame::<Answer>(&mut Cursor::new(framed(&answer)), ANSWER_BYTES_MAX).unwrap();
                    assert_eq!(again, answer);
                }
            },
        );
    }

    /// Two bytes each, which the parser would keep as 32 and more until it knew what they are for.
    #[test]
    fn regression_many_small_values_are_refused_before_they_are_kept() {
        let head = format!("{{\"version\":{VERSION},\"request\":{{\"do\":\"unpin\",\"files\":[0");
        let text = head + &",0".repeat(1 << 20) + "]}}";
        let Err(Refused::Answer(error)) = understand(text.as_bytes()) else { panic!("it was understood") };
        assert!(error.message.contains("values"), "{error}");
        // What may be asked has room.
        let files = vec![FileRef { ino: u64::MAX, path: "x".into() }; Request::FILES_MAX];
        let groups = vec![1; Request::FILES_MAX];
        let request = Request::Run { run: Some(1), files, groups, joined: true, more: true };
        let all = Envelope { version: VERSION, deadline_ms: Some(1), request };
        assert!(understand(&serde_json::to_vec(&all).unwrap()).is_ok());
        let files = vec![FileRef { ino: u64::MAX, path: "x".into() }; Request::FILES_MAX];
        let request = Request::Migrate { files, to: TierId::Nearline, wait: true };
        let all = Envelope { version: VERSION, deadline_ms: Some(1), request };
        assert!(understand(&serde_json::to_vec(&all).unwrap()).is_ok());
    }

    /// The command sends a request off at a sum of path bytes; a frame takes them however they are written.
    #[test]
    fn a_frame_takes_what_the_command_puts_into_one() {
        let longest = "\u{1}".repeat(Request::PATH_BYTES_MAX);
        let count = Request::PATH_BYTES_SUM / longest.len() + 1;
        let mut files = vec![FileRef { ino: u64::MAX, path: longest }; count];
        files.resize(Request::FILES_MAX, FileRef { ino: u64::MAX, path: String::new() });
        let request = Request::Migrate { files, to: TierId::Nearline, wait: true };
        let whole = framed(&Envelope { version: VERSION, deadline_ms: Some(u64::MAX), request });
        assert!(whole.len() as u64 <= u64::from(REQUEST_BYTES_MAX), "{}", whole.len());
        assert!(u64::from(REQUEST_BYTES_MAX) <= Limits::default().held_bytes_per_user);
    }

    #[test]
    fn fuzz_control_length() {
        // A length that promises more than comes.
        fuzz("control-length", &[framed(&Request::Status {})], as_it_is, |bytes| {
            let mut grown = 0;
            let _ = read_bytes(&mut Cursor::new(bytes), REQUEST_BYTES_MAX, &mut |len| {
                grown = len;
                true
            });
            assert!(grown <= bytes.len() as u64 + (64 << 10), "{grown} bytes of memory for {}", bytes.len());
        });
    }
}
