//! The watch over requests that take long, wherever they are served.
//!
//! Invariants: a request that is older than the deadline is reported once with its operation, inode and age, whether
//! it waits for a worker, is served by one, or is held up on the transport's thread that received it. None is
//! cancelled: what it waits for has its own deadlines, and cutting a write in the middle could not be undone.
//!
//! A request on a transport's thread costs four stores into memory of that thread and reads no clock: the slot counts
//! turns, and the watcher notes when it first saw one. So such an age is a lower bound, by less than one period.
//! It knows nothing of what the requests do. Bound: one slot per thread, one entry per deferred request.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;

/// What a request is, for the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    pub operation: &'static str,
    pub ino: u64,
}

/// The requests that have not finished.
pub(crate) struct Watch {
    id: u64,
    deferred: Mutex<Deferred>,
    threads: Mutex<Vec<Seen>>,
    pub(crate) overdue: AtomicU64,
}

#[derive(Default)]
struct Deferred {
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Entry {
    label: Label,
    since: Instant,
    reported: bool,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Watch {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            deferred: Mutex::default(),
            threads: Mutex::default(),
            overdue: AtomicU64::new(0),
        }
    }

    /// Watches a deferred request until the ticket is dropped.
    pub(crate) fn enter(self: &Arc<Self>, label: Label) -> Ticket {
        let entry = Entry { label, since: Instant::now(), reported: false };
        let mut deferred = self.deferred.lock();
        let slot = match deferred.free.pop() {
            Some(slot) => {
                deferred.slots[slot] = Some(entry);
                slot
            }
            None => {
                deferred.slots.push(Some(entry));
                deferred.slots.len() - 1
            }
        };
        Ticket { watch: self.clone(), slot }
    }

    /// Watches `request` while it runs on this thread. One within another is a part of that.
    pub(crate) fn during<R>(&self, opcode: u32, node: u64, request: impl FnOnce() -> R) -> R {
        CURRENT.with(|current| {
            let mut seat = current.borrow();
            if !self.owns(&seat) {
                drop(seat);
                self.join(current);
                seat = current.borrow();
            }
            let _turn = seat.as_ref().filter(|_| self.owns(&seat)).map(|(_, slot)| slot.begin(opcode, node));
            request()
        })
    }

    /// The request of this thread is watched by a ticket from now on.
    pub(crate) fn handed_over(&self) {
        CURRENT.with_borrow(|seat| match seat {
            Some((_, slot)) if self.owns(seat) => slot.end(),
            _ => {}
        });
    }

    fn owns(&self, seat: &Option<Seat>) -> bool {
        seat.as_ref().is_some_and(|(id, _)| *id == self.id)
    }

    /// Gives this thread a slot.
    fn join(&self, current: &RefCell<Option<Seat>>) {
        // It cannot be had inside a request of another client.
        let Ok(mut current) = current.try_borrow_mut() else { return };
        let slot = Arc::new(Slot::default());
        self.threads.lock().push(Seen {
            slot: slot.clone(),
            turn: 0,
            since: Instant::now(),
            reported: false,
        });
        *current = Some((self.id, slot));
    }

    /// Looks at the requests every now and then until `stopped` has word.
    pub(crate) fn run(&self, stopped: &Receiver<()>, deadline: Duration) {
        let period = (deadline / 4).clamp(Duration::from_millis(1), Duration::from_secs(5));
        loop {
            match stopped.recv_timeout(period) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.report_overdue(Instant::now(), deadline),
            }
        }
    }

    fn report_overdue(&self, now: Instant, deadline: Duration) {
        for entry in self.deferred.lock().slots.iter_mut().flatten() {
            let age = now.saturating_duration_since(entry.since);
            if !entry.reported && age >= deadline {
                entry.reported = true;
                self.report(entry.label, age);
            }
        }
        let mut threads = self.threads.lock();
        // A thread that has ended, or serves another client, holds its slot no more.
        threads.retain(|seen| Arc::strong_count(&seen.slot) > 1);
        for seen in threads.iter_mut() {
            if let Some((label, age)) = seen.look(now, deadline) {
                self.report(label, age);
            }
        }
    }

    fn report(&self, label: Label, age: Duration) {
        self.overdue.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            operation = label.operation,
            ino = label.ino,
            age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            "a request has waited longer than its deadline"
        );
    }
}

/// See [`Watch::enter`].
pub(crate) struct Ticket {
    watch: Arc<Watch>,
    slot: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut deferred = self.watch.deferred.lock();
        deferred.slots[self.slot] = None;
        deferred.free.push(self.slot);
    }
}

/// A thread's slot, and the number of the watch that it belongs to.
type Seat = (u64, Arc<Slot>);

thread_local! {
    static CURRENT: RefCell<Option<Seat>> = const { RefCell::new(None) };
}

/// What one thread is doing. Only that thread writes, in an order that the watcher relies on: who sees the label of a
/// later turn also sees that the earlier one has ended. Alone in its cache lines (two are fetched at once).
#[derive(Default)]
#[repr(align(128))]
struct Slot {
    /// Odd while a request runs; each has its own number.
    turn: AtomicU64,
    node: AtomicU64,
    opcode: AtomicU32,
}

impl Slot {
    fn begin(&self, opcode: u32, node: u64) -> TurnGuard<'_> {
        self.opcode.store(opcode, Ordering::Release);
        self.node.store(node, Ordering::Release);
        self.turn.store((self.turn.load(Ordering::Relaxed) + 1) | 1, Ordering::Release);
        TurnGuard { slot: self }
    }

    /// More than once does no harm.
    fn end(&self) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn + turn % 2, Ordering::Release);
    }
}

struct TurnGuard<'a> {
    slot: &'a Slot,
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.slot.end();
    }
}

/// What the watcher knows of a thread.
struct Seen {
    slot: Arc<Slot>,
    /// As it was at the last look, and when it was first so.
    turn: u64,
    since: Instant,
    reported: bool,
}

impl Seen {
    /// A request that is overdue now and was not reported.
    fn look(&mut self, now: Instant, deadline: Duration) -> Option<(Label, Duration)> {
        let turn = self.slot.turn.load(Ordering::Acquire);
        if turn != self.turn {
            (self.turn, self.since, self.reported) = (turn, now, false);
        }
        let age = now.saturating_duration_since(self.since);
        if turn.is_multiple_of(2) || self.reported || age < deadline {
            return None;
        }
        let operation = fuse::operation_name(self.slot.opcode.load(Ordering::Acquire));
        let label = Label { operation, ino: self.slot.node.load(Ordering::Acquire) };
        if self.slot.turn.load(Ordering::Acquire) != turn {
            return None;
        }
        self.reported = true;
        Some((label, age))
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;

    const LABEL: Label = Label { operation: "fsync", ino: 7 };
    const DEADLINE: Duration = Duration::from_secs(10);
    const GETATTR: u32 = 3;

    fn reports(watch: &Watch) -> u64 {
        watch.overdue.load(Ordering::Relaxed)
    }

    /// Goal: an overdue request is counted once, a finished one never. Method: call the check with made-up times.
    #[test]
    fn overdue_requests_are_reported_once() {
        let watch = Arc::new(Watch::new());
        let ticket = watch.enter(LABEL);
        let finished = watch.enter(LABEL);
        drop(finished);
        let start = Instant::now();
        watch.report_overdue(start, DEADLINE);
        assert_eq!(reports(&watch), 0);
        watch.report_overdue(start + DEADLINE * 2, DEADLINE);
        watch.report_overdue(start + DEADLINE * 3, DEADLINE);
        assert_eq!(reports(&watch), 1);
        drop(ticket);
        assert_eq!(watch.deferred.lock().free.len(), 2);
    }

    /// Goal: the same for a request that is held up on the thread that received it, with its name and inode; those
    /// before and after it on that thread are not taken for it. Method: requests that wait at a gate, looked at with
    /// made-up times.
    #[test]
    fn requests_held_up_where_they_arrived_are_reported_once() {
        let watch = Arc::new(Watch::new());
        let (here, at_gate) = bounded::<()>(0);
        let (open, gate) = bounded::<()>(0);
        let watched = watch.clone();
        let thread = std::thread::spawn(move || {
            watched.during(GETATTR, 8, || ());
            for ino in [7, 9] {
                watched.during(GETATTR, ino, || {
                    here.send(()).unwrap();
                    gate.recv().unwrap();
                });
            }
        });
        let start = Instant::now();
        at_gate.recv().unwrap();
        watch.report_overdue(start, DEADLINE);
        watch.report_overdue(start + DEADLINE / 2, DEADLINE);
        assert_eq!(reports(&watch), 0);
        let found = watch.threads.lock()[0].look(start + DEADLINE, DEADLINE);
        assert_eq!(found, Some((Label { operation: "getattr", ino: 7 }, DEADLINE)));
        watch.threads.lock()[0].reported = false;
        watch.report_overdue(start + DEADLINE * 2, DEADLINE);
        watch.report_overdue(start + DEADLINE * 3, DEADLINE);
        assert_eq!(reports(&watch), 1);
        open.send(()).unwrap();
        at_gate.recv().unwrap();
        // Another request, which is not old because its thread was busy before.
        watch.report_overdue(start + DEADLINE * 4, DEADLINE);
        assert_eq!(reports(&watch), 1);
        watch.report_overdue(start + DEADLINE * 5, DEADLINE);
        assert_eq!(reports(&watch), 2);
        open.send(()).unwrap();
        thread.join().unwrap();
        watch.report_overdue(start + DEADLINE * 9, DEADLINE);
        assert_eq!(reports(&watch), 2);
        assert!(watch.threads.lock().is_empty());
    }

    /// Goal: a request is reported once although both its thread and a ticket know it. Method: as the pool does when
    /// its queue is full.
    #[test]
    fn a_request_that_is_handed_over_is_not_reported_twice() {
        let watch = Arc::new(Watch::new());
        let start = Instant::now();
        watch.during(GETATTR, 7, || {
            watch.report_overdue(start, DEADLINE);
            let _ticket = watch.enter(LABEL);
            watch.handed_over();
            watch.report_overdue(start + DEADLINE * 2, DEADLINE);
            watch.report_overdue(start + DEADLINE * 4, DEADLINE);
        });
        assert_eq!(reports(&watch), 1);
        // The next request of this thread is watched again.
        watch.during(GETATTR, 8, || {
            watch.report_overdue(start + DEADLINE * 5, DEADLINE);
            watch.report_overdue(start + DEADLINE * 7, DEADLINE);
        });
        assert_eq!(reports(&watch), 2);
    }
}
