//! What a metadata server says of its cluster, as it is reported, and what of it somebody should look at.
//!
//! Pure: a message in, a report out.

use proto::{
    control::TierNow,
    watch::{ClientNow, ClusterNow, LostFile, NodeNow},
};
use types::TierId;

use crate::{
    control::{
        ClientReport, ClusterReport, DataServerReport, LostFileReport, MetadataServerReport, ServerTierReport,
    },
    render::units::{bytes, span},
};

/// Reports that did not come in a row before it is said.
const REPORTS_MISSED: u64 = 3;
/// The last tier with less room than this part of it is nearly full.
const FULL_PART: u64 = 10;
/// A client renews its session every 5 s.
const CLIENT_SILENT_MS: u64 = 12_000;

/// The whole of it.
pub fn cluster(now: &ClusterNow) -> ClusterReport {
    ClusterReport {
        metadata: MetadataServerReport {
            node: now.node,
            name: now.name.clone(),
            map_epoch: now.epoch,
            uptime_ms: now.up_ms,
            grace_ms: now.grace_ms,
            sessions: now.clients.len() as u64,
            files_in_use: now.files,
            inodes: now.inodes,
        },
        data: now.nodes.iter().map(data_server).collect(),
        clients: now.clients.iter().map(client).collect(),
        warnings: warnings(now),
        lost_files: now.lost.iter().map(lost_file).collect(),
    }
}

fn lost_file(now: &LostFile) -> LostFileReport {
    LostFileReport { inode: now.ino, path: now.path.clone(), lost_bytes: now.bytes }
}

/// As logs and reports have it.
pub fn client_name(client: u64) -> String {
    format!("{client:016x}")
}

fn data_server(node: &NodeNow) -> DataServerReport {
    let report = &node.report;
    DataServerReport {
        node: report.node,
        name: report.name.clone(),
        addresses: report.addresses.clone(),
        rack: report.rack.clone(),
        version: report.version.clone(),
        state: match (node.away, node.draining) {
            (true, _) => "away",
            (false, true) => "draining",
            (false, false) => "up",
        }
        .to_owned(),
        report_age_ms: node.heard_ms,
        total_bytes: report.total,
        available_bytes: report.free,
        only_in_memory_bytes: report.only_in_memory,
        busy_permille: report.busy,
        lacking_bytes: report.pressure.map_or(0, |pressure| pressure.lacking),
        requests_waiting: report.waiting,
        tiers: report.tiers.iter().filter_map(tier).collect(),
    }
}

/// `None`: a tier of a newer version.
fn tier(now: &TierNow) -> Option<ServerTierReport> {
    Some(ServerTierReport {
        name: *TierId::ALL.get(now.tier as usize)?,
        limit_bytes: now.limit,
        used_bytes: now.used,
        available_bytes: now.available,
        writers_wait: now.writers_wait,
        slow: now.slow,
    })
}

fn client(now: &ClientNow) -> ClientReport {
    ClientReport {
        client: client_name(now.client),
        host: now.host.clone(),
        since_ms: now.since_ms,
        silent_ms: now.silent_ms,
        open_files: now.openings,
        open_for_writing: now.writing,
        known_inodes: now.references,
    }
}

fn warnings(now: &ClusterNow) -> Vec<String> {
    let mut warnings = Vec::new();
    if !now.trouble.is_empty() {
        warnings.push(format!("the metadata server takes no changes: {}", now.trouble));
    }
    if now.grace_ms > 0 {
        let (up, left) = (span(now.up_ms), span(now.grace_ms));
        warnings.push(format!(
            "the metadata server was started {up} ago: clients of before have {left} more to come back, and nothing is removed meanwhile"
        ));
    }
    if now.copies_lacking > 0 {
        let files = now.copies_lacking;
        warnings.push(format!(
            "{files} files that are to have two copies have one of some part: another is made while a data server has room for it"
        ));
    }
    if now.lost_files > 0 {
        let files = now.lost_files;
        warnings.push(format!(
            "of {files} files both copies of some part were lost: what no tier had that outlives its data server reads as an error; `onfs status --cluster` lists them"
        ));
    }
    if now.nodes.is_empty() {
        warnings.push("no data server has reported: files cannot be written".to_owned());
    }
    now.nodes.iter().for_each(|node| warn_of_node(node, now.report_ms, &mut warnings));
    for client in now.clients.iter().filter(|client| client.silent_ms > CLIENT_SILENT_MS) {
        let (name, silent) = (client_name(client.client), span(client.silent_ms));
        warnings.push(format!(
            "client {name} on {} has been silent for {silent}: it is given up if it stays so",
            client.host
        ));
    }
    warnings
}

fn warn_of_node(node: &NodeNow, report_ms: u64, warnings: &mut Vec<String>) {
    let (name, age) = (&node.report.name, span(node.heard_ms));
    if node.away {
        warnings.push(format!(
            "data server {name} is away, its last report is {age} old: what is on it cannot be read, and it gets no new files"
        ));
        // What it said is not so any more.
        return;
    }
    if node.heard_ms > report_ms.saturating_mul(REPORTS_MISSED) {
        warnings.push(format!("the last report of data server {name} is {age} old"));
    }
    for tier in node.report.tiers.iter().filter(|tier| tier.writers_wait) {
        let tier = TierId::ALL.get(tier.tier as usize).map_or("last", |tier| tier.name());
        warnings.push(format!("writers wait for room in the {tier} tier of {name}"));
    }
    for tier in node.report.tiers.iter().filter(|tier| tier.slow) {
        let tier = TierId::ALL.get(tier.tier as usize).map_or("last", |tier| tier.name());
        warnings.push(format!(
            "the device of the {tier} tier of {name} is slow or fails, and gets no new files where others can: its log says more"
        ));
    }
    if let Some(last) = node.report.tiers.last()
        && last.available <= last.limit / FULL_PART
    {
        let tier = TierId::ALL.get(last.tier as usize).map_or("last", |tier| tier.name());
        let (available, limit) = (bytes(last.available), bytes(last.limit));
        warnings.push(format!(
            "the last tier of {name}, {tier}, is nearly full: {available} of {limit} are available"
        ));
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is said is what was reported, and what is wrong is said in words. Method: a well cluster, then one thing wrong at a time.
    use proto::control::NodeReport;

    use super::*;

    fn well() -> ClusterNow {
        let tier = |tier, available| TierNow {
            tier,
            limit: 1000,
            used: 1000 - available,
            available,
            ..TierNow::default()
        };
        let report = NodeReport {
            node: 2,
            name: "n2".into(),
            tiers: vec![tier(0, 10), tier(1, 900)],
            ..NodeReport::default()
        };
        ClusterNow {
            epoch: 7,
            node: 1,
            name: "n1".into(),
            report_ms: 2000,
            clients: vec![ClientNow {
                client: 0xab,
                host: "h".into(),
                openings: 3,
                writing: 1,
                ..ClientNow::default()
            }],
            nodes: vec![NodeNow { report, heard_ms: 1000, away: false, draining: false }],
            ..ClusterNow::default()
        }
    }

    #[test]
    fn a_well_cluster_has_no_warnings() {
        let report = cluster(&well());
        assert_eq!(report.warnings, [""; 0]);
        assert_eq!((report.metadata.map_epoch, report.metadata.sessions), (7, 1));
        let client = &report.clients[0];
        assert_eq!(
            (client.client.as_str(), client.open_files, client.open_for_writing),
            ("00000000000000ab", 3, 1)
        );
        let tiers: Vec<_> = report.data[0].tiers.iter().map(|tier| (tier.name, tier.used_bytes)).collect();
        assert_eq!(tiers, [(TierId::Memory, 990), (TierId::Ssd, 100)]);
    }

    #[test]
    fn a_data_server_is_up_draining_or_away() {
        for (away, draining, state) in
            [(false, false, "up"), (false, true, "draining"), (true, false, "away"), (true, true, "away")]
        {
            let mut now = well();
            (now.nodes[0].away, now.nodes[0].draining) = (away, draining);
            assert_eq!(cluster(&now).data[0].state, state);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        type Harm = fn(&mut ClusterNow);
        let cases: [(Harm, &str); 10] = [
            (|now| now.nodes[0].away = true, "data server n2 is away"),
            (|now| now.nodes[0].heard_ms = 6001, "the last report of data server n2 is 6s old"),
            (|now| now.nodes[0].report.tiers[1].available = 100, "the last tier of n2, ssd, is nearly full"),
            (
                |now| now.nodes[0].report.tiers[0].writers_wait = true,
                "writers wait for room in the memory tier of n2",
            ),
            (|now| now.nodes.clear(), "no data server has reported"),
            (|now| now.grace_ms = 5000, "have 5s more to come back"),
            (|now| now.copies_lacking = 3, "3 files that are to have two copies have one"),
            (|now| now.lost_files = 2, "of 2 files both copies of some part were lost"),
            (|now| now.trouble = "the disk".into(), "takes no changes: the disk"),
            (|now| now.clients[0].silent_ms = 20_000, "on h has been silent for 20s"),
        ];
        for (harm, expected) in cases {
            let mut now = well();
            harm(&mut now);
            let warnings = cluster(&now).warnings;
            assert!(warnings.len() == 1 && warnings[0].contains(expected), "{expected}: {warnings:?}");
        }
        // A tier of a version that is not known here is left out, and no panic.
        let mut now = well();
        now.nodes[0].report.tiers[1].tier = 9;
        assert_eq!(cluster(&now).data[0].tiers.len(), 1);
    }
}
