//! A right that runs out by itself, on clocks that agree about nothing but how fast they go.
//!
//! Who asks counts from when it asked, who grants from when it granted, so the asker stops first whatever the way took. Clocks may
//! gain or lose one part in `drift_one_in` against the true time, and a pause counts: a clock that stands still breaks the promise.

use std::time::Duration;

/// By the own clock, since any moment.
pub type Time = Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// For how long a member may act after it asked.
    pub lease: Duration,
    /// A member asks so often.
    pub beat_every: Duration,
    /// Silence that makes suspicious. It is waited once more, after the lease, for one that nobody else complains about.
    pub suspect_after: Duration,
    /// At least 2.
    pub drift_one_in: u32,
}

impl Terms {
    /// Who asked at `asked` may act until then, by its own clock.
    pub fn may_until(&self, asked: Time) -> Time {
        asked.saturating_add(self.lease)
    }

    /// What was granted at `granted` has ended then, by the granter's clock: a fast granter and a slow asker.
    pub fn ended_at(&self, granted: Time) -> Time {
        let n = self.drift_one_in.max(2);
        let slow = self.lease.saturating_mul(n + 1) / (n - 1);
        granted.saturating_add(slow).saturating_add(Duration::from_nanos(1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Goal: in true time the asker stops before the granter thinks so. Method: any two clocks within the bound, a way that takes no time.
        #[test]
        fn the_asker_stops_first(n in 2..200u32, lease in 1..100_000_000u64, asker in -1.0..=1.0f64, granter in -1.0..=1.0f64) {
            let lease = Duration::from_micros(lease);
            let terms = Terms { lease, beat_every: lease, suspect_after: lease, drift_one_in: n };
            let rate = |part: f64| 1.0 + part / f64::from(n);
            let stops = terms.may_until(Time::ZERO).as_secs_f64() / rate(asker);
            let ended = terms.ended_at(Time::ZERO).as_secs_f64() / rate(granter);
            // The slack is for the rounding of this sum, not of the terms.
            prop_assert!(stops <= ended * (1.0 + 1e-12), "{} after {}", stops, ended);
        }
    }
}
