//! How linked near-line behaves.

use std::time::Duration;

use types::Ino;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// A look at an inode is good for so long.
    pub interval: Duration,
    /// After its last close a file is published.
    pub publish_after: Duration,
    /// After its first write, closed or not.
    pub publish_latest: Duration,
    /// How long somebody waits for the back end.
    pub deadline: Duration,
    /// Steps that are made at once.
    pub threads: usize,
    /// Inodes with something to apply, at the most.
    pub entries_max: usize,
    /// The first pause after a step that failed, and how long one that was refused waits.
    pub retry_first: Duration,
    pub held_retry: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            interval: Duration::from_secs(1),
            publish_after: Duration::from_secs(2),
            publish_latest: Duration::from_secs(30),
            deadline: Duration::from_secs(30),
            threads: 4,
            entries_max: 1 << 20,
            retry_first: Duration::from_millis(200),
            held_retry: Duration::from_secs(60),
        }
    }
}

impl Settings {
    pub(crate) fn log(&self) -> link::Settings {
        link::Settings {
            root: Ino::ROOT,
            entries_max: self.entries_max,
            retry_first: self.retry_first,
            retry_most: Duration::from_secs(60),
            held_retry: self.held_retry,
        }
    }
}
