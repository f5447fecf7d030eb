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

/// With as many requests as this for each thread it is as busy as can be.
const REQUESTS_FOR_A_THREAD: u64 = 4;

/// How busy it is, in thousandths: a tier whose writers wait cannot do more, nor can threads for which others wait, nor one whose device is
/// slow.
pub(super) fn busy(tiers: &[TierStatus], requests: u64, threads: usize) -> u32 {
    if tiers.iter().any(|tier| !tier.health.is_well()) {
        return 1000;
    }
    let waiting = tiers.iter().filter(|tier| tier.report.writers_wait).count();
    ((waiting * 1000 / tiers.len().max(1)) as u32).max(load(requests, threads))
}

fn load(requests: u64, threads: usize) -> u32 {
    let most = REQUESTS_FOR_A_THREAD * threads.max(1) as u64;
    (requests.min(most) * 1000 / most) as u32
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
        slow: !status.health.is_well(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who has more to do than he can do at once says so. By hand.
    #[test]
    fn requests_that_wait_make_busy() {
        assert_eq!([0, 8, 32, 64, 4096].map(|requests| load(requests, 16)), [0, 125, 500, 1000, 1000]);
        assert_eq!(load(1, 0), 250);
        assert_eq!(busy(&[], 32, 16), 500);
    }
}
