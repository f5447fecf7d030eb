//! What people ask of the data server: where a file is, move it, limits and status.

use crate::{DataServer, object::Object, seal::is_unsealed};
use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use store::{Reading, ScanEntry};
use tier::{
    CoolnessReport, Input, MoveReport, Request, RequestError, RequestReport, TierReport, health::Health,
};
use types::{Errno, Ino, TierId, TierSet};

/// Where an object is.
#[derive(Clone, PartialEq, Debug)]
pub struct ObjectReport {
    pub size: u64,
    /// SAUs that each tier holds.
    pub saus: [u32; 3],
    /// Bytes of the file that each tier holds.
    pub bytes: [u64; 3],
    /// Bytes that the object takes in each tier.
    pub stored: [u64; 3],
    pub lost_saus: u32,
    /// Bytes that a power cut now would lose.
    pub at_risk: u64,
    pub sealed_saus: u32,
    /// Bytes of SAUs that a device holds and that have no checksum.
    pub unsealed: u64,
    pub pinned: Option<TierId>,
    pub transient: bool,
    pub open: bool,
    /// How many descriptors, or pairs of them, programs have it open with.
    pub opens: u32,
    pub open_for_write: bool,
    pub passthrough: bool,
    pub moving: bool,
    pub coolness: Option<CoolnessReport>,
}

/// One tier.
#[derive(Clone, PartialEq, Debug)]
pub struct TierStatus {
    pub tier: TierId,
    pub dir: PathBuf,
    /// The memory tier has a tmpfs of its own.
    pub own_tmpfs: bool,
    pub report: TierReport,
    /// Number of the file system that it is on, and what is free there, whatever the tier may take of it.
    pub device: u64,
    pub device_free: u64,
    pub health: Health,
    /// `None`: memory.
    pub reading: Option<Reading>,
}

/// What a flush of everything left in memory alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtRisk {
    pub bytes: u64,
    /// Those of them that are transient: nobody promised them more.
    pub transient: u64,
}

impl DataServer {
    pub fn report(&self, object: &Object) -> ObjectReport {
        let state = object.state.read();
        let mut bytes = [0; 3];
        let (mut sealed, mut unsealed) = (0, 0);
        let devices = self.ours(TierSet::PERSISTENT);
        for (sau, s) in state.map.iter() {
            for tier in s.valid.iter() {
                bytes[tier.index()] += u64::from(sau.bytes_within(state.size));
            }
            sealed += u32::from(s.seal.is_some());
            unsealed += if is_unsealed(s, devices) { u64::from(sau.bytes_within(state.size)) } else { 0 };
        }
        ObjectReport {
            size: state.size,
            saus: TierId::ALL.map(|t| state.map.count_in(t)),
            bytes,
            stored: state.charged,
            lost_saus: state.map.lost(),
            at_risk: state.map.bytes_at_risk(state.size),
            sealed_saus: sealed,
            unsealed,
            pinned: state.pinned,
            transient: state.transient,
            open: object.is_open(),
            opens: object.opens(),
            open_for_write: object.is_open_for_write(),
            passthrough: object.in_passthrough(),
            moving: state.moving.is_some(),
            coolness: self.driver.with(|core, now| core.coolness(object.ino(), now)),
        }
    }

    /// Moves all of an object to a tier, and waits for it.
    pub fn migrate(
        &self,
        ino: Ino,
        to: TierId,
        deadline: Option<Duration>,
    ) -> Result<RequestReport, RequestError> {
        self.know(ino);
        self.driver.request(Request::Migrate { ino, to }, deadline)
    }

    /// Brings objects up, in order.
    pub fn prefetch(
        &self,
        list: Vec<Ino>,
        deadline: Option<Duration>,
    ) -> Result<RequestReport, RequestError> {
        list.iter().for_each(|ino| self.know(*ino));
        self.driver.request(Request::Prefetch { list }, deadline)
    }

    /// Brings one object up, as long as it is `wanted`, which is asked about twice a second.
    pub fn prefetch_while(
        &self,
        ino: Ino,
        deadline: Duration,
        wanted: &dyn Fn() -> bool,
    ) -> Result<RequestReport, RequestError> {
        self.know(ino);
        self.driver.request_while(Request::Prefetch { list: vec![ino] }, Some(deadline), wanted)
    }

    /// What people ask for must be known to the core, even if it takes no space.
    fn know(&self, ino: Ino) {
        if let Some(object) = self.table.get(ino) {
            self.make_known(&object, &mut object.state.write());
        }
    }

    /// What a tier holds of the object stays there, over remounts too.
    pub fn pin(&self, object: &Object, tier: TierId) -> Result<(), Errno> {
        self.maps.save_pin(object.ino(), Some(tier))?;
        self.pins.lock().insert(object.ino(), tier);
        let before = object.state.write().pinned.replace(tier);
        if let Some(old) = before.filter(|t| *t != tier) {
            self.driver.tell(Input::Unpinned { ino: object.ino(), tier: old });
        }
        self.driver.tell(Input::Pinned { ino: object.ino(), tier });
        Ok(())
    }

    /// Is anything kept of an object beside its bytes, a pin or a policy? Then its end is [`DataServer::remove`]'s.
    pub fn keeps(&self, ino: Ino) -> bool {
        self.pins.lock().contains_key(&ino) || self.policies.lock().contains_key(&ino)
    }

    pub fn unpin(&self, object: &Object) -> Result<(), Errno> {
        self.maps.save_pin(object.ino(), None)?;
        self.pins.lock().remove(&object.ino());
        if let Some(tier) = object.state.write().pinned.take() {
            self.driver.tell(Input::Unpinned { ino: object.ino(), tier });
        }
        Ok(())
    }

    pub fn tiers(&self) -> Vec<TierStatus> {
        let memory = self.memory.lock();
        let own = memory.as_ref().is_some_and(|m| m.backing() == store::Backing::OwnTmpfs);
        drop(memory);
        self.driver.with(|core, _| {
            let known = TierId::ALL
                .into_iter()
                .filter_map(|t| Some((t, self.stores[t.index()].as_ref()?, core.tier(t)?)));
            known
                .map(|(tier, store, report)| TierStatus {
                    tier,
                    dir: store.path().to_owned(),
                    own_tmpfs: own && tier == TierId::Memory,
                    report,
                    device: self.devices[tier.index()],
                    device_free: self.device_free[tier.index()].load(Ordering::Acquire),
                    health: self.health(tier),
                    reading: store.reading(),
                })
                .collect()
        })
    }

    pub fn moves(&self) -> Vec<MoveReport> {
        self.driver.with(|core, _| core.moves().collect())
    }

    /// Objects with bytes that are only in memory, and how many bytes.
    pub fn dirty(&self) -> (u64, u64) {
        self.driver.with(|core, _| core.dirty())
    }

    /// Changes the memory tier's limit. Shrinking moves data out first: `progress` hears how many bytes are in use
    /// while it waits. `ETIMEDOUT` after the deadline or when `progress` says
    /// so, if data that cannot move now (open in passthrough, pinned) holds more; the lower limit stays in force for new data either way.
    pub fn set_memory_limit(
        &self,
        limit: u64,
        deadline: Duration,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        if self.stores[TierId::Memory.index()].is_none() {
            return Err(Errno::ENODEV);
        }
        let before = self.limits[TierId::Memory.index()].swap(limit, Ordering::AcqRel);
        if limit > before {
            self.resize_memory(limit)?;
        }
        self.refresh_limit(TierId::Memory);
        let begun = Instant::now();
        loop {
            let used = self.driver.with(|core, _| core.tier(TierId::Memory).map_or(0, |t| t.used));
            let go_on = progress(used).is_continue();
            if used <= limit {
                break;
            }
            if !go_on || begun.elapsed() >= deadline {
                return Err(Errno::ETIMEDOUT);
            }
            self.driver.wait_for_room(TierId::Memory, Duration::from_millis(100));
        }
        if limit < before { self.resize_memory(limit) } else { Ok(()) }
    }

    fn resize_memory(&self, limit: u64) -> Result<(), Errno> {
        match &mut *self.memory.lock() {
            Some(memory) => memory.resize(limit).map_err(|error| {
                tracing::error!(%error, "the memory tier was not resized");
                error.errno()
            }),
            None => Err(Errno::ENODEV),
        }
    }

    /// Copies everything that is only in memory to a persistent tier. `progress` hears of copied bytes and may stop
    /// it.
    pub fn flush_all(&self, progress: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<AtRisk, Errno> {
        let Some(memory) = &self.stores[TierId::Memory.index()] else { return Ok(AtRisk::default()) };
        let mut inos = Vec::new();
        memory.scan(&mut |entry| {
            if let ScanEntry::Object { ino, .. } = entry {
                inos.push(ino);
            }
            ControlFlow::Continue(())
        })?;
        let (mut at_risk, mut failed) = (AtRisk::default(), None);
        for object in self.all_mapped() {
            // Those in memory come below.
            if let Err(errno) = self.absorb_device_stores(&object) {
                failed = Some(errno);
            }
        }
        for ino in inos {
            let object = match self.attach_for_move(ino) {
                Ok(object) => object,
                // Removed since it was listed.
                Err(Errno::ENOENT) => continue,
                Err(errno) => {
                    failed = Some(errno);
                    continue;
                }
            };
            let mut stop = false;
            if let Err(errno) = self.flush(&object, &mut |bytes| stop |= progress(bytes).is_break()) {
                tracing::error!(%ino, %errno, "bytes that are only in memory could not be made safe");
                failed = Some(errno);
            }
            let state = object.state.read();
            let bytes = state.map.bytes_at_risk(state.size);
            at_risk.bytes += bytes;
            at_risk.transient += if state.transient { bytes } else { 0 };
            drop(state);
            drop(object);
            self.bound_waiting()?;
            if stop {
                return Err(Errno::ETIMEDOUT);
            }
        }
        failed.map_or(Ok(at_risk), Err)
    }

    pub fn object(&self, ino: Ino) -> Option<Arc<Object>> {
        self.table.get(ino)
    }
}
