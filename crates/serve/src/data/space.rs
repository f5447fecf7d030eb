//! What the tiers of a data server have and have left.

use ds::TierStatus;
use proto::control::TierNow;

/// All and free bytes. What is free on a file system counts once, however many tiers are on it.
pub(super) fn space(tiers: &[TierStatus]) -> (u64, u64) {
    let available = |tier: &TierStatus| u64::try_from(tier.report.available).unwrap_or(0);
    let (mut used, mut free) = (0_u64, 0_u64);
    for (at, tier) in tiers.iter().enumerate() {
        used = used.saturating_add(tier.report.limit.saturating_sub(available(tier)));
        if tiers[..at].iter().any(|other| other.device == tier.device) {
            continue;
        }
        let here = tiers.iter().filter(|other| other.device == tier.device);
        let wanted = here.fold(0_u64, |sum, other| sum.saturating_add(available(other)));
        let device = if tier.tier.is_persistent() { tier.device_free } else { available(tier) };
        free = free.saturating_add(wanted.min(device));
    }
    (used.saturating_add(free), free)
}

/// A tier, as it is reported.
pub(super) fn tier_now(status: &TierStatus) -> TierNow {
    let report = &status.report;
    TierNow {
        tier: status.tier.index() as u32,
        limit: report.limit,
        used: report.used,
        available: u64::try_from(report.available).unwrap_or(0),
        stop_write: report.thresholds.s_w,
        writers_wait: report.writers_wait,
    }
}
