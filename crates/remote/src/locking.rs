//! Locks of programs: asking for them, hearing of those that waited, and giving up what closed files leave.
//!
//! No thread waits with a program: a lock that is not free waits at the server, which tells its outcome to the thread that listens. That
//! one is started with the first lock.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use lease::coherence::{
    locks::{HadLock, Owner},
    ranges::{Kind, Range},
};
use net::Answered;
use prost::Message;
use proto::{
    Head, Reason, Request, SessionId,
    leases::Recalled,
    locks::{CancelLock, FindLock, FoundLock, HeldLock, Listen, Lock, LockOutcome, Unlock},
};
use types::{Errno, Ino};
use wire::frame::Body;

use crate::{
    Remote,
    held::{Change, Holder, Source},
    line::{Asking, Stop, Waits},
    remote::{RECOVERIES_MAX, Want},
    routing::Lost,
    session::Session,
    waiting::{Answer, LockWish, Next},
};

/// Longer than the server keeps a listener.
const LISTEN_LONGEST: Duration = Duration::from_secs(15);
/// A server that cannot be reached: who listens looks after so long whether all this has ended.
const LISTEN_PATIENCE: Duration = Duration::from_secs(2);
const LISTEN_PAUSE: Duration = Duration::from_millis(200);
/// A program that was interrupted waits so long for a server that is away.
const CANCEL_PATIENCE: Duration = Duration::from_secs(2);

impl LockWish {
    fn said(&self) -> HeldLock {
        let LockWish { ino, holder, range, kind, pid, .. } = *self;
        said((ino, holder), range, kind, pid)
    }
}

/// The session is in the head.
fn said((ino, holder): (Ino, Holder), range: Range, kind: Kind, pid: u32) -> HeldLock {
    let owner = Owner { session: proto::SessionId(0), class: holder.class, id: holder.id };
    HadLock { ino, owner, range, kind, pid }.to_say()
}

impl Remote {
    /// Wants a lock. `answer` is called once, by any thread; [`Remote::interrupt`] with the same `id` hurries it.
    pub fn lock(&self, id: u64, wish: LockWish, answer: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        self.write_down_user((wish.ino, wish.holder, wish.handle));
        let (ino, holder, this) = (wish.ino, wish.holder, self.this.clone());
        let answer: Answer = Box::new(move |result| {
            // Before its program hears of it.
            this.upgrade().into_iter().for_each(|this| this.settle_user(ino, holder));
            answer(result);
        });
        let next = self.locks.lock().insert(id, wish, answer);
        self.go_on(next);
    }

    /// The program with that request got a signal. One that there is no such request of yet is remembered.
    pub fn interrupt(&self, id: u64) {
        let next = self.locks.lock().interrupt(id);
        self.go_on(next);
    }

    /// Who is in the way, and where; the process if it is of this node.
    pub fn find_lock(&self, wish: &LockWish) -> Result<Option<(Range, Kind, u32)>, Errno> {
        let lock = Some(wish.said());
        let found: FoundLock = self.look(|head| FindLock { head: Some(head), lock })?;
        let Some(lock) = found.lock else { return Ok(None) };
        let range = Range::new(lock.start, lock.end).ok_or(Errno::EIO)?;
        Ok(Some((range, lock.kind().into(), if found.own { lock.pid } else { 0 })))
    }

    /// Gives up what the holder has in the range. Whoever has nothing costs no request.
    pub fn unlock(&self, ino: Ino, holder: Holder, range: Range) -> Result<(), Errno> {
        {
            let mut locks = self.locks.lock();
            if !locks.held.is_user(ino, holder) {
                return Ok(());
            }
            locks.held.begin(ino, holder, None);
        }
        self.set_user(ino, holder, false);
        let result = self.ask_unlock(ino, holder, range);
        if result.is_err() {
            self.locks.lock().held.ended(ino, holder, true);
        }
        self.settle_user(ino, holder);
        result
    }

    /// A process closed a descriptor: all its locks on the file go, whichever descriptor they were taken with.
    pub fn flush_locks(&self, ino: Ino, handle: u64, holder: Holder) {
        if !self.locks.lock().held.is_user(ino, holder) {
            return;
        }
        self.give_up_all(ino, holder);
        self.locks.lock().held.forget_handle(ino, holder, handle);
        self.strike_users(|user| *user == (ino, holder, handle));
    }

    /// An open file description is no more, and so are the locks that were taken with it and not given up.
    pub(crate) fn release_locks(&self, ino: Ino, handle: u64) {
        let holders = self.locks.lock().held.users_of(ino, handle);
        holders.into_iter().for_each(|holder| self.give_up_all(ino, holder));
        self.strike_users(|(.., through)| *through == handle);
    }

    /// What was owed to the server from closes while it was away.
    pub(crate) fn pay_locks(&self) {
        let owed = self.locks.lock().held.take_owed();
        owed.into_iter().for_each(|(ino, holder)| self.give_up_all(ino, holder));
    }

    fn give_up_all(&self, ino: Ino, holder: Holder) {
        if let Err(error) = self.unlock(ino, holder, Range::ALL) {
            tracing::warn!(ino = ino.get(), %error, "locks of a closed file are given up later");
            self.locks.lock().held.owe(ino, holder);
        }
    }

    /// Answers that a mount at its end has none for.
    pub(crate) fn end_locks(&self) {
        let answers = self.locks.lock().take_all();
        answers.into_iter().for_each(|answer| answer(Err(Errno::EIO)));
    }

    fn go_on(&self, next: Next) {
        let Some(this) = self.this.upgrade() else { return };
        match next {
            Next::Nothing => (),
            Next::Answer(answer, result) => answer(result),
            Next::Ask(id) => self.pool.defer(move || this.ask_lock(id)),
            Next::Cancel(id) => self.pool.defer(move || this.cancel_lock(id)),
            Next::GiveBack(wish) => self.pool.defer(move || this.give_back_lock(&wish)),
        }
    }

    pub(crate) fn ask_locks_again(&self, ids: Vec<u64>) {
        ids.into_iter().for_each(|id| self.go_on(Next::Ask(id)));
    }

    fn ask_lock(&self, id: u64) {
        let mut failed = Errno::EIO;
        for _ in 0..RECOVERIES_MAX {
            let session = self.session();
            let want = self.want(true);
            let operation = match session.begin((Lock::METHOD, want.anew), Instant::now() + want.longest) {
                Ok(operation) => operation,
                Err(errno) => {
                    failed = errno;
                    break;
                }
            };
            let head = operation.head();
            let at = (session.serial, head.number);
            let asks = self.locks.lock().asks(id, at);
            let wish = match asks {
                Ok(wish) => wish,
                Err(next) => {
                    drop(operation);
                    return self.go_on(next);
                }
            };
            self.listen_from_now_on();
            let make = |head| Lock { head: Some(head), lock: Some(wish.said()), wait: wish.wait };
            match self.asked(&make, &want, &session, head) {
                Ok((locked, from)) => {
                    let next = self.locks.lock().decided(at, &locked, from);
                    self.listen_at(from.node);
                    return self.go_on(next);
                }
                Err((Stop::Fault { fault, .. }, lost)) if Reason::of(&fault) == Reason::SessionGone => {
                    drop(operation);
                    if let Err(errno) = self.recover(&session, lost) {
                        failed = errno;
                        break;
                    }
                }
                Err((stop, _)) => {
                    failed = stop.errno();
                    break;
                }
            }
        }
        let next = self.locks.lock().failed(id, failed);
        self.go_on(next);
    }

    fn ask_unlock(&self, ino: Ino, holder: Holder, range: Range) -> Result<(), Errno> {
        let lock = Some(said((ino, holder), range, Kind::Read, 0));
        for _ in 0..RECOVERIES_MAX {
            let session = self.session();
            let want = self.want(true);
            let operation = session.begin((Unlock::METHOD, want.anew), Instant::now() + want.longest)?;
            let make = |head| Unlock { head: Some(head), lock };
            match self.asked(&make, &want, &session, operation.head()) {
                Ok((locked, _)) if locked.outcome() != LockOutcome::Granted => return Err(Errno::ENOLCK),
                Ok((locked, from)) => {
                    let change = Change { stamp: locked.stamp, range, kind: None, pid: 0 };
                    if self.locks.lock().held.end(from, (ino, holder), Some(change)) {
                        return Ok(());
                    }
                    // The session was lost meanwhile, and came back with it.
                    drop(operation);
                    drop(self.home_at(from.node).recovering.lock());
                    drop(self.replacing.read());
                }
                Err((Stop::Fault { fault, .. }, lost)) if Reason::of(&fault) == Reason::SessionGone => {
                    drop(operation);
                    self.recover(&session, lost)?;
                }
                Err((stop, _)) => return Err(stop.errno()),
            }
        }
        Err(Errno::EIO)
    }

    fn cancel_lock(&self, id: u64) {
        let session = self.session();
        let parked = self.locks.lock().parked(id);
        // In another session it is asked again, and then not any more.
        let Some(((_, number), at)) = parked.filter(|(at, _)| at.0 == session.serial) else { return };
        let request = CancelLock { head: Some(Head { joined: at.joined, ..session.head() }), number };
        let waits = Waits::of(CANCEL_PATIENCE, CANCEL_PATIENCE);
        let line = &self.home_at(at.node).metadata;
        match asking(&request).and_then(|asking| line.ask(&asking, waits)) {
            // What became of it is told.
            Ok(_) => (),
            Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                if let Err(error) = self.recover(&session, at) {
                    tracing::debug!(%error, "a lock was not cancelled: no session");
                    self.interrupted(id);
                }
            }
            Err(stop) => {
                tracing::debug!(errno = %stop.errno(), "a lock was not cancelled: the server is away");
                self.interrupted(id);
            }
        }
    }

    /// Its program goes on. What it may get yet is given back.
    fn interrupted(&self, id: u64) {
        let next = self.locks.lock().failed(id, Errno::EINTR);
        self.go_on(next);
    }

    fn give_back_lock(&self, wish: &LockWish) {
        if let Err(error) = self.unlock(wish.ino, wish.holder, wish.range) {
            tracing::debug!(ino = wish.ino.get(), %error, "a lock that nobody waits for is given back at the close");
        }
    }

    /// Whoever has the slot, and who that was.
    fn asked<R: Request>(
        &self,
        make: &dyn Fn(Head) -> R,
        want: &Want,
        session: &Arc<Session>,
        head: Head,
    ) -> Result<(R::Answer, Source), (Stop, Source)> {
        let (answered, from) = self.ask_owner(make, want, (session, head, None), &mut Vec::new())?;
        answer::<R>(&answered).map(|answer| (answer, from)).map_err(|stop| (stop, from))
    }

    /// Of several that of each that something waits at.
    pub(crate) fn listen_from_now_on(&self) {
        if !self.has_homes() {
            self.listen_at(0);
        }
    }

    /// A thread hears what the server there tells.
    pub(crate) fn listen_at(&self, node: u64) {
        let home = self.home_at(node);
        let listening = &home.listening;
        if listening.swap(true, Ordering::AcqRel) {
            return;
        }
        let remote = self.this.clone();
        let started =
            thread::Builder::new().name("remote-listen".into()).spawn(move || listen(&remote, node));
        if let Err(error) = started {
            tracing::error!(%error, "no thread to hear of locks with: those that wait do so until a signal");
            listening.store(false, Ordering::Release);
        }
    }

    /// Whoever has what waits at this server may be another by now, and nobody could say so.
    fn ask_moved_locks(&self, node: u64) {
        if self.has_homes() {
            let moved = |ino: Ino, from: Source| from.node == node && self.node_of(ino.get()) != node;
            let again = self.locks.lock().moved(moved);
            self.ask_locks_again(again);
        }
    }

    /// Returns the number of the last that was heard.
    fn hear(&self, session: &Arc<Session>, at: Source, heard: u64) -> Result<u64, Stop> {
        let request = Listen { head: Some(Head { joined: at.joined, ..session.head() }), heard };
        let waits = Waits::of(LISTEN_PATIENCE, LISTEN_LONGEST);
        let sent = Instant::now();
        let line = &self.home_at(at.node).control;
        let told = answer::<Listen>(&line.ask(&asking(&request)?, waits)?)?;
        if !self.has_homes() {
            // One of several may answer this when another has gone on in its place.
            self.kept.lock().heard(at, sent, Instant::now());
        }
        let recalls: Vec<Recalled> = told.recalls.into_iter().filter(|one| one.number > heard).collect();
        let slots = told.slots.filter(|one| one.number > heard);
        let numbers = recalls.last().map(|one| one.number).into_iter();
        let mut last = numbers.chain(slots.as_ref().map(|one| one.number)).max().unwrap_or(heard);
        self.recalled(session, at, (&recalls, slots))?;
        for telling in told.tellings.into_iter().filter(|telling| telling.number > heard) {
            last = last.max(telling.number);
            let operation = (session.serial, telling.operation);
            let next = self.locks.lock().decided(operation, &telling.locked.unwrap_or_default(), at);
            self.go_on(next);
        }
        Ok(last)
    }
}

fn listen(remote: &Weak<Remote>, node: u64) {
    let (mut of, mut heard) = ((SessionId(0), 0), 0);
    loop {
        let Some(remote) = remote.upgrade() else { return };
        if *remote.stopping.lock() {
            return;
        }
        let session = remote.session();
        let joined = remote.joined_at(node, &session);
        // A new one comes there when it asks something.
        let Some(joined) = joined else {
            drop(remote);
            thread::sleep(LISTEN_PAUSE);
            continue;
        };
        let at = Source { node, joined };
        if (session.id, joined) != of {
            (of, heard) = ((session.id, joined), 0);
        }
        match remote.hear(&session, at, heard) {
            Ok(last) => heard = last,
            Err(stop) => {
                let gone =
                    matches!(&stop, Stop::Fault { fault, .. } if Reason::of(fault) == Reason::SessionGone);
                let gone = gone && !*remote.stopping.lock();
                let lost = match gone && remote.has_homes() {
                    true => remote.what_is_lost(&remote.home_at(node), at.joined),
                    false => Lost::All,
                };
                let made = gone && matches!(lost, Lost::All) && remote.recover(&session, at).is_ok();
                if !made {
                    remote.ask_moved_locks(node);
                    thread::sleep(LISTEN_PAUSE);
                }
            }
        }
    }
}

fn asking<R: Request>(request: &R) -> Result<Asking, Stop> {
    request.check().map_err(|bad| Stop::silent(bad.to_string()))?;
    let meta = request.encode_to_vec().into();
    Ok(Asking { method: R::METHOD, meta, body: Body::default(), answer_bytes_max: 0 })
}

fn answer<R: Request>(answered: &Answered) -> Result<R::Answer, Stop> {
    R::Answer::decode(answered.meta.as_slice()).map_err(|_| Stop::silent("an answer that makes no sense"))
}
