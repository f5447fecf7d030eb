//! Owners of locks.

use proto::SessionId;

/// Who a lock belongs to, and by whose rules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// `F_SETLK`: a process.
    Process,
    /// `F_OFD_SETLK`: an open file description.
    Description,
    /// flock(2): an open file description, all of the file.
    Flock,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    pub session: SessionId,
    pub class: Class,
    /// As the client's kernel names it.
    pub id: u64,
}
