//! Sessions that were given up, and data servers: when what they had is free.
//!
//! - I-FENCE-1: what a session had is free, and so is what sessions of earlier lives had that did not come back, only when its verdict is
//!   durable, and known to whoever goes on in this server's place, and no data server carries out anything of it any more: each has said that it keeps to a roster without it, or was not
//!   answered for so long that it carries out nothing before it has heard of a newer one.
//! - I-FENCE-2: of several metadata servers the owner of a slot decides who may change what is in it. A roster says which slots its server has, and has another
//!   version before a slot that was let go can be another's. Who took slots frees nothing before each data server has said that it keeps to a roster with
//!   them, or cannot go by any of the giver's any more.
//! - I-FENCE-3: the same holds for what comes with slots of a session that is given up meanwhile, or was before: its verdict waits for a roster with them.

use std::{
    collections::HashSet,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use lease::coherence::message::Life;
use proto::{
    SessionId,
    control::Roster,
    owners::{Run, runs},
};
use types::Slot;

use super::{
    MetadataService,
    leaving::{Fenced, Fencing, Leaving},
    session::SessionLimits,
    terms::Due,
};
use crate::answer::No;

/// For how long a data server may carry out what sessions ask after it reported.
pub(super) fn data_lease(sessions: &SessionLimits) -> Duration {
    sessions.silence * 4 / 5
}

/// A data server that does not keep to a roster for so long is told of.
const PATIENCE: Duration = Duration::from_secs(10);

/// Slots come, until this is dropped.
pub(super) struct SlotsCome<'a>(&'a Leaving);

impl Drop for SlotsCome<'_> {
    fn drop(&mut self) {
        self.0.fencing.lock().coming -= 1;
    }
}

impl MetadataService {
    /// What a data server is to keep to, if that is not what it has.
    pub(super) fn roster_for(&self, has: u64) -> Option<Roster> {
        let leaving = &self.leaving;
        // First: who goes meanwhile is one version later.
        let version = leaving.version.load(Ordering::Acquire);
        if has == version {
            return None;
        }
        let earlier = leaving.earlier.load(Ordering::Acquire);
        // Before who is there: who was given up with a slot is not in the first roster that has it.
        let (slots, epochs) = self.slots_here();
        let (there, last) = self.terms.there();
        Some(Roster {
            version,
            first: self.terms.life().first_number(),
            last: last.0,
            there: there.into_iter().map(|joined| joined.0).collect(),
            earlier,
            given_up: if earlier {
                leaving.given_up.iter().map(|joined| joined.0).collect()
            } else {
                Vec::new()
            },
            slots,
            epochs,
        })
    }

    fn slots_here(&self) -> (Vec<Run>, Vec<u64>) {
        let Some(owners) = &self.owners else { return Default::default() };
        let served = |slot: &u16| Slot::new(*slot).is_some_and(|slot| self.mds.serves(slot));
        let ours = owners.epochs().into_iter().filter(|(slot, _)| served(slot));
        let (slots, epochs): (Vec<u16>, Vec<u64>) = ours.unzip();
        (runs(slots), epochs)
    }

    /// Data servers are told which slots are served here. `came`: some of them, from another, to whose rosters data servers may keep for a while.
    pub(super) fn slots_changed(&self, came: bool) {
        if came {
            *self.leaving.came.lock() = Some(Instant::now());
        }
        self.leaving.version.fetch_add(1, Ordering::AcqRel);
    }

    /// From before it is known of who has something in them whether he was given up, until they are served or do not come.
    pub(super) fn slots_come(&self) -> SlotsCome<'_> {
        self.leaving.fencing.lock().coming += 1;
        SlotsCome(&self.leaving)
    }

    /// These have something in slots that came and are in the roster by now. What one of them has that was given up waits for a roster with them.
    pub(super) fn fence_there(&self, sessions: &HashSet<SessionId>) {
        let mut waiting = self.leaving.fencing.lock();
        let version = self.leaving.version.load(Ordering::Acquire);
        for fencing in &mut waiting.all {
            if let Fenced::Session(session) = fencing.what
                && sessions.contains(&session)
            {
                *fencing = Fencing { version, since: Instant::now(), of_others: true, ..*fencing };
            }
        }
    }

    /// Another may go on in our place: then what we know is not told any more.
    pub(super) fn may_vouch(&self) -> Result<(), No> {
        match self.owners.as_ref().and_then(|owners| owners.tails.as_ref()) {
            Some(tails) if !tails.keeper.may_act() => Err(No::later("its standby does not answer")),
            Some(_) | None => Ok(()),
        }
    }

    /// The verdict is durable. `record`: the one by which our standby knows of it.
    pub(super) fn fence_at_data_servers(&self, what: Fenced, record: u64) -> Due {
        if let Fenced::Earlier = what {
            self.leaving.earlier.store(false, Ordering::Release);
        }
        // Slots that come before this are in that roster.
        let mut waiting = self.leaving.fencing.lock();
        let version = self.leaving.version.fetch_add(1, Ordering::AcqRel) + 1;
        let of_others = self.owners.is_some()
            && self.leaving.came.lock().is_some_and(|came| came.elapsed() < self.data_patience());
        let fencing = Fencing { what, version, record, since: Instant::now(), of_others, told: false };
        let nobody = matches!(what, Fenced::Earlier) && self.terms.all_are_back();
        if waiting.coming == 0 && (nobody || self.is_fenced(&fencing)) {
            return self.fenced(what);
        }
        waiting.all.push(fencing);
        Due::default()
    }

    /// Those that data servers have heard of meanwhile.
    pub(super) fn tend_fencing(&self) -> Due {
        let mut due = Due::default();
        let mut waiting = self.leaving.fencing.lock();
        if waiting.coming > 0 {
            return due;
        }
        for mut fencing in std::mem::take(&mut waiting.all) {
            if self.is_fenced(&fencing) {
                due.add(self.fenced(fencing.what));
                continue;
            }
            if !fencing.told && fencing.since.elapsed() > PATIENCE {
                fencing.told = true;
                tracing::warn!(
                    nodes = ?self.nodes.without_roster(fencing.version, self.data_patience()),
                    "what a session had that was given up is not free: data servers have not heard of it yet"
                );
            }
            waiting.all.push(fencing);
        }
        due
    }

    /// What a data server was told last it does not go by any longer, by our clock.
    fn data_patience(&self) -> Duration {
        let lease = data_lease(&self.options.sessions);
        lease + lease / 20
    }

    fn is_fenced(&self, fencing: &Fencing) -> bool {
        if !self.standby_has(fencing.record) {
            return false;
        }
        let patience = self.data_patience();
        // One that an earlier life answered may not have come to this one yet.
        let early = self.terms.life() > Life(1) && self.terms.age() < patience;
        let doubtful = early || fencing.of_others && fencing.since.elapsed() < patience;
        if doubtful && !(self.owners.is_some() && self.nodes.all_keep(fencing.version, patience)) {
            return false;
        }
        self.nodes.without_roster(fencing.version, patience).is_empty()
    }

    fn fenced(&self, what: Fenced) -> Due {
        match what {
            Fenced::Session(session) => self.terms.fenced(session),
            Fenced::Earlier => self.terms.grace_ended(),
        }
    }
}
