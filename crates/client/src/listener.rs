//! Who wants to hear which files programs open: to bring up what they will open next.
//!
//! Invariants: told after the file is open and before the opening is answered, so that the process that asked is still there;
//! on the transport's threads, so whoever listens waits for nothing, and takes no lock that somebody holds over I/O.
//!
//! Reads are not told of: those of a file in passthrough, and those that the page cache answers, do not come by here. Who opens
//! a file to read what is in it reads it.

use types::Ino;

/// What a file was opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To read what is in it.
    Read,
    /// It was created, or emptied, or is only written.
    Make,
}

/// One opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    pub ino: Ino,
    pub purpose: Purpose,
    /// The thread, as a process number; 0 where it lives beyond this one's sight.
    pub pid: u32,
    pub uid: u32,
}

pub trait Listener: Send + Sync + std::fmt::Debug {
    fn opened(&self, opening: Opening);
    /// One opening of it has ended.
    fn closed(&self, ino: Ino);
}
