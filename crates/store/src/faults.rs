//! Failures on demand, for tests: "fail the n-th I/O, for every n", and one that hangs. Costs one branch when off.

use parking_lot::{Condvar, Mutex};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use types::Errno;

/// The kinds of operation that can be made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum IoKind {
    Open = 0,
    Read = 1,
    Write = 2,
    /// Punch, zero, allocate.
    Allocate = 3,
    Truncate = 4,
    Sync = 5,
    Stat = 6,
    Seek = 7,
    Remove = 8,
    Space = 9,
}

const KINDS: usize = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultSpan {
    /// Only the n-th.
    Once,
    /// The n-th and all that follow.
    Onwards,
}

/// One planned failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// `None`: any kind.
    pub kind: Option<IoKind>,
    /// Which one fails, counted from 1 from the moment of planning.
    pub nth: u64,
    pub errno: Errno,
    pub span: FaultSpan,
    /// A failing write first writes the first half of its bytes.
    pub torn: bool,
}

/// Off by default and then free; clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Faults(Option<Arc<State>>);

#[derive(Debug, Default)]
struct State {
    counts: [AtomicU64; KINDS],
    fired: AtomicU64,
    plans: Mutex<Vec<Plan>>,
    hold: Mutex<Option<(IoKind, Arc<Gate>)>>,
}

#[derive(Debug, Default)]
struct Gate {
    /// Somebody has come, and: it is open.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.0 = true;
        self.changed.notify_all();
        // Opened by the drop of its `Held`.
        self.changed.wait_while(&mut state, |(_, open)| !*open);
    }
}

/// The next operation of a kind hangs until this is dropped.
#[derive(Debug)]
pub struct Held(Arc<Gate>);

impl Held {
    /// Waits until it is there. Whether it is.
    pub fn has_come(&self, until: Instant) -> bool {
        let mut state = self.0.state.lock();
        !self.0.changed.wait_while_until(&mut state, |(came, _)| !*came, until).timed_out()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state.lock().1 = true;
        self.0.changed.notify_all();
    }
}

#[derive(Debug)]
struct Plan {
    fault: Fault,
    seen: u64,
}

pub(crate) struct Failure {
    pub errno: Errno,
    pub torn: bool,
}

impl Faults {
    /// A registry that counts, and fails what is planned.
    pub fn armed() -> Faults {
        Faults(Some(Arc::default()))
    }

    /// Adds a failure. Nothing happens on a registry that is off.
    pub fn plan(&self, fault: Fault) {
        if let Some(state) = &self.0 {
            state.plans.lock().push(Plan { fault, seen: 0 });
        }
    }
    /// Only the next operation hangs; others go on beside it.
    pub fn hold(&self, kind: IoKind) -> Held {
        let gate: Arc<Gate> = Arc::default();
        if let Some(state) = &self.0 {
            *state.hold.lock() = Some((kind, gate.clone()));
        }
        Held(gate)
    }
    pub fn clear(&self) {
        if let Some(state) = &self.0 {
            state.plans.lock().clear();
        }
    }
    /// Operations of a kind so far, the failed ones too.
    pub fn count(&self, kind: IoKind) -> u64 {
        self.0.as_ref().map_or(0, |s| s.counts[kind as usize].load(Ordering::Relaxed))
    }
    pub fn total(&self) -> u64 {
        self.0.as_ref().map_or(0, |s| s.counts.iter().map(|c| c.load(Ordering::Relaxed)).sum())
    }
    /// Failures delivered so far.
    pub fn fired(&self) -> u64 {
        self.0.as_ref().map_or(0, |s| s.fired.load(Ordering::Relaxed))
    }

    pub(crate) fn check(&self, kind: IoKind) -> Result<(), Errno> {
        self.failure(kind).map_or(Ok(()), |f| Err(f.errno))
    }

    pub(crate) fn failure(&self, kind: IoKind) -> Option<Failure> {
        let state = self.0.as_ref()?;
        state.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        let held = state.hold.lock().take_if(|(held, _)| *held == kind);
        if let Some((_, gate)) = held {
            gate.pass();
        }
        let mut failure = None;
        for plan in state.plans.lock().iter_mut().filter(|p| p.fault.kind.is_none_or(|k| k == kind)) {
            plan.seen += 1;
            let now = match plan.fault.span {
                FaultSpan::Once => plan.seen == plan.fault.nth,
                FaultSpan::Onwards => plan.seen >= plan.fault.nth,
            };
            if now && failure.is_none() {
                failure = Some(Failure { errno: plan.fault.errno, torn: plan.fault.torn });
            }
        }
        if failure.is_some() {
            state.fired.fetch_add(1, Ordering::Relaxed);
        }
        failure
    }
}
