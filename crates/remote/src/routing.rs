//! The other metadata servers of a cluster that has several: who is asked about an inode, and the session there.
//!
//! The mount's session is one, with one number for each of its operations, wherever that is carried out: what it has in a slot goes with the
//! slot from server to server. Each is asked over lines of its own, where the same session has joined. If one of them has lost it, all of it is
//! made anew. One that does not answer is asked again and again, and meanwhile the others whether somebody has its place.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use net::{Answered, trace};
use prost::Message;
use proto::{
    BATCH_MAX, Head, Reason, Request, SessionId, control,
    metadata::{Forget, Hold},
};
use types::{Errno, Ino};
use wire::{
    frame::Body,
    schema::{Fault, Retry},
};

use crate::{
    Remote,
    duty::{PAUSE_LONGEST, SLICE},
    finding::ask_line,
    homes::{Came, FIRST_PAUSE, Home},
    line::{AWAY_PATIENCE, Asking, Stop, Waits},
    remote::Want,
    session::Session,
};

/// A request to whom it is for.
struct Routed {
    home: Arc<Home>,
    head: Head,
}

/// What was tried of one request.
struct Tried {
    pause: Duration,
    end: Instant,
    /// It may have been carried out.
    again: bool,
    /// As which the session asked.
    joined: u64,
    /// Who does not answer, and until when that is waited for.
    silent: Option<(Arc<Home>, Instant)>,
}

impl Remote {
    /// Are there other metadata servers?
    pub(crate) fn has_homes(&self) -> bool {
        self.several
    }

    fn home_of(&self, ino: u64) -> Arc<Home> {
        // What is nobody's the one on duty takes.
        self.nodes.owner_of(ino).map_or_else(|| self.duty(), |owner| self.homes.of(&owner))
    }

    /// Who is asked. `request` has any head.
    fn whose<R: Request>(&self, request: &R) -> Arc<Home> {
        if !self.has_homes() {
            return self.duty();
        }
        let mut first = None;
        request.homes(&mut |ino| first = first.or(Some(ino)));
        self.home_of(first.unwrap_or(Ino::ROOT.get()))
    }

    /// With the session's number there.
    fn routed(&self, home: Arc<Home>, session: &Session, head: Head) -> Result<Routed, Stop> {
        if !self.has_homes() {
            return Ok(Routed { home, head });
        }
        let joined = self.join_at(&home, session.id)?;
        Ok(Routed { home, head: Head { joined, ..head } })
    }

    /// Asks whoever has the slot, wherever that goes meanwhile.
    pub(crate) fn ask_owner<R: Request>(
        &self,
        make: impl Fn(Head) -> R,
        want: &Want,
        session: &Arc<Session>,
        head: Head,
    ) -> Result<Answered, Stop> {
        let end = Instant::now() + self.metadata_patience().min(want.longest);
        let mut tried = Tried { pause: FIRST_PAUSE, end, again: false, joined: 0, silent: None };
        loop {
            let request = make(head);
            if let Err(bad) = request.check() {
                let fault = proto::fault::fault(bad.errno(), Retry::Never, Reason::None, bad.to_string());
                return Err(Stop::Fault { fault: Box::new(fault), again: false });
            }
            let home = self.whose(&request);
            let mut homes = 0;
            request.homes(&mut |_| homes += 1);
            match self.ask_at(&home, &make, want, (session, head, &mut tried.joined)) {
                Err(Stop::Fault { fault, again }) if Reason::of(&fault) == Reason::WrongOwner => {
                    tried.again |= again;
                    let newer = fault.wrong_owner.is_some_and(|wrong| wrong.epoch > self.nodes.epoch());
                    // Of several some may be here and some there: who asks sorts them anew.
                    if homes != 1 || !self.redirected(&mut tried, newer.then_some(&*home)) {
                        return Err(Stop::Fault { fault, again: tried.again });
                    }
                }
                Err(Stop::Fault { fault, again }) if Reason::of(&fault) == Reason::Bare => {
                    tried.again |= again;
                    self.bring(&home, session)?;
                    let unknown = fault.retry == i32::from(Retry::Unknown) && tried.again;
                    if Instant::now() >= tried.end || (unknown && want.operation && !want.anew) {
                        let (request, method) = (trace::current(), R::METHOD.name());
                        tracing::warn!(%request, method, "not known whether it was carried out");
                        return Err(Stop::Fault { fault, again: tried.again });
                    }
                }
                Err(Stop::Silent { why, again }) if self.has_homes() => {
                    tried.again |= again;
                    if !self.is_waited_for(&home, &mut tried) {
                        return Err(Stop::Silent { why, again: tried.again });
                    }
                }
                // It ended before it had carried it out, or while it did.
                Err(Stop::Fault { fault, .. }) if self.has_homes() && was_dropped(&fault) => {
                    tried.again = true;
                    if !self.is_waited_for(&home, &mut tried) {
                        return Err(Stop::Fault { fault, again: true });
                    }
                }
                Err(Stop::Fault { fault, again })
                    if Reason::of(&fault) == Reason::SessionGone
                        && self.has_homes()
                        && Instant::now() < tried.end
                        && self.comes_again(&home, tried.joined) =>
                {
                    tried.again |= again;
                }
                Err(Stop::Fault { fault, again }) => {
                    return Err(Stop::Fault { fault, again: again || tried.again });
                }
                other => return other,
            }
        }
    }

    /// Once, or for as long as the only server is waited for.
    fn ask_at<R: Request>(
        &self,
        home: &Arc<Home>,
        make: impl Fn(Head) -> R,
        want: &Want,
        (session, head, joined): (&Session, Head, &mut u64),
    ) -> Result<Answered, Stop> {
        let routed = self.routed(home.clone(), session, head)?;
        *joined = routed.head.joined;
        let asking = Asking {
            method: R::METHOD,
            meta: make(routed.head).encode_to_vec().into(),
            body: want.body.clone(),
            answer_bytes_max: want.answer_bytes_max,
        };
        let all = Waits::of(self.options.patience, want.longest);
        let patience = if self.has_homes() { SLICE } else { all.patience };
        routed.home.metadata.ask(&asking, Waits { patience, ..all })
    }

    /// A server does not answer: another may have gone on in its place, or will. False: that was waited for.
    fn is_waited_for(&self, home: &Arc<Home>, tried: &mut Tried) -> bool {
        let now = Instant::now();
        let until = match &tried.silent {
            Some((silent, until)) if Arc::ptr_eq(silent, home) => *until,
            Some(_) | None => {
                let away = home.away().map_or(Duration::ZERO, |(since, _)| since);
                let until = now + self.metadata_patience().saturating_sub(away).max(AWAY_PATIENCE);
                tried.silent = Some((home.clone(), until));
                until
            }
        };
        if now + tried.pause >= until {
            return false;
        }
        self.fetch_map();
        thread::sleep(tried.pause);
        tried.pause = (tried.pause * 2).min(PAUSE_LONGEST);
        true
    }

    /// The session comes there, if it has not yet.
    pub(crate) fn join_at(&self, home: &Home, id: SessionId) -> Result<u64, Stop> {
        let busy = || Stop::Silent { why: "others ask it, too".to_owned(), again: false };
        let mut came = home.joined.try_lock_for(SLICE).ok_or_else(busy)?;
        if let Some(came) = came.filter(|came| came.id == id) {
            return Ok(came.joined);
        }
        let mount = self.mount_of(id, 0, 0);
        let waits = Waits { able: self.options.patience, ..Waits::of(SLICE, self.options.patience) };
        // Made twice it is the same.
        let mounted = ask_line(&home.control, &mount, Body::default(), waits).map_err(|stop| match stop {
            Stop::Silent { why, .. } => Stop::Silent { why, again: false },
            fault @ Stop::Fault { .. } => fault,
        });
        let (mounted, _) = mounted?;
        let (joined, incarnation) = (mounted.joined, mounted.incarnation);
        *came = Some(Came { id, joined, incarnation });
        Ok(joined)
    }

    /// A server does not know the session as it came there. Is that because the server is a new one, and had nothing of it to lose? Then it comes
    /// again.
    fn comes_again(&self, home: &Home, joined: u64) -> bool {
        let waits = Waits { able: self.options.patience, ..Waits::of(SLICE, self.options.patience) };
        let Ok((facts, _)) = ask_line(&home.control, &control::Hello {}, Body::default(), waits) else {
            return false;
        };
        let Some(mut came) = home.joined.try_lock_for(SLICE) else { return false };
        match *came {
            // Given up by the one to which it came.
            Some(before) if before.joined == joined && before.incarnation == facts.incarnation => {
                return false;
            }
            Some(before) if before.joined == joined => *came = None,
            // Somebody else came again meanwhile.
            Some(_) | None => {}
        }
        facts.began_empty
    }

    /// All of them hear of the session, also those that have nothing of it yet: a slot may bring it there.
    pub(crate) fn renew_homes(&self, session: &Arc<Session>, every: Duration) {
        let patience = every.min(SLICE);
        for owner in self.nodes.owners() {
            let home = self.homes.of(&owner);
            let mut joined = 0;
            let renewed = self.join_at(&home, session.id).and_then(|number| {
                joined = number;
                let renew = control::Renew { head: Some(Head { joined, ..session.head() }) };
                ask_line(&home.control, &renew, Body::default(), Waits::of(patience, every))
            });
            match renewed {
                Ok((answer, _)) => {
                    if answer.map_epoch > self.nodes.epoch() {
                        self.fetch_map_from(&home.control, patience);
                    }
                    self.bring_what_is_new(&home, session, answer.bare);
                }
                Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                    if self.comes_again(&home, joined) {
                        continue;
                    }
                    if let Err(error) = self.recover(session) {
                        tracing::warn!(%error, "no session in place of the lost one yet");
                    }
                    return;
                }
                Err(stop) => {
                    tracing::debug!(node = owner.node, errno = %stop.errno(), "the session was not renewed there");
                    self.fetch_map();
                }
            }
        }
    }

    /// Before its time is over, also when no program asks for anything there.
    fn bring_what_is_new(&self, home: &Home, session: &Arc<Session>, bare: u64) {
        let brought = home.brought.lock().filter(|(of, _)| *of == session.id).map_or(0, |(_, number)| number);
        if bare > brought
            && let Err(stop) = self.bring(home, session)
        {
            tracing::warn!(errno = %stop.errno(), "a new owner was not told what we have yet");
        }
    }

    /// At the end.
    pub(crate) fn leave_homes(&self, session: &Session) {
        for (node, home) in self.homes.all() {
            let Some(Came { joined, .. }) = home.joined.lock().filter(|came| came.id == session.id) else {
                continue;
            };
            let bye = control::Unmount { head: Some(Head { joined, ..session.head() }) };
            if let Err(stop) = ask_line(&home.control, &bye, Body::default(), Waits::of(SLICE, SLICE * 5)) {
                tracing::info!(node, errno = %stop.errno(), "the session was not ended in order there: it is given up later");
            }
        }
    }

    /// Whoever was asked does not have the slot; `newer`: he knows a newer map. False: it was said often enough.
    fn redirected(&self, tried: &mut Tried, newer: Option<&Home>) -> bool {
        if Instant::now() + tried.pause >= tried.end {
            return false;
        }
        // The map is made by who is on duty; others may not have heard yet.
        match newer {
            Some(home) => drop(self.fetch_map_from(&home.control, SLICE)),
            None => self.fetch_map(),
        }
        thread::sleep(tried.pause);
        tried.pause = (tried.pause * 2).min(PAUSE_LONGEST);
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
        session: &Arc<Session>,
        make: impl Fn(Head) -> R,
    ) -> Result<R::Answer, Stop> {
        let answered = self.ask_owner(make, &self.want(false), session, session.head())?;
        R::Answer::decode(answered.meta.as_slice()).map_err(|_| Stop::silent("an answer that makes no sense"))
    }

    /// References are the session's again.
    pub(crate) fn hold_all(&self, session: &Arc<Session>) -> Result<(), Errno> {
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

/// A server that ends says so of requests that it has.
fn was_dropped(fault: &Fault) -> bool {
    fault.retry == i32::from(Retry::Unknown) && Reason::of(fault) == Reason::None
}
