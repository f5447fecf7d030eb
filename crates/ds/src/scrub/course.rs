//! When a pass over all objects is due, and how far it is. Pure; times are seconds since 1970, since a pass outlives the process.
//!
//! - I-SCRUB-1: a pass reads each part after the last in order; what was read is not read again in it, whatever was restarted.
//! - I-SCRUB-2: between the ends of two passes that nobody asked for there is at least the time that was set.

use std::time::Duration;

use store::TierStore;

/// Passes, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Course {
    /// `None`: only when somebody asks.
    every: Option<Duration>,
    record: Record,
}

/// What is kept of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// The pass under way.
    pub pass: Option<Pass>,
    /// When the last one ended, or the file system was made.
    pub ended: u64,
    /// By the pass under way, or else by the last one.
    pub found: Found,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    pub began: u64,
    /// The part that is read next, or being read: below [`TierStore::PARTS`].
    pub part: u16,
}

/// What a pass came upon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Found {
    /// That were read, of all copies.
    pub bytes: u64,
    /// Copies of SAUs that were not what their checksum says, or could not be read.
    pub damaged: u64,
    /// Of them: given up, since another tier has the SAU.
    pub repaired: u64,
    /// SAUs without a copy that is good.
    pub hopeless: u64,
    /// Objects that were in use in a way that kept them from being compared.
    pub passed_over: u64,
}

impl Course {
    /// `record`: what was kept, if there is anything.
    pub fn new(every: Option<Duration>, record: Option<Record>, now: u64) -> Course {
        let new = Record { ended: now, ..Record::default() };
        Course { every, record: record.unwrap_or(new) }
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The part that is to be read now. A clock that was put back begins nothing and delays for no longer than it was set.
    pub fn due(&mut self, now: u64) -> Option<u16> {
        self.record.ended = self.record.ended.min(now);
        let waited = Duration::from_secs(now - self.record.ended);
        if self.record.pass.is_none() && self.every.is_some_and(|every| waited >= every) {
            self.ask(now);
        }
        self.record.pass.map(|pass| pass.part)
    }

    /// A pass begins now, unless one is under way. `false`: it was.
    pub fn ask(&mut self, now: u64) -> bool {
        let begins = self.record.pass.is_none();
        if begins {
            self.record.pass = Some(Pass { began: now, part: 0 });
            self.record.found = Found::default();
        }
        begins
    }

    /// Nobody wants it any more. What it found stays, with what it found in the part that was not read whole.
    pub fn stop(&mut self, found: &Found, now: u64) {
        if self.record.pass.take().is_some() {
            self.record.ended = now;
            self.record.found.add(found);
        }
    }

    /// All of a part was read. `true`: and that was the last one.
    pub fn read(&mut self, part: u16, found: Found, now: u64) -> bool {
        let Some(pass) = self.record.pass.as_mut().filter(|pass| pass.part == part) else { return false };
        pass.part += 1;
        let ends = usize::from(pass.part) >= TierStore::PARTS;
        if ends {
            self.stop(&found, now);
        } else {
            self.record.found.add(&found);
        }
        ends
    }
}

impl Found {
    pub fn add(&mut self, more: &Found) {
        self.bytes += more.bytes;
        self.damaged += more.damaged;
        self.repaired += more.repaired;
        self.hopeless += more.hopeless;
        self.passed_over += more.passed_over;
    }
}

/// Version, part (`NONE`: no pass), when it began, when the last one ended, what was found: little-endian, then CRC-32C.
const VERSION: u8 = 1;
const NONE: u16 = u16::MAX;
const BYTES: usize = 1 + 2 + 7 * 8 + 4;

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(BYTES);
        out.push(VERSION);
        out.extend(self.pass.map_or(NONE, |pass| pass.part).to_le_bytes());
        let Found { bytes, damaged, repaired, hopeless, passed_over } = self.found;
        let began = self.pass.map_or(0, |pass| pass.began);
        for number in [began, self.ended, bytes, damaged, repaired, hopeless, passed_over] {
            out.extend(number.to_le_bytes());
        }
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    /// `None`: it cannot be read.
    pub fn decode(bytes: &[u8]) -> Option<Record> {
        let (body, crc) = bytes.split_last_chunk::<4>().filter(|_| bytes.len() == BYTES)?;
        let (version, rest) = body.split_first()?;
        let (part, numbers) = rest.split_first_chunk::<2>()?;
        if *version != VERSION || crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (numbers, _) = numbers.as_chunks::<8>();
        let [began, ended, bytes, damaged, repaired, hopeless, passed_over] = numbers else { return None };
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        let part = u16::from_le_bytes(*part);
        if part != NONE && usize::from(part) >= TierStore::PARTS {
            return None;
        }
        let found = Found {
            bytes: number(bytes),
            damaged: number(damaged),
            repaired: number(repaired),
            hopeless: number(hopeless),
            passed_over: number(passed_over),
        };
        let pass = (part != NONE).then_some(Pass { began: number(began), part });
        Some(Record { pass, ended: number(ended), found })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: I-SCRUB-1 and 2. Method: passes part by part with times that are said, through the stored form after each.
    use super::*;

    const DAY: u64 = 86_400;
    const EVERY: Option<Duration> = Some(Duration::from_secs(30 * DAY));

    fn again(course: &Course, now: u64) -> Course {
        let kept = Record::decode(&course.record().encode());
        assert_eq!(kept.as_ref(), Some(course.record()));
        Course::new(EVERY, kept, now)
    }

    #[test]
    fn a_pass_reads_each_part_once_and_the_next_one_comes_when_it_is_time() {
        let mut course = Course::new(EVERY, None, 1000);
        assert_eq!(course.due(1000 + 30 * DAY - 1), None);
        let mut now = 1000 + 30 * DAY;
        for part in 0..TierStore::PARTS as u16 {
            assert_eq!(course.due(now), Some(part));
            course = again(&course, now);
            assert!(!course.read(part + 1, Found::default(), now), "another part");
            let found = Found { bytes: 3, damaged: 1, ..Found::default() };
            let is_last = usize::from(part) + 1 == TierStore::PARTS;
            assert_eq!(course.read(part, found, now), is_last);
            now += 60;
        }
        let ended = now - 60;
        assert_eq!((course.record().found.bytes, course.record().found.damaged), (768, 256));
        assert_eq!(course.due(ended + 30 * DAY - 1), None);
        assert_eq!(course.due(ended + 30 * DAY), Some(0));
        assert_eq!(course.record().found, Found::default());
    }

    #[test]
    fn who_asks_has_one_and_a_clock_that_is_put_back_does_not_stop_all() {
        let mut course = Course::new(None, None, 1000);
        assert_eq!(course.due(u64::MAX), None, "nobody asks");
        assert!(course.ask(2000) && !course.ask(2001));
        assert_eq!(course.due(2000), Some(0));
        course.stop(&Found { bytes: 7, ..Found::default() }, 2002);
        assert_eq!((course.due(2003), course.record().found.bytes), (None, 7));
        let mut ahead = Course::new(EVERY, None, 1000 * DAY);
        assert_eq!(ahead.due(10 * DAY), None);
        assert_eq!(ahead.due(40 * DAY), Some(0));
    }

    #[test]
    fn what_is_no_record_is_none() {
        let good = Course::new(EVERY, None, 5).record().encode();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(Record::decode(&bad), None);
            assert_eq!(Record::decode(&good[..at]), None);
        }
    }
}
