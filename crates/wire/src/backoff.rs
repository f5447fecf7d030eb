//! When to try a lost connection again: at once the first time, then after pauses that double, each with a random part, so
//! that the clients of a server that comes back do not all come in the same moment.

use std::time::Duration;

use crate::connection::Time;

#[derive(Clone, Debug)]
pub struct Redial {
    first: Duration,
    longest: Duration,
    failures: u32,
    not_before: Time,
}

impl Redial {
    /// The pause after the first failure, and the longest.
    pub const fn new(first: Duration, longest: Duration) -> Redial {
        Redial { first, longest, failures: 0, not_before: Time::ZERO }
    }

    /// From then on it may be tried.
    pub fn not_before(&self) -> Time {
        self.not_before
    }

    /// An attempt failed. `random` is any number. How long the pause is: half to all of what the doubling gives.
    pub fn failed(&mut self, now: Time, random: u64) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(20)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        let half = doubled / 2;
        let part = Duration::from_nanos(random % (half.as_nanos() as u64 + 1));
        self.not_before = now + half + part;
        half + part
    }

    /// The connection has carried an answer. Only then is the next loss a first one: a peer that takes connections and drops them
    /// must not be tried without a pause.
    pub fn worked(&mut self) {
        self.failures = 0;
        self.not_before = Time::ZERO;
    }
}
