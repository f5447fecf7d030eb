//! A time of the file systems' clock, to compare modification times with.

/// A time before the step, from the same clock as the file system's: what changed must not be older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(i64, i64);

impl Moment {
    pub fn at(seconds: i64, nanos: i64) -> Moment {
        Moment(seconds, nanos)
    }

    /// Of the clock that kernel file systems stamp with, which shows the last tick: how far that is behind is not bounded when
    /// the machine is busy.
    pub fn now() -> Moment {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Moment(t.tv_sec, t.tv_nsec)
    }
}
