//! Writes that are kept back by who has the kernel's request in hand: of a file that nobody has to be asked about, and whose writing has begun.
//!
//! They are as those of [`crate::keeping_back`], which takes over with all others.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use fuse::{Call, Operation, WriteArgs};
use net::trace;
use proto::data::BYTES_MAX;
use types::Ino;

use crate::{
    Remote,
    access::{is_append, is_direct, is_sync},
    openings::OpenFile,
    writing::WriteHow,
};

impl Remote {
    /// `Some`: it is to be served as any other.
    pub(crate) fn keep_at_once(&self, mut call: Call) -> Option<Call> {
        let (Ok(Operation::Write(args)), Some(ino)) = (call.operation(), Ino::from_raw(call.header().node))
        else {
            return Some(call);
        };
        let Some((file, how)) = self.kept_at_once(ino, &args) else { return Some(call) };
        let (handle, offset) = (args.fh, args.offset);
        let Some(remote) = self.this.upgrade() else { return Some(call) };
        let Ok(data) = call.take_data() else { return Some(call) };
        let bytes = Bytes::from_owner(data);
        let request = self.traces.next();
        let _request = trace::enter(request);
        let len = bytes.len();
        let range = if how.append { 0..0 } else { offset..offset + len as u64 };
        match self.keep_back_now(&file, (offset, &bytes), how) {
            Some(false) => self.answer_written(call, Some(range), Ok(len)),
            Some(true) => {
                let answer = move || {
                    let _request = trace::enter(request);
                    remote.answer_written(call, Some(range), Ok(len));
                };
                self.backlog.when_there_is_room(ino, self.options.longest, Box::new(answer));
            }
            None => self.data_pool.defer(move || {
                let _request = trace::enter(request);
                let written =
                    remote.file(handle).and_then(|file| remote.write_bytes(&file, offset, bytes, how));
                remote.answer_written(call, Some(range), written);
            }),
        }
        None
    }

    /// `None`: somebody has to be asked, or waited for; or it is none of these writes.
    fn kept_at_once(&self, ino: Ino, args: &WriteArgs<'_>) -> Option<(Arc<OpenFile>, WriteHow)> {
        self.backlog.back.as_ref()?;
        let len = args.data.len() as u64;
        let special = args.cache || is_direct(args.flags) || is_sync(args.flags);
        let end = args.offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        if special || len == 0 || len > u64::from(BYTES_MAX) || end.is_none() {
            return None;
        }
        let file = self.openings.get(args.fh).filter(|file| file.ino == ino && file.is_well())?;
        let clears = args.kill_suidgid && !file.cleared.load(Ordering::Acquire);
        let how = WriteHow { append: is_append(args.flags), sync: false, kill_suidgid: args.kill_suidgid };
        (!clears && self.is_kept_back(&file, how)).then_some((file, how))
    }
}
