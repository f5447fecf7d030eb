//! Files with two copies: who is said not to answer, whose second copy is complete, which stripes lack one.
//!
//! What is done about it is [`super::tending`]'s and [`super::views`]'. Nothing here is stored: what lacks a copy is found again by a look through all layouts, at the start, and
//! whenever data servers come or go.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use cluster::{NodeId, placement::Measures};
use parking_lot::{Condvar, Mutex};
use proto::{
    copies::{CopyWord, Member},
    layout::file_and_stripe,
    watch::LostFile,
};
use types::Ino;

/// Words that wait; more are said again.
const WORDS_MAX: usize = 1 << 14;
/// Of a member that answers us somebody else has to complain for so long, at least so often, before it is believed.
pub(super) const DOUBTED_FOR: Duration = Duration::from_secs(4);
/// So long others are tried before one that did not answer the other data server.
pub(super) const APART_FOR: Duration = Duration::from_secs(30);

/// What was said of a stripe, in this view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Heard {
    pub ino: Ino,
    pub stripe: usize,
    pub view: u64,
    /// This member does not answer; none: the second has every byte.
    pub silent: Option<Member>,
    /// By a client, who may be wrong.
    pub doubtful: bool,
}

/// Lives that are known to be over; more are asked again.
const GONE_MAX: usize = 4096;
/// A primary is told of a second again after so long, twice as long each time, up to this.
const TOLD_AFTER: Duration = Duration::from_secs(1);
const TOLD_AFTER_MAX: Duration = Duration::from_secs(60);
/// So many seconds are begun one after the other; then each waits twice as long as the one before it.
const TRIES: u32 = 4;

/// When something is done again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Again {
    view: u64,
    at: Instant,
    pause: Duration,
}

/// Seconds that were begun, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tried {
    count: u32,
    last: Instant,
}

type Part = (Ino, usize);

/// By stripes.
type Doubted = HashMap<(Ino, usize, Member), (Instant, Instant)>;
type Apart = HashMap<(Ino, usize, u64), Instant>;
/// When all layouts were looked through, and with which data servers and standings; and how often slots had come by then.
pub(super) struct Looked {
    pub at: Instant,
    pub lives: BTreeMap<u64, (u64, bool)>,
    pub standings: u64,
    pub comings: u64,
}

#[derive(Default)]
pub(super) struct Replicas {
    pub heard: Mutex<BTreeSet<Heard>>,
    /// Somebody was heard, or a view was stored.
    pub woken: Condvar,
    pub wakes: Mutex<u64>,
    /// Of members that answered us: when somebody complained first, and last.
    pub doubted: Mutex<Doubted>,
    /// Members that were left out upon another data server's word, and when: the two may not reach each other, whoever else reaches both.
    pub apart: Mutex<Apart>,
    /// Files of which a stripe lacks a copy, or has one somewhere where it is not to stay.
    pub lacking: Mutex<BTreeSet<Ino>>,
    pub looked: Mutex<Option<Looked>>,
    pub tended: Mutex<Option<Instant>>,
    /// Of stripes whose second is made: when its primary is told again.
    pub told: Mutex<HashMap<Part, Again>>,
    /// Of stripes that lack a second.
    pub tried: Mutex<HashMap<Part, Tried>>,
    pub gone: Mutex<BTreeSet<Member>>,
    /// Files of which both copies of some part were lost.
    pub lost: Mutex<BTreeMap<Ino, LostFile>>,
    /// There is one.
    pub seen: AtomicBool,
    pub changed: AtomicU64,
    pub revived: AtomicU64,
}

impl Tried {
    fn pause(&self) -> Duration {
        let more = self.count.saturating_sub(TRIES);
        if self.count < TRIES {
            Duration::ZERO
        } else {
            (TOLD_AFTER * (1 << more.min(6))).min(TOLD_AFTER_MAX)
        }
    }
}

impl Replicas {
    /// By data servers.
    pub fn hear(&self, words: &[CopyWord]) {
        for word in words {
            let Some(object) = word.object else { continue };
            let Some((ino, stripe)) = file_and_stripe(object.ino) else { continue };
            let (Some(ino), Some(view)) = (Ino::from_raw(ino), object.view) else { continue };
            self.note(Heard { ino, stripe, view: view.number, silent: word.silent, doubtful: false });
        }
    }

    pub fn note(&self, heard: Heard) {
        {
            let mut all = self.heard.lock();
            if all.len() < WORDS_MAX {
                all.insert(heard);
            }
        }
        self.seen.store(true, Ordering::Release);
        self.wake();
    }

    pub fn wake(&self) {
        *self.wakes.lock() += 1;
        self.woken.notify_all();
    }

    pub fn is_new(&self, ino: Ino, pairs: &[(Member, Option<Member>)]) {
        self.seen.store(true, Ordering::Release);
        if pairs.iter().any(|(_, second)| second.is_none()) {
            self.lacking.lock().insert(ino);
        }
    }

    pub fn is_gone(&self, member: Member) {
        let mut gone = self.gone.lock();
        if gone.len() >= GONE_MAX {
            gone.clear();
        }
        gone.insert(member);
    }

    /// Those that were not left out upon another's word, or of which that is longest ago.
    pub fn least_apart(&self, (ino, stripe): Part, takers: Measures) -> Measures {
        let apart = self.apart.lock();
        let since = |node: &NodeId| apart.get(&(ino, stripe, node.0)).copied();
        let least = takers.keys().map(since).min().flatten();
        takers.into_iter().filter(|(node, _)| since(node) == least).collect()
    }

    /// Is the primary of this view to be told of it now? Whoever made the view has told it a moment ago.
    pub fn may_tell(&self, part: Part, view: u64, now: Instant) -> bool {
        let mut told = self.told.lock();
        let first = Again { view, at: now + TOLD_AFTER, pause: TOLD_AFTER };
        let again = told.entry(part).or_insert(first);
        if again.view != view {
            *again = first;
        }
        if now < again.at {
            return false;
        }
        again.pause = (again.pause * 2).min(TOLD_AFTER_MAX);
        again.at = now + again.pause;
        true
    }

    /// It knows: it goes on by itself, and says so when it cannot.
    pub fn is_told(&self, part: Part, view: u64, now: Instant) {
        if let Some(again) = self.told.lock().get_mut(&part).filter(|again| again.view == view) {
            again.pause = TOLD_AFTER_MAX;
            again.at = now + TOLD_AFTER_MAX;
        }
    }

    /// Seconds that come to nothing are not made without end.
    pub fn may_try(&self, part: Part, now: Instant) -> bool {
        let tried = self.tried.lock();
        tried.get(&part).is_none_or(|tried| now.saturating_duration_since(tried.last) >= tried.pause())
    }

    pub fn tries(&self, part: Part, now: Instant) {
        let mut tried = self.tried.lock();
        let tried = tried.entry(part).or_insert(Tried { count: 0, last: now });
        (tried.count, tried.last) = (tried.count.saturating_add(1), now);
    }

    pub fn is_whole(&self, ino: Ino, stripes: usize) {
        for stripe in 0..stripes {
            self.told.lock().remove(&(ino, stripe));
            self.tried.lock().remove(&(ino, stripe));
        }
    }

    /// Of files that lack nothing, or are no more, nothing is kept.
    pub fn forget_others(&self) {
        let lacking = self.lacking.lock();
        self.told.lock().retain(|(ino, _), _| lacking.contains(ino));
        self.tried.lock().retain(|(ino, _), _| lacking.contains(ino));
    }

    /// Objects with fewer than two copies that count, or a file in which there is such a one; by files.
    pub fn lacking(&self) -> u64 {
        self.lacking.lock().len() as u64
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what comes to nothing is asked and made ever more seldom, and anew at once when something has changed. Method: moments that the test gives.
    use cluster::placement::Measure;

    use super::*;

    const PART: Part = (Ino::ROOT, 0);

    /// How often in ten minutes, looked at each second.
    fn count(mut is: impl FnMut(Instant) -> bool) -> usize {
        let begin = Instant::now();
        (0..600).filter(|second| is(begin + Duration::from_secs(*second))).count()
    }

    #[test]
    fn a_primary_is_told_ever_more_seldom() {
        let replicas = Replicas::default();
        let told = count(|now| replicas.may_tell(PART, 5, now));
        assert!((8..20).contains(&told), "{told}");
        let later = Instant::now() + Duration::from_secs(3600);
        assert!(!replicas.may_tell(PART, 6, later), "it was told of a new view by who made it");
        assert!(replicas.may_tell(PART, 6, later + TOLD_AFTER));
        replicas.is_told(PART, 6, later);
        assert!(!replicas.may_tell(PART, 6, later + TOLD_AFTER * 8), "it knows");
        assert!(replicas.may_tell(PART, 6, later + TOLD_AFTER_MAX));
    }

    #[test]
    fn regression_of_those_that_were_all_left_out_it_is_not_always_the_same() {
        let (replicas, begin) = (Replicas::default(), Instant::now());
        let well = || -> Vec<u64> {
            let takers =
                (1..=3).map(|node| (NodeId(node), Measure { free: 1, busy: 0, slow: false })).collect();
            replicas.least_apart(PART, takers).keys().map(|node| node.0).collect()
        };
        assert_eq!(well(), [1, 2, 3]);
        for (seconds, node, left) in [(1, 2, vec![1, 3]), (2, 3, vec![1]), (3, 1, vec![2]), (4, 2, vec![3])] {
            replicas.apart.lock().insert((PART.0, PART.1, node), begin + Duration::from_secs(seconds));
            assert_eq!(well(), left);
        }
    }

    #[test]
    fn seconds_that_come_to_nothing_are_made_ever_more_seldom() {
        let replicas = Replicas::default();
        let begun = count(|now| {
            let may = replicas.may_try(PART, now);
            if may {
                replicas.tries(PART, now);
            }
            may
        });
        assert!((10..24).contains(&begun), "{begun}");
        replicas.is_whole(Ino::ROOT, 1);
        assert!(replicas.may_try(PART, Instant::now()));
    }
}
