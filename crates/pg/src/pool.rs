//! A few connections for readers.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{connection::Session, error::Failure};

/// At one time. The server has two processors' work with these, and by default room for a hundred connections of all its
/// users; readers above that wait for each other's answers, which take less than a millisecond.
const SESSIONS_MAX: usize = 4;

thread_local! {
    /// Visitors that this thread runs, one inside the other, each with a connection in the hand.
    static VISITING: Cell<usize> = const { Cell::new(0) };
}

#[derive(Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Session>,
    out: usize,
}

/// A place in the pool, with a connection if one was idle.
pub(crate) struct Place<'a> {
    pool: &'a Pool,
    /// A visitor that reads has one beyond the bound: the one below may hold the last.
    counted: bool,
    session: Option<Session>,
}

impl Pool {
    pub(crate) fn place(&self, wait: Duration) -> Result<Place<'_>, Failure> {
        let deadline = Instant::now() + wait;
        let mut state = self.state.lock();
        if VISITING.get() > 0 {
            return Ok(Place { pool: self, counted: false, session: state.idle.pop() });
        }
        while state.out >= SESSIONS_MAX {
            if self.freed.wait_until(&mut state, deadline).timed_out() {
                return Err(Failure::Busy(format!("all connections were in use for {wait:?}")));
            }
        }
        state.out += 1;
        Ok(Place { pool: self, counted: true, session: state.idle.pop() })
    }

    /// The server went away: none of them is worth a try.
    pub(crate) fn forget_idle(&self) {
        let idle = std::mem::take(&mut self.state.lock().idle);
        idle.iter().for_each(Session::give_up);
    }
}

impl Place<'_> {
    /// A connection that was idle and still seems well.
    pub(crate) fn usable(&self) -> Option<&Session> {
        self.session.as_ref().filter(|session| session.is_usable())
    }

    pub(crate) fn put(&mut self, session: Session) {
        self.session = Some(session);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let session = self.session.take().filter(Session::is_usable);
        let mut state = self.pool.state.lock();
        state.out -= usize::from(self.counted);
        if state.idle.len() < SESSIONS_MAX {
            state.idle.extend(session);
        }
        drop(state);
        self.pool.freed.notify_one();
    }
}

/// While it is there, this thread runs a visitor.
pub(crate) struct Visiting;

impl Visiting {
    pub(crate) fn begin() -> Visiting {
        VISITING.set(VISITING.get() + 1);
        Visiting
    }
}

impl Drop for Visiting {
    fn drop(&mut self) {
        VISITING.set(VISITING.get() - 1);
    }
}
