//! Counting requests by method: how many, how they ended, how long they took, how many bytes came and went.
//!
//! Invariants: plain relaxed atomics, so that counting costs nanoseconds and takes no lock; labels come from closed sets ([`Method`],
//! [`Class`]), never from names or ids. It knows no clock: who counts says how long it took.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use types::Errno;

use crate::{Method, watch::Load};

/// Upper bounds of the classes of duration, in microseconds; what takes longer is in one more class.
pub const BOUNDS_US: [u64; 14] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 100_000, 250_000, 1_000_000, 5_000_000,
    30_000_000,
];
const BUCKETS: usize = BOUNDS_US.len() + 1;

/// What an error says, for counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
#[repr(usize)]
pub enum Class {
    /// There is no such name or attribute: an answer like others.
    Absent,
    Denied,
    /// It may work in a moment.
    Later,
    /// A disk, a quota or a limit is full.
    Full,
    /// The session or the file is gone.
    Stale,
    /// A device or another server failed: what operators look at.
    Failed,
    /// The request cannot be carried out as it is.
    Wrong,
}

impl Class {
    pub const ALL: [Class; 7] =
        [Class::Absent, Class::Denied, Class::Later, Class::Full, Class::Stale, Class::Failed, Class::Wrong];

    pub const fn name(self) -> &'static str {
        match self {
            Class::Absent => "absent",
            Class::Denied => "denied",
            Class::Later => "later",
            Class::Full => "full",
            Class::Stale => "stale",
            Class::Failed => "failed",
            Class::Wrong => "wrong",
        }
    }

    pub const fn of(errno: Errno) -> Class {
        use Errno as E;
        match errno {
            E::ENOENT | E::ENODATA => Class::Absent,
            E::EPERM | E::EACCES | E::EROFS => Class::Denied,
            E::EAGAIN | E::EBUSY | E::EINTR | E::ETXTBSY | E::EDEADLK => Class::Later,
            E::ENOSPC | E::EDQUOT | E::EFBIG | E::EMFILE | E::EMLINK | E::ENOLCK | E::ENOMEM => Class::Full,
            E::ESTALE | E::EREMOTE => Class::Stale,
            E::EIO | E::ETIMEDOUT | E::ENXIO | E::ENODEV | E::EPIPE => Class::Failed,
            E::E2BIG
            | E::EBADF
            | E::EEXIST
            | E::EXDEV
            | E::ENOTDIR
            | E::EISDIR
            | E::EINVAL
            | E::ENOTTY
            | E::ESPIPE
            | E::ERANGE
            | E::ENAMETOOLONG
            | E::ENOSYS
            | E::ENOTEMPTY
            | E::ELOOP
            | E::EOVERFLOW
            | E::EOPNOTSUPP => Class::Wrong,
        }
    }
}

/// One request that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    pub error: Option<Errno>,
    pub took: Duration,
    /// With the metas.
    pub received: u64,
    pub sent: u64,
}

impl Ended {
    fn micros(&self) -> u64 {
        u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX)
    }

    /// As a load of one request. That a name is not there is no error.
    pub fn load(&self) -> Load {
        let error = self.error.is_some_and(|errno| Class::of(errno) != Class::Absent);
        Load {
            requests: 1,
            errors: u64::from(error),
            received: self.received,
            sent: self.sent,
            micros: self.micros(),
        }
    }
}

#[derive(Default)]
struct Row {
    errors: [AtomicU64; Class::ALL.len()],
    buckets: [AtomicU64; BUCKETS],
    micros: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
}

/// The counts of one method.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    pub method: Method,
    pub requests: u64,
    /// In the order of [`Class::ALL`].
    pub errors: [u64; Class::ALL.len()],
    /// Requests of each class of duration alone, in the order of [`BOUNDS_US`].
    pub buckets: [u64; BUCKETS],
    pub micros: u64,
    pub received: u64,
    pub sent: u64,
}

/// The requests that one role answers, or that one client makes.
pub struct Meter {
    /// By the place in [`Method::ALL`].
    rows: Vec<Row>,
    unknown: Row,
    waiting: AtomicU64,
    refused: AtomicU64,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            rows: Method::ALL.iter().map(|_| Row::default()).collect(),
            unknown: Row::default(),
            waiting: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl Meter {
    /// A request came, or is made.
    pub fn begin(&self) {
        self.waiting.fetch_add(1, Relaxed);
    }

    /// One that was begun has ended. A method without a number of ours is counted in the whole alone.
    pub fn end(&self, method: Option<Method>, ended: &Ended) {
        self.waiting.fetch_sub(1, Relaxed);
        let row = method.and_then(place).and_then(|at| self.rows.get(at)).unwrap_or(&self.unknown);
        if let Some(errno) = ended.error {
            row.errors[Class::of(errno) as usize].fetch_add(1, Relaxed);
        }
        let micros = ended.micros();
        row.buckets[BOUNDS_US.partition_point(|bound| *bound < micros)].fetch_add(1, Relaxed);
        row.micros.fetch_add(micros, Relaxed);
        row.received.fetch_add(ended.received, Relaxed);
        row.sent.fetch_add(ended.sent, Relaxed);
    }

    /// One that was begun was sent away, since too many were waiting.
    pub fn refuse(&self) {
        self.waiting.fetch_sub(1, Relaxed);
        self.refused.fetch_add(1, Relaxed);
    }

    /// Those that wait or are carried out.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Relaxed)
    }

    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Of the methods that were asked for at all.
    pub fn counts(&self) -> Vec<Counts> {
        let rows = Method::ALL.iter().zip(&self.rows).map(|(method, row)| row.counts(*method));
        rows.filter(|counts| counts.requests > 0).collect()
    }

    /// All together.
    pub fn load(&self) -> Load {
        // The method of the unknown ones means nothing here.
        let unknown = self.unknown.counts(Method::Hello);
        self.counts().iter().chain([&unknown]).fold(Load::default(), |sum, counts| sum.and(&counts.load()))
    }
}

impl Row {
    fn counts(&self, method: Method) -> Counts {
        let now = |counter: &AtomicU64| counter.load(Relaxed);
        let buckets = std::array::from_fn(|at| now(&self.buckets[at]));
        Counts {
            method,
            // Of the buckets, so that both always say the same.
            requests: buckets.iter().sum(),
            errors: std::array::from_fn(|at| now(&self.errors[at])),
            buckets,
            micros: now(&self.micros),
            received: now(&self.received),
            sent: now(&self.sent),
        }
    }
}

impl Counts {
    fn load(&self) -> Load {
        let absent = self.errors[Class::Absent as usize];
        Load {
            requests: self.requests,
            errors: self.errors.iter().sum::<u64>() - absent,
            received: self.received,
            sent: self.sent,
            micros: self.micros,
        }
    }
}

fn place(method: Method) -> Option<usize> {
    Method::ALL.binary_search(&method).ok()
}

#[cfg(test)]
mod tests {
    //! Goal: what is counted is in its place. Method: requests of known kinds, compared with what is said of them.
    use super::*;

    fn ended(error: Option<Errno>, micros: u64) -> Ended {
        Ended { error, took: Duration::from_micros(micros), received: 10, sent: 3 }
    }

    #[test]
    fn every_method_has_a_place_of_its_own() {
        let meter = Meter::default();
        for method in Method::ALL {
            meter.begin();
            meter.end(Some(*method), &ended(None, 1));
        }
        let counts = meter.counts();
        assert!(counts.iter().map(|c| c.method).eq(Method::ALL.iter().copied()));
        assert!(counts.iter().all(|c| c.requests == 1));
        assert_eq!(meter.waiting(), 0);
    }

    #[test]
    fn requests_are_counted_by_how_they_end() {
        let meter = Meter::default();
        for (error, micros) in [(None, 50), (Some(Errno::ENOENT), 51), (Some(Errno::EIO), u64::MAX >> 20)] {
            meter.begin();
            meter.end(Some(Method::Lookup), &ended(error, micros));
        }
        meter.begin();
        meter.end(None, &ended(Some(Errno::ENOSYS), 0));
        meter.begin();
        assert_eq!((meter.waiting(), meter.refused()), (1, 0));
        meter.refuse();
        assert_eq!((meter.waiting(), meter.refused()), (0, 1));
        let [lookup] = &meter.counts()[..] else { panic!("one method") };
        assert_eq!((lookup.buckets[0], lookup.buckets[1], lookup.buckets[BUCKETS - 1]), (1, 1, 1));
        assert_eq!(lookup.errors[Class::Absent as usize], 1);
        assert_eq!(lookup.errors[Class::Failed as usize], 1);
        let load = meter.load();
        assert_eq!((load.requests, load.errors, load.received, load.sent), (4, 2, 40, 12));
    }
}
