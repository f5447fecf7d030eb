//! One handler for a process that has both roles: a request goes to the service that its number says.

use std::sync::Arc;

use net::{Handler, Incoming, Reply};
use proto::Method;
use wire::schema::Lane;

use crate::{DataService, MetadataService};

/// The roles of a process; requests for one that it has not are answered by the other, which does not know them.
pub struct Services {
    pub metadata: Option<Arc<MetadataService>>,
    pub data: Option<Arc<DataService>>,
}

impl Handler for Services {
    fn asked(&self, incoming: Incoming, reply: Reply) {
        let is_data = Method::from_number(incoming.header.method).is_some_and(|m| m.lane() == Lane::Data);
        match (&self.metadata, &self.data) {
            (_, Some(data)) if is_data => data.asked(incoming, reply),
            (Some(metadata), _) => metadata.asked(incoming, reply),
            (None, Some(data)) => data.asked(incoming, reply),
            // The reply says that it was dropped.
            (None, None) => (),
        }
    }
}
