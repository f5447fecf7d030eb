//! A metadata server among others: how it comes, and what it has for that.

use std::{
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use cluster::{
    ClusterMap,
    node::{Node, RACK},
    relief::Settings,
};
use kv::MetaStore;
use mds::{Gather, Mds, MdsOptions, Welcome};
use namespace::superblock::{Stored, Superblock};
use net::{Address, Credentials};
use proto::owners::{JoinMetadata, runs};
use thiserror::Error;
use types::{Errno, SLOTS, Slot};

use super::{
    SlotRights,
    duty::Duty,
    follow::Following,
    gates::Gates,
    hand::{StateTable, as_slots},
    peers::{Peer, Peers},
};
use crate::{answer::No, metadata::MetadataService};

/// Between two questions who is on duty.
const PAUSE: Duration = Duration::from_millis(200);
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// Why a metadata server cannot begin.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum JoinError {
    #[error("slots of the metadata database: {0}")]
    Rights(String),
    #[error("{0}")]
    Mds(String),
    #[error(
        "no metadata server is on duty: whoever has the root's slot in the database has to be started first, or again ({0})"
    )]
    NobodyOnDuty(String),
    #[error("the server on duty sent what is no superblock of this program's format")]
    Superblock,
}

/// Who comes, and to whom.
#[derive(Clone)]
pub struct Joining {
    /// As the map has it.
    pub me: Node,
    /// Of the metadata servers, our own among them.
    pub servers: Vec<Address>,
    pub credentials: Credentials,
    pub rights: Arc<dyn SlotRights>,
    /// The others are waited for so long.
    pub patience: Duration,
    pub relief: Settings,
}

/// What a service needs beside its [`Mds`] when there are others.
pub struct Shared {
    joining: Joining,
    duty: bool,
    pub(crate) notes: Arc<MetaStore>,
}

/// Opens the part of the file system that this server has; the first of all servers makes it.
pub fn join(
    store: &Arc<MetaStore>,
    notes: &Arc<MetaStore>,
    options: MdsOptions,
    joining: Joining,
) -> Result<(Mds, Shared), JoinError> {
    let rights = &joining.rights;
    let root = types::UgsdId::ROOT.slot().get();
    let taken = rights.take_free(&[root]).map_err(JoinError::Rights)?;
    let duty = taken.contains_key(&root);
    if duty {
        // Those that nobody has yet, or gave back.
        let all: Vec<u16> = (0..SLOTS as u16).collect();
        rights.take_free(&all).map_err(JoinError::Rights)?;
    }
    let ours = as_slots(&rights.ours().into_keys().collect::<Vec<u16>>());
    let mds = if duty {
        Mds::first(store.clone(), options, &ours).map_err(|error| JoinError::Mds(error.to_string()))?
    } else {
        Mds::join(store.clone(), options, &welcomed(&joining)?, &ours)
    };
    Ok((mds, Shared { joining, duty, notes: notes.clone() }))
}

fn welcomed(joining: &Joining) -> Result<Welcome, JoinError> {
    let peers: Vec<Peer> = joining
        .servers
        .iter()
        .map(|address| Peer::new(vec![address.clone()], None, &joining.credentials))
        .collect();
    let asked = about(joining, (0, 0), true);
    let until = Instant::now() + joining.patience;
    let mut why = "no address of a metadata server is known".to_owned();
    loop {
        for peer in &peers {
            match peer.ask(&asked, Vec::new(), ANSWER_WAIT) {
                Ok((joined, _)) => {
                    let Some(Stored::Here(superblock)) = Superblock::decode(&joined.superblock) else {
                        return Err(JoinError::Superblock);
                    };
                    return Ok(Welcome { superblock });
                }
                Err(no) if no.errno() == Errno::EREMOTE => why = "those that answer are not".to_owned(),
                Err(no) => why = no.0.detail.clone(),
            }
        }
        if Instant::now() >= until {
            return Err(JoinError::NobodyOnDuty(why));
        }
        thread::sleep(PAUSE);
    }
}

/// What is said of ourselves.
pub(super) fn about(joining: &Joining, (incarnation, epoch): (u64, u64), fresh: bool) -> JoinMetadata {
    let Node { id, name, addresses, labels, .. } = &joining.me;
    let ours = joining.rights.ours();
    JoinMetadata {
        node: id.0,
        name: name.clone(),
        rack: labels.get(RACK).cloned().unwrap_or_default(),
        addresses: addresses.clone(),
        incarnation,
        slots: runs(ours.keys().copied()),
        epochs: ours.values().copied().collect(),
        fresh,
        epoch,
    }
}

pub(crate) struct Owners {
    pub(super) me: Node,
    pub(super) rights: Arc<dyn SlotRights>,
    pub(super) gates: Gates,
    pub(super) peers: Peers,
    pub(super) states: StateTable,
    /// Of the server on duty.
    pub(super) duty: Option<Duty>,
    pub(crate) following: Following,
    /// Kept for the metadata server, which refers to it.
    gatherer: Arc<dyn Gather>,
}

impl Owners {
    pub(crate) fn new(shared: Shared, service: Weak<MetadataService>) -> Owners {
        let Shared { joining, duty, notes: _ } = shared;
        Owners {
            me: joining.me.clone(),
            rights: joining.rights.clone(),
            gates: Gates::new(),
            peers: Peers::new(joining.credentials.clone()),
            states: StateTable::default(),
            duty: duty.then(|| Duty::new(joining.relief)),
            following: Following::new(joining),
            gatherer: Arc::new(Hands(service)),
        }
    }

    pub(crate) fn gatherer(&self) -> &Arc<dyn Gather> {
        &self.gatherer
    }

    pub(crate) fn is_on_duty(&self) -> bool {
        self.duty.is_some()
    }

    pub(crate) fn gates(&self) -> &Gates {
        &self.gates
    }

    /// The map of who is on duty from now on: what is ours is in it.
    pub(crate) fn first_map(&self, cluster: [u8; 16], epoch: u32) -> Result<ClusterMap, cluster::Refused> {
        use cluster::{Change, Epoch, map::SlotEpoch};
        let first = ClusterMap::begin(cluster, Epoch(u64::from(epoch) << 32));
        let ours = self.rights.ours();
        let own = ours.into_iter().filter_map(|(slot, epoch)| {
            Some(Change::Own { slot: Slot::new(slot)?, owner: self.me.id, epoch: SlotEpoch(epoch) })
        });
        first.next(&std::iter::once(Change::Put(self.me.clone())).chain(own).collect::<Vec<_>>())
    }
}

/// What the metadata server gathers with.
struct Hands(Weak<MetadataService>);

impl Gather for Hands {
    fn gather(&self, slots: &[Slot]) -> Result<(), Errno> {
        let service = self.0.upgrade().ok_or(Errno::EAGAIN)?;
        let owners = service.shared().map_err(|no| no.errno())?;
        // Whoever waits for slots does not keep others from getting his.
        let brought = owners.gates.outside(|| service.get_slots(owners, slots));
        match brought {
            Some(Ok(())) => Ok(()),
            // As where two file systems are two devices.
            Some(Err(no)) if no.errno() == Errno::EBUSY => Err(Errno::EXDEV),
            Some(Err(No(fault))) => {
                tracing::debug!(detail = fault.detail, "slots for an operation were not brought");
                Err(Errno::EAGAIN)
            }
            // It went meanwhile: the operation is for another.
            None => Err(Errno::EAGAIN),
        }
    }
}
