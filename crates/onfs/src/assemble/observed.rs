//! The parts' own counters as metrics, and what is wrong with the stores.

use ds::DataServer;
use kv::MetaStore;
use mds::Mds;
use types::TierId;

use super::report::own_memory;
use crate::{
    control::GuardReport,
    monitor::{Id, Sample},
};

/// A tier with less room than this part of it is full.
const FULL_PART: u64 = 200;

/// What every daemon has. `kind`: what it is.
pub(super) fn process(sample: &mut Sample, kind: &str, budget: u64) {
    sample.add(Id::Build, &[env!("CARGO_PKG_VERSION"), kind], 1);
    sample.add(Id::MemoryUsed, &[], own_memory().0);
    sample.add(Id::MemoryBudget, &[], budget);
}

/// What a guarded mount's daemon has.
pub(super) fn guard(sample: &mut Sample, guard: &GuardReport) {
    sample.add(Id::GuardStarts, &["unexpected-end"], u64::from(guard.restarts));
    sample.add(Id::GuardStarts, &["upgrade"], u64::from(guard.upgrades));
    sample.add_real(Id::GuardHeld, &[], guard.last_held_ms.unwrap_or_default() as f64 / 1000.0);
}

/// What a daemon with stores has.
pub(super) fn stores(sample: &mut Sample, ds: &DataServer, store: &MetaStore, mds: &Mds) {
    tiers(sample, ds);
    let counters = ds.counters();
    for (id, value) in [
        (Id::FreedBytes, counters.freed_bytes),
        (Id::FileSyncs, counters.syncs),
        (Id::DamagedSaus, counters.damaged_saus),
        (Id::LostSaus, counters.lost_saus),
        (Id::ScrubbedBytes, counters.scrubbed_bytes),
        (Id::RepairedSaus, counters.repaired_saus),
        (Id::HopelessSaus, counters.hopeless_saus),
    ] {
        sample.add(id, &[], value);
    }
    sample.add(Id::Moves, &["done"], counters.moves_done);
    sample.add(Id::Moves, &["failed"], counters.moves_failed);
    let stats = store.stats();
    for (id, value) in [
        (Id::Inodes, mds.statfs_usage().inodes),
        (Id::Commits, stats.lsn.0),
        (Id::Unsynced, stats.lsn.0.saturating_sub(stats.synced_lsn.0)),
        (Id::JournalSyncs, stats.syncs),
        (Id::JournalBytes, stats.journal_bytes),
        (Id::Checkpoints, stats.checkpoints),
        (Id::EngineBytes, stats.engine_bytes),
        (Id::CacheBytes, stats.cache_bytes),
    ] {
        sample.add(id, &[], value);
    }
    sample.add(Id::CacheLooks, &["hit"], stats.cache_hits);
    sample.add(Id::CacheLooks, &["miss"], stats.cache_misses);
}

fn tiers(sample: &mut Sample, ds: &DataServer) {
    let counters = ds.counters();
    for status in ds.tiers() {
        sample.add(Id::MovedIn, &[status.tier.name()], counters.moved_in[status.tier.index()]);
        sample.add(Id::MovedOut, &[status.tier.name()], counters.moved_out[status.tier.index()]);
        let (at, report) = ([status.tier.name()], &status.report);
        sample.add(Id::TierSize, &at, report.limit);
        sample.add(Id::TierUsed, &at, report.used);
        sample.add(Id::TierAvailable, &at, u64::try_from(report.available).unwrap_or(0));
        if let Some(objects) = report.objects {
            sample.add(Id::TierObjects, &at, objects);
        }
        sample.add_real(Id::TierIn, &at, report.write_in_rate);
        sample.add_real(Id::TierOut, &at, report.move_out_rate);
        sample.add(Id::TierWriters, &at, u64::from(report.writers_wait));
        sample.add(Id::TierWell, &at, u64::from(status.health.is_well()));
        if let Some(reading) = status.reading {
            sample.add(Id::TierOperations, &at, reading.done);
            sample.add_real(Id::TierTime, &at, reading.time.as_secs_f64());
            sample.add(Id::TierSlow, &at, reading.slow);
            sample.add(Id::TierErrors, &at, reading.failed);
        }
    }
    let (files, bytes) = ds.dirty();
    sample.add(Id::OnlyInMemory, &[], bytes);
    sample.add(Id::OnlyInMemoryFiles, &[], files);
}

/// What keeps the stores from taking what comes.
pub(super) fn troubles(ds: &DataServer, store: &MetaStore) -> Vec<String> {
    let stats = store.stats();
    let mut troubles: Vec<String> =
        stats.read_only.iter().map(|why| format!("metadata is read-only: {why}")).collect();
    if stats.short_of_space {
        troubles.push("the disk under the metadata is full: only removals are possible".to_owned());
    }
    if let Some((_, why)) = store.engine_trouble() {
        troubles.push(format!("the metadata engine is in trouble: {why}"));
    }
    let ill = ds.tiers().into_iter().filter(|tier| !tier.health.is_well());
    troubles.extend(
        ill.map(|tier| format!("the device of the {} tier {}", tier.tier, ds::health_words(tier.health))),
    );
    // What is full above it moves down.
    if let Some(last) = ds.tiers().last() {
        let available = u64::try_from(last.report.available).unwrap_or(0);
        troubles.extend(full(last.tier, available, last.report.limit, last.report.thresholds.s_w));
    }
    troubles
}

/// Of the last tier.
fn full(tier: TierId, available: u64, limit: u64, stop_write: u64) -> Option<String> {
    let is_full = available <= stop_write.max(limit / FULL_PART);
    is_full.then(|| format!("the last tier, {tier}, is full: {available} of {limit} bytes are available"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_full_below_its_threshold_or_a_small_part() {
        assert_eq!(full(TierId::Ssd, 1000, 10_000, 500), None);
        assert!(full(TierId::Ssd, 500, 10_000, 500).is_some_and(|why| why.contains("ssd, is full: 500 of")));
        assert!(full(TierId::Nearline, 50, 10_000, 0).is_some());
        assert_eq!(full(TierId::Nearline, 51, 10_000, 0), None);
    }
}
