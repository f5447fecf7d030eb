//! What a server says to those who watch it: its counts, and what its metadata service knows of the cluster.
//!
//! It answers on a thread of its own, so that watching works while all workers wait.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Weak},
    time::Instant,
};

use net::{Incoming, Reply};
use parking_lot::Mutex;
use prost::Message;
use proto::{
    Method, Nothing,
    watch::{ClusterStatus, Counted, Counters, Load},
};
use types::Errno;

use crate::{
    DataService, MetadataService,
    answer::{Done, No, Outcome},
    crowd::listed,
    workers::{Bounds, Serve, Workers},
};

/// Few ask, and each answer may be some megabytes.
const BOUNDS: Bounds = Bounds { threads: 1, spare: 0, waiting: 64, bytes: 64 << 20 };

pub(crate) struct Watch {
    me: Weak<Watch>,
    node: u64,
    metadata: Option<Arc<MetadataService>>,
    data: Option<Arc<DataService>>,
    incarnation: u64,
    began: Instant,
    workers: Mutex<Option<Arc<Workers>>>,
}

/// Does it go to who answers watchers?
pub(crate) fn is_watching(method: Method) -> bool {
    matches!(method, Method::Counters | Method::ClusterStatus)
}

impl Watch {
    pub(crate) fn start(
        node: u64,
        metadata: Option<Arc<MetadataService>>,
        data: Option<Arc<DataService>>,
    ) -> io::Result<Arc<Watch>> {
        let workers = Arc::new(Workers::start("watch", BOUNDS)?);
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        Ok(Arc::new_cyclic(|me| Watch {
            me: me.clone(),
            node,
            metadata,
            data,
            incarnation: u64::from_le_bytes(random),
            began: Instant::now(),
            workers: Mutex::new(Some(workers)),
        }))
    }

    pub(crate) fn asked(&self, incoming: Incoming, reply: Reply) {
        let workers = self.workers.lock().clone();
        // Without them the reply says that it was dropped.
        if let (Some(me), Some(workers)) = (self.me.upgrade(), workers) {
            workers.take(me, incoming, reply);
        }
    }

    /// Ends; the services are let go.
    pub(crate) fn shutdown(&self) {
        if let Some(workers) = self.workers.lock().take() {
            workers.shutdown();
        }
    }

    fn counted(&self) -> Counted {
        let mut clients = BTreeMap::new();
        let mut waiting = 0;
        let metadata = self.metadata.as_ref().map(|service| {
            let mut sum = Load::default();
            for workers in service.workers() {
                workers.add_clients(&mut clients);
                waiting += workers.meter().waiting();
                sum = sum.and(&workers.meter().load());
            }
            sum
        });
        let data = self.data.as_ref().map(|service| {
            service.workers().add_clients(&mut clients);
            waiting += service.workers().meter().waiting();
            service.workers().meter().load()
        });
        Counted {
            node: self.node,
            incarnation: self.incarnation,
            at_us: u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX),
            metadata,
            data,
            waiting,
            clients: listed(clients),
        }
    }
}

impl Serve for Watch {
    fn serve(&self, incoming: &mut Incoming) -> Outcome {
        let body = match Method::from_number(incoming.header.method) {
            Some(Method::Counters) => {
                let _: Counters = proto::decode(&incoming.meta)?;
                self.counted().encode_to_vec()
            }
            Some(Method::ClusterStatus) => {
                let _: ClusterStatus = proto::decode(&incoming.meta)?;
                // A data server knows its own objects alone.
                let metadata = self.metadata.as_ref().ok_or(Errno::ENOSYS)?;
                metadata.cluster_now().encode_to_vec()
            }
            Some(_) | None => return Err(Errno::ENOSYS.into()),
        };
        if body.len() > incoming.header.answer_bytes_max as usize {
            return Err(No::from(Errno::ERANGE));
        }
        Ok(Done::with_body(&Nothing {}, body))
    }
}
