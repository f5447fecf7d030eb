//! The objects that are lent, and the descriptors that wait to be fetched; how that begins and ends: `lending`.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::OwnedFd,
    sync::Arc,
    time::Instant,
};

use ds::{DataServer, Object, OpenKind};
use net::hatch::Ticket;
use parking_lot::Mutex;
use store::ObjectFd;
use types::{Errno, Ino};

use super::lent_record::LentRecord;
use crate::answer::No;

/// How the data server sees the use of a lent object.
pub(super) const READS: OpenKind = OpenKind { read: true, write: false };
/// Each is asked about at each look, and keeps a descriptor.
pub(super) const LENT_MAX: usize = 512;
/// A lent object.
pub(super) struct Held {
    pub object: Arc<Object>,
    pub file: Arc<ObjectFd>,
    pub record: LentRecord,
    /// In its tier, when it was lent.
    pub bytes: u64,
}

#[derive(Default)]
pub(super) struct Tickets(pub HashMap<Ticket, (Instant, OwnedFd)>);

#[derive(Default)]
pub(super) struct Lending {
    pub table: Mutex<BTreeMap<Ino, Held>>,
    /// At most [`LENT_MAX`]: who has one fetches it at once.
    pub tickets: Mutex<Tickets>,
}

impl Lending {
    pub fn len(&self) -> usize {
        self.table.lock().len()
    }

    pub fn has(&self, ino: Ino) -> bool {
        self.table.lock().contains_key(&ino)
    }

    pub fn is_stored_to(&self, ino: Ino) -> bool {
        self.table.lock().get(&ino).is_some_and(|lent| lent.record.stored_to)
    }

    /// The object is removed.
    pub fn forget(&self, ds: &DataServer, ino: Ino) {
        if let Some(lent) = self.table.lock().remove(&ino) {
            ds.end_passthrough(&lent.object);
            ds.close(&lent.object, READS);
        }
    }
}

pub(super) fn busy(why: &str) -> No {
    No::new(Errno::EBUSY, wire::schema::Retry::Never, proto::Reason::None, why)
}
