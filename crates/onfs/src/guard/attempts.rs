//! How often a daemon is started again. Pure.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

/// Ends within [`WINDOW`] after which it is given up.
pub const ENDS_MAX: usize = 6;
pub const WINDOW: Duration = Duration::from_secs(60);
/// Waits before the first ones; then the last.
const WAITS_MS: [u64; 4] = [0, 100, 500, 1000];

/// The unexpected ends of late.
#[derive(Default)]
pub struct Attempts(VecDeque<Instant>);

impl Attempts {
    /// A daemon ended unexpectedly: how long to wait before the next one, or that there is to be none.
    pub fn after_end(&mut self, now: Instant) -> Option<Duration> {
        while self.0.front().is_some_and(|end| now.duration_since(*end) > WINDOW) {
            self.0.pop_front();
        }
        self.0.push_back(now);
        let ends = self.0.len();
        if ends >= ENDS_MAX {
            return None;
        }
        Some(Duration::from_millis(WAITS_MS[(ends - 1).min(WAITS_MS.len() - 1)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a loop of crashes ends, and crashes now and then do not count together. Method: invented times.
    #[test]
    fn a_loop_ends_and_rare_ends_do_not() {
        let start = Instant::now();
        let mut attempts = Attempts::default();
        for n in 1..ENDS_MAX as u64 {
            assert!(attempts.after_end(start + Duration::from_secs(n)).is_some());
        }
        assert_eq!(attempts.after_end(start + Duration::from_secs(10)), None);
        let mut rare = Attempts::default();
        assert!((0..100).all(|n| rare.after_end(start + n * WINDOW / 4).is_some()));
    }
}
