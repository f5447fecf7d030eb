//! The command's end of a connection.

use std::{
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use super::{
    frame::{ANSWER_BYTES_MAX, Answer, AnswerBody, Envelope, FrameError, read_frame, write_frame},
    message::{ControlError, ErrorCode, Progress, Request, Response, VERSION},
    peer::pid_of,
    socket,
};

/// How long a daemon may be silent while it works; it sends progress at least every second.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How much later than its deadline an answer may come.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens: the daemon is not running.
    #[error("the daemon does not run: {0}")]
    NotRunning(std::io::Error),
    /// The socket is not for this user.
    #[error("the daemon does not talk to this user: {0}")]
    NotAllowed(std::io::Error),
    #[error("the daemon did not answer in time")]
    TimedOut,
    /// It ended in the middle of a request.
    #[error("the daemon ended while it worked on the request")]
    Ended,
    #[error("the daemon's answer makes no sense: {0}")]
    Malformed(String),
    /// The daemon's own answer.
    #[error(transparent)]
    Refused(ControlError),
}

/// A connection to a daemon; requests go one after the other.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    pub fn connect(path: &Path) -> Result<Client, CallError> {
        let stream = socket::connect(path).map_err(|error| {
            if error.kind() == std::io::ErrorKind::PermissionDenied {
                CallError::NotAllowed(error)
            } else {
                CallError::NotRunning(error)
            }
        })?;
        Ok(Client { stream })
    }

    /// The daemon's process, as the kernel knows it.
    pub fn daemon_pid(&self) -> Option<rustix::process::Pid> {
        pid_of(&self.stream)
    }

    /// Sends a request and waits for its result. Without a deadline it waits as long as the daemon shows signs of life.
    pub fn call(
        &mut self,
        request: Request,
        deadline: Option<Duration>,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Response, CallError> {
        let end = deadline.map(|d| Instant::now() + d + GRACE);
        let deadline_ms = deadline.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
        self.set_timeouts(end)?;
        let sent = write_frame(&mut self.stream, &Envelope { version: VERSION, deadline_ms, request });
        // A daemon that refuses the connection answers and closes without reading; its reason is worth more.
        let unsent = sent.err().map(failed);
        loop {
            self.set_timeouts(end)?;
            let answer: Answer = match read_frame(&mut self.stream, ANSWER_BYTES_MAX) {
                Ok(answer) => answer,
                Err(error) => return Err(unsent.unwrap_or_else(|| failed(error))),
            };
            match answer.body {
                AnswerBody::Error(error) => return Err(CallError::Refused(error)),
                AnswerBody::Progress(step) => progress(&step),
                AnswerBody::Result(response) if answer.version == VERSION => return Ok(response),
                AnswerBody::Result(_) => {
                    return Err(CallError::Refused(ControlError::new(
                        ErrorCode::BadRequest,
                        format!("the daemon speaks version {}, this command {VERSION}", answer.version),
                    )));
                }
            }
        }
    }

    fn set_timeouts(&self, end: Option<Instant>) -> Result<(), CallError> {
        let left =
            end.map_or(SILENCE_MAX, |end| end.saturating_duration_since(Instant::now()).min(SILENCE_MAX));
        if left.is_zero() {
            return Err(CallError::TimedOut);
        }
        let set = self.stream.set_read_timeout(Some(left)).and(self.stream.set_write_timeout(Some(left)));
        set.map_err(|e| CallError::Malformed(e.to_string()))
    }
}

fn failed(error: FrameError) -> CallError {
    match error {
        FrameError::Closed | FrameError::Io(_) => CallError::Ended,
        FrameError::TimedOut => CallError::TimedOut,
        FrameError::TooLong(_) | FrameError::Malformed(_) | FrameError::NoRoom => {
            CallError::Malformed(error.to_string())
        }
    }
}
