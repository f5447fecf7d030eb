//! What guardian and daemon say to each other: one message at a time over a socket of their own, with descriptors beside it.
//!
//! The messages are JSON, and words that the other end does not know are an error there: the two may be of different versions of the
//! program, and an upgrade that they do not agree on is given up.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Descriptors of one message.
const FDS_MAX: usize = 2;
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// To a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The first one. With it come the memory, and the connection if there is one already.
    Begin(Begin),
    /// The program can be run; it calls itself so.
    Prepared { version: String },
    /// It cannot; everything stays as it is.
    Refused { why: String },
}

/// What a daemon is told of those before it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Begin {
    pub guardian: u32,
    /// 1 for the first daemon.
    pub number: u32,
    /// How many ended unexpectedly.
    pub restarts: u32,
    pub upgrades: u32,
    /// Of the one before: why it ended.
    #[serde(default)]
    pub why: Option<String>,
    /// Since when requests wait, by the monotonic clock.
    #[serde(default)]
    pub since_ns: u64,
    /// An upgrade that came to nothing: why.
    #[serde(default)]
    pub failed_upgrade: Option<String>,
}

/// To the guardian.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// With it comes the connection.
    Mounted {},
    Prepare {
        program: String,
    },
    /// The next one may begin when this one has ended.
    Leaving {
        since_ns: u64,
    },
    /// The mount is gone, by whomever.
    Ended {},
}

/// One end.
pub struct Channel(OwnedFd);

impl Channel {
    pub fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel(ours), theirs))
    }

    pub fn of(fd: OwnedFd) -> Channel {
        Channel(fd)
    }

    pub fn another(&self) -> io::Result<Channel> {
        self.0.try_clone().map(Channel)
    }

    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(self.0.as_fd(), &[IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for the next one. `UnexpectedEof`: the other end is gone.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            match recvmsg(self.0.as_fd(), parts, &mut beside, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut fds = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                fds.extend(sent);
            }
        }
        match got.bytes {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => Ok((understand(&bytes[..len])?, fds)),
        }
    }
}

fn understand<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use fuzzing::{as_it_is, fuzz};

    use super::*;

    fn begin() -> Order {
        Order::Begin(Begin {
            guardian: 7,
            number: 3,
            restarts: 1,
            upgrades: 1,
            why: Some("killed".into()),
            since_ns: 99,
            failed_upgrade: None,
        })
    }

    /// Goal: programs of other versions understand it. Method: golden text.
    #[test]
    fn golden_messages() {
        let text = |order: &Order| serde_json::to_string(order).unwrap();
        let want = r#"{"begin":{"guardian":7,"number":3,"restarts":1,"upgrades":1,"why":"killed","since_ns":99,"failed_upgrade":null}}"#;
        assert_eq!(text(&begin()), want);
        assert_eq!(text(&Order::Prepared { version: "1".into() }), r#"{"prepared":{"version":"1"}}"#);
        let words = [
            (Word::Mounted {}, r#"{"mounted":{}}"#),
            (Word::Prepare { program: "/x".into() }, r#"{"prepare":{"program":"/x"}}"#),
            (Word::Leaving { since_ns: 5 }, r#"{"leaving":{"since_ns":5}}"#),
            (Word::Ended {}, r#"{"ended":{}}"#),
        ];
        for (word, want) in words {
            assert_eq!(serde_json::to_string(&word).unwrap(), want);
        }
    }

    /// Goal: no bytes make a reader panic. Method: [`fuzzing`].
    #[test]
    fn fuzz_messages() {
        let good = [serde_json::to_vec(&begin()).unwrap(), br#"{"leaving":{"since_ns":5}}"#.to_vec()];
        fuzz("guard-message", &good, as_it_is, |bytes| {
            let _ = understand::<Order>(bytes);
            let _ = understand::<Word>(bytes);
        });
    }

    /// Goal: messages arrive one by one with their descriptors, and the end is told. Method: a pair.
    #[test]
    fn messages_carry_descriptors() {
        let (ours, theirs) = Channel::pair().unwrap();
        let theirs = Channel::of(theirs);
        let null = std::fs::File::open("/dev/null").unwrap();
        ours.send(&begin(), &[null.as_fd(), null.as_fd()]).unwrap();
        ours.send(&Order::Refused { why: "no".into() }, &[]).unwrap();
        let (first, fds) = theirs.receive::<Order>().unwrap();
        assert_eq!((first, fds.len()), (begin(), 2));
        assert_eq!(theirs.receive::<Order>().unwrap().0, Order::Refused { why: "no".into() });
        drop(ours);
        let end = theirs.receive::<Order>().unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }
}
