//! Sessions: the first one, one that comes back, and one in place of one that is gone.
//!
//! A session is gone when a metadata server was started again, or has heard nothing of it for too long. To a server that was started again it comes
//! back, with its locks; the references that it has there are taken again and the files opened again by their numbers; a file that is no more cannot
//! be, and its openings give errors. Where a server gave it up, or refuses its locks, a new one is made at all of them, and all locks are lost, and the
//! openings with them: of several servers the others hear that the lost one is over.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use lease::coherence::message::Life;
use proto::{
    Head, Reason, SessionId,
    control::{self, Mounted},
    metadata,
};
use types::Errno;

use crate::{
    Remote,
    duty::{PAUSE_LONGEST, SLICE},
    held::Source,
    homes::{Came, FIRST_PAUSE, Home},
    line::{Stop, Waits, ask_at},
    nodes::Own,
    routing::Coming,
    session::Session,
    written,
};

/// Of telling a server that a lost session is over.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);

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

    /// One that has nothing anywhere, and where it was made.
    pub(crate) fn new_session(&self, life: u32) -> Result<(Arc<Session>, Source), Stop> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| Stop::silent(error.to_string()))?;
        // 0 is none.
        let id = SessionId(u128::from_le_bytes(random).max(1));
        let written = self.options.estate.as_deref().and_then(written::session);
        let serial = written.map_or(0, |(_, serial)| serial).max(self.session().serial) + 1;
        let (home, mounted) = self.mount_on_duty((id, serial), life)?;
        Ok((self.session_of((id, serial), &mounted), Source { node: home.node, joined: mounted.joined }))
    }

    fn session_of(&self, (id, serial): (SessionId, u64), mounted: &Mounted) -> Arc<Session> {
        self.set_renew(mounted.renew_ms);
        let Mounted { joined, incarnation, operations_max, .. } = *mounted;
        let session = Session::new((id, serial), joined, incarnation, operations_max);
        Arc::new(session.guarded(self.options.estate.as_ref(), &self.session()))
    }

    /// Another process may go on with it. `fresh`: not all files are opened in it yet.
    pub(crate) fn write_down_session(&self, session: &Session, fresh: bool) {
        if let Some(estate) = &self.options.estate {
            written::set_session(estate, (session.id, session.serial), fresh);
        }
    }

    /// The one that another process had, or one in its place if it was given up meanwhile.
    pub(crate) fn resume_session(&self, id: SessionId, serial: u64, life: u32) -> Result<Arc<Session>, Stop> {
        let mounted = match self.mount_on_duty((id, serial), 0) {
            Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                return self.session_in_place_of(id, life);
            }
            mounted => mounted?.1,
        };
        let session = self.session_of((id, serial), &mounted);
        self.keep_left_open(&session);
        Ok(session)
    }

    /// Its files are opened later, and its locks are lost.
    fn session_in_place_of(&self, gone: SessionId, life: u32) -> Result<Arc<Session>, Stop> {
        tracing::warn!(session = %gone, "the session was given up while nobody served; a new one is made, and locks are lost");
        let (session, at) = self.new_session(life)?;
        self.locks.lock().begin_anew(at);
        let held = self.hold_all(&session, None, &|_| true);
        held.map_err(|errno| Stop::silent(format!("what the kernel refers to: {errno}")))?;
        self.write_down_session(&session, true);
        self.leave_soon(gone);
        Ok(session)
    }

    /// Whoever that is meanwhile.
    fn mount_on_duty(&self, (id, serial): (SessionId, u64), life: u32) -> Result<(Arc<Home>, Mounted), Stop> {
        let patience = self.metadata_patience();
        let (mut pause, end) = (FIRST_PAUSE, Instant::now() + patience);
        // Of several another may be on duty than a moment ago.
        let (slice, life) = if self.has_homes() { (SLICE, 0) } else { (patience, life) };
        let waits = Waits { able: patience, ..Waits::of(slice, patience) };
        loop {
            let home = self.duty();
            let to = Coming { id, node: home.node, life, before: 0 };
            match self.mount_at(&home.control, to, &[], waits) {
                Err(Stop::Silent { .. }) if self.has_homes() && Instant::now() + pause < end => {
                    self.fetch_map();
                    thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_LONGEST);
                }
                Err(stop) => return Err(stop),
                Ok(mounted) => {
                    let (joined, incarnation) = (mounted.joined, mounted.incarnation);
                    *home.joined.lock() = Some(Came { id, serial, joined, incarnation });
                    return Ok((home, mounted));
                }
            }
        }
    }

    /// For people.
    pub(crate) fn host(&self) -> String {
        self.options.host.chars().filter(|c| !c.is_control()).take(16).collect()
    }

    /// As it is seen now; 0: none.
    pub(crate) fn own_node(&self) -> u64 {
        self.own().takes
    }

    pub(crate) fn own(&self) -> Own {
        self.nodes.own(self.options.own_node, &self.options.host)
    }

    /// Makes `gone` whole again, which `lost` does not know any more, unless somebody did.
    pub(crate) fn recover(&self, gone: &Arc<Session>, lost: Source) -> Result<(), Errno> {
        let home = self.home_at(lost.node);
        // At another it may come back at the same time.
        let _one = home.recovering.lock();
        home.is_there();
        let replacing = self.replacing.read();
        if !Arc::ptr_eq(&self.session(), gone) {
            return Ok(());
        }
        // Before the server takes us for somebody who keeps nothing.
        self.kept.lock().clear();
        self.caching.clear();
        let known = self.joined_at(lost.node, gone);
        if lost.joined != 0 && known != Some(lost.joined) {
            return Ok(());
        }
        self.save_back(self.has_homes().then_some(lost.node));
        // Whom it came to for the first time has given it up, and so has who did not begin a new life since.
        if lost.joined != 0 && self.come_back(gone, lost)? {
            return Ok(());
        }
        drop(replacing);
        let _alone = self.replacing.write();
        if !Arc::ptr_eq(&self.session(), gone) {
            return Ok(());
        }
        self.begin_again(gone)
    }

    /// The same session, with its locks, at a server that was started again. False: it was given up, or comes too late.
    fn come_back(&self, gone: &Arc<Session>, lost: Source) -> Result<bool, Errno> {
        let (home, patience) = (self.home_at(lost.node), self.options.patience);
        let life = if self.has_homes() {
            ask_at(&home.control, &control::Hello {}, patience).map(|(facts, _)| facts.life)
        } else {
            self.fetch_facts()
        };
        let life = life.map_err(|stop| stop.errno())?;
        if Life::of(lost.joined) >= Life(life) {
            return Ok(false);
        }
        let had = self.locks.lock().held.leave(lost.node, gone.id);
        let to = Coming { id: gone.id, node: lost.node, life, before: lost.joined };
        let Mounted { joined, incarnation, .. } =
            match self.mount_at(&home.control, to, &had, Waits::of(patience, patience)) {
                Ok(mounted) => mounted,
                Err(Stop::Fault { fault, .. }) if Reason::of(&fault) == Reason::SessionGone => {
                    return Ok(false);
                }
                Err(stop) => return Err(stop.errno()),
            };
        let at = Source { node: lost.node, joined };
        let came = Came { id: gone.id, serial: gone.serial, joined, incarnation };
        // It is renewed meanwhile: some of its slots may be nobody's for long.
        let _comes = home.comes(came);
        let session = if self.has_homes() { gone.clone() } else { Arc::new(gone.again(joined, incarnation)) };
        // Whose its slots are now. If nobody says, all is said again to whoever it is said to be.
        let known = !self.has_homes() || self.fetch_map_from(&home.control, patience);
        let which = |ino: u64| !known || self.node_of(ino) == at.node;
        self.hold_all(&session, Some(at), &which)?;
        let lost = self.open_again(&session, Some(at), &which)?;
        tracing::warn!(session = %session.id, node = at.node, locks = had.len(), lost, "a session has come back; openings that are lost give EIO");
        // From now on writes begin anew.
        let again = {
            let mut current = self.session.write();
            let mut there = home.joined.lock();
            home.losses.fetch_add(1, Ordering::AcqRel);
            self.recoveries.fetch_add(1, Ordering::AcqRel);
            let again = self.locks.lock().come_back(at);
            *there = Some(came);
            *current = session;
            again
        };
        self.kept.lock().clear();
        self.caching.clear();
        self.ask_locks_again(again);
        Ok(true)
    }

    /// Makes a session in place of `gone`, whose locks are lost, wherever they were.
    fn begin_again(&self, gone: &Arc<Session>) -> Result<(), Errno> {
        tracing::warn!(session = %gone.id, "the session is gone; a new one is made");
        self.save_back(None);
        let life = self.fetch_facts().map_err(|stop| stop.errno())?;
        let mut unlocked = self.locks.lock().held.lose();
        unlocked.extend(self.lose_users());
        // Before the new session is written down, with which another process may go on.
        let unlocked = self.lose_unlocked(&unlocked);
        let (session, at) = self.new_session(life).map_err(|stop| stop.errno())?;
        self.hold_all(&session, None, &|_| true)?;
        let lost = self.open_again(&session, None, &|_| true)? + unlocked;
        self.write_down_session(&session, !self.has_taken_over());
        tracing::warn!(session = %session.id, lost, "a new session; openings that are lost give EIO");
        let again = {
            let mut current = self.session.write();
            // From now on writes begin anew.
            self.recoveries.fetch_add(1, Ordering::AcqRel);
            let again = self.locks.lock().begin_anew(at);
            self.kept.lock().clear();
            self.caching.clear();
            *current = session;
            again
        };
        self.ask_locks_again(again);
        // What was kept back meanwhile under a right of the lost session, which other servers know for as long as it has not left.
        self.save_back(None);
        self.leave_soon(gone.id);
        Ok(())
    }

    /// What a session that nobody uses any more has at other servers is not waited for.
    fn leave_soon(&self, id: SessionId) {
        let Some(this) = self.this.upgrade().filter(|this| this.has_homes()) else { return };
        self.pool.defer(move || {
            let bye = control::Unmount { head: Some(Head::of(id)) };
            for home in this.homes.all() {
                if let Err(stop) = ask_at(&home.control, &bye, LEAVE_PATIENCE) {
                    tracing::debug!(errno = %stop.errno(), "a lost session was not ended: the server gives it up later");
                }
            }
        });
    }

    /// Who believes in a lock that somebody else may have must not go on as if he had it.
    fn lose_unlocked(&self, handles: &BTreeSet<u64>) -> u64 {
        let mut lost = 0;
        for file in handles.iter().filter_map(|handle| self.openings.get(*handle)) {
            tracing::warn!(ino = file.ino.get(), "the locks of an open file are lost with the session");
            lost += u64::from(self.openings.set_unlocked(&file));
        }
        lost
    }

    /// Those of `which`. How many are lost.
    fn open_again(
        &self,
        session: &Arc<Session>,
        coming: Option<Source>,
        which: &dyn Fn(u64) -> bool,
    ) -> Result<u64, Errno> {
        let mut lost = 0;
        for file in self.openings.all().into_iter().filter(|file| which(file.ino.get())) {
            let open = |head| metadata::Open {
                head: Some(head),
                ino: file.ino.get(),
                opening: file.number,
                write: file.access.write,
                keep: false,
                // A new session had nothing: it waits for what others kept back while the lost one was given up.
                again: coming.is_some(),
            };
            match self.ask_in(session, coming, open) {
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
