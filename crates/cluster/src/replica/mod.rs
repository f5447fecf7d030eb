//! An object on two data servers: what each of them may do, and who says which two they are.
//!
//! - [`View`] who has the object; [`keeper`] how the metadata server makes one into the next, durably, one at a time.
//! - [`copy`] a data server's part: the primary orders writes, the second stores each first, reads are answered by either.
//! - [`trust`] between two data servers: for how long one may answer without asking the other again.
//!
//! Invariants, over all of them
//! - I-REPLICA-1: what was answered is at all members of the newest view.
//! - I-REPLICA-2: reads and writes of a byte have one order, whichever member answers. A read shows nothing that a later one, at the other
//!   member or after a change of the view, does not show.
//! - I-REPLICA-3: once somebody has gone on without a member, that member answers nobody.
//! - I-REPLICA-4: a member is added when it has every byte, and is not left behind unnoticed afterwards.
//!
//! A server that was started again is another member: what it had it may have lost.

pub mod copy;
pub mod keeper;
pub mod trust;

use crate::node::NodeId;

/// A data server in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member {
    pub node: NodeId,
    pub life: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Second {
    pub member: Member,
    /// The view with which it became the second.
    pub since: u64,
    /// It has every byte, and may be asked. Else it is being made, and gets all writes already.
    pub counts: bool,
    /// While it is being made: it says that it has what it had when it was left behind.
    pub kept: bool,
}

/// Who has the object. The record of a file's layout has one for each stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Rises with every change.
    pub number: u64,
    pub primary: Member,
    /// The view with which it became primary.
    pub since: u64,
    pub second: Option<Second>,
}

impl View {
    pub fn has(&self, member: Member) -> bool {
        self.primary == member || self.second.is_some_and(|second| second.member == member)
    }

    /// Who may be asked for bytes.
    pub fn members(&self) -> impl Iterator<Item = Member> {
        let second = self.second.filter(|second| second.counts);
        [Some(self.primary), second.map(|second| second.member)].into_iter().flatten()
    }

    pub fn counts(&self, member: Member) -> bool {
        self.members().any(|one| one == member)
    }

    /// Who counts beside `member`.
    pub fn other(&self, member: Member) -> Option<Member> {
        self.members().find(|one| *one != member)
    }
}
