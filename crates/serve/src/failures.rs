//! How many lines about failed requests a second may have: a device that fails must not fill the log's disk as well.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Of each service. Enough to see what fails, and for whom.
const LINES_PER_SECOND: u64 = 20;

pub(crate) struct Failures {
    began: Instant,
    /// The second that is counted, and what was said and left out in it. Two threads that meet at its end may say a line more.
    second: AtomicU64,
    said: AtomicU64,
    left_out: AtomicU64,
}

impl Default for Failures {
    fn default() -> Failures {
        let [second, said, left_out] = [0; 3].map(AtomicU64::new);
        Failures { began: Instant::now(), second, said, left_out }
    }
}

impl Failures {
    /// May this one be said? With how many were left out before it.
    pub(crate) fn may_say(&self) -> Option<u64> {
        self.may_say_after(self.began.elapsed())
    }

    fn may_say_after(&self, elapsed: Duration) -> Option<u64> {
        let second = elapsed.as_secs();
        if self.second.swap(second, Relaxed) != second {
            self.said.store(0, Relaxed);
        }
        if self.said.fetch_add(1, Relaxed) < LINES_PER_SECOND {
            return Some(self.left_out.swap(0, Relaxed));
        }
        self.left_out.fetch_add(1, Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_second_are_bounded_and_the_others_counted() {
        let failures = Failures::default();
        let second = |n: u64| Duration::from_millis(1000 * n + 3);
        let said =
            |n, times| (0..times).filter_map(|_| failures.may_say_after(second(n))).collect::<Vec<_>>();
        assert_eq!(said(0, LINES_PER_SECOND + 7), [0; LINES_PER_SECOND as usize]);
        assert_eq!(said(1, 2), [7, 0]);
        assert_eq!(said(9, 1), [0]);
    }
}
