//! The clock that gives the back end's times, as far as it can be known from here.
//!
//! What is needed (`link::Clock`): a moment that is not later than the back end's clock when a look begins, and a step that is
//! not finer than what its times are rounded to. Then a write after the look gives a time that no write of a step before had.
//!
//! **Local file systems** take their times from `CLOCK_REALTIME_COARSE`, or from a finer clock that is never behind it. Asked
//! before the look, it is what a later write will have at the least. Times are kept with nanoseconds, and [`TICK`] is
//! what an HZ of 100 moves the coarse clock by. Where no nanoseconds were ever seen (ext3, small inodes) times are cut to seconds: [`WHOLE`].
//!
//! **Others** have a clock of their own, on a server or on each of their clients. A ctime that they give was
//! on that clock, and the clock has gone on since then, as fast as ours less [`DRIFT`]. So the newest ctime, and
//! the time passed since we got it, say what it is by now at the least; a quiet file system would stay unproven for ever without the
//! second. Never more than our own clock: a ctime in the future, of a machine whose clock is wrong, would have all
//! looks pass for late. Where each client gives times by its own clock, those clocks may be apart by
//! `Options::skew`, which counts as part of the step. A clock that is set back is seen through when the drift has made up for it.

use parking_lot::Mutex;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use link::Clock;
use rustix::time::{ClockId, clock_gettime};
use types::Timestamp;

/// The longest that a kernel's coarse clock stands still.
const TICK: Duration = Duration::from_millis(10);
/// Of times without nanoseconds: a second, and the tick in which it begins.
const WHOLE: Duration = Duration::from_millis(1010);
/// 1/1000 of the time passed is not counted.
const DRIFT: u32 = 1000;

#[derive(Debug)]
pub(crate) struct Times {
    local: bool,
    /// Added to the step.
    skew: Duration,
    step: Duration,
    /// A ctime with nanoseconds was seen.
    fine: AtomicBool,
    /// The ctime by which the clock is now the latest, and when we got it.
    newest: Mutex<Option<(Timestamp, Instant)>>,
}

impl Times {
    /// `step`: what is known of the kind of file system.
    pub(crate) fn new(local: bool, step: Duration, skew: Duration) -> Times {
        let skew = if local { Duration::ZERO } else { skew };
        Times { local, skew, step, fine: AtomicBool::new(false), newest: Mutex::new(None) }
    }

    /// A ctime that the back end gave.
    pub(crate) fn note(&self, ctime: Timestamp) {
        if ctime.nsec != 0 && !self.fine.load(Ordering::Relaxed) {
            self.fine.store(true, Ordering::Relaxed);
        }
        if !self.local {
            let now = Instant::now();
            let mut newest = self.newest.lock();
            if newest.is_none_or(|(time, got)| by_now(time, now.duration_since(got)) < ctime) {
                *newest = Some((ctime, now));
            }
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        let rounded = if self.fine.load(Ordering::Relaxed) { TICK } else { WHOLE };
        Clock { at: self.at(), step: rounded.max(self.step) + self.skew }
    }

    fn at(&self) -> Timestamp {
        if self.local {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            return Timestamp { sec: now.tv_sec, nsec: now.tv_nsec as u32 };
        }
        let Some((time, got)) = *self.newest.lock() else { return Timestamp::EPOCH };
        let ours = Timestamp::EPOCH.plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        by_now(time, got.elapsed()).min(ours)
    }
}

/// For one object: where its own time has no nanoseconds, others that have do not speak for it.
pub(crate) fn clock_for(clock: Clock, ctime: Timestamp) -> Clock {
    if ctime.nsec == 0 { Clock { step: clock.step.max(WHOLE), ..clock } } else { clock }
}

/// As of a moment before.
pub(crate) fn earlier(clock: Clock, by: Duration) -> Clock {
    let whole = Timestamp { sec: clock.at.sec.saturating_sub_unsigned(by.as_secs()), ..clock.at };
    let at = match whole.nsec.checked_sub(by.subsec_nanos()) {
        Some(nsec) => Timestamp { nsec, ..whole },
        None => Timestamp {
            sec: whole.sec.saturating_sub(1),
            nsec: whole.nsec + 1_000_000_000 - by.subsec_nanos(),
        },
    };
    Clock { at, ..clock }
}

fn by_now(time: Timestamp, passed: Duration) -> Timestamp {
    time.plus(passed - passed / DRIFT)
}

#[cfg(test)]
mod tests {
    //! Goal: never later than the back end's clock, and steps that fit. Method: known times, and the file system beside us.
    use super::*;

    fn ours() -> Timestamp {
        Timestamp::EPOCH.plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap())
    }

    #[test]
    fn a_local_clock_is_not_ahead_of_what_a_write_gives() {
        let times = Times::new(true, Duration::ZERO, Duration::from_secs(9));
        let file = tempfile::NamedTempFile::new().unwrap();
        for n in 0..2000u32 {
            let before = times.clock();
            std::fs::write(file.path(), n.to_ne_bytes()).unwrap();
            let stat = rustix::fs::stat(file.path()).unwrap();
            let after = Timestamp { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as u32 };
            assert!(before.at <= after, "{before:?} {after:?}");
        }
        assert_eq!(times.clock().step, WHOLE);
        times.note(Timestamp { sec: 5, nsec: 1 });
        assert_eq!(times.clock().step, TICK);
        assert!(clock_for(times.clock(), Timestamp { sec: 5, nsec: 0 }).step >= Duration::from_secs(1));
    }

    #[test]
    fn a_remote_clock_is_what_was_seen_and_goes_on() {
        let times = Times::new(false, Duration::ZERO, Duration::from_secs(1));
        assert_eq!(times.clock().at, Timestamp::EPOCH);
        let seen = Timestamp { sec: 1000, nsec: 7 };
        times.note(seen);
        times.note(Timestamp { sec: 900, nsec: 7 });
        let first = times.clock();
        assert!(first.at >= seen && first.at.since(seen) < Duration::from_secs(5));
        assert!(times.clock().at >= first.at);
        assert_eq!(first.step, TICK + Duration::from_secs(1));
        times.note(Timestamp { sec: i64::MAX / 2, nsec: 0 });
        assert!(times.clock().at <= ours());
        assert_eq!(by_now(seen, Duration::from_secs(1000)), Timestamp { sec: 1999, nsec: 7 });
    }

    #[test]
    fn earlier_borrows() {
        let clock = Clock { at: Timestamp { sec: 10, nsec: 5 }, step: TICK };
        let at = earlier(clock, Duration::new(1, 6)).at;
        assert_eq!(at, Timestamp { sec: 8, nsec: 999_999_999 });
        assert_eq!(at.plus(Duration::new(1, 6)), clock.at);
    }
}
