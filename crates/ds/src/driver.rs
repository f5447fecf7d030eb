//! Holds the tiering core: feeds it, and hands its effects to whoever carries them out.
//!
//! Lock order: an object's state, then the core. Nothing here calls back into objects while the core is locked.

use crate::line::Line;
use crossbeam_channel::{Receiver, Sender};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tier::{
    Admit, Effect, Input, MoveId, Need, Placement, Request, RequestError, RequestId, RequestReport, Settings,
    Tiering, Time,
};
use types::{Ino, TierId};

/// More than the core starts at once (its `parallel` settings), so that handing over never blocks.
const JOBS_MAX: usize = 4096;

/// One movement to carry out.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub id: MoveId,
    pub ino: Ino,
    pub work: Work,
    pub stop: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Move { from: TierId, to: TierId, keep_source: bool, most: u64 },
    Drop { tier: TierId, most: u64 },
}

type Outcome = Result<RequestReport, RequestError>;

pub(crate) struct Driver {
    core: Mutex<Tiering>,
    origin: Instant,
    /// `None`: there will be no more.
    jobs: Mutex<Option<Sender<Job>>>,
    running: Mutex<HashMap<MoveId, Arc<AtomicBool>>>,
    rooms: [Room; 3],
    outcomes: Mutex<HashMap<RequestId, Option<Outcome>>>,
    answered: Condvar,
    next_request: AtomicU64,
    /// What nobody waits for.
    pub(crate) line: Line,
}

/// Writers wait here for space in one tier.
#[derive(Default)]
struct Room {
    wakes: Mutex<u64>,
    bell: Condvar,
}

impl Driver {
    pub fn new(settings: Settings) -> (Driver, Receiver<Job>) {
        let (jobs, receiver) = crossbeam_channel::bounded(JOBS_MAX);
        let driver = Driver {
            core: Mutex::new(Tiering::new(settings)),
            origin: Instant::now(),
            jobs: Mutex::new(Some(jobs)),
            running: Mutex::default(),
            rooms: Default::default(),
            outcomes: Mutex::default(),
            answered: Condvar::new(),
            next_request: AtomicU64::new(1),
            line: Line::default(),
        };
        (driver, receiver)
    }

    pub fn now(&self) -> Time {
        self.origin.elapsed()
    }

    /// Runs `f` on the core, then hands over what it decided.
    pub fn with<R>(&self, f: impl FnOnce(&mut Tiering, Time) -> R) -> R {
        let mut core = self.core.lock();
        let result = f(&mut core, self.now());
        let mut effects = Vec::new();
        while let Some(effect) = core.poll_effect() {
            effects.push(effect);
        }
        drop(core);
        for effect in effects {
            self.hand_over(effect);
        }
        result
    }

    pub fn tell(&self, input: Input) {
        self.with(|core, now| core.handle(now, input));
    }

    pub fn place(&self, need: Need) -> Placement {
        self.with(|core, now| core.place(now, need))
    }

    pub fn admit(&self, tier: TierId, need: Need) -> Admit {
        self.with(|core, now| core.admit(now, tier, need))
    }

    /// Waits until the core says that the tier may have room again, and no longer than `at_most`.
    pub fn wait_for_room(&self, tier: TierId, at_most: Duration) {
        let room = &self.rooms[tier.index()];
        let mut wakes = room.wakes.lock();
        let before = *wakes;
        room.bell.wait_while_for(&mut wakes, |w| *w == before, at_most.max(Duration::from_millis(1)));
    }

    /// Asks the core and waits for its answer.
    pub fn request(&self, request: Request, deadline: Option<Duration>) -> Outcome {
        self.request_while(request, deadline, &|| true)
    }

    /// The same, given up soon after `wanted` is no longer true.
    pub fn request_while(
        &self,
        request: Request,
        deadline: Option<Duration>,
        wanted: &dyn Fn() -> bool,
    ) -> Outcome {
        let id = self.request_id();
        self.outcomes.lock().insert(id, None);
        self.tell(Input::Request { id, request });
        let begun = Instant::now();
        let mut outcomes = self.outcomes.lock();
        loop {
            if let Some(Some(_)) = outcomes.get(&id) {
                return outcomes.remove(&id).flatten().unwrap_or(Err(RequestError::Cancelled));
            }
            self.answered.wait_for(&mut outcomes, Duration::from_millis(500));
            let over = deadline.is_some_and(|d| begun.elapsed() >= d) || !wanted();
            if over && outcomes.get(&id) == Some(&None) {
                outcomes.remove(&id);
                drop(outcomes);
                self.tell(Input::RequestCancelled { id });
                return Err(RequestError::Cancelled);
            }
        }
    }

    pub fn request_id(&self) -> RequestId {
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// The movement is over; `end` says how.
    pub fn ended(&self, id: MoveId, end: Input) {
        self.running.lock().remove(&id);
        self.tell(end);
    }

    /// Calls the core at its deadline; returns how long to sleep until the next look.
    pub fn tick(&self) -> Duration {
        const LOOK: Duration = Duration::from_millis(100);
        self.with(|core, now| {
            while let Some((at, _why)) = core.next_deadline() {
                if at > now {
                    return LOOK.min(at - now);
                }
                core.handle_deadline(now);
                // A deadline that stays in the past would never let go.
                if core.next_deadline().is_some_and(|(next, _)| next <= at) {
                    return LOOK;
                }
            }
            LOOK
        })
    }

    /// Who waits for a movement to carry out waits no longer.
    pub fn end(&self) {
        *self.jobs.lock() = None;
        self.line.end();
    }

    fn hand_over(&self, effect: Effect) {
        match effect {
            Effect::StartMove { id, ino, from, to, kind, keep_source, most } => {
                tracing::debug!(%ino, %from, %to, ?kind, "moving");
                self.start(id, ino, Work::Move { from, to, keep_source, most });
            }
            Effect::DropCopy { id, ino, tier, most } => self.start(id, ino, Work::Drop { tier, most }),
            Effect::CancelMove { id } => {
                if let Some(stop) = self.running.lock().get(&id) {
                    stop.store(true, Ordering::Release);
                }
            }
            Effect::WakeWriters { tier } => {
                let room = &self.rooms[tier.index()];
                *room.wakes.lock() += 1;
                room.bell.notify_all();
            }
            Effect::RequestDone { id, result } => {
                if self.line.ended(id, &result) {
                    return;
                }
                if let Some(slot) = self.outcomes.lock().get_mut(&id) {
                    *slot = Some(result);
                }
                self.answered.notify_all();
            }
        }
    }

    fn start(&self, id: MoveId, ino: Ino, work: Work) {
        let stop = Arc::new(AtomicBool::new(false));
        self.running.lock().insert(id, stop.clone());
        let sent =
            self.jobs.lock().as_ref().is_some_and(|jobs| jobs.try_send(Job { id, ino, work, stop }).is_ok());
        if !sent {
            // Only while shutting down, when the movers are gone.
            self.running.lock().remove(&id);
        }
    }
}
