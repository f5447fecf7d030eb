//! The data server from which objects come, and how fast they may.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use net::{Address, Answered, Call, CallError, Channel, Client, Credentials, NobodyAnswers, Target, Tuning};
use parking_lot::Mutex;
use prost::Message;
use proto::{Bad, Request, moving::Pull};
use wire::{
    frame::Verdict,
    handshake::Wish,
    schema::{Lane, Retry},
};

use crate::answer::No;

/// For all objects that come, a second: a disk or a network goes on for others beside it.
pub(super) const BYTES_PER_SECOND: u64 = 256 << 20;
/// An answer of the source is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// When the next piece may come.
#[derive(Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// How long to wait before so many bytes more.
    pub fn wait(&self, bytes: u64) -> Duration {
        self.wait_at(bytes, BYTES_PER_SECOND)
    }

    /// At another rate, in bytes a second.
    pub fn wait_at(&self, bytes: u64, rate: u64) -> Duration {
        let now = Instant::now();
        let mut next = self.0.lock();
        let at = next.map_or(now, |next| next.max(now));
        *next = Some(at + Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1)));
        at.saturating_duration_since(now)
    }
}

/// The data server that has the object.
pub(super) struct Source {
    node: u64,
    clients: Vec<Client>,
}

impl Source {
    pub fn new(asked: &Pull, credentials: &Credentials) -> Result<Source, No> {
        let addresses: Result<Vec<Address>, _> = asked.addresses.iter().map(|text| text.parse()).collect();
        let client = |address: Address| {
            Client::new(Target {
                address,
                wish: Wish { lane: Lane::Data, node: Some(asked.source) },
                credentials: credentials.clone(),
                handler: Arc::new(NobodyAnswers),
                tuning: Tuning { connect_wait: PATIENCE / 2, ..Tuning::default() },
            })
        };
        let addresses = addresses.map_err(|_| Bad::Range("address"))?;
        Ok(Source { node: asked.source, clients: addresses.into_iter().map(client).collect() })
    }

    pub fn channel(&self) -> Result<Arc<Channel>, No> {
        let until = Instant::now() + PATIENCE;
        let mut failed = No::away(self.node, "it has no address");
        for client in &self.clients {
            match client.channel(until) {
                Ok(channel) => return Ok(channel),
                Err(error) => failed = self.lost(&error),
            }
        }
        Err(failed)
    }

    pub fn lost(&self, error: &CallError) -> No {
        No::away(self.node, &error.to_string())
    }

    /// Asks until it is answered, or was told to come later for long.
    pub fn ask<R: Request>(&self, request: &R) -> Result<R::Answer, No> {
        let end = Instant::now() + PATIENCE;
        loop {
            let call = Call::new(R::METHOD.number(), request.encode_to_vec(), Instant::now() + PATIENCE);
            match self.answer(self.channel()?.call(call)).map(|(meta, _)| R::Answer::decode(&meta[..])) {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(_)) => return Err(No::away(self.node, "an answer that is none")),
                Err(no) if Retry::try_from(no.0.retry) == Ok(Retry::After) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(no.0.after_ms.clamp(10, 500).into()));
                }
                Err(no) => return Err(no),
            }
        }
    }

    pub fn answer(&self, answered: Result<Answered, CallError>) -> Result<(Vec<u8>, Vec<u8>), No> {
        let answered = answered.map_err(|error| self.lost(&error))?;
        match answered.header.verdict {
            Verdict::Done => Ok((answered.meta, answered.body)),
            Verdict::Fault => Err(No(Box::new(proto::fault::read(&answered.meta)))),
            Verdict::Refused => Err(No::away(self.node, "refused")),
        }
    }
}
