//! What a request comes to: an answer with a body, or a fault.

use bytes::Bytes;
use net::Reply;
use prost::Message;
use proto::{Bad, Reason};
use types::Errno;
use wire::{
    connection::Answer,
    frame::{Body, Verdict},
    schema::{Fault, Retry},
};

/// The answer of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub meta: Vec<u8>,
    pub body: Body,
}

impl Done {
    pub fn new(meta: &impl Message) -> Done {
        Done { meta: meta.encode_to_vec(), body: Body::default() }
    }

    pub fn with_body(meta: &impl Message, body: impl Into<Bytes>) -> Done {
        Done { meta: meta.encode_to_vec(), body: Body::new(body) }
    }
}

/// A refusal, of which the asker is told all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct No(pub Box<Fault>);

pub type Outcome = Result<Done, No>;

impl No {
    pub fn new(errno: Errno, retry: Retry, reason: Reason, detail: impl Into<String>) -> No {
        No(Box::new(proto::fault::fault(errno, retry, reason, detail)))
    }

    /// The same place may say yes a little later.
    pub fn later(detail: &str) -> No {
        let mut no = No::new(Errno::EAGAIN, Retry::After, Reason::None, detail);
        no.0.after_ms = 20;
        no
    }

    /// The slot is another server's, as the map with this epoch says, or a later one.
    pub fn wrong_owner(epoch: u64) -> No {
        No(Box::new(proto::fault::wrong_owner(epoch)))
    }

    /// The object is another data server's.
    pub fn moved() -> No {
        No(Box::new(proto::fault::moved()))
    }

    pub fn session_gone() -> No {
        No(Box::new(proto::fault::session_gone()))
    }

    /// A data server does not answer, and is not waited for.
    pub fn away(node: u64, why: &str) -> No {
        No::new(Errno::EIO, Retry::Never, Reason::DataServerAway, format!("data server {node}: {why}"))
    }

    /// A data server may be back in a moment: it was there a moment ago, or the asked one was not.
    pub fn soon(node: u64, why: &str) -> No {
        let mut no = No::new(
            Errno::EAGAIN,
            Retry::After,
            Reason::DataServerAway,
            format!("data server {node}: {why}"),
        );
        no.0.after_ms = 100;
        no
    }

    pub fn errno(&self) -> Errno {
        Errno::from_raw(self.0.errno)
    }
}

impl From<Errno> for No {
    fn from(errno: Errno) -> No {
        No::new(errno, Retry::Never, Reason::None, "")
    }
}

impl From<Bad> for No {
    fn from(bad: Bad) -> No {
        No(Box::new(bad.into()))
    }
}

/// Sends it.
pub fn answered(reply: Reply, outcome: Outcome) {
    if let Err(error) = reply.answer(sent(outcome)) {
        // The asker was told that it failed; he said himself how much he takes.
        tracing::warn!(%error, "an answer was not taken");
    }
}

/// As it is sent.
pub fn sent(outcome: Outcome) -> Answer {
    match outcome {
        Ok(Done { meta, body }) => Answer { verdict: Verdict::Done, meta: meta.into(), body, epoch: 0 },
        Err(No(fault)) => Answer {
            verdict: Verdict::Fault,
            meta: fault.encode_to_vec().into(),
            body: Body::default(),
            epoch: 0,
        },
    }
}
