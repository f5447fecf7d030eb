//! What is left to chance: one stream of numbers from a seed, clocks, and how rough a run is.

use std::time::Duration;

use cluster::tenure::Time;

use crate::cast::{Broken, Place};

/// The same seed gives the same numbers for ever.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Below 1 there is only 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// `one_in(0)` is never.
    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most))
    }

    pub fn any<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        of.get(self.below(of.len() as u64) as usize).copied()
    }
}

/// A process's own clock: it began some time ago, and gains or loses up to 4.5 %.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    ahead: Duration,
    /// In thousandths.
    rate: u32,
}

impl Clock {
    pub fn of(random: &mut Random) -> Clock {
        Clock { ahead: random.millis(100_000), rate: 955 + random.below(91) as u32 }
    }

    pub fn at(&self, time: Duration) -> Time {
        self.ahead + time * self.rate / 1000
    }
}

/// Faults, each one in so many steps, chunks or writes; 0 is never. Half of the runs have each.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// A chunk of bytes is sent again, and holds up what is behind it.
    pub loss: u64,
    /// One way between two processes.
    pub cut: u64,
    /// A connection is broken.
    pub reset: u64,
    pub pause: u64,
    pub kill: u64,
    /// Of the machine of a data server or of the database.
    pub power: u64,
    /// A write to a disk takes long.
    pub slow_disk: u64,
    /// Two servers of metadata, or one and the database, cannot hear each other. With journals.
    pub part: u64,
    /// A machine of metadata is gone for good, if there is a complete copy. With journals.
    pub lost: u64,
    /// A slot goes to another owner that is well: in one of so many beats of the coordinator.
    pub moves: u64,
    /// Who is stopped, killed and cut off; `None`: anybody.
    pub who: Option<&'static [Place]>,
    /// Whose machine loses its power.
    pub machines: &'static [Place],
}

const MACHINES: &[Place] =
    &[Place::Database, Place::Metadata(0), Place::Data(0), Place::Data(1), Place::Data(2)];
const KEEPERS: &[Place] = &[Place::Data(0), Place::Data(1), Place::Data(2)];
const CLIENTS: &[Place] = &[Place::Client(0), Place::Client(1), Place::Client(2)];
const AROUND_ONE_SERVER: &[Place] =
    &[Place::Metadata(0), Place::Coordinator(0), Place::Coordinator(1), Place::Database];
const WHO_DIVIDE: &[Place] =
    &[Place::Metadata(0), Place::Metadata(1), Place::Coordinator(0), Place::Coordinator(1)];
const SERVERS: &[Place] = &[Place::Metadata(0), Place::Metadata(1)];

impl Weather {
    pub fn of(random: &mut Random) -> Weather {
        let mut maybe = |often: u64| if random.one_in(2) { often } else { 0 };
        Weather {
            loss: maybe(120),
            cut: maybe(200),
            reset: maybe(80),
            pause: maybe(220),
            kill: maybe(250),
            power: maybe(500),
            slow_disk: maybe(15),
            part: maybe(150),
            lost: maybe(200),
            moves: maybe(8),
            who: None,
            machines: MACHINES,
        }
    }

    /// All of it and often.
    pub const ROUGH: Weather = Weather {
        loss: 50,
        cut: 200,
        reset: 40,
        pause: 200,
        kill: 250,
        power: 500,
        slow_disk: 5,
        part: 150,
        lost: 200,
        moves: 8,
        who: None,
        machines: MACHINES,
    };

    pub const FAIR: Weather = Weather {
        loss: 0,
        cut: 0,
        reset: 0,
        pause: 0,
        kill: 0,
        power: 0,
        slow_disk: 0,
        part: 0,
        lost: 0,
        moves: 0,
        who: None,
        machines: MACHINES,
    };

    /// In which what is left out is needed most. What is needed often is seen in any.
    pub fn for_want_of(broken: Broken) -> Option<Weather> {
        match broken {
            Broken::RowFence => {
                Some(Weather { pause: 60, slow_disk: 2, who: Some(SERVERS), ..Weather::FAIR })
            }
            Broken::MemberTerms => Some(Weather { cut: 15, who: Some(AROUND_ONE_SERVER), ..Weather::FAIR }),
            Broken::DataFence => Some(Weather { pause: 45, who: Some(CLIENTS), ..Weather::FAIR }),
            Broken::LostTail | Broken::Grace => {
                Some(Weather { power: 200, machines: &[Place::Database], ..Weather::FAIR })
            }
            Broken::OldConnections => {
                Some(Weather { loss: 20, reset: 12, who: Some(KEEPERS), ..Weather::FAIR })
            }
            Broken::AnswersLeft => Some(Weather { moves: 3, reset: 6, ..Weather::FAIR }),
            Broken::LocksLeft | Broken::ServedOn => Some(Weather { moves: 4, ..Weather::FAIR }),
            Broken::EarlyTail | Broken::ShortTail => Some(Weather { lost: 120, part: 120, ..Weather::FAIR }),
            Broken::HalfTail => Some(Weather { kill: 100, part: 120, who: Some(SERVERS), ..Weather::FAIR }),
            Broken::TailFence => Some(Weather { pause: 30, who: Some(WHO_DIVIDE), ..Weather::FAIR }),
            Broken::TailTenure => Some(Weather { pause: 60, part: 60, who: Some(SERVERS), ..Weather::FAIR }),
            Broken::AnswersLost => Some(Weather { lost: 120, reset: 6, ..Weather::FAIR }),
            _ => None,
        }
    }
}
