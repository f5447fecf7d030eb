//! Files that the kernel reads by itself (passthrough): those that are wholly on the data server of this machine, which lends their file.
//!
//! - The kernel has all openings of a file in passthrough, with one backing file, or none: who comes first decides, and whoever comes
//!   meanwhile waits for that. It begins with a reader who is alone, and ends with the last opening.
//! - Readers read the object's file. Who writes is served by this daemon as ever, but that what he maps is the object's file: the data server
//!   is told before he has it open.
//! - When the object may move again is not decided here: the data server asks the kernel. So nothing has to be given back.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fuse::{Backing, BackingId, OpenFlags, OpenOut};
use net::hatch::{self, Ticket};
use parking_lot::{Condvar, Mutex};
use prost::Message;
use proto::{
    Request,
    lending::{Lend, Lent, StoreTo},
};
use types::{Attr, Errno, Ino};
use wire::frame::Body;

use crate::{
    Remote,
    access::is_direct,
    line::Waits,
    opening::now,
    openings::OpenFile,
    reading::{asking, object},
};

/// The data server is on this machine, and does not wait for devices.
const LEND: Waits = Waits { patience: Duration::from_secs(1), longest: Duration::from_secs(2) };
const FETCH: Duration = Duration::from_secs(1);
/// Longer than who decides takes.
const DECIDED: Duration = Duration::from_secs(30);
/// What is smaller costs more to lend than to read. The data server says so, too.
const BYTES_MIN: u64 = 128 << 10;

#[derive(Default)]
struct Opened {
    openings: u32,
    /// Somebody is at it.
    deciding: bool,
    backing: Option<BackingId>,
}

#[derive(Default)]
pub(crate) struct Through {
    backing: OnceLock<Backing>,
    /// The kernel does not let us.
    refused: AtomicBool,
    /// Of files that are open: as many as the server lets the session have.
    table: Mutex<BTreeMap<Ino, Opened>>,
    decided: Condvar,
    /// Files that were lent to this mount so far.
    began: AtomicU64,
}

/// An opening that is counted.
enum Entered {
    First,
    Beside(Option<BackingId>),
}

impl Through {
    pub(crate) fn attach(&self, backing: Backing) {
        // A second INIT on the same mount cannot be: the session answers one.
        let _ = self.backing.set(backing);
    }

    /// Files that the kernel reads by itself now, and that it did so far.
    pub(crate) fn files(&self) -> (usize, u64) {
        let now = self.table.lock().values().filter(|one| one.backing.is_some()).count();
        (now, self.began.load(Ordering::Relaxed))
    }

    fn enter(&self, ino: Ino) -> Result<Entered, Errno> {
        let (mut table, end) = (self.table.lock(), Instant::now() + DECIDED);
        loop {
            let opened = table.entry(ino).or_default();
            if !opened.deciding {
                opened.openings += 1;
                opened.deciding = opened.openings == 1;
                return Ok(if opened.deciding { Entered::First } else { Entered::Beside(opened.backing) });
            }
            if self.decided.wait_until(&mut table, end).timed_out() {
                return Err(Errno::EIO);
            }
        }
    }

    fn decide(&self, ino: Ino, backing: Option<BackingId>) {
        if let Some(opened) = self.table.lock().get_mut(&ino) {
            (opened.deciding, opened.backing) = (false, backing);
        }
        self.decided.notify_all();
    }

    /// An opening is closed. The kernel has ended its passthrough before it says so.
    pub(crate) fn leave(&self, ino: Ino) {
        let mut table = self.table.lock();
        let Some(opened) = table.get_mut(&ino) else { return };
        opened.openings = opened.openings.saturating_sub(1);
        if opened.openings > 0 {
            return;
        }
        let backing = table.remove(&ino).and_then(|opened| opened.backing);
        // Under the lock: nobody begins anew before.
        if let (Some(of), Some(id)) = (self.backing.get(), backing)
            && let Err(error) = of.close(id)
        {
            tracing::debug!(%ino, %error, "a backing file was not let go");
        }
    }
}

impl Remote {
    /// How the kernel is to treat an opening, which is counted until [`Through::leave`].
    fn open_out(&self, file: &OpenFile, flags: u32) -> Result<OpenOut, Errno> {
        let plain = OpenOut { fh: file.number, flags: OpenFlags::DIRECT_IO, backing: None };
        if self.through.backing.get().is_none() {
            return Ok(plain);
        }
        let id = match self.through.enter(file.ino)? {
            Entered::First => {
                let id = if is_direct(flags) { None } else { self.begin_through(file) };
                self.through.decide(file.ino, id);
                id
            }
            Entered::Beside(id) => id,
        };
        let Some(id) = id else { return Ok(plain) };
        if file.access.read
            && file.access.write
            && let Err(error) = self.allow_stores(file)
        {
            self.through.leave(file.ino);
            return Err(error);
        }
        let mut how = OpenFlags::PASSTHROUGH;
        if file.access.write || is_direct(flags) {
            how |= OpenFlags::DIRECT_IO;
        } else if file.atime_due {
            // Nobody hears of its reads.
            file.read_at.lock().get_or_insert_with(now);
        }
        Ok(OpenOut { fh: file.number, flags: how, backing: Some(id) })
    }

    /// One that the kernel does not get is closed again.
    pub(crate) fn open_for_kernel(&self, file: &OpenFile, flags: u32) -> Result<OpenOut, Errno> {
        self.open_out(file, flags).inspect_err(|_| self.close(file.number))
    }

    /// The same of a name that was made or found.
    pub(crate) fn create_for_kernel(
        &self,
        (attr, file): (Attr, Arc<OpenFile>),
        flags: u32,
    ) -> Result<(Attr, OpenOut), Errno> {
        let out = self.open_for_kernel(&file, flags);
        let out = out.inspect_err(|_| self.references.forget(attr.ino.get(), 1))?;
        Ok((attr, out))
    }

    fn begin_through(&self, file: &OpenFile) -> Option<BackingId> {
        let backing = self.through.backing.get()?;
        if file.access.write || file.size < BYTES_MIN || self.through.refused.load(Ordering::Relaxed) {
            return None;
        }
        let lent = self.borrow_file(file)?;
        match backing.open(lent.as_fd()) {
            Ok(id) => {
                self.through.began.fetch_add(1, Ordering::Relaxed);
                Some(id)
            }
            Err(error) => {
                tracing::info!(%error, "no passthrough: the kernel does not take a backing file");
                let for_good = matches!(error, Errno::EPERM | Errno::EOPNOTSUPP | Errno::ENOTTY);
                self.through.refused.fetch_or(for_good, Ordering::Relaxed);
                None
            }
        }
    }

    /// Its object's file, if it is one and the data server of this machine has all of it.
    fn borrow_file(&self, file: &OpenFile) -> Option<OwnedFd> {
        let near = self.own().near;
        let placed = file.placed.lock().clone().filter(|placed| placed.layout.stripes == [near])?;
        let line = self.nodes.line_there(near)?;
        let object = Some(object(file, &placed, 0));
        // The first request of all makes the connection.
        let socket = line.near_path()?;
        let asked = asking(&Lend { object }, Body::default(), 0).ok()?;
        let answered = line.ask(&asked, LEND).ok()?;
        let lent = Lent::decode(answered.meta.as_slice()).ok()?;
        let ticket = Ticket::try_from(lent.ticket).ok()?;
        hatch::fetch(socket, ticket, FETCH)
            .inspect_err(|error| tracing::debug!(%error, "a lent file was not fetched"))
            .ok()
    }

    /// Before a program has a file open by which it can store to the object's file.
    fn allow_stores(&self, file: &OpenFile) -> Result<(), Errno> {
        let placed = self.begin_write(file)?;
        let line = self.nodes.line_there(self.own().near).ok_or(Errno::EIO)?;
        let stores = StoreTo { object: Some(object(file, &placed, 0)) };
        debug_assert_eq!(StoreTo::METHOD.lane(), wire::schema::Lane::Data);
        line.ask(&asking(&stores, Body::default(), 0)?, self.sync_waits())
            .map(drop)
            .map_err(|stop| stop.errno())
    }
}
