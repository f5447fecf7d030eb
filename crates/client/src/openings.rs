//! Tells the listener, if there is one, of openings and closings.

use fuse::Header;
use types::Ino;

use crate::{
    Client,
    access::Access,
    listener::{Opening, Purpose},
};

impl Client {
    pub(crate) fn tell_opened(&self, header: &Header, ino: Ino, flags: u32) {
        if let Some(listener) = &self.options.listener {
            let reads = Access::from_flags(flags).is_ok_and(|access| access.read && !access.truncate);
            let purpose = if reads { Purpose::Read } else { Purpose::Make };
            listener.opened(Opening { ino, purpose, pid: header.pid, uid: header.uid });
        }
    }

    pub(crate) fn tell_created(&self, header: &Header, ino: u64) {
        if let (Some(listener), Some(ino)) = (&self.options.listener, Ino::from_raw(ino)) {
            let purpose = Purpose::Make;
            listener.opened(Opening { ino, purpose, pid: header.pid, uid: header.uid });
        }
    }

    pub(crate) fn tell_closed(&self, ino: Ino) {
        if let Some(listener) = &self.options.listener {
            listener.closed(ino);
        }
    }
}
