//! Copying an object from another data server, while that is in use: in pieces, with holes as holes, and no faster than the pace.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use net::{Address, Call, CallError, Channel, Client, Credentials, NobodyAnswers, Target, Tuning};
use parking_lot::Mutex;
use prost::Message;
use proto::{
    Bad, Request,
    data::{Allocate, AllocateMode, Object, Read, Seek, Sought, Truncate, Whence},
    moving::{Changed, ChangedRanges, Follow, Pull, PullState},
};
use types::{Errno, Timestamp};
use wire::{
    frame::Verdict,
    handshake::Wish,
    schema::{Lane, Retry},
};

use super::{DataService, arriving::Attempt};
use crate::answer::No;

/// Of one request; so many are under way for an object.
const PIECE: u64 = 1 << 20;
const PIECES: usize = 4;
/// For all objects that come, a second: a disk or a network goes on for others beside it.
const BYTES_PER_SECOND: u64 = 256 << 20;
/// An answer of the source is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// What was changed meanwhile is copied so often, until somebody completes it.
const ROUND: Duration = Duration::from_millis(100);
/// As little as this is left when the copy counts as level.
const LEVEL_BYTES: u64 = 8 << 20;
/// A source that writes faster than this copies is frozen after so many rounds all the same.
const ROUNDS_MAX: u32 = 10;

/// When the next piece may come.
#[derive(Default)]
pub(super) struct Pace(Mutex<Option<Instant>>);

impl Pace {
    /// How long to wait before so many bytes more.
    fn wait(&self, bytes: u64) -> Duration {
        let now = Instant::now();
        let mut next = self.0.lock();
        let at = next.map_or(now, |next| next.max(now));
        *next = Some(at + Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / BYTES_PER_SECOND));
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

    fn channel(&self) -> Result<Arc<Channel>, No> {
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

    fn lost(&self, error: &CallError) -> No {
        No::away(self.node, &error.to_string())
    }

    /// Asks until it is answered, or was told to come later for long.
    fn ask<R: Request>(&self, request: &R) -> Result<R::Answer, No> {
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

    fn answer(&self, answered: Result<net::Answered, CallError>) -> Result<(Vec<u8>, Vec<u8>), No> {
        let answered = answered.map_err(|error| self.lost(&error))?;
        match answered.header.verdict {
            Verdict::Done => Ok((answered.meta, answered.body)),
            Verdict::Fault => Err(No(Box::new(proto::fault::read(&answered.meta)))),
            Verdict::Refused => Err(No::away(self.node, "refused")),
        }
    }
}

fn given_up() -> No {
    No::new(Errno::EINTR, Retry::Never, proto::Reason::None, "nobody wants it any more")
}

impl DataService {
    /// A thread's work: the bulk, then what was changed meanwhile, again and again, until the attempt is over.
    pub(super) fn copy(&self, attempt: &Attempt) {
        if let Err(why) = self.copy_until_over(attempt) {
            tracing::info!(ino = attempt.to.ino, why = why.0.detail, errno = %why.errno(), "a copy of an object was not completed");
            attempt.fails(why);
        }
    }

    fn copy_until_over(&self, attempt: &Attempt) -> Result<(), No> {
        let size = {
            let _copying = attempt.copying.lock();
            let followed =
                attempt.source.ask(&Follow { object: Some(attempt.from), attempt: attempt.number })?;
            self.copy_range(attempt, (0, u64::MAX), followed.size, true)?;
            self.make_durable(&attempt.to)?;
            followed.size
        };
        tracing::debug!(ino = attempt.to.ino, size, "an object was copied, and is followed");
        let mut rounds = 0;
        loop {
            {
                let _copying = attempt.copying.lock();
                if attempt.is(PullState::Ready) || attempt.is(PullState::Failed) {
                    return Ok(());
                }
                let copied = match self.copy_round(attempt) {
                    Ok(copied) => copied,
                    Err(why) => {
                        // Before anybody completes it: what was noted may be lost with an answer.
                        attempt.fails(why.clone());
                        return Err(why);
                    }
                };
                rounds += 1;
                if copied <= LEVEL_BYTES || rounds >= ROUNDS_MAX {
                    attempt.becomes(PullState::Level);
                }
            }
            std::thread::sleep(ROUND);
        }
    }

    fn copy_round(&self, attempt: &Attempt) -> Result<u64, No> {
        if self.stops(attempt) {
            return Err(given_up());
        }
        let (copied, _) = self.copy_changes(attempt, 0)?;
        if copied > 0 {
            self.make_durable(&attempt.to)?;
        }
        Ok(copied)
    }

    fn stops(&self, attempt: &Attempt) -> bool {
        attempt.is_given_up() || self.has_ended()
    }

    /// Has the source frozen, copies the rest, and makes all of it durable.
    pub(super) fn complete(&self, attempt: &Attempt, freeze_ms: u32) {
        let _copying = attempt.copying.lock();
        if !attempt.is(PullState::Level) {
            return;
        }
        match self.complete_locked(attempt, freeze_ms) {
            Ok(()) => attempt.becomes(PullState::Ready),
            Err(why) => attempt.fails(why),
        }
    }

    fn complete_locked(&self, attempt: &Attempt, freeze_ms: u32) -> Result<(), No> {
        let (_, changes) = self.copy_changes(attempt, freeze_ms)?;
        let mtime = changes.mtime.map(Timestamp::try_from).transpose()?;
        let object = Some(attempt.to);
        self.resize(&Truncate { object, size: changes.size, grow_only: false }, &attempt.to)?;
        self.make_durable(&attempt.to)?;
        self.alone(&attempt.to, |state, there| {
            if let Some(mtime) = mtime {
                self.ds.set_mtime(there, mtime)?;
            }
            self.settle(state)?;
            // Whose the time is: the object's, or the metadata server's.
            let nothing = super::Record { generation: attempt.to.generation, ..Default::default() };
            let record = super::Record { mtime, ..state.record.unwrap_or(nothing) };
            self.save(there.ino(), &record, true)?;
            state.record = Some(record);
            Ok(())
        })?;
        let ino = proto::attr::ino(attempt.to.ino)?;
        self.store.sync().map_err(|error| super::service::refused(ino, &error).into())
    }

    /// What was changed since the last time; how many bytes were looked at.
    fn copy_changes(&self, attempt: &Attempt, freeze_ms: u32) -> Result<(u64, ChangedRanges), No> {
        let asked = Changed { object: Some(attempt.from), attempt: attempt.number, freeze_ms };
        let changes = attempt.source.ask(&asked)?;
        let mut bytes = 0;
        for range in &changes.ranges {
            let to = range.to.min(changes.size);
            if range.from < to {
                bytes += to - range.from;
                self.copy_range(attempt, (range.from, to), changes.size, false)?;
            }
        }
        Ok((bytes, changes))
    }

    /// `fresh`: there is nothing at the destination, so a hole is one already.
    fn copy_range(
        &self,
        attempt: &Attempt,
        (from, to): (u64, u64),
        size: u64,
        fresh: bool,
    ) -> Result<(), No> {
        let (mut at, end) = (from, to.min(size));
        while at < end {
            let data = seek(attempt, at, Whence::Data)?.offset.unwrap_or(end).clamp(at, end);
            if data > at && !fresh {
                self.make_hole(&attempt.to, at, data)?;
            }
            if data >= end {
                return Ok(());
            }
            let hole = seek(attempt, data, Whence::Hole)?.offset.unwrap_or(end).clamp(data, end);
            // What is cut meanwhile is noted, and looked at again.
            let until = if hole == data { end } else { hole };
            self.copy_data(attempt, data, until, fresh)?;
            at = until;
        }
        Ok(())
    }

    fn make_hole(&self, to: &Object, from: u64, until: u64) -> Result<(), No> {
        let mode = AllocateMode::Zero.into();
        let hole = Allocate { object: Some(*to), mode, offset: from, length: until - from };
        self.allocate(&hole).map(drop)
    }

    fn copy_data(&self, attempt: &Attempt, from: u64, until: u64, paced: bool) -> Result<(), No> {
        let channel = attempt.source.channel()?;
        let (mut at, mut under_way) = (from, VecDeque::new());
        loop {
            while under_way.len() < PIECES && at < until {
                let length = PIECE.min(until - at);
                if paced {
                    std::thread::sleep(self.arriving.pace.wait(length));
                }
                if self.stops(attempt) {
                    return Err(given_up());
                }
                let read = Read { object: Some(attempt.from), offset: at, length: length as u32 };
                let mut call =
                    Call::new(Read::METHOD.number(), read.encode_to_vec(), Instant::now() + PATIENCE);
                call.answer_bytes_max = length as u32;
                let pending = channel.begin(call).map_err(|error| attempt.source.lost(&error))?;
                under_way.push_back((at, pending));
                at += length;
            }
            let Some((offset, pending)) = under_way.pop_front() else { return Ok(()) };
            let (_, body) = attempt.source.answer(pending.wait().map_err(Into::into))?;
            self.put(&attempt.to, offset, &body)?;
            attempt.copied.fetch_add(body.len() as u64, std::sync::atomic::Ordering::Relaxed);
        }
    }

    fn put(&self, to: &Object, offset: u64, bytes: &[u8]) -> Result<(), No> {
        let mut done = 0;
        while done < bytes.len() {
            let written =
                self.writing(to, |there| Ok(self.ds.write(there, offset + done as u64, &bytes[done..])?))?;
            if written == 0 {
                return Err(Errno::EIO.into());
            }
            done += written;
        }
        Ok(())
    }
}

fn seek(attempt: &Attempt, offset: u64, whence: Whence) -> Result<Sought, No> {
    attempt.source.ask(&Seek { object: Some(attempt.from), offset, whence: whence.into() })
}
