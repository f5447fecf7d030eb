//! What the file system is asked for here: how files stand, and how much room there is.

use std::sync::Arc;

use client::Client;
use ds::{DataServer, ObjectReport};
use mds::Mds;
use plan::Item;
use types::{Errno, Ino, TierId};

pub struct UpwardParts {
    pub mds: Arc<Mds>,
    pub ds: Arc<DataServer>,
    pub client: Arc<Client>,
}

impl UpwardParts {
    /// Bytes that may come up before the memory tier would begin to move out, and how many there could be at most.
    pub fn room(&self) -> (u64, u64) {
        let tiers = self.ds.tiers();
        let Some(memory) = tiers.iter().find(|t| t.tier == TierId::Memory) else { return (0, 0) };
        let kept = memory.report.thresholds.n_m;
        // The tier wants more than C_n-m to be left.
        let free = (memory.report.available.max(0) as u64).saturating_sub(kept.saturating_add(1));
        (free, memory.report.limit.saturating_sub(kept))
    }

    /// How a file of a list stands.
    pub fn item(&self, ino: Ino) -> Result<Item, Errno> {
        let file = self.client.use_file(ino)?;
        let now = self.ds.report(file.object());
        Ok(Item { ino, missing: missing(&now), was_up: now.bytes[TierId::Memory.index()] > 0 })
    }
}

/// Bytes that a promotion would have to find room for.
pub fn missing(now: &ObjectReport) -> u64 {
    let up = now.bytes[TierId::Memory.index()];
    let [memory, below @ ..] = now.stored;
    let stored = below.into_iter().fold(now.size, u64::max);
    if up >= now.size { 0 } else { stored.saturating_sub(memory.min(up)) }
}
