//! A copy of the end of another server's journal, in a file: what a standby has stored when it says so.
//!
//! - I-COPY-1: what [`CopyFile::append`] has returned for is found again after the process was killed, whole and in order.
//! - I-COPY-2: of what is found nothing is missing in the middle: damage is an error. What a kill left of an append at the end is left out.
//! - I-COPY-3: a copy of an earlier run of the kernel is not found: it is not synced, so a power cut may have taken its end.
//!
//! ```text
//! header  "ONFSCOPY" | version u32 | 0 u32 | copy u64 | base u64 | salt u64 | boot id 16 bytes (zeros: not known) | crc32c u32 | 0 u32
//! record  bytes u32 | kind u32 | number u64 | lsn u64 | crc32c of the bytes u32 | crc32c of what is before, begun with the salt's, u32 | the bytes
//! ```
//!
//! Little-endian. Kinds: 1 a commit (its body), 2 anything else (its bytes are not known here, and lsn is 0). Numbers do not fall: what is known
//! when a copy begins has the number of its base.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use bytes::Bytes;

use crate::{BootId, Disk, FRAME_BYTES_MAX, Lsn, OpenError, SystemDisk};

const MAGIC: [u8; 8] = *b"ONFSCOPY";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const HEADER_CRC_AT: usize = 56;
const RECORD_HEADER_BYTES: usize = 32;
const COMMIT: u32 = 1;
const OTHER: u32 = 2;

/// One record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyRecord {
    /// In the copy.
    pub number: u64,
    /// Of a commit, whose body the bytes are; `None`: it is something else.
    pub lsn: Option<Lsn>,
    pub bytes: Bytes,
}

/// Which copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyName {
    pub copy: u64,
    /// It has the records above this.
    pub base: u64,
}

/// A copy that is open for more.
pub struct CopyFile {
    path: PathBuf,
    file: File,
    seed: u32,
    last: u64,
    bytes: u64,
    /// An append failed: what is in the file is not known.
    broken: bool,
}

impl CopyFile {
    /// Begins a copy with some records, in place of whatever was there: after a kill there is one or the other. Also for the same copy without
    /// what is no longer needed.
    pub fn begin(path: &Path, name: CopyName, records: &[CopyRecord]) -> io::Result<CopyFile> {
        use std::hash::{BuildHasher, RandomState};
        let salt = RandomState::new().hash_one(name.copy);
        let (new, seed) = (path.with_extension("new"), crc32c::crc32c(&salt.to_le_bytes()));
        let mut file = File::create(&new)?;
        file.write_all(&header(name, salt, SystemDisk.boot_id()))?;
        let mut copy = CopyFile {
            path: path.to_owned(),
            file,
            seed,
            last: name.base,
            bytes: HEADER_BYTES as u64,
            broken: false,
        };
        copy.append(records)?;
        std::fs::rename(&new, path)?;
        Ok(copy)
    }

    /// In one write. An error: the copy takes no more, and what it has is what is found.
    pub fn append(&mut self, records: &[CopyRecord]) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an earlier record was not written"));
        }
        let mut last = self.last;
        let mut bytes = Vec::new();
        for record in records {
            if record.number < last || record.bytes.len() > FRAME_BYTES_MAX {
                return Err(io::Error::other(format!("record {} cannot follow {last}", record.number)));
            }
            last = record.number;
            encode(record, self.seed, &mut bytes);
        }
        if let Err(error) = self.file.write_all(&bytes) {
            self.broken = true;
            return Err(error);
        }
        (self.last, self.bytes) = (last, self.bytes + bytes.len() as u64);
        Ok(())
    }

    /// Of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }

    /// What a process before this one had stored. `None`: nothing that can be gone by.
    pub fn find(path: &Path) -> Result<Option<(CopyName, Vec<CopyRecord>)>, OpenError> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => Bytes::from(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(OpenError::io(path, &error)),
        };
        let Some((name, salt, boot)) = read_header(&bytes, path)? else { return Ok(None) };
        if boot.is_none() || boot != SystemDisk.boot_id() {
            tracing::warn!(path = %path.display(), "a copy of another server's journal is older than this run of the machine, and is not used");
            return Ok(None);
        }
        read_records(&bytes, crc32c::crc32c(&salt.to_le_bytes()), name.base, path)
            .map(|records| Some((name, records)))
    }
}

fn header(name: CopyName, salt: u64, boot: Option<BootId>) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&name.copy.to_le_bytes());
    bytes[24..32].copy_from_slice(&name.base.to_le_bytes());
    bytes[32..40].copy_from_slice(&salt.to_le_bytes());
    bytes[40..56].copy_from_slice(&boot.map_or([0; 16], |boot| boot.0));
    let crc = crc32c::crc32c(&bytes[..HEADER_CRC_AT]);
    bytes[HEADER_CRC_AT..HEADER_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

type Header = (CopyName, u64, Option<BootId>);

fn read_header(bytes: &[u8], path: &Path) -> Result<Option<Header>, OpenError> {
    let Some(header) = bytes.get(..HEADER_BYTES).filter(|header| header[..8] == MAGIC) else {
        return Err(damaged(path, 0, "it does not begin as a copy of a journal"));
    };
    let version = u32_at(header, 8);
    if version > VERSION {
        return Err(OpenError::Newer { path: path.to_owned(), found: version, known: VERSION });
    }
    if crc32c::crc32c(&header[..HEADER_CRC_AT]) != u32_at(header, HEADER_CRC_AT) {
        return Err(damaged(path, 0, "its header does not match its checksum"));
    }
    let mut boot = [0; 16];
    boot.copy_from_slice(&header[40..56]);
    let boot = (boot != [0; 16]).then_some(BootId(boot));
    let name = CopyName { copy: u64_at(header, 16), base: u64_at(header, 24) };
    Ok(Some((name, u64_at(header, 32), boot)))
}

fn encode(record: &CopyRecord, seed: u32, out: &mut Vec<u8>) {
    let at = out.len();
    let (kind, lsn) = record.lsn.map_or((OTHER, 0), |lsn| (COMMIT, lsn.0));
    out.extend((record.bytes.len() as u32).to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(record.number.to_le_bytes());
    out.extend(lsn.to_le_bytes());
    out.extend(crc32c::crc32c(&record.bytes).to_le_bytes());
    let crc = crc32c::crc32c_append(seed, &out[at..]);
    out.extend(crc.to_le_bytes());
    out.extend_from_slice(&record.bytes);
}

fn read_records(bytes: &Bytes, seed: u32, base: u64, path: &Path) -> Result<Vec<CopyRecord>, OpenError> {
    let (mut records, mut at, mut last) = (Vec::new(), HEADER_BYTES, base);
    while let Some(header) = bytes.get(at..at + RECORD_HEADER_BYTES) {
        let (len, kind) = (u32_at(header, 0) as usize, u32_at(header, 4));
        let number = u64_at(header, 8);
        let sealed = crc32c::crc32c_append(seed, &header[..28]) == u32_at(header, 28);
        if !sealed || !matches!(kind, COMMIT | OTHER) || number < last || len > FRAME_BYTES_MAX {
            return Err(damaged(path, at, "a record's header is wrong"));
        }
        let from = at + RECORD_HEADER_BYTES;
        // A kill came in the middle of it.
        let Some(body) = bytes.get(from..from + len) else { break };
        if crc32c::crc32c(body) != u32_at(header, 24) {
            return Err(damaged(path, at, "a record does not match its checksum"));
        }
        let lsn = (kind == COMMIT).then(|| Lsn(u64_at(header, 16)));
        records.push(CopyRecord { number, lsn, bytes: bytes.slice(from..from + len) });
        (last, at) = (number, from + len);
    }
    Ok(records)
}

fn damaged(path: &Path, offset: usize, detail: &str) -> OpenError {
    OpenError::Damaged { path: path.to_owned(), offset: offset as u64, detail: detail.to_owned() }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    //! Goal: what was stored is found, a cut end is left out, damage is an error and never other records. Method: golden bytes, files that are
    //! cut at each byte and changed at each byte.
    use super::*;

    const NAME: CopyName = CopyName { copy: 3, base: 10 };

    fn records() -> Vec<CopyRecord> {
        let commit = |number, lsn, bytes: &'static [u8]| CopyRecord {
            number,
            lsn: Some(Lsn(lsn)),
            bytes: Bytes::from_static(bytes),
        };
        let answer = CopyRecord { number: 12, lsn: None, bytes: Bytes::from_static(b"answer") };
        vec![commit(11, 70, b"one"), answer, commit(13, 71, b"")]
    }

    #[test]
    fn the_bytes_are_these() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let boot = Some(BootId(*b"0123456789abcdef"));
        assert_eq!(hex(&header(NAME, 0x1122_3344_5566_7788, boot)), GOLDEN_HEADER);
        let mut record = Vec::new();
        encode(&records()[0], 7, &mut record);
        assert_eq!(hex(&record), GOLDEN_RECORD);
    }

    #[test]
    fn what_was_stored_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        assert_eq!(CopyFile::find(&path).unwrap(), None);
        let mut copy = CopyFile::begin(&path, NAME, &records()[..1]).unwrap();
        copy.append(&records()[1..]).unwrap();
        copy.append(&[]).unwrap();
        assert_eq!(CopyFile::find(&path).unwrap(), Some((NAME, records())));
        assert_eq!(copy.bytes(), std::fs::metadata(&path).unwrap().len());
        assert!(copy.append(&records()[..1]).is_err(), "11 does not follow 13");
        // The same copy, without what the engine has.
        let shorter = CopyName { base: 12, ..NAME };
        let copy = CopyFile::begin(&path, shorter, &records()[2..]).unwrap();
        assert_eq!(CopyFile::find(&path).unwrap(), Some((shorter, records()[2..].to_vec())));
        copy.remove().unwrap();
        assert_eq!(CopyFile::find(&path).unwrap(), None);
    }

    #[test]
    fn a_cut_end_is_left_out_and_damage_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("copy"), dir.path().join("other"));
        CopyFile::begin(&path, NAME, &records()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in HEADER_BYTES..whole.len() {
            std::fs::write(&other, &whole[..cut]).unwrap();
            let (name, found) = CopyFile::find(&other).unwrap().unwrap();
            assert!(name == NAME && found.len() < 3 && found == records()[..found.len()], "{cut}");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x10;
            std::fs::write(&other, &wrong).unwrap();
            // The last four bytes of the header say nothing.
            let silent = (HEADER_CRC_AT + 4..HEADER_BYTES).contains(&at);
            assert_eq!(CopyFile::find(&other).is_ok(), silent, "byte {at}");
        }
    }

    #[test]
    fn a_copy_of_an_earlier_run_of_the_kernel_is_not_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy");
        for boot in [None, Some(BootId([7; 16]))] {
            std::fs::write(&path, header(NAME, 1, boot)).unwrap();
            assert_eq!(CopyFile::find(&path).unwrap(), None);
        }
        std::fs::write(&path, header(NAME, 1, SystemDisk.boot_id())).unwrap();
        assert_eq!(CopyFile::find(&path).unwrap(), Some((NAME, Vec::new())));
        let mut newer = header(NAME, 1, SystemDisk.boot_id());
        newer[8] = 2;
        std::fs::write(&path, newer).unwrap();
        assert!(matches!(CopyFile::find(&path), Err(OpenError::Newer { .. })));
    }

    const GOLDEN_HEADER: &str = "4f4e4653434f5059010000000000000003000000000000000a00000000000000\
        887766554433221130313233343536373839616263646566258db7bd00000000";
    const GOLDEN_RECORD: &str = "03000000010000000b000000000000004600000000000000\
        e9b2942a78abe37a6f6e65";
}
