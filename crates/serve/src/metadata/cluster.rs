//! What the metadata service tells those who watch the cluster.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use proto::watch::{ClientNow, ClusterNow, LOST_MAX, NodeNow};

use super::{
    MetadataService,
    session::{Session, Sessions},
};
use crate::{nodes::NodeStatus, workers::Workers};

impl MetadataService {
    /// Who is there, and what they have.
    pub fn cluster_now(&self) -> ClusterNow {
        let me = self.options.me.as_ref();
        let (lost, lost_files) = {
            let lost = self.replicas.lost.lock();
            (lost.values().take(LOST_MAX).cloned().collect(), lost.len() as u64)
        };
        ClusterNow {
            epoch: self.nodes.epoch(),
            node: me.map_or(0, |me| me.id.0),
            name: me.map_or_else(String::new, |me| me.name.clone()),
            up_ms: millis(self.terms.age()),
            grace_ms: millis(self.grace_left()),
            files: self.files.len() as u64,
            inodes: self.mds.statfs_usage().inodes,
            report_ms: millis(self.options.report),
            clients: clients(&self.sessions),
            nodes: self.nodes.status().into_iter().map(node).collect(),
            copies_lacking: self.replicas.lacking(),
            views_changed: self.replicas.changed.load(Ordering::Relaxed),
            copies_lost: self.replicas.revived.load(Ordering::Relaxed),
            lost,
            lost_files,
            trouble: self.store.stats().read_only.unwrap_or_default(),
        }
    }

    /// For so long sessions of an earlier life may still come back.
    pub fn grace_left(&self) -> Duration {
        self.grace.lock().saturating_duration_since(Instant::now())
    }

    /// Those who carry its requests out: of the metadata lane, and of the control lane.
    pub fn workers(&self) -> [&Workers; 2] {
        [&self.workers, &self.control]
    }
}

fn node(status: NodeStatus) -> NodeNow {
    let NodeStatus { report, heard, away, draining } = status;
    NodeNow { report, heard_ms: millis(heard), away, draining }
}

fn clients(sessions: &Sessions) -> Vec<ClientNow> {
    let all = sessions.all();
    let mut clients: Vec<ClientNow> = all.iter().map(|session| client(session)).collect();
    clients.sort_by(|a, b| a.host.cmp(&b.host).then(b.since_ms.cmp(&a.since_ms)));
    clients
}

fn client(session: &Session) -> ClientNow {
    let (since, silent) = session.times();
    let has = session.has.lock();
    ClientNow {
        client: session.client,
        host: session.host.clone(),
        since_ms: millis(since),
        silent_ms: millis(silent),
        openings: has.openings.len() as u64,
        writing: has.openings.values().filter(|opening| opening.write).count() as u64,
        references: has.references.len() as u64,
    }
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}
