//! What the mount has in slots whose new owner was not told: it says so itself, before anything else of it is carried out there.
//!
//! The session stays, and so do the numbers of its operations: what the new owner knows of answers it gives again.

use std::{collections::BTreeSet, sync::Arc, sync::atomic::Ordering};

use lease::coherence::locks::HadLock;
use prost::Message;
use proto::{
    BATCH_MAX, Head, SessionId,
    locks::{HadLocks, HeldLock},
    metadata::{Hold, Open},
    owners::{Bare, BareSlots},
};
use types::{Ino, Slot};
use wire::frame::Body;

use crate::{
    Remote,
    finding::ask_line,
    homes::Home,
    line::{Stop, Waits},
    openings::OpenFile,
    routing::Recovering,
    session::Session,
};

impl Remote {
    /// All that we have in slots that this server took without it is the session's there.
    pub(crate) fn bring(
        &self,
        home: &Home,
        session: &Arc<Session>,
        recovering: Option<Recovering>,
    ) -> Result<(), Stop> {
        // Who makes another session in place of ours has this lock, and a session that is not the mount's yet.
        let _ours = recovering.is_none().then(|| self.replacing.read());
        let _one = home.bringing.lock();
        if recovering.is_none() && !Arc::ptr_eq(&self.session(), session) {
            return Err(Stop::Fault { fault: Box::new(proto::fault::session_gone()), again: true });
        }
        let coming = recovering.and_then(|recovering| recovering.0).filter(|at| at.node == home.node);
        let joined = match coming {
            Some(at) => at.joined,
            None => self.join_at(home, session)?,
        };
        // One in place of a lost one had nothing there.
        let again = recovering.is_none_or(|recovering| recovering.0.is_some());
        let head = Head { joined, ..session.head() };
        let patience = self.options.patience;
        let waits = Waits::of(patience, patience);
        let (mut locks, mut all) = (Vec::new(), BTreeSet::new());
        let mut brought = home.brought(session.id, joined);
        loop {
            let bare = Bare { head: Some(head), brought, stamp: self.locks.lock().held.stamp() };
            let body = Body::new(HadLocks { locks: std::mem::take(&mut locks) }.encode_to_vec());
            let (BareSlots { number, slots }, _) = ask_line(&home.control, &bare, body, waits)?;
            if slots.is_empty() {
                // What waited at whoever had them waits no more.
                let again = self.locks.lock().moved(|ino, _| all.contains(&ino.ugsd().slot().get()));
                self.ask_locks_again(again);
                *home.brought.lock() = Some((session.id, joined, number));
                return Ok(());
            }
            let slots: BTreeSet<u16> = proto::owners::slots(&slots).into_iter().collect();
            let there = |ino: Ino| slots.contains(&ino.ugsd().slot().get());
            self.send_back_there(
                home,
                (session, joined),
                &slots.iter().filter_map(|n| Slot::new(*n)).collect(),
            );
            let had = (self.hold_at(home, head, &there)?, self.open_at(home, head, &there, again)?);
            locks = self.locks_there(session.id, &there);
            all.extend(slots.iter().copied());
            tracing::info!(
                slots = slots.len(),
                references = had.0,
                openings = had.1,
                locks = locks.len(),
                "a new owner was told what we have"
            );
            brought = number;
        }
    }

    fn locks_there(&self, session: SessionId, there: &dyn Fn(Ino) -> bool) -> Vec<HeldLock> {
        let had = self.locks.lock().held.had(session);
        had.iter().filter(|lock| there(lock.ino)).map(HadLock::to_say).collect()
    }

    fn hold_at(&self, home: &Home, head: Head, there: &dyn Fn(Ino) -> bool) -> Result<usize, Stop> {
        let references = self.references.all_of(there);
        for some in references.chunks(BATCH_MAX) {
            let hold = Hold { head: Some(head), references: some.to_vec() };
            ask_line(&home.metadata, &hold, Body::default(), self.waits())?;
        }
        Ok(references.len())
    }

    fn open_at(
        &self,
        home: &Home,
        head: Head,
        there: &dyn Fn(Ino) -> bool,
        again: bool,
    ) -> Result<usize, Stop> {
        let files: Vec<Arc<OpenFile>> =
            self.openings.all().into_iter().filter(|file| there(file.ino)).collect();
        for file in &files {
            let (ino, opening) = (file.ino.get(), file.number);
            let write = file.access.write;
            let open = Open { head: Some(head), ino, opening, write, keep: false, again };
            match ask_line(&home.metadata, &open, Body::default(), self.waits()) {
                Ok(_) => file.lost.store(false, Ordering::Release),
                Err(stop @ Stop::Silent { .. }) => return Err(stop),
                // Also one whose data server is away: it must not keep the others from going on.
                Err(stop) => {
                    tracing::warn!(ino, errno = %stop.errno(), "an open file is lost with its metadata server");
                    file.lost.store(true, Ordering::Release);
                }
            }
            // Its writing begins anew there.
            file.begun.store(0, Ordering::Release);
        }
        Ok(files.len())
    }
}
