//! Goal: whatever stands in the journal, in the engine's lists and in the files beside them, its reader neither panics nor
//! takes memory by what it promises; a record has one encoding; a damaged segment never gives another commit.
//! Method: [`fuzzing`]; a segment once with its checksums mended, once as damage leaves it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use fuzzing::{as_it_is, fuzz};

use crate::{
    BootId, Disk, DiskFile, Lsn, OpenError, Space,
    engine::checked,
    frame::{self, FRAME_HEADER_BYTES, FRAMES_OFFSET, FrameHeader, MARK_OFFSET, SegmentHeader},
    key::Key,
    recovery, state_dir,
    write_set::WriteSet,
};

const BOOT: BootId = BootId(*b"0123456789abcdef");
const HEADER: SegmentHeader = SegmentHeader { sequence: 7, salt: 0x1122_3344_5566_7788, boot: Some(BOOT) };
const COMMITS: u64 = 5;

type Entries = Vec<(Key, Option<Bytes>)>;

/// What commit `lsn` writes.
fn commit(lsn: u64) -> WriteSet {
    let mut writes = WriteSet::new();
    for n in 0..lsn {
        writes.put(format!("key {n}").as_bytes(), Bytes::from(vec![lsn as u8; 3 * n as usize]));
        writes.delete(format!("a longer key that does not fit in place {n}").as_bytes());
    }
    writes
}

fn framed(lsn: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&commit(lsn), &mut bytes);
    frame::seal(&mut bytes, HEADER.seed(), Lsn(lsn), Lsn(lsn - 1));
    bytes
}

fn put(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

fn mend_header(bytes: &mut [u8]) {
    if bytes.len() >= 52 {
        put(bytes, 48, crc32c::crc32c(&bytes[..48]));
    }
}

fn mend_mark(bytes: &mut [u8], seed: u32) {
    if bytes.len() >= 16 {
        put(bytes, 4, crc32c::crc32c_append(seed, &bytes[8..16]));
    }
}

/// Makes the frame at the start of `bytes` whole, if its length lets it. Returns where the next one begins.
fn mend_frame(bytes: &mut [u8], seed: u32) -> Option<usize> {
    let (header, rest) = bytes.split_at_mut_checked(FRAME_HEADER_BYTES)?;
    let body_len = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize;
    let body = rest.get(..body_len);
    if let Some(body) = body {
        put(header, 24, crc32c::crc32c(body));
    }
    let next = body.map(|_| FRAME_HEADER_BYTES + body_len);
    put(header, 28, crc32c::crc32c_append(seed, &header[..28]));
    next
}

#[test]
fn fuzz_segment_header() {
    let unknown = SegmentHeader { boot: None, ..HEADER };
    fuzz(
        "segment-header",
        &[HEADER.encode().to_vec(), unknown.encode().to_vec()],
        |bytes| mend_header(bytes),
        |bytes| {
            if let Ok(header) = SegmentHeader::decode(bytes) {
                // The version and two fields of zeros are not looked at.
                let (again, common) = (header.encode(), 16..52);
                if bytes[8..16] == again[8..16] {
                    assert_eq!(again[common.clone()], bytes[common]);
                }
                assert_eq!(SegmentHeader::decode(&again), Ok(header));
            }
        },
    );
}

#[test]
fn fuzz_mark() {
    let seed = HEADER.seed();
    let good = |lsn| frame::encode_mark(Lsn(lsn), seed).to_vec();
    fuzz(
        "mark",
        &[good(1), good(u64::MAX)],
        |bytes| mend_mark(bytes, seed),
        |bytes| {
            let mut segment = vec![0; MARK_OFFSET];
            segment.extend_from_slice(bytes);
            if let Some(synced) = frame::decode_mark(&segment, seed) {
                assert_eq!(frame::encode_mark(synced, seed), bytes[..16]);
            }
        },
    );
}

#[test]
fn fuzz_frame() {
    let seed = HEADER.seed();
    let good: Vec<_> = (1..=COMMITS).map(framed).collect();
    fuzz(
        "frame",
        &good,
        |bytes| {
            mend_frame(bytes, seed);
        },
        |bytes| {
            let Some(header) = FrameHeader::decode(bytes, seed) else { return };
            let Some(body) = header.body(bytes) else { return };
            let Some(entries) = frame::entries(body) else { return };
            assert_eq!(encoded(&entries), body);
        },
    );
}

/// The body of the frame that has these entries.
fn encoded(entries: &Entries) -> Vec<u8> {
    let mut body = (entries.len() as u32).to_le_bytes().to_vec();
    for (key, value) in entries {
        body.extend((key.len() as u16).to_le_bytes());
        body.extend(value.as_ref().map_or(u32::MAX, |value| value.len() as u32).to_le_bytes());
        body.extend_from_slice(key);
        body.extend_from_slice(value.as_deref().unwrap_or_default());
    }
    body
}

fn segment() -> Vec<u8> {
    let mut bytes = vec![0; FRAMES_OFFSET];
    bytes[..64].copy_from_slice(&HEADER.encode());
    bytes[MARK_OFFSET..MARK_OFFSET + 16].copy_from_slice(&frame::encode_mark(Lsn(2), HEADER.seed()));
    for lsn in 1..=COMMITS {
        bytes.extend(framed(lsn));
    }
    bytes.extend([0; 200]);
    bytes
}

fn mend_segment(bytes: &mut [u8]) {
    mend_header(bytes);
    // The seed that the mended header gives, if it is one.
    let Ok(header) = SegmentHeader::decode(bytes) else { return };
    if let Some(mark) = bytes.get_mut(MARK_OFFSET..MARK_OFFSET + 16).filter(|mark| mark[..4] != [0; 4]) {
        mend_mark(mark, header.seed());
    }
    let mut at = FRAMES_OFFSET;
    while let Some(found) = frame::find_magic(bytes, at) {
        at = found + mend_frame(&mut bytes[found..], header.seed()).unwrap_or(1);
    }
}

fn recovered(bytes: &[u8], repair: bool) -> Result<recovery::Recovered, OpenError> {
    recovery::recover(&OneSegment(bytes.to_vec()), Path::new("journal"), Lsn(0), repair)
}

#[test]
fn fuzz_segment() {
    fuzz(
        "segment",
        &[segment()],
        |bytes| mend_segment(bytes),
        |bytes| match recovered(bytes, false) {
            Ok(found) => {
                let numbers: Vec<_> = found.replay.iter().map(|replay| replay.lsn.0).collect();
                let expected: Vec<_> = (1..=numbers.len() as u64).collect();
                assert_eq!(numbers, expected, "commits without a hole");
                assert!(!found.report.repaired);
            }
            Err(OpenError::Damaged { .. } | OpenError::Newer { .. }) => {
                // A repair takes what can be had, and refuses only what another release wrote.
                let repaired = recovered(bytes, true);
                assert!(matches!(repaired, Ok(_) | Err(OpenError::Newer { .. })));
            }
            Err(other) => panic!("{other:?} is neither damage nor another version"),
        },
    );
}

#[test]
fn fuzz_segment_damage() {
    fuzz("segment-damage", &[segment()], as_it_is, |bytes| {
        for repair in [false, true] {
            let Ok(found) = recovered(bytes, repair) else { continue };
            for replay in found.replay {
                assert!((1..=COMMITS).contains(&replay.lsn.0), "commit {} was never written", replay.lsn);
                assert_eq!(replay.entries, commit(replay.lsn.0).into_entries());
            }
        }
    });
}

#[test]
fn regression_a_commit_with_the_highest_number_is_counted() {
    // Goal: a number that no journal reaches ends in an error or a repair. Method: a frame with it behind good ones.
    let mut bytes = segment();
    let last = bytes.len() - 200 - framed(COMMITS).len();
    bytes[last + 8..last + 16].copy_from_slice(&u64::MAX.to_le_bytes());
    mend_segment(&mut bytes);
    assert!(matches!(recovered(&bytes, false), Err(OpenError::Damaged { .. })));
    let report = recovered(&bytes, true).unwrap_or_else(|e| panic!("{e}")).report;
    assert_eq!((report.replayed, report.dropped), (COMMITS - 1, u64::MAX - COMMITS));
}

#[test]
fn fuzz_engine_tables() {
    let table = |id: u8| [&[id, 0, 0, 0, 0, 0, 0, 0][..], &[id; 25]].concat();
    let run = |ids: &[u8]| {
        let tables: Vec<u8> = ids.iter().flat_map(|id| table(*id)).collect();
        [&(ids.len() as u32).to_le_bytes()[..], &tables].concat()
    };
    let good = [&[3, 2][..], &run(&[1, 2]), &run(&[3]), &[0, 1], &run(&[4, 5, 6])].concat();
    fuzz("engine-tables", &[good], as_it_is, |bytes| {
        let _ = checked::parse(bytes);
    });
}

#[test]
fn fuzz_state_format() {
    let path = Path::new("FORMAT");
    let good = [state_dir::format_text("lsm-tree").into_bytes()];
    fuzz("state-format", &good, as_it_is, |bytes| match state_dir::parse_format(bytes, path) {
        Ok(engine) => assert!(bytes.starts_with(b"onfs-metadata") && !engine.contains('\n')),
        Err(OpenError::Damaged { .. } | OpenError::Newer { .. }) => {}
        Err(other) => panic!("{other:?} is neither damage nor another version"),
    });
}

#[test]
fn fuzz_boot_id() {
    fuzz("boot-id", &[b"0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n".to_vec()], as_it_is, |bytes| {
        let _ = BootId::parse(&String::from_utf8_lossy(bytes));
    });
}

/// A directory with one segment.
struct OneSegment(Vec<u8>);

impl Disk for OneSegment {
    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(vec![crate::journal::segment_path(dir, HEADER.sequence)])
    }
    fn create(&self, _: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Ok(self.0.clone())
    }
    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn open_or_create(&self, _: &Path) -> io::Result<(Arc<dyn DiskFile>, u64)> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn space(&self, _: &Path) -> io::Result<Space> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn boot_id(&self) -> Option<BootId> {
        Some(BOOT)
    }
}
