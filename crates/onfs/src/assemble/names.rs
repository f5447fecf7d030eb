//! Names that several metadata servers share: the part of this one, and its rights in the database.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cluster::{
    map::{Epoch, NodeId},
    node::{Node, NodeState, RACK},
    tail::row::Change,
};
use kv::MetaStore;
use mds::Mds;
use net::Credentials;
use pg::{Rights, TailBatch, TailError, TailSeen};
use serve::metadata::{
    JoinError, Joining, Shared, SlotRights, StandbyOptions, TailRows, TailTrouble, TailView, join,
};
use wire::handshake::Roles;

use super::{
    metadata::{mds_options, open_names, recovery_line},
    patience::told,
    refusals::of_open,
    stores::close_metadata,
};
use crate::{
    config::{NodeConfig, ServerConfig},
    running::StartError,
};

/// Whoever is on duty is waited for so long: he may be starting, too.
const PATIENCE: Duration = Duration::from_secs(60);

/// Copies of the ends of others' journals, below the state directory.
const COPIES_DIR: &str = "copies";

/// This node, as the map has it before it reported anything.
pub(super) fn in_map(node: &NodeConfig) -> Node {
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

/// The rows of the database.
struct Rows(Rights);

impl SlotRights for Rows {
    fn take_free(&self, slots: &[u16]) -> Result<BTreeMap<u16, u64>, String> {
        self.0.take_free(slots).map(|taken| taken.ours).map_err(|error| error.to_string())
    }

    fn release(&self, slots: &[u16]) -> Result<(), String> {
        self.0.release(slots).map_err(|error| error.to_string())
    }

    fn ours(&self) -> BTreeMap<u16, u64> {
        self.0.ours()
    }
}

/// What they say of standbys.
struct Tails(Rights);

impl TailRows for Tails {
    fn writer(&self) -> String {
        self.0.writer().to_owned()
    }

    fn see(&self, writer: &str) -> Result<Option<TailView>, String> {
        let seen = self.0.tail_of(writer).map_err(|error| error.to_string())?;
        Ok(seen.map(|TailSeen { row, ended, .. }| TailView { row, ended }))
    }

    fn write(&self, change: &Change<String>) -> Result<(), TailTrouble> {
        self.0.write_tail(change).map(drop).map_err(trouble)
    }

    fn take_over(
        &self,
        from: &str,
        copy: u64,
        tail: &[TailBatch],
    ) -> Result<BTreeMap<u16, u64>, TailTrouble> {
        self.0.take_over(from, copy, tail).map(|taken| taken.ours).map_err(trouble)
    }
}

fn trouble(error: TailError) -> TailTrouble {
    match error {
        TailError::Refused(refused) => TailTrouble::Refused(refused),
        TailError::Fenced(error) => TailTrouble::Fenced(error.to_string()),
        TailError::Failed(error) => TailTrouble::Failed(error.to_string()),
    }
}

pub(super) struct Names {
    pub store: Arc<MetaStore>,
    pub mds: Arc<Mds>,
}

/// `None`: this server has all names in its own store.
pub(super) fn open(
    config: &ServerConfig,
    credentials: &Credentials,
    (notes, owner_uid): (&Arc<MetaStore>, u32),
    note: &mut dyn FnMut(&str),
) -> Result<Option<(Names, Shared)>, StartError> {
    let Some(database) = config.shared_names() else { return Ok(None) };
    let (store, rights) = open_names(&config.stores, database).map_err(of_open)?;
    let store = Arc::new(store);
    if let Some(line) = recovery_line(&store) {
        note(&line);
    }
    let mut me = in_map(&config.node);
    if database.standby_only {
        me.roles = me.roles.and(Roles::STANDBY_ONLY);
    }
    let joining = Joining {
        me,
        servers: config.cluster.metadata.clone(),
        credentials: credentials.clone(),
        rights: Arc::new(Rows(rights.clone())),
        standby: Some(StandbyOptions {
            rows: Arc::new(Tails(rights)),
            dir: config.stores.mount.state.join(COPIES_DIR),
            on: database.standby,
            terms: Default::default(),
        }),
        patience: PATIENCE,
        relief: Default::default(),
    };
    let waits_for =
        "no metadata server that makes the cluster map has answered yet; it is waited for, for a minute";
    match told(note, waits_for, || join(&store, notes, mds_options(owner_uid), joining))? {
        Ok((mds, shared)) => Ok(Some((Names { store, mds: Arc::new(mds) }, shared))),
        Err(error) => {
            let started = match &error {
                JoinError::NobodyOnDuty(_) | JoinError::Rights(_) => StartError::Failed(error.to_string()),
                JoinError::Mds(_) | JoinError::Superblock => StartError::Damaged(error.to_string()),
            };
            if let Err(why) = close_metadata(&store) {
                tracing::warn!(why, "the names were not closed in order");
            }
            Err(started)
        }
    }
}

impl Names {
    /// When nothing asks for names any more.
    pub fn close(self) -> Result<(), String> {
        let Names { store, mds } = self;
        drop(mds);
        close_metadata(&store).map_err(|why| format!("names: {why}"))
    }
}
