//! Who takes part, and the numbers that all of them share.

use std::{collections::BTreeMap, time::Duration};

use cluster::{Epoch, Node, NodeId, NodeState, striping::Striped, tenure::Terms};
use lease::coherence::{locks::LockLimits, server::Limits};
use proto::SessionId;
use types::{Ino, LocalId, SAU_BYTES, Slot, UgsdId};
use wire::handshake::Roles;

/// A process, by what it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    Database,
    Coordinator(usize),
    Metadata(usize),
    Data(usize),
    Client(usize),
}

pub const COORDINATORS: usize = 2;
/// The last one is in some runs that have standbys, as one of its own or as one more server.
pub const METADATA_SERVERS: usize = 3;
pub const DATA_SERVERS: usize = 3;
pub const CLIENTS: usize = 3;
pub const PROGRAMS: usize = 2;

pub const STEP: Duration = Duration::from_millis(10);
pub const FAULTS_UNTIL: Duration = Duration::from_secs(10);
/// From then on programs close and unlock what they have, and begin nothing.
pub const WORK_UNTIL: Duration = Duration::from_secs(13);
/// What is not at rest by then never will be.
pub const END: Duration = Duration::from_secs(45);

pub const TERMS: Terms = Terms {
    lease: Duration::from_millis(800),
    beat_every: Duration::from_millis(160),
    suspect_after: Duration::from_millis(400),
    drift_one_in: 20,
};

pub const LEASES: Limits = Limits {
    terms: TERMS,
    silence: Duration::from_millis(2000),
    recall: Duration::from_millis(1200),
    rest: Duration::from_millis(200),
    sessions: 64,
    leases: 40,
    operations: 128,
    claims: 8,
    locks: LockLimits { locks: 60, session_locks: 20, waiters: 8 },
};

/// UGSDs that are used, each a directory below the root, each in a slot of its own.
pub const UGSDS: [u32; 2] = [1, 2];
pub const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Of each directory: they are there from the beginning, and nobody takes their names away.
pub const FILES: u64 = 2;
/// Bytes of a file are looked at in so many places, two of each storage allocation unit.
pub const CELLS: u64 = 6;

impl Place {
    /// Of a metadata server.
    pub fn node_id(at: usize) -> NodeId {
        NodeId(at as u64 + 1)
    }

    pub fn all() -> Vec<Place> {
        let all = |count: usize, of: fn(usize) -> Place| (0..count).map(of);
        std::iter::once(Place::Database)
            .chain(all(COORDINATORS, Place::Coordinator))
            .chain(all(METADATA_SERVERS, Place::Metadata))
            .chain(all(DATA_SERVERS, Place::Data))
            .chain(all(CLIENTS, Place::Client))
            .collect()
    }

    /// What it says of itself in a handshake.
    pub fn roles(self) -> Roles {
        match self {
            Place::Database | Place::Coordinator(_) => Roles::COORD,
            Place::Metadata(_) => Roles::MDS,
            Place::Data(_) => Roles::DS,
            Place::Client(_) => Roles::CLIENT,
        }
    }

    pub fn number(self) -> u64 {
        match self {
            Place::Database => 100,
            Place::Coordinator(at) => 200 + at as u64,
            Place::Metadata(at) => 1 + at as u64,
            Place::Data(at) => 300 + at as u64,
            Place::Client(at) => 400 + at as u64,
        }
    }
}

/// `only`: it keeps copies and serves only what it takes over.
pub fn node_of(at: usize, only: bool) -> Node {
    Node {
        id: Place::node_id(at),
        name: format!("m{at}"),
        addresses: Vec::new(),
        roles: if only { Roles::MDS.and(Roles::STANDBY_ONLY) } else { Roles::MDS },
        labels: BTreeMap::new(),
        state: NodeState::Joining,
        joined: Epoch(0),
    }
}

/// A session says whose it is.
pub fn session_of(client: usize, number: u64) -> SessionId {
    SessionId((client as u128 + 1) << 64 | u128::from(number))
}

pub fn place_of(session: SessionId) -> Place {
    Place::Client(((session.0 >> 64) as usize).saturating_sub(1))
}

pub fn inode(ugsd: u32, local: u64) -> Ino {
    let of = UgsdId::new(ugsd).zip(LocalId::new(local));
    of.map_or(Ino::ROOT, |(ugsd, local)| Ino::new(ugsd, local))
}

pub fn directory(ugsd: u32) -> Ino {
    inode(ugsd, 1)
}

/// One of those that stay.
pub fn file(ugsd: u32, n: u64) -> Ino {
    inode(ugsd, 2 + n)
}

pub fn slots() -> Vec<Slot> {
    UGSDS.iter().filter_map(|ugsd| UgsdId::new(*ugsd)).map(UgsdId::slot).collect()
}

pub fn ugsd_of(slot: Slot) -> u32 {
    u32::from(slot.get())
}

/// The data server of a cell, and the offset in its object.
pub fn spot(cell: u64) -> (usize, u64) {
    let offset = cell * (SAU_BYTES / 2);
    Striped::new(SAU_BYTES, DATA_SERVERS).map_or((0, offset), |striped| striped.locate(offset))
}

/// A simulation that finds nothing must not be one that sees nothing: each of these is a thing that all hangs on, left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    Nothing,
    /// Clients believe their terms to be six times as long as the server does.
    ClientTerms,
    /// Metadata servers believe so of their membership.
    MemberTerms,
    /// The database takes commits of who does not own the slot any more.
    RowFence,
    /// Data servers take what fenced sessions say.
    DataFence,
    /// A new life does not wait for the terms of the one before.
    Grace,
    /// An operation is answered before its commit is in the journal.
    EarlyAnswer,
    /// A request that is made again has another number.
    NewNumber,
    /// Clients keep pages over a recall.
    StalePages,
    /// A data server reads what its memory had before the power cut as holes.
    ForgottenMemory,
    /// Clients come back over a power cut of the database, with leases on what it took away.
    LostTail,
    /// A data server says that bytes are durable before it made them so.
    EarlySync,
    /// The residency map is not written before the bytes.
    LateMap,
    /// Answers do not go along with their slot.
    AnswersLeft,
    /// Nor do locks.
    LocksLeft,
    /// Who let a slot go serves it on.
    ServedOn,
    /// Connections of a process stay when it has made a new one, and so do the requests in them.
    OldConnections,
    /// With standbys: what is in the journal is answered before the standby has it.
    EarlyTail,
    /// A standby goes on without the last record that it has.
    ShortTail,
    /// A copy counts as complete from its beginning.
    HalfTail,
    /// Who was gone on for writes rows and records as before.
    TailFence,
    /// He answers as before.
    TailTenure,
    /// A standby goes on without the answers that are in the copy.
    AnswersLost,
}

impl Broken {
    pub const ALL: [Broken; 22] = [
        Broken::ClientTerms,
        Broken::MemberTerms,
        Broken::RowFence,
        Broken::DataFence,
        Broken::Grace,
        Broken::EarlyAnswer,
        Broken::NewNumber,
        Broken::StalePages,
        Broken::ForgottenMemory,
        Broken::LostTail,
        Broken::EarlySync,
        Broken::LateMap,
        Broken::OldConnections,
        Broken::AnswersLeft,
        Broken::LocksLeft,
        Broken::ServedOn,
        Broken::EarlyTail,
        Broken::ShortTail,
        Broken::HalfTail,
        Broken::TailFence,
        Broken::TailTenure,
        Broken::AnswersLost,
    ];

    /// It is of the runs that have standbys.
    pub fn is_of_tails(self) -> bool {
        matches!(
            self,
            Broken::EarlyTail
                | Broken::ShortTail
                | Broken::HalfTail
                | Broken::TailFence
                | Broken::TailTenure
                | Broken::AnswersLost
        )
    }
}
