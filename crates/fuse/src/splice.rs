//! Large answers to /dev/fuse by way of a pipe: it takes the pages of an answer many at a time, and the kernel copies out of the pipe. From memory it
//! looks each page up for itself, which takes a third of the time of the copy.
//!
//! Each thread has a pipe of its own. The kernel has taken what is in it, or has refused it, when the call returns: the answer's memory is its
//! owner's again.

use std::{
    cell::RefCell,
    io,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    pipe::{IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice},
};

/// Less is copied as it is.
const LEAST: usize = 64 << 10;
/// Of the pipe, in slots of a page: an answer of 1 MiB that does not begin at a page has a slot more than pages, and there is its header. Beyond
/// `fs.pipe-max-size`, so only a privileged process gets it.
const PIPE_BYTES: usize = 2 << 20;
/// What is left is for pages that are begun.
const MOST: usize = PIPE_BYTES - (64 << 10);

struct Pipe {
    from: OwnedFd,
    to: OwnedFd,
}

#[derive(Default)]
enum Mine {
    #[default]
    NotYet,
    There(Pipe),
    /// We may not have one that is large enough.
    Never,
}

thread_local! {
    static PIPE: RefCell<Mine> = const { RefCell::new(Mine::NotYet) };
}

/// One answer, its parts one after the other. `None`: it has to be written.
pub(crate) fn answer(device: BorrowedFd<'_>, parts: &[&[u8]]) -> Option<io::Result<()>> {
    let bytes = parts.iter().map(|part| part.len()).sum();
    if !(LEAST..=MOST).contains(&bytes) {
        return None;
    }
    PIPE.try_with(|mine| answer_with(&mut mine.borrow_mut(), device, parts, bytes)).ok()?
}

fn answer_with(
    mine: &mut Mine,
    device: BorrowedFd<'_>,
    parts: &[&[u8]],
    bytes: usize,
) -> Option<io::Result<()>> {
    if matches!(mine, Mine::NotYet) {
        *mine = Pipe::new().map_or(Mine::Never, Mine::There);
    }
    let Mine::There(pipe) = mine else { return None };
    let put = pipe.put(parts).is_ok_and(|put| put == bytes);
    let taken = put.then(|| splice(&pipe.from, None, device, None, bytes, SpliceFlags::empty()));
    if !matches!(taken, Some(Ok(taken)) if taken == bytes) {
        // Something may be left in it.
        *mine = Mine::NotYet;
    }
    Some(match taken? {
        Ok(taken) if taken == bytes => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(error) => Err(error.into()),
    })
}

impl Pipe {
    fn new() -> Option<Pipe> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        (fcntl_setpipe_size(&to, PIPE_BYTES).ok()? >= PIPE_BYTES).then_some(Pipe { from, to })
    }

    /// How many bytes of these it took.
    fn put(&self, parts: &[&[u8]]) -> Result<usize, Errno> {
        let parts: Vec<IoSliceRaw<'_>> = parts.iter().map(|part| IoSliceRaw::from_slice(part)).collect();
        // SAFETY: the pages are read by the kernel only, and are out of the pipe before the borrow ends: `answer` has them taken,
        // or drops the pipe.
        unsafe { vmsplice(&self.to, &parts, SpliceFlags::NONBLOCK) }
    }
}
