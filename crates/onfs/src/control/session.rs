//! One connection: requests one after the other, each under its deadline, with a heartbeat while it runs.

use std::{
    io::Read,
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
    message::{ControlError, ControlHandler, ErrorCode, Progress, ProgressSink, Request, VERSION},
};

/// Progress is sent at most this often.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// Bounds of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections at the same time; one more is refused. Each costs a thread.
    pub connections: usize,
    /// A connection that asks nothing for this long is closed; a frame must arrive within it.
    pub idle: Duration,
    /// A running request shows a sign of life this often.
    pub heartbeat: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 64, idle: Duration::from_secs(60), heartbeat: Duration::from_secs(5) }
    }
}

pub struct Session<'a> {
    pub peer: Peer,
    pub handler: &'a dyn ControlHandler,
    pub limits: Limits,
}

/// The writing side of a connection, shared by the request and its heartbeat.
struct Reply {
    stream: Mutex<UnixStream>,
    /// The client is gone, or has had its last answer: nothing may be written any more.
    closed: AtomicBool,
}

impl Session<'_> {
    /// Until the client closes, is silent for too long, or sends nonsense.
    pub fn run(&self, mut stream: UnixStream) {
        let idle = Some(self.limits.idle);
        let Ok(writer) = stream
            .set_read_timeout(idle)
            .and_then(|()| stream.set_write_timeout(idle))
            .and_then(|()| stream.try_clone())
        else {
            return;
        };
        let reply = Arc::new(Reply { stream: Mutex::new(writer), closed: AtomicBool::new(false) });
        while !reply.closed.load(Ordering::Acquire) {
            match read_request(&mut stream) {
                Ok(envelope) => self.answer(&reply, envelope),
                Err(Refused::Quiet) => return,
                Err(Refused::Answer(error)) => {
                    reply.last(AnswerBody::Error(error));
                    return;
                }
            }
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
                tracing::info!(request = name, uid = self.peer.uid, %error, "a command failed");
                reply.send(AnswerBody::Error(error));
            }
        }
    }

    fn check(&self, request: &Request) -> Result<(), ControlError> {
        if request.needs_privilege() && !self.peer.privileged {
            return Err(ControlError::not_allowed(request.name()));
        }
        if request.file_count() > Request::FILES_MAX {
            let message =
                format!("{} files in one request: at most {}", request.file_count(), Request::FILES_MAX);
            return Err(ControlError::new(ErrorCode::BadRequest, message));
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

fn read_request(stream: &mut impl Read) -> Result<Envelope, Refused> {
    let bad = |message: String| Refused::Answer(ControlError::new(ErrorCode::BadRequest, message));
    let bytes = match read_bytes(stream, REQUEST_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(FrameError::Closed | FrameError::TimedOut | FrameError::Io(_)) => return Err(Refused::Quiet),
        Err(error @ (FrameError::TooLong(_) | FrameError::Malformed(_))) => {
            return Err(bad(error.to_string()));
        }
    };
    let version: VersionOnly = parse(&bytes).map_err(|e| bad(e.to_string()))?;
    if version.version != VERSION {
        let theirs = version.version;
        return Err(bad(format!(
            "the command speaks version {theirs} of the protocol, this daemon {VERSION}: use the onfs of the daemon"
        )));
    }
    parse(&bytes).map_err(|e| bad(e.to_string()))
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
        reply.send(AnswerBody::Progress(last.lock().clone()));
    }
}

fn timed_out() -> ControlError {
    ControlError::new(ErrorCode::TimedOut, "the deadline passed before it was done; what was begun goes on")
}

impl Reply {
    fn send(&self, body: AnswerBody) {
        let mut stream = self.stream.lock();
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        if write_frame(&mut *stream, &Answer { version: VERSION, body }).is_err() {
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
            self.reply.send(AnswerBody::Progress(progress));
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
            Request::Unmount { lazy: true },
        ]
    }

    #[test]
    fn fuzz_control_request() {
        let envelope = |request| Envelope { version: VERSION, deadline_ms: Some(1500), request };
        let good: Vec<_> = requests().into_iter().map(|request| framed(&envelope(request))).collect();
        fuzz(
            "control-request",
            &good,
            |bytes| mend(bytes),
            |bytes| match read_request(&mut Cursor::new(bytes)) {
                Ok(request) => {
                    let again = read_request(&mut Cursor::new(framed(&request)));
                    assert!(again.is_ok_and(|again| again == request));
                    assert_eq!(request.version, VERSION);
                }
                Err(Refused::Answer(error)) => assert_eq!(error.code, ErrorCode::BadRequest),
                Err(Refused::Quiet) => assert!(bytes.is_empty(), "silence is for those who closed"),
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

    #[test]
    fn fuzz_control_length() {
        // A length that promises more than comes.
        fuzz("control-length", &[framed(&Request::Status {})], as_it_is, |bytes| {
            let _ = read_bytes(&mut Cursor::new(bytes), REQUEST_BYTES_MAX);
        });
    }
}
