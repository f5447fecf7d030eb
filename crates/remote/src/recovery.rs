//! Sessions: the first one, and one in place of one that is gone.
//!
//! A session is gone when the metadata server was started again, or has heard nothing of it for too long. In the new one the references
//! are taken again and the files opened again by their numbers; a file that is no more cannot be, and its openings give errors. Locks are
//! taken along to a server that was started again; where that is refused they are lost, and the openings with them.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
};

use lease::coherence::{locks::HadLock, message::Life};
use prost::Message;
use proto::{
    Reason, SessionId, control,
    locks::{HadLocks, HeldLock},
    metadata,
};
use types::Errno;
use wire::frame::Body;

use crate::{Remote, homes::Came, line::Stop, options::OwnNode, session::Session};

impl Remote {
    /// What cluster it is, and who is in it. Returns the life of the server.
    pub(crate) fn fetch_facts(&self) -> Result<u32, Stop> {
        let (facts, body) = self.ask_control(&control::Hello {}, self.metadata_patience())?;
        self.set_renew(facts.renew_ms);
        // Of several each goes on from the last one's maps.
        if !self.has_homes() && facts.incarnation != self.session().incarnation {
            // It counts its maps anew.
            self.nodes.forget_map();
        }
        self.take_map(&body).map_err(|errno| Stop::silent(format!("the cluster map: {errno}")))?;
        Ok(facts.life)
    }

    pub(crate) fn new_session(&self, life: u32) -> Result<Arc<Session>, Stop> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Stop::silent(error.to_string()))?;
        // 0 is none.
        // Of several another may be on duty than a moment ago.
        let life = if self.has_homes() { 0 } else { life };
        self.mount(SessionId(u128::from_le_bytes(random).max(1)), life, (0, Vec::new()))
    }

    /// For people.
    pub(crate) fn host(&self) -> String {
        self.options.host.chars().filter(|c| !c.is_control()).take(16).collect()
    }

    /// As it is seen now; 0: none.
    pub(crate) fn own_node(&self) -> u64 {
        match self.options.own_node {
            OwnNode::None => 0,
            OwnNode::Is(node) => node,
            OwnNode::Detect => self.nodes.here(&self.options.host),
        }
    }

    pub(crate) fn mount_of(&self, id: SessionId, before: u64, life: u32) -> control::Mount {
        let (head, host) = (Some(proto::Head::of(id)), self.host());
        control::Mount { head, host, node: self.own_node(), before, life }
    }

    fn mount(
        &self,
        id: SessionId,
        life: u32,
        (before, had): (u64, Vec<HeldLock>),
    ) -> Result<Arc<Session>, Stop> {
        let mount = self.mount_of(id, before, life);
        let body = Body::new(HadLocks { locks: had }.encode_to_vec());
        let (home, mounted, _) = self.ask_duty(&mount, &body, self.metadata_patience())?;
        let (joined, incarnation) = (mounted.joined, mounted.incarnation);
        *home.joined.lock() = Some(Came { id, joined, incarnation });
        self.set_renew(mounted.renew_ms);
        Ok(Arc::new(Session::new(id, mounted.joined, mounted.incarnation, mounted.operations_max)))
    }

    /// The same session, with its locks, at a server that was started again; `None`: it was given up, or comes too late.
    fn come_back(&self, gone: &Session, life: u32) -> Result<Option<Arc<Session>>, Stop> {
        let had: Vec<HeldLock> = self.locks.lock().held.leave(gone.id).iter().map(HadLock::to_say).collect();
        // One that comes back is not waited for any more. Of several servers each knows it by another number.
        if (had.is_empty() && self.has_homes()) || Life::of(gone.joined) >= Life(life) {
            return Ok(None);
        }
        match self.mount(gone.id, life, (gone.joined, had)) {
            Ok(session) => Ok(Some(session)),
            Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    /// Makes a session in place of `gone`, unless somebody did.
    pub(crate) fn recover(&self, gone: &Arc<Session>) -> Result<(), Errno> {
        let _one = self.recovering.lock();
        if !Arc::ptr_eq(&self.session(), gone) {
            return Ok(());
        }
        tracing::warn!(session = %gone.id, "the session is gone; a new one is made");
        // Before the server takes us for somebody who keeps nothing.
        self.kept.lock().clear();
        let life = self.fetch_facts().map_err(|stop| stop.errno())?;
        let came_back = self.come_back(gone, life).map_err(|stop| stop.errno())?;
        let (session, unlocked) = match came_back {
            Some(session) => (session, BTreeSet::new()),
            None => {
                let session = self.new_session(life).map_err(|stop| stop.errno())?;
                (session, self.locks.lock().held.lose())
            }
        };
        self.hold_all(&session)?;
        let lost = self.open_again(&session)? + self.lose_unlocked(&unlocked);
        tracing::warn!(session = %session.id, lost, "a new session; openings that are lost give EIO");
        let again = {
            let mut current = self.session.write();
            // From now on writes begin anew.
            self.recoveries.fetch_add(1, Ordering::AcqRel);
            let again = self.locks.lock().enter(session.joined);
            self.kept.lock().clear();
            *current = session;
            again
        };
        self.ask_locks_again(again);
        Ok(())
    }

    /// Who believes in a lock that somebody else may have must not go on as if he had it.
    fn lose_unlocked(&self, handles: &BTreeSet<u64>) -> u64 {
        let mut lost = 0;
        for file in handles.iter().filter_map(|handle| self.openings.get(*handle)) {
            tracing::warn!(ino = file.ino.get(), "the locks of an open file are lost with the session");
            lost += u64::from(!file.unlocked.swap(true, Ordering::AcqRel));
        }
        lost
    }

    /// How many are lost.
    fn open_again(&self, session: &Arc<Session>) -> Result<u64, Errno> {
        let mut lost = 0;
        for file in self.openings.all() {
            let open = |head| metadata::Open {
                head: Some(head),
                ino: file.ino.get(),
                opening: file.number,
                write: file.access.write,
            };
            match self.ask_in(session, open) {
                Ok(_) => file.lost.store(false, Ordering::Release),
                Err(Stop::Silent { .. }) => return Err(Errno::EIO),
                // Also one whose data server is away: it must not keep the others from going on.
                Err(Stop::Fault { fault, .. }) => {
                    let (ino, errno) = (file.ino.get(), Errno::from_raw(fault.errno));
                    tracing::warn!(ino, %errno, "an open file is lost with its session");
                    file.lost.store(true, Ordering::Release);
                    lost += 1;
                }
            }
        }
        Ok(lost)
    }
}
