//! A bounded queue to threads that carry requests out.
//!
//! Who finds it empty sleeps at once. Threads that look again for a while first, and give way meanwhile, cost a busy machine more than the
//! waking: between two requests there are microseconds of other processes' work.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

/// It gives back what it does not take.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<T> {
    Full(T),
    Closed(T),
}

struct State<T> {
    items: VecDeque<T>,
    /// Threads that sleep and were not woken yet.
    asleep: usize,
    is_closed: bool,
}

pub struct Queue<T> {
    most: usize,
    state: Mutex<State<T>>,
    filled: Condvar,
}

impl<T> Queue<T> {
    /// For at most so many that nobody has taken yet.
    pub fn new(most: usize) -> Queue<T> {
        let state = State { items: VecDeque::new(), asleep: 0, is_closed: false };
        Queue { most, state: Mutex::new(state), filled: Condvar::new() }
    }

    pub fn put(&self, item: T) -> Result<(), Refused<T>> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Refused::Closed(item));
        }
        if state.items.len() >= self.most {
            return Err(Refused::Full(item));
        }
        state.items.push_back(item);
        let wake = state.asleep > 0;
        if wake {
            state.asleep -= 1;
        }
        drop(state);
        if wake {
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Waits for one; `None` when it is closed and empty. Its end is [`Queue::close`].
    pub fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.is_closed {
                return None;
            }
            state.asleep += 1;
            self.filled.wait(&mut state);
        }
    }

    /// Waits for one, and no longer than `at_most`; `None`: there was none, or it is closed and empty.
    pub fn take_within(&self, at_most: Duration) -> Option<T> {
        let until = Instant::now() + at_most;
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.items.pop_front() {
                return Some(item);
            }
            if state.is_closed || Instant::now() >= until {
                return None;
            }
            state.asleep += 1;
            if self.filled.wait_until(&mut state, until).timed_out() {
                // Who was to be woken was not this one, or is counted as woken already.
                state.asleep = state.asleep.saturating_sub(1);
            }
        }
    }

    /// Those that nobody has taken yet.
    pub fn waiting(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Takes no more. What it has is given out, and then its threads end.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    //! Goal: each item is taken once, whoever sleeps when; nothing is taken beyond the bound or after the end. Method: threads that put and
    //! take at random, counted; a queue without threads.
    use std::{collections::BTreeSet, sync::Arc, thread};

    use super::*;

    #[test]
    fn each_item_is_taken_once_and_all_threads_end() {
        let queue = Arc::new(Queue::new(8));
        let take = |_| {
            let queue = queue.clone();
            thread::spawn(move || std::iter::from_fn(|| queue.take()).collect::<Vec<u32>>())
        };
        let takers: Vec<_> = (0..4).map(take).collect();
        let put = |n: u32| {
            let queue = queue.clone();
            thread::spawn(move || {
                for item in n * 10_000..(n + 1) * 10_000 {
                    let mut item = item;
                    while let Err(Refused::Full(again)) = queue.put(item) {
                        item = again;
                        thread::yield_now();
                    }
                }
            })
        };
        let putters: Vec<_> = (0..3).map(put).collect();
        putters.into_iter().for_each(|one| one.join().unwrap());
        queue.close();
        let taken: Vec<u32> = takers.into_iter().flat_map(|one| one.join().unwrap()).collect();
        assert_eq!(taken.len(), 30_000);
        assert_eq!(taken.into_iter().collect::<BTreeSet<_>>(), (0..30_000).collect());
    }

    #[test]
    fn it_has_a_bound_and_an_end() {
        let queue = Queue::new(2);
        assert_eq!((queue.put('a'), queue.put('b')), (Ok(()), Ok(())));
        assert_eq!(queue.put('c'), Err(Refused::Full('c')));
        assert_eq!(queue.take(), Some('a'));
        queue.close();
        assert_eq!(queue.put('d'), Err(Refused::Closed('d')));
        assert_eq!((queue.take(), queue.take()), (Some('b'), None));
    }
}
