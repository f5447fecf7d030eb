//! Writes that are carried out on the thread that received them: large ones, behind which nothing else has come over their connection, to an object
//! that is open, all in memory, and locked by nobody. A change of threads costs as much as a part of the copy, which is from the processor's cache here.
//!
//! Nothing is waited for. Whatever is not so simple, or fails, a worker does from its beginning, with the same bytes at the same place.

use ds::Attempt as Tried;
use net::Incoming;
use proto::{Method, data as asked};

use super::{DataService, admission::Asker, service::same_generation};
use crate::{
    answer::{Done, Outcome},
    workers::Attempt,
};

/// Shorter ones are sooner with a worker than the next one is received.
const LEAST: usize = 64 << 10;

impl DataService {
    pub(super) fn is_for_here(&self, incoming: &Incoming) -> bool {
        incoming.body().len() >= LEAST
            && Method::from_number(incoming.header.method) == Some(Method::Write)
            && incoming.is_alone()
    }
}

impl Attempt for DataService {
    fn attempt(&self, incoming: &mut Incoming) -> Option<Outcome> {
        let write: asked::Write = proto::decode(&incoming.meta).ok()?;
        let object = write.object.as_ref().filter(|object| object.view.is_none())?;
        if write.sync || self.ds.is_ill() || self.vouched.may_answer().is_err() {
            return None;
        }
        let ino = proto::attr::ino(object.ino).ok()?;
        let held = self.table.get(ino)?;
        if !matches!(self.asked_replica(object), Ok(None)) {
            return None;
        }
        let admitted =
            self.admission.begin(Asker { server: write.server, joined: write.joined }, ino).ok()?;
        let begun = self.under_way.try_begin(incoming, ino)?;
        let state = held.state.try_read().filter(|state| !state.gone && state.begun)?;
        let there = state.object.as_ref()?;
        same_generation(&state, object).ok()?;
        self.may_change(ino).ok()?;
        let bytes = incoming.body();
        self.replicas.is_used();
        // A device that hangs would hold up all that comes over the connection.
        let tried = self.ds.try_write_in_memory(there, write.offset, bytes);
        // Also what was not carried out may have changed a part.
        self.changed_now(ino, write.offset, write.offset.saturating_add(bytes.len() as u64));
        let Ok(Tried::Done(written)) = tried else { return None };
        drop((state, begun, admitted));
        self.table.touch(&held);
        Some(Ok(Done::new(&asked::Written { bytes: written as u32, life: self.life })))
    }
}
