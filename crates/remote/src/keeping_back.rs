//! Keeping writes back, and sending what was kept back.
//!
//! A mount that alone has a file open, for writing, answers writes when it has them, and sends many at once: when there is enough, after a second,
//! and before anybody looks at the file, here or elsewhere. What could not be sent is an error of the next `fsync` or `close` of each opening that wrote.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use proto::{data, leases::Returned, writes::KeepWrites};
use types::{Errno, Ino};
use wire::frame::Body;

use crate::{
    Remote,
    back::{At, Back, Batch, Found, Right, Step, Wrote},
    held::Source,
    homes::FIRST_PAUSE,
    kept,
    line::Waits,
    openings::{OpenFile, Placed},
    pages::Piece,
    reading::{Answers, asking, object, place_of},
    stripes::{ToStripe, What},
    writing::WriteHow,
};

/// So many writes of an opening come before it is asked whether more may be kept back.
const FEW: u32 = 3;
/// A look at what is due.
const LOOK: Duration = Duration::from_millis(100);
/// Requests under way at once.
const TOGETHER: usize = 32;
/// What was asked back and cannot be written for so long holds nobody else up: half of the time after which the server gives a client up.
const RETURN_MAX: Duration = Duration::from_secs(7);
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// Stripes that move meanwhile.
const MOVES_MAX: usize = 64;

/// A change of a file that goes past what is kept back; it ends when this is dropped.
pub(crate) struct Direct<'a> {
    remote: &'a Remote,
    ino: Ino,
    end: Option<(At, u64)>,
}

impl Direct<'_> {
    /// A write was carried out, up to there.
    pub(crate) fn wrote(&mut self, at: At, end: u64) {
        self.end = Some((at, end));
    }
}

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        if let Some(back) = &self.remote.backlog.back {
            back.lock().end_direct(self.ino, self.end);
        }
    }
}

impl Remote {
    pub(crate) fn begin_keeping_back(&self) -> std::io::Result<()> {
        if self.backlog.back.is_none() {
            return Ok(());
        }
        let this = self.this.clone();
        let sender = std::thread::Builder::new().name("remote-back".into()).spawn(move || send_due(&this))?;
        *self.backlog.sender.lock() = Some(sender);
        Ok(())
    }

    /// All is sent, as far as that goes within `patience`.
    pub(crate) fn end_keeping_back(&self, patience: Duration) {
        let backlog = &self.backlog;
        *backlog.ended.lock() = true;
        backlog.end.notify_all();
        if let Some(sender) = backlog.sender.lock().take()
            && sender.thread().id() != std::thread::current().id()
            && sender.join().is_err()
        {
            tracing::error!("the thread that sends what was kept back ended with a panic");
        }
        let Some(back) = &backlog.back else { return };
        back.lock().stop_all();
        let (all, end) = (back.lock().all(), Instant::now() + patience);
        all.into_iter().for_each(|ino| self.write_out_or_lose(ino, end));
        backlog.go_on();
    }

    /// A write, if it may be answered before its data servers have it.
    pub(crate) fn keep_back(
        &self,
        file: &OpenFile,
        (offset, bytes): (u64, &Bytes),
        how: WriteHow,
    ) -> Result<bool, Errno> {
        let Some(back) = &self.backlog.back else { return Ok(false) };
        if !self.may_keep_back(file, how) || file.writes.fetch_add(1, Ordering::Relaxed) < FEW {
            return Ok(false);
        }
        self.ask_for_right(file, back);
        self.begin_write(file)?;
        let wrote = self.keep_under_right(file, (offset, bytes), how);
        if let Some(Wrote::Wait { .. }) = wrote {
            // An error is that of the next `fsync`.
            let _ = self.write_out(file.ino);
        }
        Ok(wrote.is_some())
    }

    /// The same, for who may not wait. `None`: the other one is to be asked. True: there is to be room before it is answered.
    pub(crate) fn keep_back_now(&self, file: &OpenFile, at: (u64, &Bytes), how: WriteHow) -> Option<bool> {
        self.ask_for_right(file, self.backlog.back.as_ref()?);
        self.keep_under_right(file, at, how).map(|wrote| matches!(wrote, Wrote::Wait { .. }))
    }

    /// Could [`Remote::keep_back_now`] do it?
    pub(crate) fn is_kept_back(&self, file: &OpenFile, how: WriteHow) -> bool {
        let Some(back) = &self.backlog.back else { return false };
        self.may_keep_back(file, how)
            && file.writes.load(Ordering::Relaxed) >= FEW
            && back.lock().right(file.ino).is_some()
            && self.begun_write(file).is_some()
    }

    fn may_keep_back(&self, file: &OpenFile, how: WriteHow) -> bool {
        // Growth under a quota is asked for, pages of mappings are the kernel's, and so are reads of files that were lent.
        let past = file.reserved.is_some() || self.dropping.has(file.ino) || self.through.has(file.ino);
        // Who has not heard yet that some are lost hears of those that come now at once.
        let lost = || file.late_error.lock().is_some();
        let known = !self.backlog.unknown.load(Ordering::Relaxed);
        !how.sync && !past && known && self.keeps() && !lost()
    }

    fn keep_under_right(
        &self,
        file: &OpenFile,
        (offset, bytes): (u64, &Bytes),
        how: WriteHow,
    ) -> Option<Wrote> {
        let back = self.backlog.back.as_ref()?;
        let now = Instant::now();
        // Not both locks at once: a grant has them in the other order.
        let right = back.lock().right(file.ino);
        let right = right.filter(|right| self.kept.lock().stands((right.ticket, right.from), now))?;
        let at = if how.append { At::End } else { At::Offset(offset) };
        let wrote =
            back.lock().write(now, (file.ino, file.number), (at, bytes), |now| now.ticket == right.ticket);
        if let Some(Wrote::SendSome | Wrote::Wait { send: true }) = wrote {
            self.send_soon(file.ino);
        }
        wrote
    }

    fn ask_for_right(&self, file: &OpenFile, back: &Mutex<Back>) {
        if !back.lock().asks(Instant::now(), file.ino) {
            return;
        }
        let (this, number, ino) = (self.this.clone(), file.number, file.ino);
        let offered = self.pool.offer(move || {
            if let Some(this) = this.upgrade() {
                this.ask_right(ino, number);
            }
        });
        if !offered {
            back.lock().answered(ino, None);
        }
    }

    fn ask_right(&self, ino: Ino, number: u64) {
        let Some(back) = &self.backlog.back else { return };
        let since = Instant::now();
        let session = self.session();
        if !self.all_know_of_writes(&session) {
            return back.lock().answered(ino, None);
        }
        let asked = self.asked_to_keep();
        let answer =
            self.look_and_where(|head| KeepWrites { head: Some(head), ino: ino.get(), opening: number });
        let mut right = None;
        match answer {
            Ok((answered, from)) => {
                if answered.granted {
                    self.listen_at(from.node);
                }
                // Not as another session, of which not all know.
                let joined = self.joined_at(from.node, &session).unwrap_or(0);
                let ours = joined != 0 && joined == from.joined;
                let at = kept::At { ticket: asked.ticket, now: Instant::now(), from };
                let mut table = self.kept.lock();
                table.heard_term(&at, Duration::from_millis(answered.term_ms.into()));
                if answered.granted && ours && table.may_write(&at, ino) {
                    right = Some(Right { ticket: asked.ticket, from, asked: since });
                }
                // Before it can be asked back: whoever does that has this lock first.
                let mut back = back.lock();
                back.answered(ino, right.filter(|_| self.openings.get(number).is_some()));
            }
            Err(error) => {
                self.backlog.unknown.fetch_or(error == Errno::ENOSYS, Ordering::Relaxed);
                back.lock().answered(ino, None);
            }
        }
    }

    fn send_soon(&self, ino: Ino) {
        let this = self.this.clone();
        let offered = self.data_pool.offer(move || {
            if let Some(this) = this.upgrade() {
                let _ = this.write_out_to(ino, false);
                this.leave_sending(ino);
                // Behind others.
                if this.backlog.back.as_ref().is_some_and(|back| back.lock().queue(ino)) {
                    this.send_soon(ino);
                }
            }
        });
        if !offered {
            self.leave_sending(ino);
        }
    }

    fn leave_sending(&self, ino: Ino) {
        if let Some(back) = &self.backlog.back {
            back.lock().unqueue(ino);
        }
        self.backlog.go_on();
    }

    /// Before a change of the file that is not kept back.
    pub(crate) fn go_past(&self, ino: Ino) -> Result<Direct<'_>, Errno> {
        if let Some(back) = &self.backlog.back {
            back.lock().begin_direct(ino);
        }
        let direct = Direct { remote: self, ino, end: None };
        self.write_out(ino)?;
        Ok(direct)
    }

    /// A range, as it was written here last; `None`: its data servers have it.
    pub(crate) fn find_back(&self, ino: Ino, offset: u64, len: usize) -> Result<Option<Answers>, Errno> {
        let Some(back) = &self.backlog.back else { return Ok(None) };
        let found = back.lock().find(ino, offset, len);
        match found {
            Found::Nothing => Ok(None),
            Found::Bytes(bytes) => {
                let piece: Piece = (Arc::from(bytes), 0..len);
                Ok(Some(Answers::Kept(vec![piece])))
            }
            Found::Send => self.write_out(ino).map(|()| None),
        }
    }

    /// What was kept back of the file so far is at its data servers when this returns, or is an error.
    pub(crate) fn write_out(&self, ino: Ino) -> Result<(), Errno> {
        self.write_out_to(ino, true)
    }

    /// `owner`: somebody else may have the file's slot by now. That is waited for, and he is told what we have there, which sends it.
    fn write_out_to(&self, ino: Ino, owner: bool) -> Result<(), Errno> {
        let Some(back) = &self.backlog.back else { return Ok(()) };
        let Some((until, _)) = back.lock().until_now(ino) else { return Ok(()) };
        let (began, mut pause, mut moves) = (Instant::now(), FIRST_PAUSE, 0);
        loop {
            let Some((_, through)) = back.lock().until_now(ino) else { return Ok(()) };
            let Some(file) = self.openings.get(through) else {
                self.lose_back(ino, Errno::EIO);
                return Err(Errno::EIO);
            };
            let placed = match self.begin_write(&file) {
                Ok(placed) => placed,
                Err(error) => return self.not_sent(ino, error),
            };
            let failed = match self.send_until(&file, &placed, until, self.waits()) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let again = if failed == Errno::EREMOTE {
                let waited = owner && self.owner_is_waited_for(began, &mut pause);
                if waited {
                    let _ = self.placed_now(&file);
                }
                waited
            } else {
                let may_move = matches!(failed, Errno::EIO | Errno::ESTALE) && moves < MOVES_MAX;
                moves += 1;
                may_move && self.placed_now(&file).is_ok_and(|now| now.layout != placed.layout)
            };
            if !again && !back.lock().is_there(ino, until) {
                return self.not_sent(ino, failed);
            }
        }
    }

    /// Of all files.
    pub(crate) fn write_all_out(&self) -> Result<(), Errno> {
        let Some(back) = &self.backlog.back else { return Ok(()) };
        let all = back.lock().all();
        all.into_iter().map(|ino| self.write_out(ino)).fold(Ok(()), Result::and)
    }

    /// As often as it takes until then; what could not be sent is lost.
    pub(crate) fn write_out_or_lose(&self, ino: Ino, until: Instant) {
        loop {
            match self.write_out(ino) {
                Ok(()) => return,
                Err(error) if Instant::now() + PAUSE >= until => return self.lose_back(ino, error),
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Asks data servers alone: who makes a session anew may wait for it.
    pub(crate) fn send_until(
        &self,
        file: &OpenFile,
        placed: &Placed,
        until: u64,
        waits: Waits,
    ) -> Result<(), Errno> {
        let Some(back) = &self.backlog.back else { return Ok(()) };
        loop {
            let mut table = back.lock();
            match table.step(file.ino, until) {
                Step::Done => return Ok(()),
                Step::Wait => {
                    if self.backlog.sent.wait_for(&mut table, waits.longest).timed_out() {
                        return Err(Errno::EIO);
                    }
                }
                Step::Send(batch) => {
                    drop(table);
                    self.backlog.go_on();
                    let sent = self.send((file, placed), &batch, waits);
                    let mut table = back.lock();
                    match sent {
                        Ok(()) => table.sent(file.ino),
                        Err(_) => table.failed(file.ino),
                    }
                    self.backlog.sent.notify_all();
                    sent?;
                }
            }
        }
    }

    fn send(&self, (file, placed): (&OpenFile, &Placed), batch: &Batch, waits: Waits) -> Result<(), Errno> {
        let range = |(at, bytes): &(u64, Bytes)| *at..*at + bytes.len() as u64;
        let mut changing: Vec<_> =
            batch.pieces.iter().map(|piece| self.change_bytes(file.ino, Some(range(piece)))).collect();
        let done = self.send_pieces((file, placed), batch, waits);
        changing.iter_mut().for_each(|one| one.ended(&done));
        done
    }

    fn send_pieces(
        &self,
        (file, placed): (&OpenFile, &Placed),
        batch: &Batch,
        waits: Waits,
    ) -> Result<(), Errno> {
        let mut parts: Vec<(usize, u64, Bytes)> = Vec::new();
        for (at, bytes) in &batch.pieces {
            for part in placed.striped.parts(*at, bytes.len() as u64) {
                let from = (part.offset - at) as usize;
                parts.push((part.stripe, part.object_offset, bytes.slice(from..from + part.len as usize)));
            }
        }
        while !parts.is_empty() {
            let rest = parts.split_off(parts.len().min(TOGETHER));
            let Source { node: server, joined } = batch.from;
            let askings = parts.iter().map(|(stripe, offset, bytes)| {
                let object = Some(object(file, placed, *stripe));
                let request = data::Write { object, offset: *offset, sync: false, joined, server };
                let asking = asking(&request, Body::new(bytes.clone()), 0)?;
                Ok(ToStripe { stripe: *stripe, what: What::Change, asking })
            });
            let askings = askings.collect::<Result<_, Errno>>()?;
            let answers = self.ask_stripes(file, placed, askings, waits)?;
            if answers.iter().any(|answered| matches!(answered, Err(Errno::ESTALE))) {
                return Err(Errno::ESTALE);
            }
            let mut left = Vec::new();
            for ((stripe, offset, bytes), answered) in parts.into_iter().zip(answers) {
                let data::Written { bytes: done, life } =
                    data::Written::decode(answered?.answered.meta.as_slice()).map_err(|_| Errno::EIO)?;
                let (at, life) = place_of(file, placed, stripe, life);
                self.note_answers(file, |answered| answered.wrote(stripe, at, life, false));
                match bytes.len().checked_sub(done as usize) {
                    Some(0) => {}
                    // What stopped it is said when it is asked for the rest.
                    Some(_) if done > 0 => {
                        left.push((stripe, offset + u64::from(done), bytes.slice(done as usize..)));
                    }
                    Some(_) | None => return Err(Errno::EIO),
                }
            }
            left.extend(rest);
            parts = left;
        }
        Ok(())
    }

    /// What can be sent later is kept for as long as a server is waited for.
    fn not_sent(&self, ino: Ino, error: Errno) -> Result<(), Errno> {
        let Some(back) = &self.backlog.back else { return Ok(()) };
        // Its session is gone there, or who owns the file's slot is not known there now.
        let error = if matches!(error, Errno::ESTALE | Errno::EREMOTE) { Errno::EIO } else { error };
        let since = back.lock().failed_for(Instant::now(), ino);
        let waits = matches!(error, Errno::EIO | Errno::EAGAIN | Errno::EINTR);
        if !waits || since >= self.options.patience {
            self.lose_back(ino, error);
        }
        Err(error)
    }

    pub(crate) fn lose_back(&self, ino: Ino, error: Errno) {
        self.lose_back_within(ino, error, self.options.longest);
    }

    /// `longest`: so long who is sending some of it is waited for.
    pub(crate) fn lose_back_within(&self, ino: Ino, error: Errno, longest: Duration) {
        let Some(back) = &self.backlog.back else { return };
        let mut table = back.lock();
        while table.is_sending(ino) {
            if self.backlog.sent.wait_for(&mut table, longest).timed_out() {
                break;
            }
        }
        let lost = table.lose(ino);
        drop(table);
        self.backlog.go_on();
        if lost == 0 {
            return;
        }
        tracing::error!(%ino, lost, %error, "writes that were answered are lost: the next fsync or close says so");
        self.tell_writers(ino, error);
    }

    /// What was kept back through it is at its data servers, and nothing was lost since this was asked last.
    pub(crate) fn settle_back(&self, file: &OpenFile) -> Result<(), Errno> {
        let sent = self.write_out(file.ino);
        self.openings.take_late(file).map_or(sent, Err)
    }

    /// A close of a descriptor has nothing to wait for, and nothing to say.
    pub(crate) fn is_flushed(&self, node: u64, handle: u64, lock_owner: u64) -> bool {
        let tells = || self.openings.get(handle).is_some_and(|file| file.late_error.lock().is_some());
        !self.backlog.has_number(node) && !tells() && !self.may_have_locks(node, lock_owner)
    }

    /// Before an opening is closed.
    pub(crate) fn leave_back(&self, file: &OpenFile, patience: Duration) {
        let Some(back) = &self.backlog.back else { return };
        if file.access.write && back.lock().stop(file.ino) {
            self.write_out_or_lose(file.ino, Instant::now() + patience);
        }
    }

    /// It is not among the openings any more.
    pub(crate) fn left_back(&self, file: &OpenFile) {
        if let Some(back) = self.backlog.back.as_ref().filter(|_| file.access.write) {
            back.lock().forget(file.ino);
        }
    }

    /// The file was asked back. True: it is given back later, when what was kept back is written.
    pub(crate) fn recalled_back(&self, ino: Ino, (at, returned): (Source, &Returned), then: Then) -> bool {
        let Some(back) = &self.backlog.back else { return false };
        if !back.lock().stop(ino) {
            return false;
        }
        let (this, returned) = (self.this.clone(), returned.clone());
        self.data_pool.defer(move || {
            let Some(this) = this.upgrade() else { return };
            this.write_out_or_lose(ino, Instant::now() + RETURN_MAX);
            if let Some(returned) = then(&this, at, returned) {
                this.give_lease_back((at, returned));
            }
        });
        true
    }

    /// The session is gone at a server, or everywhere: what was kept back under its rights is sent under the number that it had, which data servers take as
    /// long as nobody else got what it had; or it is lost. No metadata server is asked.
    pub(crate) fn save_back(&self, at: Option<u64>) {
        let Some(back) = &self.backlog.back else { return };
        let some = back.lock().stop_of(|from| at.is_none_or(|node| from.node == node));
        // Of a server that was started again data servers may not have heard yet; or another has the slot, and is being told beside this what we have there.
        let end = at.map(|_| Instant::now() + self.bring_max());
        for ino in some {
            while let Err(error) = self.send_as_it_is(ino, self.waits()) {
                if error != Errno::EREMOTE || end.is_none_or(|end| Instant::now() + PAUSE >= end) {
                    self.lose_back(ino, Errno::EIO);
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// What is left to be done before a lease is given back.
pub(crate) type Then = fn(&Remote, Source, Returned) -> Option<Returned>;

fn send_due(remote: &Weak<Remote>) {
    loop {
        let Some(this) = remote.upgrade() else { return };
        {
            let mut ended = this.backlog.ended.lock();
            if !*ended {
                let _ = this.backlog.end.wait_for(&mut ended, LOOK);
            }
            if *ended {
                return;
            }
        }
        this.backlog.go_on();
        let due = this.backlog.back.as_ref().map(|back| back.lock().queue_due(Instant::now()));
        due.into_iter().flatten().for_each(|ino| this.send_soon(ino));
    }
}
