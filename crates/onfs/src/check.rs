//! What `onfs fsck` finds. The check itself is built where the parts are put together.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Left behind by a crash, and harmless.
    Note,
    /// Wrong, and can be put right without losing data.
    Repairable,
    /// Data or metadata is damaged or lost.
    Damage,
}

impl Severity {
    pub const fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Repairable => "repairable",
            Severity::Damage => "DAMAGE",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Finding {
    pub severity: Severity,
    /// A path, an inode or a file of the state.
    pub place: String,
    pub what: String,
    pub repaired: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FsckReport {
    pub state_dir: String,
    /// It is a server's of a cluster, whose names may be elsewhere.
    pub server: bool,
    pub inodes: u64,
    pub objects: u64,
    /// File data that was only in memory at a reboot, or is damaged.
    pub lost_bytes: u64,
    pub findings: Vec<Finding>,
}

impl FsckReport {
    /// Nothing is wrong, or all that was wrong is repaired.
    pub fn is_clean(&self) -> bool {
        self.lost_bytes == 0 && self.findings.iter().all(|f| f.repaired || f.severity == Severity::Note)
    }
}
