//! What a server serves: the services of its roles, over its stores.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ds::FirstRecord;
use kv::MetaStore;
use mds::Mds;
use net::{Address, Credentials, Handler, hatch::Hatch};
use parking_lot::Mutex;
use proto::control::NodeReport;
use serve::{
    DataService, MetadataService, Services,
    data::{DataOptions, FirstRecords, first_record},
    metadata::{MetadataOptions, Shared},
    reporters::{Reporters, Servers},
    reporting::Trouble,
};

use super::{
    names::{Names, in_map},
    stores::Stores,
};
use crate::{
    config::{NodeConfig, ServerConfig},
    monitor::{Id, Sample},
    running::StartError,
};

/// Objects are known by the service's own records, so their first ones are its to commit.
pub(super) fn first_records(
    made: &mut Option<Arc<FirstRecords>>,
) -> impl FnMut(&Arc<MetaStore>, &Arc<Mds>) -> Box<FirstRecord> {
    move |store, _| {
        let records = first_record(store);
        let hook = records.hook();
        *made = Some(records);
        hook
    }
}

/// A metadata server that ends hands over what it has within this time, or keeps it.
const LEAVE: Duration = Duration::from_secs(15);

pub(super) struct Serving {
    services: Arc<Services>,
    /// Of a node with data, while it serves.
    reporters: Mutex<Option<Reporters>>,
}

impl Serving {
    /// What has descriptors for clients on this machine, of a node with data.
    pub fn hatch(&self) -> Option<Arc<dyn Hatch>> {
        self.services.data.clone().map(|data| data as Arc<dyn Hatch>)
    }

    /// `options`: of a node with data.
    pub fn start(
        (node, options): (&NodeConfig, DataOptions),
        credentials: &Credentials,
        stores: &Stores,
        first: Option<Arc<FirstRecords>>,
        names: Option<(&Names, Shared)>,
    ) -> Result<Serving, StartError> {
        let failed = |error: io::Error| StartError::Failed(format!("the services: {error}"));
        let mut data = None;
        if let (true, Some(first)) = (node.data, first) {
            let started = DataService::start(stores.ds(), stores.store.clone(), first, options);
            let started = started.map_err(failed)?;
            started.set_credentials(credentials.clone());
            started.waits_for_reports();
            data = Some(started);
        }
        let shut = |data: &Option<Arc<DataService>>| data.iter().for_each(|data| data.shutdown());
        let mut metadata = None;
        if node.metadata {
            let (mds, store, shared) = match names {
                Some((names, shared)) => (names.mds.clone(), names.store.clone(), Some(shared)),
                None => (stores.mds.clone(), stores.store.clone(), None),
            };
            let options = MetadataOptions { me: Some(in_map(node)), ..MetadataOptions::default() };
            let started = MetadataService::start_among(mds, store, credentials.clone(), options, shared);
            metadata = Some(started.map_err(failed).inspect_err(|_| shut(&data))?);
        }
        let services = Services::start(node.id, metadata.clone(), data.clone()).map_err(|error| {
            metadata.iter().for_each(|metadata| metadata.shutdown());
            shut(&data);
            failed(error)
        })?;
        Ok(Serving { services: Arc::new(services), reporters: Mutex::default() })
    }

    pub fn handler(&self) -> Arc<dyn Handler> {
        self.services.clone()
    }

    /// Tells the metadata servers of this node's data, from now on. `own` is where this process listens.
    pub fn report(
        &self,
        config: &ServerConfig,
        credentials: &Credentials,
        (own, state): (Address, [u8; 16]),
    ) -> io::Result<()> {
        let Some(data) = &self.services.data else { return Ok(()) };
        let node = &config.node;
        let mut servers = config.cluster.metadata.clone();
        if node.metadata {
            // Alone, or one of them.
            servers.retain(|address| config.shared_names().is_some() && *address != node.address);
            // Its certificate has the name by which others reach it, and not where it listens.
            servers.push(if credentials.tls.is_some() { node.address.clone() } else { own });
        }
        let about = NodeReport {
            node: node.id,
            name: node.name.clone(),
            rack: node.rack.clone().unwrap_or_default(),
            addresses: vec![node.address.to_string()],
            version: env!("CARGO_PKG_VERSION").to_owned(),
            state: state.to_vec(),
            ..NodeReport::default()
        };
        let servers = Servers { addresses: servers, credentials: credentials.clone() };
        *self.reporters.lock() = Some(Reporters::start(data.clone(), servers, about)?);
        Ok(())
    }

    /// Waits until a metadata server has taken this node's first report, but not for long; and why none has.
    pub fn is_not_taken(&self, patience: Duration) -> Option<String> {
        let data = self.services.data.as_ref()?;
        let end = Instant::now() + patience;
        while !data.was_taken() && self.unused().is_none() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        match self.unused() {
            _ if data.was_taken() => None,
            Some(trouble) => {
                Some(format!("the metadata server does not take this node's report: {}", trouble.why))
            }
            None => Some(
                "no metadata server has answered yet (cluster.metadata): this node is used when one does"
                    .to_owned(),
            ),
        }
    }

    /// Of several metadata servers: the others serve on what this one has.
    pub fn leave(&self) {
        if let Some(metadata) = &self.services.metadata {
            metadata.leave(LEAVE);
        }
    }

    /// Settles what is open, and ends.
    pub fn shutdown(&self) {
        *self.reporters.lock() = None;
        self.services.shutdown();
    }

    /// It is to be ended and started.
    pub fn has_to_begin_anew(&self) -> bool {
        self.services.metadata.as_ref().is_some_and(|metadata| metadata.has_to_begin_anew())
    }

    /// What the roles counted.
    pub fn sample(&self, sample: &mut Sample) {
        if let Some(metadata) = &self.services.metadata {
            let [of_metadata, of_control] = metadata.workers();
            sample.add_served("metadata", of_metadata.meter());
            sample.add_served("control", of_control.meter());
            let now = metadata.cluster_now();
            sample.add(Id::Sessions, &[], now.clients.len() as u64);
            sample.add(Id::Openings, &[], now.clients.iter().map(|client| client.openings).sum());
            sample.add(Id::FilesInUse, &[], now.files);
            let leases = metadata.lease_counts();
            sample.add(Id::Leases, &[], leases.leases);
            sample.add(Id::LeasesGranted, &[], leases.granted);
            sample.add(Id::LeasesRecalled, &[], leases.recalled);
            sample.add(Id::LeasesLapsed, &[], leases.lapsed);
            sample.add(Id::MapEpoch, &[], now.epoch);
            sample.add_real(Id::Grace, &[], now.grace_ms as f64 / 1000.0);
            if let Some((standby, taken_over)) = metadata.standby_now() {
                sample.add(Id::Standby, &[], u64::from(standby.complete));
                sample.add_real(Id::StandbySince, &[], standby.since_ms as f64 / 1000.0);
                sample.add(Id::StandbyWaits, &[], standby.waiting);
                sample.add(Id::TakenOver, &[], taken_over);
            }
            sample.add(Id::CopiesLacking, &[], now.copies_lacking);
            sample.add(Id::ViewsChanged, &[], now.views_changed);
            sample.add(Id::CopiesLost, &[], now.copies_lost);
            let away = now.nodes.iter().filter(|node| node.away).count();
            sample.add(Id::NodesUp, &["up"], (now.nodes.len() - away) as u64);
            sample.add(Id::NodesUp, &["away"], away as u64);
            for node in &now.nodes {
                let name = &node.report.name[..];
                sample.add_real(Id::NodeSilent, &[name], node.heard_ms as f64 / 1000.0);
                let (files, bytes) = metadata.sent_by(node.report.node);
                sample.add(Id::NodeSentFiles, &[name], files);
                sample.add(Id::NodeSentBytes, &[name], bytes);
                sample.add(Id::CopiedBytes, &[name], node.report.copied);
                sample.add(Id::NodeLacking, &[name], node.report.pressure.map_or(0, |it| it.lacking));
            }
        }
        if let Some(data) = &self.services.data {
            sample.add_served("data", data.workers().meter());
            sample.add(Id::ObjectsInUse, &[], data.in_use() as u64);
            sample.add(Id::ObjectsLent, &[], data.lent() as u64);
            let silent = self.report_trouble().map_or(0.0, |trouble| trouble.since.elapsed().as_secs_f64());
            sample.add_real(Id::ReportFails, &[], silent);
        }
    }

    /// What keeps the roles from being ready.
    pub fn troubles(&self) -> Vec<String> {
        let grace = self.services.metadata.iter().map(|metadata| metadata.grace_left());
        let waits = grace.filter(|left| !left.is_zero()).map(|left| {
            format!(
                "grace period: clients of before the start have {} s more to come back",
                left.as_secs() + 1
            )
        });
        let silent = self.report_trouble().map(|trouble| {
            let seconds = trouble.since.elapsed().as_secs();
            format!("the metadata server has taken no report for {seconds} s: {}", trouble.why)
        });
        let alone = self.services.metadata.iter().filter_map(|metadata| metadata.without_duty());
        let alone = alone.map(|since| {
            let seconds = since.as_secs();
            format!("the metadata server that makes the cluster map was last heard {seconds} s ago")
        });
        waits.chain(silent).chain(alone).collect()
    }

    fn unused(&self) -> Option<Trouble> {
        self.reporters.lock().as_ref().and_then(Reporters::unused)
    }

    fn report_trouble(&self) -> Option<Trouble> {
        self.reporters.lock().as_ref().and_then(Reporters::trouble)
    }

    /// Servers that the metadata server does not hear.
    pub fn warnings(&self) -> Vec<String> {
        let metadata = self.services.metadata.iter();
        let alone = metadata.filter_map(|metadata| metadata.without_duty()).map(|since| {
            let seconds = since.as_secs();
            format!("the metadata server that makes the cluster map was last heard {seconds} s ago")
        });
        let nodes = self.services.metadata.iter().flat_map(|metadata| metadata.nodes().status());
        let away = nodes.filter(|node| node.away);
        away.map(|node| {
            let seconds = node.heard.as_secs();
            format!("data server {} ({}) was last heard {seconds} s ago", node.report.node, node.report.name)
        })
        .chain(alone)
        .chain(
            self.report_trouble()
                .map(|trouble| format!("the metadata server takes no report of this node: {}", trouble.why)),
        )
        .collect()
    }

    pub fn sessions(&self) -> u64 {
        self.services.metadata.as_ref().map_or(0, |metadata| metadata.in_use().0 as u64)
    }

    pub fn objects_in_use(&self) -> u64 {
        self.services.data.as_ref().map_or(0, |data| data.in_use() as u64)
    }
}
