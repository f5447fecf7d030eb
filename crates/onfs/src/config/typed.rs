//! The configuration as the daemon uses it: typed, with `auto` resolved for this machine and checked as a whole.

use std::{path::Path, path::PathBuf, time::Duration};

use bucket::{Addressing, Location};
use net::Address;
use types::ByteSize;

use proto::control::NAME_MAX;

use super::{
    database::{DatabaseConfig, database},
    error::ConfigError,
    host::Host,
    layers::Settings,
    link::{BucketConfig, LinkTarget, is_bucket},
    options::{MountFlags, parse_options},
    reader::Reader,
    value::Value,
};
use crate::policy::{CloseSync, Mode, Promote, WriteBehind};

#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    pub mount: MountConfig,
    pub memory: MemoryTier,
    pub ssd: Option<DirTier>,
    pub nearline: Option<DirTier>,
    /// Instead of a near-line tier of ours.
    pub link: Option<LinkConfig>,
    pub metadata: MetadataConfig,
    pub policy: PolicyConfig,
    pub plan: PlanConfig,
    pub monitor: MonitorConfig,
    pub log: LogConfig,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    Auto,
    IoUring,
    Dev,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountConfig {
    pub mountpoint: PathBuf,
    pub state: PathBuf,
    pub transport: Transport,
    /// A guardian keeps the mount when the daemon ends.
    pub guard: bool,
    /// Use it where it can be had.
    pub passthrough: bool,
    /// Empty: of none.
    pub job: String,
    pub allow_other: bool,
    pub flags: MountFlags,
    pub memory_budget: ByteSize,
    pub threads: u32,
    pub workers: u32,
    /// Of a mount of a cluster: this machine's node, 0 for none; `None`: whichever is found here.
    pub node: Option<u32>,
    pub cache_timeout: Duration,
    /// Use only what Linux 6.1 has.
    pub older_kernel: bool,
    /// Keep what a cluster's metadata server lets us.
    pub leases: bool,
    /// Of its files, so many bytes; 0: none.
    pub cache: ByteSize,
    pub read_ahead: ByteSize,
    /// Of small writes that are kept back; 0: none.
    pub write_back: ByteSize,
    pub request_deadline: Duration,
    pub start_deadline: Duration,
    pub stop_deadline: Duration,
}

/// Available bytes below which a tier acts; `None` follows the measured rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Thresholds {
    /// C_s-w.
    pub stop_write: Option<ByteSize>,
    /// C_f-m.
    pub forced_out: Option<ByteSize>,
    /// C_n-m.
    pub normal_out: Option<ByteSize>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryTier {
    pub dir: PathBuf,
    /// `dir` is ours to mount a tmpfs on (root, and no directory was given).
    pub own_tmpfs: bool,
    pub size: ByteSize,
    pub thresholds: Thresholds,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirTier {
    pub dir: PathBuf,
    /// `None`: all that its file system has.
    pub size: Option<ByteSize>,
    /// The near-line tier has none: nothing lies below it.
    pub thresholds: Thresholds,
    /// One operation that takes longer is slow.
    pub slow_after: Duration,
}

/// A linked directory or bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkConfig {
    pub target: LinkTarget,
    pub look_every: Duration,
    pub publish_after: Duration,
    pub publish_latest: Duration,
    pub deadline: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetadataConfig {
    pub sync_period: Duration,
    pub journal_size: ByteSize,
    /// The engine, if it is not embedded.
    pub database: Option<DatabaseConfig>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PolicyConfig {
    pub promote: Promote,
    pub mode: Mode,
    /// `None`: as the mode has it.
    pub sync: Option<CloseSync>,
    pub write_behind: WriteBehind,
    /// `None`: never by itself.
    pub scrub_every: Option<Duration>,
    pub scrub_rate: ByteSize,
    /// On a data server: of second copies that are made anew.
    pub copy_rate: ByteSize,
    pub movers: u32,
}

/// What earlier runs of jobs are good for.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanConfig {
    pub history: bool,
    /// From 0 to 1.
    pub threshold: f64,
    pub job_variables: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    Text,
    Json,
}

/// Where a monitoring system asks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MonitorConfig {
    pub listen: Option<Address>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogConfig {
    pub level: String,
    /// `None`: standard error in the foreground, else `onfs.log` in the state directory.
    pub file: Option<PathBuf>,
    pub format: LogFormat,
}

impl Config {
    /// Resolves `auto` for this host and mount point, and checks what no single setting can: directories that
    /// overlap, thresholds out of order. `mountpoint` is absolute.
    pub fn resolve(settings: &Settings, host: &Host, mountpoint: &Path) -> Result<Config, ConfigError> {
        let reader = Reader(settings);
        let mount = mount(&reader, host, mountpoint)?;
        let memory = memory(&reader, host, &mount.state)?;
        let config = Config {
            memory,
            ssd: dir_tier(&reader, "ssd", true)?,
            nearline: dir_tier(&reader, "nearline", false)?,
            link: link(&reader)?,
            metadata: MetadataConfig {
                sync_period: reader.time("metadata", "sync_period")?,
                journal_size: reader.size("metadata", "journal_size")?,
                database: database(&reader)?,
            },
            policy: policy(&reader)?,
            plan: plan(&reader)?,
            monitor: monitor(&reader)?,
            log: log(&reader)?,
            mount,
        };
        check_directories(&config)?;
        check_mode(&config)?;
        check_guard(&config)?;
        Ok(config)
    }
}

fn job(reader: &Reader<'_>, host: &Host) -> Result<String, ConfigError> {
    let job = reader.text("mount", "job")?.or(host.job.as_deref()).unwrap_or_default();
    if job.len() > NAME_MAX {
        return Err(ConfigError::new("mount.job", format!("longer than {NAME_MAX} bytes")));
    }
    Ok(job.to_owned())
}

pub(super) fn mount(reader: &Reader<'_>, host: &Host, mountpoint: &Path) -> Result<MountConfig, ConfigError> {
    let state = match reader.path("mount", "state")? {
        Some(path) => path,
        None => host.default_state(mountpoint).ok_or_else(|| {
            ConfigError::new("mount.state", "there is no home directory to put it in: give --state DIR")
        })?,
    };
    let transport = match reader.word("mount", "transport")? {
        "io-uring" => Transport::IoUring,
        "dev" => Transport::Dev,
        _ => Transport::Auto,
    };
    let options = reader.entry("mount", "options")?;
    let words =
        parse_options(&options.value.to_string()).map_err(|e| ConfigError::new(&options.origin, e))?;
    Ok(MountConfig {
        mountpoint: mountpoint.to_owned(),
        state,
        transport,
        guard: reader.word("mount", "guard")? == "on",
        passthrough: reader.word("mount", "passthrough")? == "auto",
        job: job(reader, host)?,
        older_kernel: reader.word("mount", "kernel_features")? == "6.1",
        allow_other: match reader.word("mount", "allow_other")? {
            "yes" => true,
            "no" => false,
            _ => host.is_root(),
        },
        flags: words.flags,
        memory_budget: reader.size("mount", "memory_budget")?,
        threads: reader.count("mount", "threads")?.unwrap_or(host.cpus),
        workers: reader.count("mount", "workers")?.unwrap_or((host.cpus * 4).max(8)),
        node: reader.count("mount", "node")?,
        cache_timeout: reader.time("mount", "cache_timeout")?,
        leases: reader.word("mount", "leases")? == "on",
        cache: reader.size_or_word("mount", "cache")?.unwrap_or(ByteSize(0)),
        read_ahead: reader.size_or_word("mount", "read_ahead")?.unwrap_or(ByteSize(0)),
        write_back: reader.size_or_word("mount", "write_back")?.unwrap_or(ByteSize(0)),
        request_deadline: reader.time("mount", "request_deadline")?,
        start_deadline: reader.time("mount", "start_deadline")?,
        stop_deadline: reader.time("mount", "stop_deadline")?,
    })
}

fn memory(reader: &Reader<'_>, host: &Host, state: &Path) -> Result<MemoryTier, ConfigError> {
    let dir = reader.path("memory", "dir")?;
    let size = reader.size_or_word("memory", "size")?;
    if let Some(size) = size {
        let origin = &reader.entry("memory", "size")?.origin;
        let refused = |why| ConfigError::new(origin, format!("memory.size: {why}"));
        host.check_memory_tier(size).map_err(refused)?;
    }
    Ok(MemoryTier {
        own_tmpfs: dir.is_none() && host.is_root(),
        dir: dir.unwrap_or_else(|| host.default_memory_dir(state)),
        size: size.unwrap_or(ByteSize(host.default_memory())),
        thresholds: thresholds(reader, "memory")?,
    })
}

fn dir_tier(
    reader: &Reader<'_>,
    section: &str,
    has_thresholds: bool,
) -> Result<Option<DirTier>, ConfigError> {
    let Some(dir) = reader.path(section, "dir")? else { return Ok(None) };
    let thresholds = if has_thresholds { thresholds(reader, section)? } else { Thresholds::default() };
    let (size, slow_after) = (reader.size_or_word(section, "size")?, reader.time(section, "slow_after")?);
    Ok(Some(DirTier { dir, size, thresholds, slow_after }))
}

fn link(reader: &Reader<'_>) -> Result<Option<LinkConfig>, ConfigError> {
    let Some(target) = link_target(reader)? else { return Ok(None) };
    if let Some(other) = reader.path("nearline", "dir")? {
        let origin = &reader.entry("nearline", "link")?.origin;
        let message = format!("{target} is linked, so {} cannot be the near-line tier, too", other.display());
        return Err(ConfigError::new(origin, message));
    }
    let time = |key| reader.time("nearline", key);
    Ok(Some(LinkConfig {
        target,
        look_every: time("look_every")?,
        publish_after: time("publish_after")?,
        publish_latest: time("publish_latest")?,
        deadline: time("deadline")?,
    }))
}

fn link_target(reader: &Reader<'_>) -> Result<Option<LinkTarget>, ConfigError> {
    let Some(text) = reader.text("nearline", "link")? else { return Ok(None) };
    if !is_bucket(text) {
        return Ok(Some(LinkTarget::Directory(text.into())));
    }
    let origin = &reader.entry("nearline", "link")?.origin;
    let location = Location::parse(text).map_err(|why| ConfigError::new(origin, why))?;
    Ok(Some(LinkTarget::Bucket(BucketConfig {
        location,
        endpoint: reader.text("nearline", "endpoint")?.map(str::to_owned),
        region: reader.text("nearline", "region")?.map(str::to_owned),
        addressing: match reader.word("nearline", "addressing")? {
            "virtual-host" => Addressing::VirtualHost,
            _ => Addressing::Path,
        },
        allow_http: matches!(reader.entry("nearline", "allow_http")?.value, Value::Switch(true)),
    })))
}

/// C_s-w <= C_f-m <= C_n-m, for those that are given.
fn thresholds(reader: &Reader<'_>, section: &str) -> Result<Thresholds, ConfigError> {
    let keys = ["stop_write", "forced_out", "normal_out"];
    let mut found = [None; 3];
    for (slot, key) in found.iter_mut().zip(keys) {
        *slot = reader.size_or_word(section, key)?;
    }
    let mut last: Option<(ByteSize, &str)> = None;
    for (value, key) in found.iter().zip(keys) {
        let Some(value) = *value else { continue };
        if let Some((below, other)) = last.filter(|(below, _)| *below > value) {
            let origin = &reader.entry(section, key)?.origin;
            let message = format!("{section}.{key} ({value}) is less than {section}.{other} ({below})");
            return Err(ConfigError::new(origin, message));
        }
        last = Some((value, key));
    }
    Ok(Thresholds { stop_write: found[0], forced_out: found[1], normal_out: found[2] })
}

fn policy(reader: &Reader<'_>) -> Result<PolicyConfig, ConfigError> {
    let entry = reader.entry("policy", "write_behind")?;
    let write_behind =
        if let Value::Time(span) = entry.value { WriteBehind::After(span) } else { WriteBehind::Never };
    let scrub_every = &reader.entry("policy", "scrub_every")?.value;
    Ok(PolicyConfig {
        promote: Promote::from_name(reader.word("policy", "promote")?).unwrap_or(Promote::OnOpen),
        mode: mode(reader)?,
        sync: CloseSync::from_name(reader.word("policy", "sync")?),
        write_behind,
        scrub_every: if let Value::Time(span) = scrub_every { Some(span.0) } else { None },
        scrub_rate: reader.size("policy", "scrub_rate")?,
        copy_rate: reader.size("policy", "copy_rate")?,
        movers: reader.count("policy", "movers")?.unwrap_or(1),
    })
}

fn plan(reader: &Reader<'_>) -> Result<PlanConfig, ConfigError> {
    let variables = reader.entry("plan", "job_variables")?.value.to_string();
    Ok(PlanConfig {
        history: reader.word("plan", "history")? == "on",
        threshold: f64::from(reader.count("plan", "hit_rate")?.unwrap_or(100)) / 100.0,
        job_variables: variables.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
    })
}

fn mode(reader: &Reader<'_>) -> Result<Mode, ConfigError> {
    let mode = Mode::from_name(reader.word("policy", "mode")?).unwrap_or(Mode::Local);
    let transient = reader.entry("policy", "transient")?;
    match (&transient.value, mode) {
        (Value::Switch(true), Mode::Local | Mode::Transient) => Ok(Mode::Transient),
        (Value::Switch(true), Mode::Global | Mode::Hybrid) => {
            let message =
                format!("policy.transient is yes, and policy.mode is {}: give one of them", mode.name());
            Err(ConfigError::new(&transient.origin, message))
        }
        (_, mode) => Ok(mode),
    }
}

/// What nobody could go on with.
fn check_guard(config: &Config) -> Result<(), ConfigError> {
    let refused = |why| Err(ConfigError::new("mount.guard", why));
    match config {
        _ if !config.mount.guard => Ok(()),
        Config { link: Some(_), .. } => {
            refused("a mount with a linked directory cannot be guarded yet: mount it without --guard")
        }
        Config { mount: MountConfig { transport: Transport::IoUring, .. }, .. } => {
            refused("a guarded mount is served over /dev/fuse: leave --transport io-uring out, or --guard")
        }
        Config { mount: MountConfig { older_kernel: true, .. }, .. } => {
            refused("it needs what Linux 6.9 has: leave mount.kernel_features or --guard out")
        }
        _ => Ok(()),
    }
}

/// A linked directory of which nothing is shown, and to which nothing is written, is none.
fn check_mode(config: &Config) -> Result<(), ConfigError> {
    if config.link.is_some() && config.policy.mode == Mode::Transient {
        let message = "with a linked directory only single directories are transient: onfs policy set DIR mode=transient";
        return Err(ConfigError::new("policy.mode", message));
    }
    Ok(())
}

pub(super) fn monitor(reader: &Reader<'_>) -> Result<MonitorConfig, ConfigError> {
    let Some(text) = reader.text("monitor", "listen")? else { return Ok(MonitorConfig::default()) };
    let origin = &reader.entry("monitor", "listen")?.origin;
    let listen = text.parse().map_err(|why| ConfigError::new(origin, format!("monitor.listen: {why}")))?;
    Ok(MonitorConfig { listen: Some(listen) })
}

pub(super) fn log(reader: &Reader<'_>) -> Result<LogConfig, ConfigError> {
    Ok(LogConfig {
        level: reader.entry("log", "level")?.value.to_string(),
        file: reader.path("log", "file")?,
        format: if reader.word("log", "format")? == "json" { LogFormat::Json } else { LogFormat::Text },
    })
}

/// No tier may hold another one, and nothing that the daemon needs may lie on the mount itself, which would wait
/// for the daemon.
fn check_directories(config: &Config) -> Result<(), ConfigError> {
    let mut places = vec![("mount.state", &config.mount.state), ("memory.dir", &config.memory.dir)];
    places.extend(config.ssd.iter().map(|tier| ("ssd.dir", &tier.dir)));
    places.extend(config.nearline.iter().map(|tier| ("nearline.dir", &tier.dir)));
    let linked = config.link.iter().filter_map(|link| link.target.directory());
    places.extend(linked.map(|dir| ("nearline.link", dir)));
    for (name, dir) in &places {
        if dir.starts_with(&config.mount.mountpoint) {
            let message = format!("{} lies on the mount point itself: choose a place outside", dir.display());
            return Err(ConfigError::new(name, message));
        }
    }
    for (i, (name, dir)) in places.iter().enumerate() {
        for (other_name, other) in &places[i + 1..] {
            let inside_state = *name == "mount.state" && *other_name == "memory.dir" && dir != other;
            if !inside_state && (dir.starts_with(other) || other.starts_with(dir)) {
                let message = format!(
                    "{} and {} ({other_name}) overlap: give each its own directory",
                    dir.display(),
                    other.display()
                );
                return Err(ConfigError::new(name, message));
            }
        }
    }
    Ok(())
}
