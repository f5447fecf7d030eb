//! The directory of a store: who may use it, and in which format it is.
//!
//! ```text
//! LOCK      held (flock) by the process that has the store open, and its number
//! FORMAT    "onfs-metadata 1" and "engine <name>", one line each
//! engine/   the engine's own
//! journal/  segments
//! ```

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;

use crate::OpenError;

const FORMAT_NAME: &str = "onfs-metadata";
const DIRECTORY_FORMAT: u32 = 1;
/// What follows in a longer file is not ours.
const FORMAT_BYTES_MAX: u64 = 4096;
const PID_BYTES_MAX: u64 = 64;

/// Held while the store is open. The kernel drops it with the process.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Creates the directory when there is none.
    pub(crate) fn lock(path: &Path) -> Result<StateDir, OpenError> {
        std::fs::create_dir_all(path).map_err(|e| OpenError::io(path, &e))?;
        let lock_path = path.join("LOCK");
        let failed = |e: io::Error| OpenError::io(&lock_path, &e);
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(failed)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // Only to tell the user; the lock itself is what counts.
                let pid = lock
                    .take(PID_BYTES_MAX)
                    .read_to_string(&mut holder)
                    .ok()
                    .and_then(|_| holder.trim().parse().ok());
                return Err(OpenError::Locked { path: path.to_owned(), pid });
            }
            Err(e) => return Err(failed(e.into())),
        }
        // Never empty in between: its block is what a full disk would not give again.
        let text = format!("{}\n", std::process::id());
        lock.rewind().and_then(|()| lock.write_all(text.as_bytes())).map_err(failed)?;
        lock.set_len(text.len() as u64).map_err(failed)?;
        Ok(StateDir { path: path.to_owned(), _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn engine(&self) -> PathBuf {
        self.path.join("engine")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    /// Is there a store, and of which engine? Refuses what this release cannot read.
    pub(crate) fn read_format(&self) -> Result<Option<String>, OpenError> {
        engine_of(&self.path)
    }

    /// Marks a new store; durable when it returns.
    pub(crate) fn write_format(&self, engine: &str) -> Result<(), OpenError> {
        let (path, new) = (self.path.join("FORMAT"), self.path.join("FORMAT.new"));
        let write = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(format_text(engine).as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|e| OpenError::io(&path, &e))
    }
}

/// The engine of the store in `dir`, if there is a store. Opens nothing.
pub fn engine_of(dir: &Path) -> Result<Option<String>, OpenError> {
    let path = dir.join("FORMAT");
    let mut bytes = Vec::new();
    match File::open(&path).and_then(|file| file.take(FORMAT_BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(OpenError::io(path, &e)),
    }
    parse_format(&bytes, &path).map(Some)
}

pub(crate) fn format_text(engine: &str) -> String {
    format!("{FORMAT_NAME} {DIRECTORY_FORMAT}\nengine {engine}\n")
}

/// The engine that the file FORMAT names.
pub(crate) fn parse_format(bytes: &[u8], path: &Path) -> Result<String, OpenError> {
    let text = String::from_utf8_lossy(bytes);
    let damaged =
        |detail: &str| OpenError::Damaged { path: path.to_owned(), offset: 0, detail: detail.to_owned() };
    let mut lines = text.lines();
    let version: u32 = lines
        .next()
        .and_then(|line| line.strip_prefix(FORMAT_NAME)?.trim().parse().ok())
        .ok_or_else(|| damaged("the first line is not \"onfs-metadata\" and a number"))?;
    if version > DIRECTORY_FORMAT {
        return Err(OpenError::Newer { path: path.to_owned(), found: version, known: DIRECTORY_FORMAT });
    }
    let engine = lines.next().and_then(|line| line.strip_prefix("engine "));
    engine.map(str::to_owned).ok_or_else(|| damaged("the second line does not name the engine"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prelude::*, sample::Index};

    #[test]
    fn a_second_opener_learns_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::lock(dir.path()).unwrap();
        let refused = StateDir::lock(dir.path()).unwrap_err();
        let expected = OpenError::Locked { path: dir.path().to_owned(), pid: Some(std::process::id()) };
        assert_eq!(refused, expected);
        drop(first);
        StateDir::lock(dir.path()).unwrap();
    }

    #[test]
    fn formats_are_told_apart() {
        // Goal: new, ours, newer, damaged and foreign directories each have their own answer.
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::lock(dir.path()).unwrap();
        assert_eq!(state.read_format(), Ok(None));
        state.write_format("lsm-tree").unwrap();
        assert_eq!(state.read_format(), Ok(Some("lsm-tree".to_owned())));
        let format = dir.path().join("FORMAT");
        std::fs::write(&format, "onfs-metadata 2\nengine lsm-tree\n").unwrap();
        assert_eq!(state.read_format(), Err(OpenError::Newer { path: format.clone(), found: 2, known: 1 }));
        for bad in [
            "",
            "onfs-metadata",
            "onfs-metadata x\nengine lsm-tree",
            "onfs-metadata 1\nmotor",
            "\u{0}\u{fffd}",
        ] {
            std::fs::write(&format, bad).unwrap();
            assert!(matches!(state.read_format(), Err(OpenError::Damaged { .. })), "{bad:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Goal: no bytes in FORMAT make its reader panic, or pass for another version. Method: random bytes; damage.
        #[test]
        fn any_format_file(noise in prop::collection::vec(any::<u8>(), 0..60), at: Index, byte: u8) {
            let dir = tempfile::tempdir().unwrap();
            let state = StateDir::lock(dir.path()).unwrap();
            state.write_format("fjall").unwrap();
            let path = dir.path().join("FORMAT");
            let mut good = std::fs::read(&path).unwrap();
            let at = at.index(good.len());
            good[at] = byte;
            for bytes in [noise, good] {
                std::fs::write(&path, &bytes).unwrap();
                if let Ok(found) = state.read_format() {
                    prop_assert!(found.is_some() && bytes.starts_with(b"onfs-metadata"));
                }
            }
        }
    }
}
