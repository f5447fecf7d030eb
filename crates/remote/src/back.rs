//! Writes that were answered and are not at their data servers yet, by file. Pure.
//!
//! - I-BACK-3: nothing is kept back but under a right that stands ([`crate::kept`] knows), by openings of one session.
//! - I-BACK-4: what is kept back of a file is sent by one at a time, in the order in which it was answered; what is being sent stays here until it is there.
//! - I-BACK-5: who needs the truth waits for what was kept back before he came, and for nothing that comes later.
//! - I-BACK-6: what is kept back has a bound, for each file and for all.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use bytes::Bytes;
use types::Ino;

use crate::{extents::Extents, held::Source, kept::Ticket};

/// So long after it was answered a write is sent at the latest.
pub(crate) const SEND_AFTER: Duration = Duration::from_secs(1);
/// A right is used for so long, and asked for again before: the server looks again whether there is room.
const RIGHT_LASTS: Duration = Duration::from_secs(3);
const RENEW_AFTER: Duration = Duration::from_millis(1500);
/// One that was refused is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// With so many bytes of a file some are sent.
const SEND_BYTES: u64 = 1 << 20;
/// With so many whoever writes waits until they are being sent; and with a quarter of what all files may have.
const FILE_MAX: u64 = 8 << 20;
/// Writes of so many bytes and more are kept where they came.
pub(crate) const LARGE: usize = 128 << 10;

/// May writes of a file be kept back?
#[derive(Clone, Copy, Debug)]
pub(crate) struct Right {
    pub ticket: Ticket,
    /// Who gave it, and as which the session had come there: in that name what is kept back is sent, and refused when the session was given up.
    pub from: Source,
    pub asked: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    Offset(u64),
    /// Of an append.
    End,
}

/// What whoever wrote is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrote {
    Kept,
    /// There is enough to be sent; somebody else does it.
    SendSome,
    /// He waits as long as [`Back::is_full`]. `send`: as with [`Wrote::SendSome`].
    Wait {
        send: bool,
    },
}

/// What is to be sent: none of it overlaps.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub pieces: Vec<(u64, Bytes)>,
    pub from: Source,
}

pub(crate) enum Step {
    Done,
    /// Somebody else sends.
    Wait,
    Send(Batch),
}

pub(crate) enum Found {
    /// Nothing of the file is kept back.
    Nothing,
    Bytes(Vec<u8>),
    /// It has to be sent first.
    Send,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackCounts {
    /// Writes that were kept back, and requests by which they were sent.
    pub writes: u64,
    pub requests: u64,
    /// Bytes at this moment.
    pub bytes: u64,
    /// Bytes that could not be sent.
    pub lost: u64,
}

#[derive(Default)]
struct File {
    right: Option<Right>,
    asking: bool,
    asked: Option<Instant>,
    young: Extents,
    young_since: Option<Instant>,
    /// What is sent, or is sent again.
    sealed: Vec<(u64, Bytes)>,
    sending: bool,
    /// Somebody is about to send.
    queued: bool,
    failing: Option<Instant>,
    /// Writes that were kept back; those of them that are sealed, and that are at their servers or lost.
    written: u64,
    sealed_to: u64,
    done_to: u64,
    /// The opening of the last one.
    through: u64,
    /// Whose right it was kept back under.
    from: Option<Source>,
    /// The size of the file, if it is known.
    end: Option<u64>,
    /// Changes that go past this, under way, and whether there were several at once.
    direct: u32,
    mixed: bool,
}

impl File {
    fn sealed_bytes(&self) -> u64 {
        self.sealed.iter().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    fn is_clean(&self) -> bool {
        self.done_to == self.written
    }

    fn is_idle(&self) -> bool {
        self.right.is_none()
            && !self.asking
            && self.is_clean()
            && self.direct == 0
            && !self.sending
            && !self.queued
    }
}

pub(crate) struct Back {
    max: u64,
    files: HashMap<Ino, File>,
    counts: BackCounts,
}

impl Back {
    pub(crate) fn new(max: u64) -> Back {
        Back { max, files: HashMap::new(), counts: BackCounts::default() }
    }

    pub(crate) fn counts(&self) -> BackCounts {
        self.counts
    }

    pub(crate) fn has_rights(&self) -> bool {
        self.files.values().any(|file| file.right.is_some())
    }

    pub(crate) fn right(&self, ino: Ino) -> Option<Right> {
        self.files.get(&ino)?.right
    }

    pub(crate) fn has(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| !file.is_clean())
    }

    /// Those of which something is kept back.
    pub(crate) fn all(&self) -> Vec<Ino> {
        self.files.iter().filter(|(_, file)| !file.is_clean()).map(|(ino, _)| *ino).collect()
    }

    fn forget_if_idle(&mut self, ino: Ino) {
        // What was refused a moment ago is remembered as long as somebody writes.
        if self.files.get(&ino).is_some_and(|file| file.is_idle() && file.asked.is_none()) {
            self.files.remove(&ino);
        }
    }

    /// Is the right to be asked for? Then [`Back::answered`] is told what came of it.
    pub(crate) fn asks(&mut self, now: Instant, ino: Ino) -> bool {
        let file = self.files.entry(ino).or_default();
        let wait = if file.right.is_some() { RENEW_AFTER } else { ASK_AGAIN };
        let due = !file.asking && file.asked.is_none_or(|asked| now >= asked + wait);
        if due {
            (file.asking, file.asked) = (true, Some(now));
        }
        due
    }

    pub(crate) fn answered(&mut self, ino: Ino, right: Option<Right>) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.asking = false;
            file.right = right;
            if right.is_none() {
                file.end = None;
            }
        }
        self.forget_if_idle(ino);
    }

    /// `stands`: of a right that was given. `None`: it is not kept back.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        (ino, opening): (Ino, u64),
        (at, bytes): (At, &Bytes),
        stands: impl Fn(&Right) -> bool,
    ) -> Option<Wrote> {
        let file = self.files.get_mut(&ino)?;
        let right = file.right.filter(|right| now < right.asked + RIGHT_LASTS && stands(right))?;
        let other_session = !file.is_clean() && file.from != Some(right.from);
        let full = self.counts.bytes + bytes.len() as u64 > self.max;
        if other_session || full || file.failing.is_some() {
            return None;
        }
        let offset = match at {
            At::Offset(offset) => offset,
            At::End => file.end.filter(|_| file.direct == 0)?,
        };
        let end = offset.checked_add(bytes.len() as u64).filter(|end| i64::try_from(*end).is_ok())?;
        let before = file.young.bytes();
        if bytes.len() < LARGE {
            file.young.write(offset, bytes);
        } else {
            file.young.put(offset, bytes.clone());
        }
        self.counts.bytes = self.counts.bytes - before + file.young.bytes();
        self.counts.writes += 1;
        file.young_since = file.young_since.or(Some(now));
        file.written += 1;
        (file.through, file.from) = (opening, Some(right.from));
        file.end = file.end.map(|known| known.max(end));
        let young = file.young.bytes();
        let is_full = young >= file_max(self.max);
        let send = (young >= SEND_BYTES || is_full) && !file.sending && !file.queued;
        file.queued |= send;
        Some(match send {
            _ if is_full => Wrote::Wait { send },
            true => Wrote::SendSome,
            false => Wrote::Kept,
        })
    }

    /// There is as much of it as may wait to be sent, and somebody sends, or is about to. When one begins to there is room.
    pub(crate) fn is_full(&self, ino: Ino) -> bool {
        let waits = |file: &File| (file.sending || file.queued) && file.failing.is_none();
        self.files.get(&ino).is_some_and(|file| file.young.bytes() >= file_max(self.max) && waits(file))
    }

    /// What was answered last, of a range.
    pub(crate) fn find(&self, ino: Ino, offset: u64, len: usize) -> Found {
        match self.files.get(&ino).filter(|file| !file.is_clean()) {
            None => Found::Nothing,
            Some(file) => file.young.read(offset, len).map_or(Found::Send, Found::Bytes),
        }
    }

    /// What has to be there for who comes now, and through which opening it is sent. `None`: nothing.
    pub(crate) fn until_now(&self, ino: Ino) -> Option<(u64, u64)> {
        let file = self.files.get(&ino).filter(|file| !file.is_clean())?;
        Some((file.written, file.through))
    }

    /// All of that is at its data servers, or lost.
    pub(crate) fn is_there(&self, ino: Ino, until: u64) -> bool {
        self.files.get(&ino).is_none_or(|file| file.done_to >= until)
    }

    /// What is to be done until all of that is there. After [`Step::Send`] comes [`Back::sent`] or [`Back::failed`].
    pub(crate) fn step(&mut self, ino: Ino, until: u64) -> Step {
        let Some(file) = self.files.get_mut(&ino).filter(|file| file.done_to < until) else {
            return Step::Done;
        };
        let Some(from) = file.from else { return Step::Done };
        if file.sending {
            return Step::Wait;
        }
        if file.sealed.is_empty() {
            file.sealed = file.young.take();
            file.sealed_to = file.written;
            file.young_since = None;
        }
        file.sending = true;
        Step::Send(Batch { pieces: file.sealed.clone(), from })
    }

    pub(crate) fn sent(&mut self, ino: Ino) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        self.counts.requests += file.sealed.len() as u64;
        self.counts.bytes -= file.sealed_bytes();
        file.sealed.clear();
        file.done_to = file.sealed_to;
        (file.sending, file.failing) = (false, None);
        self.forget_if_idle(ino);
    }

    /// What was to be sent is kept, to be sent again.
    pub(crate) fn failed(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.sending = false;
        }
    }

    /// For how long none of it could be sent.
    pub(crate) fn failed_for(&mut self, now: Instant, ino: Ino) -> Duration {
        let file = self.files.get_mut(&ino).filter(|file| !file.is_clean());
        file.map_or(Duration::ZERO, |file| now.saturating_duration_since(*file.failing.get_or_insert(now)))
    }

    /// What is kept back of it is lost. Nobody sends it, or who does is not waited for: what comes of that counts for nothing. Returns how many bytes.
    pub(crate) fn lose(&mut self, ino: Ino) -> u64 {
        let Some(file) = self.files.get_mut(&ino) else { return 0 };
        let lost = file.sealed_bytes() + file.young.bytes();
        file.sealed.clear();
        file.young = Extents::default();
        (file.young_since, file.failing, file.end) = (None, None, None);
        (file.sealed_to, file.done_to) = (file.written, file.written);
        self.counts.bytes -= lost;
        self.counts.lost += lost;
        self.forget_if_idle(ino);
        lost
    }

    pub(crate) fn is_sending(&self, ino: Ino) -> bool {
        self.files.get(&ino).is_some_and(|file| file.sending)
    }

    /// Nothing more of it is kept back. True: something is.
    pub(crate) fn stop(&mut self, ino: Ino) -> bool {
        let Some(file) = self.files.get_mut(&ino) else { return false };
        (file.right, file.end) = (None, None);
        let has = !file.is_clean();
        self.forget_if_idle(ino);
        has
    }

    /// The last opening that wrote it is closed.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.stop(ino);
        if let Some(file) = self.files.get_mut(&ino) {
            file.asked = None;
        }
        self.forget_if_idle(ino);
    }

    pub(crate) fn stop_all(&mut self) {
        self.stop_some(|_| true);
    }

    /// The same of those files. Returns those of which something is kept back.
    pub(crate) fn stop_some(&mut self, which: impl Fn(Ino) -> bool) -> Vec<Ino> {
        let mut some: Vec<Ino> = self.files.keys().copied().filter(|ino| which(*ino)).collect();
        some.retain(|ino| self.stop(*ino));
        some
    }

    /// The same of those with rights of such sources, or of which something is kept back under one.
    pub(crate) fn stop_of(&mut self, which: impl Fn(Source) -> bool) -> Vec<Ino> {
        let of = |file: &File| file.from.into_iter().chain(file.right.map(|right| right.from)).any(&which);
        let some: HashSet<Ino> =
            self.files.iter().filter(|(_, file)| of(file)).map(|(ino, _)| *ino).collect();
        self.stop_some(|ino| some.contains(&ino))
    }

    /// What is kept back of it is sent in another server's name from now on: the file's slot went there.
    pub(crate) fn rename(&mut self, ino: Ino, from: Source) {
        if let Some(file) = self.files.get_mut(&ino).filter(|file| !file.is_clean()) {
            file.from = Some(from);
        }
    }

    /// Those that have waited long enough, or could not be sent.
    /// Each is given out once until [`Back::unqueue`].
    pub(crate) fn queue_due(&mut self, now: Instant) -> Vec<Ino> {
        let due = |file: &File| {
            let old = file.young_since.is_some_and(|since| now >= since + SEND_AFTER);
            !file.sending && !file.queued && (old || !file.sealed.is_empty())
        };
        let some = self.files.iter_mut().filter(|(_, file)| due(file));
        some.map(|(ino, file)| {
            file.queued = true;
            *ino
        })
        .collect()
    }

    /// Whoever was about to send has, or does not.
    pub(crate) fn unqueue(&mut self, ino: Ino) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.queued = false;
        }
        self.forget_if_idle(ino);
    }

    /// There is enough to be sent, and whoever asks is about to.
    pub(crate) fn queue(&mut self, ino: Ino) -> bool {
        let enough = |file: &&mut File| {
            file.young.bytes() >= SEND_BYTES && !file.sending && !file.queued && file.failing.is_none()
        };
        self.files.get_mut(&ino).filter(enough).map(|file| file.queued = true).is_some()
    }

    /// A change of the file that goes past this begins.
    pub(crate) fn begin_direct(&mut self, ino: Ino) {
        let file = self.files.entry(ino).or_default();
        file.mixed |= file.direct > 0;
        file.direct += 1;
    }

    /// `end`: it wrote up to there; of an append that is where the file ended then. `None`: the size is not known any more.
    pub(crate) fn end_direct(&mut self, ino: Ino, end: Option<(At, u64)>) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        file.direct = file.direct.saturating_sub(1);
        file.end = match end {
            Some((At::End, end)) if file.right.is_some() && !file.mixed => {
                Some(file.end.map_or(end, |known| known.max(end)))
            }
            Some((_, end)) => file.end.map(|known| known.max(end)),
            None => None,
        };
        if file.direct == 0 {
            file.mixed = false;
        }
        self.forget_if_idle(ino);
    }
}

/// As much is being sent meanwhile, and other files have room, too.
fn file_max(max: u64) -> u64 {
    FILE_MAX.min(max / 4).max(1)
}

#[cfg(test)]
mod tests;
