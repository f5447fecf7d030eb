//! Directories that are spread over parts, where there are several metadata servers: whoever asks the wrong one is told so, and learns where to ask. And
//! the attribute that shows, makes and ends it: `trusted.onfs.spread`, which the kernel gives to root alone.
//!
//! - I-PARTS-1: where there are others, an operation on a name in a directory that is spread is carried out by the owner of its part, as one on that. So
//!   the part's gate is passed, and what its session gets there goes along with it.
//!
//! A server that is alone carries out all of it itself, and nobody has to know of parts.

use std::{ops::ControlFlow, time::Duration};

use mds::Found;
use parking_lot::RwLockReadGuard;
use prost::Message;
use proto::{
    Nothing, Reason, Request,
    metadata::{DirEntry, Entries, Entry, Listed},
    spread::{FindSpread, GetAlone, ReadDots, SpreadOver},
};
use types::{Errno, Ino, Slot};
use wire::handshake::Roles;

use super::MetadataService;
use crate::answer::{Done, No, Outcome};

/// Shown of directories that are spread.
pub(super) const ATTRIBUTE: &[u8] = b"trusted.onfs.spread";

/// Changes of names wait so long for one that spreads or gathers a directory, and it for them.
const SPREADING_WAIT: Duration = Duration::from_millis(500);

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl No {
    /// The directory is spread.
    pub(crate) fn spread() -> No {
        No(Box::new(proto::fault::spread()))
    }

    pub(crate) fn is_spread(&self) -> bool {
        Reason::of(&self.0) == Reason::Spread
    }
}

impl MetadataService {
    /// I-PARTS-1.
    pub(super) fn look_for_parts<R: Request>(&self, request: &mut R) -> Result<(), No> {
        if self.owners.is_none() {
            return Ok(());
        }
        let mut spread = false;
        request.directories(&mut |dir, name| {
            let dir = Ino::from_raw(*dir).filter(|_| name.is_some_and(|name| !is_dots(name)));
            // What another server has, its owner looks at when it is brought here for a rename; an error is the operation's to say.
            let over = dir.map_or(Ok(None), |dir| self.mds.spread_of(dir));
            spread |= matches!(over, Ok(Some(_)));
        });
        if spread { Err(No::spread()) } else { Ok(()) }
    }

    /// No directory is spread or gathered until this is dropped.
    pub(super) fn not_spreading(&self) -> Result<RwLockReadGuard<'_, ()>, No> {
        let guard = self.turns.parts.try_read_for(SPREADING_WAIT);
        guard.ok_or_else(|| No::later("a directory is being spread"))
    }

    /// One of them was spread since the request came.
    pub(super) fn are_whole(&self, names: &[(Ino, &[u8])]) -> Result<(), No> {
        let is_spread = |dir: Ino| matches!(self.mds.spread_of(dir), Ok(Some(_)));
        if self.owners.is_some() && names.iter().any(|(dir, name)| !is_dots(name) && is_spread(*dir)) {
            return Err(No::spread());
        }
        Ok(())
    }

    /// Runs what moves all entries of a directory, of which nobody keeps any then.
    fn moving_entries(&self, dir: Ino, run: impl FnOnce() -> Result<(), No>) -> Result<(), No> {
        let parts = self.mds.spread_of(dir)?.into_iter().flat_map(|over| over.parts().collect::<Vec<_>>());
        let mut slots: Vec<Slot> = parts.chain([dir]).map(|ino| ino.ugsd().slot()).collect();
        if self.owners.is_none() {
            // Programs' directories are what is kept, whatever is hidden.
            slots.clear();
        }
        let _vacant = self.vacate_slots(&slots)?;
        let alone = self.turns.parts.try_write_for(SPREADING_WAIT);
        let _alone = alone.ok_or_else(|| No::later("names are being changed"))?;
        run()
    }

    /// Attributes of a directory that is spread are those of all its parts.
    pub(super) fn find_whole(&self, ino: Ino) -> Result<Found, No> {
        match self.mds.find_whole(ino) {
            Err(Errno::EREMOTE) if matches!(self.mds.spread_of(ino), Ok(Some(_))) => Err(No::spread()),
            found => Ok(found?),
        }
    }

    pub(super) fn find_spread(&self, asked: &FindSpread) -> Outcome {
        let dir = proto::attr::ino(asked.dir)?;
        // Whether it is there.
        self.mds.find_alone(dir)?;
        let over = self.mds.spread_of(dir)?.map(|over| SpreadOver {
            first: over.first().get(),
            bits: over.bits(),
            key: self.mds.hash_key().to_vec(),
        });
        Ok(Done::new(&over.unwrap_or_default()))
    }

    pub(super) fn get_alone(&self, asked: &GetAlone) -> Outcome {
        let found = self.mds.find_alone(proto::attr::ino(asked.ino)?)?;
        let first = found.spread.and_then(|over| over.parts().next());
        let attr = self.complete(found)?;
        Ok(Done::new(&Entry { attr: Some(attr.into()), ino: first.map_or(0, Ino::get) }))
    }

    pub(super) fn read_dots(&self, asked: &ReadDots) -> Outcome {
        let mut entries = Vec::new();
        self.mds.dots(proto::attr::ino(asked.dir)?, asked.cookie, &mut |entry| {
            entries.push(DirEntry {
                name: entry.name.to_vec(),
                ino: entry.ino.get(),
                kind: entry.kind as u32,
                cookie: entry.cookie,
                attr: None,
                keeps: 0,
            });
            ControlFlow::Continue(())
        })?;
        Ok(Done::with_body(&Listed { end: true, term_ms: 0 }, Entries { entries }.encode_to_vec()))
    }

    /// `ENODATA` of what is not spread.
    pub(super) fn spread_text(&self, dir: Ino) -> Result<Vec<u8>, No> {
        let over = self.mds.spread_of(dir)?.ok_or(Errno::ENODATA)?;
        Ok(format!("parts={} first={}", over.count(), over.first().get()).into_bytes())
    }

    /// `parts=N`, a power of two, or `parts=auto`: as many as there are metadata servers.
    pub(super) fn set_spread(&self, dir: Ino, text: &[u8]) -> Outcome {
        let text = std::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let parts = match text.strip_prefix("parts=") {
            Some("auto") => self.servers().max(2).next_power_of_two().min(64),
            Some(number) => number.parse::<u32>().map_err(|_| Errno::EINVAL)?,
            None => return Err(Errno::EINVAL.into()),
        };
        if !parts.is_power_of_two() {
            return Err(Errno::EINVAL.into());
        }
        self.moving_entries(dir, || {
            let over = self.mds.spread(dir, parts.ilog2())?;
            tracing::info!(%dir, parts = over.count(), first = over.first().get(), "a directory is spread");
            Ok(())
        })?;
        Ok(Done::new(&Nothing {}))
    }

    fn servers(&self) -> u32 {
        let map = self.nodes.map();
        let servers = map.nodes().filter(|node| node.roles.has(Roles::MDS) && node.takes_slots());
        u32::try_from(servers.count()).unwrap_or(u32::MAX >> 1)
    }

    /// `ENODATA`: it is not spread.
    pub(super) fn end_spread(&self, dir: Ino) -> Outcome {
        self.mds.spread_of(dir)?.ok_or(Errno::ENODATA)?;
        self.moving_entries(dir, || {
            self.mds.gather_parts(dir)?;
            tracing::info!(%dir, "a directory that was spread is gathered");
            Ok(())
        })?;
        Ok(Done::new(&Nothing {}))
    }
}
