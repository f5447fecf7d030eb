//! Writes that a session keeps back: who may, and looks at what they are about.
//!
//! - I-BACK-1: a session keeps back writes of a file that it alone has open, once, for writing; who looks at its size or its bytes, or opens it, comes when
//!   what was kept back is at the data servers.
//! - I-BACK-2: who may have kept something back is not passed over because he is silent: he is given up first, and data servers refuse him then. So
//!   nothing that was kept back lands after what came later.
//! - I-BACK-7: of several metadata servers each knows who may keep something back before he does, at whichever of them. Who goes on for a dead one has files
//!   that were written there wait until each of those has said what he has, which he does when what he kept back is written, or is over.

use lease::coherence::{
    message::Party,
    rights::{Claim, Key, Rights},
};
use mds::Found;
use proto::{
    leases::Returned,
    metadata::Open,
    writes::{KeepWrites, WritesKept},
};
use types::{Attr, Errno, Ino};

use super::{
    MetadataService,
    files::State,
    keeping::{Claimed, is_written},
    session::{Opening, Session},
    terms::{Due, Terms},
    verdicts::Presence,
};
use crate::answer::{Done, No, Outcome};

/// What is kept back has to find room when it comes: of each data server of the file this part is free, one in so many.
const FREE_ONE_IN: u64 = 4;

impl Terms {
    /// May others have kept back what they wrote?
    fn may_be_kept_back(&self, by: Party, key: &Key) -> bool {
        self.machine.lock().server.may_be_kept_back(by.session, key)
    }

    /// An opening for writing was closed, before which all was written that was kept back of it: with the last one of its session the right to do so
    /// ends.
    pub(super) fn end_opening(&self, by: Party, operation: u64) -> Due {
        let returned = {
            let machine = self.machine.lock();
            let table = machine.server.table();
            let given_up = |key: Key| {
                let holding = table.holding(by.session, &key)?;
                let keeps = holding.rights.without(Rights::WRITE_BACK);
                let one =
                    Returned { number: holding.number, keeps: keeps.bits().into(), ..Returned::default() };
                (keeps != holding.rights).then_some((key, one))
            };
            table.last_modified_by(by.session, operation).into_iter().filter_map(given_up).collect::<Vec<_>>()
        };
        self.end(by, operation);
        self.returned(by, &returned)
    }
}

impl MetadataService {
    pub(super) fn keep_writes(&self, session: &Session, asked: &KeepWrites) -> Outcome {
        let ino = proto::attr::ino(asked.ino)?;
        let opening = session.has.lock().openings.get(&asked.opening).copied();
        if opening != Some(Opening { ino, write: true }) {
            return Err(Errno::EBADF.into());
        }
        let granted = self.may_keep_writes(session, ino)?;
        Ok(Done::new(&WritesKept { granted, term_ms: self.term_ms() }))
    }

    fn may_keep_writes(&self, session: &Session, ino: Ino) -> Result<bool, No> {
        let unknown = self.in_grace() || self.terms.unsettled(ino.ugsd().slot()).is_some();
        if unknown || self.arrive_with(session, Presence::Writing).is_err() {
            return Ok(false);
        }
        self.locked(ino, |_, state| {
            // Who opens it counts before he looks for what is kept back.
            let alone = state.begun && state.openings == 1 && state.writers == 1;
            let may = alone && self.has_room(state);
            Ok(may && self.terms.grant(session.party(), &Key::Inode(ino), Rights::WRITE_BACK).is_some())
        })
    }

    fn has_room(&self, state: &State) -> bool {
        let Some(placed) = state.placed.as_ref().filter(|placed| placed.cut.is_none()) else { return false };
        self.nodes.have_free(&placed.layout.stripes, FREE_ONE_IN)
    }

    /// Before a look at a file: what others kept back of it is at its data servers. Nobody keeps any back until the result is dropped, if somebody may
    /// have; if nobody had, what comes meanwhile is of the same time as the look.
    pub(super) fn look_through(&self, session: &Session, ino: Ino) -> Result<Option<Claimed<'_>>, No> {
        self.all_have_said(session, ino)?;
        self.look_through_here(session, ino)
    }

    /// Of what was granted here.
    pub(super) fn look_through_here(&self, session: &Session, ino: Ino) -> Result<Option<Claimed<'_>>, No> {
        if self.terms.may_be_kept_back(session.party(), &Key::Inode(ino)) {
            self.claim_here(session, ino, Claim::Look).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Of a file that was written in a slot that came from who is dead: all others who may have kept something back there have said what they have.
    pub(super) fn all_have_said(&self, session: &Session, ino: Ino) -> Result<(), No> {
        let Some(number) = self.owners.as_ref().and_then(|_| self.terms.unsettled(ino.ugsd().slot())) else {
            return Ok(());
        };
        let writers = self.leaving.writers.lock().clone();
        let has_said = |id| self.sessions.get(id).is_some_and(|other| other.brought() >= number);
        if writers.into_iter().all(|id| id == session.id || has_said(id)) {
            return Ok(());
        }
        match self.mds.find(ino) {
            Ok(found) if is_written(&found) => {
                Err(No::later("who may have kept writes back has not said so yet"))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The same of the entries of a listing. Those for which it has to be waited for longer are answered without attributes.
    pub(super) fn look_through_all(
        &self,
        session: &Session,
        found: &mut [Result<Found, No>],
    ) -> Vec<Claimed<'_>> {
        let (mut looking, mut late) = (Vec::new(), None);
        for one in found {
            let Some(ino) = one.as_ref().ok().filter(|of| is_written(of)).map(|of| of.attr.ino) else {
                continue;
            };
            let through = match &late {
                Some(no) if self.terms.may_be_kept_back(session.party(), &Key::Inode(ino)) => {
                    Err(No::clone(no))
                }
                _ => self.look_through(session, ino),
            };
            match through {
                Ok(claimed) => looking.extend(claimed),
                Err(no) => {
                    *one = Err(no.clone());
                    late = Some(no);
                }
            }
        }
        looking
    }

    /// An opening for reading, which counts already. `None`: nobody kept anything back, and what it was answered is true.
    pub(super) fn opened_through(
        &self,
        session: &Session,
        asked: &Open,
        ino: Ino,
    ) -> Result<Option<Attr>, No> {
        if asked.write {
            return Ok(None);
        }
        let looking = match asked.again {
            true => self.look_through_here(session, ino),
            false => self.look_through(session, ino),
        };
        let Some(_looking) = looking? else { return Ok(None) };
        self.locked(ino, |file, state| self.complete_locked(file, state)).map(Some)
    }
}
