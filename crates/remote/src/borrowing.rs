//! Files that the kernel reads by itself: those that are wholly on the data server of this machine, which lends their file.
//!
//! - Readers read the object's file. Who writes is served by this daemon as ever, but that what he maps is the object's file: the data server
//!   is told before he has it open.
//! - When the object may move again is not decided here: the data server asks the kernel. So nothing has to be given back.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use fuse::{BackingId, OpenFlags, OpenOut};
use net::hatch::{self, Ticket};
use prost::Message;
use proto::lending::{Lend, Lent, StoreTo};
use types::{Attr, Errno};
use wire::frame::Body;

use crate::{
    Remote,
    access::is_direct,
    line::Waits,
    opening::now,
    openings::OpenFile,
    reading::{asking, object},
    through::Entered,
};

/// The data server is on this machine, and does not wait for devices.
const LEND: Waits =
    Waits { patience: Duration::from_secs(1), longest: Duration::from_secs(2), able: Duration::from_secs(1) };
const FETCH: Duration = Duration::from_secs(1);
/// What is smaller costs more to lend than to read. The data server says so, too.
const BYTES_MIN: u64 = 128 << 10;

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
        let placed = file.placed.lock().clone().filter(|placed| {
            // What the kernel does by itself at one of two the other one does not hear of.
            placed.layout.stripes == [near] && !placed.layout.is_twofold()
        })?;
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
        line.ask(&asking(&stores, Body::default(), 0)?, self.sync_waits())
            .map(drop)
            .map_err(|stop| stop.errno())
    }
}
