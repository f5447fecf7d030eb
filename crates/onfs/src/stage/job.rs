//! One stage: what is asked for, and what all its threads share.

use std::{
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;

use super::{facts::Facts, journal::Journal, pairs::Pair, record::key_of, report::Tally, trouble::Trouble};

/// Begins the names of what is on its way into a directory that is not on ONFS. A mount that is linked to it does not
/// import such names (`link::is_on_the_way`); its own have only hexadecimal digits behind it.
pub const PREFIX_LINKED: &str = ".onfs-way-s";
/// The same on ONFS itself, where the other kind would be taken for the mount's own.
pub const PREFIX: &str = ".onfs-stage-";

#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that copy.
    pub jobs: usize,
    /// Read back what was written, and compare.
    pub verify: bool,
    /// Each file is durable before it gets its name, and directories at the end.
    pub durable: bool,
    /// Compare the content of files whose size and time agree.
    pub checksum: bool,
    /// Say what would be done.
    pub dry_run: bool,
    /// Make the directories above a destination.
    pub parents: bool,
    /// Of names on the way.
    pub prefix: &'static str,
}

/// A file that the walk found.
#[derive(Clone, Debug)]
pub struct Task {
    pub src: PathBuf,
    pub dst: PathBuf,
    pub facts: Facts,
    /// How often it was begun.
    pub tries: u32,
}

/// Why a stage ends early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    Interrupted,
    Deadline,
    /// What no other file would escape.
    Trouble(String),
}

impl Ended {
    pub const DEADLINE: &str = "the deadline passed";
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Interrupted => write!(f, "interrupted"),
            Ended::Deadline => write!(f, "{}", Ended::DEADLINE),
            Ended::Trouble(text) => write!(f, "{text}"),
        }
    }
}

pub struct Job {
    /// Of the pairs: [`super::pairs::job_id`].
    id: u128,
    pub pairs: Vec<Pair>,
    pub options: Options,
    /// None in a dry run.
    pub journal: Option<Journal>,
    pub tally: Tally,
    stopping: AtomicBool,
    ended: Mutex<Option<Ended>>,
}

impl Job {
    pub fn new(id: u128, pairs: Vec<Pair>, options: Options, journal: Option<Journal>) -> Job {
        let (tally, ended) = (Tally::default(), Mutex::new(None));
        Job { id, pairs, options, journal, tally, stopping: AtomicBool::new(false), ended }
    }

    /// The first reason is the one that is told.
    pub fn stop(&self, why: Ended) {
        self.ended.lock().get_or_insert(why);
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub fn go_on(&self) -> Result<(), Trouble> {
        if self.is_stopping() { Err(Trouble::Stopped) } else { Ok(()) }
    }

    pub fn ended(&self) -> Option<Ended> {
        self.ended.lock().clone()
    }

    /// Lists it; trouble that no other file would escape ends all.
    pub fn fail(&self, path: &Path, trouble: &Trouble) {
        if matches!(trouble, Trouble::Stopped) {
            return;
        }
        if trouble.ends_all() {
            self.stop(Ended::Trouble(format!("{}: {trouble}", path.display())));
        }
        self.tally.fail(path, trouble);
    }

    /// The name that a destination has until it is whole.
    pub fn way(&self, dst: &Path) -> PathBuf {
        way(dst, self.options.prefix, self.id)
    }
}

/// In the same directory, so that a rename gives it its own; and not that of another stage to the same place.
fn way(dst: &Path, prefix: &str, job: u128) -> PathBuf {
    let key = key_of(&[&job.to_le_bytes(), dst.as_os_str().as_bytes()].concat()) as u64;
    let name = format!("{prefix}{key:016x}");
    dst.parent().map_or_else(|| PathBuf::from(&name), |dir| dir.join(&name))
}

/// Whether a name is that of something on its way, of any stage or of a linked mount.
pub fn is_on_the_way(name: &[u8]) -> bool {
    name.starts_with(PREFIX.as_bytes()) || link::is_on_the_way(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_on_the_way_are_passed_by() {
        for prefix in [PREFIX, PREFIX_LINKED] {
            let way = way(Path::new("/d/a"), prefix, 1);
            assert_eq!(way.parent(), Some(Path::new("/d")));
            assert_ne!(way, super::way(Path::new("/d/a"), prefix, 2));
            assert!(is_on_the_way(way.file_name().unwrap().as_bytes()));
        }
        assert!(link::is_on_the_way(PREFIX_LINKED.as_bytes()), "a linked mount does not import it");
        // The numbers of a linked mount's own have other characters.
        assert!(!PREFIX_LINKED.trim_start_matches(".onfs-way-").bytes().all(|b| b.is_ascii_hexdigit()));
        assert!(!is_on_the_way(b".onfs"));
    }
}
