//! Opening the metadata store and the server on it.

use std::{path::Path, sync::Arc};

use kv::{Engine, MetaStore, MetaStoreOptions, OpenError, SystemDisk};
use mds::{Mds, MdsOptions};
use pg::{PgEngine, Rights, Sharing};

use crate::{
    config::{Config, DatabaseConfig},
    control::DatabaseReport,
    running::StartError,
};

/// Where the metadata is, below the state directory.
const META_DIR: &str = "meta";
/// And where a metadata server has its part of what several share.
const NAMES_DIR: &str = "names";
/// And there the engine's own.
const ENGINE_DIR: &str = "engine";
/// The memory budget's shares: requests' buffers first, then an eighth for journal and overlay, a third for the caches, and
/// three eighths for what is kept of each inode that the kernel knows. What is left of it is enough for what is read of a linked
/// directory, a tenth of the budget.
const CACHE_SHARE: u64 = 3;
/// References, the arbiter's memory of the page cache, and the tables around them; measured.
const KNOWN_BYTES: u64 = 160;
const KNOWN_MIN: u64 = 10_000;

/// How many inodes the kernel may know.
pub(super) fn known_max(config: &Config, buffers: u64) -> usize {
    let left = config.mount.memory_budget.0.saturating_sub(buffers);
    usize::try_from((left / 8 * 3 / KNOWN_BYTES).max(KNOWN_MIN)).unwrap_or(usize::MAX)
}

/// Was anything stored there? A directory that cannot be looked into may have something.
pub fn has_metadata(state: &Path) -> bool {
    match std::fs::read_dir(state.join(META_DIR)) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Has it a part of names that several metadata servers share?
pub(super) fn has_names(state: &Path) -> bool {
    state.join(NAMES_DIR).is_dir()
}

fn store_options(config: &Config, buffers: u64, repair: bool) -> MetaStoreOptions {
    let left = config.mount.memory_budget.0.saturating_sub(buffers);
    MetaStoreOptions {
        sync_period: config.metadata.sync_period,
        checkpoint_bytes: config.metadata.journal_size.0.min(left / 8).max(1 << 20),
        cache_bytes: (left / CACHE_SHARE).max(4 << 20),
        repair,
        ..MetaStoreOptions::default()
    }
}

pub(super) fn open_metadata(config: &Config, buffers: u64, repair: bool) -> Result<MetaStore, OpenError> {
    let options = store_options(config, buffers, repair);
    let dir = config.mount.state.join(META_DIR);
    let engine = kv::engine_of(&dir)?;
    match config.metadata.database.as_ref().filter(|database| !database.shared) {
        None => {
            refuse_database(&dir, engine.as_deref())?;
            MetaStore::open_default(&dir, options)
        }
        Some(database) => open_in_database(&dir, engine.as_deref(), database, options),
    }
}

/// What a state directory was begun with it goes on with: anything else would be another file system over the same data.
fn refuse_database(dir: &Path, engine: Option<&str>) -> Result<(), OpenError> {
    let known = pg::identity_of(&dir.join(ENGINE_DIR));
    let place = match known {
        _ if engine.is_some_and(|engine| engine != pg::ENGINE_NAME) => return Ok(()),
        Ok(Some(known)) => format!("{}, namespace {}", known.url, known.namespace),
        Ok(None) if engine.is_none() => return Ok(()),
        Ok(None) | Err(_) => "(its address is not on record)".to_owned(),
    };
    Err(OpenError::Refused(format!(
        "the metadata of {} are in a PostgreSQL database, {place}: give --metadata-engine postgres and --metadata-url",
        dir.display()
    )))
}

fn open_in_database(
    dir: &Path,
    engine: Option<&str>,
    database: &DatabaseConfig,
    options: MetaStoreOptions,
) -> Result<MetaStore, OpenError> {
    open_shared(dir, engine, database, options).map(|(store, _)| store)
}

/// The part that this server has of names that several servers share. Beside its own store, which has what is here: objects.
pub(super) fn open_names(
    config: &Config,
    database: &DatabaseConfig,
) -> Result<(MetaStore, Rights), OpenError> {
    let dir = config.mount.state.join(NAMES_DIR);
    let engine = kv::engine_of(&dir)?;
    let options = store_options(config, config.mount.memory_budget.0 / 2, false);
    open_shared(&dir, engine.as_deref(), database, options)
}

fn open_shared(
    dir: &Path,
    engine: Option<&str>,
    database: &DatabaseConfig,
    mut options: MetaStoreOptions,
) -> Result<(MetaStore, Rights), OpenError> {
    match engine {
        Some(pg::ENGINE_NAME) if pg::identity_of(&dir.join(ENGINE_DIR))?.is_none() => {
            let detail = "the file WRITER, which says whose rows are ours, is missing".to_owned();
            return Err(OpenError::EngineDamaged { path: dir.join(ENGINE_DIR), detail });
        }
        Some(pg::ENGINE_NAME) | None => {}
        Some(_) => {
            return Err(OpenError::Refused(format!(
                "the metadata of {} are in it, in no database: metadata.engine must be embedded",
                dir.display()
            )));
        }
    }
    options.engine = Some(pg::ENGINE_NAME);
    let pg_options = database_options(database).map_err(OpenError::Refused)?;
    let mut rights = None;
    let open = |dir: &Path, _| {
        let engine = PgEngine::open(dir, pg_options)?;
        rights = Some(engine.rights());
        Ok(Box::new(engine) as Box<dyn Engine>)
    };
    let store = MetaStore::open(dir, open, options, Arc::new(SystemDisk))?;
    let rights = rights.ok_or_else(|| OpenError::Refused("the database was not opened".to_owned()))?;
    Ok((store, rights))
}

/// Reads the password.
fn database_options(database: &DatabaseConfig) -> Result<pg::Options, String> {
    let DatabaseConfig { url, password_file, namespace, shared, standby: _, standby_only: _ } = database;
    let sharing = if *shared { Sharing::Shared } else { Sharing::Alone };
    pg::Options::new(url, namespace, password_file.clone(), sharing)
}

/// The database in words, and its trouble.
pub(super) fn database_report(config: &Config, store: &MetaStore) -> Option<DatabaseReport> {
    let database = config.metadata.database.as_ref()?;
    let without_password = DatabaseConfig { password_file: None, ..database.clone() };
    // What was opened with it is understood.
    let place = database_options(&without_password).ok()?;
    let trouble = store.engine_trouble();
    let since = trouble.as_ref().and_then(|(since, _)| since.elapsed().ok());
    Some(DatabaseReport {
        hosts: place.hosts(),
        database: place.database().to_owned(),
        namespace: place.namespace().to_owned(),
        trouble_ms: trouble.as_ref().map(|_| since.unwrap_or_default().as_millis() as u64),
        trouble: trouble.map_or(String::new(), |(_, why)| why),
    })
}

/// What the opening left out of the journal, if anything.
pub(super) fn recovery_line(store: &MetaStore) -> Option<String> {
    let report = store.recovery();
    if report.repaired {
        Some(format!(
            "the metadata journal was damaged: {} later changes were dropped by the repair",
            report.dropped
        ))
    } else if report.dropped > 0 {
        Some(format!(
            "the metadata journal has a hole: {} later changes were dropped; none of them is known to have been \
             made durable (fsync, or one sync period)",
            report.dropped
        ))
    } else {
        None
    }
}

pub(super) fn mds_options(owner_uid: u32) -> MdsOptions {
    let gid = rustix::process::getegid().as_raw();
    MdsOptions { root_uid: owner_uid, root_gid: gid, ..MdsOptions::default() }
}

pub(super) fn open_mds(store: &Arc<MetaStore>, owner_uid: u32) -> Result<Mds, StartError> {
    Mds::new(store.clone(), mds_options(owner_uid)).map_err(|error| match error {
        mds::Error::OtherFormat { .. } | mds::Error::Store(_) => StartError::Damaged(error.to_string()),
        mds::Error::Random(_) => StartError::Failed(error.to_string()),
    })
}
