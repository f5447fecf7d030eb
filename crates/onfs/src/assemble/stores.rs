//! The stores that a mount and a server stand on: the metadata and their server, the linked directory, the tiers. Opened in this
//! order, and closed in the other.
//!
//! Invariants: a start that is given up leaves nothing behind that it made; the journal never speaks of bytes that a power cut
//! could still take; the memory tier is let go only when everything in it is elsewhere and nobody uses it.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use ds::DataServer;
use kv::MetaStore;
use linked::Linked;
use mds::Mds;
use namespace::txn::KvError;

use super::{
    link::open_link,
    metadata::{open_mds, open_metadata, recovery_line},
    refusals::of_open,
    site::Site,
    tiers::{MakeFirst, Tiers, open_tiers, sync_tiers},
};
use crate::{config::Config, running::StartError};

/// What is wanted beside the configuration.
pub(super) struct Opening<'a> {
    pub owner_uid: u32,
    /// Bytes of the memory budget that are spoken for.
    pub buffers: u64,
    pub first: MakeFirst<'a>,
}

pub(super) struct Stores {
    pub store: Arc<MetaStore>,
    pub mds: Arc<Mds>,
    pub linked: Option<Arc<Linked>>,
    pub tiers: Tiers,
}

impl Stores {
    /// Opens and recovers.
    pub fn open(
        config: &Config,
        opening: Opening<'_>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Stores, StartError> {
        sync_tiers(config);
        let store = Arc::new(open_metadata(config, opening.buffers, false).map_err(of_open)?);
        if let Some(line) = recovery_line(&store) {
            note(&line);
        }
        let mds = Arc::new(open_mds(&store, opening.owner_uid)?);
        let linked = open_link(config, &mds, note)?;
        let tiers = open_tiers(config, (&store, &mds), linked.as_ref(), opening.first, note)?;
        // Weak: the store outlives the tiers.
        let devices = Arc::downgrade(&tiers.ds);
        store.set_before_sync(Box::new(move || {
            if let Some(ds) = devices.upgrade() {
                ds.sync_devices();
            }
            Ok(())
        }));
        Ok(Stores { store, mds, linked, tiers })
    }

    pub fn ds(&self) -> Arc<DataServer> {
        self.tiers.ds.clone()
    }

    /// Closes what a start that failed had opened, and gives back the memory that it took.
    pub fn give_up(self) {
        self.linked.iter().for_each(|linked| linked.shutdown());
        self.tiers.give_up();
        if let Err(error) = self.store.close() {
            tracing::warn!(%error, "the metadata were not closed in order");
        }
    }
}

/// The stores at their end, when nothing asks anything of them any more.
pub(super) struct Closing {
    pub store: Arc<MetaStore>,
    pub mds: Arc<Mds>,
    pub ds: Arc<DataServer>,
    pub linked: Option<Arc<Linked>>,
    pub state: PathBuf,
}

impl Closing {
    /// Writes down what is left and closes. `let_go` lets go of what else holds them, and says whether nobody does now.
    pub fn close(self, let_go: impl FnOnce() -> bool) -> Result<(), String> {
        let at_risk = self.ds.flush_all(&mut |_| ControlFlow::Continue(()));
        let synced = self.mds.sync();
        self.linked.iter().for_each(|linked| linked.shutdown());
        self.ds.shutdown();
        let Closing { store, mds, ds, linked, state } = self;
        drop((mds, linked));
        let last = let_go();
        let mut trouble = Vec::new();
        match at_risk.map(|left| left.bytes) {
            // Where the safe copies are is in the journal: without it memory is what there is.
            Ok(0) if synced.is_err() => tracing::warn!("the memory tier stays mounted"),
            Ok(0) if last => release_memory(ds, &state),
            Ok(0) => tracing::warn!("the memory tier stays mounted: requests are still under way"),
            Ok(bytes) => {
                tracing::info!(bytes, "the memory tier stays mounted: it holds what no other tier has")
            }
            Err(errno) => trouble
                .push(format!("data that is only in memory was not made safe ({errno}); it stays there")),
        }
        if let Err(errno) = synced {
            trouble.push(format!("metadata was not made durable: {errno}"));
        }
        trouble.extend(close_metadata(&store).err());
        if trouble.is_empty() { Ok(()) } else { Err(trouble.join("; ")) }
    }
}

fn release_memory(ds: Arc<DataServer>, state: &Path) {
    match ds.release_memory() {
        Ok(true) => {
            let noted = Site::load(state).and_then(|mut site| site.set_memory_released());
            if let Err(error) = noted {
                // It only makes the next start speak of a loss that was none.
                tracing::warn!(%error, "that the memory was given back is not on record");
            }
        }
        Ok(false) => tracing::info!("the memory tier stays mounted: it is still in use"),
        Err(error) => tracing::warn!(%error, "the memory tier stays mounted"),
    }
}

pub(super) fn close_metadata(store: &MetaStore) -> Result<(), String> {
    match store.close() {
        Ok(()) => Ok(()),
        Err(KvError::Full) => {
            tracing::warn!("no room to merge the metadata journal: the next start reads it");
            Ok(())
        }
        // Fenced off it would be read-only: then no later start gets it there.
        Err(KvError::Io(why)) if store.engine_trouble().is_some() && store.stats().read_only.is_none() => {
            tracing::warn!(why, "the metadata database was not brought up to date: the next start does it");
            Ok(())
        }
        Err(error) => Err(format!("metadata: {error}")),
    }
}
