//! The checkpoint: what was committed goes from journal and overlay into the engine, while commits go on. And the two
//! background threads, one that syncs and one that checkpoints.
//!
//! Order, each step only after the one before: new segment durable; freeze; sync of the frozen segment (and of the data
//! it speaks of); one durable engine batch with the last number; cache; frozen overlay dropped; segment deleted.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::Bytes;
use namespace::txn::KvError;

use crate::{
    ApplyError, Engine, Lsn, OpenError,
    key::Key,
    overlay::Map,
    recovery::Replay,
    reserve::{self, Reserve},
    shared::Shared,
    work::WorkState,
};

/// After a checkpoint that failed, so that requests do not make a busy loop.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The reserve is not given in smaller pieces.
const GIVEN_BYTES_MIN: u64 = 1 << 20;

/// How often commits that are refused for want of space look for it.
const SPACE_CHECK_PERIOD: Duration = Duration::from_millis(100);

impl Shared {
    /// One after the other. An error of the journal's room or of the hook leaves a frozen overlay for the next try.
    pub(crate) fn checkpoint(&self) -> Result<(), KvError> {
        let mut frozen_to = self.checkpointing.lock();
        self.begun.fetch_add(1, Ordering::AcqRel);
        self.rotating.store(true, Ordering::Release);
        let result = self.checkpoint_inner(&mut frozen_to);
        self.rotating.store(false, Ordering::Release);
        let whole = self.take_reserve();
        self.no_space.store(result == Err(KvError::Full), Ordering::Release);
        *self.room.0.lock() += 1;
        drop(frozen_to);
        self.room.1.notify_all();
        result.and(whole.map(|_| ()))
    }

    fn checkpoint_inner(&self, frozen_to: &mut Option<Lsn>) -> Result<(), KvError> {
        self.health.check()?;
        // What an earlier attempt left goes first.
        if let Some(lsn) = *frozen_to {
            self.make_room()?;
            self.carry_on_reserve(lsn)?;
            *frozen_to = None;
        }
        if self.journal.active_bytes() == 0 {
            return Ok(());
        }
        let room = self.make_room()?;
        let segment = self.journal.prepare(room)?;
        let lsn = {
            let _alone = self.gate.write();
            self.overlay.freeze();
            self.journal.rotate(segment)
        };
        self.rotating.store(false, Ordering::Release);
        *frozen_to = Some(lsn);
        self.carry_on_reserve(lsn)?;
        *frozen_to = None;
        Ok(())
    }

    /// Others may have been faster to take the room that was found: then all of the reserve goes into it.
    fn carry_on_reserve(&self, lsn: Lsn) -> Result<(), KvError> {
        match self.carry(lsn) {
            Err(KvError::Full) if self.reserve.held() > 0 => {
                self.reserve.give(u64::MAX)?;
                self.carry(lsn)
            }
            other => other,
        }
    }

    /// The frozen overlay, which ends with `lsn`, into the engine.
    fn carry(&self, lsn: Lsn) -> Result<(), KvError> {
        self.journal.sync_to(lsn)?;
        if let Some(follower) = self.journal.follower() {
            follower.before_apply(lsn)?;
        }
        let maps = self.overlay.frozen();
        match self.engine.apply(&batch(&maps), lsn) {
            Ok(()) => {}
            // The frozen overlay stays over it until it was applied, so nobody sees whether it was.
            Err(ApplyError::Nothing(error) | ApplyError::Again(error)) => return Err(error),
            // Whether the engine has it is known when it is opened again; the journal has it.
            Err(ApplyError::Unknown(error) | ApplyError::Fenced(error)) => {
                self.health.fail(&format!("the metadata engine failed: {error}"));
                return Err(error);
            }
        }
        self.applied.store(lsn.0, Ordering::Release);
        self.cache.begin_update();
        for map in &maps {
            for (key, slot) in map.iter() {
                self.cache.update(key, slot.value.as_ref());
            }
        }
        self.overlay.drop_frozen();
        self.journal.remove_applied(lsn);
        if let Some(follower) = self.journal.follower() {
            follower.applied(lsn);
        }
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Sees that the disk has room for what a checkpoint writes; on a full disk that is the reserve's. Returns what is left
    /// beyond it.
    fn make_room(&self) -> Result<u64, KvError> {
        // The journal has every entry that the overlay has; the overlay counts what an entry costs in memory, too.
        let carried = self.journal.bytes().min(self.overlay.bytes() as u64);
        make_room(
            &|| self.journal.free_bytes(),
            &self.reserve,
            reserve::cost_of(carried),
            self.options.checkpoint_bytes,
        )
    }

    /// The reserve made whole, if the disk has room for it. Under `checkpointing`: a checkpoint needs what it was given.
    fn take_reserve(&self) -> Result<bool, KvError> {
        let was_short = self.reserve.is_short();
        let whole = self.reserve.take(self.journal.free_bytes()?)?;
        match (was_short, whole) {
            (false, false) => tracing::warn!(
                "the disk under the metadata is full: until there is room, only removals and what keeps data safe"
            ),
            (true, true) => tracing::info!("the disk under the metadata has room again"),
            (false, true) | (true, false) => {}
        }
        if !whole {
            self.engine.want_room();
        }
        Ok(whole)
    }

    /// For commits that would be refused since the disk was full: is there room again? Looks at most every
    /// [`SPACE_CHECK_PERIOD`], and then begins a checkpoint at once. One that runs looks itself when it ends.
    pub(crate) fn space_came_back(&self) -> bool {
        let Some(_none_runs) = self.checkpointing.try_lock() else { return false };
        {
            let Some(mut checked) = self.space_checked.try_lock() else { return false };
            if checked.is_some_and(|at| at.elapsed() < SPACE_CHECK_PERIOD) {
                return false;
            }
            *checked = Some(Instant::now());
        }
        let blocked = self.no_space.load(Ordering::Acquire);
        let whole = self.take_reserve().unwrap_or(false);
        if whole || blocked {
            self.no_space.store(false, Ordering::Release);
            self.work.request_checkpoint_at_once();
        }
        whole
    }

    /// After the threads have ended.
    pub(crate) fn close(&self) -> Result<(), KvError> {
        match self.health.check() {
            Ok(()) => {}
            Err(_) if self.health.is_closed() => return Ok(()),
            Err(error) => return Err(error),
        }
        let result = self.checkpoint();
        {
            let _alone = self.gate.write();
            self.health.close();
        }
        result?;
        // A commit may have come in between; then the journal keeps it.
        if self.journal.active_bytes() == 0 {
            self.journal.remove_active()?;
        }
        self.engine.close()
    }
}

/// See [`Shared::make_room`]: `cost` must be there, and `wish` if the disk has it.
pub(crate) fn make_room(
    free_bytes: &dyn Fn() -> Result<u64, KvError>,
    reserve: &Reserve,
    cost: u64,
    wish: u64,
) -> Result<u64, KvError> {
    let mut free = free_bytes()?;
    // Some file systems are slow to say that room came back: then it gives more than was missing.
    while free < cost + wish && reserve.held() > 0 {
        reserve.give((cost + wish - free).max(GIVEN_BYTES_MIN))?;
        free = free_bytes()?;
    }
    free.checked_sub(cost).ok_or(KvError::Full)
}

/// All entries in key order.
fn batch(maps: &[Arc<Map>]) -> Vec<(&[u8], Option<&[u8]>)> {
    let mut batch: Vec<(&[u8], Option<&[u8]>)> =
        maps.iter().flat_map(|map| map.iter()).map(|(key, slot)| (&**key, slot.value.as_deref())).collect();
    // Each map is in order already.
    batch.sort_by(|a, b| a.0.cmp(b.0));
    batch
}

/// At the start: what the journal had and the engine has not.
pub(crate) fn replay_into(engine: &dyn Engine, replay: Vec<Replay>, last: Lsn) -> Result<(), KvError> {
    if replay.is_empty() {
        return Ok(());
    }
    let mut merged: BTreeMap<Key, Option<Bytes>> = BTreeMap::new();
    for Replay { lsn: _, entries } in replay {
        merged.extend(entries);
    }
    let batch: Vec<_> = merged.iter().map(|(key, value)| (&**key, value.as_deref())).collect();
    match engine.apply(&batch, last) {
        Ok(()) => Ok(()),
        Err(
            ApplyError::Nothing(error)
            | ApplyError::Unknown(error)
            | ApplyError::Again(error)
            | ApplyError::Fenced(error),
        ) => Err(error),
    }
}

/// Starts the threads; they end after [`Work::stop`].
pub(crate) fn start(shared: &Arc<Shared>) -> Result<Vec<JoinHandle<()>>, OpenError> {
    let spawn = |name: &str, body: fn(&Shared)| {
        let shared = Arc::clone(shared);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || body(&shared))
            .map_err(|e| OpenError::Engine(KvError::Io(format!("cannot start a thread: {e}"))))
    };
    let syncer = spawn("kv-sync", sync_periodically)?;
    match spawn("kv-checkpoint", checkpoint_periodically) {
        Ok(checkpointer) => Ok(vec![syncer, checkpointer]),
        Err(error) => {
            shared.work.stop();
            drop(syncer.join());
            Err(error)
        }
    }
}

fn sync_periodically(shared: &Shared) {
    let mut failing = false;
    while shared.work.wait(shared.options.sync_period, |_| false) {
        if shared.health.check().is_err() {
            return;
        }
        let result =
            shared.journal.sync_to(shared.journal.last()).and_then(|()| shared.journal.mark_synced());
        report(&mut failing, result, "the metadata journal is not synced");
    }
}

fn checkpoint_periodically(shared: &Shared) {
    let mut failing = false;
    while shared.work.wait(shared.options.checkpoint_period, |state| std::mem::take(&mut state.checkpoint)) {
        if shared.health.check().is_err() {
            return;
        }
        let result = shared.checkpoint();
        report(&mut failing, result, "the metadata engine is not brought up to date");
        let at_once = |state: &mut WorkState| std::mem::take(&mut state.at_once);
        if failing && !shared.work.wait(PAUSE_AFTER_FAILURE, at_once) {
            return;
        }
    }
}

/// Once when it begins to fail, once when it works again.
fn report(failing: &mut bool, result: Result<(), KvError>, what: &str) {
    match &result {
        Err(error) if !*failing => tracing::warn!(%error, "{what}"),
        Ok(()) if *failing => tracing::info!("no longer: {what}"),
        Ok(()) | Err(_) => {}
    }
    *failing = result.is_err();
}
