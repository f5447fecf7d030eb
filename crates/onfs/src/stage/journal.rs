//! The journal's file: beside the destination, so that the same command finds it from any machine. One run has it at a time.
//!
//! It is not synced: what it says is compared with the destination before it is used.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};

use super::{
    known::{Boot, Known},
    record::{HEADER, Record, check_header, decode, header},
};
use crate::exit::{Exit, Failure, Outcome, system_text};

/// Records of small files are written when they come to so many bytes: what is lost of them is looked at again.
const PENDING_MAX: usize = 16 << 10;
/// Somebody who ends removes the file under one who begins; that is seldom.
const TRIES: u32 = 16;

pub struct Journal {
    path: PathBuf,
    inner: Mutex<Inner>,
    pub known: Known,
}

struct Inner {
    file: File,
    pending: Vec<u8>,
}

impl Journal {
    /// Opens or makes it, and keeps others out of it.
    pub fn open(path: &Path, job: u128, boot: Boot) -> Outcome<Journal> {
        let failed = |e: io::Error| not_kept(path, &e);
        for _ in 0..TRIES {
            let file = options().open(path).map_err(failed)?;
            lock(&file, path)?;
            // Was it removed by who had it before?
            let own = file.metadata().map_err(failed)?;
            if std::fs::symlink_metadata(path).is_ok_and(|m| m.ino() == own.ino()) {
                return Journal::read(path, file, job, boot);
            }
        }
        Err(Failure::new(Exit::Busy, format!("{}: others make and remove it all the time", path.display())))
    }

    fn read(path: &Path, mut file: File, job: u128, boot: Boot) -> Outcome<Journal> {
        let failed = |e: io::Error| not_kept(path, &e);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let begun = check_header(&bytes, job).map_err(|error| {
            Failure::failed(format!("{}: {error}", path.display())).hint("remove it to begin this stage anew")
        })?;
        let mut known = Known::new(boot);
        let mut good = 0;
        if begun {
            good = HEADER;
            while let Some((record, length)) = decode(&bytes[good..]) {
                known.take(record);
                good += length;
            }
        }
        // What a kill or a power cut left half written would hide what comes behind it.
        file.set_len(good as u64).map_err(failed)?;
        let mut start = if begun { Vec::new() } else { header(job) };
        start.extend(Record::Run { boot }.encode());
        file.write_all(&start).map_err(failed)?;
        let inner = Mutex::new(Inner { file, pending: Vec::new() });
        Ok(Journal { path: path.to_owned(), inner, known })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Written when enough of them are there.
    pub fn note(&self, record: &Record) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.pending.extend(record.encode());
        if inner.pending.len() >= PENDING_MAX { inner.write() } else { Ok(()) }
    }

    /// Written at once: a kill does not take it.
    pub fn record(&self, record: &Record) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.pending.extend(record.encode());
        inner.write()
    }

    pub fn write(&self) -> io::Result<()> {
        self.inner.lock().write()
    }

    /// Nothing is left to go on with.
    pub fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

impl Inner {
    fn write(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        // In one piece: after a full disk the next run cuts off what is half written.
        self.file.write_all(&pending)
    }
}

/// This boot of this machine; without the kernel's word for it, one that nobody has again.
pub fn boot() -> Boot {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(id) => id.to_be_bytes(),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let now = now.map_or(0, |d| d.as_nanos());
            (now ^ (u128::from(std::process::id()) << 96)).to_be_bytes()
        }
    }
}

/// Without it nothing is copied; on a full disk that is what a file later would end with too.
fn not_kept(path: &Path, error: &io::Error) -> Failure {
    let full = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
    let exit = if full { Exit::DataAtRisk } else { Exit::Failure };
    Failure::new(exit, format!("{}: {}", path.display(), system_text(error)))
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

fn lock(file: &File, path: &Path) -> Outcome {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(Failure::new(Exit::Busy, format!("{}: the same stage is running", path.display())))
        }
        // A file system without locks: two runs would copy the same, each whole.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOLCK) => Ok(()),
        Err(error) => Err(Failure::failed(format!("{}: {}", path.display(), system_text(&error.into())))),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what was recorded is found again, whatever a kill left behind it. Method: journals that are cut and damaged.
    use super::*;
    use crate::stage::facts::Stamp;

    fn done(key: u128) -> Record {
        let stamp = Stamp { ino: 1, size: 2, mtime: Default::default(), ctime: Default::default() };
        Record::Done { key, stamp, sum: 4, durable: false }
    }

    #[test]
    fn records_are_found_again_behind_a_torn_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = Journal::open(&path, 7, [1; 16]).unwrap();
        journal.record(&done(1)).unwrap();
        journal.note(&done(2)).unwrap();
        assert_eq!(Journal::open(&path, 7, [1; 16]).err().unwrap().exit, Exit::Busy);
        // Killed: the last note was not written, and a frame is torn.
        drop(journal);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&done(3).encode()[..11]).unwrap();
        drop(file);
        let journal = Journal::open(&path, 7, [2; 16]).unwrap();
        assert!(!journal.known.get(1).unwrap().done.as_ref().unwrap().trusted, "another boot");
        assert!(journal.known.get(2).is_none() && journal.known.get(3).is_none());
        journal.record(&done(4)).unwrap();
        drop(journal);
        let journal = Journal::open(&path, 7, [2; 16]).unwrap();
        assert!(journal.known.get(1).is_some() && journal.known.get(4).is_some());
        assert!(journal.known.get(4).unwrap().done.as_ref().unwrap().trusted);
        journal.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_not_ours_is_refused_and_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        std::fs::write(&path, b"a file of the user's, which has this name").unwrap();
        assert_eq!(Journal::open(&path, 7, [1; 16]).err().unwrap().exit, Exit::Failure);
        assert_eq!(std::fs::read(&path).unwrap().len(), 41);
        drop(Journal::open(&dir.path().join("other"), 7, [1; 16]).unwrap());
        assert!(Journal::open(&dir.path().join("other"), 8, [1; 16]).is_err());
    }

    #[test]
    fn a_boot_is_itself() {
        assert_eq!(boot(), boot());
    }
}
