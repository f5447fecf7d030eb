//! Who may wait for a device: requests for the bytes of objects, while a device is slow, within the bounds of [`super::held_up`].

use ds::{Attempt, Object};
use types::Ino;

use super::{DataService, held_up::OfObject};
use crate::answer::No;

fn later() -> No {
    No::later("a device of this data server is slow, and as many wait for it as may")
}

impl DataService {
    /// Held while a request about the object's bytes is carried out.
    pub(super) fn one_of(&self, ino: Ino) -> Result<OfObject<'_>, No> {
        self.held_up.enter_object(ino, self.ds.is_ill()).ok_or_else(later)
    }

    pub(super) fn read_bytes(&self, object: &Object, offset: u64, body: &mut [u8]) -> Result<usize, No> {
        if let Some(_within) = self.held_up.enter(self.ds.is_ill()) {
            return Ok(self.ds.read(object, offset, body)?);
        }
        match self.ds.try_read(object, offset, body)? {
            Attempt::Done(read) => Ok(read),
            Attempt::WouldWait => Err(later()),
        }
    }

    /// May it be written to now? Held while it is.
    pub(super) fn may_write(&self, object: &Object) -> Result<impl Drop + '_, No> {
        let ill = self.ds.is_ill() && !self.ds.needs_no_device(object);
        self.held_up.enter(ill).ok_or_else(later)
    }

    /// May it be made durable now? Held while it is.
    pub(super) fn may_sync(&self) -> Result<impl Drop + '_, No> {
        self.held_up.enter(self.ds.is_ill()).ok_or_else(later)
    }
}
