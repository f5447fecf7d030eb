//! What is reported: the parts' own words in the words of the commands.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use ds::{DataServer, MoveReport};
use mds::{Found, Quota};
use types::{Errno, FileKind, Ino, ProjectId, SAU_BYTES, TierId};

use super::{link, metadata::database_report, parts::Parts, policy, tree::Names};
use crate::control::{
    BudgetReport, Coolness, DatabaseReport, DirPolicyReport, FileRef, FileReport, LinkReport, LinkState,
    MemoryReport, MetadataReport, Movement, QuotaReport, StatusReport, TierReport, TierResidency,
};
use crate::{
    mounts::{self, MountEntry},
    policy::DirPolicy,
};

/// Entries of a directory that are looked at for the name of a file that moves.
const ENTRIES_MAX: usize = 10_000;
/// Movements whose files are named.
const NAMED_MAX: usize = 32;

/// With the movements of the files that `shown` allows.
pub(super) fn status(parts: &Parts, shown: &dyn Fn(Ino) -> bool) -> StatusReport {
    let (dirty_files, dirty_bytes) = parts.ds.dirty();
    let transport = parts.session.transport();
    let meta = parts.store.stats();
    let usage = parts.mds.statfs_usage();
    let client = parts.client.stats();
    let (passthrough, why) = passthrough(parts);
    let mut warnings: Vec<String> =
        meta.read_only.iter().map(|w| format!("metadata is read-only: {w}")).collect();
    if meta.short_of_space {
        warnings.push("the disk under the metadata is full: only removals are possible".to_owned());
    }
    let counters = parts.ds.counters();
    if counters.damaged_saus > 0 {
        warnings.push(format!(
            "{} pieces of data did not match their checksum: see the log",
            counters.damaged_saus
        ));
    }
    if counters.lost_saus > 0 {
        warnings.push(format!("{} pieces of data were lost with an earlier memory tier", counters.lost_saus));
    }
    let database = database_report(&parts.config, &parts.store);
    warnings.extend(database.as_ref().and_then(database_warning));
    let link = link_report(parts);
    warnings.extend(link.as_ref().map(link_warnings).into_iter().flatten());
    StatusReport {
        mountpoint: parts.session.mountpoint().display().to_string(),
        state_dir: parts.config.mount.state.display().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_ms: parts.began.elapsed().as_millis() as u64,
        epoch: u64::from(parts.mds.epoch()),
        transport: match transport.kind {
            fuse::TransportKind::IoUring => "io-uring".to_owned(),
            fuse::TransportKind::Device => "dev".to_owned(),
        },
        transport_why: transport.reason.clone().unwrap_or_else(|| "the kernel offers it".to_owned()),
        passthrough,
        passthrough_why: why,
        mount_options: mount_options(parts),
        tiers: tiers(parts),
        movements: pg::without_waiting(|| movements(parts, shown)),
        dirty_bytes,
        dirty_files,
        open_files: client.open_files,
        queued_files: parts.ds.in_line(),
        memory_budget: budget(parts),
        metadata: MetadataReport {
            engine: parts.store.engine_name().to_owned(),
            inodes: usage.inodes,
            journal_bytes: meta.journal_bytes,
            disk_bytes: meta.engine_bytes,
            unsynced_commits: parts.store.last_lsn().0.saturating_sub(parts.store.synced_lsn().0),
            purge_queue: usage.orphans_waiting,
            database,
        },
        link,
        guard: parts.ward.as_ref().map(|ward| ward.report()),
        warnings,
    }
}

fn database_warning(database: &DatabaseReport) -> Option<String> {
    (!database.trouble.is_empty()).then(|| {
        format!(
            "the metadata database is in trouble: {}; changes wait in the journal, and what is not in memory cannot be looked up",
            database.trouble
        )
    })
}

fn passthrough(parts: &Parts) -> (bool, String) {
    if parts.client.passthrough_is_on() {
        return (true, "the kernel reads files in place where one tier holds all of them".to_owned());
    }
    let why = if !parts.config.mount.passthrough {
        "switched off"
    } else if !rustix::process::geteuid().is_root() {
        "only root may hand files to the kernel"
    } else {
        "the kernel does not offer it"
    };
    (false, why.to_owned())
}

fn tiers(parts: &Parts) -> Vec<TierReport> {
    let mounts = mounts::mounts().unwrap_or_default();
    let own = own_tiers(&parts.ds, &mounts);
    own.into_iter().chain(linked_tier(parts, &mounts)).collect()
}

/// The tiers that are ours.
pub(super) fn own_tiers(ds: &DataServer, mounts: &[MountEntry]) -> Vec<TierReport> {
    let (_, dirty_bytes) = ds.dirty();
    let row = |t: ds::TierStatus| TierReport {
        name: t.tier,
        dir: t.dir.display().to_string(),
        backing: match t.tier {
            TierId::Memory if t.own_tmpfs => "own tmpfs".to_owned(),
            TierId::Memory => "shared tmpfs".to_owned(),
            TierId::Ssd | TierId::Nearline => fs_type(mounts, &t.dir),
        },
        limit_bytes: t.report.limit,
        used_bytes: t.report.used,
        available_bytes: t.report.available.max(0) as u64,
        stop_write_bytes: t.report.thresholds.s_w,
        forced_out_bytes: t.report.thresholds.f_m,
        normal_out_bytes: t.report.thresholds.n_m,
        rate_in: t.report.write_in_rate as u64,
        rate_out: t.report.move_out_rate as u64,
        dirty_bytes: if t.tier == TierId::Memory { dirty_bytes } else { 0 },
        objects: t.report.objects,
        waiting_writers: u64::from(t.report.writers_wait),
        linked: false,
        trouble: ds::health_words(t.health),
    };
    ds.tiers().into_iter().map(row).collect()
}

/// Near-line that is somebody else's directory: its space, and no thresholds.
fn linked_tier(parts: &Parts, mounts: &[MountEntry]) -> Option<TierReport> {
    let (linked, config) = parts.linked.as_ref().zip(parts.config.link.as_ref())?;
    let space = linked.space();
    let (available, limit) = space.unwrap_or_default();
    let state = link::state(linked);
    let trouble = match (state, space) {
        (LinkState::Ok, None) => "its space is not known yet".to_owned(),
        (LinkState::Ok, Some(_)) => String::new(),
        (LinkState::Trouble | LinkState::Unreachable | LinkState::Unmounted | LinkState::Stranger, _) => {
            state.name().to_owned()
        }
    };
    Some(TierReport {
        name: TierId::Nearline,
        dir: config.target.to_string(),
        // The mount table alone is asked: the directory itself may not answer.
        backing: match config.target.directory().map(|dir| mounts::mount_of(mounts, dir)) {
            Some(Some(mount)) => format!("linked, {}", mount.fs_type),
            Some(None) => "linked".to_owned(),
            None => "linked, bucket".to_owned(),
        },
        limit_bytes: limit,
        used_bytes: limit.saturating_sub(available),
        available_bytes: available,
        stop_write_bytes: 0,
        forced_out_bytes: 0,
        normal_out_bytes: 0,
        rate_in: 0,
        rate_out: 0,
        dirty_bytes: 0,
        objects: None,
        waiting_writers: 0,
        linked: true,
        trouble,
    })
}

fn link_report(parts: &Parts) -> Option<LinkReport> {
    let (linked, config) = parts.linked.as_ref().zip(parts.config.link.as_ref())?;
    let status = linked.status();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64;
    let age = |since: types::Timestamp| {
        let since = since.sec.saturating_mul(1000) + i64::from(since.nsec / 1_000_000);
        u64::try_from(now - since).unwrap_or(0)
    };
    Some(LinkReport {
        dir: config.target.to_string(),
        state: link::state(linked),
        trouble: status.trouble.as_ref().map_or(String::new(), |trouble| trouble.what.clone()),
        trouble_ms: status.trouble.as_ref().map(|trouble| trouble.since.elapsed().as_millis() as u64),
        pending: status.pending as u64,
        oldest_ms: status.oldest.map(age),
        pending_refused: status.refused_now as u64,
        pending_held: status.held as u64,
        conflicts: status.conflicts as u64,
        applied: status.applied,
        put_off: status.put_off,
        refused: status.refused,
        listed: status.listed,
        renewed: status.renewed,
    })
}

fn some(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

fn link_warnings(link: &LinkReport) -> Vec<String> {
    let mut warnings = Vec::new();
    if link.state != LinkState::Ok {
        warnings.push(format!(
            "the linked directory is in trouble ({}): {}; what is here is served, and changes wait",
            link.state.name(),
            link.trouble
        ));
    }
    if link.pending_refused > 0 {
        warnings.push(format!(
            "the linked directory refuses changes of {}: onfs gate lists them",
            some(link.pending_refused, "file or directory", "files and directories")
        ));
    }
    if link.conflicts > 0 {
        warnings
            .push(format!("{} changes were made on both sides: onfs conflicts lists them", link.conflicts));
    }
    warnings
}

/// The file system that a tier's directory lies on.
fn fs_type(mounts: &[MountEntry], dir: &Path) -> String {
    let real = std::fs::canonicalize(dir).unwrap_or_else(|_| dir.to_owned());
    mounts::mount_of(mounts, &real).map_or("directory".to_owned(), |mount| mount.fs_type.clone())
}

/// What the kernel says of our mount.
fn mount_options(parts: &Parts) -> Vec<String> {
    let here = mounts::onfs_at(parts.session.mountpoint()).ok().flatten();
    let mut words: Vec<String> =
        here.map(|mount| mount.options.split(',').map(str::to_owned).collect()).unwrap_or_default();
    words.extend(parts.config.mount.allow_other.then(|| "allow_other".to_owned()));
    words
}

fn movements(parts: &Parts, shown: &dyn Fn(Ino) -> bool) -> Vec<Movement> {
    let mut names = Names::new(&*parts.store, ENTRIES_MAX);
    // Names are searched for: not those of files that are left out.
    let moves = parts.ds.moves().into_iter().filter(|m| shown(m.ino));
    moves
        .enumerate()
        .map(|(n, m)| {
            // Their names are asked of the metadata; a status waits for no database.
            let named = n < NAMED_MAX && parts.store.engine_trouble().is_none();
            let path = if named { names.path(m.ino) } else { None };
            movement(m, path.map_or(String::new(), |path| path.display().to_string()))
        })
        .collect()
}

fn movement(m: MoveReport, path: String) -> Movement {
    Movement {
        ino: m.ino.get(),
        path,
        from: m.from,
        to: m.to,
        total_bytes: m.bytes,
        why: m.kind.map_or("drop", move_kind).to_owned(),
    }
}

fn move_kind(kind: tier::MoveKind) -> &'static str {
    match kind {
        tier::MoveKind::NormalOut => "normal-out",
        tier::MoveKind::ForcedOut => "forced-out",
        tier::MoveKind::WriteBehind => "write-behind",
        tier::MoveKind::Promote => "promote",
        tier::MoveKind::Request => "request",
    }
}

fn budget(parts: &Parts) -> BudgetReport {
    let (used, peak) = own_memory();
    BudgetReport { limit_bytes: parts.config.mount.memory_budget.0, used_bytes: used, peak_bytes: peak }
}

/// Resident memory of the daemon that is its own (not the pages of tmpfs files), now, and at most.
pub(super) fn own_memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(name));
        line.and_then(|l| l.split_whitespace().next()).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0)
            * 1024
    };
    (field("RssAnon:"), field("VmHWM:"))
}

pub(super) fn memory(parts: &Parts, target: Option<u64>) -> MemoryReport {
    let tier = parts.ds.tiers().into_iter().find(|t| t.tier == TierId::Memory);
    MemoryReport {
        limit_bytes: tier.as_ref().map_or(0, |t| t.report.limit),
        used_bytes: tier.as_ref().map_or(0, |t| t.report.used),
        target_bytes: target,
        budget: budget(parts),
    }
}

pub(super) fn file(parts: &Parts, file: &FileRef, found: &Found) -> Result<FileReport, Errno> {
    let attr = &found.attr;
    let policy = self::policy(parts, &file.path, found)?;
    let mut report = FileReport {
        path: file.path.clone(),
        ino: attr.ino.get(),
        ugsd: attr.ino.ugsd().get(),
        size_bytes: attr.size,
        allocated_bytes: 0,
        layout: "node-local".to_owned(),
        sau_bytes: SAU_BYTES,
        residency: Vec::new(),
        coolness: None,
        pinned: None,
        policy,
        open_mode: "closed".to_owned(),
        open_count: 0,
        at_risk_bytes: 0,
        lost_bytes: 0,
        dirty_bytes: 0,
        unsealed_bytes: 0,
    };
    if attr.kind != FileKind::Regular {
        report.layout = "none: it has no data".to_owned();
        return Ok(report);
    }
    let in_use = parts.client.use_file(attr.ino)?;
    let now = parts.ds.report(in_use.object());
    report.size_bytes = now.size;
    // Not what waits to be freed where the file was before.
    let held = |t: TierId| now.stored[t.index()].min(u64::from(now.saus[t.index()]) * SAU_BYTES);
    report.allocated_bytes = TierId::ALL.into_iter().map(held).sum();
    report.residency = TierId::ALL
        .into_iter()
        .filter(|t| now.saus[t.index()] > 0)
        .map(|t| TierResidency { tier: t, bytes: now.bytes[t.index()], saus: u64::from(now.saus[t.index()]) })
        .collect();
    report.coolness = now.coolness.map(|c| Coolness {
        value: c.value,
        formula: if c.open { "forced-out" } else { "normal-out" }.to_owned(),
        terms: [("T_closed", c.t_closed), ("T_co", c.t_co), ("T_oc", c.t_oc)]
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .chain(c.lru_rank.map(|rank| ("LRU-open".to_owned(), f64::from(rank))))
            .collect(),
    });
    report.pinned = now.pinned;
    report.open_count = u64::from(now.opens);
    report.open_mode = match (now.open, now.passthrough, now.open_for_write) {
        (false, ..) => "closed",
        (true, true, _) => "passthrough",
        (true, false, true) => "direct",
        (true, false, false) => "cached",
    }
    .to_owned();
    report.at_risk_bytes = now.at_risk;
    report.dirty_bytes = now.at_risk;
    report.lost_bytes = u64::from(now.lost_saus) * SAU_BYTES;
    report.unsealed_bytes = now.unsealed;
    Ok(report)
}

/// What a directory says itself and what holds there; of anything else, what holds for it.
pub(super) fn policy(parts: &Parts, path: &str, found: &Found) -> Result<DirPolicyReport, Errno> {
    let (policies, ino) = (parts.client.policies(), found.attr.ino);
    let (own, holds) = if found.attr.kind == FileKind::Directory {
        (policy::of_stored(policies.own(ino)), policies.holds_in(ino)?)
    } else {
        (DirPolicy::default(), policies.holds_for(ino)?)
    };
    Ok(DirPolicyReport {
        path: path.to_owned(),
        own,
        promote: policy::promote(holds.promote),
        mode: policy::mode(holds.mode),
        sync: policy::close_sync(holds.sync()),
        transient: holds.is_transient(),
        write_behind: policy::write_behind(holds.write_behind),
    })
}

pub(super) fn quota(path: String, project: ProjectId, quota: &Quota) -> QuotaReport {
    QuotaReport {
        path,
        project: project.0,
        bytes_limit: quota.limits.bytes.unwrap_or(0),
        bytes_used: quota.bytes,
        inodes_limit: quota.limits.inodes.unwrap_or(0),
        inodes_used: quota.inodes,
    }
}
