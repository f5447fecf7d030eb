//! A metadata server that is gone for good is taken out of the cluster map.
//!
//! Only one that is silent and has nothing: what it had went to others before it ended, or its standby went on for it. Nothing of that is kept: if it is
//! started again it comes as one that is new.

use cluster::{Change, NodeId};
use types::Errno;
use wire::{handshake::Roles, schema::Retry};

use super::leave::take_turn;
use crate::{answer::No, metadata::MetadataService};

fn refused(why: String) -> No {
    No::new(Errno::EBUSY, Retry::Never, proto::Reason::None, why)
}

impl MetadataService {
    /// One of several metadata servers, with no data of its own in the map.
    pub(in crate::metadata) fn is_metadata_alone(&self, node: u64) -> bool {
        let map = self.nodes.map();
        let there = map.node(NodeId(node));
        self.owners.is_some() && there.is_some_and(|it| it.roles.has(Roles::MDS) && !it.roles.has(Roles::DS))
    }

    /// On duty.
    pub(in crate::metadata) fn remove_metadata(&self, node: u64) -> Result<(), No> {
        let (owners, duty) = self.on_duty()?;
        let id = NodeId(node);
        // Nothing is on its way to it.
        let mut turn = take_turn(duty)?;
        if self.is_heard(id) {
            let why = format!("metadata server {node} runs: stop it first, then it hands over what it has");
            return Err(refused(why));
        }
        let slots = self.nodes.map().slots_of(id).count();
        if slots > 0 {
            return Err(refused(format!(
                "metadata server {node} still has {slots} slots: its standby goes on for it, or it has to be started again (`onfs mds list`)"
            )));
        }
        turn.lent.retain(|_, (home, _)| *home != id);
        turn.doubtful.retain(|(_, from)| *from != id);
        self.nodes.change(&[Change::Remove(id)])?;
        duty.heard.lock().remove(&id);
        owners.peers.forget(id);
        tracing::info!(node, "a metadata server is removed");
        Ok(())
    }
}
