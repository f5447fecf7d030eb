//! Copying an object from another data server, while that is in use: in pieces, with holes as holes, and no faster than the pace.

use std::{
    collections::VecDeque,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use cluster::moving::Round;
use net::Call;
use prost::Message;
use proto::{
    Request,
    data::{Allocate, AllocateMode, Object, Read, Seek, Sought, Truncate, Whence},
    moving::{Changed, ChangedRanges, Follow, PullState},
};
use types::{Errno, Timestamp};
use wire::schema::Retry;

use super::{DataService, Record, attempt::Attempt, record::refused, source::PATIENCE};
use crate::answer::No;

/// Of one request; so many are under way for an object.
const PIECE: u64 = 1 << 20;
const PIECES: usize = 4;
/// What was changed meanwhile is copied so often, until somebody completes it.
const ROUND: Duration = Duration::from_millis(100);
/// As little as this is left when the copy counts as level.
const LEVEL_BYTES: u64 = 8 << 20;
/// A source that writes faster than this copies is frozen after so many rounds all the same.
const ROUNDS_MAX: u32 = 10;

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
            let nothing = Record { generation: attempt.to.generation, ..Default::default() };
            let record = Record { mtime, ..state.record.unwrap_or(nothing) };
            self.save(there.ino(), &record, true)?;
            state.record = Some(record);
            Ok(())
        })?;
        let ino = proto::attr::ino(attempt.to.ino)?;
        self.store.sync().map_err(|error| refused(ino, &error).into())
    }

    /// What was changed since the last time; how many bytes were looked at.
    fn copy_changes(&self, attempt: &Attempt, freeze_ms: u32) -> Result<(u64, ChangedRanges), No> {
        let asked = Changed { object: Some(attempt.from), attempt: attempt.number, freeze_ms };
        let changes = attempt.source.ask(&asked)?;
        let noted = changes.ranges.iter().map(|range| (range.from, range.to));
        let round = Round::of(noted, changes.size);
        if let Some(size) = round.cut {
            self.resize(&Truncate { object: Some(attempt.to), size, grow_only: false }, &attempt.to)?;
        }
        let mut bytes = 0;
        for (from, to) in round.ranges {
            bytes += to - from;
            self.copy_range(attempt, (from, to), changes.size, false)?;
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
        let hole =
            Allocate { object: Some(*to), mode, offset: from, length: until - from, joined: 0, server: 0 };
        self.allot(&hole, to).map(drop)
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
            attempt.copied.fetch_add(body.len() as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn put(&self, to: &Object, offset: u64, bytes: &[u8]) -> Result<(), No> {
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
