//! A time of the file systems' clock, to compare modification times with.

/// A time before the step, from the same clock as the file system's: what changed must not be older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(i64, i64);

/// Kernel file systems stamp with the time of the last tick, at most this much behind.
const TICK_NS: i64 = 20_000_000;

impl Moment {
    pub fn at(seconds: i64, nanos: i64) -> Moment {
        Moment(seconds, nanos)
    }

    pub fn now() -> Moment {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let total = t.tv_sec as i128 * 1_000_000_000 + i128::from(t.tv_nsec) - i128::from(TICK_NS);
        Moment((total / 1_000_000_000) as i64, (total % 1_000_000_000) as i64)
    }
}
