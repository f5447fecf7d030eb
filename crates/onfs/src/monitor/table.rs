//! Every metric, once: name, kind, labels and meaning. Labels come from closed sets or from the cluster's nodes, never from paths or jobs.

/// How a metric is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows, as long as the process lives. Its name ends in `_total`.
    Counter,
    /// What is now.
    Gauge,
    /// How many took how long; in seconds.
    Histogram,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

macro_rules! metrics {
    ($($id:ident: $kind:ident, $name:literal, [$($label:literal),*], $help:literal;)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Id { $($id,)* }

        /// In the order in which they are shown; the place of an [`Id`] is its number.
        pub const METRICS: &[Metric] = &[$(
            Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help },
        )*];
    };
}

impl Id {
    pub fn metric(self) -> &'static Metric {
        &METRICS[self as usize]
    }
}

metrics! {
    Build: Gauge, "onfs_build_info", ["version", "kind"], "1, with the program's version, and what it is: mount, cluster-mount or server";
    Start: Gauge, "onfs_start_time_seconds", [], "When the daemon began to serve, since 1970";
    Healthy: Gauge, "onfs_healthy", [], "1 if /healthz says so, else 0";
    MemoryUsed: Gauge, "onfs_memory_bytes", [], "The daemon's own resident memory, without the files of the memory tier";
    MemoryBudget: Gauge, "onfs_memory_budget_bytes", [], "What its caches and buffers may take";

    TierSize: Gauge, "onfs_tier_size_bytes", ["tier"], "The limit of a tier";
    TierUsed: Gauge, "onfs_tier_used_bytes", ["tier"], "Of it what is used";
    TierAvailable: Gauge, "onfs_tier_available_bytes", ["tier"], "Of it what may be written to";
    TierObjects: Gauge, "onfs_tier_objects", ["tier"], "Files with bytes there; not known of the last tier";
    TierIn: Gauge, "onfs_tier_in_bytes_per_second", ["tier"], "Bytes that came in lately";
    TierOut: Gauge, "onfs_tier_out_bytes_per_second", ["tier"], "Bytes that were moved out lately";
    TierWriters: Gauge, "onfs_tier_writers_wait", ["tier"], "1 while writers wait for room there (C_s-w), else 0";
    OnlyInMemory: Gauge, "onfs_only_in_memory_bytes", [], "What a power cut would cost now";
    OnlyInMemoryFiles: Gauge, "onfs_only_in_memory_files", [], "Files that have such bytes";
    Moves: Counter, "onfs_moves_total", ["result"], "Movements between tiers: done, or failed (stopped ones too)";
    MovedIn: Counter, "onfs_tier_moved_in_bytes_total", ["tier"], "Bytes that movements copied into a tier, also out of a linked directory";
    MovedOut: Counter, "onfs_tier_moved_out_bytes_total", ["tier"], "Bytes that movements copied out of a tier; the copy there may stay";
    FreedBytes: Counter, "onfs_freed_bytes_total", [], "Bytes of copies that were given up for room";
    FileSyncs: Counter, "onfs_file_syncs_total", [], "Files made durable because a program or a command asked; what that copies is no movement";
    DamagedSaus: Counter, "onfs_damaged_saus_total", [], "Pieces of data (4 MiB) that did not match their checksum; look at the log";
    LostSaus: Counter, "onfs_lost_saus_total", [], "Pieces of data that were lost with an earlier memory tier, as far as they were met";
    ScrubbedBytes: Counter, "onfs_scrubbed_bytes_total", [], "Bytes of copies that were compared with their checksums without anybody reading them";
    RepairedSaus: Counter, "onfs_repaired_saus_total", [], "Damaged copies of pieces that were found so and replaced by another tier's";
    HopelessSaus: Counter, "onfs_hopeless_saus_total", [], "Pieces that were found so without a good copy: reads give EIO";

    Inodes: Gauge, "onfs_metadata_inodes", [], "Files, directories and others in the namespace";
    Commits: Counter, "onfs_journal_commits_total", [], "Changes of metadata that were committed since the state was made";
    Unsynced: Gauge, "onfs_journal_unsynced_commits", [], "Of them those that are not yet durable";
    JournalSyncs: Counter, "onfs_journal_syncs_total", [], "How often the journal was made durable";
    JournalBytes: Gauge, "onfs_journal_bytes", [], "The journal on the disk";
    Checkpoints: Counter, "onfs_journal_checkpoints_total", [], "How often the journal's content was moved to the engine";
    EngineBytes: Gauge, "onfs_metadata_engine_bytes", [], "The engine on the disk";
    CacheBytes: Gauge, "onfs_metadata_cache_bytes", [], "The cache of metadata in memory";
    CacheLooks: Counter, "onfs_metadata_cache_looks_total", ["result"], "Looks into that cache: hit or miss";

    FuseRequests: Counter, "onfs_fuse_requests_total", ["operation"], "Requests of the kernel (of a mount of tiers of this machine)";
    FuseErrors: Counter, "onfs_fuse_errors_total", ["operation"], "Of them those that ended with an error other than that something is not there";
    FuseRead: Counter, "onfs_fuse_read_bytes_total", [], "Bytes that were read through requests; what the kernel reads by itself (passthrough) is not in it";
    FuseWritten: Counter, "onfs_fuse_written_bytes_total", [], "Bytes that were written through requests";
    FuseOverdue: Counter, "onfs_fuse_overdue_total", [], "Requests that took longer than mount.request_deadline";
    OpenFiles: Gauge, "onfs_open_files", [], "Files that programs have open on this mount";

    ServerRequests: Counter, "onfs_server_requests_total", ["service", "method"], "Requests that were answered. service: metadata, control (who is there) or data";
    ServerErrors: Counter, "onfs_server_errors_total", ["service", "method", "class"], "Of them those that ended with an error. class: absent (no such name: an answer like others), denied, later (to be tried again), full, stale, failed (a device or another server), wrong";
    ServerSeconds: Histogram, "onfs_server_request_seconds", ["service", "method"], "From when a request came to when it was answered, with its waiting";
    ServerReceived: Counter, "onfs_server_received_bytes_total", ["service", "method"], "Bytes of requests";
    ServerSent: Counter, "onfs_server_sent_bytes_total", ["service", "method"], "Bytes of answers";
    ServerWaiting: Gauge, "onfs_server_requests_waiting", ["service"], "Requests that wait or are carried out now";
    ServerRefused: Counter, "onfs_server_requests_refused_total", ["service"], "Requests that were told to come later, since too many were waiting";
    ServerConnections: Gauge, "onfs_server_connections", [], "Connections of clients and servers, all lanes";
    Sessions: Gauge, "onfs_metadata_sessions", [], "Clients of a metadata server";
    Openings: Gauge, "onfs_metadata_openings", [], "What they have open, all together";
    FilesInUse: Gauge, "onfs_metadata_files_in_use", [], "Files that are open somewhere, or not settled yet";
    Leases: Gauge, "onfs_metadata_leases", [], "Names, attributes and bytes of files that clients may keep now";
    LeasesGranted: Counter, "onfs_metadata_leases_granted_total", [], "Answers that a client may keep";
    LeasesRecalled: Counter, "onfs_metadata_leases_recalled_total", [], "Leases that were asked back since somebody changes what they are on";
    LeasesLapsed: Counter, "onfs_metadata_leases_lapsed_total", [], "Times that all leases of a client ended since it was silent";
    MapEpoch: Gauge, "onfs_cluster_map_epoch", [], "Of the cluster map, as this process has it";
    Standby: Gauge, "onfs_metadata_standby_complete", [], "Of several metadata servers: 1 if another one may go on in this one's place, 0 if not";
    StandbySince: Gauge, "onfs_metadata_standby_since_seconds", [], "For so long that is as it is";
    StandbyWaits: Gauge, "onfs_metadata_standby_waiting", [], "Records that are answered when the standby has them";
    TakenOver: Counter, "onfs_metadata_taken_over_total", [], "Times that this server went on in the place of a dead one";
    Grace: Gauge, "onfs_metadata_grace_seconds", [], "For so long sessions of an earlier life of the server may come back; 0 in normal times";
    CopiesLacking: Gauge, "onfs_cluster_replica_lacking_files", [], "Files that are to have two copies and have one of some part";
    ViewsChanged: Counter, "onfs_cluster_replica_views_changed_total", [], "Times that another data server got the first or the second copy of an object";
    CopiesLost: Counter, "onfs_cluster_replica_lost_total", [], "Objects of which both copies were lost, but for what was in a tier that outlives them";
    CopiedBytes: Counter, "onfs_cluster_replica_copied_bytes_total", ["node"], "Bytes that a data server sent to new second copies";
    NodesUp: Gauge, "onfs_cluster_data_servers", ["state"], "Data servers that the metadata server hears (up), or not (away)";
    NodeSilent: Gauge, "onfs_cluster_report_age_seconds", ["node"], "Since the last report of a data server";
    NodeLacking: Gauge, "onfs_cluster_lacking_bytes", ["node"], "Bytes that are to leave a full data server for others";
    NodeSentFiles: Counter, "onfs_cluster_sent_files_total", ["node"], "Files that a data server sent to others for want of room, or of a tier that outlives its machine";
    NodeSentBytes: Counter, "onfs_cluster_sent_bytes_total", ["node"], "Bytes of them, about";
    ObjectsInUse: Gauge, "onfs_data_objects_in_use", [], "Objects that are open at a data server";
    ObjectsLent: Gauge, "onfs_data_objects_lent", [], "Objects that stay in place since kernels of mounts on the same machine read their files";
    ReportFails: Gauge, "onfs_data_report_trouble_seconds", [], "For so long the metadata server takes no report of this data server; 0 when it does";

    ClientRequests: Counter, "onfs_client_requests_total", ["method"], "Requests that a mount of a cluster made";
    ClientErrors: Counter, "onfs_client_errors_total", ["method", "class"], "Of them those that ended with an error, as onfs_server_errors_total";
    ClientSeconds: Histogram, "onfs_client_request_seconds", ["method"], "From when a request was made to its answer, with all attempts";
    ClientReceived: Counter, "onfs_client_received_bytes_total", ["method"], "Bytes of answers";
    ClientSent: Counter, "onfs_client_sent_bytes_total", ["method"], "Bytes of requests";
    ClientWaiting: Gauge, "onfs_client_requests_waiting", [], "Requests without an answer now";
    ClientReferences: Gauge, "onfs_client_known_inodes", [], "Inodes that the kernel refers to";
    KeptAnswers: Counter, "onfs_client_kept_answers_total", [], "Questions of the kernel that were answered from what is kept, without a request";
    KeptRecalls: Counter, "onfs_client_kept_recalls_total", [], "What was kept and asked back";
    KeptLapses: Counter, "onfs_client_kept_lapses_total", [], "Times that all was forgotten since the metadata server was not heard for too long";
    KeptNames: Gauge, "onfs_client_kept_names", [], "Names that are kept, also of what is not there";
    KeptInodes: Gauge, "onfs_client_kept_inodes", [], "Inodes whose attributes are kept";
    KeptFiles: Gauge, "onfs_client_kept_files", [], "Files whose bytes may be kept";
    KeptReads: Counter, "onfs_client_cache_reads_total", ["how"], "Reads of less than 512 KiB of files whose bytes may be kept: found here, or asked of data servers";
    KeptBytes: Gauge, "onfs_client_cache_bytes", [], "Bytes of files that are kept";
    BackWrites: Counter, "onfs_client_back_writes_total", [], "Small writes that were kept back for a moment, to be sent together";
    BackRequests: Counter, "onfs_client_back_requests_total", [], "Pieces in which they were sent";
    BackBytes: Gauge, "onfs_client_back_bytes", [], "Bytes that are kept back now: what is lost if the mount is killed";
    BackLost: Counter, "onfs_client_back_lost_bytes_total", [], "Bytes that were kept back and could not be sent; programs were told by fsync or close";
    MappedFiles: Gauge, "onfs_client_mapped_files", [], "Files of which the kernel has pages for mappings";
    MappedDrops: Counter, "onfs_client_mapped_drops_total", [], "Times that the pages of a file were written back and dropped";
    SessionsLost: Counter, "onfs_client_sessions_lost_total", [], "Sessions that were lost and made anew";
    OwnSocket: Gauge, "onfs_client_own_socket", [], "1 if the data server of this machine is asked at its Unix socket, 0 if over the network; missing without one";
    OwnFiles: Gauge, "onfs_client_passthrough_files", [], "Files of the data server of this machine that the kernel reads by itself now";
    OwnFilesEver: Counter, "onfs_client_passthrough_files_total", [], "The same, so far";
    ServerAway: Gauge, "onfs_client_server_away_seconds", ["node"], "For so long a server has not answered this mount; 0 when it does";
}

#[cfg(test)]
mod tests {
    //! Goal: the table is sound. Method: each row against the others and its own kind.
    use super::*;

    #[test]
    fn names_are_unique_and_say_their_kind() {
        let mut names = std::collections::BTreeSet::new();
        for metric in METRICS {
            let name = metric.name;
            assert!(names.insert(name), "{name} is there twice");
            let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(plain && name.starts_with("onfs_"), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert_eq!(metric.kind == Kind::Histogram, name.ends_with("request_seconds"), "{name}");
            assert!(!metric.help.ends_with('.') && !metric.help.contains('\n'), "{name}");
        }
    }
}
