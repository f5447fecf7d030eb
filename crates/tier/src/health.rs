//! Is a tier's device slow, or does it fail? From what its operations took.
//!
//! A device that fails outright says so; one that answers after seconds holds up whoever waits for it, and nobody says why. It is slow when,
//! in [`WINDOWS`] windows in a row, [`FEW`] operations each took longer than [`Limits::wait`] while the device moved fewer bytes than
//! [`Limits::rate`]: who waits long at a device that moves much waits for its load. Or when one operation is not done after
//! [`HUNG`] times that. It is well again after [`CALM`] windows in a row with operations of which none was slow. It fails when
//! [`FEW`] operations ended with an error of the device within [`REMEMBERED`].
//!
//! Pure: knows no clock, no device and no file.

use std::{collections::VecDeque, time::Duration};

use types::TierId;

use crate::api::Time;

/// One look at a device to the next that counts.
pub const WINDOW: Duration = Duration::from_secs(10);
pub const WINDOWS: u32 = 3;
pub const FEW: u64 = 3;
pub const CALM: u32 = 6;
pub const HUNG: u32 = 20;
pub const REMEMBERED: Duration = Duration::from_secs(600);

/// What is too slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// One operation.
    pub wait: Duration,
    /// Bytes in a second.
    pub rate: u64,
}

impl Limits {
    /// The rate is a tenth and less of what the slowest devices of the kind do: an SSD behind an old bus, a disk that seeks for every page.
    pub fn new(tier: TierId, wait: Duration) -> Limits {
        match tier {
            TierId::Memory | TierId::Ssd => Limits { wait, rate: 10 << 20 },
            TierId::Nearline => Limits { wait, rate: 1 << 20 },
        }
    }
}

/// What a device did since the start, and what it does now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sums {
    /// Operations that ended.
    pub done: u64,
    /// Those that took longer than [`Limits::wait`].
    pub slow: u64,
    /// Those that ended with an error of the device.
    pub failed: u64,
    pub bytes: u64,
    /// For how long the oldest operation has been under way.
    pub oldest: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Health {
    #[default]
    Well,
    /// Operations that were slow in the last windows, or how long one has been under way.
    Slow { operations: u64, longest: Duration },
    /// Errors within [`REMEMBERED`].
    Failing { errors: u64 },
}

impl Health {
    pub fn is_well(self) -> bool {
        self == Health::Well
    }
}

/// One device.
#[derive(Clone, Debug)]
pub struct Watch {
    limits: Limits,
    health: Health,
    /// Of the last window that was judged.
    before: Sums,
    judged: Time,
    /// In a row.
    slow: u32,
    calm: u32,
    /// Slow operations in the windows of the row.
    operations: u64,
    longest: Duration,
    /// When errors were seen, and how many, oldest first; more than [`ERRORS_MAX`] looks are not remembered.
    errors: VecDeque<(Time, u64)>,
}

const ERRORS_MAX: usize = 64;

impl Watch {
    /// `sums` is what it has done so far.
    pub fn new(now: Time, limits: Limits, sums: Sums) -> Watch {
        Watch {
            limits,
            health: Health::Well,
            before: sums,
            judged: now,
            slow: 0,
            calm: 0,
            operations: 0,
            longest: Duration::ZERO,
            errors: VecDeque::new(),
        }
    }

    pub fn health(&self) -> Health {
        self.health
    }

    /// To be called once a second or so. What it is now.
    pub fn look(&mut self, now: Time, sums: &Sums) -> Health {
        let passed = now.saturating_sub(self.judged);
        let hung = sums.oldest > self.limits.wait * HUNG;
        if passed >= WINDOW {
            self.window(now, passed, sums);
        }
        while self.errors.front().is_some_and(|(at, _)| now.saturating_sub(*at) > REMEMBERED) {
            self.errors.pop_front();
        }
        let errors = self.errors.iter().map(|(_, count)| count).sum::<u64>()
            + sums.failed.saturating_sub(self.before.failed);
        if hung {
            (self.slow, self.calm) = (WINDOWS, 0);
            self.longest = self.longest.max(sums.oldest);
        }
        let was_slow = matches!(self.health, Health::Slow { .. });
        let slow = self.slow >= WINDOWS || (was_slow && self.calm < CALM);
        self.health = if errors >= FEW {
            Health::Failing { errors }
        } else if slow {
            Health::Slow { operations: self.operations, longest: self.longest.max(sums.oldest) }
        } else {
            Health::Well
        };
        self.health
    }

    fn window(&mut self, now: Time, passed: Duration, sums: &Sums) {
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let (done, slow) = (since(sums.done, self.before.done), since(sums.slow, self.before.slow));
        let failed = since(sums.failed, self.before.failed);
        let moved = since(sums.bytes, self.before.bytes) as f64 / passed.as_secs_f64();
        let waits = sums.oldest > self.limits.wait;
        if slow >= FEW && moved < self.limits.rate as f64 {
            self.slow = (self.slow + 1).min(WINDOWS);
            self.calm = 0;
            self.operations += slow;
        } else if slow == 0 && !waits && done > 0 {
            self.calm = (self.calm + 1).min(CALM);
            self.slow = 0;
            if self.calm == CALM {
                (self.operations, self.longest) = (0, Duration::ZERO);
            }
        } else if !waits {
            self.slow = 0;
        }
        if failed > 0 {
            if self.errors.len() == ERRORS_MAX {
                self.errors.pop_front();
            }
            self.errors.push_back((now, failed));
        }
        (self.before, self.judged) = (*sums, now);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    //! Goal: who waits for the device is told from who waits for its load; one bad moment is none; a device comes back. Method: by hand.
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Windows of so many operations, slow ones and MiB each; the verdict after each.
    fn after(windows: &[(u64, u64, u64)]) -> Vec<Health> {
        let (mut watch, mut sums) = (
            Watch::new(s(0), Limits::new(TierId::Ssd, Duration::from_millis(500)), Sums::default()),
            Sums::default(),
        );
        let each = windows.iter().enumerate().map(|(n, (done, slow, mib))| {
            sums.done += done;
            sums.slow += slow;
            sums.bytes += mib << 20;
            watch.look(s(10 * (n as u64 + 1)), &sums)
        });
        each.collect()
    }

    fn are_slow(windows: &[(u64, u64, u64)]) -> Vec<bool> {
        after(windows).into_iter().map(|health| matches!(health, Health::Slow { .. })).collect()
    }

    #[test]
    fn three_slow_windows_make_a_slow_device() {
        assert_eq!(are_slow(&[(5, 4, 1), (5, 4, 1), (5, 4, 1)]), [false, false, true]);
        assert_eq!(after(&[(5, 4, 1); 3])[2], Health::Slow { operations: 12, longest: s(0) });
        // Two operations are none, and a good window in between begins anew.
        assert_eq!(are_slow(&[(5, 2, 1); 4]), [false; 4]);
        assert_eq!(are_slow(&[(5, 4, 1), (5, 4, 1), (5, 0, 1), (5, 4, 1), (5, 4, 1)]), [false; 5]);
    }

    #[test]
    fn a_device_that_moves_much_is_not_slow() {
        assert_eq!(are_slow(&[(50, 20, 200); 5]), [false; 5]);
    }

    #[test]
    fn it_is_well_again_after_calm_windows_with_operations() {
        let mut windows = vec![(5, 4, 1); 3];
        windows.extend([(0, 0, 0); 10]);
        windows.extend([(1, 0, 0); 6]);
        let slow = are_slow(&windows);
        assert!(slow[2..18].iter().all(|slow| *slow), "nothing asked says nothing: {slow:?}");
        assert!(!slow[18]);
    }

    #[test]
    fn one_that_does_not_come_back_is_enough() {
        let mut watch =
            Watch::new(s(0), Limits::new(TierId::Ssd, Duration::from_millis(500)), Sums::default());
        let hung = Sums { done: 1, oldest: s(9), ..Sums::default() };
        assert!(watch.look(s(1), &hung).is_well());
        let hung = Sums { oldest: s(11), ..hung };
        assert_eq!(watch.look(s(3), &hung), Health::Slow { operations: 0, longest: s(11) });
        // It came back; calm windows follow.
        let mut sums = Sums { done: 2, slow: 1, ..Sums::default() };
        let mut all = Vec::new();
        for n in 1..=8 {
            all.push(watch.look(s(3 + 10 * n), &sums).is_well());
            sums.done += 1;
        }
        assert_eq!(all, [false, false, false, false, false, false, true, true]);
    }

    #[test]
    fn errors_of_the_device_are_remembered_for_a_while() {
        let mut watch =
            Watch::new(s(0), Limits::new(TierId::Ssd, Duration::from_millis(500)), Sums::default());
        let sums = |failed| Sums { done: 100, failed, ..Sums::default() };
        assert!(watch.look(s(10), &sums(2)).is_well());
        assert_eq!(watch.look(s(500), &sums(3)), Health::Failing { errors: 3 });
        assert_eq!(watch.look(s(609), &sums(3)), Health::Failing { errors: 3 });
        assert!(watch.look(s(612), &sums(3)).is_well());
    }
}
