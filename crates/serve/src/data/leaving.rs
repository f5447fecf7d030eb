//! Objects that are being copied to another data server, here at their source: what is changed meanwhile, the freeze, and the hand-over.

use std::time::Duration;

use proto::{
    data::Object,
    moving::{Changed, ChangedRanges, Follow, Followed, HandOver, HandedOver, Range},
};
use types::Ino;

use super::{DataService, lent::busy, record::refused, service::USE};
use crate::answer::{Done, No, Outcome};

fn over() -> No {
    No::new(types::Errno::ESTALE, wire::schema::Retry::Never, proto::Reason::None, "that attempt is over")
}

impl DataService {
    /// To be asked with the object's state locked, shared or alone, before anything of it changes.
    pub(super) fn may_change(&self, ino: Ino) -> Result<(), No> {
        match self.leaving.with(ino, |outgoing, now| outgoing.may_change(now)) {
            Some(false) => Err(No::later("the object is about to go to another data server")),
            Some(true) | None => Ok(()),
        }
    }

    /// To be told under the same lock, when it has changed.
    pub(super) fn changed_now(&self, ino: Ino, from: u64, to: u64) {
        self.leaving.with(ino, |outgoing, _| outgoing.note(from, to));
    }

    pub(super) fn follow(&self, asked: &Follow) -> Outcome {
        let object = asked.object.unwrap_or_default();
        self.alone(&object, |_, there| {
            if self.lending.has(there.ino()) {
                return Err(busy(
                    "a program on its node reads it there in place, and cannot be told to stop",
                ));
            }
            // Alone: whoever changes it from now on notes that.
            if !self.leaving.begin(there.ino(), asked.attempt) {
                return Err(over());
            }
            Ok(Done::new(&Followed { size: there.size() }))
        })
    }

    pub(super) fn changed(&self, asked: &Changed) -> Outcome {
        let object = asked.object.unwrap_or_default();
        let freeze = (asked.freeze_ms > 0).then(|| Duration::from_millis(asked.freeze_ms.into()));
        // Alone: all that was begun before is noted, and nothing is begun in a freeze.
        self.alone(&object, |state, there| {
            let ino = there.ino();
            self.leaving.asked(ino);
            let taken = self.leaving.with(ino, |outgoing, now| {
                if outgoing.attempt() == asked.attempt { outgoing.take(now, freeze) } else { None }
            });
            let taken = taken.flatten().ok_or_else(over)?;
            let record = state.record.filter(|_| !self.ds.first_record_is_late(there));
            let (size, mtime) = match record {
                Some(record) => {
                    let live = self.ds.live(there);
                    (live.size, live.mtime.or(record.mtime))
                }
                None => (0, None),
            };
            let ranges = taken.into_iter().map(|(from, to)| Range { from, to }).collect();
            Ok(Done::new(&ChangedRanges { ranges, size, mtime: mtime.map(Into::into) }))
        })
    }

    /// Decides: see [`cluster::moving`]. Once it has said no to an attempt it never says yes to it.
    pub(super) fn hand_over(&self, asked: &HandOver) -> Outcome {
        let object = asked.object.unwrap_or_default();
        let ino = proto::attr::ino(object.ino)?;
        if let Some(attempt) = self.load(ino)?.and_then(|record| record.gone) {
            // Or an earlier answer was not heard. An error of the disk may have come after it was written: it has to be durable.
            self.store.sync().map_err(|error| refused(ino, &error))?;
            return Ok(Done::new(&HandedOver { done: attempt == asked.attempt }));
        }
        let done = self.go(ino, &object, asked.attempt)?;
        Ok(Done::new(&HandedOver { done }))
    }

    fn go(&self, ino: Ino, object: &Object, attempt: u64) -> Result<bool, No> {
        self.alone(object, |state, there| {
            let may = self.leaving.with(ino, |outgoing, now| outgoing.may_hand_over(now, attempt));
            if may != Some(true) || self.lending.has(ino) {
                // Nor later: it would have to be followed anew, under another number.
                self.leaving.forget(ino);
                return Ok(false);
            }
            state.object = None;
            self.ds.close(there, USE);
            let gone = self.leave_for_good(ino, object.generation, attempt);
            // Only now: whoever came meanwhile waits for this lock, and then looks for the object anew. Before the record says that it
            // went he would find it as it was.
            state.gone = true;
            self.table.remove(ino);
            self.leaving.forget(ino);
            self.pressed.left(ino);
            gone.map(|()| true)
        })
    }
}
