//! Requests about locks, and what becomes of sessions whose terms are over.

use std::time::{Duration, Instant};

use lease::coherence::{
    locks::{HadLock, LockRequest},
    message::{Had, Joined, Party},
};
use net::{Incoming, Reply};
use proto::{
    Nothing, Request, SessionId,
    locks::{CancelLock, FindLock, FoundLock, HadLocks, HeldLock, Listen, Lock, Locked, Told, Unlock},
};

use super::{
    MetadataService,
    carried::GIVEN_UP_MAX,
    leaving::Fenced,
    mailbox::Listener,
    session::Session,
    terms::Due,
    verdicts::{self, Verdict},
};
use crate::answer::{Done, No, Outcome, answered};

/// Who listens is answered after so long in any case, and before his own deadline.
const LISTEN_MAX: Duration = Duration::from_secs(10);
const BEFORE_DEADLINE: Duration = Duration::from_millis(500);

impl MetadataService {
    /// What a session says that it had of an earlier life.
    pub(super) fn had(id: SessionId, body: &[u8]) -> Result<Had, No> {
        let had = HadLocks::read(body)?;
        let locks = had.locks.iter().map(|lock| HadLock::said(id, lock)).collect::<Result<_, _>>()?;
        Ok(Had { locks, ..Had::default() })
    }

    fn asked(session: &Session, lock: Option<&HeldLock>, wait: bool) -> Result<LockRequest, No> {
        let lock = lock.ok_or(proto::Bad::Missing("lock"))?;
        Ok(HadLock::said(session.id, lock)?.request(wait))
    }

    fn decided(&self, (locked, due): (Option<Locked>, Due)) -> Outcome {
        self.carry_on(due);
        locked.map(|locked| Done::new(&locked)).ok_or_else(No::session_gone)
    }

    pub(super) fn lock(&self, session: &Session, asked: &Lock) -> Outcome {
        let request = Self::asked(session, asked.lock.as_ref(), asked.wait)?;
        self.arrive(session, false)?;
        let number = asked.head.unwrap_or_default().number;
        self.decided(self.terms.lock(session.party(), number, request))
    }

    pub(super) fn unlock(&self, session: &Session, asked: &Unlock) -> Outcome {
        let request = Self::asked(session, asked.lock.as_ref(), false)?;
        let number = asked.head.unwrap_or_default().number;
        self.decided(self.terms.unlock(session.party(), number, &request))
    }

    pub(super) fn find_lock(&self, session: &Session, asked: &FindLock) -> Outcome {
        let request = Self::asked(session, asked.lock.as_ref(), false)?;
        let ino = request.ino;
        let found =
            self.terms.find(&request).map_err(|()| No::later("who has which lock is not known yet"))?;
        let own = found.is_some_and(|found| found.owner.session == session.id);
        let lock = found.map(|found| {
            let (owner, range, kind, pid) = (found.owner, found.range, found.kind, found.pid);
            HadLock { ino, owner, range, kind, pid }.to_say()
        });
        Ok(Done::new(&FoundLock { lock, own }))
    }

    pub(super) fn cancel_lock(&self, session: &Session, asked: &CancelLock) -> Outcome {
        let due = self.terms.cancel(session.party(), asked.number);
        self.carry_on(due);
        Ok(Done::new(&Nothing {}))
    }

    /// Kept until there is something to say; no thread waits.
    pub(super) fn listen(&self, incoming: &Incoming, reply: Reply) {
        let begun = proto::decode::<Listen>(&incoming.meta).map_err(No::from).and_then(|asked| {
            let session = self.sessions.asking(asked.head())?;
            Ok((session.party(), asked.heard))
        });
        let (by, heard) = match begun {
            Ok(begun) => begun,
            Err(no) => return answered(reply, Err(no)),
        };
        let end = incoming.deadline.checked_sub(BEFORE_DEADLINE).unwrap_or(incoming.deadline);
        let listener = Listener { reply, until: end.min(Instant::now() + LISTEN_MAX) };
        match self.terms.listen(by, heard, listener) {
            Ok(due) => self.carry_on(due),
            Err(listener) => answered(listener.reply, Err(No::session_gone())),
        }
    }

    /// One look of the clock.
    pub(super) fn tend_terms(&self) {
        self.nodes.look();
        self.terms.clock.look();
        self.terms.heard(&self.sessions.take_heard());
        // Of those that are being given up nothing is heard any more.
        let given_up: Vec<_> =
            self.leaving.condemned.lock().values().map(|one| (one.id, one.times().1)).collect();
        let due = self.sessions.with_silence(|silent| self.terms.lapse(silent.chain(given_up)));
        self.carry_on(due);
        let undone = std::mem::take(&mut *self.leaving.undone.lock());
        self.carry_on(undone);
        let due = self.terms.tick();
        self.carry_on(due);
        let due = self.tend_fencing();
        self.carry_on(due);
        self.tend_bares();
    }

    /// What the machine's decisions ask for.
    pub(super) fn carry_on(&self, due: Due) {
        let mut due = due;
        loop {
            for (reply, told) in std::mem::take(&mut due.heard) {
                answered(reply, Ok(Done::new(&told)));
            }
            for listener in std::mem::take(&mut due.deserted) {
                answered(listener.reply, Err(No::session_gone()));
            }
            for session in std::mem::take(&mut due.over) {
                self.over(session);
            }
            let next = if let Some(session) = due.fence.pop() {
                self.fence(session)
            } else if std::mem::take(&mut due.end_grace) {
                self.end_grace()
            } else {
                return;
            };
            due.add(next);
        }
    }

    fn fence(&self, session: SessionId) -> Due {
        // From now on it is refused.
        let found = self.sessions.remove(session);
        let known = found.clone().or_else(|| self.leaving.condemned.lock().get(&session).cloned());
        let joined = known.map(|known| known.party().joined).unwrap_or_default();
        if let Some(found) = found {
            tracing::warn!(%session, host = %found.host, "a silent session is given up");
            self.leaving.condemned.lock().insert(session, found);
        }
        let verdict = Verdict { life: self.terms.life(), joined };
        match verdicts::record(&self.notes, session, verdict) {
            Ok(()) => self.fence_at_data_servers(Fenced::Session(session), self.tell_given_up(&[session])),
            Err(error) => {
                tracing::error!(%session, %error, "a verdict is not durable yet: what the session had is not free");
                self.leaving.undone.lock().fence.push(session);
                Due::default()
            }
        }
    }

    fn over(&self, session: SessionId) {
        let condemned = {
            let mut condemned = self.leaving.condemned.lock();
            if self.terms.is_condemned(session) {
                // Something of it came meanwhile.
                return;
            }
            condemned.remove(&session)
        };
        if let Some(session) = condemned.or_else(|| self.sessions.remove(session)) {
            self.give_up(&session);
            self.depart(&session);
            self.forget_answers(session.id);
        }
    }

    fn end_grace(&self) -> Due {
        let keep = if self.owners.is_some() { GIVEN_UP_MAX } else { 0 };
        let missing = self.terms.missing();
        match verdicts::end_grace(&self.notes, self.terms.life(), &missing, keep) {
            Ok(()) => {
                self.leaving.writers.lock().retain(|session| !missing.contains(session));
                tracing::info!("sessions of earlier lives come back no more");
                self.fence_at_data_servers(Fenced::Earlier, self.tell_given_up(&missing))
            }
            Err(error) => {
                tracing::error!(%error, "the end of coming back is not durable yet: locks wait");
                self.leaving.undone.lock().end_grace = true;
                Due::default()
            }
        }
    }

    /// Nobody listens any more.
    pub(super) fn tell_listeners(&self) {
        for listener in self.terms.silence() {
            answered(listener.reply, Ok(Done::new(&Told::default())));
        }
    }

    /// A session comes, with what it had; it has a number from then on.
    pub(super) fn joined(&self, by: Party, had: Had, stamp: u64) -> Result<u64, No> {
        let (joined, due) = self.terms.join(by, had, stamp);
        self.carry_on(due);
        Self::admitted(joined)
    }

    /// A session has something in slots that come from another server.
    pub(super) fn placed(&self, session: SessionId, silent: Duration) -> Result<u64, No> {
        let (joined, due) = self.terms.place(session, silent);
        self.carry_on(due);
        Self::admitted(joined)
    }

    fn admitted(joined: Result<Option<Joined>, ()>) -> Result<u64, No> {
        match joined {
            Ok(Some(joined)) => Ok(joined.0),
            Ok(None) => Err(No::too_much("as many sessions as it takes")),
            Err(()) => Err(No::session_gone()),
        }
    }
}
