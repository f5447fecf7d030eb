//! Writes that are kept back where there are several metadata servers.
//!
//! - I-BACK-8: nothing is kept back before each metadata server, wherever the file's slot may go, was told a moment ago that this session may do so.
//! - I-BACK-9: who took a slot without what sessions had in it is told what we have there when nothing is kept back in it any more. What was is sent in his
//!   name, if he knew of us all the time: then he had everybody else wait.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use proto::{Head, control};
use types::{Errno, Ino, Slot};
use wire::frame::Body;

use crate::{
    Remote, finding::ask_line, held::Source, homes::Home, keeping_back::PAUSE, line::Waits, session::Session,
};

/// What was said is said again after so long: a server gives up who says nothing for longer.
const SAY_AGAIN: Duration = Duration::from_secs(5);
/// One that does not answer: nothing is kept back meanwhile.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// So long, or for two renewals, is tried to send what was kept back in a slot that somebody took: others wait for it, and who says nothing for six is given up.
const BRING_MAX: Duration = Duration::from_secs(5);

impl Remote {
    /// Do all metadata servers know that this session may keep writes back?
    pub(crate) fn all_know_of_writes(&self, session: &Session) -> bool {
        if !self.has_homes() {
            return true;
        }
        let homes: Vec<Arc<Home>> =
            self.nodes.metadata_servers().iter().map(|owner| self.homes.of(owner)).collect();
        let knows = |home: &Home| {
            let joined = home.joined_as(session.id);
            let since = joined.and_then(|joined| home.knows_of_writes(session.id, joined));
            since.is_some_and(|since| since.elapsed() < SAY_AGAIN)
        };
        if homes.iter().all(|home| knows(home)) {
            return !homes.is_empty();
        }
        // One says it for all, and for those that do not answer it is not tried all the time.
        let Some(mut untold) = self.backlog.untold.try_lock() else { return false };
        if untold.is_some_and(|at| at.elapsed() < SAY_AGAIN) {
            return false;
        }
        let all = homes.iter().all(|home| knows(home) || self.say_that_we_write(home, session));
        *untold = (!all).then(Instant::now);
        all
    }

    fn say_that_we_write(&self, home: &Home, session: &Session) -> bool {
        let Ok(joined) = self.join_at(home, session) else { return false };
        let head = Some(Head { joined, ..session.head() });
        let renew = control::Renew { head, node: Some(self.own_node()), writes: true };
        let sent = Instant::now();
        let told = ask_line(&home.control, &renew, Body::default(), Waits::of(ANSWER_WAIT, ANSWER_WAIT));
        let knows = told.is_ok_and(|(answer, _)| answer.writes);
        if knows {
            *home.writes.lock() = Some((session.id, joined, sent));
        }
        knows
    }

    /// Nothing is kept back in slots that this server took, to which the session came as that: what was is at its data servers, or lost.
    pub(crate) fn send_back_there(
        &self,
        home: &Home,
        (session, joined): (&Session, u64),
        slots: &BTreeSet<Slot>,
    ) {
        let Some(back) = &self.backlog.back else { return };
        // Nor by an answer of before that comes now.
        self.kept.lock().recalled_slots(slots, |dir, name| self.spreads.place(dir, name));
        let there = |ino: Ino| slots.contains(&ino.ugsd().slot());
        let files = back.lock().stop_some(there);
        let knew_of_us = home.knows_of_writes(session.id, joined).is_some();
        let end = Instant::now() + self.bring_max();
        for ino in files {
            if knew_of_us {
                back.lock().rename(ino, Source { node: home.node, joined });
            }
            loop {
                let left = end.saturating_duration_since(Instant::now()).max(PAUSE);
                match self.send_as_it_is(ino, Waits::of(left, left)) {
                    Ok(()) => break,
                    Err(error) if Instant::now() + PAUSE >= end => {
                        self.lose_back_within(ino, error, PAUSE);
                        break;
                    }
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        }
    }

    pub(crate) fn bring_max(&self) -> Duration {
        BRING_MAX.max(2 * self.renew_every())
    }

    /// What is kept back of the file, to where it was known to be: no metadata server is asked.
    pub(crate) fn send_as_it_is(&self, ino: Ino, waits: Waits) -> Result<(), Errno> {
        let Some(back) = &self.backlog.back else { return Ok(()) };
        let Some((until, through)) = back.lock().until_now(ino) else { return Ok(()) };
        let file = self.openings.get(through).ok_or(Errno::EIO)?;
        let placed = file.placed.lock().clone().ok_or(Errno::EIO)?;
        self.send_until(&file, &placed, until, waits)
    }
}
