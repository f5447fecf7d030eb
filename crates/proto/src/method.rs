//! The numbers of the methods. A number is never used again for something else.

use wire::schema::Lane;

macro_rules! methods {
    ($($name:ident = $number:literal,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Method { $($name = $number,)* }

        impl Method {
            pub const ALL: &'static [Method] = &[$(Method::$name,)*];

            pub const fn number(self) -> u16 {
                self as u16
            }

            pub const fn from_number(number: u16) -> Option<Method> {
                match number {
                    $($number => Some(Method::$name),)*
                    _ => None,
                }
            }

            pub const fn name(self) -> &'static str {
                match self { $(Method::$name => stringify!($name),)* }
            }
        }
    };
}

methods! {
    // Control: 1 to 99.
    Hello = 1,
    Mount = 2,
    Unmount = 3,
    Renew = 4,
    MapSince = 5,
    NodeReport = 6,
    Listen = 7,
    Return = 8,
    // For those who watch.
    Counters = 20,
    ClusterStatus = 21,
    // For who takes data servers out.
    DrainNode = 22,
    RemoveNode = 23,
    Standings = 24,
    // The same among metadata servers.
    KnowStandings = 25,
    LookAtDrains = 26,
    // Among metadata servers.
    JoinMetadata = 40,
    LetGo = 41,
    StatePart = 42,
    PutState = 43,
    TakeOn = 44,
    Bring = 45,
    SlotLoads = 46,
    TailWho = 47,
    TailBegin = 48,
    TailMore = 49,
    TailNow = 50,
    Leaving = 54,
    TakeDuty = 55,
    Bare = 56,
    LockWaits = 60,
    RefuseLock = 61,
    // Objects on two data servers: the first is a client's, of the metadata server; the others are data servers'.
    FindView = 70,
    StoreCopy = 71,
    CopyDone = 72,
    AskLeave = 73,
    KnowView = 74,
    DropCopies = 75,
    // Metadata: 100 to 199.
    Lookup = 100,
    GetAttr = 101,
    SetAttr = 102,
    ReadLink = 103,
    ReadDir = 104,
    Create = 105,
    Mkdir = 106,
    Mknod = 107,
    Symlink = 108,
    Link = 109,
    Unlink = 110,
    Rmdir = 111,
    Rename = 112,
    TmpFile = 113,
    GetXattr = 114,
    SetXattr = 115,
    ListXattr = 116,
    RemoveXattr = 117,
    Open = 118,
    Close = 119,
    BeginWrite = 120,
    Append = 121,
    Reserve = 122,
    Fsync = 123,
    Forget = 124,
    Hold = 125,
    StatFs = 126,
    FindLayout = 127,
    Lock = 128,
    Unlock = 129,
    FindLock = 130,
    CancelLock = 131,
    Find = 132,
    Look = 133,
    CloseMany = 140,
    GetUntouched = 141,
    Keep = 142,
    FindSpread = 146,
    GetAlone = 147,
    ReadDots = 148,
    KeepWrites = 155,
    // Data: 200 to 299.
    Read = 200,
    Write = 201,
    Sync = 202,
    Truncate = 203,
    Allocate = 204,
    Seek = 205,
    Attrs = 206,
    Remove = 207,
    Stat = 208,
    Settle = 209,
    SetTime = 210,
    // Among servers: a stripe that moves.
    Pull = 211,
    Follow = 212,
    Changed = 213,
    HandOver = 214,
    Copies = 215,
    Judge = 216,
    // On one machine: a file that a client reads by itself.
    Lend = 217,
    StoreTo = 218,
    Coolest = 220,
}

impl Method {
    /// The connection that it belongs on.
    pub const fn lane(self) -> Lane {
        match self.number() {
            70 => Lane::Metadata,
            71..79 => Lane::Data,
            0..100 => Lane::Control,
            100..200 => Lane::Metadata,
            _ => Lane::Data,
        }
    }

    /// It changes an object, and has no number: carried out once more after something else, it would undo that.
    pub const fn changes_object(self) -> bool {
        matches!(self, Method::Write | Method::Truncate | Method::Allocate | Method::Remove | Method::SetTime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_lanes_go_by_them() {
        for method in Method::ALL {
            assert_eq!(Method::from_number(method.number()), Some(*method));
        }
        assert_eq!(Method::from_number(0), None);
        assert_eq!(Method::from_number(199), None);
        assert_eq!(
            [Method::Renew, Method::Lookup, Method::Settle].map(Method::lane),
            [Lane::Control, Lane::Metadata, Lane::Data]
        );
        assert!(Method::ALL.iter().all(|method| !method.changes_object() || method.lane() == Lane::Data));
    }
}
