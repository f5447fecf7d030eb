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
