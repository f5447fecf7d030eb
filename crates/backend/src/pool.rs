//! A bounded number of threads that make calls which may hang.
//!
//! A thread whose call hangs stays with it, and serves again when it comes back. Calls that find all threads busy stand in line
//! until their deadline. The line is as long as there are callers, each waiting for one call; what was given up
//! leaves nothing but its ticket there, and the tickets go when there are many.
//!
//! Dropping a pool waits for nothing: threads end when the line is empty, and those that hang when they come back.

use std::{
    collections::VecDeque,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{
    marks::Mark,
    tally::Tally,
    ticket::{Job, Late, Ticket},
};

/// From this length on the line is searched for tickets that nobody waits for.
const LINE_LONG: usize = 256;

pub(crate) struct Pool {
    shared: Arc<Shared>,
    tally: Arc<Tally>,
    deadline: Duration,
}

struct Shared {
    name: &'static str,
    threads_max: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    line: VecDeque<Arc<dyn Job>>,
    /// The line is searched when it is as long as this.
    search_at: usize,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(name: &'static str, threads_max: usize, deadline: Duration, tally: Arc<Tally>) -> Pool {
        let state = State { search_at: LINE_LONG, ..State::default() };
        let shared =
            Shared { name, threads_max: threads_max.max(1), state: Mutex::new(state), work: Condvar::new() };
        Pool { shared: Arc::new(shared), tally, deadline }
    }

    /// Has a thread do the work, and waits for it until the deadline.
    pub(crate) fn call<I, T>(
        &self,
        input: I,
        mark: Option<Mark>,
        work: impl FnOnce(I) -> T + Send + 'static,
    ) -> Result<T, Late<I>>
    where
        I: Send + 'static,
        T: Send + 'static,
    {
        let until = Instant::now() + self.deadline;
        self.begin(input, mark, work).wait(until, self.deadline)
    }

    /// The same without waiting.
    pub(crate) fn begin<I, T>(
        &self,
        input: I,
        mark: Option<Mark>,
        work: impl FnOnce(I) -> T + Send + 'static,
    ) -> Arc<Ticket<I, T>>
    where
        I: Send + 'static,
        T: Send + 'static,
    {
        self.tally.began();
        let ticket = Arc::new(Ticket::new(input, Box::new(work), self.tally.clone(), mark));
        self.shared.post(ticket.clone());
        ticket
    }

    /// Whenever a thread is free: nobody waits for it.
    pub(crate) fn later(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.post(Arc::new(Errand(Mutex::new(Some(Box::new(work))))));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn post(self: &Arc<Self>, job: Arc<dyn Job>) {
        let mut state = self.state.lock();
        if state.line.len() >= state.search_at {
            state.line.retain(|job| job.is_wanted());
            state.search_at = (2 * state.line.len()).max(LINE_LONG);
        }
        state.line.push_back(job);
        if state.idle >= state.line.len() || state.threads >= self.threads_max {
            self.work.notify_one();
            return;
        }
        let shared = self.clone();
        let thread = thread::Builder::new().name(self.name.to_owned()).spawn(move || shared.serve());
        match thread {
            Ok(_) => state.threads += 1,
            // Those that there are serve it, or the next that can be started; else it waits for its deadline.
            Err(error) => tracing::warn!(%error, pool = self.name, "no thread for calls to the back end"),
        }
        self.work.notify_one();
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.line.pop_front() {
                drop(state);
                job.run();
                // The last of what it was about may take long to drop.
                drop(job);
                state = self.state.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

type Work = Box<dyn FnOnce() + Send>;

struct Errand(Mutex<Option<Work>>);

impl Job for Errand {
    fn run(&self) {
        let work = self.0.lock().take();
        if let Some(work) = work {
            work();
        }
    }

    fn is_wanted(&self) -> bool {
        true
    }
}
