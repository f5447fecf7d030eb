//! The frame: a header of 80 bytes, the meta (protobuf), the body (raw bytes). All numbers are little-endian.
//!
//! | at | bytes | field | |
//! |---|---|---|---|
//! | 0 | 4 | magic | `ONFW` |
//! | 4 | 2 | version | 0 in the handshake, then the one agreed on |
//! | 6 | 1 | kind | [`Kind`] |
//! | 7 | 1 | flags | of an answer, see [`Verdict`]; 0 in others |
//! | 8 | 2 | method | of a request, and of its answer |
//! | 10 | 2 | | 0 |
//! | 12 | 4 | meta length | |
//! | 16 | 4 | body length | |
//! | 20 | 4 | answer limit | of a request: bytes of body that the answer may have |
//! | 24 | 4 | time left | of a request: milliseconds from its sending to its deadline |
//! | 28 | 4 | body sum | CRC-32C |
//! | 32 | 8 | request id | of a request, its answer, its cancellation |
//! | 40 | 8 | epoch | of the map that the sender acts under |
//! | 48 | 8 | trace | |
//! | 56 | 8 | job | |
//! | 64 | 8 | meta sum | SipHash-2-4, key of the direction |
//! | 72 | 8 | header sum | the same, of the frame's number in its direction and bytes 0 to 71 |
//!
//! - I-WIRE-1: no length is believed that is above its limit, and nothing is allocated for a header before it is proved whole.
//! - I-WIRE-2: a frame is taken once, in its place, on its own connection: the keys are the connection's (zeros in the
//!   handshake), and the number counts.
//!
//! It refuses to know what a method means.

use std::{fmt, hash::Hasher};

use bytes::Bytes;
use siphasher::sip::SipHasher24;
use thiserror::Error;

use crate::sum;

pub const HEADER_LEN: usize = 80;
const MAGIC: u32 = u32::from_le_bytes(*b"ONFW");
/// Of handshake frames, whose form never changes.
pub const HANDSHAKE_VERSION: u16 = 0;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Parts of the handshake: who I am, so am I, the proof, accepted; and no.
    Hello,
    Welcome,
    Proof,
    Accepted,
    Refusal,
    Request,
    Answer,
    /// The sender waits for this answer no longer. The answer comes nevertheless: it returns the credit.
    Cancel,
    Ping,
    Pong,
    /// The sender makes no more requests, and refuses those that come.
    Goodbye,
}

impl Kind {
    const ALL: [Kind; 11] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Proof,
        Kind::Accepted,
        Kind::Refusal,
        Kind::Request,
        Kind::Answer,
        Kind::Cancel,
        Kind::Ping,
        Kind::Pong,
        Kind::Goodbye,
    ];

    const fn raw(self) -> u8 {
        match self {
            Kind::Hello => 1,
            Kind::Welcome => 2,
            Kind::Proof => 3,
            Kind::Accepted => 4,
            Kind::Refusal => 5,
            Kind::Request => 16,
            Kind::Answer => 17,
            Kind::Cancel => 18,
            Kind::Ping => 19,
            Kind::Pong => 20,
            Kind::Goodbye => 21,
        }
    }

    /// Whether only a handshake has such frames.
    pub const fn in_handshake(self) -> bool {
        self.raw() < 16
    }
}

/// What an answer says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Carried out. So have frames that are no answers.
    Done,
    /// It failed; the meta is a [`Fault`](crate::schema::Fault).
    Fault,
    /// It was not looked at, since its deadline was over or the peer is leaving.
    Refused,
}

impl Verdict {
    const ALL: [Verdict; 3] = [Verdict::Done, Verdict::Fault, Verdict::Refused];

    const fn raw(self) -> u8 {
        match self {
            Verdict::Done => 0,
            Verdict::Fault => 1,
            Verdict::Refused => 2,
        }
    }
}

/// A header's fields, without magic, version, and what is worked out from meta and body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    pub kind: Kind,
    pub verdict: Verdict,
    pub method: u16,
    pub answer_bytes_max: u32,
    pub left_ms: u32,
    pub id: u64,
    pub epoch: u64,
    pub trace: u64,
    pub job: u64,
}

impl Header {
    /// All zeros beside `kind`.
    pub const fn of(kind: Kind) -> Header {
        Header {
            kind,
            verdict: Verdict::Done,
            method: 0,
            answer_bytes_max: 0,
            left_ms: 0,
            id: 0,
            epoch: 0,
            trace: 0,
            job: 0,
        }
    }
}

/// What a connection takes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    pub meta: u32,
    pub body: u32,
}

impl Limits {
    /// A meta has names, attributes and lists of at most a few hundred entries; a body is at most a stripe unit, which at 1 GB/s
    /// holds up what comes behind it for 4 ms.
    pub const DEFAULT: Limits = Limits { meta: 64 << 10, body: 4 << 20 };
    /// In a handshake: before anybody is known, little is held for him.
    pub const HANDSHAKE: Limits = Limits { meta: 1 << 10, body: 32 };
}

/// The body of a frame that is to be sent, with its sum: so the sum is made once, by whoever has the bytes, and not under a
/// lock of the connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Body {
    bytes: Bytes,
    sum: u32,
}

impl Body {
    pub fn new(bytes: impl Into<Bytes>) -> Body {
        let bytes = bytes.into();
        let sum = sum::of(&bytes);
        Body { bytes, sum }
    }

    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The key of one direction of a connection.
#[derive(Clone, Copy)]
pub struct SumKey([u8; 16]);

impl SumKey {
    /// Of handshakes: the sums tell damage, and nothing of who made them.
    pub const OPEN: SumKey = SumKey([0; 16]);

    pub(crate) const fn new(key: [u8; 16]) -> SumKey {
        SumKey(key)
    }

    fn sum(self, number: u64, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&number.to_le_bytes());
        hasher.write(bytes);
        hasher.finish()
    }
}

impl fmt::Debug for SumKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SumKey(..)")
    }
}

/// A header's field, and the other parts of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    Magic,
    Version,
    Kind,
    Flags,
    Reserved,
    MetaLen,
    BodyLen,
    HeaderSum,
    MetaSum,
    BodySum,
}

impl Field {
    /// Its place in the header.
    pub const fn at(self) -> u64 {
        match self {
            Field::Magic => 0,
            Field::Version => 4,
            Field::Kind => 6,
            Field::Flags => 7,
            Field::Reserved => 10,
            Field::MetaLen => 12,
            Field::BodyLen => 16,
            Field::BodySum => 28,
            Field::MetaSum => 64,
            Field::HeaderSum => 72,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Field::Magic => "magic",
            Field::Version => "version",
            Field::Kind => "kind",
            Field::Flags => "flags",
            Field::Reserved => "reserved bytes",
            Field::MetaLen => "meta length",
            Field::BodyLen => "body length",
            Field::HeaderSum => "header sum",
            Field::MetaSum => "meta sum",
            Field::BodySum => "body sum",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A frame that is none. Nothing behind it can be read: the connection has to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("frame {number}: {field} (byte {at} of the stream): {fault}")]
pub struct FrameError {
    /// Of the frame in its direction, from 0.
    pub number: u64,
    pub field: Field,
    /// Where the field begins, counted from the first byte of the direction.
    pub at: u64,
    pub fault: FrameFault,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum FrameFault {
    #[error("{found:#x} is not what a frame has there")]
    Unknown { found: u64 },
    #[error("{found} is more than the {limit} allowed")]
    TooLong { found: u64, limit: u64 },
    #[error("version {found} on a connection of version {agreed}")]
    OtherVersion { found: u16, agreed: u16 },
    #[error("the bytes are damaged, or not the peer's")]
    Sum,
}

/// Where a frame stands: what its sums are made with, and what its errors name.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub version: u16,
    pub key: SumKey,
    pub number: u64,
    /// Of its first byte in the direction.
    pub at: u64,
}

impl Place {
    /// The first frame of a direction.
    pub const fn first(version: u16, key: SumKey) -> Place {
        Place { version, key, number: 0, at: 0 }
    }

    /// Moves on behind a frame of `len` bytes.
    pub(crate) fn pass(&mut self, len: u64) {
        self.number += 1;
        self.at += len;
    }

    pub(crate) fn error(&self, field: Field, fault: FrameFault) -> FrameError {
        FrameError { number: self.number, field, at: self.at + field.at(), fault }
    }
}

/// A header as it came, with what it says of the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    pub header: Header,
    pub meta_len: u32,
    pub body_len: u32,
    pub(crate) meta_sum: u64,
    pub(crate) body_sum: u32,
}

impl Head {
    pub(crate) fn check_meta(&self, place: &Place, meta: &[u8]) -> Result<(), FrameError> {
        if place.key.sum(place.number, meta) == self.meta_sum {
            return Ok(());
        }
        Err(place.error(Field::MetaSum, FrameFault::Sum))
    }

    pub(crate) fn frame_len(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.meta_len) + u64::from(self.body_len)
    }
}

/// Can these be the first bytes of a frame, at least four of them?
pub fn is_ours(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// The bytes of a header for this meta and body, which the caller has held against the limits.
pub fn encode(place: &Place, header: &Header, meta: &[u8], body: &Body) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, &MAGIC.to_le_bytes());
    put(4, &place.version.to_le_bytes());
    put(6, &[header.kind.raw(), header.verdict.raw()]);
    put(8, &header.method.to_le_bytes());
    put(12, &(meta.len() as u32).to_le_bytes());
    put(16, &(body.len() as u32).to_le_bytes());
    put(20, &header.answer_bytes_max.to_le_bytes());
    put(24, &header.left_ms.to_le_bytes());
    put(28, &body.sum.to_le_bytes());
    put(32, &header.id.to_le_bytes());
    put(40, &header.epoch.to_le_bytes());
    put(48, &header.trace.to_le_bytes());
    put(56, &header.job.to_le_bytes());
    put(64, &place.key.sum(place.number, meta).to_le_bytes());
    let sum = place.key.sum(place.number, &bytes[..72]);
    bytes[72..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// For fuzzing: makes the sums of a changed header right. The place of the next frame.
#[doc(hidden)]
pub fn mended(place: &Place, header: &mut [u8], meta: &[u8], body: &[u8]) -> Place {
    header[28..32].copy_from_slice(&sum::of(body).to_le_bytes());
    header[64..72].copy_from_slice(&place.key.sum(place.number, meta).to_le_bytes());
    let sum = place.key.sum(place.number, &header[..72]);
    header[72..80].copy_from_slice(&sum.to_le_bytes());
    let mut next = *place;
    next.pass((HEADER_LEN + meta.len() + body.len()) as u64);
    next
}

/// Reads a header and holds every field against `limits`.
pub fn decode(place: &Place, limits: &Limits, bytes: &[u8; HEADER_LEN]) -> Result<Head, FrameError> {
    let wrong = |field, found| Err(place.error(field, FrameFault::Unknown { found }));
    // What is no frame at all, or of another version, is told from a damaged one.
    if u32_at(bytes, 0) != MAGIC {
        return wrong(Field::Magic, u32_at(bytes, 0).into());
    }
    let version = u16_at(bytes, 4);
    if version != place.version {
        let fault = FrameFault::OtherVersion { found: version, agreed: place.version };
        return Err(place.error(Field::Version, fault));
    }
    if place.key.sum(place.number, &bytes[..72]) != u64_at(bytes, 72) {
        return Err(place.error(Field::HeaderSum, FrameFault::Sum));
    }
    let Some(kind) = Kind::ALL.into_iter().find(|k| k.raw() == bytes[6]) else {
        return wrong(Field::Kind, bytes[6].into());
    };
    let verdict = Verdict::ALL.into_iter().find(|v| v.raw() == bytes[7]);
    let Some(verdict) = verdict.filter(|v| *v == Verdict::Done || kind == Kind::Answer) else {
        return wrong(Field::Flags, bytes[7].into());
    };
    if u16_at(bytes, 10) != 0 {
        return wrong(Field::Reserved, u16_at(bytes, 10).into());
    }
    let (meta_len, body_len) = (u32_at(bytes, 12), u32_at(bytes, 16));
    for (field, found, limit) in
        [(Field::MetaLen, meta_len, limits.meta), (Field::BodyLen, body_len, limits.body)]
    {
        if found > limit {
            let fault = FrameFault::TooLong { found: found.into(), limit: limit.into() };
            return Err(place.error(field, fault));
        }
    }
    let header = Header {
        kind,
        verdict,
        method: u16_at(bytes, 8),
        answer_bytes_max: u32_at(bytes, 20),
        left_ms: u32_at(bytes, 24),
        id: u64_at(bytes, 32),
        epoch: u64_at(bytes, 40),
        trace: u64_at(bytes, 48),
        job: u64_at(bytes, 56),
    };
    Ok(Head { header, meta_len, body_len, meta_sum: u64_at(bytes, 64), body_sum: u32_at(bytes, 28) })
}

fn field<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

fn u16_at(bytes: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_le_bytes(field(bytes, at))
}

fn u32_at(bytes: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

fn u64_at(bytes: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}
