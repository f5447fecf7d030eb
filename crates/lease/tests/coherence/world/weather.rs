//! What is left to chance: faults and clocks.

use std::time::Duration;

use cluster::tenure::Time;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }

    pub fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most))
    }
}

/// Faults, each one in so many; 0 is never.
pub struct Weather {
    pub loss: u64,
    pub repeat: u64,
    pub late: u64,
    pub pause: u64,
    pub restart: u64,
    pub server_restart: u64,
    /// Writing back takes longer than a recall waits.
    pub hang: u64,
}

impl Weather {
    pub fn of(random: &mut Random) -> Weather {
        let mut maybe = |often: u64| if random.one_in(2) { often } else { 0 };
        Weather {
            loss: maybe(8),
            repeat: maybe(10),
            late: maybe(6),
            pause: maybe(200),
            restart: maybe(400),
            server_restart: maybe(250),
            hang: maybe(20),
        }
    }
}

pub struct Clock {
    pub ahead: Duration,
    /// In thousandths.
    pub rate: u32,
}

impl Clock {
    pub fn of(random: &mut Random) -> Clock {
        Clock { ahead: random.millis(100_000), rate: 955 + random.below(91) as u32 }
    }

    pub fn at(&self, time: Duration) -> Time {
        self.ahead + time * self.rate / 1000
    }
}
