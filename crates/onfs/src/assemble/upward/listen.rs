//! What is heard of openings, on the threads that serve them: a system call and a place in a line.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
    mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
};

use client::{Listener, Opening, Purpose};
use rustix::process::{Pid, getpgid};
use types::Ino;

/// Openings and closings that are not looked at yet, 32 bytes each: more than a machine opens in the time between two looks.
const LINE: usize = 1 << 14;

/// A process group, which is what a job is here: what a shell, a scheduler or a terminal starts as one command has one, and
/// its children stay in it. Seen without touching the memory of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub i32);

#[derive(Clone, Copy, Debug)]
pub enum Heard {
    Opened { ino: Ino, purpose: Purpose, group: GroupId, uid: u32 },
    Closed { ino: Ino },
}

/// The listener of the client.
#[derive(Debug)]
pub struct Ears {
    line: SyncSender<Heard>,
    /// Is anything to be heard of openings?
    listens: AtomicBool,
    /// Of closings, too: there are runs.
    follows: AtomicBool,
    dropped: AtomicU64,
}

impl Ears {
    pub fn new(listens: bool) -> (Arc<Ears>, Receiver<Heard>) {
        let (line, heard) = sync_channel(LINE);
        let (listens, follows) = (AtomicBool::new(listens), AtomicBool::new(false));
        (Arc::new(Ears { line, listens, follows, dropped: AtomicU64::new(0) }), heard)
    }

    /// From now on: to openings, as there is a history or are runs, and to closings, too, as there are runs.
    pub fn listen(&self, history: bool, runs: bool) {
        self.listens.store(history || runs, Ordering::Release);
        self.follows.store(runs, Ordering::Release);
    }

    /// What was left out since this was asked last.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::AcqRel)
    }

    fn pass_on(&self, heard: Heard) {
        match self.line.try_send(heard) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Listener for Ears {
    fn opened(&self, opening: Opening) {
        if !self.listens.load(Ordering::Acquire) {
            return;
        }
        let Opening { ino, purpose, pid, uid } = opening;
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let group = process.and_then(|pid| getpgid(Some(pid)).ok());
        let group = GroupId(group.map_or(0, |pid| pid.as_raw_nonzero().get()));
        self.pass_on(Heard::Opened { ino, purpose, group, uid });
    }

    fn closed(&self, ino: Ino) {
        if self.follows.load(Ordering::Acquire) {
            self.pass_on(Heard::Closed { ino });
        }
    }
}
