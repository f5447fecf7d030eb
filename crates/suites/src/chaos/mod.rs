//! A workload that checks itself on two mounts of a cluster whose servers are killed, stopped, cut off and filled meanwhile.
//!
//! - [`block`] says what a block of a file may read as; [`files`] writes, syncs, reads and renames such files.
//! - [`appends`] a log to which both mounts append; [`names`] files that come and go; [`locks`] of both mounts.
//! - [`account`] what each call took and which errors there were.
//!
//! Whoever does the faults writes them down in the notes' directory before he does them: a line in `losses` for each memory that is lost, one in
//! `life-N` for each time that the daemon of mount N is killed. It refuses to know what else is done.

pub mod account;
pub mod appends;
pub mod block;
pub mod files;
pub mod locks;
pub mod names;
pub mod sector;

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use account::Account;
use block::Moment;

/// What belongs to all threads.
pub struct World {
    pub mounts: Vec<PathBuf>,
    pub notes: PathBuf,
    pub account: Account,
    /// The mounts answer writes before they have sent them.
    keeps_back: bool,
    ended: AtomicBool,
}

/// After the last fault all must work again within this time.
pub const REST: Duration = Duration::from_secs(180);
/// Between attempts at what fails.
const PAUSE: Duration = Duration::from_millis(100);

impl World {
    pub fn new(mounts: Vec<PathBuf>, notes: PathBuf, keeps_back: bool) -> World {
        World { mounts, notes, account: Account::default(), keeps_back, ended: AtomicBool::new(false) }
    }

    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// True when the workload is to end; a file that cannot be looked at does not end it.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// After an error: most of them come again at once.
    pub fn pause(&self) {
        thread::sleep(PAUSE);
    }

    /// What was noted so far, as seen through that mount.
    pub fn now(&self, mount: usize) -> Moment {
        let length = |name: &str| std::fs::metadata(self.notes.join(name)).map_or(0, |meta| meta.len());
        let life = length(&format!("life-{mount}"));
        Moment { losses: length("losses"), life, keeps_back: self.keeps_back }
    }

    pub fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.mounts[mount].join("chaos").join(name)
    }

    /// A call whose answer counts only if the mount was there all the while: below a mount that was taken away there is nothing.
    pub fn through<R>(&self, mount: usize, run: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let before = self.device(mount)?;
        let done = run();
        if self.device(mount)? == before { done } else { Err(io::ErrorKind::NotConnected.into()) }
    }

    fn device(&self, mount: usize) -> io::Result<u64> {
        let place = &self.mounts[mount];
        let device = std::fs::metadata(place)?.dev();
        match place.parent() {
            Some(above) if std::fs::metadata(above)?.dev() == device => {
                Err(io::ErrorKind::NotConnected.into())
            }
            Some(_) | None => Ok(device),
        }
    }

    /// Does it until it succeeds, for as long as all may take to come to rest.
    pub fn insist<R>(&self, what: &str, mut run: impl FnMut() -> io::Result<R>) -> Result<R, String> {
        let end = Instant::now() + REST;
        loop {
            match run() {
                Ok(done) => return Ok(done),
                Err(error) if Instant::now() >= end => {
                    return Err(format!("{what}: does not come to rest: {error}"));
                }
                Err(_) => self.pause(),
            }
        }
    }
}

/// Makes the directory of all of it.
pub fn prepare(mount: &Path) -> io::Result<()> {
    match std::fs::create_dir(mount.join("chaos")) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
