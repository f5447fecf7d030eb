//! Opening the tiers' directories, and the data server on them.
//!
//! Invariants: a tier that the file system knows is never made anew, for an empty directory in its place is an unmounted
//! disk; nothing is made before everything that must be there was found; a memory tier that this start made is given
//! back when the start fails.

use std::{path::Path, path::PathBuf, sync::Arc, time::Duration};

use ds::{DataServer, DeviceTier, DsOptions, FirstRecord, KvMaps, Nearline, ScrubOptions};
use kv::MetaStore;
use linked::Linked;
use mds::Mds;
use rustix::process::{Resource, getrlimit};
use store::{
    Backing, Descriptors, FsUuid, MemoryTier, MemoryTierOptions, MemoryTierState, StoreError, TierStore,
    TierStoreOptions,
};
use types::{TierId, TierSet};

use super::{refusals::of_store, site::Site};
use crate::{
    config::{Config, DirTier, PolicyConfig, Thresholds},
    policy::{Promote, WriteBehind},
    running::StartError,
};

/// What the process opens beside objects: each tier's directories, and the metadata's files, threads and connections.
const OWN_FILES: u64 = 3 * 256 + 256;
/// With fewer for objects, ordinary programs could not work.
const OBJECTS_MIN: u64 = 256;
/// Descriptors that each tier keeps at hand: this share of what objects may have, and no more than so many. Most are for
/// files that programs have open.
const CACHED_SHARE: usize = 16;
const CACHED_MAX: usize = 4096;
/// And this share may wait for a sync of a device, or of the journal, as many again being synced.
const WAITING_SHARE: usize = 16;
const WAITING_MAX: usize = 16 << 10;
/// As long as bytes that are written may wait to be written down.
const SAFE_WITHIN: Duration = Duration::from_secs(30);
/// The first write over a checksum waits for the journal, so what is written now and then is left alone.
const SEAL_AFTER: Duration = Duration::from_secs(10);

/// Opening the metadata makes durable what a killed daemon had in its journal; the bytes that it speaks of come first.
pub(super) fn sync_tiers(config: &Config) {
    for tier in [&config.ssd, &config.nearline].into_iter().flatten() {
        if let Ok(dir) = std::fs::File::open(&tier.dir)
            && let Err(error) = rustix::fs::syncfs(&dir)
        {
            tracing::warn!(dir = %tier.dir.display(), %error, "bytes on the device could not be made durable");
        }
    }
}

/// What all tiers of a start have in common.
struct Common {
    uuid: FsUuid,
    descriptors: Arc<Descriptors>,
}

/// The data server, and whether the memory below it was made by this start.
pub(super) struct Tiers {
    pub ds: Arc<DataServer>,
    fresh: bool,
    state: PathBuf,
}

impl Tiers {
    /// After a start that failed. Nothing was written yet, so a memory tier that was made for it holds nothing.
    pub fn give_up(self) {
        self.ds.shutdown();
        if !self.fresh {
            return;
        }
        match self.ds.release_memory() {
            Ok(true) => note_given_back(&self.state),
            Ok(false) => tracing::warn!("the memory tier stays mounted: it is still in use"),
            Err(error) => tracing::warn!(%error, "the memory tier stays mounted"),
        }
    }
}

fn note_given_back(state: &Path) {
    if let Err(error) = Site::load(state).and_then(|mut site| site.set_memory_released()) {
        tracing::warn!(%error, "the next mount will miss a memory tier that held nothing");
    }
}

/// Makes what commits an object's first record.
pub(super) type MakeFirst<'a> = &'a mut dyn FnMut(&Arc<MetaStore>, &Arc<Mds>) -> Box<FirstRecord>;

pub(super) fn open_tiers(
    config: &Config,
    (store, mds): (&Arc<MetaStore>, &Arc<Mds>),
    linked: Option<&Arc<Linked>>,
    first: MakeFirst<'_>,
    note: &mut dyn FnMut(&str),
) -> Result<Tiers, StartError> {
    let mut site = Site::load(&config.mount.state)?;
    let common = Common { uuid: FsUuid(mds.uuid()), descriptors: Arc::new(descriptors()?) };
    let given = [(TierId::Ssd, &config.ssd), (TierId::Nearline, &config.nearline)];
    for (tier, given) in given {
        if let (Some(dir), None) = (site.tier(tier), given) {
            return Err(StartError::Config(format!(
                "this file system keeps data in its {tier} tier in {}: give --{tier} {} to mount it",
                dir.display(),
                dir.display()
            )));
        }
    }
    let mut devices = [None, None];
    // What must be there first, so that a refusal leaves no new directory behind.
    for known in [true, false] {
        for ((tier, given), device) in given.iter().zip(&mut devices) {
            if let Some(given) = given.as_ref()
                && site.tier(*tier).is_some() == known
                && device.is_none()
            {
                *device = Some(open_device(*tier, given, &common, site.tier(*tier))?);
            }
        }
    }
    for (tier, given) in given {
        if let Some(given) = given {
            site.set_tier(tier, &given.dir)?;
        }
    }
    let [ssd, nearline] = devices;
    let (memory, fresh) = open_memory(config, &common, (store, mds), &mut site, note)?;
    if ssd.is_none() && nearline.is_none() && linked.is_none() {
        note("there is no SSD and no near-line tier: all data is in memory and is lost at a reboot");
    }
    let left = fresh.then(|| (memory.0.path().to_owned(), memory.0.backing()));
    let started = DataServer::start(DsOptions {
        memory: Some(memory),
        ssd,
        nearline: slowest(nearline, linked),
        memory_generation: mds.memory_generation(),
        maps: Arc::new(KvMaps::new(store.clone(), first(store, mds))),
        tiering: tiering(config),
        movers: config.policy.movers.max(1) as usize,
        fill_bytes_max: fill_bytes_max(config),
        sync_period: config.metadata.sync_period,
        waiting_max: (common.descriptors.max() / WAITING_SHARE).min(WAITING_MAX),
        safe_within: SAFE_WITHIN,
        seal_after: SEAL_AFTER,
        scrub: scrub(config),
        held: true,
    });
    match started {
        Ok(ds) => Ok(Tiers { ds, fresh, state: config.mount.state.clone() }),
        Err(errno) => {
            if let Some((path, backing)) = left {
                take_away(&path, backing);
                note_given_back(&config.mount.state);
            }
            Err(StartError::Failed(format!("the tiers cannot be read: {errno}")))
        }
    }
}

fn scrub(config: &Config) -> ScrubOptions {
    let PolicyConfig { scrub_every, scrub_rate, .. } = config.policy;
    // So many bytes of a second as a round is of it.
    let bytes = u128::from(scrub_rate.0) * config.metadata.sync_period.as_millis() / 1000;
    ScrubOptions { every: scrub_every, round_bytes: u64::try_from(bytes).unwrap_or(u64::MAX).max(1) }
}

/// A tenth of the daemon's memory, and no more than keeps a fast network busy.
fn fill_bytes_max(config: &Config) -> u64 {
    (config.mount.memory_budget.0 / 10).min(64 << 20)
}

fn slowest(native: Option<DeviceTier>, linked: Option<&Arc<Linked>>) -> Nearline {
    match (native, linked) {
        (Some(device), _) => Nearline::Native(device),
        (None, Some(linked)) => Nearline::Linked(linked.clone()),
        (None, None) => Nearline::None,
    }
}

/// An object's first record and the word that its file is being written are one commit. Weak: the metadata are closed
/// first.
pub(super) fn first_record(_: &Arc<MetaStore>, mds: &Arc<Mds>) -> Box<FirstRecord> {
    let mds = Arc::downgrade(mds);
    Box::new(move |ino, entries| match mds.upgrade() {
        Some(mds) => mds.begin_write_with(ino, entries),
        None => Err(types::Errno::EIO),
    })
}

fn tiering(config: &Config) -> tier::Settings {
    let mut tiering = tier::Settings::default();
    if let WriteBehind::After(span) = config.policy.write_behind {
        tiering.write_behind_closed = span.0;
        // Who wants it later than the latest has it so.
        tiering.write_behind_latest = tiering.write_behind_latest.max(span.0);
    }
    if config.policy.promote == Promote::OnOpen {
        // What the SSD has is fast enough until someone says otherwise.
        tiering.promote_on_open = TierSet::of(TierId::Nearline);
    }
    let mut fix = |tier: TierId, given: &Thresholds| {
        tiering.write_stop[tier.index()] = given.stop_write.map_or(0, |size| size.0);
        tiering.forced_out[tier.index()] = given.forced_out.map(|size| size.0);
        tiering.normal_out[tier.index()] = given.normal_out.map(|size| size.0);
    };
    fix(TierId::Memory, &config.memory.thresholds);
    if let Some(ssd) = &config.ssd {
        fix(TierId::Ssd, &ssd.thresholds);
    }
    tiering
}

/// A device's tier. `known` is where this file system had it last; then it must be there already.
fn open_device(
    tier: TierId,
    given: &DirTier,
    common: &Common,
    known: Option<&Path>,
) -> Result<DeviceTier, StartError> {
    let dir = &given.dir;
    if known.is_none() {
        std::fs::create_dir_all(dir)
            .map_err(|e| StartError::Config(format!("{}: cannot be made: {e}", dir.display())))?;
    }
    let opened = open_store(tier, dir, common, (known.is_none(), given.slow_after));
    let store = opened.map_err(|error| match (&error, known) {
        (StoreError::Missing { .. } | StoreError::NoMarker { .. }, Some(last)) => {
            StartError::Config(missing(tier, dir, last))
        }
        _ => of_store(error),
    })?;
    Ok(DeviceTier { store, limit: given.size.map(|s| s.0) })
}

/// A tier that should be there is not: what to do.
fn missing(tier: TierId, dir: &Path, last: &Path) -> String {
    let what = if dir.is_dir() { "has no onfs-tier.toml" } else { "does not exist" };
    let place = dir.display();
    if dir == last {
        format!(
            "the {tier} tier of this file system is in {place}, which {what}: is its disk mounted? \
             mount it and try again; if the directory was moved, say where to with --{tier} DIR"
        )
    } else {
        format!(
            "the {tier} tier of this file system was last in {}; {place} {what}: move the old directory's whole \
             content there first, or give --{tier} {}",
            last.display(),
            last.display()
        )
    }
}

/// The memory tier, and whether it was made now.
fn open_memory(
    config: &Config,
    common: &Common,
    (meta, mds): (&MetaStore, &Mds),
    site: &mut Site,
    note: &mut dyn FnMut(&str),
) -> Result<((MemoryTier, TierStore), bool), StartError> {
    let mut options = MemoryTierOptions::new(config.memory.dir.clone(), config.memory.size.0, common.uuid);
    options.known_instance = site.memory_instance();
    options.own_tmpfs = config.memory.own_tmpfs;
    if !config.memory.own_tmpfs {
        options.shared_root = config.memory.dir.clone();
        std::fs::create_dir_all(&config.memory.dir).map_err(|e| {
            StartError::Config(format!("{}: cannot be made: {e}", config.memory.dir.display()))
        })?;
    }
    let memory = MemoryTier::prepare(&options).map_err(of_store)?;
    let fresh = memory.state() == MemoryTierState::Fresh;
    let lost = fresh && site.memory_instance().is_some() && !site.memory_was_empty();
    if lost {
        note(
            "the memory tier of the last mount is gone (a reboot?): what was only in it reads as EIO; onfs fsck lists it",
        );
    }
    // Before the new memory is on record: a start that is cut short in between finds the loss again.
    let told = if lost { serve::data::forget_life(meta) } else { Ok(()) };
    let told = told.map_err(|error| StartError::Failed(format!("the metadata cannot be written: {error}")));
    match told.and_then(|()| settle_memory(&memory, common, mds, site)) {
        Ok(store) => Ok(((memory, store), fresh)),
        Err(error) => {
            if fresh {
                let (path, backing) = (memory.path().to_owned(), memory.backing());
                drop(memory);
                take_away(&path, backing);
                note_given_back(&config.mount.state);
            }
            Err(error)
        }
    }
}

fn settle_memory(
    memory: &MemoryTier,
    common: &Common,
    mds: &Mds,
    site: &mut Site,
) -> Result<TierStore, StartError> {
    if memory.state() == MemoryTierState::Fresh {
        // First the generation, so that nothing written from now on can be taken for something older.
        mds.set_memory_generation(mds.memory_generation() + 1)
            .map_err(|errno| StartError::Failed(format!("the metadata cannot be written: {errno}")))?;
    }
    site.set_tier(TierId::Memory, memory.path())?;
    site.set_memory_instance(memory.instance())?;
    open_store(TierId::Memory, memory.path(), common, (true, Duration::MAX)).map_err(of_store)
}

/// Of a memory tier that this start made and nothing was written to.
fn take_away(path: &Path, backing: Backing) {
    let gone = match backing {
        Backing::OwnTmpfs => {
            rustix::mount::unmount(path, rustix::mount::UnmountFlags::NOFOLLOW).map_err(Into::into)
        }
        Backing::SharedTmpfs => std::fs::remove_dir_all(path),
    };
    if let Err(error) = gone {
        tracing::warn!(path = %path.display(), %error, "the memory tier stays mounted");
    }
}

fn open_store(
    tier: TierId,
    dir: &Path,
    common: &Common,
    (create, slow_after): (bool, Duration),
) -> Result<TierStore, StoreError> {
    let mut options = TierStoreOptions::new(tier, common.uuid);
    options.create = create;
    options.slow_after = slow_after;
    options.fd_cache = (common.descriptors.max() / CACHED_SHARE).min(CACHED_MAX);
    options.descriptors = common.descriptors.clone();
    TierStore::open(dir, options)
}

/// How many objects may be open at once, or how high the limit must be.
fn descriptors() -> Result<Descriptors, StartError> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    match limit.checked_sub(OWN_FILES) {
        Some(left) if left >= OBJECTS_MIN => {
            Ok(Descriptors::new(usize::try_from(left).unwrap_or(usize::MAX)))
        }
        Some(_) | None => Err(StartError::Config(format!(
            "the daemon may open {limit} files at once, and needs at least {}: raise the hard limit (ulimit -Hn, or \
             LimitNOFILE= of the service)",
            OWN_FILES + OBJECTS_MIN
        ))),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a start that is refused leaves no directory and no memory behind, and says what is missing. Method: open the
    //! tiers of a state in a temporary directory, with the memory tier in shared memory; take a directory away.
    use super::*;
    use crate::{
        assemble::metadata::{open_mds, open_metadata},
        config::{Host, Settings},
    };

    struct Here {
        root: tempfile::TempDir,
        memory: tempfile::TempDir,
    }

    impl Here {
        fn new() -> Here {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir(root.path().join("state")).unwrap();
            Here { root, memory: tempfile::tempdir_in("/dev/shm").unwrap() }
        }
        fn config(&self, tiers: &[(&str, &str)]) -> Config {
            let mut settings = Settings::defaults();
            let mut set =
                |name: &str, dir: &Path| settings.apply_flag(name, dir.to_str().unwrap(), "test").unwrap();
            set("mount.state", &self.root.path().join("state"));
            set("memory.dir", self.memory.path());
            tiers.iter().for_each(|(name, dir)| set(name, &self.root.path().join(dir)));
            Config::resolve(&settings, &Host::detect(), Path::new("/mnt/onfs")).unwrap()
        }
        fn open(&self, tiers: &[(&str, &str)]) -> Result<(), StartError> {
            let config = self.config(tiers);
            let store = Arc::new(open_metadata(&config, 0, false).unwrap());
            let mds = Arc::new(open_mds(&store, 0).unwrap());
            let opened = open_tiers(&config, (&store, &mds), None, &mut first_record, &mut |_| {});
            let result = opened.map(Tiers::give_up);
            store.close().unwrap();
            result
        }
        fn has(&self, dir: &str) -> bool {
            self.root.path().join(dir).exists()
        }
        fn memory_is_empty(&self) -> bool {
            std::fs::read_dir(self.memory.path()).unwrap().next().is_none()
        }
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_is_made() {
        let here = Here::new();
        let (ssd, nearline) = (("ssd.dir", "ssd"), ("nearline.dir", "slow"));
        here.open(&[ssd]).unwrap();
        assert!(here.memory_is_empty(), "a start that is given up gives its memory back");
        let site = Site::load(&here.root.path().join("state")).unwrap();
        assert!(site.memory_was_empty() && site.tier(TierId::Ssd).is_some());

        let refused = here.open(&[nearline]).unwrap_err().to_string();
        assert!(refused.contains("give --ssd"), "{refused}");
        std::fs::rename(here.root.path().join("ssd"), here.root.path().join("away")).unwrap();
        let refused = here.open(&[nearline, ssd]).unwrap_err().to_string();
        assert!(refused.contains("is its disk mounted?") && refused.contains("does not exist"), "{refused}");
        std::fs::create_dir(here.root.path().join("ssd")).unwrap();
        let refused = here.open(&[nearline, ssd]).unwrap_err().to_string();
        assert!(refused.contains("has no onfs-tier.toml"), "{refused}");
        assert!(!here.has("slow") && here.memory_is_empty());

        here.open(&[nearline, ("ssd.dir", "away")]).unwrap();
        assert!(here.has("slow"));
    }
}
