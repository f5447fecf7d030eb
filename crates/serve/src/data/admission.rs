//! Whose changes are carried out: not those of sessions that the metadata server gave up.
//!
//! - I-DATA-5: who is not in the roster that this server says it keeps to changes nothing any more, and nothing that it asked before is
//!   under way. A server that has heard of none since it was started, or whose last report was answered too long ago, lets
//!   sessions wait until it has: others may have what one of them had.
//!
//! Who does not say as which he came is not refused: he is another server, or a client of several metadata servers.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proto::control::{NodeReported, Roster};

use crate::answer::No;

#[derive(Default)]
struct State {
    /// The metadata server says who is there.
    asked_for: bool,
    roster: Option<Roster>,
    /// The last one that nothing was under way against.
    kept: u64,
    /// Until then it may be gone by.
    until: Option<Instant>,
    /// How many changes of each are under way: one for each thread that works, at most.
    under_way: HashMap<u64, usize>,
}

/// See the module's page.
#[derive(Default)]
pub(super) struct Admission {
    state: Mutex<State>,
}

/// A change of a session's that has begun, until it is dropped.
pub(super) struct Admitted<'a> {
    of: &'a Admission,
    joined: u64,
}

fn is_there(roster: &Roster, joined: u64) -> bool {
    if joined > roster.last {
        return true;
    }
    if joined > roster.first {
        return roster.there.contains(&joined);
    }
    roster.earlier && !roster.given_up.contains(&joined)
}

impl Admission {
    /// To be called before an object changes.
    pub(super) fn begin(&self, joined: u64) -> Result<Option<Admitted<'_>>, No> {
        if joined == 0 {
            return Ok(None);
        }
        let mut state = self.state.lock();
        // Before the first report was answered it is not known whether that is so.
        let Some(until) = state.until else {
            return Err(No::later("it has not heard yet which sessions are there"));
        };
        if state.asked_for {
            if Instant::now() > until {
                return Err(No::later("it has not heard for long which sessions are there"));
            }
            match &state.roster {
                None => return Err(No::later("it has not heard yet which sessions are there")),
                Some(roster) if !is_there(roster, joined) => return Err(No::session_gone()),
                Some(_) => {}
            }
        }
        *state.under_way.entry(joined).or_default() += 1;
        Ok(Some(Admitted { of: self, joined }))
    }

    /// A report that was sent at `sent` was answered. True: with another roster.
    pub(super) fn heard(&self, sent: Instant, reported: &NodeReported) -> bool {
        let mut state = self.state.lock();
        state.asked_for = reported.lease_ms != 0;
        state.until = Some(sent + Duration::from_millis(reported.lease_ms.into()));
        let now = state.roster.as_ref().map_or(0, |roster| roster.version);
        match &reported.roster {
            // An older one comes late.
            Some(roster) if roster.version > now => {
                state.roster = Some(roster.clone());
                true
            }
            Some(_) | None => false,
        }
    }

    /// The version of the roster that is kept to.
    pub(super) fn kept(&self) -> u64 {
        let mut state = self.state.lock();
        if let Some(roster) = &state.roster
            && state.under_way.keys().all(|joined| is_there(roster, *joined))
        {
            state.kept = roster.version;
        }
        state.kept
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state.lock();
        if let Some(count) = state.under_way.get_mut(&self.joined) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&self.joined);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: I-DATA-5. Method: step by step, with times that are said.

    use lease::coherence::message::Life;
    use proto::Reason;

    use super::*;

    fn roster(version: u64, there: &[u64]) -> Option<Roster> {
        let first = Life(2).first_number();
        let there = there.iter().map(|n| first + n).collect();
        Some(Roster {
            version,
            first,
            last: first + 5,
            there,
            earlier: true,
            given_up: vec![Life(1).first_number() + 1],
        })
    }

    fn answered(roster: Option<Roster>) -> NodeReported {
        NodeReported { map_epoch: 1, again_ms: 1, lease_ms: 60_000, roster, ..NodeReported::default() }
    }

    fn reason(of: Result<Option<Admitted<'_>>, No>) -> Option<Reason> {
        of.err().map(|no| Reason::of(&no.0))
    }

    #[test]
    fn who_is_not_in_the_roster_is_refused_and_what_is_under_way_is_waited_for() {
        let admission = Admission::default();
        let first = Life(2).first_number();
        let (later, gone) = (Some(Reason::None), Some(Reason::SessionGone));
        assert_eq!(reason(admission.begin(first + 2)), later, "nothing was heard yet");
        assert!(admission.begin(0).is_ok_and(|begun| begun.is_none()), "another server");
        assert!(admission.heard(Instant::now(), &answered(roster(7, &[1, 2]))));
        assert_eq!(admission.kept(), 7);
        let begun = admission.begin(first + 2).unwrap();
        assert_eq!(reason(admission.begin(first + 3)), gone);
        assert_eq!(reason(admission.begin(first + 6)), None, "it came after the roster was made");
        let earlier = Life(1).first_number();
        assert_eq!(reason(admission.begin(earlier + 1)), gone, "it was given up by the earlier life");
        assert_eq!(reason(admission.begin(earlier + 2)), None, "it may come back");
        assert!(admission.heard(Instant::now(), &answered(roster(8, &[1]))));
        assert_eq!(reason(admission.begin(first + 2)), gone);
        assert_eq!(admission.kept(), 7, "something of a session that is gone is under way");
        assert!(!admission.heard(Instant::now(), &answered(roster(7, &[1, 2]))), "late");
        drop(begun);
        assert_eq!(admission.kept(), 8);
        let over = Roster { earlier: false, ..roster(9, &[1]).unwrap() };
        assert!(admission.heard(Instant::now(), &answered(Some(over))));
        assert_eq!(reason(admission.begin(earlier + 2)), gone);
    }

    #[test]
    fn who_has_not_heard_for_long_carries_nothing_out() {
        let admission = Admission::default();
        let number = Life(2).first_number() + 1;
        let sent = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
        admission.heard(sent, &answered(roster(7, &[1])));
        assert_eq!(reason(admission.begin(number)), Some(Reason::None));
        admission.heard(Instant::now(), &answered(None));
        assert_eq!(reason(admission.begin(number)), None);
        // A metadata server that gives no terms, or one of several.
        let without = Admission::default();
        without.heard(sent, &NodeReported { lease_ms: 0, ..answered(None) });
        assert_eq!(reason(without.begin(number)), None);
    }
}
