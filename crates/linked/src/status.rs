//! What is said of linked near-line.

use std::time::{Duration, Instant};

use link::Trust;
use parking_lot::{Condvar, Mutex};
use types::{Errno, Timestamp};

use crate::{Linked, Trouble};

/// What is known of the back end's space is good for so long, and who asks waits for a newer answer no longer than that.
const SPACE_GOOD: Duration = Duration::from_secs(2);
const SPACE_WAIT: Duration = Duration::from_millis(500);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Inodes with something that is not applied there, and since when the oldest waits.
    pub pending: usize,
    pub oldest: Option<Timestamp>,
    /// Of these, those that were refused, and those that wait for another try or a look.
    pub refused_now: usize,
    pub held: usize,
    /// Why one of those was refused that were.
    pub refusal: Option<Errno>,
    pub conflicts: usize,
    pub applied: u64,
    pub put_off: u64,
    pub refused: u64,
    /// Directories that were listed, and files of which theirs took the place of our copy.
    pub listed: u64,
    pub renewed: u64,
    pub trouble: Option<Trouble>,
    /// What the last look at the root said.
    pub trust: Option<Trust>,
}

impl Linked {
    pub fn status(&self) -> Status {
        let (lag, refused_now, held, refusal) = {
            let pending = self.ledger.lock();
            let refused = |trouble: link::Trouble| matches!(trouble, link::Trouble::Refused(_));
            let refused_now = pending.log.held().filter(|(_, trouble)| refused(*trouble)).count();
            (
                pending.log.lag(),
                refused_now,
                pending.log.held().count() - refused_now,
                pending.refused().map(|(_, errno)| errno),
            )
        };
        Status {
            pending: lag.entries,
            oldest: lag.oldest,
            refused_now,
            held,
            refusal,
            conflicts: self.conflicts().map_or(0, |conflicts| conflicts.len()),
            applied: self.counters.applied.get(),
            put_off: self.counters.put_off.get(),
            refused: self.counters.refused.get(),
            listed: self.counters.listed.get(),
            renewed: self.counters.renewed.get(),
            trouble: self.current_trouble(),
            trust: self.last_trust(),
        }
    }

    /// Free and all bytes of the back end, as they were a moment ago, or when it last said. Waits but for a moment.
    pub fn space(&self) -> Option<(u64, u64)> {
        let mut known = self.space.known.lock();
        let good = |known: &Known| known.at.is_some_and(|at| at.elapsed() < SPACE_GOOD);
        if !good(&known) && !known.asking && self.current_trouble().is_none() {
            known.asking = self.ask_for_space();
        }
        let until = Instant::now() + SPACE_WAIT;
        while known.asking && !good(&known) {
            if self.space.told.wait_until(&mut known, until).timed_out() {
                break;
            }
        }
        known.bytes
    }

    /// One thread at a time: the call may take as long as its deadline.
    fn ask_for_space(&self) -> bool {
        let Some(me) = self.me.upgrade() else { return false };
        let ask = move || {
            let bytes = me.back.space();
            let mut known = me.space.known.lock();
            known.asking = false;
            if let Ok(bytes) = bytes {
                (known.bytes, known.at) = (Some(bytes), Some(Instant::now()));
            }
            me.space.told.notify_all();
        };
        std::thread::Builder::new().name("link-space".to_owned()).spawn(ask).is_ok()
    }
}

/// What the back end last said of its space.
#[derive(Default)]
pub(crate) struct Space {
    known: Mutex<Known>,
    told: Condvar,
}

#[derive(Default)]
struct Known {
    bytes: Option<(u64, u64)>,
    at: Option<Instant>,
    asking: bool,
}
