//! Messages of the control lane: who is there, sessions, the map, what data servers say of themselves.

use prost::Message;

use crate::{
    Bad, Head, Method, Nothing, Request, SessionId,
    attr::Attr,
    copies::CopyWord,
    metadata::{known, text},
    slots::Run,
};

/// Bytes of a host's or node's name.
pub const NAME_MAX: usize = 64;
pub const ADDRESSES_MAX: usize = 4;
pub const ADDRESS_MAX: usize = 64;
/// Bytes of a rack's name.
pub const RACK_MAX: usize = 24;
/// Of what names a state directory.
const STATE_BYTES: usize = 16;
/// Inodes that an answer to a renewal names.
pub const NAMELESS_MAX: usize = 4096;
/// Of a data server.
pub const TIERS_MAX: usize = 8;

/// What cluster is this? Needs no session.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Hello {}

/// The cluster map is in the body, as `cluster::schema` stores it; each node's addresses are in it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Facts {
    /// Of the map.
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// The node of the metadata server that is asked.
    #[prost(uint64, tag = "2")]
    pub node: u64,
    /// How often a session that asks nothing else renews itself.
    #[prost(uint32, tag = "3")]
    pub renew_ms: u32,
    /// A session that is silent so long is given up.
    #[prost(uint32, tag = "4")]
    pub silence_ms: u32,
    /// One life of the metadata server: another number says that sessions must be made again.
    #[prost(uint64, tag = "5")]
    pub incarnation: u64,
    /// The same counted from 1, in a durable place.
    #[prost(uint32, tag = "6")]
    pub life: u32,
    /// This life began without any slot, of several metadata servers: what sessions had at an earlier one is others'.
    #[prost(bool, tag = "7")]
    pub began_empty: bool,
}

/// Makes the session in the head; one that is there stays as it is. One that comes back to a server that was started again says so,
/// and in the body what locks it had ([`crate::locks::HadLocks`]): it gets all of them, or there is no such session any more.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mount {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// For people.
    #[prost(string, tag = "2")]
    pub host: String,
    /// The client's node, if a data server runs on it: what it alone writes is put there. 0: none.
    #[prost(uint64, tag = "3")]
    pub node: u64,
    /// As which it was known before. 0: it comes for the first time.
    #[prost(uint64, tag = "4")]
    pub before: u64,
    /// The life of the server that it comes to. 0: whichever.
    #[prost(uint32, tag = "5")]
    pub life: u32,
    /// The highest stamp of a lock ([`crate::locks::Locked`]) that it has heard of.
    #[prost(uint64, tag = "6")]
    pub stamp: u64,
    /// The allocation of the scheduler that it is of: second copies of what is on a node are rather on one without the same job. Empty: none.
    #[prost(string, tag = "7")]
    pub job: String,
    /// Another process goes on with it: none of its locks is waited for any more, and those that it has are in the answer's body ([`crate::locks::HadLocks`]).
    #[prost(bool, tag = "8")]
    pub resumes: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mounted {
    #[prost(message, optional, tag = "1")]
    pub root: Option<Attr>,
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    /// Names the file system. 16 bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub uuid: Vec<u8>,
    #[prost(uint32, tag = "4")]
    pub renew_ms: u32,
    #[prost(uint32, tag = "5")]
    pub silence_ms: u32,
    /// Files that the session may have open at once.
    #[prost(uint64, tag = "6")]
    pub openings_max: u64,
    /// Inodes that it may refer to at once.
    #[prost(uint64, tag = "7")]
    pub references_max: u64,
    /// Operations at once whose answers are kept.
    #[prost(uint64, tag = "8")]
    pub operations_max: u64,
    /// For the heads of its requests, and for its next coming back.
    #[prost(uint64, tag = "9")]
    pub joined: u64,
    /// Of one that is resumed: it was here, and has what it had.
    #[prost(bool, tag = "10")]
    pub was_here: bool,
}

/// Ends the session and gives back what it has.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Unmount {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Renew {
    #[prost(message, optional, tag = "1")]
    pub head: Option<Head>,
    /// As in [`Mount`], as it is now. Missing: as it was.
    #[prost(uint64, optional, tag = "2")]
    pub node: Option<u64>,
    /// It may keep writes back ([`crate::writes::KeepWrites`]) from now on, at whichever metadata server: this one is to know who may have, should it go on
    /// for another.
    #[prost(bool, tag = "3")]
    pub writes: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Renewed {
    /// Of the newest map.
    #[prost(uint64, tag = "1")]
    pub map_epoch: u64,
    /// The last number of slots that the server took without what sessions had in them ([`crate::owners::Bare`]). 0, and missing: none.
    #[prost(uint64, tag = "2")]
    pub bare: u64,
    /// That it may keep writes back is recorded.
    #[prost(bool, tag = "3")]
    pub writes: bool,
    /// Inodes without a name that the session refers to and has not open: what the kernel merely remembers of them is to be forgotten. At most
    /// [`NAMELESS_MAX`]; those that are not given back are named again later.
    #[prost(uint64, repeated, tag = "4")]
    pub nameless: Vec<u64>,
}

/// The newest map, if it is not the one with this epoch.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MapSince {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
}

/// The whole map is in the body; none if nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MapNow {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
}

/// What a data server says of itself; it is believed for a while.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeReport {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// For people; no two nodes have the same.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Empty: unknown.
    #[prost(string, tag = "3")]
    pub rack: String,
    /// In the order in which they are tried: `HOST:PORT` or `unix:PATH`.
    #[prost(string, repeated, tag = "4")]
    pub addresses: Vec<String>,
    /// A random number of each start.
    #[prost(uint64, tag = "5")]
    pub incarnation: u64,
    /// Bytes of all tiers.
    #[prost(uint64, tag = "6")]
    pub total: u64,
    /// Of them those that may be written to.
    #[prost(uint64, tag = "7")]
    pub free: u64,
    /// Thousandths of what it can do.
    #[prost(uint32, tag = "8")]
    pub busy: u32,
    /// From the fastest. None: it does not say.
    #[prost(message, repeated, tag = "9")]
    pub tiers: Vec<TierNow>,
    /// Bytes that only memory has.
    #[prost(uint64, tag = "10")]
    pub only_in_memory: u64,
    /// Requests that wait or are carried out.
    #[prost(uint64, tag = "11")]
    pub waiting: u64,
    /// Of the program. Empty: unknown.
    #[prost(string, tag = "12")]
    pub version: String,
    /// Copies of stripes of which it does not know whether they count ([`crate::moving::Copies`]).
    #[prost(uint64, tag = "30")]
    pub copies: u64,
    /// It refuses sessions that were given up.
    #[prost(bool, tag = "31")]
    pub refuses: bool,
    /// Of the newest [`Roster`] that it keeps to: nothing of a session that this says is gone is under way any more. 0: none.
    #[prost(uint64, tag = "32")]
    pub roster: u64,
    /// How its lowest tier stands. None: it does not say, sends nothing away and takes nothing from who does.
    #[prost(message, optional, tag = "220")]
    pub pressure: Option<Pressure>,
    /// What names its state directory: 16 random bytes. Empty: it does not say.
    #[prost(bytes = "vec", tag = "346")]
    pub state: Vec<u8>,
    /// Which of its lives this is, to all metadata servers the same. 0: it takes part in no second copies.
    #[prost(fixed64, tag = "70")]
    pub life: u64,
    /// Of objects with two copies.
    #[prost(message, repeated, tag = "71")]
    pub copy_words: Vec<CopyWord>,
    /// Of the map by which it was told of other data servers last.
    #[prost(uint64, tag = "72")]
    pub peers_epoch: u64,
    /// Bytes that it sent to new second copies since it was started.
    #[prost(uint64, tag = "73")]
    pub copied: u64,
}

/// As `cluster::pressure::Stand`, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Pressure {
    /// Are to leave.
    #[prost(uint64, tag = "1")]
    pub lacking: u64,
    /// In haste.
    #[prost(bool, tag = "2")]
    pub forced: bool,
    /// It can take.
    #[prost(uint64, tag = "3")]
    pub spare: u64,
    /// It can take if somebody waits.
    #[prost(uint64, tag = "4")]
    pub most: u64,
    /// Its lowest tier outlives the machine.
    #[prost(bool, tag = "5")]
    pub safe: bool,
    /// Objects that somebody waits for to be safe.
    #[prost(uint64, tag = "6")]
    pub waiting: u64,
    /// Objects that have been in memory alone for as long as they may.
    #[prost(uint64, tag = "7")]
    pub aged: u64,
}

/// A tier of a data server, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TierNow {
    /// 0 memory, 1 SSD, 2 near-line.
    #[prost(uint32, tag = "1")]
    pub tier: u32,
    #[prost(uint64, tag = "2")]
    pub limit: u64,
    #[prost(uint64, tag = "3")]
    pub used: u64,
    #[prost(uint64, tag = "4")]
    pub available: u64,
    /// Below so many available bytes writers wait.
    #[prost(uint64, tag = "5")]
    pub stop_write: u64,
    #[prost(bool, tag = "6")]
    pub writers_wait: bool,
    /// Its device is slow or fails: what is new goes elsewhere if it can. Older ones do not say it.
    #[prost(bool, tag = "7")]
    pub slow: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeReported {
    #[prost(uint64, tag = "1")]
    pub map_epoch: u64,
    /// When it shall report again.
    #[prost(uint32, tag = "2")]
    pub again_ms: u32,
    /// For so long after it sent this report it may carry out what sessions ask. 0: as long as it likes.
    #[prost(uint32, tag = "3")]
    pub lease_ms: u32,
    /// If it is not the one that it has.
    #[prost(message, optional, tag = "4")]
    pub roster: Option<Roster>,
    /// The largest stripe that another data server would take from it now, in a tier that outlives its machine. 0: nothing is moved.
    #[prost(uint64, tag = "220")]
    pub safe_room: u64,
    /// The same in whichever tier.
    #[prost(uint64, tag = "221")]
    pub any_room: u64,
    /// No data server of the cluster ever had a tier that outlives its machine: then memory is as safe as can be.
    #[prost(bool, tag = "222")]
    pub nothing_safe: bool,
    /// Who answers, where there are several metadata servers. 0: there is one.
    #[prost(uint64, tag = "25")]
    pub server: u64,
    /// All data servers, if the asker takes part in second copies and was told of them by an older map.
    #[prost(message, repeated, tag = "70")]
    pub peers: Vec<Peer>,
}

/// A data server, and where it is reached.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Peer {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    #[prost(string, repeated, tag = "2")]
    pub addresses: Vec<String>,
}

/// Which sessions are there, by the numbers as which they came. There are 4096 at most.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Roster {
    /// A later one has a higher number, also of a later life of the metadata server.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    /// Numbers of this life are above it,
    #[prost(uint64, tag = "2")]
    pub first: u64,
    /// and this is the last that was given. Higher ones are of sessions that came since.
    #[prost(uint64, tag = "3")]
    pub last: u64,
    /// Of this life, those that are there.
    #[prost(uint64, repeated, tag = "4")]
    pub there: Vec<u64>,
    /// Sessions of earlier lives may come back,
    #[prost(bool, tag = "5")]
    pub earlier: bool,
    /// but not these.
    #[prost(uint64, repeated, tag = "6")]
    pub given_up: Vec<u64>,
    /// Where there are several metadata servers: the slots that this one has,
    #[prost(message, repeated, tag = "25")]
    pub slots: Vec<Run>,
    /// and the epoch of each. The one with the highest is the owner.
    #[prost(uint64, repeated, tag = "26")]
    pub epochs: Vec<u64>,
}

fn of_session(head: Option<&Head>) -> Result<(), Bad> {
    known(head)?;
    match head.map(Head::session) {
        None | Some(SessionId(0)) => Err(Bad::Missing("session")),
        Some(_) => Ok(()),
    }
}

impl Request for Hello {
    const METHOD: Method = Method::Hello;
    type Answer = Facts;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        Ok(())
    }
}

impl Request for Mount {
    const METHOD: Method = Method::Mount;
    type Answer = Mounted;

    fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn check(&self) -> Result<(), Bad> {
        of_session(self.head())?;
        text("host", &self.host, NAME_MAX)?;
        text("job", &self.job, NAME_MAX)
    }
}

impl Request for Unmount {
    const METHOD: Method = Method::Unmount;
    type Answer = Nothing;

    fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn check(&self) -> Result<(), Bad> {
        of_session(self.head())
    }
}

impl Request for Renew {
    const METHOD: Method = Method::Renew;
    type Answer = Renewed;

    fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    fn check(&self) -> Result<(), Bad> {
        of_session(self.head())
    }
}

impl Request for MapSince {
    const METHOD: Method = Method::MapSince;
    type Answer = MapNow;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        Ok(())
    }
}

impl Request for NodeReport {
    const METHOD: Method = Method::NodeReport;
    type Answer = NodeReported;

    fn head(&self) -> Option<&Head> {
        None
    }

    fn check(&self) -> Result<(), Bad> {
        if self.node == 0 {
            return Err(Bad::Missing("node"));
        }
        text("node's name", &self.name, NAME_MAX)?;
        text("rack", &self.rack, RACK_MAX)?;
        let len = self.addresses.len();
        if len > ADDRESSES_MAX {
            return Err(Bad::TooLong { what: "addresses", len, max: ADDRESSES_MAX });
        }
        if self.tiers.len() > TIERS_MAX {
            return Err(Bad::TooLong { what: "tiers", len: self.tiers.len(), max: TIERS_MAX });
        }
        text("version", &self.version, NAME_MAX)?;
        if !matches!(self.state.len(), 0 | STATE_BYTES) {
            return Err(Bad::Range("state"));
        }
        crate::copies::words(&self.copy_words)?;
        self.addresses.iter().try_for_each(|address| text("address", address, ADDRESS_MAX))
    }
}
