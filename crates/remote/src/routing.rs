//! The other metadata servers of a cluster that has several: who is asked about an inode, and the session there.
//!
//! The mount's session is one, with one number for each of its operations, wherever that is carried out: what it has in a slot goes with the
//! slot from server to server. The server on duty, who has the root's slot and makes the map, is asked over the mount's own lines; each other over
//! lines of its own, where the same session has joined. If one of them has lost it, all of it is made anew.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lease::coherence::locks::HadLock;
use net::Answered;
use prost::Message;
use proto::{
    BATCH_MAX, Head, Reason, Request, SessionId, control,
    locks::{HadLocks, HeldLock, LOCKS_MAX},
    metadata::{Forget, Hold},
};
use types::Errno;
use wire::frame::Body;

use crate::{
    Remote,
    held::Source,
    homes::{Came, FIRST_PAUSE, Home},
    line::{Asking, Line, Stop, Waits, ask_at, ask_with},
    session::Session,
};

const PAUSE_LONGEST: Duration = Duration::from_millis(200);

/// A session that comes to a server.
#[derive(Clone, Copy)]
pub(crate) struct Coming {
    pub id: SessionId,
    /// 0: over the mount's own lines.
    pub node: u64,
    /// Of the server. 0: whichever.
    pub life: u32,
    /// As which it was known there. 0: it comes for the first time.
    pub before: u64,
}

/// A request to whom it is for.
pub(crate) struct Routed {
    home: Option<Arc<Home>>,
    head: Head,
}

impl Remote {
    /// Are there other metadata servers?
    pub(crate) fn has_homes(&self) -> bool {
        self.on_duty != 0
    }

    /// `None`: over the mount's own lines.
    fn home_of(&self, ino: u64) -> Option<Arc<Home>> {
        let owner = self.nodes.owner_of(ino).filter(|owner| owner.node != self.on_duty)?;
        Some(self.homes.of(&owner))
    }

    /// The node of whoever is asked about an inode; 0: over the mount's own lines.
    pub(crate) fn node_of(&self, ino: u64) -> u64 {
        if !self.has_homes() {
            return 0;
        }
        self.nodes.owner_of(ino).map(|owner| owner.node).filter(|node| *node != self.on_duty).unwrap_or(0)
    }

    /// Who is asked, and with which head. `request` has any head. `coming`: as which the session is just coming back somewhere. An error has
    /// who said it.
    pub(crate) fn route<R: Request>(
        &self,
        request: &R,
        session: &Session,
        (head, coming): (Head, Option<Source>),
    ) -> Result<Routed, (Stop, Source)> {
        let mut first = None;
        if self.has_homes() {
            request.homes(&mut |ino| first = first.or(Some(ino)));
        }
        match first.and_then(|ino| self.home_of(ino)) {
            None => Ok(Routed { home: None, head }),
            Some(home) => {
                let joined = match coming.filter(|at| at.node == home.node) {
                    Some(at) => at.joined,
                    None => self
                        .join_at(&home, session)
                        .map_err(|stop| (stop, Source { node: home.node, joined: 0 }))?,
                };
                Ok(Routed { home: Some(home), head: Head { joined, ..head } })
            }
        }
    }

    pub(crate) fn ask_routed(
        &self,
        routed: &Routed,
        asking: &Asking,
        waits: Waits,
    ) -> Result<Answered, Stop> {
        let line = routed.home.as_ref().map_or(&self.metadata, |home| &home.metadata);
        line.ask(asking, waits)
    }

    /// The session comes there, if it has not yet. Slots may have brought something of it there before, so it says what it has.
    fn join_at(&self, home: &Home, session: &Session) -> Result<u64, Stop> {
        let mut came = home.joined.lock();
        match *came {
            Some(came) if came.id == session.id => return Ok(came.joined),
            Some(came) if came.serial > session.serial => return Err(session_gone()),
            Some(_) | None => (),
        }
        let had = self.locks.lock().held.had(session.id);
        let to = Coming { id: session.id, node: home.node, life: 0, before: 0 };
        let mounted = self.mount_at(&home.control, to, &had)?;
        let joined = mounted.joined;
        *came = Some(Came { id: session.id, serial: session.serial, joined });
        self.locks.lock().held.enter(Source { node: home.node, joined });
        Ok(joined)
    }

    /// The session comes to a server, with its locks.
    pub(crate) fn mount_at(
        &self,
        line: &Line,
        Coming { id, node, life, before }: Coming,
        had: &[HadLock],
    ) -> Result<control::Mounted, Stop> {
        let mut locks: Vec<HeldLock> = had.iter().map(HadLock::to_say).collect();
        if locks.len() > LOCKS_MAX {
            // Of several servers none takes them all.
            locks.retain(|lock| self.node_of(lock.ino) == node);
        }
        let mount = control::Mount {
            head: Some(Head::of(id)),
            host: self.host(),
            node: self.own_node(),
            before,
            life,
            stamp: self.locks.lock().held.stamp(),
        };
        let body = Body::new(HadLocks { locks }.encode_to_vec());
        ask_with(line, &mount, body, self.options.patience).map(|(mounted, _)| mounted)
    }

    /// All of them hear of the session, also those that have nothing of it yet: a slot may bring it there.
    pub(crate) fn renew_homes(&self, session: &Arc<Session>, every: Duration) {
        if !self.has_homes() {
            return;
        }
        for owner in self.nodes.owners().into_iter().filter(|owner| owner.node != self.on_duty) {
            let home = self.homes.of(&owner);
            let mut at = Source { node: owner.node, joined: 0 };
            let renewed = self.join_at(&home, session).and_then(|joined| {
                at.joined = joined;
                let head = Some(Head { joined, ..session.head() });
                ask_at::<control::Renew>(
                    &home.control,
                    &control::Renew { head, node: Some(self.own_node()) },
                    every,
                )
            });
            match renewed {
                Ok((answer, _)) if answer.map_epoch > self.nodes.epoch() => {
                    self.fetch_map();
                }
                Ok(_) => {}
                Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                    if let Err(error) = self.recover(session, at) {
                        tracing::warn!(%error, "no session in place of the lost one yet");
                        return;
                    }
                    if !Arc::ptr_eq(&self.session(), session) {
                        return;
                    }
                }
                Err(stop) => {
                    tracing::debug!(node = owner.node, errno = %stop.errno(), "the session was not renewed there")
                }
            }
        }
    }

    /// At the end.
    pub(crate) fn leave_homes(&self, session: &Session, patience: Duration) {
        for home in self.homes.all() {
            let (node, joined) = (home.node, home.joined_as(session.id));
            let Some(joined) = joined else { continue };
            let bye = control::Unmount { head: Some(Head { joined, ..session.head() }) };
            if let Err(stop) = ask_at::<control::Unmount>(&home.control, &bye, patience) {
                tracing::info!(node, errno = %stop.errno(), "the session was not ended in order there");
            }
        }
    }

    /// Whoever was asked does not have the slot. False: it was said often enough.
    pub(crate) fn redirected(&self, pause: &mut Duration, end: Instant) -> bool {
        if Instant::now() + *pause >= end {
            return false;
        }
        // The map is made by who is on duty; others may not have heard yet.
        self.fetch_map();
        thread::sleep(*pause);
        *pause = (*pause * 2).min(PAUSE_LONGEST);
        true
    }

    /// What is about one inode each, in parts of one server each.
    pub(crate) fn by_owner<T: Clone>(&self, all: Vec<T>, ino: impl Fn(&T) -> u64) -> Vec<Vec<T>> {
        let mut parts: BTreeMap<u64, Vec<T>> = BTreeMap::new();
        for one in all {
            let owner =
                if self.has_homes() { self.nodes.owner_of(ino(&one)).map(|owner| owner.node) } else { None };
            parts.entry(owner.unwrap_or(0)).or_default().push(one);
        }
        parts
            .into_values()
            .flat_map(|part| part.chunks(BATCH_MAX).map(<[_]>::to_vec).collect::<Vec<_>>())
            .collect()
    }

    /// In a session that is not yet the mount's, or just coming back, at whoever has the slots.
    pub(crate) fn ask_in<R: Request>(
        &self,
        session: &Session,
        coming: Option<Source>,
        make: impl Fn(Head) -> R,
    ) -> Result<R::Answer, Stop> {
        let (mut pause, end) = (FIRST_PAUSE, Instant::now() + self.options.patience);
        loop {
            let routed = self.route(&make(session.head()), session, (session.head(), coming));
            let routed = routed.map_err(|(stop, _)| stop)?;
            let asking = Asking {
                method: R::METHOD,
                meta: make(routed.head).encode_to_vec().into(),
                body: Body::default(),
                answer_bytes_max: 0,
            };
            match self.ask_routed(&routed, &asking, self.waits()) {
                Ok(answered) => {
                    let unread = |_| Stop::Silent("an answer that makes no sense".to_owned());
                    return R::Answer::decode(answered.meta.as_slice()).map_err(unread);
                }
                Err(Stop::Fault { fault, .. })
                    if Reason::of(&fault) == Reason::WrongOwner && self.redirected(&mut pause, end) => {}
                Err(stop) => return Err(stop),
            }
        }
    }

    /// References are the session's again, those of `which`.
    pub(crate) fn hold_all(
        &self,
        session: &Session,
        coming: Option<Source>,
        which: &dyn Fn(u64) -> bool,
    ) -> Result<(), Errno> {
        let mut all = self.references.all();
        all.retain(|one| which(one.ino));
        for some in self.by_owner(all, |one| one.ino) {
            let hold = |head| Hold { head: Some(head), references: some.clone() };
            match self.ask_in(session, coming, hold) {
                Ok(_) => {}
                // A slot went meanwhile, and the others of this part did not.
                Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::WrongOwner => {
                    for one in some {
                        let hold = |head| Hold { head: Some(head), references: vec![one] };
                        self.ask_in(session, coming, hold).map_err(|stop| stop.errno())?;
                    }
                }
                Err(stop) => return Err(stop.errno()),
            }
        }
        Ok(())
    }

    /// References that the kernel gave up.
    pub(crate) fn give_back(&self) {
        loop {
            let references = self.references.take_back();
            if references.is_empty() {
                return;
            }
            for some in self.by_owner(references, |one| one.ino) {
                let forget = |head| Forget { head: Some(head), references: some.clone() };
                match self.change(forget) {
                    Ok(_) => {}
                    // A slot went meanwhile: they are sorted anew.
                    Err(Errno::EREMOTE) => some.iter().for_each(|one| self.references.again(*one)),
                    // With the session they are given back in any case.
                    Err(error) => return tracing::debug!(%error, "references were not given back"),
                }
            }
        }
    }
}

/// Another was made in its place.
fn session_gone() -> Stop {
    Stop::Fault { fault: Box::new(proto::fault::session_gone()), again: false }
}

impl Routed {
    pub(crate) fn source(&self) -> Source {
        let node = self.home.as_ref().map_or(0, |home| home.node);
        Source { node, joined: self.head.joined }
    }

    pub(crate) fn head(&self) -> Head {
        self.head
    }
}
