//! Every setting, once: section, key, kind with unit and range, default, flag and doc line.

use super::{host::MEMORY_TIER_MIN, value::Kind};

/// One setting. The default is text of the same form as in the file.
#[derive(Debug)]
pub struct Setting {
    pub section: &'static str,
    pub key: &'static str,
    pub kind: Kind,
    pub default: &'static str,
    /// The flag of `onfs mount` that sets it, if there is one.
    pub flag: Option<&'static str>,
    pub doc: &'static str,
}

impl Setting {
    /// `section.key`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }
    /// `ONFS_SECTION_KEY`.
    pub fn variable(&self) -> String {
        format!("ONFS_{}_{}", self.section, self.key).to_uppercase()
    }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const SECOND: u64 = 1000;
const HOUR: u64 = 3600 * SECOND;

const TIER_SIZE: Kind = Kind::Size { min: 64 * MIB, max: 1024 * TIB, or: Some("all") };
const THRESHOLD: Kind = Kind::Size { min: 0, max: 1024 * TIB, or: Some("auto") };
const TIER_DIR: Kind = Kind::Path { or: Some("none") };
const SLOW_AFTER: Kind = Kind::Time { min_ms: 1, max_ms: HOUR, or: None };

/// The sections in the order of the reference, with what each is about.
pub const fn sections() -> &'static [(&'static str, &'static str)] {
    &[
        ("mount", "The mount itself: state, transport, budget, deadlines."),
        ("memory", "The memory tier (DS-m): a tmpfs of its own. What is only there is lost at a reboot."),
        ("ssd", "The SSD tier (DS-s): a directory on a fast local disk."),
        ("nearline", "The near-line tier (DS-d): a directory on the slow, large, safe disk."),
        (
            "metadata",
            "The metadata store: a journal in the state directory, and the engine that it is carried into.",
        ),
        ("policy", "Defaults of the root directory; `onfs policy set` changes them per directory."),
        ("plan", "What comes up before it is read, learned from earlier runs of a job."),
        ("node", "A server's own place in its cluster."),
        ("cluster", "The cluster that a server belongs to, or that is mounted."),
        ("monitor", "Metrics and health over HTTP, for a monitoring system."),
        ("log", "What the daemon writes down."),
    ]
}

macro_rules! settings {
    ($($section:ident . $key:ident : $kind:expr, $default:literal, $flag:expr, $doc:literal;)*) => {
        /// All settings, in the order of the reference.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            section: stringify!($section),
            key: stringify!($key),
            kind: $kind,
            default: $default,
            flag: $flag,
            doc: $doc,
        },)*];
    };
}

settings! {
    mount.state: Kind::Path { or: Some("auto") }, "auto", Some("--state"),
        "Directory of the metadata, the journal, the log and the control socket. `auto` is \
         /var/lib/onfs/NAME for root and $XDG_STATE_HOME/onfs/NAME for others, where NAME comes from the mount point.";
    mount.source: Kind::Text { or: Some("none") }, "none", Some("HOST[:PORT]:/"),
        "The cluster that is mounted, by its metadata servers: HOST[:PORT][,HOST[:PORT]...]:/. `none` is a file system of this machine's own.";
    mount.transport: Kind::Choice(&["auto", "io-uring", "dev"]), "auto", Some("--transport"),
        "How requests come from the kernel: FUSE over io_uring, or /dev/fuse. `auto` takes io_uring where the kernel offers it; a mount of a cluster is served over /dev/fuse.";
    mount.guard: Kind::Choice(&["off", "on"]), "off", Some("--guard"),
        "Keep the mount when the daemon ends unexpectedly: a small process starts another one, which goes on with what programs have open. \
         Needs Linux 6.9. Not with a linked directory or FUSE over io_uring; of a cluster without passthrough, mount.write_back and shared mappings.";
    mount.passthrough: Kind::Choice(&["auto", "off"]), "auto", None,
        "Let the kernel read and write a file that is wholly in one tier without asking the daemon. Needs root.";
    mount.kernel_features: Kind::Choice(&["all", "6.1"]), "all", None,
        "Which features of the kernel's FUSE are used: all that it offers, or of these only what Linux 6.1 (Debian 12) has: \
         no io_uring, no passthrough, no direct I/O for writers. For tests, and to tell whether a newer feature is at fault.";
    mount.allow_other: Kind::Choice(&["auto", "yes", "no"]), "auto", None,
        "Let other users in. `auto` is yes for root and no for others, who need user_allow_other in /etc/fuse.conf for it.";
    mount.options: Kind::MountOptions, "", Some("-o"),
        "Mount flags for the kernel: ro, noatime, nodiratime, nosuid, nodev, noexec, sync.";
    mount.memory_budget: Kind::Size { min: 64 * MIB, max: TIB, or: None }, "256MiB", Some("--memory-budget"),
        "All that the daemon may hold in memory for caches and buffers, apart from the memory tier's own data.";
    mount.threads: Kind::Count { min: 1, max: 256, or: Some("auto") }, "auto", None,
        "Threads that take requests from the kernel. `auto` is one per CPU.";
    mount.workers: Kind::Count { min: 1, max: 1024, or: Some("auto") }, "auto", None,
        "Threads for requests that must wait for a device. `auto` is four per CPU, at least 8.";
    mount.node: Kind::Count { min: 0, max: u32::MAX as u64, or: Some("auto") }, "auto", None,
        "Of a mount of a cluster: the node of this machine, whose data server gets what only this mount writes; 0 is none. `auto` is the data server \
         that listens at an address of this machine, if there is just one.";
    mount.job: Kind::Text { or: Some("auto") }, "auto", None,
        "Of a mount of a cluster: the scheduler's job that it is of. The second copy of what is on a node of the job is rather on a node without it. `auto` \
         takes SLURM_JOB_ID, PBS_JOBID, FLUX_JOB_ID or LSB_JOBID, whichever is set when it is mounted.";
    mount.cache_timeout: Kind::Time { min_ms: 0, max_ms: 24 * HOUR, or: None }, "1h", None,
        "How long the kernel may answer from its caches of names and attributes; they are invalidated when they change.";
    mount.leases: Kind::Choice(&["on", "off"]), "on", None,
        "Of a mount of a cluster: keep names, attributes and bytes as long as the metadata server lets us, instead of asking each time, and let \
         programs share mappings of files. `off` is for finding out whether that is at fault.";
    mount.cache: Kind::Size { min: MIB, max: TIB, or: Some("off") }, "256MiB", None,
        "Of a mount of a cluster: bytes of files that the client keeps at the most, as long as the metadata server lets it. `off` keeps none.";
    mount.read_ahead: Kind::Size { min: MIB, max: TIB, or: Some("off") }, "64MiB", None,
        "Of a mount of a cluster: bytes that are asked for ahead of large reads (512 KiB and more), and of records at a constant distance, at the most, 4 MiB of \
         them for each opening, as long as the metadata server lets it. `off` asks for what is read alone.";
    mount.write_back: Kind::Size { min: MIB, max: 64 * GIB, or: Some("off") }, "off", None,
        "Of a mount of a cluster: bytes of writes that the client keeps back at the most, for a second at the most, of files that it alone has open. Small ones \
         are many in one request, large ones are on their way while the program goes on; what was not sent is lost if the mount is killed or its machine \
         dies. `off` sends each write before it is answered.";
    mount.request_deadline: Kind::Time { min_ms: SECOND, max_ms: HOUR, or: None }, "2min", None,
        "A request that takes longer is named in the log, once. It is not cut off.";
    mount.start_deadline: Kind::Time { min_ms: SECOND, max_ms: 24 * HOUR, or: None }, "5min", None,
        "How long `onfs mount` waits until the mount is usable; recovery after a crash counts.";
    mount.stop_deadline: Kind::Time { min_ms: SECOND, max_ms: 24 * HOUR, or: None }, "10min", None,
        "How long unmounting may spend on making data safe before it gives up and says so.";

    memory.dir: Kind::Path { or: Some("auto") }, "auto", None,
        "Where the memory tier lives. `auto` is a tmpfs that root mounts in the state directory, or a directory in /dev/shm for others.";
    memory.size: Kind::Size { min: MEMORY_TIER_MIN, max: 64 * TIB, or: Some("auto") }, "auto", Some("--memory"),
        "Limit of the memory tier; `onfs memory set` changes it while mounted. `auto` is a quarter of MemAvailable at mount, at least 64MiB.";
    memory.stop_write: THRESHOLD, "auto", None,
        "C_s-w: so much stays free; a write that needs new space waits, or goes to the next tier. At most a sixteenth of the tier; `auto` is 0.";
    memory.forced_out: THRESHOLD, "auto", None,
        "C_f-m: with less available, open files are moved out too. At most half of the tier; `auto` follows the measured rates.";
    memory.normal_out: THRESHOLD, "auto", None,
        "C_n-m: with less available, closed files are moved out. At most three quarters of the tier; `auto` follows the measured rates.";

    ssd.dir: TIER_DIR, "none", Some("--ssd"),
        "Directory of the tier; `none` means that there is no such tier.";
    ssd.size: TIER_SIZE, "all", Some("--ssd"),
        "The most that the tier may use; `all` is what its file system has.";
    ssd.stop_write: THRESHOLD, "auto", None, "C_s-w of this tier.";
    ssd.forced_out: THRESHOLD, "auto", None, "C_f-m of this tier.";
    ssd.normal_out: THRESHOLD, "auto", None, "C_n-m of this tier.";
    ssd.slow_after: SLOW_AFTER, "500ms", None,
        "An operation of its device that takes longer is slow. When that comes again and again while the device moves little, or one takes \
         20 times that, other tiers, and other servers of a cluster, are taken before it (`onfs status` says so).";

    nearline.dir: TIER_DIR, "none", Some("--nearline"),
        "Directory of the tier; `none` means that there is no such tier.";
    nearline.size: TIER_SIZE, "all", Some("--nearline"),
        "The most that the tier may use; `all` is what its file system has.";
    nearline.slow_after: SLOW_AFTER, "3s", None, "As `ssd.slow_after`, of this tier; a linked one has `nearline.deadline`.";
    nearline.link: Kind::Link { or: Some("none") }, "none", Some("--nearline link:DIR"),
        "An existing directory or bucket as the near-line tier, path for path: its files are seen in the mount, and those of the mount \
         come to be there. Instead of `nearline.dir`.";
    nearline.look_every: Kind::Time { min_ms: 0, max_ms: 24 * HOUR, or: None }, "1s", None,
        "What others change in the linked directory is seen this much later, at the latest, by whoever opens or lists it.";
    nearline.publish_after: Kind::Time { min_ms: 0, max_ms: 24 * HOUR, or: None }, "2s", None,
        "After its last close a file is written to the linked directory.";
    nearline.publish_latest: Kind::Time { min_ms: 0, max_ms: 24 * HOUR, or: None }, "30s", None,
        "After its first change, if nobody closes it.";
    nearline.deadline: Kind::Time { min_ms: 100, max_ms: HOUR, or: None }, "30s", None,
        "A call to the linked directory that takes longer counts as failed; who waits for its bytes gets an error.";

    nearline.endpoint: Kind::Text { or: Some("auto") }, "auto", None,
        "Address of the server that has the linked bucket. `auto` is AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, or Amazon's.";
    nearline.region: Kind::Text { or: Some("auto") }, "auto", None,
        "Region of the linked bucket. `auto` is AWS_REGION or AWS_DEFAULT_REGION.";
    nearline.addressing: Kind::Choice(&["path", "virtual-host"]), "path", None,
        "Whether the bucket's name is in the path of an address or before the server's name.";
    nearline.allow_http: Kind::Switch, "no", None,
        "Speak to the bucket's server without encryption, if its address begins with http://.";

    metadata.sync_period: Kind::Time { min_ms: 10, max_ms: 60 * SECOND, or: None }, "1s", None,
        "T_syn: the journal is made durable this often, and at each fsync. Metadata older than this survives a power cut.";
    metadata.journal_size: Kind::Size { min: MIB, max: 4 * GIB, or: None }, "64MiB", None,
        "Journal bytes after which a checkpoint moves its content to the engine.";
    metadata.engine: Kind::Choice(&["embedded", "postgres"]), "embedded", Some("--metadata-engine"),
        "Where metadata are beyond the journal: in the state directory, or in a PostgreSQL database, which must be there while \
         the mount is used. A state directory keeps the engine and the database that it was begun with.";
    metadata.url: Kind::Database { or: Some("none") }, "none", Some("--metadata-url"),
        "Address of the database for `postgres`, as libpq has it: postgresql://USER@HOST[:PORT][,HOST...]/DATABASE, or \
         \"host=/run/postgresql user=USER dbname=DATABASE\". Of several hosts the one that takes writes is used. A password in it is refused.";
    metadata.password_file: Kind::Path { or: Some("none") }, "none", Some("--metadata-password-file"),
        "File with the password, in lines HOST:PORT:DATABASE:USER:PASSWORD (the form of ~/.pgpass; * for any). One that others \
         can read is refused.";
    metadata.namespace: Kind::Text { or: None }, "onfs", None,
        "Schema of the database that holds this file system: small letters, digits and _. Each file system has its own.";
    metadata.servers: Kind::Choice(&["one", "several"]), "one", None,
        "Of a cluster: whether this metadata server has all of the namespace, or several share it, each with directories of its own. \
         `several` needs `postgres`, the same database and namespace for all, and in cluster.metadata those that are there from the beginning.";
    metadata.standby: Kind::Choice(&["auto", "off"]), "auto", None,
        "Of several metadata servers: whether another one keeps a copy of what this one has answered, and goes on in its place \
         when it is dead for good. `off`: nobody does, and its directories wait until it is started again.";
    metadata.standby_only: Kind::Switch, "no", None,
        "Of several metadata servers: this one keeps copies for the others and is given no directories. What it takes in a dead one's place it \
         serves until another server is there.";

    policy.promote: Kind::Choice(crate::policy::Promote::NAMES), "on-open", None,
        "When data comes up from a slower tier: when a file is opened (of a linked directory: when it is read), or only on \
         request (`onfs prefetch`).";
    policy.mode: Kind::Choice(crate::policy::Mode::NAMES), "local", None,
        "Where data go. `global`: through to near-line, and fsync waits for it. `local`: absorbed, and drained later. `hybrid`: as \
         local, but each file may say otherwise by user.onfs.mode. `transient`: never written down, lost at a reboot, moved down \
         only when memory is short; with a linked directory of single directories only.";
    policy.sync: Kind::Choice(&["auto", "forced", "normal"]), "auto", None,
        "What close waits for: until the file is where fsync would bring it, or nothing. `auto` is forced for `global`.";
    policy.transient: Kind::Switch, "no", None,
        "`yes` is another word for `policy.mode = transient`.";
    policy.write_behind: Kind::Time { min_ms: 0, max_ms: 24 * HOUR, or: Some("never") }, "2s", None,
        "A closed or idle dirty file has a copy in a persistent tier within this time.";
    policy.scrub_every: Kind::Time { min_ms: 0, max_ms: 366 * 24 * HOUR, or: Some("never") }, "720h", None,
        "All bytes that have a checksum are read and compared this long after they were the last time, without being asked for; `onfs scrub start` does it now.";
    policy.scrub_rate: Kind::Size { min: MIB, max: 64 * GIB, or: None }, "32MiB", None,
        "Bytes of all copies that this reads a second, at the most.";
    policy.copy_rate: Kind::Size { min: MIB, max: 64 * GIB, or: None }, "256MiB", None,
        "On a data server: bytes a second, for all files together, at which second copies are made anew (`onfs layout --copies 2`); a quarter of it while programs read or write there. What programs write is not held up by it.";
    policy.movers: Kind::Count { min: 1, max: 64, or: None }, "2", None,
        "Files that are moved between tiers at the same time.";

    plan.history: Kind::Choice(&["on", "off"]), "on", None,
        "Remember which files the runs of each job read, in which order, and bring them up in the next run once its plan has \
         earned it. Kept in the state directory; only root and the user whose runs they were sees it.";
    plan.hit_rate: Kind::Count { min: 1, max: 100, or: None }, "80", None,
        "Per cent of its files that a job's plan must have foretold in its last runs, at least two, before it acts.";
    plan.job_variables: Kind::Variables, "SLURM_JOB_NAME,PBS_JOBNAME,FLUX_JOB_NAME,LSB_JOBNAME", None,
        "The first of these environment variables that a process group's first process has names its job; without one it is \
         named by its program and script.";

    node.id: Kind::Count { min: 1, max: u32::MAX as u64, or: Some("none") }, "none", None,
        "The node's number. Each node of a cluster has its own, for ever: its data are known by it.";
    node.name: Kind::Text { or: Some("auto") }, "auto", None,
        "Its name, for people, and of its state directory. `auto` is the host's.";
    node.rack: Kind::Text { or: Some("none") }, "none", None,
        "What fails together with it.";
    node.roles: Kind::Text { or: None }, "metadata,data", None,
        "What it serves: metadata, data or both. A cluster has one metadata server, or several (metadata.servers).";
    node.listen: Kind::Text { or: None }, "0.0.0.0:7400", None,
        "Where it listens, HOST:PORT or unix:/PATH.";
    node.address: Kind::Text { or: Some("auto") }, "auto", None,
        "Where clients and servers reach it. `auto` is where it listens, and the host's name if it listens everywhere.";
    node.socket: Kind::Text { or: Some("auto") }, "auto", None,
        "The Unix socket of a data server for mounts on its own machine, which use it in place of the network; a mount looks for it there, too. \
         `auto` is /run/onfs/CLUSTER-NODE.sock for root and none for others; `none` is none.";

    cluster.id: Kind::Text { or: Some("auto") }, "auto", None,
        "The cluster's identity, 32 hexadecimal digits, the same on all nodes. `auto` follows from the key.";
    cluster.key_file: Kind::Path { or: Some("none") }, "none", Some("--cluster-key"),
        "File with the cluster key, which nobody else may read. Who has it may ask for everything.";
    cluster.tls_ca_file: Kind::Path { or: Some("none") }, "none", Some("--tls-ca"),
        "Certificates of the CAs that sign those of the cluster's nodes and clients (PEM). With the next two every TCP connection is \
         TLS 1.3 with certificates on both sides, and none is without.";
    cluster.tls_certificate_file: Kind::Path { or: Some("none") }, "none", Some("--tls-certificate"),
        "The certificate of this node or client (PEM). A server's has the names by which others reach it. A new file is used for new \
         connections.";
    cluster.tls_key_file: Kind::Path { or: Some("none") }, "none", Some("--tls-key"),
        "The key of the certificate (PEM), which nobody else may read.";
    cluster.metadata: Kind::Text { or: Some("none") }, "none", None,
        "Where the metadata servers are, HOST:PORT[,HOST:PORT]: servers of data report there, and to those that the cluster map names beside them.";

    monitor.listen: Kind::Text { or: Some("none") }, "none", None,
        "Where `/metrics` (OpenMetrics, docs/metrics.md) and `/healthz` are served, HOST:PORT or unix:/PATH. Whoever reaches it reads \
         them; there is nothing else, and nothing of names or data.";

    log.level: Kind::LogFilter, "info", None,
        "What is logged: a level, or a filter such as `info,fuse=debug`.";
    log.file: Kind::Path { or: Some("auto") }, "auto", None,
        "The log. `auto` is onfs.log in the state directory, or standard error with --foreground. SIGHUP opens it anew.";
    log.format: Kind::Choice(&["text", "json"]), "text", None,
        "Lines for people, or one JSON object per line.";
}

#[cfg(test)]
mod tests {
    //! Goal: the table is sound. Method: check each row against the others and against its own kind.
    use super::*;

    #[test]
    fn defaults_are_valid_and_names_are_unique() {
        let mut names = std::collections::BTreeSet::new();
        for s in SETTINGS {
            assert!(s.kind.parse(s.default).is_ok(), "default of {}", s.name());
            assert!(names.insert(s.name()), "{} is there twice", s.name());
            assert!(sections().iter().any(|(name, _)| *name == s.section), "section of {}", s.name());
            assert!(s.doc.ends_with('.'), "doc of {}", s.name());
        }
    }
}
