//! Which server an inode is asked of, and what the server does with a question that is not for it.

use types::Ino;
use wire::schema::WrongOwner;

use crate::{
    map::{ClusterMap, Epoch, SlotEpoch},
    node::NodeId,
};

/// Who serves an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    pub node: NodeId,
    pub epoch: SlotEpoch,
}

/// What a server does with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The slot is its own, under this epoch. The commit is fenced with it.
    Mine(SlotEpoch),
    /// Another's. The client wants a map of at least this epoch.
    NotMine(WrongOwner),
    /// The client's map is newer: the server fetches it before it says anything.
    Behind { theirs: Epoch },
}

/// What a client does after [`WrongOwner`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redirected {
    /// Its map is older: it fetches one of at least this epoch, and asks again.
    Refresh { at_least: Epoch },
    /// Its map is not: the two disagree for a moment, so it asks again after a while.
    Later,
}

impl ClusterMap {
    /// `None`: nobody owns its slot at the moment.
    pub fn owner_of(&self, ino: Ino) -> Option<Owner> {
        let entry = self.slot(ino.ugsd().slot());
        entry.owner.map(|node| Owner { node, epoch: entry.epoch })
    }

    /// A request about `ino` by somebody whose map has the epoch `theirs`, at the server `me`.
    pub fn admit(&self, me: NodeId, ino: Ino, theirs: Epoch) -> Admission {
        if theirs > self.epoch {
            return Admission::Behind { theirs };
        }
        match self.owner_of(ino) {
            Some(owner) if owner.node == me => Admission::Mine(owner.epoch),
            Some(_) | None => Admission::NotMine(WrongOwner { epoch: self.epoch.0 }),
        }
    }

    pub fn redirected(&self, answer: WrongOwner) -> Redirected {
        match Epoch(answer.epoch) {
            newer if newer > self.epoch => Redirected::Refresh { at_least: newer },
            _ => Redirected::Later,
        }
    }
}
