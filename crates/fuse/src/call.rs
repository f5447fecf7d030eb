//! One request, and the one answer to it.
//!
//! A [`Call`] owns its request's buffers and may be moved to any thread. Answering consumes it. A call that is
//! dropped without an answer answers `EIO` and logs, so that no request hangs. While a call is held, so is a
//! buffer (with io_uring, one of the few entries of its queue): do not hold it without end, or [`Call::park`] it.

use std::sync::Arc;

use types::Errno;

use crate::{
    abi::{self, Plain, op},
    buffer::{BODY_AT, PAGE, Pooled},
    data::Data,
    decode::{self, Body, Dialect},
    device::{Device, PIECES_MAX},
    dir::DirBuffer,
    operation::{Header, Lock, Operation},
    queue::RingSlot,
    reply::{self, AttrOut, EntryOut, OpenOut, StatfsOut},
    under_way::UnderWay,
};

/// What INIT agreed on that a call needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) dialect: Dialect,
    /// `st_blksize`.
    pub(crate) block_size: u32,
    /// Bytes that a request or an answer carries at most.
    pub(crate) payload: usize,
}

/// A request read from /dev/fuse: the request from [`REQUEST_AT`] on, the answer after the first page.
pub(crate) struct DeviceSlot {
    pub(crate) device: Arc<Device>,
    pub(crate) buffer: Pooled,
    /// Where the request ends.
    pub(crate) end: usize,
    pub(crate) _counted: UnderWay,
}

pub(crate) enum Slot {
    Device(DeviceSlot),
    /// It gave its buffer back.
    Parked(Arc<Device>),
    Ring(RingSlot),
}

/// One request: see the module's documentation.
pub struct Call {
    header: Header,
    extension_bytes: usize,
    agreed: Agreed,
    /// `None` once answered.
    slot: Option<Slot>,
}

impl Call {
    pub(crate) fn new(wire: &abi::InHeader, agreed: Agreed, slot: Slot) -> Call {
        Call {
            header: decode::header(wire),
            extension_bytes: usize::from(wire.total_extlen) * 8,
            agreed,
            slot: Some(slot),
        }
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What is asked. `EINVAL` when the request's bytes make no sense.
    pub fn operation(&self) -> Result<Operation<'_>, Errno> {
        decode::operation(self.header.opcode, self.body(), self.agreed.dialect)
    }

    /// For requests that create: the caller's supplementary group that owns the parent directory, if there is one
    /// (with `CREATE_SUPP_GROUP`).
    pub fn supplementary_group(&self) -> Option<u32> {
        decode::supplementary_group(self.body().tail(self.extension_bytes)?)
    }

    /// Bytes that one answer can carry.
    pub fn room(&self) -> usize {
        self.agreed.payload
    }

    /// For an answer that may take for ever: what was asked is forgotten and the buffer given back; the call answers as before,
    /// without data from its own buffer. With io_uring it keeps its entry, so a file system that parks is not to be served so.
    #[must_use]
    pub fn park(mut self) -> Call {
        self.slot = match self.slot.take() {
            Some(Slot::Device(slot)) => Some(Slot::Parked(slot.device)),
            other => other,
        };
        self
    }

    /// The data of a WRITE, for who needs them longer than the call: with the buffer, or copied where that has to go back. Then what was asked is
    /// forgotten, as with [`Call::park`].
    pub fn take_data(&mut self) -> Result<Data, Errno> {
        let Operation::Write(args) = self.operation()? else { return Err(Errno::EINVAL) };
        let place = match &self.slot {
            Some(Slot::Device(slot)) => {
                let from = args.data.as_ptr().addr() - slot.buffer.bytes().as_ptr().addr();
                from..from + args.data.len()
            }
            Some(Slot::Ring(_) | Slot::Parked(_)) | None => return Ok(Data::copied(args.data)),
        };
        let Some(Slot::Device(slot)) = self.slot.take() else { return Err(Errno::EIO) };
        self.slot = Some(Slot::Parked(slot.device));
        Ok(Data::of(slot.buffer, place))
    }

    pub fn reply_error(mut self, errno: Errno) {
        self.finish(Err(errno));
    }

    /// Not looked at: nobody answers any more.
    pub(crate) fn turn_away(self) {
        if self.wants_answer() { self.reply_error(Errno::ENODEV) } else { self.reply_none() }
    }

    /// Success, with nothing to say.
    pub fn reply_ok(mut self) {
        self.finish(Ok(0));
    }

    /// FORGET and INTERRUPT take no answer.
    pub fn reply_none(mut self) {
        if self.wants_answer() {
            tracing::error!(opcode = self.header.opcode, "a request that needs an answer got none: EIO");
            return self.finish(Err(Errno::EIO));
        }
        match self.slot.take() {
            // Never sent there, but an entry must go back in any case.
            Some(Slot::Ring(slot)) => slot.finish(self.header.unique, 0, 0),
            Some(Slot::Device(_) | Slot::Parked(_)) | None => {}
        }
    }

    pub fn reply_entry(self, entry: &EntryOut) {
        let wire = reply::entry(entry, self.agreed.block_size);
        self.reply_plain(&[abi::bytes_of(&wire)]);
    }

    /// LOOKUP: there is no such name, and that may be cached for so long.
    pub fn reply_negative(self, timeout: std::time::Duration) {
        let wire = abi::WireEntry {
            entry_valid: timeout.as_secs(),
            entry_valid_nsec: timeout.subsec_nanos(),
            ..abi::WireEntry::default()
        };
        self.reply_plain(&[abi::bytes_of(&wire)]);
    }

    /// To GETATTR, SETATTR and STATX.
    pub fn reply_attr(self, attr: &AttrOut) {
        if self.header.opcode == op::STATX {
            let wire = reply::statx_out(attr, self.agreed.block_size);
            self.reply_plain(&[abi::bytes_of(&wire)]);
        } else {
            let wire = reply::attr_out(attr, self.agreed.block_size);
            self.reply_plain(&[abi::bytes_of(&wire)]);
        }
    }

    pub fn reply_open(self, open: &OpenOut) {
        self.reply_plain(&[abi::bytes_of(&reply::open(open))]);
    }

    pub fn reply_create(self, entry: &EntryOut, open: &OpenOut) {
        let wire = reply::entry(entry, self.agreed.block_size);
        self.reply_plain(&[abi::bytes_of(&wire), abi::bytes_of(&reply::open(open))]);
    }

    pub fn reply_written(self, bytes: u32) {
        self.reply_struct(&abi::WriteOut { size: bytes, padding: 0 });
    }

    /// To COPY_FILE_RANGE. Say no more than 4 GiB less a page at a time: the older form has 32 bits.
    pub fn reply_copied(self, bytes: u64) {
        if self.header.opcode == op::COPY_FILE_RANGE_64 {
            self.reply_struct(&bytes);
        } else {
            self.reply_written(u32::try_from(bytes).unwrap_or(u32::MAX - (PAGE as u32 - 1)));
        }
    }

    /// Bytes as they are: READLINK, GETXATTR, LISTXATTR, and READ of what is at hand in one piece.
    pub fn reply_bytes(self, bytes: &[u8]) {
        self.reply_plain(&[bytes]);
    }

    /// The same, of what is at hand in several pieces.
    pub fn reply_pieces(self, pieces: &[&[u8]]) {
        if pieces.len() > PIECES_MAX {
            self.reply_plain(&[&pieces.concat()])
        } else {
            self.reply_plain(pieces)
        }
    }

    /// GETXATTR and LISTXATTR with size 0: how many bytes there are.
    pub fn reply_xattr_size(self, bytes: u32) {
        self.reply_struct(&abi::GetxattrIn { size: bytes, padding: 0 });
    }

    /// READ: `fill` writes up to `max` bytes into the transport's own buffer and says how many. Bytes that it
    /// leaves untouched are undefined, so it counts only what it wrote.
    pub fn reply_with(mut self, max: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        let result = self.fill(max, |buf| fill(buf).map(Some));
        self.finish(result.map(Option::unwrap_or_default));
    }

    /// As [`Call::reply_with`], but `fill` may say `None`, "I would have to wait": then the call comes back, to be
    /// answered elsewhere. Only for requests without names or data of their own (READ and READDIR), whose
    /// arguments `fill` cannot overwrite.
    #[must_use]
    pub fn try_reply_with(
        mut self,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Errno>,
    ) -> Option<Call> {
        match self.fill(max, fill) {
            Ok(None) => return Some(self),
            Ok(Some(len)) => self.finish(Ok(len)),
            Err(errno) => self.finish(Err(errno)),
        }
        None
    }

    /// READDIR and READDIRPLUS: `fill` adds entries until one does not fit. No entry at all means the end.
    pub fn reply_dir(mut self, fill: impl FnOnce(&mut DirBuffer<'_>) -> Result<(), Errno>) {
        let (block_size, plus) = (self.agreed.block_size, self.header.opcode == op::READDIRPLUS);
        let max = match self.operation() {
            Ok(Operation::Readdir(args) | Operation::Readdirplus(args)) => args.size as usize,
            _ => return self.reply_error(Errno::EINVAL),
        };
        let result = self.fill(max, |buf| {
            let mut dir = DirBuffer::new(buf, plus, block_size);
            fill(&mut dir).map(|()| Some(dir.len()))
        });
        self.finish(result.map(Option::unwrap_or_default));
    }

    pub fn reply_statfs(self, out: &StatfsOut) {
        self.reply_struct(&reply::statfs(out));
    }

    pub fn reply_lseek(self, offset: u64) {
        self.reply_struct(&offset);
    }

    pub fn reply_lock(self, lock: &Lock) {
        self.reply_struct(&abi::FileLock {
            start: lock.start,
            end: lock.end,
            kind: lock.kind,
            pid: lock.pid,
        });
    }

    pub fn reply_ioctl(self, result: i32, data: &[u8]) {
        let out = abi::IoctlOut { result, ..abi::IoctlOut::default() };
        self.reply_plain(&[abi::bytes_of(&out), data]);
    }

    pub fn reply_poll(self, revents: u32) {
        self.reply_struct(&abi::PollOut { revents, padding: 0 });
    }

    pub fn reply_bmap(self, block: u64) {
        self.reply_struct(&block);
    }

    fn body(&self) -> Body<'_> {
        match &self.slot {
            Some(Slot::Device(slot)) => {
                Body::Joined(slot.buffer.bytes().get(BODY_AT..slot.end).unwrap_or_default())
            }
            Some(Slot::Ring(slot)) => slot.body(),
            Some(Slot::Parked(_)) | None => Body::Joined(&[]),
        }
    }

    fn wants_answer(&self) -> bool {
        op::is_answered(self.header.opcode)
    }

    /// Runs `fill` on the first `max` bytes of the answer's buffer.
    fn fill(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<Option<usize>, Errno>,
    ) -> Result<Option<usize>, Errno> {
        let room = max.min(self.agreed.payload);
        let buf = match &mut self.slot {
            Some(Slot::Device(slot)) => slot.buffer.bytes_mut().get_mut(PAGE..PAGE + room),
            Some(Slot::Ring(slot)) => slot.payload().get_mut(..room),
            Some(Slot::Parked(_)) | None => None,
        };
        match fill(buf.ok_or(Errno::EIO)?)? {
            Some(len) if len > room => Err(Errno::EIO),
            other => Ok(other),
        }
    }

    fn reply_struct<T: Plain>(self, value: &T) {
        self.reply_plain(&[abi::bytes_of(value)]);
    }

    /// Answers with these pieces, which lie outside of the call's buffers.
    fn reply_plain(mut self, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > self.agreed.payload {
            return self.finish(Err(Errno::ERANGE));
        }
        match self.slot.take() {
            Some(Slot::Device(slot)) => send(&slot.device, &self.header, 0, parts),
            Some(Slot::Parked(device)) => send(&device, &self.header, 0, parts),
            Some(Slot::Ring(mut slot)) => {
                let mut left = slot.payload();
                for part in parts {
                    let (place, rest) = left.split_at_mut(part.len());
                    place.copy_from_slice(part);
                    left = rest;
                }
                slot.finish(self.header.unique, 0, len);
            }
            None => {}
        }
    }

    /// Answers with an error, or with so many bytes that are in the answer's buffer already.
    fn finish(&mut self, result: Result<usize, Errno>) {
        let (error, len) = match result {
            Ok(len) => (0, len),
            Err(errno) => (-errno.raw(), 0),
        };
        match self.slot.take() {
            Some(Slot::Device(slot)) => {
                let data = slot.buffer.bytes().get(PAGE..PAGE + len).unwrap_or_default();
                let parts = [data];
                send(&slot.device, &self.header, error, if len == 0 { &[] } else { &parts });
            }
            Some(Slot::Parked(device)) => send(&device, &self.header, error, &[]),
            Some(Slot::Ring(slot)) => slot.finish(self.header.unique, error, len),
            None => {}
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.slot.is_some() && self.wants_answer() {
            tracing::error!(
                opcode = self.header.opcode,
                node = self.header.node,
                unique = self.header.unique,
                "a request was dropped without an answer: EIO"
            );
            self.finish(Err(Errno::EIO));
        }
    }
}

/// Writes an answer to /dev/fuse. A request that is gone (its caller was killed, the file system unmounted) needs
/// none; an answer that the kernel does not take becomes EIO.
fn send(device: &Device, header: &Header, error: i32, parts: &[&[u8]]) {
    let Err(refused) = device.answer(header.unique, error, parts) else { return };
    match refused.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENOTCONN | libc::ECONNABORTED) => {}
        _ => {
            tracing::error!(opcode = header.opcode, %refused, "the kernel did not take an answer: EIO");
            if error == 0 {
                let _ = device.answer(header.unique, -libc::EIO, &[]);
            }
        }
    }
}
