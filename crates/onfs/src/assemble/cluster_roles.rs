//! What a server serves: the services of its roles, over its stores.

use std::sync::Arc;

use ds::FirstRecord;
use kv::MetaStore;
use mds::Mds;
use net::{Credentials, Handler};
use serve::{
    DataService,
    data::{DataOptions, FirstRecords, first_record},
};

use super::stores::Stores;
use crate::{config::ServerConfig, running::StartError};

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
    data: Arc<DataService>,
}

impl Serving {
    pub fn start(
        config: &ServerConfig,
        _: &Credentials,
        stores: &Stores,
        first: Option<Arc<FirstRecords>>,
    ) -> Result<Serving, StartError> {
        if config.node.metadata {
            return Err(StartError::Config("node.roles: metadata are not served by this version".to_owned()));
        }
        let failed = |error: std::io::Error| StartError::Failed(format!("the data service: {error}"));
        let first = first.ok_or_else(|| StartError::Failed("the tiers asked for no records".to_owned()))?;
        let data = DataService::start(stores.ds(), stores.store.clone(), first, DataOptions::default());
        Ok(Serving { data: data.map_err(failed)? })
    }

    pub fn handler(&self) -> Arc<dyn Handler> {
        self.data.clone()
    }

    /// Tells the metadata server of this one, from now on.
    pub fn report(&self, _: &ServerConfig, _: Credentials) {}

    /// Settles what is open, and ends.
    pub fn shutdown(&self) {
        self.data.shutdown();
    }

    pub fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    pub fn sessions(&self) -> u64 {
        0
    }

    pub fn objects_in_use(&self) -> u64 {
        self.data.in_use() as u64
    }
}
