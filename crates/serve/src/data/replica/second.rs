//! What the other data server and the metadata server ask of an object with two copies.

use std::sync::atomic::Ordering;

use cluster::replica::copy::{Input, Sent};
use net::Incoming;
use proto::{
    Nothing,
    copies::{AskLeave, CopyDone, CopyStored, DropCopies, KnowView, Leave, REVIVED, StoreCopy, ViewKnown},
    data::{Object, Truncate},
};
use types::{Errno, Ino};

use super::{change::Change, object::Replica, registry::Job};
use crate::{
    answer::{Done, No, Outcome},
    data::DataService,
    views::{member, said_view, view},
};

impl DataService {
    /// The primary has us store something.
    pub(in crate::data) fn store_copy(&self, asked: &StoreCopy, incoming: &mut Incoming) -> Outcome {
        let object = asked.object.unwrap_or_default();
        let sent_view = view(&object.view.unwrap_or_default());
        let change = Change::of_message(asked, incoming)?;
        let replica = self.replica(&object)?.ok_or(Errno::EINVAL)?;
        let world = self.replicas.world();
        if sent_view.second.is_some_and(|second| second.member == world.me) {
            self.take_older_away(&replica, &sent_view, asked.length)?;
        }
        let key = (sent_view.since, asked.serial);
        let sent =
            Sent { view: sent_view, serial: asked.serial, range: (asked.from, asked.to), done: asked.done };
        let number = {
            let mut state = replica.state.lock();
            state.core.handle(Input::Sent(sent));
            state.pump(&world, &replica);
            state.to_store.remove(&key)
        };
        let (mut unable, mut differs) = (false, false);
        if let Some(number) = number {
            if let Change::Same { from, to, digest } = &change {
                differs = !self.is_same(&replica.object, (*from, *to), digest);
            }
            let stored = self.carry_out_change(&replica.object, &change);
            let mut state = replica.state.lock();
            match stored {
                Ok(()) if differs => state.core.handle(Input::NotStored(number)),
                Ok(()) => state.core.handle(Input::StoredHere(number)),
                Err(no) => {
                    tracing::warn!(ino = %replica.ino, errno = %no.errno(), why = no.0.detail, "a second copy is not stored");
                    (state.failed, unable) = (true, true);
                    // The next time without what was here.
                    replica.spoils.store(replica.has_older.load(Ordering::Acquire), Ordering::Release);
                }
            }
            state.pump(&world, &replica);
        }
        let mut state = replica.state.lock();
        let stored = state.said_stored.remove(&key);
        let known = state.view().filter(|known| known.number > sent_view.number);
        drop(state);
        self.replicas.is_busy(&replica);
        let nothing = differs && !replica.has_older.load(Ordering::Acquire);
        let newer = known.map(|known| said_view(&known));
        Ok(Done::new(&CopyStored { stored, unable, newer, differs, nothing }))
    }

    /// What is behind the end that the object had when we became its second is older, and so is all of it if we did not say that we kept it, but for what
    /// turns out to be the same ([`super::comparing`]). That is of one that is being made: one that counts from the beginning had nothing, and may go on alone before it hears anything of the primary. What that
    /// one sent comes late then, and takes nothing away.
    fn take_older_away(
        &self,
        replica: &Replica,
        view: &cluster::replica::View,
        length: u64,
    ) -> Result<(), No> {
        let Some(second) = view.second.filter(|second| !second.counts) else { return Ok(()) };
        let mut wiped = replica.wiped.lock();
        let is_old = replica.state.lock().number() > view.number;
        if *wiped >= second.since || is_old {
            return Ok(());
        }
        let spoils = replica.spoils.swap(false, Ordering::AcqRel);
        let has_older = !second.kept && !spoils && self.keep_what_can_be_compared(replica)?;
        replica.has_older.store(has_older, Ordering::Release);
        // Of a new file there is nothing. What was lost here of an older copy goes, too, or nothing could be stored in its place.
        let length = if second.kept || has_older { length } else { 0 };
        let goes = match second.kept || has_older {
            true => self.length_of(&replica.object)? > length,
            false => !self.is_nothing(&replica.object)?,
        };
        if goes {
            let cut = Truncate { object: Some(replica.object), size: length, grow_only: false };
            self.resize(&cut, &replica.object)?;
        }
        *wiped = second.since;
        Ok(())
    }

    pub(in crate::data) fn copy_done(&self, asked: &CopyDone) -> Outcome {
        let object = asked.object.unwrap_or_default();
        let replica = self.replica(&object)?.ok_or(Errno::EINVAL)?;
        let view = view(&object.view.unwrap_or_default());
        let mut state = replica.state.lock();
        state.core.handle(Input::Done { view, done: asked.done });
        state.pump(&self.replicas.world(), &replica);
        Ok(Done::new(&Nothing {}))
    }

    /// May the asker go on answering for what both have?
    pub(in crate::data) fn ask_leave(&self, asked: &AskLeave) -> Outcome {
        let (by, of) = (member(asked.by.unwrap_or_default()), member(asked.of.unwrap_or_default()));
        if of != self.replicas.me() {
            // An earlier life let it answer; this one knows nothing of that.
            return Err(Errno::ESTALE.into());
        }
        let mut knows: Vec<(Ino, u64)> = Vec::new();
        for object in &asked.knows {
            knows.push((proto::attr::ino(object.ino)?, object.view.unwrap_or_default().number));
        }
        let answer = match self.replicas.peers.asked(by, &knows) {
            Ok(()) => Leave { granted: true, left_out: Vec::new() },
            Err(left_out) => {
                let told = left_out.into_iter().filter_map(|ino| self.as_known(ino)).collect();
                Leave { granted: false, left_out: told }
            }
        };
        if !knows.is_empty() {
            // Who waited for that goes on.
            let _ = self.replicas.jobs.put(Job::Wake);
        }
        Ok(Done::new(&answer))
    }

    fn as_known(&self, ino: Ino) -> Option<Object> {
        let replica = self.replicas.find(ino)?;
        let view = replica.state.lock().view()?;
        Some(Object { view: Some(said_view(&view)), ..replica.object })
    }

    /// The metadata server says what the view is, and may ask whether we go on alone.
    pub(in crate::data) fn know_view(&self, asked: &KnowView) -> Outcome {
        let object = asked.object.unwrap_or_default();
        let replica = self.replica(&object)?.ok_or(Errno::EINVAL)?;
        let world = self.replicas.world();
        let number = view(&object.view.unwrap_or_default()).number;
        let lost = if asked.asks || number >> REVIVED == 0 { 0 } else { self.lost_bytes(&replica.object) };
        let mut state = replica.state.lock();
        let mut goes_on = false;
        if asked.asks && !state.failed {
            state.goes_on = None;
            state.core.handle(Input::Asked { view: number });
            state.pump(&world, &replica);
            goes_on = state.goes_on == Some(number);
        }
        Ok(Done::new(&ViewKnown {
            number: state.number(),
            goes_on,
            kept: state.core.has_kept() && !state.failed,
            life: self.replicas.life,
            lost,
        }))
    }

    /// Bytes of objects that we do not have any more go.
    pub(in crate::data) fn drop_copies(&self, asked: &DropCopies) -> Outcome {
        for object in &asked.objects {
            let replica = self.replica(object)?.ok_or(Errno::EINVAL)?;
            let me = self.replicas.me();
            let mut state = replica.state.lock();
            if state.view().is_some_and(|view| view.has(me)) {
                continue;
            }
            // First: from now on it says that it has kept nothing.
            state.core.handle(Input::Dropped);
            state.pump(&self.replicas.world(), &replica);
            drop(state);
            self.remove_held(replica.ino)?;
        }
        Ok(Done::new(&Nothing {}))
    }
}
