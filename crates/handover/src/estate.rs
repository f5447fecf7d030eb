//! The area as a whole.
//!
//! ```text
//! word 0       "ONFSHAND"
//! word 1       version
//! word 2       1: something had no room, so the rest cannot be relied on
//! word 3       numbers of uses of handles are below it
//! word 4       the mount number (epoch) of the process that had it last
//! word 5 to 7  places used in the tables: references, handles, backings
//! word 8       length of the session's bytes, which follow from word 9 on
//! word 256     the user's own words
//! word 511     places used in the table of answers
//! 4096         references: inode, count
//! ...          handles: handle, inode, opening (its user's), number of the request that made it
//! ...          backings: inode, number, what it is (its user's), 0
//! ...          seats: number of a request or 0, note, number of inodes, inodes
//! ...          answers: inode, stripe, node, generation, life; a guardian of before this has no room for any
//! ```
//! Words are little-endian, as on every machine that this runs on; no other machine sees them.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

use crate::{
    calls::{Calls, SEAT_WORDS, SEATS},
    mapping::{Mapping, WORD},
    table::Table,
};

const MAGIC: u64 = u64::from_le_bytes(*b"ONFSHAND");
const VERSION: u64 = 1;
const PAGE_WORDS: usize = 512;
const INCOMPLETE: usize = 2;
const USES: usize = 3;
const EPOCH: usize = 4;
const USED: usize = 5;
const SESSION: usize = 8;
const OWN: usize = 256;
const ANSWERS_USED: usize = PAGE_WORDS - 1;
/// Words of the user's own.
pub const OWN_WORDS: usize = ANSWERS_USED - OWN;
/// What a session may say of itself.
pub const SESSION_BYTES_MAX: usize = (OWN - SESSION - 1) * WORD;

const REFERENCES: u32 = 1 << 24;
const HANDLES: u32 = 1 << 20;
const BACKINGS: u32 = 1 << 16;
const ANSWERS: u32 = 1 << 20;
const REFERENCES_AT: usize = PAGE_WORDS;
const HANDLES_AT: usize = REFERENCES_AT + REFERENCES as usize * 2;
const BACKINGS_AT: usize = HANDLES_AT + HANDLES as usize * 4;
const SEATS_AT: usize = BACKINGS_AT + BACKINGS as usize * 4;
const ANSWERS_AT: usize = SEATS_AT + SEATS as usize * SEAT_WORDS;
const WORDS: usize = ANSWERS_AT + ANSWERS as usize * 5;
/// Of a guardian of before there were answers.
const WORDS_BEFORE: usize = ANSWERS_AT;
/// By so much the bound of uses is raised.
const USES_STEP: u64 = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum EstateError {
    #[error("the memory that the guardian keeps is of version {0}, this program knows {VERSION}")]
    OtherVersion(u64),
    #[error("the memory that the guardian keeps is not what it should be")]
    Foreign,
    #[error("the memory that the guardian keeps: {0}")]
    Io(#[from] io::Error),
}

/// See the crate's page.
pub struct Estate {
    memory: Arc<Mapping>,
    /// Inode, count.
    pub references: Table<2>,
    /// Handle, inode, opening, request.
    pub handles: Table<4>,
    /// Inode, number, what it is, 0.
    pub backings: Table<4>,
    /// Of what was answered and is not durable: inode, stripe, node, generation, life.
    pub answers: Table<5>,
    pub calls: Arc<Calls>,
    uses: Mutex<()>,
}

impl std::fmt::Debug for Estate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Estate").finish_non_exhaustive()
    }
}

impl Estate {
    /// An empty one, which takes memory only for what is written to it.
    pub fn create() -> io::Result<OwnedFd> {
        let file = memfd_create("onfs-handover", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (WORDS * WORD) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let memory = Mapping::new(file.as_fd(), PAGE_WORDS)?;
        memory.store(1, VERSION);
        memory.store(0, MAGIC);
        Ok(file)
    }

    /// As an earlier process left it, or new.
    pub fn open(file: BorrowedFd<'_>) -> Result<Arc<Estate>, EstateError> {
        let stat = fstat(file).map_err(io::Error::from)?;
        let is = |words: usize| stat.st_size == (words * WORD) as i64;
        let (words, answers) = match () {
            () if is(WORDS) => (WORDS, ANSWERS),
            () if is(WORDS_BEFORE) => (WORDS_BEFORE, 0),
            () => return Err(EstateError::Foreign),
        };
        let memory = Arc::new(Mapping::new(file, words)?);
        match (memory.load(0), memory.load(1)) {
            (MAGIC, VERSION) => {}
            (MAGIC, version) => return Err(EstateError::OtherVersion(version)),
            _ => return Err(EstateError::Foreign),
        }
        Ok(Arc::new(Estate {
            references: Table::open(&memory, REFERENCES_AT, USED, REFERENCES),
            handles: Table::open(&memory, HANDLES_AT, USED + 1, HANDLES),
            backings: Table::open(&memory, BACKINGS_AT, USED + 2, BACKINGS),
            answers: Table::open(&memory, ANSWERS_AT, ANSWERS_USED, answers),
            calls: Arc::new(Calls::open(&memory, SEATS_AT)),
            uses: Mutex::default(),
            memory,
        }))
    }

    /// One more reference of the kernel's to `ino` was counted, in this table or beside it.
    pub fn held(&self, ino: u64) {
        self.calls.held(ino);
    }

    /// Something could not be recorded: no other process may go on from here.
    pub fn set_incomplete(&self) {
        self.memory.store(INCOMPLETE, 1);
    }

    pub fn is_incomplete(&self) -> bool {
        self.memory.load(INCOMPLETE) != 0
    }

    /// A word of the user's own, 0 at first; `n` is less than [`OWN_WORDS`].
    pub fn own(&self, n: usize) -> u64 {
        assert!(n < OWN_WORDS, "word {n}");
        self.memory.load(OWN + n)
    }

    pub fn set_own(&self, n: usize, value: u64) {
        assert!(n < OWN_WORDS, "word {n}");
        self.memory.store(OWN + n, value);
    }

    /// The mount number of the process that had it last; 0: nobody.
    pub fn epoch(&self) -> u64 {
        self.memory.load(EPOCH)
    }

    pub fn set_epoch(&self, epoch: u64) {
        self.memory.store(EPOCH, epoch);
    }

    /// All numbers of uses that handles have had are below this.
    pub fn uses(&self) -> u32 {
        u32::try_from(self.memory.load(USES)).unwrap_or(0)
    }

    /// Before a handle gets this number of uses.
    pub fn note_uses(&self, uses: u32) {
        if u64::from(uses) < self.memory.load(USES) {
            return;
        }
        let _one = self.uses.lock();
        let bound = self.memory.load(USES).max(u64::from(uses) / USES_STEP * USES_STEP + USES_STEP);
        self.memory.store(USES, bound);
    }

    /// What the session said of itself; `None`: nothing yet.
    pub fn session(&self) -> Option<Vec<u8>> {
        let len = usize::try_from(self.memory.load(SESSION)).ok()?;
        if len == 0 || len > SESSION_BYTES_MAX {
            return None;
        }
        let words = (0..len.div_ceil(WORD)).map(|n| self.memory.load(SESSION + 1 + n).to_le_bytes());
        let mut bytes: Vec<u8> = words.flatten().collect();
        bytes.truncate(len);
        Some(bytes)
    }

    /// At most [`SESSION_BYTES_MAX`] bytes; more are not kept.
    pub fn set_session(&self, bytes: &[u8]) {
        let bytes = if bytes.len() > SESSION_BYTES_MAX { &[] } else { bytes };
        self.memory.store(SESSION, 0);
        for (n, part) in bytes.chunks(WORD).enumerate() {
            let mut word = [0; WORD];
            word[..part.len()].copy_from_slice(part);
            self.memory.store(SESSION + 1 + n, u64::from_le_bytes(word));
        }
        self.memory.store(SESSION, bytes.len() as u64);
    }
}
