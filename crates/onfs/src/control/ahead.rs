//! Reports of what comes up before it is read.

use serde::{Deserialize, Serialize};

use super::report::FileOutcome;

/// How a run stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    #[default]
    Running,
    /// All of it is up, or was opened before its turn.
    Done,
    /// Given up: too many of the last files that its program opened did not fit the list.
    Wrong,
    Cancelled,
    /// Nobody read from the list for hours.
    Idle,
}

/// A run over an ordered list of groups.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RunReport {
    pub run: u64,
    pub uid: u32,
    /// The job whose plan it is; empty for a list that a program or command gave.
    pub job: String,
    pub state: RunState,
    pub groups: u64,
    /// Groups of which a file was opened, up to the last such one.
    pub groups_begun: u64,
    pub files: u64,
    pub files_up: u64,
    pub files_coming: u64,
    pub files_skipped: u64,
    pub files_opened: u64,
    /// Opened when they were up.
    pub files_hit: u64,
    /// Read, and given up for room.
    pub files_released: u64,
    pub bytes_up: u64,
    pub bytes_left: u64,
    /// Openings that were compared with the list, and those that did not fit.
    pub seen: u64,
    pub wrong: u64,
    /// The next file waits for room above C_n-m.
    pub short_of_room: bool,
    /// Files of the request that cannot be in the list.
    #[serde(default)]
    pub failed: Vec<FileOutcome>,
}

/// What is remembered of a job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PlanReport {
    pub uid: u32,
    pub name: String,
    pub runs: u64,
    /// When the last run ended, in seconds since 1970.
    pub last_end: u64,
    pub files: u64,
    pub bytes: u64,
    /// Over the last measured runs, from 0 to 1.
    pub hit_rate: Option<f64>,
    pub acts: bool,
    /// Why it acts, or not.
    pub why: String,
    /// The oldest first.
    pub scores: Vec<ScoreReport>,
    /// Of `plan show` alone.
    #[serde(default)]
    pub groups: Vec<GroupReport>,
}

/// How good a plan was for one run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ScoreReport {
    pub hits: u64,
    pub missed: u64,
    /// Foretold, and not opened.
    pub in_vain: u64,
    pub hit_rate: f64,
    /// Files were brought up, not only compared.
    pub acted: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupReport {
    pub files: u64,
    pub bytes: u64,
    /// From the root of the mount; of the first files of a plan, and of those that the asker can come to.
    pub paths: Vec<String>,
}
