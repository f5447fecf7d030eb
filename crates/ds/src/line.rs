//! What is asked for and nobody waits for stands in line here: the core takes up a bounded number of requests, and knows
//! only objects that somebody uses or that it could move out by itself.
//!
//! One thread gives them to the core in the order in which they came, and keeps their objects in use until the core is
//! done. A failure is a line of the log, since nobody else hears of it. The line is not stored: what stands in it at the
//! end of the process is forgotten.

use crate::object::Object;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};
use tier::{Request, RequestError, RequestId, RequestReport};
use types::{Ino, TierId};

/// Files in line, of 16 bytes each; a list that is added at once may go beyond by its own length. Whoever finds the line
/// full comes again ([`Line::wait_for_room`]).
const FILES_MAX: usize = 1 << 18;
/// Files that the core has at once: enough to keep its movements busy beside some that are in use, and few of the open files
/// of the process and of the requests that the core takes (`requests_max`), so that who waits is not refused.
const AT_ONCE: usize = 64;

/// One file in line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub ino: Ino,
    pub what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Migrate(TierId),
    Flush,
    Prefetch,
}

impl Wanted {
    pub fn request(self) -> Request {
        match self.what {
            What::Migrate(to) => Request::Migrate { ino: self.ino, to },
            What::Flush => Request::Flush { ino: self.ino },
            What::Prefetch => Request::Prefetch { list: vec![self.ino] },
        }
    }
}

#[derive(Default)]
pub(crate) struct Line {
    standing: Mutex<Standing>,
    changed: Condvar,
}

#[derive(Default)]
struct Standing {
    waiting: VecDeque<Wanted>,
    /// The thread has it, and the core not yet.
    in_hand: bool,
    /// What the core has of it.
    taken: HashMap<RequestId, (Wanted, Arc<Object>)>,
    /// Done. The thread lets go of them: whoever hears of the end may hold the locks that this needs.
    done: Vec<Arc<Object>>,
    over: bool,
}

impl Line {
    /// The thread waits no longer.
    pub fn end(&self) {
        self.standing.lock().over = true;
        self.changed.notify_all();
    }

    pub fn push(&self, list: &[Wanted]) -> Result<(), RequestError> {
        let mut standing = self.standing.lock();
        if standing.waiting.len() >= FILES_MAX {
            return Err(RequestError::TooMany);
        }
        standing.waiting.extend(list);
        self.changed.notify_all();
        Ok(())
    }

    /// The next file, if the core may have one more, and the objects that are no longer needed. Waits until there is
    /// something, and no longer than `at_most`.
    pub fn next(&self, at_most: Duration) -> (Option<Wanted>, Vec<Arc<Object>>) {
        let mut standing = self.standing.lock();
        let nothing_to_do = |s: &mut Standing| {
            !s.over && s.done.is_empty() && (s.waiting.is_empty() || s.taken.len() >= AT_ONCE)
        };
        self.changed.wait_while_for(&mut standing, nothing_to_do, at_most);
        let wanted = if standing.taken.len() < AT_ONCE { standing.waiting.pop_front() } else { None };
        standing.in_hand = wanted.is_some();
        if wanted.is_some() {
            self.changed.notify_all();
        }
        (wanted, std::mem::take(&mut standing.done))
    }

    pub fn taken(&self, id: RequestId, wanted: Wanted, object: Arc<Object>) {
        let mut standing = self.standing.lock();
        standing.in_hand = false;
        standing.taken.insert(id, (wanted, object));
    }

    /// It cannot be asked for.
    pub fn let_go(&self) {
        self.standing.lock().in_hand = false;
    }

    /// The core is done with a request. `false` if it is none of these.
    pub fn ended(&self, id: RequestId, result: &Result<RequestReport, RequestError>) -> bool {
        let mut standing = self.standing.lock();
        let Some((wanted, object)) = standing.taken.remove(&id) else { return false };
        standing.done.push(object);
        drop(standing);
        self.changed.notify_all();
        match result {
            Ok(_) => tracing::debug!(?wanted, "a request that nobody waits for is done"),
            Err(RequestError::NoSuchObject) => tracing::debug!(?wanted, "removed meanwhile"),
            Err(error) => tracing::warn!(?wanted, ?error, "a request that nobody waits for failed"),
        }
        true
    }

    /// Returns when the line is not full, or after that time.
    pub fn wait_for_room(&self, at_most: Duration) {
        let full = |standing: &mut Standing| standing.waiting.len() >= FILES_MAX;
        self.changed.wait_while_for(&mut self.standing.lock(), full, at_most);
    }

    /// Files that are not done.
    pub fn len(&self) -> usize {
        let standing = self.standing.lock();
        standing.waiting.len() + usize::from(standing.in_hand) + standing.taken.len()
    }

    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.standing.lock());
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the line has its bound, keeps its order, and lets go as many as the core may have. Method: no core at all.
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::object::{Home, Left, State};
    use std::sync::Weak;
    use types::{LocalId, UgsdId};

    struct Nobody;

    impl Home for Nobody {
        fn dropped(&self, _: Ino, _: Left) {}
    }

    fn flush(n: usize) -> Wanted {
        let ino = Ino::new(UgsdId::ROOT, LocalId::new(n as u64 + 1).unwrap());
        Wanted { ino, what: What::Flush }
    }

    #[test]
    fn the_line_is_bounded_and_in_order() {
        let line = Line::default();
        let all: Vec<Wanted> = (0..FILES_MAX).map(flush).collect();
        line.push(&all).unwrap();
        assert_eq!(line.push(&[flush(0)]), Err(RequestError::TooMany));
        let nobody: Weak<Nobody> = Weak::new();
        for n in 0..AT_ONCE {
            let (wanted, _) = line.next(Duration::ZERO);
            assert_eq!(wanted, Some(flush(n)));
            let object = Object::new(flush(n).ino, State::empty(), Default::default(), nobody.clone());
            line.taken(RequestId(n as u64), flush(n), object);
        }
        line.push(&[flush(0)]).unwrap();
        assert_eq!(line.next(Duration::ZERO).0, None, "the core has enough");
        assert!(!line.ended(RequestId(999), &Ok(RequestReport::default())), "not of the line");
        assert!(line.ended(RequestId(3), &Err(RequestError::Busy)));
        let (wanted, done) = line.next(Duration::ZERO);
        assert_eq!((wanted, done.len()), (Some(flush(AT_ONCE)), 1));
    }
}
