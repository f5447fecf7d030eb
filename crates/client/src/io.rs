//! Reading and writing, and what else changes or asks for bytes of a file.
//!
//! Invariants: a read or write that needs no waiting is done on the transport's thread, straight from and into its
//! buffer; a write that is refused half-way says how much is written; a synchronous write is durable before it is
//! answered; every change beside the page cache of readers drops its range there, from another thread.

use std::sync::{Arc, atomic::Ordering};

use ds::{AllocateMode, Attempt, Whence};
use fuse::{Call, CopyArgs, Header, ReadArgs, WriteArgs};
use lease::Mode;
use types::Errno;

use crate::{
    Client,
    access::is_sync,
    inode::InodeRef,
    metrics::Op,
    open_file::OpenFile,
    turn::{Answer, Stop, Turn},
};

/// Bytes of one step of a copy, and of one answer to copy_file_range(2), so that no request takes for ever.
const COPY_STEP: usize = 1 << 20;
const COPY_MAX: u64 = 256 << 20;

impl Client {
    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>, Errno> {
        self.files.get(handle).ok_or(Errno::EBADF)
    }

    /// Answers a READ. The bytes go straight into the transport's buffer.
    pub(crate) fn read(&self, call: Call, turn: Turn, args: &ReadArgs) {
        let file = match self.file(args.fh) {
            Ok(file) => file,
            Err(error) => return self.fail(call, Op::Read, error),
        };
        // Before the answer: who then asks for the time must not be told the one before.
        if file.atime_due.load(Ordering::Relaxed)
            && file.atime_due.swap(false, Ordering::Relaxed)
            && file.inode.was_read(turn, self.now()).is_err()
        {
            file.atime_due.store(true, Ordering::Relaxed);
            return self.defer(call, Op::Read);
        }
        let object = &file.inode.object;
        let size = args.size as usize;
        let mut failed = None;
        let note = |result: Result<usize, Errno>| {
            match result {
                Ok(bytes) => self.metrics.read(bytes),
                Err(error) => failed = Some(error),
            }
            result
        };
        match turn {
            Turn::Transport => {
                let mut note = note;
                let back =
                    call.try_reply_with(size, |buf| match self.ds.try_read(object, args.offset, buf) {
                        Ok(Attempt::Done(bytes)) => note(Ok(bytes)).map(Some),
                        Ok(Attempt::WouldWait) => Ok(None),
                        Err(error) => note(Err(error)).map(Some),
                    });
                if let Some(call) = back {
                    return self.defer(call, Op::Read);
                }
            }
            Turn::Worker => {
                let mut note = note;
                call.reply_with(size, |buf| note(self.ds.read(object, args.offset, buf)));
            }
        }
        if let Some(error) = failed {
            self.metrics.error(Op::Read, error);
        }
    }

    /// Returns how many bytes were written: all, or those before an error.
    pub(crate) fn write(&self, turn: Turn, args: &WriteArgs<'_>) -> Answer<u32> {
        let file = self.file(args.fh)?;
        let inode = &file.inode;
        let sync = file.access.sync || is_sync(args.flags);
        turn.wait_if(sync)?;
        let end = args.offset.checked_add(args.data.len() as u64).ok_or(Errno::EFBIG)?;
        if self.is_limited_now(&file) {
            self.reserve(inode, end)?;
        }
        if let Err(stop) = inode.before_write(turn) {
            if let Stop::Failed(_) = stop {
                // Nothing was begun, so that nothing will be settled.
                self.mds.unreserve(inode.ino);
            }
            return Err(stop);
        }
        inode.drop_privileges(args.kill_suidgid)?;
        let written = match turn {
            Turn::Transport => match self.ds.try_write(&inode.object, args.offset, args.data) {
                Ok(Attempt::Done(written)) => written,
                Ok(Attempt::WouldWait) | Err(Errno::ENOSPC) => return Err(Stop::MustWait),
                Err(error) => return Err(error.into()),
            },
            Turn::Worker => self.with_room(|| self.ds.write(&inode.object, args.offset, args.data))?,
        };
        self.metrics.written(written);
        // What comes out of the page cache, or goes through it, is there already.
        if !args.cache && file.mode != Mode::Cached {
            self.changed(inode, args.offset, args.offset + written as u64);
        }
        if sync {
            self.make_durable(inode)?;
        }
        u32::try_from(written).map_err(|_| Errno::EIO.into())
    }

    /// Bytes, then size and times, then the journal that holds them.
    pub(crate) fn make_durable(&self, inode: &InodeRef) -> Result<(), Errno> {
        let through = inode.lock().waits.through;
        if through {
            self.bring_through(inode)?;
        } else {
            self.ds.sync(&inode.object)?;
        }
        inode.settle_now()?;
        self.mds.sync()
    }

    /// What close(2) waits for, and whose error it is given.
    pub(crate) fn flush(&self, turn: Turn, handle: u64) -> Answer<()> {
        let file = self.file(handle)?;
        if !file.access.write || !file.inode.lock_in(turn)?.waits.at_close {
            return Ok(());
        }
        turn.wait()?;
        Ok(self.make_durable(&file.inode)?)
    }

    pub(crate) fn fsync(&self, turn: Turn, handle: u64) -> Answer<()> {
        let file = self.file(handle)?;
        turn.wait()?;
        Ok(self.make_durable(&file.inode)?)
    }

    pub(crate) fn fallocate(&self, turn: Turn, header: &Header, args: &FallocateArgs) -> Answer<()> {
        let file = self.file(args.fh)?;
        let (how, grows) = allocate_mode(args.mode)?;
        let end = args.offset.checked_add(args.length).ok_or(Errno::EFBIG)?;
        turn.wait()?;
        file.inode.before_change()?;
        file.inode.drop_privileges(header.uid != 0)?;
        if how == AllocateMode::Zero {
            // A hole at the end tells nobody how long the file is.
            file.inode.settle_now()?;
        }
        self.with_room(|| self.ds.allocate(&file.inode.object, how, args.offset, args.length))?;
        if grows {
            self.grow_open(&file.inode, end)?;
        }
        self.changed(&file.inode, args.offset, end);
        Ok(())
    }

    pub(crate) fn lseek(&self, turn: Turn, handle: u64, offset: u64, whence: u32) -> Answer<u64> {
        let file = self.file(handle)?;
        let whence = match whence {
            3 => Whence::Data,
            4 => Whence::Hole,
            _ => return Err(Errno::EINVAL.into()),
        };
        turn.wait()?;
        Ok(self.ds.seek(&file.inode.object, offset, whence)?)
    }

    pub(crate) fn copy_file_range(&self, turn: Turn, header: &Header, args: &CopyArgs) -> Answer<u64> {
        if args.flags != 0 {
            return Err(Errno::EINVAL.into());
        }
        let from = self.file(args.fh_in)?;
        let to = self.file(args.fh_out)?;
        let len = args.len.min(COPY_MAX);
        let end = args.offset_out.checked_add(len).ok_or(Errno::EFBIG)?;
        args.offset_in.checked_add(len).ok_or(Errno::EFBIG)?;
        turn.wait()?;
        to.inode.before_change()?;
        // The kernel leaves this to us and does not say who may keep them: only root, then.
        to.inode.drop_privileges(header.uid != 0)?;
        // Decided once: within one file the copy itself could move the end that it reads towards.
        let there = self.ds.live(&from.inode.object).size.saturating_sub(args.offset_in);
        let (len, end) = (len.min(there), end.min(args.offset_out.saturating_add(there)));
        let mut buf = vec![0; COPY_STEP.min(len as usize)];
        let mut done = 0;
        while done < len {
            let want = buf.len().min((len - done) as usize);
            let step =
                self.copy_step(&from, &to, (args.offset_in + done, args.offset_out + done), &mut buf[..want]);
            match step {
                Ok(0) => break,
                Ok(bytes) => done += bytes as u64,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.changed(&to.inode, args.offset_out, end.min(args.offset_out + done));
        if done > 0 && to.access.sync {
            self.make_durable(&to.inode)?;
        }
        Ok(done)
    }

    fn copy_step(
        &self,
        from: &OpenFile,
        to: &OpenFile,
        (offset_in, offset_out): (u64, u64),
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        let bytes = self.ds.read(&from.inode.object, offset_in, buf)?;
        if bytes == 0 {
            return Ok(0);
        }
        if self.is_limited_now(to) {
            self.reserve(&to.inode, offset_out + bytes as u64)?;
        }
        let written = self.with_room(|| self.ds.write(&to.inode.object, offset_out, &buf[..bytes]))?;
        self.metrics.written(written);
        Ok(written)
    }

    /// Growth to `end` of a file under a quota.
    pub(crate) fn reserve(&self, inode: &InodeRef, end: u64) -> Result<(), Errno> {
        let size = self.ds.live(&inode.object).size;
        if end > size { self.mds.reserve_size(inode.ino, end) } else { Ok(()) }
    }

    /// Bytes changed in a way that the kernel's page cache may not have seen.
    fn changed(&self, inode: &InodeRef, start: u64, end: u64) {
        if inode.cached_readers.load(Ordering::Acquire) && end > start {
            self.invalidator.ask(inode.ino.get(), start, end);
        }
    }
}

/// What FALLOCATE carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FallocateArgs {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    /// As in fallocate(2).
    pub mode: u32,
}

/// What to do within the file, and whether it grows.
fn allocate_mode(mode: u32) -> Result<(AllocateMode, bool), Errno> {
    const KEEP_SIZE: u32 = 0x01;
    const PUNCH_HOLE: u32 = 0x02;
    const ZERO_RANGE: u32 = 0x10;
    const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
    match mode {
        0 => Ok((AllocateMode::Reserve, true)),
        KEEP_SIZE => Ok((AllocateMode::Reserve, false)),
        PUNCH | ZERO_KEEP => Ok((AllocateMode::Zero, false)),
        ZERO_RANGE => Ok((AllocateMode::Zero, true)),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the modes of fallocate(2) that exist here are told apart, all others refused. Method: all words.
    #[test]
    fn fallocate_modes() {
        let known: Vec<u32> = (0..256).filter(|mode| allocate_mode(*mode).is_ok()).collect();
        assert_eq!(known, [0, 1, 3, 0x10, 0x11]);
        let grows = |mode| allocate_mode(mode).is_ok_and(|(_, grows)| grows);
        assert_eq!(known.iter().copied().filter(|m| grows(*m)).collect::<Vec<_>>(), [0, 0x10]);
        assert_eq!(allocate_mode(0x08), Err(Errno::EOPNOTSUPP));
    }
}
