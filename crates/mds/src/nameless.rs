//! Inodes that have lost their last name and are still referred to, in the order in which they lost it: whoever refers to one may not know,
//! and its bytes are kept for as long as he does.
//!
//! Memory: an entry per such inode.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use types::Ino;

#[derive(Default)]
pub(crate) struct Nameless {
    last: u64,
    since: BTreeMap<u64, (Ino, Instant)>,
}

impl Nameless {
    /// Its number, which is not 0.
    pub(crate) fn add(&mut self, ino: Ino, now: Instant) -> u64 {
        self.last += 1;
        self.since.insert(self.last, (ino, now));
        self.last
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.since.remove(&number);
    }

    /// Those behind a number, `max` at most, which lost their names so long ago; and the number to go on from.
    pub(crate) fn behind(&self, number: u64, age: Duration, (now, max): (Instant, usize)) -> (Vec<Ino>, u64) {
        let some = self.since.range(number.saturating_add(1)..).take(max);
        let mut last = number;
        let mut inos = Vec::new();
        for (at, (ino, since)) in some {
            if now.saturating_duration_since(*since) < age {
                break;
            }
            inos.push(*ino);
            last = *at;
        }
        (inos, last)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each is found once, when it is old enough. Method: times that are given.
    use super::*;

    #[test]
    fn they_are_found_in_turn_when_they_are_old_enough() {
        let (mut nameless, start, age) = (Nameless::default(), Instant::now(), Duration::from_secs(2));
        let inos: Vec<Ino> = (2..6).filter_map(Ino::from_raw).collect();
        let numbers: Vec<u64> = inos.iter().map(|ino| nameless.add(*ino, start)).collect();
        assert!(!numbers.contains(&0));
        assert_eq!(nameless.behind(0, age, (start + age / 2, 9)), (Vec::new(), 0));
        nameless.remove(numbers[1]);
        nameless.add(inos[1], start + age);
        let (some, at) = nameless.behind(0, age, (start + age, 2));
        assert_eq!(some, [inos[0], inos[2]]);
        let (some, at) = nameless.behind(at, age, (start + age, 2));
        assert_eq!(some, [inos[3]]);
        assert_eq!(nameless.behind(at, age, (start + 2 * age, 2)).0, [inos[1]]);
    }
}
