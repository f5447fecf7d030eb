//! Whose changes are carried out: not those of sessions that a metadata server gave up.
//!
//! - I-DATA-5: who is not in the roster that this server says it keeps to changes nothing any more, and nothing that it asked before is
//!   under way. A server that has heard of none since it was started, or whose last report was answered too long ago, lets
//!   sessions wait until it has: others may have what one of them had. Who is there changes nothing in an object while something of who is not is under way
//!   in it: so a change that was begun, and then stood still for long, is not carried out after those of whoever got what it is about.
//! - I-DATA-6: of several metadata servers the owner of the file's slot decides. Each roster says which slots its server has, under epochs that rise with each
//!   owner; a change comes in the name of one server, and is begun only while no newer owner is known. Who keeps to an owner's roster has nothing under
//!   way in its slots that came in another's name.
//!
//! Who does not say as which he came is not refused: he is another server.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proto::{
    control::{NodeReported, Roster},
    owners,
};
use types::{Ino, Slot};

use crate::answer::No;

/// Who asks for a change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Asker {
    /// In whose name; 0: of the one metadata server.
    pub server: u64,
    /// As which he came there. 0: he does not say.
    pub joined: u64,
}

/// What one metadata server said.
#[derive(Default)]
struct Told {
    /// It says who is there.
    asked_for: bool,
    roster: Option<Roster>,
    /// The last one that nothing was under way against.
    kept: u64,
    /// Until then it may be gone by.
    until: Option<Instant>,
}

#[derive(Default)]
struct State {
    /// By their nodes; 0: there is one metadata server.
    told: BTreeMap<u64, Told>,
    /// The last owner of each slot that was heard of, and its epoch. 0: it gave the slot up.
    owners: HashMap<Slot, (u64, u64)>,
    /// How many changes of each are under way in an object: one for each thread that works, at most.
    under_way: HashMap<(Asker, Ino), usize>,
}

/// See the module's page.
#[derive(Default)]
pub(super) struct Admission {
    state: Arc<Mutex<State>>,
}

/// A change of a session's that has begun, until it is dropped.
pub(super) struct Admitted {
    of: Arc<Mutex<State>>,
    asker: Asker,
    ino: Ino,
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

impl State {
    fn owns(&self, server: u64, slot: Slot) -> bool {
        server == 0 || self.owners.get(&slot).is_some_and(|(_, owner)| *owner == server)
    }

    /// As far as was heard.
    fn is_of_another(&self, server: u64, slot: Slot) -> bool {
        self.owners.get(&slot).is_some_and(|(_, owner)| *owner != 0 && *owner != server)
    }

    /// The slots of a newer roster.
    fn learn_owners(&mut self, server: u64, roster: &Roster) {
        for (_, owner) in self.owners.values_mut().filter(|(_, owner)| *owner == server) {
            *owner = 0;
        }
        for (slot, epoch) in owners::slots(&roster.slots).into_iter().zip(&roster.epochs) {
            let Some(slot) = Slot::new(slot) else { continue };
            let known = self.owners.entry(slot).or_default();
            if known.0 <= *epoch {
                *known = (*epoch, server);
            }
        }
    }
}

impl Admission {
    /// To be called before an object changes.
    pub(super) fn begin(&self, asker: Asker, ino: Ino) -> Result<Option<Admitted>, No> {
        let (Asker { server, joined }, slot) = (asker, ino.ugsd().slot());
        if joined == 0 {
            return Ok(None);
        }
        let mut state = self.state.lock();
        let told = state.told.get(&server).or_else(|| state.told.get(&0).filter(|told| !told.asked_for));
        // Before the first report was answered it is not known whether that is so.
        let Some((told, until)) = told.and_then(|told| Some((told, told.until?))) else {
            if state.is_of_another(server, slot) {
                // Whose it was may never be heard of again.
                return Err(No::wrong_owner(0));
            }
            return Err(No::later("it has not heard yet which sessions are there"));
        };
        if told.asked_for {
            if !state.owns(server, slot) {
                return Err(No::wrong_owner(0));
            }
            if Instant::now() > until {
                return Err(No::later("it has not heard for long which sessions are there"));
            }
            match &told.roster {
                None => return Err(No::later("it has not heard yet which sessions are there")),
                Some(roster) if !is_there(roster, joined) => return Err(No::session_gone()),
                Some(roster) => {
                    // Begun before this server stood still, perhaps, and what it is about is somebody else's by now.
                    let is_stale = |(other, at): &(Asker, Ino)| {
                        *at == ino && other.server == server && !is_there(roster, other.joined)
                    };
                    if state.under_way.keys().any(is_stale) {
                        return Err(No::later("a change of who is not there any more is under way"));
                    }
                }
            }
        }
        *state.under_way.entry((asker, ino)).or_default() += 1;
        drop(state);
        Ok(Some(Admitted { of: self.state.clone(), asker, ino }))
    }

    /// A report that was sent at `sent` was answered. True: with another roster.
    pub(super) fn heard(&self, sent: Instant, reported: &NodeReported) -> bool {
        let mut state = self.state.lock();
        let told = state.told.entry(reported.server).or_default();
        told.asked_for = reported.lease_ms != 0;
        told.until = Some(sent + Duration::from_millis(reported.lease_ms.into()));
        let now = told.roster.as_ref().map_or(0, |roster| roster.version);
        match &reported.roster {
            // An older one comes late.
            Some(roster) if roster.version > now => {
                told.roster = Some(roster.clone());
                if reported.server != 0 {
                    state.learn_owners(reported.server, roster);
                }
                true
            }
            Some(_) | None => false,
        }
    }

    /// The version of a metadata server's roster that is kept to.
    pub(super) fn kept(&self, server: u64) -> u64 {
        let mut state = self.state.lock();
        let newest = state.told.get(&server).and_then(|told| told.roster.as_ref());
        let keeps = newest.filter(|roster| {
            let here = state.under_way.keys().filter(|(_, ino)| state.owns(server, ino.ugsd().slot()));
            here.clone().all(|(asker, _)| asker.server == server && is_there(roster, asker.joined))
        });
        let version = keeps.map(|roster| roster.version);
        let Some(told) = state.told.get_mut(&server) else { return 0 };
        told.kept = version.unwrap_or(told.kept);
        told.kept
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.of.lock();
        let at = (self.asker, self.ino);
        if let Some(count) = state.under_way.get_mut(&at) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: I-DATA-5. Method: step by step, with times that are said.

    use lease::coherence::message::Life;
    use proto::{Reason, owners::runs};
    use types::{LocalId, UgsdId};

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
            ..Roster::default()
        })
    }

    fn begin(admission: &Admission, joined: u64) -> Result<Option<Admitted>, No> {
        admission.begin(Asker { server: 0, joined }, Ino::ROOT)
    }

    fn answered(roster: Option<Roster>) -> NodeReported {
        NodeReported { map_epoch: 1, again_ms: 1, lease_ms: 60_000, roster, ..NodeReported::default() }
    }

    fn reason(of: Result<Option<Admitted>, No>) -> Option<Reason> {
        of.err().map(|no| Reason::of(&no.0))
    }

    #[test]
    fn who_is_not_in_the_roster_is_refused_and_what_is_under_way_is_waited_for() {
        let admission = Admission::default();
        let first = Life(2).first_number();
        let (later, gone) = (Some(Reason::None), Some(Reason::SessionGone));
        assert_eq!(reason(begin(&admission, first + 2)), later, "nothing was heard yet");
        assert!(begin(&admission, 0).is_ok_and(|begun| begun.is_none()), "another server");
        assert!(admission.heard(Instant::now(), &answered(roster(7, &[1, 2]))));
        assert_eq!(admission.kept(0), 7);
        let begun = begin(&admission, first + 2).unwrap();
        assert_eq!(reason(begin(&admission, first + 3)), gone);
        assert_eq!(reason(begin(&admission, first + 6)), None, "it came after the roster was made");
        let earlier = Life(1).first_number();
        assert_eq!(reason(begin(&admission, earlier + 1)), gone, "it was given up by the earlier life");
        assert_eq!(reason(begin(&admission, earlier + 2)), None, "it may come back");
        assert!(admission.heard(Instant::now(), &answered(roster(8, &[1]))));
        assert_eq!(reason(begin(&admission, first + 2)), gone);
        assert_eq!(admission.kept(0), 7, "something of a session that is gone is under way");
        assert_eq!(reason(begin(&admission, first + 1)), later, "and others wait for it");
        assert!(!admission.heard(Instant::now(), &answered(roster(7, &[1, 2]))), "late");
        drop(begun);
        assert_eq!(reason(begin(&admission, first + 1)), None);
        assert_eq!(admission.kept(0), 8);
        let over = Roster { earlier: false, ..roster(9, &[1]).unwrap() };
        assert!(admission.heard(Instant::now(), &answered(Some(over))));
        assert_eq!(reason(begin(&admission, earlier + 2)), gone);
    }

    #[test]
    fn who_has_not_heard_for_long_carries_nothing_out() {
        let admission = Admission::default();
        let number = Life(2).first_number() + 1;
        let sent = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
        admission.heard(sent, &answered(roster(7, &[1])));
        assert_eq!(reason(begin(&admission, number)), Some(Reason::None));
        admission.heard(Instant::now(), &answered(None));
        assert_eq!(reason(begin(&admission, number)), None);
        // A metadata server that gives no terms, or one of several.
        let without = Admission::default();
        without.heard(sent, &NodeReported { lease_ms: 0, ..answered(None) });
        assert_eq!(reason(begin(&without, number)), None);
    }

    fn of_server(server: u64, version: u64, there: &[u64], slots: &[(u16, u64)]) -> NodeReported {
        let roster = Roster {
            slots: runs(slots.iter().map(|(slot, _)| *slot)),
            epochs: slots.iter().map(|(_, epoch)| *epoch).collect(),
            ..roster(version, there).unwrap()
        };
        NodeReported { server, ..answered(Some(roster)) }
    }

    /// Goal: I-DATA-6. Method: a slot that goes from one server to another and back, told late and out of order.
    #[test]
    fn the_owner_of_the_slot_decides() {
        let admission = Admission::default();
        let ino = Ino::new(UgsdId::new(5).unwrap(), LocalId::new(1).unwrap());
        let first = Life(2).first_number();
        let as_of = |server| admission.begin(Asker { server, joined: first + 1 }, ino);
        let (elsewhere, later) = (Some(Reason::WrongOwner), Some(Reason::None));
        assert_eq!(reason(as_of(7)), later, "nothing was heard");
        admission.heard(Instant::now(), &of_server(7, 1, &[1], &[(5, 1)]));
        assert_eq!(
            reason(as_of(8)),
            elsewhere,
            "nothing was heard of that server, and the slot is another's"
        );
        admission.heard(Instant::now(), &of_server(7, 2, &[1], &[(4, 1)]));
        assert_eq!(reason(as_of(8)), later, "nothing was heard of that server");
        admission.heard(Instant::now(), &of_server(7, 3, &[1], &[(5, 1)]));
        let begun = as_of(7).unwrap();
        admission.heard(Instant::now(), &of_server(8, 1, &[1], &[(4, 1), (5, 2)]));
        assert_eq!(admission.kept(8), 0, "something is under way in another's name");
        assert_eq!(admission.kept(7), 3, "that is not its concern any more");
        assert_eq!(reason(as_of(7)), elsewhere);
        assert_eq!(reason(as_of(8)), None);
        drop(begun);
        assert_eq!(admission.kept(8), 1);
        // The giver still says that it has the slot: that is old.
        admission.heard(Instant::now(), &of_server(7, 4, &[1], &[(5, 1)]));
        assert_eq!((reason(as_of(7)), reason(as_of(8))), (elsewhere, None));
        admission.heard(Instant::now(), &of_server(8, 2, &[], &[(5, 2)]));
        assert_eq!(reason(as_of(8)), Some(Reason::SessionGone), "given up there");
        admission.heard(Instant::now(), &of_server(8, 3, &[1], &[(4, 1)]));
        assert_eq!((reason(as_of(7)), reason(as_of(8))), (elsewhere, elsewhere), "on its way");
        admission.heard(Instant::now(), &of_server(7, 5, &[1], &[(5, 3)]));
        assert_eq!((reason(as_of(7)), reason(as_of(8))), (None, elsewhere));
    }
}
