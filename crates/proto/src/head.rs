//! What every request of a client begins with: its session, and which of its operations it is.

use std::fmt;

use prost::Message;

/// One mount of a client: a random number of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u128);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Head {
    #[prost(fixed64, tag = "1")]
    pub session_high: u64,
    #[prost(fixed64, tag = "2")]
    pub session_low: u64,
    /// Of the session's operations, from 1, each one more than the one before. A request with the same number is the same
    /// operation and gets the first answer. 0: it may be carried out again without harm.
    #[prost(uint64, tag = "3")]
    pub number: u64,
    /// All operations below it are answered: their answers need not be kept.
    #[prost(uint64, tag = "4")]
    pub acknowledged: u64,
    /// Which joining of the session is meant, as [`crate::control::Mounted`] said: what is asked under an earlier one is not carried
    /// out. 0: whichever there is.
    #[prost(uint64, tag = "5")]
    pub joined: u64,
    /// Of an operation that takes a name away or moves it: inodes that it names, of which the session keeps nothing while the operation runs. Of
    /// others it is asked back what it keeps, as from all.
    #[prost(uint64, tag = "10")]
    pub dropped: u64,
    #[prost(uint64, tag = "11")]
    pub dropped_too: u64,
}

impl Head {
    /// Of a request that changes nothing.
    pub fn of(session: SessionId) -> Head {
        Head {
            session_high: (session.0 >> 64) as u64,
            session_low: session.0 as u64,
            number: 0,
            acknowledged: 0,
            joined: 0,
            dropped: 0,
            dropped_too: 0,
        }
    }

    pub fn operation(session: SessionId, number: u64, acknowledged: u64) -> Head {
        Head { number, acknowledged, ..Head::of(session) }
    }

    pub fn session(&self) -> SessionId {
        SessionId(u128::from(self.session_high) << 64 | u128::from(self.session_low))
    }
}

/// An answer without a content.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Nothing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_keeps_its_number() {
        let id = SessionId(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210);
        assert_eq!(Head::of(id).session(), id);
        assert_eq!(id.to_string(), "0123456789abcdeffedcba9876543210");
    }
}
