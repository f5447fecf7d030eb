//! Frames: a length and JSON.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::message::{ControlError, Progress, Request, Response};

/// Largest request. The command keeps the paths of one under [`Request::PATH_BYTES_SUM`].
pub const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// Largest answer.
pub const ANSWER_BYTES_MAX: u32 = 64 << 20;

/// A frame is read in pieces of this size.
const PIECE: usize = 64 << 10;

/// A request on the wire.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    pub version: u32,
    /// The client waits this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    pub request: Request,
}

/// The part of a request that every version has, read first.
#[derive(Deserialize)]
pub struct VersionOnly {
    pub version: u32,
}

/// One answer on the wire.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerBody {
    Progress(Progress),
    Result(Response),
    Error(ControlError),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    pub version: u32,
    #[serde(flatten)]
    pub body: AnswerBody,
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other end closed between frames.
    #[error("the connection was closed")]
    Closed,
    #[error("a frame of {0} bytes is too long")]
    TooLong(u32),
    #[error("not a message: {0}")]
    Malformed(String),
    #[error("the other end did not answer in time")]
    TimedOut,
    /// See [`read_bytes`].
    #[error("there is no room for it now")]
    NoRoom,
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> FrameError {
        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            FrameError::TimedOut
        } else {
            FrameError::Io(error)
        }
    }
}

/// Writes one frame with one write.
pub fn write_frame(to: &mut impl Write, message: &impl Serialize) -> Result<(), FrameError> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(|e| FrameError::Malformed(e.to_string()))?;
    let length = u32::try_from(bytes.len() - 4).map_err(|_| FrameError::TooLong(u32::MAX))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    to.write_all(&bytes)?;
    Ok(to.flush()?)
}

/// Reads the bytes of one frame. Memory grows with what arrives, not with what the length promises; before it grows,
/// `room` hears to how many bytes, and may refuse.
pub fn read_bytes(
    from: &mut impl Read,
    longest: u32,
    room: &mut dyn FnMut(u64) -> bool,
) -> Result<Vec<u8>, FrameError> {
    let mut head = [0; 4];
    match fill(from, &mut head)? {
        0 => return Err(FrameError::Closed),
        4 => {}
        _ => return Err(FrameError::Malformed("the frame ends in its length".into())),
    }
    let promised = u32::from_le_bytes(head);
    if promised > longest {
        return Err(FrameError::TooLong(promised));
    }
    let length = promised as usize;
    let mut body = Vec::new();
    while body.len() < length {
        let had = body.len();
        let piece = PIECE.min(length - had);
        if !room((had + piece) as u64) {
            return Err(FrameError::NoRoom);
        }
        body.reserve_exact(piece);
        body.resize(had + piece, 0);
        let got = had + fill(from, &mut body[had..])?;
        if got < body.len() {
            return Err(FrameError::Malformed(format!("the frame ends after {got} of {length} bytes")));
        }
    }
    Ok(body)
}

/// Reads until `buf` is full or the other end has closed; returns how much came.
fn fill(from: &mut impl Read, buf: &mut [u8]) -> Result<usize, FrameError> {
    let mut got = 0;
    while got < buf.len() {
        match from.read(&mut buf[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(got)
}

/// Reads one message.
pub fn read_frame<T: DeserializeOwned>(from: &mut impl Read, longest: u32) -> Result<T, FrameError> {
    parse(&read_bytes(from, longest, &mut |_| true)?)
}

pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(bytes).map_err(|e| FrameError::Malformed(e.to_string()))
}
