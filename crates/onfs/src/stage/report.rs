//! What a stage has done so far, and its report at the end.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::trouble::Trouble;
use crate::control::{FileOutcome, Progress, Unit};

/// So many failures are named; the others are counted.
const FAILED_MAX: usize = 1000;

/// `onfs stage-in` and `onfs stage-out`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StageReport {
    /// All that was asked for is at the destination.
    pub complete: bool,
    /// Whatever was copied was read back and compared.
    pub verified: bool,
    /// It is where it survives a power cut.
    pub durable: bool,
    pub files_copied: u64,
    /// They were there already.
    pub files_skipped: u64,
    /// Further names of files that were copied.
    pub links: u64,
    pub directories: u64,
    /// Symbolic links, devices and the like.
    pub others: u64,
    pub bytes_copied: u64,
    /// Of large files, copied by an earlier run and compared with its checksums.
    pub bytes_resumed: u64,
    pub bytes_skipped: u64,
    pub bytes_verified: u64,
    pub elapsed_ms: u64,
    pub bytes_per_second: u64,
    pub failed_count: u64,
    /// The first of them.
    pub failed: Vec<FileOutcome>,
    pub notes: Vec<String>,
    /// Why it ended early; empty when it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ended_by: String,
}

#[derive(Default)]
pub struct Tally {
    pub files_copied: AtomicU64,
    pub files_skipped: AtomicU64,
    pub links: AtomicU64,
    pub directories: AtomicU64,
    pub others: AtomicU64,
    pub bytes_copied: AtomicU64,
    pub bytes_resumed: AtomicU64,
    pub bytes_skipped: AtomicU64,
    pub bytes_verified: AtomicU64,
    /// Sizes of what the walk has found.
    pub bytes_found: AtomicU64,
    pub walked: AtomicBool,
    /// The file that was begun last.
    current: Mutex<String>,
    failed: Mutex<(u64, Vec<FileOutcome>)>,
    notes: Mutex<BTreeMap<&'static str, u64>>,
}

pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

impl Tally {
    pub fn begins(&self, path: &Path) {
        *self.current.lock() = path.display().to_string();
    }

    pub fn fail(&self, path: &Path, trouble: &Trouble) {
        let mut failed = self.failed.lock();
        failed.0 += 1;
        if failed.1.len() < FAILED_MAX {
            let (errno, message) = (trouble.errno(), trouble.to_string());
            failed.1.push(FileOutcome { path: path.display().to_string(), ino: 0, errno, message });
        }
    }

    /// Something that is no failure, once for so many files.
    pub fn note(&self, what: &'static str) {
        *self.notes.lock().entry(what).or_default() += 1;
    }

    pub fn failed(&self) -> u64 {
        self.failed.lock().0
    }

    pub fn progress(&self) -> Progress {
        let done = [&self.bytes_copied, &self.bytes_resumed, &self.bytes_skipped];
        let done: u64 = done.iter().map(|n| n.load(Relaxed)).sum();
        let found = self.bytes_found.load(Relaxed);
        // What is sparse, or was copied again, does not add up.
        let total = if self.walked.load(Relaxed) { found.max(done) } else { 0 };
        Progress { done, total, unit: Unit::Bytes, what: self.current.lock().clone() }
    }

    pub fn report(&self, elapsed: Duration) -> StageReport {
        let load = |n: &AtomicU64| n.load(Relaxed);
        let (failed_count, failed) = self.failed.lock().clone();
        let notes = self.notes.lock();
        let notes = notes.iter().map(|(what, n)| format!("{what} ({n} times)")).collect();
        let elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let bytes_copied = load(&self.bytes_copied);
        StageReport {
            files_copied: load(&self.files_copied),
            files_skipped: load(&self.files_skipped),
            links: load(&self.links),
            directories: load(&self.directories),
            others: load(&self.others),
            bytes_copied,
            bytes_resumed: load(&self.bytes_resumed),
            bytes_skipped: load(&self.bytes_skipped),
            bytes_verified: load(&self.bytes_verified),
            elapsed_ms,
            bytes_per_second: bytes_copied.saturating_mul(1000) / elapsed_ms.max(1),
            failed_count,
            failed,
            notes,
            ..StageReport::default()
        }
    }
}
