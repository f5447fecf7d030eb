//! The id of the request that a thread works on: made where a program's request comes in, sent with every call that is made for it, and
//! said by all logs on its way.
//!
//! It belongs to the thread, so nobody has to hand it on: a call takes it ([`crate::Call::new`]), and who answers one enters what came with
//! it.

use std::{
    cell::Cell,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// Of the random part of an id, which tells clients apart; the rest counts.
const COUNT_BITS: u32 = 40;

/// 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Trace(pub u64);

impl fmt::Display for Trace {
    /// As logs have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("none"),
            id => write!(f, "{id:016x}"),
        }
    }
}

thread_local! {
    static NOW: Cell<Trace> = const { Cell::new(Trace(0)) };
}

/// What this thread works on.
pub fn current() -> Trace {
    NOW.get()
}

/// The thread works on it until this is dropped.
#[must_use]
pub struct Entered(Trace);

pub fn enter(trace: Trace) -> Entered {
    Entered(NOW.replace(trace))
}

impl Drop for Entered {
    fn drop(&mut self) {
        NOW.set(self.0);
    }
}

/// Makes ids that no two clients have in common, as far as chance allows.
#[derive(Debug)]
pub struct Traces {
    random: u64,
    count: AtomicU64,
}

impl Traces {
    pub fn new(random: u64) -> Traces {
        // Not 0, which is none.
        Traces { random: random << COUNT_BITS | 1, count: AtomicU64::new(0) }
    }

    pub fn next(&self) -> Trace {
        let count = self.count.fetch_add(2, Ordering::Relaxed) & ((1 << COUNT_BITS) - 1);
        Trace(self.random | count)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a thread says what it works on, and ids differ. Method: enter one in another; make some.
    use super::*;

    #[test]
    fn what_was_left_is_current_again() {
        assert_eq!(current(), Trace(0));
        let outer = enter(Trace(1));
        {
            let _inner = enter(Trace(2));
            assert_eq!(current(), Trace(2));
        }
        assert_eq!(current(), Trace(1));
        drop(outer);
        assert_eq!(current().to_string(), "none");
        assert_eq!(Trace(0xab).to_string(), "00000000000000ab");
    }

    #[test]
    fn ids_differ_between_requests_and_clients() {
        let (one, two) = (Traces::new(1), Traces::new(u64::MAX));
        let ids = [one.next(), one.next(), two.next(), two.next()];
        assert!(ids.iter().enumerate().all(|(n, id)| id.0 != 0 && !ids[..n].contains(id)), "{ids:?}");
    }
}
