//! Files of objects that clients on this machine read by themselves (passthrough).
//!
//! - I-LEND-1: as long as anybody beside the data server has the file of a lent object open or mapped, the object stays in its tier, and on
//!   this node. Who has it is asked of the kernel (a write lease, fcntl(2)), not of clients: so it does not matter who died, which connection was
//!   lost, or whether the data server was started again meanwhile, for which each lent object has a record.
//! - I-LEND-2: a descriptor is for reading, and is had by who proved the cluster key at the socket of this machine.
//!
//! Writes go on as ever, to the same file. The lock of the table is taken under an object's state, never the other way round.

use std::{
    collections::BTreeMap,
    io,
    ops::ControlFlow,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use ds::Object;
use kv::WriteSet;
use namespace::key;
use net::{
    Incoming,
    hatch::{Hatch, Ticket},
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use proto::{
    Nothing,
    lending::{Lend, Lent, StoreTo},
};
use store::ObjectFd;
use types::{Errno, Ino, TierId};

use super::{
    DataService,
    lent::{Held, LENT_MAX, READS, busy},
    lent_record::LentRecord,
    record::refused,
};
use crate::answer::{Done, No, Outcome};

/// How often the kernel is asked who has the files: so long an object stays in its place for nobody.
const LOOK: Duration = Duration::from_millis(200);
/// A descriptor that nobody fetched goes.
const TICKET: Duration = Duration::from_secs(5);
/// Below, what passthrough takes to begin and end is more than a few requests ([0006](../../../../docs/decisions/0006-passthrough-admission.md)).
const BYTES_MIN: u64 = 128 << 10;

impl DataService {
    pub(super) fn lend(&self, asked: &Lend, incoming: &Incoming) -> Outcome {
        if !incoming.is_near() {
            return Err(Errno::EPERM.into());
        }
        let object = asked.object.unwrap_or_default();
        let ino = proto::attr::ino(object.ino)?;
        if object.generation & proto::copies::TWOFOLD != 0 {
            return Err(busy("there are two copies of it, and nothing of them is read or written in place"));
        }
        if self.table.get(ino).is_none() && self.load(ino)?.is_none() {
            return Err(busy("nothing was written to it"));
        }
        if !self.is_safe() && !self.is_declared_unsafe() {
            // What is synced has to leave at once, also while it is read.
            return Err(busy("here is only memory, and what is to be safe goes to another data server"));
        }
        // Beside writers: what they do next is done to the file that is lent.
        let file = self.shared(&object, |state, there| {
            if state.record.is_none() || self.ds.first_record_is_late(there) {
                return Err(busy("nothing was written to it"));
            }
            if self.leaving.with(ino, |_, _| ()).is_some() {
                return Err(busy("it is about to go to another data server"));
            }
            let mut table = self.lending.table.lock();
            if !table.contains_key(&ino) {
                let lent = self.begin_lending(state.object.as_ref().ok_or(Errno::EIO)?, &table)?;
                table.insert(ino, lent);
            }
            let lent = table.get(&ino).ok_or(Errno::EIO)?;
            // While we have it the object is in use, too: under the lock, so that it is not taken for unused before.
            Ok(for_reading(&lent.file)?)
        })?;
        let mut ticket = Ticket::default();
        getrandom::fill(&mut ticket).map_err(|_| Errno::EIO)?;
        let mut tickets = self.lending.tickets.lock();
        if tickets.0.len() >= LENT_MAX {
            return Err(busy("as many descriptors as there may be wait to be fetched"));
        }
        tickets.0.insert(ticket, (Instant::now() + TICKET, file));
        Ok(Done::new(&Lent { ticket: ticket.to_vec() }))
    }

    /// By the rules of passthrough.
    fn begin_lending(
        &self,
        object: &Arc<Object>,
        table: &MutexGuard<'_, BTreeMap<Ino, Held>>,
    ) -> Result<Held, No> {
        let (tier, file) =
            self.ds.passthrough_file(object).ok_or_else(|| busy("it is not wholly in one tier"))?;
        if tier == TierId::Nearline || object.size() < BYTES_MIN {
            return Err(busy("it is not in memory or on an SSD, or small"));
        }
        let bytes = self.ds.size_in(object, tier);
        let held: u64 = table.values().filter(|one| one.record.tier == tier).map(|one| one.bytes).sum();
        if table.len() >= LENT_MAX || held.saturating_add(bytes) > self.lent_max(tier) {
            return Err(busy("as much as may be is read in place already"));
        }
        // If the question cannot be asked here, or somebody reads the file for another reason.
        if file.is_used_elsewhere() != Ok(false) {
            return Err(busy("the kernel does not say who uses the file"));
        }
        let record = LentRecord { tier, stored_to: false };
        // First: after a kill that comes next it is asked about.
        self.note_lent(object.ino(), Some(record))?;
        self.ds.open(object, READS);
        let begun = self.ds.begin_passthrough(object);
        let again = self.ds.passthrough_file(object).filter(|(now, _)| begun && *now == tier);
        let Some((_, file)) = again else {
            if begun {
                self.ds.end_passthrough(object);
            }
            self.ds.close(object, READS);
            self.note_lent(object.ino(), None)?;
            return Err(busy("it is not wholly in one tier"));
        };
        Ok(Held { object: object.clone(), file, record, bytes })
    }

    /// Bytes that may be held in a tier.
    fn lent_max(&self, tier: TierId) -> u64 {
        let limit = self.ds.tiers().into_iter().find(|one| one.tier == tier).map(|one| one.report.limit);
        if tier == TierId::Memory { limit.unwrap_or(0) / 2 } else { u64::MAX }
    }

    fn note_lent(&self, ino: Ino, record: Option<LentRecord>) -> Result<(), No> {
        let mut writes = WriteSet::new();
        match record {
            Some(record) => writes.put(&key::lent(ino), record.encode().into()),
            None => {
                writes.use_reserve();
                writes.delete(&key::lent(ino));
            }
        }
        self.store.commit(writes).map(drop).map_err(|error| refused(ino, &error).into())
    }

    /// Before a program opens a lent file for reading and writing: it may map it.
    pub(super) fn store_to(&self, asked: &StoreTo, incoming: &Incoming) -> Outcome {
        if !incoming.is_near() {
            return Err(Errno::EPERM.into());
        }
        let object = asked.object.unwrap_or_default();
        self.writing(&object, |there| {
            let mut table = self.lending.table.lock();
            let Some(lent) = table.get_mut(&there.ino()) else { return Err(Errno::ESTALE.into()) };
            if !lent.record.stored_to {
                let record = LentRecord { stored_to: true, ..lent.record };
                self.note_lent(there.ino(), Some(record))?;
                lent.record = record;
            }
            Ok(self.ds.begin_mapped_writes(there)?)
        })?;
        Ok(Done::new(&Nothing {}))
    }

    /// What came through mappings counts as written when it is seen.
    pub(super) fn see_stores(&self, object: &Object) {
        if let Some(time) = self.ds.stored_since(object) {
            self.ds.note_stored(object, time);
        }
    }

    /// At the start: who reads in place since before is not disturbed. And a thread asks the kernel from now on.
    pub(super) fn start_lending(&self) -> io::Result<()> {
        self.read_lent()?;
        let (lender, over) = (self.me.clone(), self.ended.clone());
        let thread = std::thread::Builder::new().name("data-lent".into());
        thread.spawn(move || tend_lent(&lender, &over)).map(drop)
    }

    fn read_lent(&self) -> io::Result<()> {
        let mut found = Vec::new();
        let scanned = self.store.scan(&key::lent_start(), &key::lent_end(), &mut |key, value| {
            let ino = key.get(key::PREFIX_BYTES..).and_then(key::ino_of);
            found.extend(ino.zip(LentRecord::decode(value)));
            ControlFlow::Continue(())
        });
        scanned.map_err(io::Error::other)?;
        for (ino, record) in found {
            match self.hold_again(ino, record) {
                Ok(Some(lent)) => drop(self.lending.table.lock().insert(ino, lent)),
                Ok(None) => drop(self.note_lent(ino, None)),
                Err(no) => {
                    tracing::error!(%ino, errno = %no.errno(), "an object that programs may read in place cannot be looked at");
                }
            }
        }
        Ok(())
    }

    fn hold_again(&self, ino: Ino, record: LentRecord) -> Result<Option<Held>, No> {
        match self.load(ino)? {
            Some(stored) if stored.gone.is_none() => {}
            Some(_) | None => return Ok(None),
        }
        let held = self.place(ino)?;
        self.attach(&held)?;
        let Some(object) = held.state.read().object.clone() else { return Ok(None) };
        let Some(file) = self.ds.hold_in_place(&object, record.tier) else { return Ok(None) };
        self.ds.open(&object, READS);
        let lent = Held { bytes: self.ds.size_in(&object, record.tier), object, file, record };
        if !lent.file.is_used_elsewhere().unwrap_or(true) {
            self.end_lending(&lent);
            return Ok(None);
        }
        if record.stored_to {
            self.ds.begin_mapped_writes(&lent.object)?;
        }
        tracing::info!(%ino, "a program reads an object in place since before the start");
        Ok(Some(lent))
    }

    fn end_lending(&self, lent: &Held) {
        let ino = lent.object.ino();
        self.see_stores(&lent.object);
        if lent.record.stored_to
            && let Err(error) = self.ds.end_mapped_writes(&lent.object)
        {
            tracing::error!(%ino, %error, "writes through a mapping were not copied to slower tiers");
        }
        self.ds.end_passthrough(&lent.object);
        self.ds.close(&lent.object, READS);
        if let Err(no) = self.note_lent(ino, None) {
            // It is looked at once more at the next start.
            tracing::warn!(%ino, errno = %no.errno(), "that nobody reads an object in place is not on record");
        }
    }

    /// Those that nobody has any more may move again.
    fn tend(&self) {
        let now = Instant::now();
        self.lending.tickets.lock().0.retain(|_, (until, _)| *until > now);
        let mut table = self.lending.table.lock();
        table.retain(|_, lent| {
            let used = lent.file.is_used_elsewhere().unwrap_or(true);
            if !used {
                self.end_lending(lent);
            }
            used
        });
    }
}

/// The thread that asks the kernel.
fn tend_lent(service: &Weak<DataService>, ended: &(Mutex<bool>, Condvar)) {
    let mut over = ended.0.lock();
    while !*over {
        let Some(there) = service.upgrade() else { return };
        MutexGuard::unlocked(&mut over, || {
            there.tend();
            // The last reference may be this one.
            drop(there);
        });
        if !*over {
            ended.1.wait_for(&mut over, LOOK);
        }
    }
}

/// A descriptor of its own of the same file.
fn for_reading(file: &ObjectFd) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    std::fs::File::open(path).map(OwnedFd::from).map_err(Errno::from)
}

impl Hatch for DataService {
    fn hand_out(&self, ticket: Ticket) -> Option<OwnedFd> {
        self.lending.tickets.lock().0.remove(&ticket).map(|(_, file)| file)
    }
}
