//! What the copying threads take next: pieces of large files first, then files, in the order in which they were found.
//!
//! Bounded: files wait in a queue of [`WAITING_MAX`], and a large file is opened only by a thread that finds no piece, so
//! that there are at most as many as threads.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};

/// A file that waits takes some 300 bytes: 5 MiB. The walk is far enough ahead with it.
const WAITING_MAX: usize = 16 << 10;
/// Who waits looks again after this time, so that a lost wake-up costs no more.
const LOOK: Duration = Duration::from_millis(200);

/// A file whose pieces several threads copy.
pub trait Divided {
    type Part;
    /// The next piece, if one is to be done now.
    fn part(&self) -> Option<Self::Part>;
    fn is_over(&self) -> bool;
}

pub enum Next<T, L: Divided> {
    File(T),
    Part(Arc<L>, L::Part),
}

pub struct Queue<T, L> {
    state: Mutex<State<T, L>>,
    /// Something came, or the end.
    came: Condvar,
    /// The walker may go on.
    room: Condvar,
}

struct State<T, L> {
    files: VecDeque<T>,
    large: Vec<Arc<L>>,
    /// Threads that have a file in hand, which may turn out to be large, or is to be tried again.
    busy: usize,
    closed: bool,
    stopped: bool,
}

impl<T, L: Divided> Queue<T, L> {
    pub fn new() -> Queue<T, L> {
        let state =
            State { files: VecDeque::new(), large: Vec::new(), busy: 0, closed: false, stopped: false };
        Queue { state: Mutex::new(state), came: Condvar::new(), room: Condvar::new() }
    }

    /// Waits for room; `false` when all is to end.
    pub fn push(&self, file: T) -> bool {
        let mut state = self.state.lock();
        while state.files.len() >= WAITING_MAX && !state.stopped {
            self.room.wait_for(&mut state, LOOK);
        }
        if state.stopped {
            return false;
        }
        state.files.push_back(file);
        drop(state);
        self.came.notify_one();
        true
    }

    /// No more files come from the walk.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.came.notify_all();
    }

    /// Whoever waits, or comes, gets nothing.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.came.notify_all();
        self.room.notify_all();
    }

    /// To be tried again, at once. Comes from who has it in hand, so it needs no room.
    pub fn again(&self, file: T) {
        self.state.lock().files.push_front(file);
        self.came.notify_one();
    }

    /// Gives its pieces to all threads.
    pub fn share(&self, large: Arc<L>) {
        self.state.lock().large.push(large);
        self.came.notify_all();
    }

    /// A large file has pieces again, or is over.
    pub fn look_again(&self) {
        self.came.notify_all();
    }

    /// `None`: all is done. Whoever got a file calls [`Queue::settled`] when he is done with it.
    pub fn next(&self) -> Option<Next<T, L>> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            state.large.retain(|large| !large.is_over());
            if let Some((large, part)) = state.large.iter().find_map(|l| Some((l.clone(), l.part()?))) {
                return Some(Next::Part(large, part));
            }
            if let Some(file) = state.files.pop_front() {
                state.busy += 1;
                self.room.notify_one();
                return Some(Next::File(file));
            }
            if state.closed && state.busy == 0 && state.large.is_empty() {
                self.came.notify_all();
                return None;
            }
            self.came.wait_for(&mut state, LOOK);
        }
    }

    pub fn settled(&self) {
        self.state.lock().busy -= 1;
        self.came.notify_all();
    }
}

impl<T, L: Divided> Default for Queue<T, L> {
    fn default() -> Queue<T, L> {
        Queue::new()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: everything is taken once and everybody ends. Method: threads over files, some of which are large.
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Large {
        given: AtomicU32,
        done: AtomicU32,
    }
    const PARTS: u32 = 7;
    impl Divided for Large {
        type Part = u32;
        fn part(&self) -> Option<u32> {
            let part = self.given.fetch_add(1, Ordering::SeqCst);
            (part < PARTS).then_some(part)
        }
        fn is_over(&self) -> bool {
            self.done.load(Ordering::SeqCst) == PARTS
        }
    }

    fn worker(queue: &Queue<u32, Large>, files: &AtomicU32, parts: &AtomicU32) {
        while let Some(next) = queue.next() {
            match next {
                Next::File(n) => {
                    files.fetch_add(1, Ordering::SeqCst);
                    if n % 5 == 0 {
                        queue.share(Arc::new(Large { given: AtomicU32::new(0), done: AtomicU32::new(0) }));
                    }
                    queue.settled();
                }
                Next::Part(large, _) => {
                    parts.fetch_add(1, Ordering::SeqCst);
                    large.done.fetch_add(1, Ordering::SeqCst);
                    queue.look_again();
                }
            }
        }
    }

    #[test]
    fn everything_is_taken_once() {
        let (queue, files, parts) = (Queue::<u32, Large>::new(), AtomicU32::new(0), AtomicU32::new(0));
        let count = WAITING_MAX as u32 + 100;
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| worker(&queue, &files, &parts));
            }
            for n in 0..count {
                assert!(queue.push(n));
            }
            queue.close();
        });
        assert_eq!(files.into_inner(), count);
        assert_eq!(parts.into_inner(), count.div_ceil(5) * PARTS);
    }

    #[test]
    fn a_stop_lets_everybody_go() {
        let queue = Queue::<u32, Large>::new();
        std::thread::scope(|s| {
            s.spawn(|| while queue.push(1) {});
            s.spawn(|| while queue.state.lock().files.len() < WAITING_MAX {});
            s.spawn(|| {
                while queue.state.lock().files.len() < WAITING_MAX {
                    std::thread::yield_now();
                }
                queue.stop();
            });
        });
        assert!(queue.next().is_none());
    }
}
