//! What the journal says at the start: which commits to replay, and whether what is missing may be missing.
//!
//! A power cut keeps any part of what was not synced: the first hole ends the replay, and whole frames after it
//! are dropped. But if a later frame proves (by its `synced` field) that the missing commit was durable, then
//! the journal is damaged, and opening it as if nothing were wrong would lose acknowledged commits. Pure, apart
//! from reading the files.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::{
    Disk, Lsn, OpenError,
    frame::{self, FRAME_HEADER_BYTES, FrameHeader, HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader},
    journal,
    key::Key,
};

/// What opening the store found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Commits taken from the journal into the engine.
    pub replayed: u64,
    /// Commits from the first hole on, as far as the journal still knows of them; not taken. They were never
    /// synced, unless `repaired`.
    pub dropped: u64,
    /// Where the replay ended, when it was not the journal's clean end.
    pub cut_at: Option<(PathBuf, u64)>,
    /// The cut lost commits that had been synced, and was asked for.
    pub repaired: bool,
}

/// One commit to replay.
pub(crate) struct Replay {
    pub lsn: Lsn,
    pub entries: Vec<(Key, Option<Bytes>)>,
}

/// Everything found in one segment file.
struct Scanned {
    path: PathBuf,
    sequence: u64,
    frames: Vec<Found>,
    /// The first place that holds neither a frame nor the clean end.
    bad_at: Option<u64>,
}

/// A frame's header that belongs here. Its body may be damaged.
struct Found {
    offset: u64,
    header: FrameHeader,
    entries: Option<Vec<(Key, Option<Bytes>)>>,
}

pub(crate) struct Recovered {
    pub replay: Vec<Replay>,
    pub report: RecoveryReport,
    /// All segment files, oldest first, to be deleted when the engine has the replay.
    pub segments: Vec<PathBuf>,
    pub next_sequence: u64,
}

/// Reads the segments in `dir`; `applied` is what the engine has.
pub(crate) fn recover(
    disk: &dyn Disk,
    dir: &Path,
    applied: Lsn,
    repair: bool,
) -> Result<Recovered, OpenError> {
    let files = disk.list(dir).map_err(|e| OpenError::io(dir, &e))?;
    let mut numbered: Vec<_> =
        files.into_iter().filter_map(|p| Some((journal::sequence_of(&p)?, p))).collect();
    numbered.sort();
    let mut scanned = Vec::new();
    for (sequence, path) in &numbered {
        let bytes = disk.read(path).map_err(|e| OpenError::io(path, &e))?;
        scanned.push(scan(path, *sequence, &bytes)?);
    }
    let (replay, report) = plan(scanned, applied, repair)?;
    let next_sequence = numbered.last().map_or(1, |(sequence, _)| sequence + 1);
    Ok(Recovered {
        replay,
        report,
        segments: numbered.into_iter().map(|(_, path)| path).collect(),
        next_sequence,
    })
}

/// Finds every frame in a segment, also those after damage.
fn scan(path: &Path, sequence: u64, bytes: &[u8]) -> Result<Scanned, OpenError> {
    let mut scanned = Scanned { path: path.to_owned(), sequence, frames: Vec::new(), bad_at: None };
    let header = match SegmentHeader::decode(bytes) {
        Ok(header) if header.sequence == sequence => header,
        Err(HeaderError::Newer(found)) => {
            return Err(OpenError::Newer { path: path.to_owned(), found, known: frame::FORMAT_VERSION });
        }
        // Frames cannot be told from other bytes without it. It is durable before the first frame is written, so
        // bytes after it mean damage, and zeros mean that the segment was never used.
        Ok(_) | Err(HeaderError::Invalid) => {
            let unused = bytes.get(SEGMENT_HEADER_BYTES..).is_none_or(all_zero);
            scanned.bad_at = (!unused).then_some(0);
            return Ok(scanned);
        }
    };
    let seed = header.seed();
    let mut at = SEGMENT_HEADER_BYTES;
    while at < bytes.len() {
        let found = FrameHeader::decode(&bytes[at..], seed);
        let entries = found.and_then(|header| frame::entries(header.body(&bytes[at..])?));
        let whole = entries.is_some();
        if let Some(header) = found {
            scanned.frames.push(Found { offset: at as u64, header, entries });
            if whole {
                at += FRAME_HEADER_BYTES + header.body_len;
                continue;
            }
        }
        if scanned.bad_at.is_none() {
            if all_zero(&bytes[at..]) {
                break;
            }
            scanned.bad_at = Some(at as u64);
        }
        match frame::find_magic(bytes, at + 1) {
            Some(next) => at = next,
            None => break,
        }
    }
    Ok(scanned)
}

/// The first commit that cannot be replayed, though something after it is there.
struct Hole {
    path: PathBuf,
    offset: u64,
    detail: String,
}

/// Takes the commits after `applied` without a hole, and judges the first hole.
fn plan(
    scanned: Vec<Scanned>,
    applied: Lsn,
    repair: bool,
) -> Result<(Vec<Replay>, RecoveryReport), OpenError> {
    let mut report = RecoveryReport::default();
    let mut replay = Vec::new();
    let mut next = Lsn(applied.0 + 1);
    let mut hole: Option<Hole> = None;
    // The highest commit that was durable for certain, and the highest that was there at all.
    let (mut proven, mut seen) = (applied, applied);
    let mut previous: Option<(u64, PathBuf, Option<u64>)> = None;
    for Scanned { path, sequence, frames, bad_at } in scanned {
        if hole.is_none() && bad_at == Some(0) {
            hole = Some(Hole {
                path: path.clone(),
                offset: 0,
                detail: "the segment's header is wrong".to_owned(),
            });
            proven = Lsn(u64::MAX);
        }
        for found in frames {
            let lsn = found.header.lsn;
            proven = proven.max(found.header.synced);
            seen = seen.max(lsn);
            match found.entries {
                Some(entries) if lsn == next && hole.is_none() => {
                    replay.push(Replay { lsn, entries });
                    report.cut_at = None;
                    next = Lsn(next.0 + 1);
                }
                Some(_) | None if lsn >= next && hole.is_none() => {
                    let first = found.offset == SEGMENT_HEADER_BYTES as u64;
                    let follows = previous.as_ref().is_some_and(|(before, ..)| before + 1 == sequence);
                    // Segments are deleted only when the engine has them: one that is not there was lost.
                    if first && !follows && lsn > next {
                        proven = Lsn(u64::MAX);
                    }
                    let (path, offset) = match &previous {
                        Some((_, earlier, Some(bad))) if first => (earlier.clone(), *bad),
                        Some(_) | None => (path.clone(), bad_at.unwrap_or(found.offset)),
                    };
                    let detail = format!("commit {next} is missing, but there is something of commit {lsn}");
                    hole = Some(Hole { path, offset, detail });
                }
                Some(_) | None => {}
            }
        }
        if let (None, Some(offset)) = (&hole, bad_at) {
            report.cut_at = Some((path.clone(), offset));
        }
        previous = Some((sequence, path, bad_at));
    }
    report.replayed = replay.len() as u64;
    if let Some(Hole { path, offset, detail }) = hole {
        if proven >= next && !repair {
            return Err(OpenError::Damaged { path, offset, detail });
        }
        report.repaired = proven >= next;
        report.dropped = (seen.0 + 1).saturating_sub(next.0);
        report.cut_at = Some((path, offset));
    }
    Ok((replay, report))
}

fn all_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |any, b| any | b) == 0)
}
