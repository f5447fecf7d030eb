//! What clients and the metadata server ask of an object with two copies.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use cluster::replica::copy::{END, Input, Range};
use net::Incoming;
use parking_lot::MutexGuard;
use proto::{Bad, Nothing, data as asked};
use types::Errno;
use wire::{handshake::Roles, schema::Retry};

use super::{
    change::Change,
    object::{At, Replica, State},
};
use crate::{
    answer::{Done, No, Outcome},
    data::{DataService, admission::Asker},
    views::said_view,
};

/// A thread waits so long for the other data server; then whoever asked comes again.
const WAIT: Duration = Duration::from_millis(300);

fn later() -> No {
    let mut no = No::later("the other data server that has the object is waited for");
    no.0.after_ms = 50;
    no
}

impl DataService {
    /// Who is to be asked instead.
    fn elsewhere(&self, state: &State) -> No {
        let me = self.replicas.me();
        let is_second = state.view().is_some_and(|view| view.counts(me) && view.primary != me);
        No(Box::new(if is_second { proto::fault::ask_primary() } else { proto::fault::other_view() }))
    }

    fn primary_of(&self, replica: &Replica) -> Result<cluster::replica::View, No> {
        let state = replica.state.lock();
        let view = state.view().filter(|view| view.primary == self.replicas.me());
        view.ok_or_else(|| self.elsewhere(&state))
    }

    /// Has both do it.
    fn change(
        &self,
        replica: &Arc<Replica>,
        change: Change,
        asker: Asker,
        deadline: Instant,
    ) -> Result<(), No> {
        let admitted = self.admit(asker, replica.ino)?;
        self.refuse_lost(replica, &change)?;
        let mut state = replica.state.lock();
        let call = match state.left_by(&change, asker) {
            Some(call) => call,
            None => state.write(Arc::new(change), asker),
        };
        if let Some(there) = state.calls.get_mut(&call).filter(|there| there.admitted.is_none()) {
            there.admitted = admitted;
        }
        state.pump(&self.replicas.world(), replica);
        self.replicas.is_busy(replica);
        let until = deadline.min(Instant::now() + WAIT);
        loop {
            let at = state.calls.get(&call).map(|there| there.at.clone());
            match at {
                Some(At::Store(number)) => {
                    let Some((_, change)) = state.begin_storing(call) else { continue };
                    let stored =
                        MutexGuard::unlocked(&mut state, || self.carry_out_change(&replica.object, &change));
                    state.end_storing(call, number, stored);
                    state.pump(&self.replicas.world(), replica);
                }
                Some(At::Done(done)) => {
                    state.calls.remove(&call);
                    return done;
                }
                Some(At::Elsewhere | At::Show) | None => {
                    state.calls.remove(&call);
                    return Err(self.elsewhere(&state));
                }
                Some(At::Waits | At::Storing | At::Failed { .. }) => {
                    if !state.outbox.is_empty() {
                        MutexGuard::unlocked(&mut state, || self.flush(replica));
                    } else if replica.changed.wait_until(&mut state, until).timed_out() {
                        return Err(self.leave_call(&mut state, call));
                    }
                }
            }
        }
    }

    /// Nobody waits for it any more. What has begun goes on (I-TWO-3).
    fn leave_call(&self, state: &mut State, call: u64) -> No {
        let is_to_store = state.calls.get(&call).is_some_and(|there| matches!(there.at, At::Store(_)));
        if state.core.is_under_way(call)
            || state.calls.get(&call).is_some_and(|there| !matches!(there.at, At::Waits))
        {
            if let Some(there) = state.calls.get_mut(&call) {
                there.waited = false;
            }
            if is_to_store {
                state.outbox.push(super::object::Out::Store(call));
            }
        } else {
            state.core.handle(Input::Cancel(call));
            state.calls.remove(&call);
        }
        later()
    }

    /// What `read` comes to, if the bytes in the range may be shown.
    fn shown<R>(
        &self,
        replica: &Arc<Replica>,
        deadline: Instant,
        asked: Range,
        read: impl Fn() -> Result<(R, Range), No>,
    ) -> Result<R, No> {
        let until = deadline.min(Instant::now() + WAIT);
        loop {
            let before = {
                let state = replica.state.lock();
                let counts = state.view().is_some_and(|view| view.counts(self.replicas.me()));
                if !counts {
                    return Err(self.elsewhere(&state));
                }
                state.number()
            };
            let (got, range) = match read() {
                Ok(got) => got,
                Err(no) => return Err(self.not_read(replica, asked, no)),
            };
            let mut state = replica.state.lock();
            let call = state.read(range);
            state.pump(&self.replicas.world(), replica);
            let mut waited = false;
            while state.calls.get(&call).is_some_and(|there| matches!(there.at, At::Waits)) {
                self.replicas.is_busy(replica);
                waited = true;
                if !state.outbox.is_empty() {
                    MutexGuard::unlocked(&mut state, || self.flush(replica));
                } else if replica.changed.wait_until(&mut state, until).timed_out() {
                    state.core.handle(Input::Cancel(call));
                    state.calls.remove(&call);
                    return Err(later());
                }
            }
            let Some(there) = state.calls.remove(&call) else { return Err(self.elsewhere(&state)) };
            if !matches!(there.at, At::Show) {
                return Err(self.elsewhere(&state));
            }
            let same = state.number() == before;
            let has_more = !state.outbox.is_empty();
            drop(state);
            if has_more {
                self.flush(replica);
            }
            // What was waited for may have come after the bytes were read.
            if same && !waited {
                return Ok(got);
            }
            if Instant::now() >= until {
                return Err(later());
            }
        }
    }

    /// The bytes here are damaged: if the other one has them, that one goes on. What is lost here the second has from the primary, which has the last word.
    fn not_read(&self, replica: &Replica, asked: Range, no: No) -> No {
        let me = self.replicas.me();
        let is_lost = no.errno() == Errno::EIO && self.is_lost_here(&replica.object, asked);
        let state = replica.state.lock();
        let has_other = state.view().is_some_and(|view| view.counts(me) && view.other(me).is_some());
        if no.errno() != Errno::EIO || !has_other || Retry::try_from(no.0.retry) == Ok(Retry::After) {
            return no;
        }
        if is_lost {
            return if state.view().is_some_and(|view| view.primary != me) {
                self.elsewhere(&state)
            } else {
                no
            };
        }
        tracing::error!(ino = %replica.ino, why = no.0.detail, "one of two copies cannot be read here");
        state.complain(&self.replicas.world(), replica, me);
        drop(state);
        self.pressed.nudge();
        later()
    }

    pub(in crate::data) fn read_copy(
        &self,
        replica: &Arc<Replica>,
        read: &asked::Read,
        incoming: &Incoming,
    ) -> Outcome {
        let wanted = (read.offset, read.offset.saturating_add(read.length.into()));
        self.shown(replica, incoming.deadline, wanted, || {
            if self.is_nothing(&replica.object)? {
                return Ok((Done::new(&asked::ReadDone { size: 0 }), (read.offset, END)));
            }
            let done = self.read_here(&replica.object, read, incoming)?;
            // Who sees an end sees that nothing is behind it.
            let short =
                (done.body.len() as u64) < u64::from(read.length.min(incoming.header.answer_bytes_max));
            Ok((done, if short { (read.offset, END) } else { wanted }))
        })
    }

    pub(in crate::data) fn write_copy(
        &self,
        replica: &Arc<Replica>,
        write: &asked::Write,
        incoming: &mut Incoming,
    ) -> Outcome {
        self.primary_of(replica)?;
        let bytes = Bytes::from_owner(incoming.take_body());
        let len = bytes.len() as u64;
        let to = write.offset.checked_add(len).filter(|to| *to <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
        let asker = Asker { server: write.server, joined: write.joined };
        let change = Change::Bytes { from: write.offset, to, bytes };
        self.change(replica, change, asker, incoming.deadline)?;
        if write.sync {
            self.sync_both(replica)?;
        }
        Ok(Done::new(&asked::Written { bytes: len as u32, life: 0 }))
    }

    pub(in crate::data) fn truncate_copy(
        &self,
        replica: &Arc<Replica>,
        cut: &asked::Truncate,
        incoming: &Incoming,
    ) -> Outcome {
        self.primary_of(replica)?;
        let change = match cut.grow_only {
            true => Change::Grow { size: cut.size },
            false => Change::Cut { size: cut.size, lost: Vec::new() },
        };
        self.change(replica, change, Asker { server: 0, joined: 0 }, incoming.deadline)?;
        if !cut.grow_only {
            // The metadata server forgets the cut.
            self.sync_both(replica)?;
        }
        Ok(Done::new(&Nothing {}))
    }

    pub(in crate::data) fn allocate_copy(
        &self,
        replica: &Arc<Replica>,
        asked: &asked::Allocate,
        incoming: &Incoming,
    ) -> Outcome {
        self.primary_of(replica)?;
        let from = asked.offset;
        let to = from.checked_add(asked.length).filter(|to| *to <= i64::MAX as u64).ok_or(Errno::EFBIG)?;
        if from == to {
            return Ok(Done::new(&Nothing {}));
        }
        let change = match asked::AllocateMode::try_from(asked.mode) {
            Ok(asked::AllocateMode::Reserve) => Change::Reserve { from, to },
            Ok(asked::AllocateMode::Zero) => Change::Zero { from, to },
            Err(_) => return Err(Bad::Range("mode of allocation").into()),
        };
        let asker = Asker { server: asked.server, joined: asked.joined };
        self.change(replica, change, asker, incoming.deadline)?;
        Ok(Done::new(&Nothing {}))
    }

    pub(in crate::data) fn set_time_copy(
        &self,
        replica: &Arc<Replica>,
        asked: &asked::SetTime,
        incoming: &Incoming,
    ) -> Outcome {
        self.primary_of(replica)?;
        let mtime = asked.mtime.ok_or(Bad::Missing("time"))?.try_into()?;
        self.change(replica, Change::Time { mtime }, Asker { server: 0, joined: 0 }, incoming.deadline)?;
        Ok(Done::new(&Nothing {}))
    }

    pub(in crate::data) fn seek_copy(
        &self,
        replica: &Arc<Replica>,
        asked: &asked::Seek,
        incoming: &Incoming,
    ) -> Outcome {
        self.shown(replica, incoming.deadline, (asked.offset, END), || {
            Ok((self.seek_here(asked, &replica.object)?, (asked.offset, END)))
        })
    }

    pub(in crate::data) fn attr_copy(&self, replica: &Arc<Replica>) -> Result<asked::ObjectAttr, No> {
        self.primary_of(replica)?;
        let deadline = Instant::now() + WAIT;
        self.shown(replica, deadline, (0, END), || Ok((self.attr_here(&replica.object)?, (0, END))))
    }

    /// By the primary for both, by the second for itself.
    pub(in crate::data) fn sync_copy(&self, replica: &Arc<Replica>, incoming: &Incoming) -> Outcome {
        let me = self.replicas.me();
        let view = replica.state.lock().view();
        let is_second = view.and_then(|view| view.second).is_some_and(|second| second.member == me);
        let by_server = incoming.peer().roles.has(Roles::DS) || incoming.peer().roles.has(Roles::MDS);
        if is_second && by_server {
            // Of an earlier view it is not known whether all is here.
            self.make_copy_safe(replica)?;
        } else {
            self.sync_both(replica)?;
        }
        Ok(Done::new(&Nothing {}))
    }

    fn sync_both(&self, replica: &Arc<Replica>) -> Result<(), No> {
        let view = self.primary_of(replica)?;
        self.make_copy_safe(replica)?;
        let Some(second) = view.second.map(|second| second.member) else { return Ok(()) };
        if !self.hears(replica, second) {
            return Err(later());
        }
        let object = Some(asked::Object { view: Some(said_view(&view)), ..replica.object });
        let synced = self.replicas.peers.ask(second.node.0, &asked::Sync { object });
        if let Err(no) = synced {
            tracing::debug!(ino = %replica.ino, node = second.node.0, why = no.0.detail, "a second copy is not synced");
            if matches!(no.errno(), Errno::EIO | Errno::ENOSPC) {
                replica.state.lock().complain(&self.replicas.world(), replica, second);
                self.pressed.nudge();
            }
            return Err(later());
        }
        Ok(())
    }

    /// Does it let us answer? One whose device takes long does, one that cannot be reached does not, and is told of after a while.
    fn hears(&self, replica: &Arc<Replica>, second: cluster::replica::Member) -> bool {
        let (world, until) = (self.replicas.world(), Instant::now() + WAIT);
        let mut state = replica.state.lock();
        loop {
            if world.peers.leave(&state.core, replica.ino).act {
                state.unheard = None;
                return true;
            }
            world.peers.want(second);
            if state.is_unheard_for_long(world.patience.complain) {
                state.complain(&world, replica, second);
                self.pressed.nudge();
            }
            self.replicas.is_busy(replica);
            if replica.changed.wait_until(&mut state, until).timed_out() {
                return false;
            }
        }
    }

    /// Where there is only memory two machines are as safe as it gets.
    fn make_copy_safe(&self, replica: &Replica) -> Result<(), No> {
        let object = &replica.object;
        if self.is_safe() || self.is_declared_unsafe() {
            return self.make_safe(object);
        }
        let two = replica.state.lock().view().is_some_and(|view| view.members().count() == 2);
        if two {
            Ok(())
        } else {
            Err(No::later("memory of one machine alone has it, and another is looked for"))
        }
    }
}
