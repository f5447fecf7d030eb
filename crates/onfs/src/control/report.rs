//! What the daemon reports. Sizes are bytes, times are milliseconds, and the names say so; the same structs are
//! what `--json` prints.

use serde::{Deserialize, Serialize};
use types::TierId;

use super::ledger::LinkReport;
use crate::policy::{CloseSync, DirPolicy, Mode, Promote, WriteBehind};

/// `onfs status`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StatusReport {
    pub mountpoint: String,
    pub state_dir: String,
    pub version: String,
    pub pid: u32,
    pub uptime_ms: u64,
    /// Number of this mount of the state.
    pub epoch: u64,
    /// `io-uring` or `dev`.
    pub transport: String,
    /// Why this transport was taken.
    pub transport_why: String,
    pub passthrough: bool,
    pub passthrough_why: String,
    pub mount_options: Vec<String>,
    pub tiers: Vec<TierReport>,
    pub movements: Vec<Movement>,
    /// Data that no persistent tier holds: what a power cut would cost now.
    pub dirty_bytes: u64,
    pub dirty_files: u64,
    pub open_files: u64,
    /// Files that wait to be moved or made safe by commands that do not wait for it.
    #[serde(default)]
    pub queued_files: u64,
    pub memory_budget: BudgetReport,
    pub metadata: MetadataReport,
    /// Of a mount whose near-line is a linked directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkReport>,
    /// Of a guarded mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardReport>,
    /// What the operator should look at.
    pub warnings: Vec<String>,
}

/// Who keeps the mount when the daemon ends, and what became of the daemons before.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GuardReport {
    /// The guardian's process.
    pub guardian: u32,
    /// The first daemon of the mount is 1.
    pub number: u32,
    /// Daemons that ended unexpectedly.
    pub restarts: u32,
    pub upgrades: u32,
    /// Why the one before ended: `upgrade`, or how it was ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_why: Option<String>,
    /// How long requests waited then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_held_ms: Option<u64>,
    /// Why the last upgrade came to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_upgrade: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TierReport {
    pub name: TierId,
    pub dir: String,
    /// What it stands on, such as `tmpfs` or `ext4`.
    pub backing: String,
    pub limit_bytes: u64,
    pub used_bytes: u64,
    pub available_bytes: u64,
    /// C_s-w.
    pub stop_write_bytes: u64,
    /// C_f-m.
    pub forced_out_bytes: u64,
    /// C_n-m.
    pub normal_out_bytes: u64,
    /// Bytes per second that came in, and went out, lately.
    pub rate_in: u64,
    pub rate_out: u64,
    pub dirty_bytes: u64,
    /// Files with data there. Not known of the last tier, of whose files the daemon keeps no record.
    pub objects: Option<u64>,
    /// Writers that wait for space at C_s-w.
    pub waiting_writers: u64,
    /// It is somebody else's directory: it has no thresholds, and what others put there counts as used.
    #[serde(default)]
    pub linked: bool,
    /// Why the tier is out of service, or what is wrong with its device; empty when it is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
}

/// One movement under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Movement {
    pub ino: u64,
    /// Empty when the name is not known.
    pub path: String,
    pub from: TierId,
    pub to: TierId,
    /// Of all of it, as estimated at the start.
    pub total_bytes: u64,
    /// Such as `write-behind`, `normal-out`, `forced-out`, `prefetch`, `request`.
    pub why: String,
}

/// The daemon's own memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BudgetReport {
    pub limit_bytes: u64,
    pub used_bytes: u64,
    /// The most that was used.
    pub peak_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MetadataReport {
    pub engine: String,
    pub inodes: u64,
    pub journal_bytes: u64,
    pub disk_bytes: u64,
    /// Changes that are not yet durable.
    pub unsynced_commits: u64,
    pub purge_queue: u64,
    /// Of an engine that is a database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<DatabaseReport>,
}

/// The database that has the metadata.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DatabaseReport {
    pub hosts: String,
    pub database: String,
    pub namespace: String,
    /// Why it cannot be reached, or takes no changes; empty when it is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
    /// For so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble_ms: Option<u64>,
}

/// `onfs file`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FileReport {
    pub path: String,
    pub ino: u64,
    pub ugsd: u32,
    pub size_bytes: u64,
    /// Bytes that take space, over all tiers.
    pub allocated_bytes: u64,
    /// Such as `node-local`.
    pub layout: String,
    pub sau_bytes: u64,
    pub residency: Vec<TierResidency>,
    /// `None` for a file without data.
    pub coolness: Option<Coolness>,
    pub pinned: Option<TierId>,
    /// The policy that holds for the file, inherited or not.
    pub policy: DirPolicyReport,
    /// How it is open now: `closed`, `passthrough`, `cached` or `direct`.
    pub open_mode: String,
    pub open_count: u64,
    /// Lost if the machine died now.
    pub at_risk_bytes: u64,
    /// Lost already: reads of it give EIO.
    pub lost_bytes: u64,
    /// Data that differs from the copy in the persistent tier.
    pub dirty_bytes: u64,
    /// What devices hold and has no checksum yet: damage to it would not be noticed.
    pub unsealed_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TierResidency {
    pub tier: TierId,
    pub bytes: u64,
    /// Storage allocation units, of `sau_bytes` each.
    pub saus: u64,
}

/// Coolness and its terms (paper, section 6.2); times in the paper's order.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Coolness {
    pub value: f64,
    /// `normal-out` for a closed file, `forced-out` for an open one.
    pub formula: String,
    pub terms: Vec<(String, f64)>,
}

/// Of migrate, flush, prefetch, pin and unpin.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MoveReport {
    /// Files that came out as asked.
    pub files_done: u64,
    /// Files that are queued, when nobody waits.
    pub files_queued: u64,
    /// Files that a prefetch left where they are: no room above C_n-m, or pinned elsewhere.
    #[serde(default)]
    pub files_skipped: u64,
    pub bytes: u64,
    /// Only the files that failed.
    pub failed: Vec<FileOutcome>,
    /// Bytes that are still in no persistent tier, of the files that came out as asked.
    pub at_risk_bytes: u64,
    /// Those of them that are transient: they are promised nothing.
    #[serde(default)]
    pub transient_bytes: u64,
    /// Files and directories whose changes were applied in the linked directory.
    #[serde(default)]
    pub applied: u64,
}

impl MoveReport {
    /// Adds the outcome of another batch.
    pub fn add(&mut self, other: MoveReport) {
        self.files_done += other.files_done;
        self.files_queued += other.files_queued;
        self.files_skipped += other.files_skipped;
        self.bytes += other.bytes;
        self.failed.extend(other.failed);
        self.at_risk_bytes += other.at_risk_bytes;
        self.transient_bytes += other.transient_bytes;
        self.applied += other.applied;
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileOutcome {
    pub path: String,
    pub ino: u64,
    /// The positive error number.
    pub errno: i32,
    pub message: String,
}

/// A directory's policy: what it sets itself, and what holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirPolicyReport {
    pub path: String,
    pub own: DirPolicy,
    pub promote: Promote,
    pub mode: Mode,
    pub sync: CloseSync,
    /// Is the mode transient?
    pub transient: bool,
    pub write_behind: WriteBehind,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuotaReport {
    pub path: String,
    pub project: u32,
    /// 0: no limit.
    pub bytes_limit: u64,
    pub bytes_used: u64,
    /// 0: no limit.
    pub inodes_limit: u64,
    pub inodes_used: u64,
}

/// The pass over all checksums that is under way, or the last one.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubReport {
    pub running: bool,
    /// Of the parts into which objects are dealt out, while it is running.
    pub percent: u32,
    /// When it began, while it is running: seconds since 1970.
    pub began: u64,
    /// When the last one ended, or was stopped; 0: there was none.
    pub ended: u64,
    /// That were read, of all copies.
    pub bytes: u64,
    /// Copies of pieces (4 MiB) that were not what their checksum says.
    pub damaged: u64,
    /// Of them: replaced by another tier's.
    pub repaired: u64,
    /// Pieces without a good copy: reads give `EIO`.
    pub hopeless: u64,
    /// Files that were in use in a way that kept them from being compared.
    pub passed_over: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryReport {
    /// The limit of the memory tier.
    pub limit_bytes: u64,
    pub used_bytes: u64,
    /// The limit that is being shrunk to, while that goes on.
    pub target_bytes: Option<u64>,
    pub budget: BudgetReport,
}
