//! What one block of a file may read as, after writes and fsyncs of which some had no answer, while data servers lose their memory. Pure.
//!
//! A version of a block is the number of the write that made it; 0 is zeros. Whoever owns the block writes it, one write after the other, through one mount.
//!
//! - What an fsync that said yes came after is never missing: a read shows it or something later.
//! - What was answered is what a read shows, unless the memory of a data server was lost since, or a mount was killed that keeps writes back.
//! - A write without an answer may be there or not, and comes late only if its mount was killed since.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attempt {
    version: u32,
    answered: bool,
    moment: Moment,
}

/// When something began: how many memories had been lost, and in which life of its mount, which answers before it has sent if it `keeps_back`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moment {
    pub losses: u64,
    pub life: u64,
    pub keeps_back: bool,
}

impl Moment {
    /// What was answered then and not made durable may have gone by now.
    pub fn is_losable(&self, now: Moment) -> bool {
        self.losses < now.losses || self.is_past(now)
    }

    /// What its mount kept back then went with it.
    fn is_past(&self, now: Moment) -> bool {
        self.keeps_back && self.life < now.life
    }
}

#[derive(Clone, Default, Debug)]
pub struct Block {
    last: u32,
    /// What was durable at the last fsync.
    floor: u32,
    /// After it, the earliest first.
    attempts: Vec<Attempt>,
    /// Before it, without an answer.
    strays: Vec<Attempt>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    Right,
    /// Something that was answered and not made durable is lost with a memory, or with the mount that kept it back.
    RolledBack,
    /// Of a mount that was killed.
    Late,
}

impl Block {
    /// A write begins; its version.
    pub fn attempt(&mut self, now: Moment) -> u32 {
        self.last += 1;
        self.attempts.push(Attempt { version: self.last, answered: false, moment: now });
        self.last
    }

    pub fn answered(&mut self, version: u32) {
        if let Some(attempt) = self.attempts.iter_mut().find(|attempt| attempt.version == version) {
            attempt.answered = true;
        }
    }

    pub fn last(&self) -> u32 {
        self.last
    }

    pub fn floor(&self) -> u32 {
        self.floor
    }

    /// An fsync said yes that began when `until` was the last version.
    pub fn durable(&mut self, until: u32, now: Moment) {
        // What the killed daemon knew of losses its next one does not.
        let known = |attempt: &Attempt| attempt.moment.life == now.life || !attempt.moment.is_losable(now);
        let safe = self
            .attempts
            .iter()
            .filter(|attempt| attempt.version <= until && attempt.answered && known(attempt))
            .map(|attempt| attempt.version)
            .max();
        let Some(floor) = safe else { return };
        self.floor = floor;
        let (before, after) = self.attempts.iter().partition(|attempt| attempt.version <= floor);
        self.attempts = after;
        let before: Vec<Attempt> = before;
        self.strays.extend(before.into_iter().filter(|attempt| !attempt.answered));
    }

    /// An fsync said no: what may have been lost by then is not promised by the next one.
    pub fn not_durable(&mut self, now: Moment) {
        for attempt in &mut self.attempts {
            attempt.answered &= attempt.moment.losses == now.losses;
        }
    }

    /// Something is in doubt: a read may show parts of two versions.
    pub fn in_doubt(&self) -> bool {
        self.attempts.iter().chain(&self.strays).any(|attempt| !attempt.answered)
    }

    /// May all of it be unreadable for good?
    pub fn may_be_lost(&self, now: Moment) -> bool {
        self.floor == 0 && self.attempts.iter().any(|attempt| attempt.moment.losses < now.losses)
    }

    /// A read began at `began` and showed `version`; `now` is after it.
    pub fn read(&mut self, version: u32, now: Moment) -> Result<Seen, String> {
        let shown = self.attempts.iter().rfind(|attempt| attempt.answered);
        let expected = shown.map_or(self.floor, |attempt| attempt.version);
        if version == expected || version > expected && self.has(version) {
            return Ok(Seen::Right);
        }
        let known = version == self.floor || self.has(version);
        let losable = |attempt: &Attempt| version >= attempt.version || attempt.moment.is_losable(now);
        if known && self.attempts.iter().filter(|attempt| attempt.answered).all(losable) {
            self.attempts.iter_mut().filter(|attempt| attempt.version > version).for_each(|attempt| {
                attempt.answered = false;
            });
            return Ok(Seen::RolledBack);
        }
        let late = |attempt: &Attempt| {
            attempt.version == version && !attempt.answered && attempt.moment.life < now.life
        };
        if self.attempts.iter().chain(&self.strays).any(late) {
            return Ok(Seen::Late);
        }
        let what = if version < self.floor { "LOST AFTER FSYNC" } else { "older than what was answered" };
        Err(format!(
            "{what}: version {version} of {} is there, {expected} was answered, {} was made durable",
            self.last, self.floor
        ))
    }

    fn has(&self, version: u32) -> bool {
        self.attempts.iter().any(|attempt| attempt.version == version)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what the page above says. Method: short histories.
    use super::*;

    const START: Moment = Moment { losses: 0, life: 0, keeps_back: false };
    const LOST: Moment = Moment { losses: 1, ..START };

    fn written(block: &mut Block, now: Moment) -> u32 {
        let version = block.attempt(now);
        block.answered(version);
        version
    }

    #[test]
    fn what_was_answered_is_shown() {
        let mut block = Block::default();
        assert_eq!(block.read(0, START), Ok(Seen::Right));
        written(&mut block, START);
        assert_eq!(block.read(1, START), Ok(Seen::Right));
        assert!(block.read(0, START).is_err());
        assert!(block.read(2, START).is_err(), "nobody wrote it");
        // One without an answer may be there, and comes late only of a killed mount.
        assert_eq!(block.attempt(START), 2);
        assert_eq!((block.read(1, START), block.read(2, START)), (Ok(Seen::Right), Ok(Seen::Right)));
        written(&mut block, START);
        assert!(block.read(2, START).is_err());
        assert_eq!(block.read(2, Moment { life: 1, ..START }), Ok(Seen::Late));
    }

    #[test]
    fn what_is_durable_is_never_lost() {
        let mut block = Block::default();
        let first = written(&mut block, START);
        block.durable(first, START);
        written(&mut block, START);
        assert!(block.read(first, START).is_err() && block.clone().read(0, LOST).is_err());
        assert_eq!(block.read(first, LOST), Ok(Seen::RolledBack));
        assert_eq!(block.read(first, LOST), Ok(Seen::Right));
        assert!(!block.may_be_lost(LOST) && block.in_doubt());
    }

    #[test]
    fn an_fsync_that_fails_promises_nothing() {
        let mut block = Block::default();
        let version = written(&mut block, START);
        assert!(block.may_be_lost(LOST));
        block.not_durable(LOST);
        block.durable(version, LOST);
        assert_eq!((block.floor(), block.read(0, LOST)), (0, Ok(Seen::Right)));
        // One that says yes, in the same life of the mount, promises all of it.
        let version = written(&mut block, LOST);
        block.durable(version, Moment { losses: 2, ..START });
        assert_eq!(block.floor(), version);
        // Another daemon does not know what was lost before it.
        let after = written(&mut block, LOST);
        block.durable(after, Moment { losses: 2, life: 1, ..START });
        assert_eq!(block.floor(), version);
    }

    #[test]
    fn what_a_killed_mount_kept_back_may_go_with_it() {
        for keeps_back in [false, true] {
            let (first, killed) = (Moment { keeps_back, ..START }, Moment { keeps_back, life: 1, ..START });
            let mut block = Block::default();
            let durable = written(&mut block, first);
            block.durable(durable, first);
            let version = written(&mut block, first);
            assert!(block.clone().read(durable, first).is_err());
            assert_eq!(block.clone().read(durable, killed).ok(), keeps_back.then_some(Seen::RolledBack));
            assert!(block.clone().read(0, killed).is_err(), "what was durable stays");
            // The next daemon's fsync is about what came to it.
            block.durable(version, killed);
            assert_eq!(block.floor(), if keeps_back { durable } else { version });
        }
    }
}
