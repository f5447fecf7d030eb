//! What the journal says at the start: which commits to replay, and whether what is missing may be missing.
//!
//! A power cut keeps any part of what was not synced: the first hole ends the replay, and whole frames after it
//! are dropped. But if a later frame (by its `synced` field) or a segment's mark proves that the missing commit was durable, then
//! the journal is damaged, and opening it as if nothing were wrong would lose acknowledged commits. If the kernel
//! still runs in which the segment was written, no power cut excuses a hole: all that may be missing is the end of
//! the last frame, whose write a kill interrupted. Pure, apart from reading the files.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::{
    BootId, Disk, Lsn, OpenError,
    frame::{
        self, FRAME_HEADER_BYTES, FRAMES_OFFSET, FrameHeader, HeaderError, SEGMENT_HEADER_BYTES,
        SegmentHeader,
    },
    journal,
    key::Key,
};

/// What opening the store found and did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// Commits taken from the journal into the engine.
    pub replayed: u64,
    /// Commits from the first hole on, as far as the journal still knows of them; not taken. They were acknowledged,
    /// but a power cut came before they were synced, unless `repaired`.
    pub dropped: u64,
    /// Where the replay ended, when it was not the journal's clean end.
    pub cut_at: Option<(PathBuf, u64)>,
    /// The cut is at damage, may have lost commits that no power cut excuses, and was asked for.
    pub repaired: bool,
}

/// One commit to replay.
pub(crate) struct Replay {
    pub lsn: Lsn,
    pub entries: Vec<(Key, Option<Bytes>)>,
}

impl Replay {
    /// About what its frame had.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries
            .iter()
            .map(|(key, value)| (key.len() + value.as_ref().map_or(0, Bytes::len) + 6) as u64)
            .sum()
    }
}

/// Everything found in one segment file, in order.
struct Scanned {
    path: PathBuf,
    sequence: u64,
    /// No power cut came since it was written.
    same_boot: bool,
    /// What its mark says.
    synced: Lsn,
    pieces: Vec<Piece>,
}

/// A frame, or a place that is neither a frame nor the clean end.
struct Piece {
    offset: u64,
    /// A frame's header that belongs here.
    header: Option<FrameHeader>,
    /// The frame is whole.
    entries: Option<Vec<(Key, Option<Bytes>)>>,
    /// What is here cannot come from a cut of any kind.
    certain_damage: bool,
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
    let boot = disk.boot_id();
    let mut scanned = Vec::new();
    for (sequence, path) in &numbered {
        let bytes = disk.read(path).map_err(|e| OpenError::io(path, &e))?;
        scanned.push(scan(path, *sequence, &bytes, boot)?);
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
fn scan(path: &Path, sequence: u64, bytes: &[u8], boot: Option<BootId>) -> Result<Scanned, OpenError> {
    let mut scanned =
        Scanned { path: path.to_owned(), sequence, same_boot: false, synced: Lsn(0), pieces: Vec::new() };
    let header = match SegmentHeader::decode(bytes) {
        Ok(header) if header.sequence == sequence => header,
        Err(HeaderError::Newer(found)) => {
            return Err(OpenError::Newer { path: path.to_owned(), found, known: frame::FORMAT_VERSION });
        }
        // Frames cannot be told from other bytes without it. It is durable before the first frame is written, so
        // bytes after it mean damage, and zeros mean that the segment was never used.
        Ok(_) | Err(HeaderError::Invalid) => {
            if !bytes.get(SEGMENT_HEADER_BYTES..).is_none_or(all_zero) {
                let piece = Piece { offset: 0, header: None, entries: None, certain_damage: true };
                scanned.pieces.push(piece);
            }
            return Ok(scanned);
        }
    };
    scanned.same_boot = boot.is_some() && header.boot == boot;
    let seed = header.seed();
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    scanned.synced = frame::decode_mark(bytes, seed).unwrap_or_default();
    let mut at = FRAMES_OFFSET;
    while at < end {
        let header = FrameHeader::decode(&bytes[at..], seed);
        let entries = header.and_then(|header| frame::entries(header.body(&bytes[at..])?));
        let whole = header.filter(|_| entries.is_some());
        let certain_damage = whole.is_none() && scanned.same_boot && !frame::is_torn(bytes, at, end, seed);
        // Of a run of bytes that say nothing, the first place is enough.
        let again = header.is_none() && scanned.pieces.last().is_some_and(|p| p.header.is_none());
        if !again {
            scanned.pieces.push(Piece { offset: at as u64, header, entries, certain_damage });
        }
        match whole.map(|header| at + FRAME_HEADER_BYTES + header.body_len) {
            Some(next) => at = next,
            None => at = frame::find_magic(bytes, at + 1).unwrap_or(end),
        }
    }
    Ok(scanned)
}

/// Where the replay has to end, or may have to.
struct Stop {
    path: PathBuf,
    offset: u64,
    /// No cut leaves that.
    certain_damage: bool,
    detail: String,
}

/// Takes commits in order until the first that cannot be replayed, though something of it or after it is there.
struct Planner {
    replay: Vec<Replay>,
    next: Lsn,
    /// The highest commit that was durable for certain, and the highest that was there at all.
    proven: Lsn,
    seen: Lsn,
    /// A bad place that holds nothing needed, if the next commit comes after it.
    bad: Option<Stop>,
    /// A commit is missing before another one.
    hole: Option<Stop>,
}

impl Planner {
    /// `segment_lost`: the segment before this one is not there.
    fn take(&mut self, segment: &Scanned, piece: Piece, segment_lost: bool) {
        let Piece { offset, header, entries, certain_damage } = piece;
        if let Some(header) = header {
            self.proven = self.proven.max(header.synced);
            self.seen = self.seen.max(header.lsn);
        }
        if self.hole.is_some() {
            return;
        }
        let (next, path) = (self.next, segment.path.clone());
        match (header.map(|header| header.lsn), entries) {
            (Some(lsn), Some(_)) if lsn < next => self.bad = None,
            (Some(lsn), Some(entries)) if lsn == next => {
                self.replay.push(Replay { lsn, entries });
                self.next = Lsn(next.0 + 1);
                self.bad = None;
            }
            (Some(lsn), _) if lsn > next => {
                let detail = format!("commit {next} is missing, but there is something of commit {lsn}");
                // Segments are deleted only when the engine has them: one that is not there was lost.
                let certain_damage = certain_damage || segment.same_boot || segment_lost;
                self.hole = Some(match self.bad.take() {
                    Some(bad) => Stop { certain_damage: certain_damage || bad.certain_damage, detail, ..bad },
                    None => Stop { path, offset, certain_damage, detail },
                });
            }
            (Some(_) | None, _) => {
                let detail = match header {
                    Some(header) => format!("commit {} was written, but is not whole", header.lsn),
                    None if offset == 0 => "the segment's header is wrong".to_owned(),
                    None => format!("what was written where commit {next} should be is no commit"),
                };
                if self.bad.as_ref().is_none_or(|bad| !bad.certain_damage) {
                    self.bad = Some(Stop { path, offset, certain_damage, detail });
                }
            }
        }
    }
}

/// Takes the commits after `applied` without a hole, and judges the first hole.
fn plan(
    scanned: Vec<Scanned>,
    applied: Lsn,
    repair: bool,
) -> Result<(Vec<Replay>, RecoveryReport), OpenError> {
    let next = Lsn(applied.0 + 1);
    let mut planner =
        Planner { replay: Vec::new(), next, proven: applied, seen: applied, bad: None, hole: None };
    let mut before: Option<u64> = None;
    let mut torn_write = false;
    let mut last_path = None;
    for mut segment in scanned {
        planner.proven = planner.proven.max(segment.synced);
        last_path = Some(segment.path.clone());
        let follows = before.is_some_and(|before| before + 1 == segment.sequence);
        for piece in std::mem::take(&mut segment.pieces) {
            let first = piece.offset == FRAMES_OFFSET as u64;
            torn_write = segment.same_boot && piece.entries.is_none() && !piece.certain_damage;
            planner.take(&segment, piece, first && !follows);
        }
        before = Some(segment.sequence);
    }
    let Planner { replay, next, proven, seen, bad, hole } = planner;
    let mut report = RecoveryReport { replayed: replay.len() as u64, ..RecoveryReport::default() };
    let interrupted = hole.is_none() && torn_write;
    // Nothing is where the last commits were, and they were durable.
    let vanished = last_path.filter(|_| proven >= next).map(|path| {
        let detail = format!("commit {next} was durable, and there is nothing of it");
        Stop { path, offset: 0, certain_damage: true, detail }
    });
    if let Some(Stop { path, offset, certain_damage, detail }) = hole.or(bad).or(vanished) {
        let damaged = certain_damage || proven >= next;
        if damaged && !repair {
            return Err(OpenError::Damaged { path, offset, detail });
        }
        report.repaired = damaged;
        // A commit whose write was interrupted by a kill was never one.
        report.dropped = if interrupted && !damaged {
            0
        } else {
            seen.max(proven).0.saturating_add(1).saturating_sub(next.0)
        };
        report.cut_at = Some((path, offset));
    }
    Ok((replay, report))
}

fn all_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |any, b| any | b) == 0)
}
