//! Writes for which nobody has to be asked anything before: whoever has the kernel's request in hand sends them, and whoever receives the answer answers.
//!
//! They are as those of [`crate::writing`], which takes over where something is not as it mostly is: a connection that is lost, a stripe that is moved, a
//! server that refuses. The file counts as being changed from before the first attempt until after the last one.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use bytes::Bytes;
use cluster::striping::Part;
use fuse::{Call, Operation, WriteArgs};
use net::{
    Answered, Channel,
    trace::{self, Trace},
};
use parking_lot::Mutex;
use prost::Message;
use proto::data::{self, BYTES_MAX};
use types::{Errno, Ino};
use wire::{
    connection::Failure,
    frame::{Body, Verdict},
};

use crate::{
    Remote,
    access::{is_append, is_sync},
    caching::Changing,
    held::Source,
    line::{Asking, Line},
    openings::{OpenFile, Placed},
    reading::{asking, object, place_of},
    writing::WriteHow,
};

/// Where a write goes that can go at once.
struct Ready {
    file: Arc<OpenFile>,
    placed: Arc<Placed>,
    part: Part,
    source: Source,
    line: Arc<Line>,
    channel: Arc<Channel>,
}

/// A write on its way.
struct Sent {
    remote: Arc<Remote>,
    call: Call,
    changing: Changing<Arc<Remote>>,
    handle: u64,
    file: Arc<OpenFile>,
    /// Its stripe, and where the file's are.
    at: (usize, Arc<Placed>),
    offset: u64,
    bytes: Bytes,
    line: Arc<Line>,
    asking: Asking,
    begun: Instant,
    request: Trace,
}

impl Remote {
    /// `Some`: it is to be served as any other.
    pub(crate) fn write_at_once(&self, mut call: Call) -> Option<Call> {
        let (Ok(Operation::Write(args)), Some(ino)) = (call.operation(), Ino::from_raw(call.header().node))
        else {
            return Some(call);
        };
        let Some(ready) = self.ready_to_write(ino, &args) else { return Some(call) };
        let (handle, offset) = (args.fh, args.offset);
        let Some(remote) = self.this.upgrade() else { return Some(call) };
        let Ok(data) = call.take_data() else { return Some(call) };
        let bytes = Bytes::from_owner(data);
        let request = self.traces.next();
        let _request = trace::enter(request);
        let range = offset..offset + bytes.len() as u64;
        let changing = Changing::begin(remote.clone(), ino, Some(range));
        let Ready { file, placed, part, source, line, channel } = ready;
        let write = data::Write {
            object: Some(object(&file, &placed, part.stripe)),
            offset: part.object_offset,
            sync: false,
            joined: source.joined,
            server: source.node,
        };
        let asking = match asking(&write, Body::new(bytes.clone()), 0) {
            Ok(asking) => asking,
            Err(error) => {
                call.reply_error(error);
                return None;
            }
        };
        let ask = asking.call(Instant::now() + self.options.longest);
        let begun = line.begin();
        let at = (part.stripe, placed);
        let sent =
            Sent { remote, call, changing, handle, file, at, offset, bytes, line, asking, begun, request };
        // What is not taken comes back by this way.
        let sent = Arc::new(Mutex::new(Some(sent)));
        let answered = sent.clone();
        let then = move |answer| {
            if let Some(sent) = answered.lock().take() {
                sent.answered(answer);
            }
        };
        if channel.begin_then(ask, then).is_err()
            && let Some(sent) = sent.lock().take()
        {
            sent.line.end(&sent.asking, sent.begun, Err(Errno::EAGAIN));
            sent.again();
        }
        None
    }

    /// `None`: somebody has to be asked, or waited for; or it is none of these writes.
    fn ready_to_write(&self, ino: Ino, args: &WriteArgs<'_>) -> Option<Ready> {
        let len = args.data.len() as u64;
        let special = args.cache || is_append(args.flags) || is_sync(args.flags);
        if special || self.backlog.back.is_some() || len == 0 || len > u64::from(BYTES_MAX) {
            return None;
        }
        let file = self.openings.get(args.fh).filter(|file| file.ino == ino && file.is_well())?;
        let end = args.offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok())?;
        if args.kill_suidgid && !file.cleared.load(Ordering::Acquire)
            || file.reserved.as_ref().is_some_and(|reserved| end > reserved.load(Ordering::Acquire))
        {
            return None;
        }
        let placed = self.begun_write(&file).filter(|placed| !placed.layout.is_twofold())?;
        let mut parts = placed.striped.parts(args.offset, len);
        let (Some(part), None) = (parts.next(), parts.next()) else { return None };
        if self.nodes.lacks_any(&placed.layout.stripes) {
            return None;
        }
        let source = self.name_there(ino)?;
        let line = self.nodes.line(placed.layout.stripes[part.stripe])?;
        let channel = line.channel_there()?;
        Some(Ready { file, placed, part, source, line, channel })
    }
}

impl Sent {
    /// On the thread that received it.
    fn answered(mut self, answer: Result<Answered, Failure>) {
        let _request = trace::enter(self.request);
        let done = answer.ok().filter(|answered| answered.header.verdict == Verdict::Done);
        self.line.end(&self.asking, self.begun, done.as_ref().ok_or(Errno::EAGAIN));
        let written = done.and_then(|done| data::Written::decode(done.meta.as_slice()).ok());
        let Some(written) = written.filter(|written| written.bytes as usize >= self.bytes.len()) else {
            return self.again();
        };
        let (stripe, placed) = self.at;
        let (at, life) = place_of(&self.file, &placed, stripe, written.life);
        self.remote.note_answers(&self.file, |answered| answered.wrote(stripe, at, life, false));
        let (offset, len) = (self.offset, self.bytes.len());
        self.changing.ended::<()>(&Ok(()));
        drop((self.changing, self.asking, self.bytes, self.file));
        self.remote.answer_written(self.call, Some(offset..offset + len as u64), Ok(len));
    }

    /// As any other, by a thread that may wait.
    fn again(mut self) {
        let remote = self.remote.clone();
        remote.data_pool.defer(move || {
            let _request = trace::enter(self.request);
            let range = self.offset..self.offset + self.bytes.len() as u64;
            if self.begun.elapsed() >= self.remote.options.longest {
                drop(self.changing);
                return self.remote.answer_written(self.call, Some(range), Err(Errno::EIO));
            }
            let file = self.remote.file(self.handle);
            let written = file
                .and_then(|file| self.remote.write_now(&file, self.offset, self.bytes, WriteHow::default()));
            // How it ended was said of the last attempt; after those before it their connections were cut. Without one the first may be carried out later.
            if written.is_ok() {
                self.changing.ended::<()>(&Ok(()));
            }
            drop(self.changing);
            self.remote.answer_written(self.call, Some(range), written);
        });
    }
}
