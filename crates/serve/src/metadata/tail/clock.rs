//! A clock that counts pauses of the process and of the machine: what ends by it has ended after them.

use cluster::tenure::Time;
use rustix::time::{ClockId, clock_gettime};

pub(super) fn now() -> Time {
    let at = clock_gettime(ClockId::Boottime);
    Time::new(at.tv_sec.unsigned_abs(), u32::try_from(at.tv_nsec).unwrap_or(0))
}
