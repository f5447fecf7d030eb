//! What a tier's device takes: how many operations ended, how many of them after too long, how many with an error of the device, and for
//! how long the oldest has been under way.
//!
//! Two readings of the clock and some relaxed additions for each operation; nothing of memory, which is no device.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use types::Errno;

/// Operations under way of which the beginning is known; a device has not as many at once, and of more some are not looked at.
const SLOTS: usize = 64;
/// An operation looks at so many for a free one.
const TRIED: usize = 4;

/// Sums since the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// Operations that ended.
    pub done: u64,
    /// Those that took longer than the limit.
    pub slow: u64,
    /// Those that ended with an error of the device.
    pub failed: u64,
    pub bytes: u64,
    /// Time that they took in all, each by itself.
    pub time: Duration,
    /// For how long the oldest has been under way.
    pub oldest: Duration,
}

pub(crate) struct Gauge {
    origin: Instant,
    pub(crate) limit: Duration,
    done: AtomicU64,
    slow: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    micros: AtomicU64,
    /// Microseconds from the origin to the beginning, and one; 0: free.
    under_way: [AtomicU64; SLOTS],
    next: AtomicU64,
}

impl Gauge {
    /// `limit`: longer is slow.
    pub(crate) fn new(limit: Duration) -> Gauge {
        Gauge {
            origin: Instant::now(),
            limit,
            done: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            micros: AtomicU64::new(0),
            under_way: [const { AtomicU64::new(0) }; SLOTS],
            next: AtomicU64::new(0),
        }
    }

    /// Runs an operation of so many bytes.
    pub(crate) fn time<R>(&self, bytes: u64, run: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
        let begun = self.origin.elapsed();
        let slot = self.enter(begun);
        let result = run();
        let took = self.origin.elapsed().saturating_sub(begun);
        if let Some(slot) = slot {
            slot.store(0, Ordering::Release);
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.micros.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        if took > self.limit {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
        if result.as_ref().is_err_and(|errno| is_of_the_device(*errno)) {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn enter(&self, begun: Duration) -> Option<&AtomicU64> {
        let first = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let mark = begun.as_micros() as u64 + 1;
        let slots = (0..TRIED).map(|n| &self.under_way[(first + n) % SLOTS]);
        slots
            .into_iter()
            .find(|slot| slot.compare_exchange(0, mark, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    pub(crate) fn read(&self) -> Reading {
        let now = self.origin.elapsed();
        let marks = self.under_way.iter().map(|slot| slot.load(Ordering::Acquire)).filter(|mark| *mark > 0);
        let oldest =
            marks.min().map_or(Duration::ZERO, |mark| now.saturating_sub(Duration::from_micros(mark - 1)));
        let sum = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        Reading {
            done: sum(&self.done),
            slow: sum(&self.slow),
            failed: sum(&self.failed),
            bytes: sum(&self.bytes),
            time: Duration::from_micros(sum(&self.micros)),
            oldest,
        }
    }
}

/// Not of what was asked, nor of a full one.
fn is_of_the_device(errno: Errno) -> bool {
    matches!(errno, Errno::EIO | Errno::ENXIO | Errno::ENODEV | Errno::ETIMEDOUT | Errno::EROFS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    //! Goal: each operation counts once, and one that hangs is seen while it does. Method: operations that end when the test lets them.
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_ended_and_what_is_under_way_are_told_apart() {
        let gauge = Gauge::new(Duration::from_secs(3600));
        gauge.time(10, || Ok(())).unwrap();
        assert_eq!(gauge.time::<()>(0, || Err(Errno::ENOSPC)), Err(Errno::ENOSPC));
        assert_eq!(gauge.time::<()>(0, || Err(Errno::EIO)), Err(Errno::EIO));
        let read = gauge.read();
        assert_eq!(
            (read.done, read.slow, read.failed, read.bytes, read.oldest),
            (3, 0, 1, 10, Duration::ZERO)
        );
        let (go, goes) = channel::<()>();
        let (begun, begins) = channel();
        std::thread::scope(|scope| {
            let gauge = &gauge;
            scope.spawn(move || {
                let wait = || {
                    begun.send(()).unwrap();
                    goes.recv().map_err(|_| Errno::EIO)
                };
                gauge.time(5, wait).unwrap();
            });
            begins.recv().unwrap();
            let first = gauge.read();
            assert_eq!((first.done, first.bytes), (3, 10));
            std::thread::sleep(Duration::from_millis(2));
            assert!(gauge.read().oldest > first.oldest);
            go.send(()).unwrap();
        });
        let read = gauge.read();
        assert_eq!((read.done, read.bytes, read.oldest), (4, 15, Duration::ZERO));
    }

    #[test]
    fn longer_than_the_limit_is_slow_and_more_than_are_looked_at_are_counted() {
        let gauge = Gauge::new(Duration::ZERO);
        // Each holds a place while the next begins.
        fn nested(gauge: &Gauge, depth: usize) -> Result<(), Errno> {
            if depth == 0 { Ok(()) } else { gauge.time(1, || nested(gauge, depth - 1)) }
        }
        nested(&gauge, 2 * SLOTS).unwrap();
        let read = gauge.read();
        assert_eq!(
            (read.done, read.bytes, read.oldest),
            (2 * SLOTS as u64, 2 * SLOTS as u64, Duration::ZERO)
        );
        assert!(read.slow > 0);
    }
}
