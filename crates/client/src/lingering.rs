//! The inodes whose passthrough outlives its last open file, and the thread that has them looked at.
//!
//! It does not know what passthrough is: that is [`Watch`]'s.

use std::{
    sync::{Arc, Weak},
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::inode::InodeRef;

/// How soon after a close, and how often then, a lingering file is looked at.
const PERIOD: Duration = Duration::from_millis(50);
/// Who knows what still uses them.
pub(crate) trait Watch: Send + Sync + 'static {
    /// Looks at what lingers and ends what nobody uses any more.
    fn end_unused(&self);
}

/// Inodes whose passthrough has no open file any more.
#[derive(Default)]
pub(crate) struct Lingering {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<List>,
    wake: Condvar,
}

#[derive(Default)]
struct List {
    inodes: Vec<InodeRef>,
    ended: bool,
}

impl Lingering {
    /// The thread that looks after them.
    pub(crate) fn start<W: Watch>(&self, watch: Weak<W>) -> std::io::Result<()> {
        let shared = self.shared.clone();
        let thread =
            std::thread::Builder::new().name("onfs-linger".into()).spawn(move || run(&shared, &watch))?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    pub(crate) fn add(&self, inode: InodeRef) {
        let mut list = self.shared.state.lock();
        list.inodes.push(inode);
        if list.inodes.len() == 1 {
            self.shared.wake.notify_one();
        }
    }

    pub(crate) fn take(&self) -> Vec<InodeRef> {
        std::mem::take(&mut self.shared.state.lock().inodes)
    }

    pub(crate) fn len(&self) -> usize {
        self.shared.state.lock().inodes.len()
    }

    /// Ends the thread. What lingers is the caller's to take.
    pub(crate) fn shutdown(&self) {
        self.shared.state.lock().ended = true;
        self.shared.wake.notify_one();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the thread that ends passthrough ended with a panic");
        }
    }
}

fn run<W: Watch>(shared: &Shared, watch: &Weak<W>) {
    loop {
        {
            let mut list = shared.state.lock();
            if list.inodes.is_empty() && !list.ended {
                shared.wake.wait_for(&mut list, Duration::from_secs(10));
            }
            if !list.inodes.is_empty() && !list.ended {
                shared.wake.wait_for(&mut list, PERIOD);
            }
            if list.ended {
                return;
            }
        }
        let Some(watch) = watch.upgrade() else { return };
        watch.end_unused();
    }
}
