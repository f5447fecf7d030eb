//! What a server serves: the services of its roles, over its stores.

use std::{io, sync::Arc};

use cluster::{
    map::{Epoch, NodeId},
    node::{Node, NodeState, RACK},
};
use ds::FirstRecord;
use kv::MetaStore;
use mds::Mds;
use net::{Address, Client, Credentials, Handler, NobodyAnswers, Target, Tuning};
use parking_lot::Mutex;
use proto::control::NodeReport;
use serve::{
    DataService, MetadataService, Services,
    data::{DataOptions, FirstRecords, first_record},
    metadata::MetadataOptions,
    reporting::Reporter,
};
use wire::{
    handshake::{Roles, Wish},
    schema::Lane,
};

use super::stores::Stores;
use crate::{
    config::{NodeConfig, ServerConfig},
    running::StartError,
};

/// This node, as the map has it before it reported anything.
fn in_map(node: &NodeConfig) -> Node {
    let rack = node.rack.iter().map(|rack| (RACK.to_owned(), rack.clone()));
    Node {
        id: NodeId(node.id),
        name: node.name.clone(),
        addresses: vec![node.address.to_string()],
        roles: Roles::MDS,
        labels: rack.collect(),
        state: NodeState::Up,
        joined: Epoch(1),
    }
}

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

pub(super) struct Serving {
    services: Arc<Services>,
    /// Of a node with data, while it serves.
    reporter: Mutex<Option<Reporter>>,
}

impl Serving {
    pub fn start(
        node: &NodeConfig,
        credentials: &Credentials,
        stores: &Stores,
        first: Option<Arc<FirstRecords>>,
    ) -> Result<Serving, StartError> {
        let failed = |error: io::Error| StartError::Failed(format!("the services: {error}"));
        let mut services = Services { metadata: None, data: None };
        if let (true, Some(first)) = (node.data, first) {
            let options = DataOptions::default();
            let data = DataService::start(stores.ds(), stores.store.clone(), first, options);
            services.data = Some(data.map_err(failed)?);
        }
        if node.metadata {
            let (mds, store) = (stores.mds.clone(), stores.store.clone());
            let options = MetadataOptions { me: Some(in_map(node)), ..MetadataOptions::default() };
            match MetadataService::start(mds, store, credentials.clone(), options) {
                Ok(metadata) => services.metadata = Some(metadata),
                Err(error) => {
                    services.data.iter().for_each(|data| data.shutdown());
                    return Err(failed(error));
                }
            }
        }
        Ok(Serving { services: Arc::new(services), reporter: Mutex::default() })
    }

    pub fn handler(&self) -> Arc<dyn Handler> {
        self.services.clone()
    }

    /// Tells the metadata server of this node's data, from now on. `own` is where this process listens.
    pub fn report(&self, config: &ServerConfig, credentials: Credentials, own: Address) -> io::Result<()> {
        let Some(data) = &self.services.data else { return Ok(()) };
        let node = &config.node;
        let elsewhere = config.cluster.metadata.first().filter(|_| !node.metadata).cloned();
        // Its certificate has the name by which others reach it, and not where it listens.
        let here = if credentials.tls.is_some() { node.address.clone() } else { own };
        let address = elsewhere.unwrap_or(here);
        let to = Client::new(Target {
            address,
            wish: Wish { lane: Lane::Control, node: None },
            credentials,
            handler: Arc::new(NobodyAnswers),
            tuning: Tuning::default(),
        });
        let about = NodeReport {
            node: node.id,
            name: node.name.clone(),
            rack: node.rack.clone().unwrap_or_default(),
            addresses: vec![node.address.to_string()],
            ..NodeReport::default()
        };
        *self.reporter.lock() = Some(Reporter::start(data.clone(), to, about)?);
        Ok(())
    }

    /// Settles what is open, and ends.
    pub fn shutdown(&self) {
        drop(self.reporter.lock().take());
        self.services.metadata.iter().for_each(|metadata| metadata.shutdown());
        self.services.data.iter().for_each(|data| data.shutdown());
    }

    /// Data servers that the metadata server does not hear.
    pub fn warnings(&self) -> Vec<String> {
        let nodes = self.services.metadata.iter().flat_map(|metadata| metadata.nodes().status());
        let away = nodes.filter(|node| node.away);
        away.map(|node| {
            let seconds = node.heard.as_secs();
            format!("data server {} ({}) was last heard {seconds} s ago", node.report.node, node.report.name)
        })
        .collect()
    }

    pub fn sessions(&self) -> u64 {
        self.services.metadata.as_ref().map_or(0, |metadata| metadata.in_use().0 as u64)
    }

    pub fn objects_in_use(&self) -> u64 {
        self.services.data.as_ref().map_or(0, |data| data.in_use() as u64)
    }
}
