//! Writing, and making durable what was written.
//!
//! A write is answered when all data servers of its parts have it. One without an answer is made again, with the same bytes at the same
//! place. A range at the end is reserved once, and then written like any other.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use cluster::striping::Part;
use prost::Message;
use proto::{
    attr::Changes,
    data::{self, BYTES_MAX},
    metadata,
};
use types::Errno;
use wire::frame::Body;

use crate::{
    Remote,
    answered::Answered,
    back::At,
    held::Source,
    landed::Landed,
    openings::{OpenFile, Placed},
    reading::{asking, object, place_of},
    stripes::{FromStripe, ToStripe, What},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteHow {
    /// At the end, wherever that is; the offset means nothing.
    pub append: bool,
    /// Durable when it is answered.
    pub sync: bool,
    /// By somebody whose writes take set-id bits away.
    pub kill_suidgid: bool,
}

impl Remote {
    /// How many bytes were written: all, or those before an error. At most [`BYTES_MAX`] at once.
    pub fn write(&self, file: &OpenFile, offset: u64, bytes: &[u8], how: WriteHow) -> Result<usize, Errno> {
        self.write_bytes(file, offset, Bytes::copy_from_slice(bytes), how)
    }

    /// The same, with bytes that may stay with a connection beyond the answer.
    pub(crate) fn write_bytes(
        &self,
        file: &OpenFile,
        offset: u64,
        bytes: Bytes,
        how: WriteHow,
    ) -> Result<usize, Errno> {
        self.take_privileges(file, how)?;
        if !bytes.is_empty() && self.keep_back(file, (offset, &bytes), how)? {
            return Ok(bytes.len());
        }
        self.write_now(file, offset, bytes, how)
    }

    fn take_privileges(&self, file: &OpenFile, how: WriteHow) -> Result<(), Errno> {
        if how.kill_suidgid && !file.cleared.load(Ordering::Acquire) {
            let changes = Changes { kill_suidgid: true, ..Changes::default() };
            self.apply(file.ino, changes, false)?;
            file.cleared.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Sent before it is answered.
    pub(crate) fn write_now(
        &self,
        file: &OpenFile,
        offset: u64,
        mut bytes: Bytes,
        how: WriteHow,
    ) -> Result<usize, Errno> {
        bytes.truncate(BYTES_MAX as usize);
        if bytes.is_empty() {
            return Ok(0);
        }
        self.take_privileges(file, how)?;
        let mut direct = self.go_past(file.ino)?;
        let (offset, placed) = if how.append {
            self.openings.touch(file.ino);
            let appended = self.change(|head| metadata::Append {
                head: Some(head),
                ino: file.ino.get(),
                opening: file.number,
                length: bytes.len() as u64,
            })?;
            (appended.offset, self.place(file, appended.layout.ok_or(Errno::EIO)?)?)
        } else {
            if offset.checked_add(bytes.len() as u64).is_none_or(|end| i64::try_from(end).is_err()) {
                return Err(Errno::EFBIG);
            }
            let placed = self.begin_write(file)?;
            self.reserve(file, offset + bytes.len() as u64)?;
            (offset, placed)
        };
        let mut changing = self.change_bytes(file.ino, Some(offset..offset + bytes.len() as u64));
        let mut landed = Landed::default();
        let written = self.where_it_is(file, placed, &mut |placed| {
            self.write_placed(file, placed, (offset, &bytes, how.sync), &mut landed)
        });
        // Of what is short a part may be carried out yet.
        let all = written.and_then(|written| if written < bytes.len() { Err(Errno::EIO) } else { Ok(()) });
        changing.ended(&all);
        drop(changing);
        let written = written?;
        direct.wrote(if how.append { At::End } else { At::Offset(offset) }, offset + written as u64);
        if how.sync {
            self.sync_metadata(file)?;
        }
        Ok(written)
    }

    /// What was answered is durable: the bytes at their servers, then the file's record.
    pub fn fsync(&self, file: &OpenFile) -> Result<(), Errno> {
        self.settle_back(file)?;
        if let Ok(placed) = self.placed(file)? {
            self.where_it_is(file, placed, &mut |placed| self.sync_placed(file, placed))?;
        }
        self.sync_metadata(file)?;
        self.openings.take_late(file).map_or(Ok(()), Err)
    }

    fn sync_placed(&self, file: &OpenFile, placed: &Placed) -> Result<(), Errno> {
        let askings = (0..placed.layout.stripes.len()).map(|stripe| {
            let request = data::Sync { object: Some(object(file, placed, stripe)) };
            let asking = asking(&request, Body::default(), 0)?;
            Ok(ToStripe { stripe, what: What::Slow, asking })
        });
        let until = file.answered.lock().now();
        let askings = askings.collect::<Result<_, Errno>>()?;
        let answers = self.ask_stripes(file, placed, askings, self.sync_waits())?;
        let mut done = Ok(());
        for (stripe, answered) in answers.into_iter().enumerate() {
            match answered
                .and_then(|from| data::Alive::decode(from.answered.meta.as_slice()).map_err(|_| Errno::EIO))
            {
                Ok(data::Alive { life }) => {
                    let (at, life) = place_of(file, placed, stripe, life);
                    self.note_answers(file, |answered| answered.synced(stripe, at, life, until));
                }
                Err(error) => done = done.and(Err(error)),
            }
        }
        done
    }

    /// Answers of data servers; `note` says whether something is lost that was answered before. Then each opening for writing hears of it, and before
    /// anybody hears that the rest is durable.
    pub(crate) fn note_answers(&self, file: &OpenFile, note: impl FnOnce(&mut Answered) -> bool) {
        let mut answered = file.answered.lock();
        if note(&mut answered) {
            tracing::error!(
                ino = file.ino.get(),
                "writes that were answered are lost with their data server's memory, or with both servers of their stripe: the next fsync or close says so"
            );
            self.tell_writers_and(file, Errno::EIO);
        }
        self.openings.outstanding.write_down(file.ino, &mut answered);
    }

    /// Of a directory.
    pub fn fsync_dir(&self, ino: types::Ino) -> Result<(), Errno> {
        self.look(|head| metadata::Fsync { head: Some(head), ino: ino.get() }).map(drop)
    }

    fn sync_metadata(&self, file: &OpenFile) -> Result<(), Errno> {
        self.fsync_dir(file.ino)
    }

    /// Growth of a file whose project may have a limit.
    pub(crate) fn reserve(&self, file: &OpenFile, end: u64) -> Result<(), Errno> {
        let Some(reserved) = &file.reserved else { return Ok(()) };
        if end <= reserved.load(Ordering::Acquire) {
            return Ok(());
        }
        self.look(|head| metadata::Reserve { head: Some(head), ino: file.ino.get(), size: end })?;
        reserved.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    fn write_placed(
        &self,
        file: &OpenFile,
        placed: &Placed,
        (offset, bytes, sync): (u64, &Bytes, bool),
        landed: &mut Landed,
    ) -> Result<usize, Errno> {
        let parts: Vec<Part> = placed.striped.parts(offset, bytes.len() as u64).collect();
        let lacking: Vec<Part> = parts.iter().copied().filter(|part| landed.lacks(part)).collect();
        let Source { node: server, joined } = self.name_for_data(file.ino)?;
        let askings = lacking.iter().map(|part| {
            let object = Some(object(file, placed, part.stripe));
            let request = data::Write { object, offset: part.object_offset, sync, joined, server };
            let from = (part.offset - offset) as usize;
            let body = Body::new(bytes.slice(from..from + part.len as usize));
            let what = if sync { What::Slow } else { What::Change };
            Ok(ToStripe { stripe: part.stripe, what, asking: asking(&request, body, 0)? })
        });
        let waits = if sync { self.sync_waits() } else { self.waits() };
        let answers = self.ask_stripes(file, placed, askings.collect::<Result<_, Errno>>()?, waits)?;
        let decoded = |(part, from): (&Part, Result<FromStripe, Errno>)| {
            let done = data::Written::decode(from?.answered.meta.as_slice()).map_err(|_| Errno::EIO)?;
            let (at, life) = place_of(file, placed, part.stripe, done.life);
            self.note_answers(file, |answered| answered.wrote(part.stripe, at, life, sync));
            Ok(u64::from(done.bytes))
        };
        let done: Vec<Result<u64, Errno>> = lacking.iter().zip(answers).map(decoded).collect();
        for (part, done) in lacking.iter().zip(&done) {
            if done.is_ok_and(|bytes| bytes >= part.len) {
                landed.has(part);
            }
        }
        // A part was to go to where its stripe is not any more: what is lacking is written again.
        for again in [Errno::ESTALE, Errno::EREMOTE] {
            if done.contains(&Err(again)) {
                return Err(again);
            }
        }
        let written = landed.bytes_of(&parts);
        let failed = lacking.iter().zip(&done).find(|(part, _)| landed.lacks(part)).map(|(_, done)| *done);
        match failed {
            None => Ok(written as usize),
            Some(Ok(more)) if written + more > 0 => Ok((written + more) as usize),
            Some(Ok(_)) => Err(Errno::EIO),
            Some(Err(_)) if written > 0 => Ok(written as usize),
            Some(Err(error)) => Err(error),
        }
    }
}
