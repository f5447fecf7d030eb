//! One handler for a process that has both roles: a request goes to the service that its number says.

use std::{io, sync::Arc};

use net::{Handler, Incoming, Reply};
use proto::Method;
use wire::schema::Lane;

use crate::{
    DataService, MetadataService,
    watching::{Watch, is_watching},
};

/// The roles of a process; requests for one that it has not are answered by the other, which does not know them.
pub struct Services {
    pub metadata: Option<Arc<MetadataService>>,
    pub data: Option<Arc<DataService>>,
    watch: Arc<Watch>,
}

impl Services {
    /// `node` is the process's own.
    pub fn start(
        node: u64,
        metadata: Option<Arc<MetadataService>>,
        data: Option<Arc<DataService>>,
    ) -> io::Result<Services> {
        let watch = Watch::start(node, metadata.clone(), data.clone())?;
        Ok(Services { metadata, data, watch })
    }

    /// Takes no more requests, settles what is open, and ends.
    pub fn shutdown(&self) {
        self.watch.shutdown();
        self.metadata.iter().for_each(|metadata| metadata.shutdown());
        self.data.iter().for_each(|data| data.shutdown());
    }
}

impl Handler for Services {
    fn asked(&self, incoming: Incoming, reply: Reply) {
        let method = Method::from_number(incoming.header.method);
        if method.is_some_and(is_watching) {
            return self.watch.asked(incoming, reply);
        }
        let is_data = method.is_some_and(|method| method.lane() == Lane::Data);
        match (&self.metadata, &self.data) {
            (_, Some(data)) if is_data => data.asked(incoming, reply),
            (Some(metadata), _) => metadata.asked(incoming, reply),
            (None, Some(data)) => data.asked(incoming, reply),
            // The reply says that it was dropped.
            (None, None) => (),
        }
    }
}
