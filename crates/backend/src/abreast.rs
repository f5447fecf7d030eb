//! The same question about many names of one directory. Where an answer takes long, as over a network, others are asked for
//! meanwhile; where answers come at once, nothing but the one thread works.
//!
//! Guarantees: the answers stand in the order of the names, and none is asked for twice. Refuses to know what is asked.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// An answer that takes longer came from somewhere else: a thread costs a fiftieth of that.
const SLOW: Duration = Duration::from_millis(2);
/// Asked at once for one directory: a listing of 200 names waits as long as for some fifteen.
const ABREAST: usize = 16;
/// Threads of this kind in all, so that a back end that hangs does not keep more. Who gets none asks alone.
const THREADS_MAX: usize = 64;

/// How many threads there are.
#[derive(Default)]
pub(crate) struct Abreast {
    threads: AtomicUsize,
}

/// What is known of the directory at hand: once an answer was slow, the next are asked for side by side.
#[derive(Default)]
pub(crate) struct Pace {
    slow: bool,
}

impl Abreast {
    pub(crate) fn ask<T: Sync, R: Send + Sync>(
        &self,
        pace: &mut Pace,
        about: &[T],
        ask: impl Fn(&T) -> R + Sync,
    ) -> Vec<R> {
        let mut answers = Vec::with_capacity(about.len());
        while !pace.slow && answers.len() < about.len() {
            let begun = Instant::now();
            answers.push(ask(&about[answers.len()]));
            pace.slow = begun.elapsed() >= SLOW;
        }
        let rest = &about[answers.len()..];
        let (next, told) = (AtomicUsize::new(0), rest.iter().map(|_| OnceLock::new()).collect::<Vec<_>>());
        let work = || {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some((about, told)) = rest.get(n).zip(told.get(n)) else { break };
                let _ = told.set(ask(about));
            }
        };
        thread::scope(|scope| {
            for _ in 1..ABREAST.min(rest.len()) {
                let Some(place) = self.place() else { break };
                let spawned =
                    thread::Builder::new().name("onfs-abreast".to_owned()).spawn_scoped(scope, || {
                        let _place = place;
                        work();
                    });
                // With fewer it takes longer.
                if spawned.is_err() {
                    break;
                }
            }
            work();
        });
        answers.extend(told.into_iter().filter_map(OnceLock::into_inner));
        answers
    }

    /// For one thread.
    fn place(&self) -> Option<Place<'_>> {
        let taken = self.threads.fetch_add(1, Ordering::Relaxed);
        let place = Place(&self.threads);
        (taken < THREADS_MAX).then_some(place)
    }
}

/// Given back when it is dropped.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Goal: slow answers are asked for side by side, in order and once each. Method: after the first, which is slow, sixteen that end only
    /// when all of them are asked.
    #[test]
    fn slow_answers_are_asked_for_side_by_side() {
        let (abreast, mut pace) = (Abreast::default(), Pace::default());
        let (names, all) = ((0..=ABREAST).collect::<Vec<_>>(), Barrier::new(ABREAST));
        let answers = abreast.ask(&mut pace, &names, |n| {
            if *n == 0 {
                thread::sleep(SLOW);
            } else {
                all.wait();
            }
            n * 2
        });
        assert_eq!(answers, names.iter().map(|n| n * 2).collect::<Vec<_>>());
        assert_eq!(abreast.threads.load(Ordering::Relaxed), 0);
    }

    /// Goal: without a place for a thread, and for nothing at all, the answers are the same. Method: all places are taken.
    #[test]
    fn without_threads_one_asks_for_all() {
        let abreast = Abreast { threads: AtomicUsize::new(THREADS_MAX) };
        let mut pace = Pace { slow: true };
        assert_eq!(abreast.ask(&mut pace, &[1, 2, 3], |n| n + 1), [2, 3, 4]);
        assert_eq!(abreast.ask(&mut pace, &[0; 0], |n| n + 1), [0; 0]);
        assert_eq!(abreast.threads.load(Ordering::Relaxed), THREADS_MAX);
    }
}
