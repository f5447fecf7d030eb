//! Which data servers are being drained and how far they are, and which files are being moved.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::atomic::AtomicU64,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, RwLock};
use types::Ino;

#[derive(Default)]
pub(super) struct Drains {
    /// Shared by who chooses where a file goes until that is stored; alone by who says that a server gets nothing more.
    pub placing: RwLock<()>,
    /// Files that are being moved now.
    pub moving: Mutex<HashSet<Ino>>,
    pub table: Mutex<BTreeMap<u64, Drain>>,
    pub resting: Mutex<HashMap<Ino, (Instant, Duration)>>,
    pub attempts: AtomicU64,
    /// Where there are several metadata servers: what attempts begin with, and which slots had come when that was asked for ([`mds::Mds::comings`]).
    pub era: Mutex<Option<(u64, u32)>>,
    /// Held while it changes who is taken out, and while others are asked how far they are.
    pub changing: Mutex<()>,
    /// Held while files are moved.
    pub at_work: Mutex<()>,
}

/// How far one is.
#[derive(Clone, Default)]
pub(super) struct Drain {
    pub known: bool,
    pub files_left: u64,
    pub bytes_left: u64,
    pub files_moved: u64,
    pub bytes_moved: u64,
    pub failed: u64,
    pub why: String,
    /// When its files are looked for again; `None`: now.
    pub next: Option<Instant>,
    /// Where there are several metadata servers: the slots that were looked through, which had come by then, and how long that is to be enough.
    pub slots: Vec<u16>,
    pub comings: u64,
    pub rests_until: Option<Instant>,
}
