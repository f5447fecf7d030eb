//! Writes by threads that must not wait: what is not done at once is not done.

use crate::{
    Attempt, DataServer,
    object::Object,
    write::{Patience, Stop, check_range, written},
};
use std::time::Duration;
use types::Errno;

impl DataServer {
    /// Writes as [`DataServer::write`] does if that needs no waiting. After `WouldWait` some of the bytes may be
    /// written already; the waiting call writes them again.
    pub fn try_write(&self, object: &Object, offset: u64, data: &[u8]) -> Result<Attempt<usize>, Errno> {
        let patience = Patience { may_wait: false, waited: Duration::ZERO, only_memory: false };
        self.write_if(object, (offset, data), patience)
    }

    /// The same, for who must not be held up by a device that hangs: only what is, or can be, in memory, of an object of which nothing is elsewhere.
    pub fn try_write_in_memory(
        &self,
        object: &Object,
        offset: u64,
        data: &[u8],
    ) -> Result<Attempt<usize>, Errno> {
        let patience = Patience { may_wait: false, waited: Duration::ZERO, only_memory: true };
        self.write_if(object, (offset, data), patience)
    }

    fn write_if(
        &self,
        object: &Object,
        (offset, data): (u64, &[u8]),
        patience: Patience,
    ) -> Result<Attempt<usize>, Errno> {
        check_range(offset, data.len())?;
        self.touch(object, offset);
        if self.write_steady(object, offset, data, patience)? {
            return Ok(Attempt::Done(data.len()));
        }
        if self.too_many_wait() {
            return Ok(Attempt::WouldWait);
        }
        let Some(mut state) = object.state.try_write() else { return Ok(Attempt::WouldWait) };
        if patience.only_memory && self.may_ask_devices(&state) {
            return Ok(Attempt::WouldWait);
        }
        let mut done = 0;
        match self.write_pieces(object, &mut state, (offset, data), patience, &mut done) {
            Ok(()) => Ok(Attempt::Done(data.len())),
            // The waiting call makes room for it.
            Err(Stop::Failed(Errno::EMFILE)) => Ok(Attempt::WouldWait),
            Err(Stop::Failed(Errno::ENOSPC)) if done > 0 => Ok(Attempt::WouldWait),
            Err(Stop::Failed(errno)) => written(done, errno).map(Attempt::Done),
            Err(
                Stop::WouldWait
                | Stop::Copier
                | Stop::Undurable
                | Stop::Distrusted
                | Stop::Lift(_)
                | Stop::Wait { .. },
            ) => Ok(Attempt::WouldWait),
        }
    }
}
