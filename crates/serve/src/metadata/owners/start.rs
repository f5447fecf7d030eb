//! A metadata server among others: how it comes, and what it has for that.

use std::{
    collections::HashSet,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use cluster::{
    ClusterMap,
    node::{Node, RACK},
    relief::Settings,
};
use kv::MetaStore;
use mds::{Mds, MdsOptions, Welcome};
use namespace::superblock::{Stored, Superblock};
use net::{Address, Credentials};
use proto::{
    control::Hello,
    owners::{JoinMetadata, runs},
};
use thiserror::Error;
use types::{Errno, SLOTS, Slot, UgsdId};

use super::{
    peers::{Peer, Peers},
    rights::{SlotRights, as_slots},
};
use crate::metadata::tail::StandbyOptions;

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
    /// Of standbys; `None`: there are none.
    pub standby: Option<StandbyOptions>,
}

/// What a service needs beside its [`Mds`] when there are others.
pub struct Shared {
    pub(crate) joining: Joining,
    pub(crate) duty: bool,
    /// It had no slots before and has none now, so nobody has anything in them.
    pub(crate) is_new: bool,
    /// Slots that were nobody's: somebody gave them up, and clients may have something in them.
    pub(crate) found: Vec<Slot>,
    pub(crate) notes: Arc<MetaStore>,
}

impl Shared {
    /// Those that are ours.
    pub(crate) fn slots(&self) -> HashSet<Slot> {
        as_slots(&self.joining.rights.ours().into_keys().collect::<Vec<u16>>()).into_iter().collect()
    }
}

/// Opens the part of the file system that this server has; the first of all servers makes it.
pub fn join(
    store: &Arc<MetaStore>,
    notes: &Arc<MetaStore>,
    options: MdsOptions,
    joining: Joining,
) -> Result<(Mds, Shared), JoinError> {
    let rights = &joining.rights;
    let before = rights.ours();
    let root = UgsdId::ROOT.slot().get();
    // Who only keeps copies is on duty if it went on for who was.
    let may = !joining.me.is_standby_only() || before.contains_key(&root);
    let taken = if may { rights.take_free(&[root]).map_err(JoinError::Rights)? } else { before.clone() };
    let duty = taken.contains_key(&root);
    if duty {
        // Those that nobody has yet, or gave back.
        let all: Vec<u16> = (0..SLOTS as u16).collect();
        rights.take_free(&all).map_err(JoinError::Rights)?;
    }
    let ours = as_slots(&rights.ours().into_keys().collect::<Vec<u16>>());
    let found: Vec<Slot> = ours.iter().copied().filter(|slot| !before.contains_key(&slot.get())).collect();
    let is_new = before.is_empty() && found.is_empty();
    let mds = if duty {
        Mds::first(store.clone(), options, &ours).map_err(|error| JoinError::Mds(error.to_string()))?
    } else {
        Mds::join(store.clone(), options, &welcomed(&joining)?, &ours)
    };
    Ok((mds, Shared { joining, duty, is_new, found, notes: notes.clone() }))
}

fn welcomed(joining: &Joining) -> Result<Welcome, JoinError> {
    let others =
        joining.servers.iter().filter(|address| !joining.me.addresses.contains(&address.to_string()));
    let peers: Vec<Peer> =
        others.map(|address| Peer::new(vec![address.clone()], None, &joining.credentials)).collect();
    let asked = about(joining, (0, 0), true);
    let until = Instant::now() + joining.patience;
    let mut why = "no address of a metadata server is known".to_owned();
    loop {
        for peer in &peers {
            let answered = match peer.ask(&asked, Vec::new(), ANSWER_WAIT) {
                // He may be in nobody's configuration.
                Err(no) if no.errno() == Errno::EREMOTE => match on_duty(joining, peer) {
                    Some(on_duty) => on_duty.ask(&asked, Vec::new(), ANSWER_WAIT),
                    None => Err(no),
                },
                answered => answered,
            };
            match answered {
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

/// Whom the map of another names.
fn on_duty(joining: &Joining, peer: &Peer) -> Option<Arc<Peer>> {
    let (_, body) = peer.ask(&Hello {}, Vec::new(), ANSWER_WAIT).ok()?;
    let map = ClusterMap::decode(&body).ok()?;
    let owner = map.slot(UgsdId::ROOT.slot()).owner.filter(|node| *node != joining.me.id)?;
    Peers::new(joining.credentials.clone()).of(&map, owner).ok()
}

/// What is said of ourselves.
pub(super) fn about(joining: &Joining, (incarnation, epoch): (u64, u64), fresh: bool) -> JoinMetadata {
    let Node { id, name, addresses, labels, .. } = &joining.me;
    let standby_only = joining.me.is_standby_only();
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
        standby_only,
    }
}
