//! Tells the kernel to drop cached pages of files that were written beside its page cache.
//!
//! Invariants: only the thread of this module talks to the notifier, never one that a request waits for (the
//! kernel may hold pages locked until a request of ours is answered); ranges of one inode are merged, so the
//! table is bounded by the number of open inodes and a busy writer costs one call at a time.

use std::{collections::BTreeMap, sync::Arc, thread::JoinHandle, time::Duration};

use parking_lot::{Condvar, Mutex};

/// What drops pages: `(inode, offset, length)`; length 0 means to the end of the file.
pub(crate) type Drop = Box<dyn Fn(u64, u64, u64) + Send + Sync>;

/// Bytes of one inode, `start <= x < end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    start: u64,
    end: u64,
}

#[derive(Default)]
struct State {
    pending: BTreeMap<u64, Range>,
    drop_pages: Option<Arc<Drop>>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

pub(crate) struct Invalidator {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Invalidator {
    pub(crate) fn start() -> std::io::Result<Invalidator> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("onfs-invalidate".into()).spawn(move || run(&own))?;
        Ok(Invalidator { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Before this, what is asked for is kept (merged per inode) and done once a notifier is there.
    pub(crate) fn attach(&self, drop_pages: Drop) {
        self.shared.state.lock().drop_pages = Some(Arc::new(drop_pages));
        self.shared.wake.notify_one();
    }

    pub(crate) fn ask(&self, ino: u64, start: u64, end: u64) {
        let mut state = self.shared.state.lock();
        if state.ended {
            return;
        }
        let range = state.pending.entry(ino).or_insert(Range { start, end });
        range.start = range.start.min(start);
        range.end = range.end.max(end);
        drop(state);
        self.shared.wake.notify_one();
    }

    pub(crate) fn shutdown(&self) {
        self.shared.state.lock().ended = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the invalidation thread ended with a panic");
        }
    }
}

fn run(shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        if state.ended {
            return;
        }
        let next = match &state.drop_pages {
            Some(drop_pages) => {
                let drop_pages = drop_pages.clone();
                state.pending.pop_first().map(|(ino, range)| (drop_pages, ino, range))
            }
            None => None,
        };
        match next {
            Some((drop_pages, ino, range)) => {
                drop(state);
                drop_pages(ino, range.start, range.end.saturating_sub(range.start));
                state = shared.state.lock();
            }
            // The time only bounds the harm of a lost wake-up.
            None => {
                shared.wake.wait_for(&mut state, Duration::from_secs(5));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ranges of one inode become one call, nothing is lost before the notifier is there. Method: ask
    /// first, attach later, receive the calls through a channel.
    #[test]
    fn ranges_of_an_inode_are_merged() {
        let invalidator = Invalidator::start().unwrap();
        invalidator.ask(5, 4096, 8192);
        invalidator.ask(5, 0, 100);
        invalidator.ask(9, 10, 20);
        let (tell, calls) = crossbeam_channel::bounded(4);
        invalidator.attach(Box::new(move |ino, offset, len| tell.send((ino, offset, len)).unwrap()));
        assert_eq!(calls.recv().unwrap(), (5, 0, 8192));
        assert_eq!(calls.recv().unwrap(), (9, 10, 10));
        invalidator.shutdown();
        invalidator.ask(5, 0, 1);
    }
}
