//! Keeps the inodes that the kernel knows within a bound, for each costs the daemon memory until it is forgotten, and the
//! kernel by itself forgets only when the machine is short of memory.
//!
//! Invariants: only the thread of this module asks the kernel, never one that a request waits for; who is asked to be
//! forgotten and is in use stays. It does not know what a reference is: that is [`Inventory`]'s.

use std::{
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use types::{Errno, Ino};

/// How often the number is looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// Inodes in one message to the kernel.
const BATCH: usize = 1024;
/// Forgotten beyond what is too many, as a part of the bound: the next time comes later.
const MORE: usize = 8;

/// Who knows what the kernel knows.
pub(crate) trait Inventory: Send + Sync + 'static {
    fn known(&self) -> usize;
    /// Calls `ask` with some of them, `n` in all at most, others each time; ends with the first error of `ask`.
    fn some(&self, n: usize, ask: &mut dyn FnMut(&[Ino]) -> Result<(), Errno>) -> Result<(), Errno>;
}

/// Asks the kernel to forget inodes that nobody uses.
pub(crate) type Forget = Box<dyn Fn(&[u64]) -> Result<(), Errno> + Send + Sync>;

pub(crate) struct Known {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    forget: Option<Arc<Forget>>,
    ended: bool,
}

impl Known {
    pub(crate) fn new() -> Known {
        Known { shared: Arc::default(), thread: Mutex::default() }
    }

    pub(crate) fn start<I: Inventory>(&self, inventory: Weak<I>, max: usize) -> std::io::Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("onfs-known".into());
        *self.thread.lock() = Some(thread.spawn(move || run(&shared, &inventory, max))?);
        Ok(())
    }

    /// Before this nothing is forgotten. A kernel that cannot be asked is never given.
    pub(crate) fn attach(&self, forget: Forget) {
        self.shared.state.lock().forget = Some(Arc::new(forget));
    }

    pub(crate) fn shutdown(&self) {
        self.shared.state.lock().ended = true;
        self.shared.wake.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that has inodes forgotten ended with a panic");
        }
    }
}

fn run<I: Inventory>(shared: &Shared, inventory: &Weak<I>, max: usize) {
    let mut said = false;
    loop {
        let forget = {
            let mut state = shared.state.lock();
            if !state.ended {
                shared.wake.wait_for(&mut state, PERIOD);
            }
            if state.ended {
                return;
            }
            state.forget.clone()
        };
        let Some(inventory) = inventory.upgrade() else { return };
        let known = inventory.known();
        if known <= max {
            continue;
        }
        let Some(forget) = forget else {
            if !std::mem::replace(&mut said, true) {
                tracing::warn!(
                    known,
                    max,
                    "the kernel knows more files than the memory budget has room for, and cannot be asked to forget some (Linux 6.18 can)"
                );
            }
            continue;
        };
        let surplus = known - max + max / MORE;
        let result = inventory.some(surplus, &mut |inos| {
            let nodes: Vec<u64> = inos.iter().map(|ino| ino.get()).collect();
            nodes.chunks(BATCH).try_for_each(|nodes| forget(nodes))
        });
        match result {
            Ok(()) => tracing::debug!(known, surplus, "the kernel was asked to forget files"),
            Err(error) if !std::mem::replace(&mut said, true) => {
                tracing::warn!(known, max, %error, "the kernel was not asked to forget files");
            }
            Err(_) => {}
        }
    }
}
