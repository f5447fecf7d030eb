//! Files whose last writer is gone and whose size and time the mds is still to be told: many share one commit.
//!
//! Invariants: a file waits here no longer than [`PERIOD`] and the settling of those before it, unless it is put back; at most
//! [`BATCH`] others wait, since who brings the last one takes them all. Until then their attributes are the object's, and after a kill the
//! next mount asks it. It does not know what a file is, nor how it is settled.

use std::{sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How long a file waits for others.
const PERIOD: Duration = Duration::from_millis(50);
/// One commit's worth.
const BATCH: usize = 64;

pub(crate) struct Settling<T> {
    shared: Arc<Shared<T>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    turn: Mutex<()>,
}

struct Shared<T> {
    list: Mutex<List<T>>,
    wake: Condvar,
}

struct List<T> {
    due: Vec<T>,
    /// There is no thread any more: nothing waits.
    ended: bool,
}

impl<T: Send + 'static> Settling<T> {
    pub(crate) fn new() -> Settling<T> {
        let list = Mutex::new(List { due: Vec::new(), ended: false });
        let shared = Arc::new(Shared { list, wake: Condvar::new() });
        Settling { shared, thread: Mutex::new(None), turn: Mutex::new(()) }
    }

    /// The thread that has settled what nobody else does. It ends when `settle` says that there is no more to come.
    pub(crate) fn start(&self, settle: impl Fn() -> bool + Send + 'static) -> std::io::Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("onfs-settle".into());
        *self.thread.lock() = Some(thread.spawn(move || run(&shared, &settle))?);
        Ok(())
    }

    /// Whether the caller is to settle what waits now.
    pub(crate) fn add(&self, file: T) -> bool {
        let mut list = self.shared.list.lock();
        list.due.push(file);
        if list.due.len() == 1 {
            self.shared.wake.notify_one();
        }
        list.due.len() >= BATCH || list.ended
    }

    /// It could not be settled now: with the next ones, then.
    pub(crate) fn put_back(&self, file: T) {
        self.shared.list.lock().due.push(file);
        self.shared.wake.notify_one();
    }

    /// One at a time takes what waits and settles it: who comes second finds all of it settled.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut self.shared.list.lock().due)
    }

    /// Ends the thread. What comes from now on is settled by who brings it; what waits is the caller's to take.
    pub(crate) fn shutdown(&self) {
        self.shared.list.lock().ended = true;
        self.shared.wake.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that settles written files ended with a panic");
        }
    }
}

fn run<T>(shared: &Shared<T>, settle: &impl Fn() -> bool) {
    loop {
        {
            let mut list = shared.list.lock();
            while list.due.is_empty() && !list.ended {
                shared.wake.wait(&mut list);
            }
            if !list.ended {
                shared.wake.wait_for(&mut list, PERIOD);
            }
            if list.ended {
                return;
            }
        }
        if !settle() {
            return;
        }
    }
}
