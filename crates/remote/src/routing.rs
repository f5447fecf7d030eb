//! The metadata servers of a cluster that has several: who is asked about an inode, and the session there.
//!
//! The mount's session is one, with one number for each of its operations, wherever that is carried out: what it has in a slot goes with the
//! slot from server to server. Each is asked over lines of its own, where the same session has joined. If one of them has lost it, all of it is
//! made anew. One that does not answer is asked again and again, and meanwhile the others whether somebody has its place.

use std::{
    collections::BTreeMap,
    sync::Arc,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use lease::coherence::locks::HadLock;
use net::{Answered, trace};
use prost::Message;
use proto::{
    BATCH_MAX, Head, Reason, Request, SessionId,
    control::{self, Mounted},
    locks::{HadLocks, HeldLock, LOCKS_MAX},
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
    held::Source,
    homes::{Came, FIRST_PAUSE, Home},
    line::{AWAY_PATIENCE, Asking, Line, Stop, Waits},
    remote::Want,
    session::Session,
};

/// References whose slots went meanwhile are sorted anew so often; what is left goes with the next look, so that the session is renewed.
const GIVE_BACK_ROUNDS: u32 = 4;

/// A session that comes to a server.
#[derive(Clone, Copy)]
pub(crate) struct Coming {
    pub id: SessionId,
    /// 0: the only one.
    pub node: u64,
    /// Of the server. 0: whichever.
    pub life: u32,
    /// As which it was known there. 0: it comes for the first time.
    pub before: u64,
}

/// A session that is being made whole: not yet the mount's, or just coming back somewhere.
#[derive(Clone, Copy)]
pub(crate) struct Recovering(pub Option<Source>);

/// What a server lost that does not know a session which came to it.
pub(crate) enum Lost {
    Nothing,
    All,
    /// It does not say, or the session is just coming there again.
    NotKnown,
}

/// What was tried of one request.
struct Tried {
    pause: Duration,
    end: Instant,
    /// It may have been carried out.
    again: bool,
    /// Who was asked, and how often he had lost what he knew.
    asked: Vec<(u64, u64)>,
    /// Who does not answer, and until when that is waited for.
    silent: Option<(Arc<Home>, Instant)>,
}

impl Remote {
    /// Are there other metadata servers?
    pub(crate) fn has_homes(&self) -> bool {
        self.several
    }

    /// The node of whoever is asked about an inode; 0: the only one.
    pub(crate) fn node_of(&self, ino: u64) -> u64 {
        if self.has_homes() { self.home_of(ino).node } else { 0 }
    }

    /// As [`Source`] names it.
    pub(crate) fn home_at(&self, node: u64) -> Arc<Home> {
        self.homes.at(node).unwrap_or_else(|| self.duty())
    }

    /// As which the session is known there, if it came.
    pub(crate) fn joined_at(&self, node: u64, session: &Session) -> Option<u64> {
        if self.has_homes() { self.homes.at(node)?.joined_as(session.id) } else { Some(session.joined) }
    }

    pub(crate) fn home_of(&self, ino: u64) -> Arc<Home> {
        // What is nobody's the one on duty takes.
        self.nodes.owner_of(ino).map_or_else(|| self.duty(), |owner| self.homes.of(&owner))
    }

    /// Who is asked. `request` has any head.
    pub(crate) fn whose<R: Request>(&self, request: &R) -> Arc<Home> {
        if !self.has_homes() {
            return self.duty();
        }
        let mut first = None;
        request.homes(&mut |ino| first = first.or(Some(ino)));
        self.home_of(first.unwrap_or(Ino::ROOT.get()))
    }

    /// Asks whoever has the slot, wherever that goes meanwhile. Says who answered.
    pub(crate) fn ask_owner<R: Request>(
        &self,
        make: impl Fn(Head) -> R,
        want: &Want,
        (session, head, recovering): (&Arc<Session>, Head, Option<Recovering>),
        entered: &mut Vec<u64>,
    ) -> Result<(Answered, Source), (Stop, Source)> {
        let mut make = |head| {
            let mut request = make(head);
            *entered = self.spreads.enter(&mut request);
            request
        };
        let end = Instant::now() + self.metadata_patience().min(want.longest);
        let mut tried = Tried { pause: FIRST_PAUSE, end, again: false, asked: Vec::new(), silent: None };
        loop {
            let request = make(head);
            if let Err(bad) = request.check() {
                let fault = proto::fault::fault(bad.errno(), Retry::Never, Reason::None, bad.to_string());
                let nobody = Source { node: 0, joined: 0 };
                return Err((Stop::Fault { fault: Box::new(fault), again: false }, nobody));
            }
            let home = self.whose(&request);
            let mut homes = 0;
            request.homes(&mut |_| homes += 1);
            let mut from = Source { node: home.node, joined: 0 };
            let whose = (session, head, recovering);
            let answer = self.ask_once(&home, &mut make, want, whose, (&mut from, &mut tried));
            match answer {
                Ok(answered) => return Ok((answered, from)),
                Err(stop) => {
                    let asked = (&home, R::METHOD.name(), homes);
                    self.go_on_after(stop, asked, want, (session, from, recovering), &mut tried)
                        .map_err(|stop| (stop, from))?;
                }
            }
        }
    }

    /// Is it to be asked again, of whoever it is for then?
    fn go_on_after(
        &self,
        stop: Stop,
        (home, method, homes): (&Arc<Home>, &str, usize),
        want: &Want,
        (session, from, recovering): (&Arc<Session>, Source, Option<Recovering>),
        tried: &mut Tried,
    ) -> Result<(), Stop> {
        match stop {
            Stop::Fault { fault, again } if Reason::of(&fault) == Reason::WrongOwner => {
                tried.again |= again;
                let newer = fault.wrong_owner.is_some_and(|wrong| wrong.epoch > self.nodes.epoch());
                let told = newer.then_some(&**home);
                if homes != 1 {
                    // Some may be here and some there: who asks sorts them anew, by a newer map.
                    self.learn(told);
                    return Err(Stop::Fault { fault, again: tried.again });
                }
                if !self.redirected(tried, told) {
                    return Err(Stop::Fault { fault, again: tried.again });
                }
            }
            Stop::Fault { fault, again } if Reason::of(&fault) == Reason::Bare => {
                tried.again |= again;
                self.bring(home, session, recovering)?;
                let unknown = fault.retry == i32::from(Retry::Unknown) && tried.again;
                if Instant::now() >= tried.end || (unknown && want.operation && !want.anew) {
                    let request = trace::current();
                    tracing::warn!(%request, method, "not known whether it was carried out");
                    return Err(Stop::Fault { fault, again: tried.again });
                }
            }
            Stop::Silent { why, again } if self.has_homes() => {
                tried.again |= again;
                if !self.is_waited_for(home, tried) {
                    return Err(Stop::Silent { why, again: tried.again });
                }
            }
            // It ended before it had carried it out, or while it did.
            Stop::Fault { fault, .. } if self.has_homes() && was_dropped(&fault) => {
                tried.again = true;
                if !self.is_waited_for(home, tried) {
                    return Err(Stop::Fault { fault, again: true });
                }
            }
            Stop::Fault { fault, again }
                if Reason::of(&fault) == Reason::SessionGone
                    && self.has_homes()
                    && from.joined != u64::MAX
                    && Instant::now() < tried.end =>
            {
                tried.again |= again;
                match self.what_is_lost(home, from.joined) {
                    Lost::Nothing => {}
                    Lost::NotKnown => {
                        thread::sleep(tried.pause);
                        tried.pause = (tried.pause * 2).min(PAUSE_LONGEST);
                    }
                    Lost::All => return Err(Stop::Fault { fault, again: tried.again }),
                }
            }
            Stop::Fault { fault, again } => {
                return Err(Stop::Fault { fault, again: again || tried.again });
            }
            silent @ Stop::Silent { .. } => return Err(silent),
        }
        Ok(())
    }

    /// Once, or for as long as the only server is waited for.
    fn ask_once<R: Request>(
        &self,
        home: &Home,
        make: &mut impl FnMut(Head) -> R,
        want: &Want,
        (session, head, recovering): (&Arc<Session>, Head, Option<Recovering>),
        (from, tried): (&mut Source, &mut Tried),
    ) -> Result<Answered, Stop> {
        let coming = recovering.and_then(|recovering| recovering.0).filter(|at| at.node == home.node);
        from.joined = match coming {
            Some(at) => at.joined,
            None if self.has_homes() => self.join_at(home, session)?,
            None => head.joined,
        };
        if self.has_homes() && self.have_lost(home, tried) && tried.again && want.operation && !want.anew {
            // The session came back meanwhile, and whether this was carried out before nobody knows.
            from.joined = u64::MAX;
            return Err(Stop::Fault { fault: Box::new(proto::fault::session_gone()), again: true });
        }
        let asking = Asking {
            method: R::METHOD,
            meta: make(Head { joined: from.joined, ..head }).encode_to_vec().into(),
            body: want.body.clone(),
            answer_bytes_max: want.answer_bytes_max,
        };
        let all = Waits::of(self.options.patience, want.longest);
        let patience = if self.has_homes() { SLICE } else { all.patience };
        home.metadata.ask(&asking, Waits { patience, ..all })
    }

    /// Has one of those that were asked been started again since? `home` is asked next.
    fn have_lost(&self, home: &Home, tried: &mut Tried) -> bool {
        let losses = |home: &Home| home.losses.load(Ordering::Acquire);
        if !tried.asked.iter().any(|(node, _)| *node == home.node) {
            tried.asked.push((home.node, losses(home)));
        }
        tried.asked.iter().any(|(node, before)| losses(&self.home_at(*node)) != *before)
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

    /// The session comes there, if it has not yet. Slots may have brought something of it there before, so it says what it has.
    pub(crate) fn join_at(&self, home: &Home, session: &Session) -> Result<u64, Stop> {
        let busy = || Stop::Silent { why: "others ask it, too".to_owned(), again: false };
        let mut came = home.joined.try_lock_for(SLICE).ok_or_else(busy)?;
        match *came {
            Some(came) if came.id == session.id => return Ok(came.joined),
            Some(came) if came.serial > session.serial => return Err(session_gone()),
            Some(_) | None => (),
        }
        // Before the server takes us for somebody who keeps nothing.
        self.kept.lock().leave(home.node);
        let had = self.locks.lock().held.had(session.id);
        let to = Coming { id: session.id, node: home.node, life: 0, before: 0 };
        let waits = Waits { able: self.options.patience, ..Waits::of(SLICE, self.options.patience) };
        // Made twice it is the same.
        let mounted = self.mount_at(&home.control, to, &had, waits).map_err(|stop| match stop {
            Stop::Silent { why, .. } => Stop::Silent { why, again: false },
            fault @ Stop::Fault { .. } => fault,
        });
        let Mounted { joined, incarnation, .. } = mounted?;
        *came = Some(Came { id: session.id, serial: session.serial, joined, incarnation });
        // What waited at the same server's last life waits no more.
        let again = self.locks.lock().come_back(Source { node: home.node, joined });
        drop(came);
        self.ask_locks_again(again);
        Ok(joined)
    }

    /// A server does not know the session as it came there. Is that because the server is a new one, and had nothing of it to lose? Then it comes
    /// again.
    pub(crate) fn what_is_lost(&self, home: &Home, joined: u64) -> Lost {
        if joined == 0 {
            // It could not even come.
            return Lost::All;
        }
        let waits = Waits { able: self.options.patience, ..Waits::of(SLICE, self.options.patience) };
        let Ok((facts, _)) = ask_line(&home.control, &control::Hello {}, Body::default(), waits) else {
            return Lost::NotKnown;
        };
        let Some(mut came) = home.joined.try_lock_for(SLICE) else { return Lost::NotKnown };
        match *came {
            // Given up by the one to which it came.
            Some(before) if before.joined == joined && before.incarnation == facts.incarnation => {
                return Lost::All;
            }
            Some(before) if before.joined == joined => {
                if facts.began_empty {
                    *came = None;
                }
            }
            // Somebody else came again meanwhile.
            Some(_) | None => {}
        }
        if facts.began_empty { Lost::Nothing } else { Lost::All }
    }

    /// The session comes to a server, with its locks.
    pub(crate) fn mount_at(
        &self,
        line: &Line,
        Coming { id, node, life, before }: Coming,
        had: &[HadLock],
        waits: Waits,
    ) -> Result<Mounted, Stop> {
        let mut locks: Vec<HeldLock> = had.iter().map(HadLock::to_say).collect();
        if locks.len() > LOCKS_MAX {
            // Of several servers none takes them all.
            locks.retain(|lock| self.node_of(lock.ino) == node);
        }
        let mount = control::Mount {
            head: Some(Head::of(id)),
            host: self.host(),
            job: self.options.job.clone(),
            node: self.own_node(),
            before,
            life,
            stamp: self.locks.lock().held.stamp(),
            resumes: before == 0 && self.resumes_at(node),
        };
        let body = Body::new(HadLocks { locks }.encode_to_vec());
        let (mounted, body) = ask_line(line, &mount, body, waits)?;
        if mount.resumes {
            self.resumed_at(Source { node, joined: mounted.joined }, &mounted, &body);
        }
        Ok(mounted)
    }

    /// At the end.
    pub(crate) fn leave_homes(&self, session: &Session) {
        for home in self.homes.all() {
            let (node, joined) = (home.node, home.joined_as(session.id));
            let Some(joined) = joined else { continue };
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
        self.learn(newer);
        thread::sleep(tried.pause);
        tried.pause = (tried.pause * 2).min(PAUSE_LONGEST);
        true
    }

    /// A newer map, of who has it. The map is made by who is on duty; others may not have heard yet.
    fn learn(&self, newer: Option<&Home>) {
        match newer {
            Some(home) => drop(self.fetch_map_from(&home.control, SLICE)),
            None => self.fetch_map(),
        }
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
        session: &Arc<Session>,
        coming: Option<Source>,
        make: impl Fn(Head) -> R,
    ) -> Result<R::Answer, Stop> {
        let whose = (session, session.head(), Some(Recovering(coming)));
        let (answered, _) =
            self.ask_owner(make, &self.want(false), whose, &mut Vec::new()).map_err(|(stop, _)| stop)?;
        R::Answer::decode(answered.meta.as_slice()).map_err(|_| Stop::silent("an answer that makes no sense"))
    }

    /// References are the session's again, those of `which`.
    pub(crate) fn hold_all(
        &self,
        session: &Arc<Session>,
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
        for _ in 0..GIVE_BACK_ROUNDS {
            let references = self.references.take_back();
            // With the session they are given back in any case.
            if references.is_empty() || *self.stopping.lock() {
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

/// Another was made in its place.
fn session_gone() -> Stop {
    Stop::Fault { fault: Box::new(proto::fault::session_gone()), again: false }
}
