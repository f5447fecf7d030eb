//! What an object's machine wants done with no lock held: messages to the second, and bytes that nobody waits for.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use cluster::replica::{
    Member,
    copy::{END, Input, Sent, Source},
};
use proto::{
    copies::{CopyDone, CopyStored, StoreCopy},
    data::Object,
};
use wire::frame::Body;

use super::{
    change::Change,
    object::{Out, Replica},
    peers,
    pieces::Piece,
    registry::Job,
};
use crate::{
    answer::No,
    data::DataService,
    views::{said_view, view},
};

/// A piece that is compared is read and hashed at both, and not sent: of the rate of pieces it takes this part.
const COMPARED: u64 = 4;

impl DataService {
    /// Never on a connection's reader thread.
    pub(super) fn flush(&self, replica: &Arc<Replica>) {
        loop {
            let out = std::mem::take(&mut replica.state.lock().outbox);
            if out.is_empty() {
                return;
            }
            for one in out {
                match one {
                    Out::Send { to, sent, source: Source::Here } => self.send_later(replica, to, sent),
                    Out::Send { to, sent, source: Source::Client(call) } => {
                        self.send_change(replica, to, sent, call);
                    }
                    Out::Done { to, view, done } => {
                        let object = Some(Object { view: Some(said_view(&view)), ..replica.object });
                        // Lost, it is said with what comes next.
                        let _ = self.begin_asking(
                            to,
                            peers::call(&CopyDone { object, done }, Body::default()),
                            |_| (),
                        );
                    }
                    Out::Store(call) => self.store_for_nobody(replica, call),
                }
            }
        }
    }

    fn begin_asking(
        &self,
        to: Member,
        call: net::Call,
        then: impl FnOnce(Option<net::Answered>) + Send + 'static,
    ) -> Result<(), No> {
        let channel = self.replicas.peers.channel(to.node.0)?;
        let begun = channel.begin_then(call, |answered| then(answered.ok()));
        begun.map_err(|error| No::soon(to.node.0, &error.to_string()))
    }

    /// A call for which nobody waits.
    fn store_for_nobody(&self, replica: &Arc<Replica>, call: u64) {
        let Some((number, change)) = replica.state.lock().begin_storing(call) else { return };
        let stored = self.carry_out_change(&replica.object, &change);
        let mut state = replica.state.lock();
        state.end_storing(call, number, stored);
        state.pump(&self.replicas.world(), replica);
    }

    fn send_change(&self, replica: &Arc<Replica>, to: Member, sent: Sent, call: u64) {
        let (change, length) = {
            let mut state = replica.state.lock();
            let change = state.calls.get(&call).and_then(|call| call.change.clone());
            let Some(change) = change else {
                drop(state);
                return self.send_later(replica, to, sent);
            };
            if !state.on_the_way.insert((sent.serial, sent.view.number)) {
                return;
            }
            (change, state.length)
        };
        self.begin_storing_there(replica, to, sent, change.message(&replica.object, &sent, length));
    }

    /// What is here, by a thread that may wait with it.
    fn send_later(&self, replica: &Arc<Replica>, to: Member, sent: Sent) {
        let key = (sent.serial, sent.view.number);
        if !replica.state.lock().on_the_way.insert(key) {
            return;
        }
        // What does not fit is due again.
        if self.replicas.pieces.queue.put(Piece { replica: replica.clone(), to, sent }).is_err() {
            replica.state.lock().on_the_way.remove(&key);
        }
    }

    pub(super) fn send_piece(&self, Piece { replica, to, sent }: Piece) {
        let (length, compares) = {
            let state = replica.state.lock();
            let compares = state.compares && !state.differs.contains(&(sent.serial, sent.view.number));
            (state.length, compares)
        };
        let change = match self.piece(&replica, &sent) {
            Ok(change) => change,
            Err(no) => {
                tracing::warn!(ino = %replica.ino, errno = %no.errno(), why = no.0.detail, "a piece for a second copy is not read");
                replica.state.lock().on_the_way.remove(&(sent.serial, sent.view.number));
                return;
            }
        };
        let compared = if compares { change.to_compare() } else { None };
        let (message, body) = compared.as_ref().unwrap_or(&change).message(&replica.object, &sent, length);
        let bytes = body.len() as u64;
        self.replicas.copied.fetch_add(bytes, Ordering::Relaxed);
        let costs = if compared.is_some() { (sent.range.1 - sent.range.0) / COMPARED } else { bytes };
        std::thread::sleep(self.replicas.pieces.wait(costs));
        self.begin_storing_there(&replica, to, sent, (message, body));
    }

    fn begin_storing_there(
        &self,
        replica: &Arc<Replica>,
        to: Member,
        sent: Sent,
        message: (StoreCopy, Body),
    ) {
        let (weak, of) = (self.me.clone(), replica.clone());
        let then = move |answered: Option<net::Answered>| {
            let Some(service) = weak.upgrade() else { return };
            let stored = answered.and_then(|it| peers::answer::<StoreCopy>(to.node.0, &it).ok());
            service.stored_there(&of, to, sent, stored);
        };
        let begun = self.begin_asking(to, peers::call(&message.0, message.1), then);
        if begun.is_err() {
            replica.state.lock().on_the_way.remove(&(sent.serial, sent.view.number));
        }
    }

    /// On a reader thread: nothing is waited for. `None`: there was no answer.
    fn stored_there(&self, replica: &Arc<Replica>, to: Member, sent: Sent, stored: Option<CopyStored>) {
        let world = self.replicas.world();
        let mut state = replica.state.lock();
        state.on_the_way.remove(&(sent.serial, sent.view.number));
        let Some(stored) = stored else { return };
        if stored.unable {
            state.complain(&world, replica, to);
        }
        state.compares &= !stored.nothing;
        if stored.differs && state.differs.insert((sent.serial, sent.view.number)) {
            state.outbox.push(Out::Send { to, sent, source: Source::Here });
        }
        if stored.stored {
            state.core.handle(Input::Stored { by: to, since: sent.view.since, serial: sent.serial });
        }
        state.pump(&world, replica);
        let has_more = !state.outbox.is_empty();
        drop(state);
        if has_more {
            // Else it is done when it is due again.
            let _ = self.replicas.jobs.put(Job::Flush(replica.clone()));
        }
        if stored.unable {
            self.pressed.nudge();
        }
        if let Some(newer) =
            stored.newer.filter(|newer| newer.check().is_ok() && view(newer).number > sent.view.number)
        {
            let _ = self.replicas.jobs.put(Job::Adopt(Object { view: Some(newer), ..replica.object }));
        }
    }

    /// Bytes that are here, as they are now. Nothing that touches them is under way.
    fn piece(&self, replica: &Replica, sent: &Sent) -> Result<Change, No> {
        let (from, to) = sent.range;
        let object = &replica.object;
        let nothing = self.is_nothing(object)?;
        if to == END {
            let size = if nothing { 0 } else { self.shared(object, |_, there| Ok(there.size()))? };
            let lost = if nothing { Vec::new() } else { self.lost_behind(object, from)? };
            return Ok(Change::Cut { size, lost });
        }
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
        let read = match nothing {
            true => Ok(0),
            false => self.shared(object, |_, there| Ok(self.ds.read(there, from, &mut bytes)?)),
        };
        let read = match read {
            Ok(read) => read,
            Err(no) => return self.piece_lost(object, sent.range, no),
        };
        bytes.truncate(read);
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(Change::Zero { from, to });
        }
        Ok(Change::Bytes { from, to, bytes: Bytes::from(bytes) })
    }
}
