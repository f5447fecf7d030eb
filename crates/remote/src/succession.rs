//! One process after the other under one guarded mount of a cluster: the next one goes on with the session, its openings, references and locks.
//!
//! - I-SUCC-1: what the kernel is told of (a reference, an opening) is written down before, and an opening is struck when the server knows that it
//!   is closed.
//! - I-SUCC-2: an operation that a request of the kernel's asked for has its number noted before it is sent, and the number is open until the kernel
//!   has its answer: the same request, sent again by the kernel to the next process, is asked again under that number.
//! - I-SUCC-3: who is written down as having a lock, and of whom no server knows one, has lost it and gets `EIO`. He is written down as such before his
//!   program hears of the lock, and no more before a server is asked to give it up.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use fuse::Header;
use handover::{Estate, Place, Scope};
use lease::coherence::locks::{Class, HadLock};
use proto::{
    closing::Closing,
    control::Mounted,
    locks::{HadLocks, LockClass},
    metadata,
};
use types::{Errno, Ino};

use crate::{
    Remote,
    closes::ToClose,
    held::{Holder, Source},
    inherited::{User, Written},
    keys::inode,
    names::attr_of,
    openings::OpenFile,
    session, written,
};

/// After this long the kernel has sent again all that it sends again.
const SENT_AGAIN: Duration = Duration::from_secs(2);

/// While it lives, this thread carries out a request of the kernel's.
pub(crate) struct Carrying<'a> {
    scope: Option<Scope>,
    remote: &'a Remote,
    again: Option<u64>,
}

impl Drop for Carrying<'_> {
    fn drop(&mut self) {
        drop(self.scope.take());
        session::answered();
        self.remote.openings.answered();
        if let Some(unique) = self.again {
            self.remote.left_is_answered(unique);
        }
    }
}

/// In the word of a user's class: he has a lock.
const HAS: u64 = 1 << 8;

fn user_word(holder: Holder, has: bool) -> u64 {
    LockClass::from(holder.class) as u64 | if has { HAS } else { 0 }
}

fn class_of(word: u64) -> Option<Class> {
    i32::try_from(word & !HAS).ok().and_then(|number| LockClass::try_from(number).ok()).map(Class::from)
}

impl Remote {
    fn estate(&self) -> Option<&Arc<Estate>> {
        self.options.estate.as_ref()
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.options.estate.is_some()
    }

    /// What an earlier process did for the request that the kernel does not know of is undone.
    pub(crate) fn carry_out(&self, header: &Header) -> Option<Carrying<'_>> {
        let scope = self.estate()?.calls.enter(header.unique, &mut |node| self.references.forget(node, 1));
        written::begin_request();
        let again = Scope::comes_again().then(|| scope.unique());
        if let Some(unique) = again {
            tracing::debug!(unique, opcode = header.opcode, "a request came again");
        }
        Some(Carrying { scope: Some(scope), remote: self, again })
    }

    /// A request was read; if it comes again the number of its operation stays open until it is answered.
    pub(crate) fn comes_again(&self, unique: u64) {
        if !self.is_guarded() || !Scope::is_again(unique) {
            return;
        }
        let unique = Scope::number_of(unique);
        let mut left = self.succession.left.lock();
        if let Some(number) = left.numbers.remove(&unique) {
            // Of those that are looked at when the time is over it is none any more.
            left.numbers.insert(unique | SEEN, number);
        }
    }

    fn left_is_answered(&self, unique: u64) {
        let number = self.succession.left.lock().numbers.remove(&(unique | SEEN));
        number.into_iter().for_each(|number| self.session().close(number));
    }

    /// What the kernel did not send again it has an answer to. False: it may come yet.
    fn close_left(&self) -> bool {
        let mut left = self.succession.left.lock();
        match left.until {
            Some(until) if Instant::now() < until => return false,
            Some(_) => left.until = None,
            None => return true,
        }
        let unseen: Vec<u64> = left.numbers.keys().copied().filter(|unique| unique & SEEN == 0).collect();
        let numbers: Vec<u64> = unseen.iter().filter_map(|unique| left.numbers.remove(unique)).collect();
        drop(left);
        let session = self.session();
        numbers.into_iter().for_each(|number| session.close(number));
        true
    }

    /// Whether he has a lock that was taken through one of his openings.
    pub(crate) fn set_user(&self, ino: Ino, holder: Holder, has: bool) {
        let Some(estate) = self.estate() else { return };
        let mut users = self.succession.users.lock();
        let his = users.iter_mut().filter(|((of, by, _), _)| (*of, *by) == (ino, holder));
        his.for_each(|(_, written)| {
            written.has = has;
            estate.backings.set(written.place, 2, user_word(holder, has));
        });
    }

    /// He was given a lock, or was not, or gave one up.
    pub(crate) fn settle_user(&self, ino: Ino, holder: Holder) {
        if !self.is_guarded() {
            return;
        }
        let (has, is_user) = {
            let locks = self.locks.lock();
            (locks.held.has(ino, holder), locks.held.is_user(ino, holder))
        };
        match (has, is_user) {
            (true, _) => self.set_user(ino, holder, true),
            (false, true) => {}
            (false, false) => self.strike_users(|(of, by, _)| (*of, *by) == (ino, holder)),
        }
    }

    /// Before a lock is asked for.
    pub(crate) fn write_down_user(&self, (ino, holder, handle): User) {
        let Some(estate) = self.estate() else { return };
        let mut users = self.succession.users.lock();
        if users.contains_key(&(ino, holder, handle)) {
            return;
        }
        match estate.backings.add([ino.get(), holder.id, user_word(holder, false), handle]) {
            Some(place) => drop(users.insert((ino, holder, handle), Written { place, has: false })),
            None => estate.set_incomplete(),
        }
    }

    /// They have no lock any more that was taken through it.
    pub(crate) fn strike_users(&self, is_one: impl Fn(&User) -> bool) {
        let Some(estate) = self.estate() else { return };
        let mut users = self.succession.users.lock();
        users
            .extract_if(|user, _| is_one(user))
            .for_each(|(_, written)| estate.backings.remove(written.place));
    }

    /// What is written down holds from now on. Before the session is there.
    pub(crate) fn take_over_records(&self) {
        let Some(estate) = self.estate() else { return };
        if self.openings.estate.set(estate.clone()).is_err() {
            tracing::error!("openings are written down already");
        }
        self.openings.outstanding.take_over(estate);
        self.references.keep(estate);
        let mut users = self.succession.users.lock();
        for (place, [node, id, word, handle]) in estate.backings.records() {
            let Some((ino, class)) = Ino::from_raw(node).zip(class_of(word)) else { continue };
            users.insert((ino, Holder { class, id }, handle), Written { place, has: word & HAS != 0 });
        }
    }

    /// Is this server to say what the session has there?
    pub(crate) fn resumes_at(&self, node: u64) -> bool {
        self.options.resumes && !self.succession.asked.lock().contains(&node)
    }

    /// It said so.
    pub(crate) fn resumed_at(&self, at: Source, mounted: &Mounted, body: &[u8]) {
        if !self.succession.asked.lock().insert(at.node) {
            return;
        }
        let session = self.estate().and_then(|estate| written::session(estate));
        let locks = HadLocks::read(body).ok().filter(|_| mounted.was_here).zip(session);
        let locks: Vec<HadLock> = locks.map_or_else(Vec::new, |(locks, (id, _))| {
            locks.locks.iter().filter_map(|lock| HadLock::said(id, lock).ok()).collect()
        });
        let holder = |lock: &HadLock| Holder { class: lock.owner.class, id: lock.owner.id };
        self.succession.have.lock().extend(locks.iter().map(|lock| (lock.ino, holder(lock))));
        let users = self.users_at(at.node);
        self.locks.lock().held.resume(at, &locks, &users);
        if self.succession.looked.load(Ordering::Acquire) {
            self.look_for_lost_locks(&|node| node == at.node);
        }
    }

    fn users_at(&self, node: u64) -> Vec<User> {
        let users = self.succession.users.lock();
        users.keys().filter(|(ino, ..)| self.node_of(ino.get()) == node).copied().collect()
    }

    pub(crate) fn has_taken_over(&self) -> bool {
        self.succession.looked.load(Ordering::Acquire)
    }

    /// The session is lost: through which openings somebody had a lock.
    pub(crate) fn lose_users(&self) -> Vec<u64> {
        self.succession.have.lock().clear();
        let users = self.succession.users.lock();
        users.iter().filter(|(_, written)| written.has).map(|((.., handle), _)| *handle).collect()
    }

    /// Those who are written down as having a lock, and of whom no server knows one.
    fn look_for_lost_locks(&self, at: &dyn Fn(u64) -> bool) {
        let has = |(user, written): (&User, &Written)| written.has.then_some(*user);
        let users: Vec<User> = self.succession.users.lock().iter().filter_map(has).collect();
        for (ino, holder, handle) in users {
            if !at(self.node_of(ino.get())) || self.succession.have.lock().contains(&(ino, holder)) {
                continue;
            }
            tracing::warn!(
                ino = ino.get(),
                "a lock that the process before had is known to no server: what was opened with it gives EIO"
            );
            if let Some(file) = self.openings.get(handle) {
                self.openings.set_unlocked(&file);
            }
        }
    }

    /// All servers are to say what the session has there. Those that do not answer.
    fn ask_all(&self) -> BTreeSet<u64> {
        let mut silent = BTreeSet::new();
        if self.has_homes() {
            let session = self.session();
            for owner in self.nodes.owners() {
                if let Err(stop) = self.join_at(&self.homes.of(&owner), &session) {
                    tracing::warn!(node = owner.node, errno = %stop.errno(), "a server does not say yet what the process before had there");
                    silent.insert(owner.node);
                }
            }
        }
        silent
    }

    /// Before the first request of the kernel's.
    pub(crate) fn take_over(&self) -> Result<(), Errno> {
        let Some(estate) = self.estate().cloned() else { return Ok(()) };
        if estate.is_incomplete() {
            tracing::error!(
                "more was open or known than the guardian has room for: nobody can go on from there"
            );
            return Err(Errno::EOVERFLOW);
        }
        let mut open = 0;
        for (place, [handle, node, opening, made_by]) in estate.handles.records() {
            let ino = Ino::from_raw(node).ok_or(Errno::EIO)?;
            if made_by == written::CLOSED {
                let closing = Closing { opening: handle, ino: node, atime: None };
                self.close_soon(ToClose { closing, write: false, place: Some(place) });
                continue;
            }
            self.open_again_as(ino, handle, (opening, place));
            open += 1;
        }
        let silent = self.ask_all();
        self.look_for_lost_locks(&|node| !silent.contains(&node));
        self.succession.looked.store(true, Ordering::Release);
        written::set_opened(&estate);
        let left = {
            let mut left = self.succession.left.lock();
            left.until = Some(Instant::now() + SENT_AGAIN);
            left.numbers.len()
        };
        // Not by a thread that asks for anything: while a number is open no more are given out than servers keep answers of.
        let this = self.this.upgrade().ok_or(Errno::EIO)?;
        this.begin_to_keep("remote-left", keep_left).map_err(|_| Errno::EAGAIN)?;
        tracing::info!(open, left, known = self.references.len(), "taken over from the process before");
        Ok(())
    }

    /// The numbers of what was asked and not answered.
    pub(crate) fn keep_left_open(&self, session: &session::Session) {
        let Some(estate) = self.estate() else { return };
        let mut left = self.succession.left.lock();
        for (unique, note) in estate.calls.left_notes() {
            // Those of a session that is lost are not asked again.
            if let Some((number, serial)) = written::Note::read(note)
                && serial == session.serial as u8
            {
                session.left_open(number);
                left.numbers.insert(unique, number);
            }
        }
    }

    fn open_again_as(&self, ino: Ino, number: u64, (opening, place): (u64, Place)) {
        let access = written::access(opening);
        if access.write {
            self.begin_change(&[inode(ino)]);
        }
        // A new session had nothing: it waits for what others kept back while the lost one was given up.
        let again = !self.estate().is_some_and(|estate| written::is_fresh(estate));
        let open = |head| {
            let (head, write) = (Some(head), access.write);
            metadata::Open { head, ino: ino.get(), opening: number, write, keep: false, again }
        };
        let opened = self.ask(open, self.want_anew()).and_then(|(opened, _)| attr_of(opened.attr));
        let file = match &opened {
            Ok(attr) => self.found_again(attr, number, access),
            Err(errno) => {
                tracing::warn!(ino = ino.get(), %errno, "an open file is lost: the process before had it open");
                let file = self.unknown(ino, (number, 0), access);
                file.lost.store(true, Ordering::Release);
                file
            }
        };
        let _ = file.place.set(place);
        let written::Standing { late, unlocked } = written::standing(opening);
        file.unlocked.store(unlocked, Ordering::Release);
        *file.late_error.lock() = late.then_some(Errno::EIO);
        let _: Arc<OpenFile> = self.openings.insert(file);
    }
}

fn keep_left(remote: &Weak<Remote>) {
    while let Some(remote) = remote.upgrade() {
        if remote.pause() || remote.close_left() {
            return;
        }
    }
}

/// In the number of a left request that was read again.
const SEEN: u64 = 1 << 63;
