//! What the tiers of a data server have and have left.

use ds::TierStatus;

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
