//! What is looked at in the engine's files before the engine opens them, because it would not notice, or would not live
//! through it: a missing first file, a manifest that is not what was written, a table of contents with wild numbers.
//!
//! All other parts of its files carry checksums that it compares when it reads them.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use xxhash_rust::xxh3::xxh3_128;

use crate::OpenError;

/// `SFA!`, version 1, kind of checksum 0, XXH3-128 of the table of contents, its place and its length.
const TRAILER_BYTES: u64 = 38;
const TRAILER_BEGINS: [u8; 6] = *b"SFA!\x01\x00";
/// Of a table of contents: a dozen entries.
const CONTENTS_BYTES_MAX: u64 = 1 << 16;

/// Names the manifest. Without it the engine would take the directory for a new one, and its files for garbage.
pub(super) const CURRENT: &str = "current";
pub(super) const TABLES: &str = "tables";

/// Looks at the engine's directory `dir`. One without any file is a new one.
pub(super) fn check(dir: &Path) -> Result<(), OpenError> {
    let Some(manifest) = manifest(dir)? else { return Ok(()) };
    let ids = tables_of(&manifest).map_err(|detail| damaged(manifest, &detail))?;
    for id in ids {
        let path = dir.join(TABLES).join(id.to_string());
        match File::open(&path).and_then(|file| contents_are_whole(&file)) {
            Ok(true) => {}
            Ok(false) => return Err(damaged(path, "its table of contents does not match its checksum")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(damaged(path, "it is missing")),
            Err(e) => return Err(OpenError::io(path, &e)),
        }
    }
    Ok(())
}

/// The number of the manifest that an opening would take.
pub(super) fn newest_version(dir: &Path) -> io::Result<u64> {
    let content = std::fs::read(dir.join(CURRENT))?;
    content.first_chunk().map(|number| u64::from_le_bytes(*number)).ok_or(io::ErrorKind::InvalidData.into())
}

/// Which file names it: told without a file descriptor.
pub(super) fn current_file(dir: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(std::fs::metadata(dir.join(CURRENT))?.ino())
}

/// The newest manifest, whole: the engine would believe whatever is in it.
fn manifest(dir: &Path) -> Result<Option<PathBuf>, OpenError> {
    let path = dir.join(CURRENT);
    let content = match std::fs::read(&path) {
        Ok(content) => content,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return if is_empty(&dir.join(TABLES))? { Ok(None) } else { Err(damaged(path, "it is missing")) };
        }
        Err(e) => return Err(OpenError::io(path, &e)),
    };
    // The manifest's number, its XXH3-128, and 0 for that kind of checksum.
    let (Some(number), Some(sum), 25) = (content.first_chunk(), content.get(8..24), content.len()) else {
        return Err(damaged(path, "it has not 25 bytes"));
    };
    let path = dir.join(format!("v{}", u64::from_le_bytes(*number)));
    match std::fs::read(&path) {
        Ok(manifest) if xxh3_128(&manifest).to_le_bytes() == sum => Ok(Some(path)),
        Ok(_) => Err(damaged(path, "it does not match its checksum")),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(damaged(path, "it is missing")),
        Err(e) => Err(OpenError::io(path, &e)),
    }
}

/// The numbers of the files that a manifest names: levels, each of runs, each of tables of 33 bytes. Others, which a crash
/// left half written, are the engine's to delete.
fn tables_of(manifest: &Path) -> Result<Vec<u64>, String> {
    let failed = |what: &str| format!("its list of files cannot be read: {what}");
    let reader = sfa::Reader::new(manifest).map_err(|e| failed(&format!("{e:?}")))?;
    let section = reader.toc().section(b"tables").ok_or_else(|| failed("there is none"))?;
    let mut list = Vec::new();
    let mut bytes = section.buf_reader(manifest).map_err(|e| failed(&e.to_string()))?;
    bytes.read_to_end(&mut list).map_err(|e| failed(&e.to_string()))?;
    parse(&list).ok_or_else(|| failed("it is too short"))
}

pub(crate) fn parse(mut list: &[u8]) -> Option<Vec<u64>> {
    let mut take = |n: usize| {
        let (taken, rest) = list.split_at_checked(n)?;
        list = rest;
        Some(taken.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    };
    let mut ids = Vec::new();
    for _level in 0..take(1)? {
        for _run in 0..take(1)? {
            for _table in 0..take(4)? {
                ids.push(take(8)?);
                take(1 + 16 + 8)?;
            }
        }
    }
    Some(ids)
}

fn contents_are_whole(file: &File) -> io::Result<bool> {
    let len = file.metadata()?.len();
    let Some(end) = len.checked_sub(TRAILER_BYTES) else { return Ok(false) };
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.read_exact_at(&mut trailer, end)?;
    let number = |at: usize| trailer[at..at + 8].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
    let (place, contents_len) = (number(22), number(30));
    let fits = contents_len <= CONTENTS_BYTES_MAX && place.checked_add(contents_len) == Some(end);
    if trailer[..6] != TRAILER_BEGINS || !fits {
        return Ok(false);
    }
    let mut contents = vec![0; contents_len as usize];
    file.read_exact_at(&mut contents, place)?;
    Ok(xxh3_128(&contents).to_le_bytes() == trailer[6..22])
}

fn is_empty(dir: &Path) -> Result<bool, OpenError> {
    match std::fs::read_dir(dir) {
        Ok(mut list) => Ok(list.next().is_none()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(OpenError::io(dir, &e)),
    }
}

fn damaged(path: PathBuf, detail: &str) -> OpenError {
    OpenError::EngineDamaged { path, detail: detail.to_owned() }
}
