//! Trouble on demand: a call that fails, or that hangs until it is let go. For tests, and for who wants to see what a mount
//! does when its back end is in trouble. Costs one branch when off.

use parking_lot::{Condvar, Mutex};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use types::Errno;

use crate::call::Call;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultSpan {
    /// Only the n-th.
    Once,
    /// The n-th and all that follow.
    Onwards,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Before anything was done.
    Fail(Errno),
    /// Until [`Faults::release`]; then the call goes on as if nothing had been.
    Hang,
}

/// One planned trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// `None`: any.
    pub call: Option<Call>,
    /// Which one it meets, counted from 1 from the moment of planning.
    pub nth: u64,
    pub span: FaultSpan,
    pub effect: Effect,
}

/// Off by default and then free; clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Faults(Option<Arc<State>>);

#[derive(Debug)]
struct State {
    counts: [AtomicU64; Call::COUNT],
    plans: Mutex<Plans>,
    /// The number of calls that hang, or the era, is another.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Plans {
    plans: Vec<Plan>,
    hanging: u64,
    /// One more with each release.
    era: u64,
}

#[derive(Debug)]
struct Plan {
    fault: Fault,
    seen: u64,
}

impl Faults {
    /// A registry that counts, and does what is planned.
    pub fn armed() -> Faults {
        let counts = std::array::from_fn(|_| AtomicU64::new(0));
        Faults(Some(Arc::new(State { counts, plans: Mutex::default(), changed: Condvar::new() })))
    }

    /// Adds a trouble. Nothing happens on a registry that is off.
    pub fn plan(&self, fault: Fault) {
        if let Some(state) = &self.0 {
            state.plans.lock().plans.push(Plan { fault, seen: 0 });
        }
    }

    /// Lets go what hangs, and forgets what is planned.
    pub fn release(&self) {
        if let Some(state) = &self.0 {
            let mut plans = state.plans.lock();
            plans.plans.clear();
            plans.era += 1;
            state.changed.notify_all();
        }
    }

    /// Calls of a kind so far, the failed ones too.
    pub fn count(&self, call: Call) -> u64 {
        self.0.as_ref().map_or(0, |s| s.counts[call as usize].load(Ordering::Relaxed))
    }

    /// Waits until at least so many calls hang, and says whether they do.
    pub fn wait_for_hanging(&self, calls: u64, at_most: Duration) -> bool {
        let Some(state) = &self.0 else { return false };
        let until = Instant::now() + at_most;
        let mut plans = state.plans.lock();
        while plans.hanging < calls {
            if state.changed.wait_until(&mut plans, until).timed_out() {
                return plans.hanging >= calls;
            }
        }
        true
    }

    pub(crate) fn check(&self, call: Call) -> Result<(), Errno> {
        let Some(state) = &self.0 else { return Ok(()) };
        state.counts[call as usize].fetch_add(1, Ordering::Relaxed);
        let mut plans = state.plans.lock();
        match plans.effect_on(call) {
            None => Ok(()),
            Some(Effect::Fail(errno)) => Err(errno),
            Some(Effect::Hang) => {
                let era = plans.era;
                plans.hanging += 1;
                state.changed.notify_all();
                state.changed.wait_while(&mut plans, |plans| plans.era == era);
                plans.hanging -= 1;
                Ok(())
            }
        }
    }
}

impl Plans {
    /// That of the first plan which it meets; all count it.
    fn effect_on(&mut self, call: Call) -> Option<Effect> {
        let mut effect = None;
        for plan in self.plans.iter_mut().filter(|p| p.fault.call.is_none_or(|c| c == call)) {
            plan.seen += 1;
            let now = match plan.fault.span {
                FaultSpan::Once => plan.seen == plan.fault.nth,
                FaultSpan::Onwards => plan.seen >= plan.fault.nth,
            };
            if now {
                effect = effect.or(Some(plan.fault.effect));
            }
        }
        effect
    }
}
