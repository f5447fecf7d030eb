//! Removes the data of files that have no name and no user left.
//!
//! Invariants: the object goes first and the mds's note of it last, so a crash in between repeats the removal
//! and loses nothing; device bytes go only when it is durable that the name is gone, or a power cut would bring back
//! the name without them; an inode that the client still uses is left for the next round.

use std::{
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use types::Ino;

/// Inodes per round: bounds the memory of a round, and one commit removes that many.
pub(crate) const BATCH: usize = 512;
/// Looks without a reason, for what an error left behind.
const PERIOD: Duration = Duration::from_secs(10);
/// How long what became due waits for more, so that they share commits. Who needs the room does not wait for it.
const GATHER: Duration = Duration::from_millis(20);

/// What the thread works on.
pub(crate) trait Graveyard: Send + Sync {
    /// Removes up to [`BATCH`] and says how many.
    fn bury(&self) -> usize;
}

struct State {
    wanted: bool,
    ended: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

pub(crate) struct Purger {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Purger {
    /// One without a thread; what is asked of it is done once it is started.
    pub(crate) fn new() -> Purger {
        // What an earlier mount left is due at once.
        let state = State { wanted: true, ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() });
        Purger { shared, thread: Mutex::new(None) }
    }

    pub(crate) fn start<G: Graveyard + 'static>(&self, graveyard: Weak<G>) -> std::io::Result<()> {
        let own = self.shared.clone();
        let thread =
            std::thread::Builder::new().name("onfs-purge".into()).spawn(move || run(&own, &graveyard))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Something may be there to remove.
    pub(crate) fn wake(&self) {
        let mut state = self.shared.state.lock();
        if !state.wanted {
            state.wanted = true;
            self.shared.wake.notify_one();
        }
    }

    /// Ends the thread after its present round.
    pub(crate) fn shutdown(&self) {
        self.shared.state.lock().ended = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the purging thread ended with a panic");
        }
    }
}

fn run<G: Graveyard>(shared: &Shared, graveyard: &Weak<G>) {
    loop {
        {
            let mut state = shared.state.lock();
            if !state.wanted && !state.ended {
                shared.wake.wait_for(&mut state, PERIOD);
            }
            if !state.ended {
                shared.wake.wait_for(&mut state, GATHER);
            }
            if state.ended {
                return;
            }
            state.wanted = false;
        }
        loop {
            let Some(graveyard) = graveyard.upgrade() else { return };
            if graveyard.bury() < BATCH || shared.state.lock().ended {
                break;
            }
        }
    }
}

/// Removes what `candidates` names through `remove`, and returns what is gone and what is left.
pub(crate) fn remove_all(
    candidates: Vec<Ino>,
    is_used: impl Fn(Ino) -> bool,
    remove: impl Fn(Ino) -> Result<(), types::Errno>,
) -> (Vec<Ino>, Vec<Ino>) {
    candidates.into_iter().partition(|ino| {
        !is_used(*ino)
            && remove(*ino)
                .inspect_err(|error| {
                    tracing::warn!(ino = ino.get(), %error, "the data of a removed file could not be removed");
                })
                .is_ok()
    })
}

#[cfg(test)]
mod tests {
    use types::Errno;

    use super::*;

    struct Counted(crossbeam_channel::Sender<()>);
    impl Graveyard for Counted {
        fn bury(&self) -> usize {
            self.0.send(()).unwrap();
            0
        }
    }

    /// Goal: the thread looks once at the start and once per wake. Method: count rounds through a channel.
    #[test]
    fn each_wake_is_a_round() {
        let (tell, rounds) = crossbeam_channel::bounded(8);
        let graveyard = Arc::new(Counted(tell));
        let purger = Purger::new();
        purger.start(Arc::downgrade(&graveyard)).unwrap();
        rounds.recv().unwrap();
        purger.wake();
        rounds.recv().unwrap();
        purger.shutdown();
    }

    /// Goal: used inodes and failures stay. Method: one of each among three.
    #[test]
    fn what_is_used_or_fails_is_left() {
        let inos: Vec<Ino> = (2..5).filter_map(Ino::from_raw).collect();
        let (gone, left) = remove_all(
            inos.clone(),
            |ino| ino.get() == 2,
            |ino| if ino.get() == 3 { Err(Errno::EIO) } else { Ok(()) },
        );
        assert_eq!((gone, left), (vec![inos[2]], vec![inos[0], inos[1]]));
    }
}
