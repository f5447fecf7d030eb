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

use net::Answered;
use prost::Message;
use proto::{
    BATCH_MAX, Head, Reason, Request, SessionId, control,
    metadata::{Forget, Hold},
};
use types::Errno;
use wire::frame::Body;

use crate::{
    Remote,
    homes::{FIRST_PAUSE, Home},
    line::{Asking, Line, Stop, Waits},
    session::Session,
};

const PAUSE_LONGEST: Duration = Duration::from_millis(200);

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

    /// Who is asked, and with which head. `request` has any head.
    pub(crate) fn route<R: Request>(
        &self,
        request: &R,
        session: &Session,
        head: Head,
    ) -> Result<Routed, Stop> {
        let mut first = None;
        if self.has_homes() {
            request.homes(&mut |ino| first = first.or(Some(ino)));
        }
        match first.and_then(|ino| self.home_of(ino)) {
            None => Ok(Routed { home: None, head }),
            Some(home) => {
                let joined = self.join_at(&home, session.id)?;
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

    /// The session comes there, if it has not yet.
    fn join_at(&self, home: &Home, id: SessionId) -> Result<u64, Stop> {
        let mut joined = home.joined.lock();
        if let Some((_, number)) = joined.filter(|(of, _)| *of == id) {
            return Ok(number);
        }
        let host = self.host();
        let mount =
            control::Mount { head: Some(Head::of(id)), host, node: self.own_node(), before: 0, life: 0 };
        let patience = self.options.patience;
        let (mounted, _) = ask_at::<control::Mount>(&home.control, &mount, patience)?;
        *joined = Some((id, mounted.joined));
        Ok(mounted.joined)
    }

    /// All of them hear of the session, also those that have nothing of it yet: a slot may bring it there.
    pub(crate) fn renew_homes(&self, session: &Arc<Session>, every: Duration) {
        if !self.has_homes() {
            return;
        }
        for owner in self.nodes.owners().into_iter().filter(|owner| owner.node != self.on_duty) {
            let home = self.homes.of(&owner);
            let renewed = self.join_at(&home, session.id).and_then(|joined| {
                let head = Some(Head { joined, ..session.head() });
                ask_at::<control::Renew>(
                    &home.control,
                    &control::Renew { head, node: Some(self.own_node()) },
                    every,
                )
            });
            match renewed {
                Ok((answer, _)) if answer.map_epoch > self.nodes.epoch() => self.fetch_map(),
                Ok(_) => {}
                Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                    if let Err(error) = self.recover(session) {
                        tracing::warn!(%error, "no session in place of the lost one yet");
                    }
                    return;
                }
                Err(stop) => {
                    tracing::debug!(node = owner.node, errno = %stop.errno(), "the session was not renewed there")
                }
            }
        }
    }

    /// At the end.
    pub(crate) fn leave_homes(&self, session: &Session, patience: Duration) {
        for (node, home) in self.homes.all() {
            let Some((_, joined)) = home.joined.lock().filter(|(of, _)| *of == session.id) else { continue };
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

    /// In a session that is not yet the mount's, at whoever has the slots.
    pub(crate) fn ask_in<R: Request>(
        &self,
        session: &Session,
        make: impl Fn(Head) -> R,
    ) -> Result<R::Answer, Stop> {
        let (mut pause, end) = (FIRST_PAUSE, Instant::now() + self.options.patience);
        loop {
            let routed = self.route(&make(session.head()), session, session.head())?;
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

    /// References are the session's again.
    pub(crate) fn hold_all(&self, session: &Session) -> Result<(), Errno> {
        for some in self.by_owner(self.references.all(), |one| one.ino) {
            let hold = |head| Hold { head: Some(head), references: some.clone() };
            match self.ask_in(session, hold) {
                Ok(_) => {}
                // A slot went meanwhile, and the others of this part did not.
                Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::WrongOwner => {
                    for one in some {
                        let hold = |head| Hold { head: Some(head), references: vec![one] };
                        self.ask_in(session, hold).map_err(|stop| stop.errno())?;
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

/// On a control line.
fn ask_at<R: Request>(line: &Line, request: &R, patience: Duration) -> Result<(R::Answer, Vec<u8>), Stop> {
    let asking = Asking {
        method: R::METHOD,
        meta: request.encode_to_vec().into(),
        body: Body::default(),
        answer_bytes_max: 4 << 20,
    };
    let answered = line.ask(&asking, Waits { patience, longest: patience })?;
    match R::Answer::decode(answered.meta.as_slice()) {
        Ok(answer) => Ok((answer, answered.body)),
        Err(_) => Err(Stop::Silent("an answer that makes no sense".to_owned())),
    }
}

impl Routed {
    pub(crate) fn head(&self) -> Head {
        self.head
    }
}
