//! One call on its way to a thread and back, and what happens when nobody waits for it any more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::{marks::Mark, tally::Tally};

/// What a pool's threads run.
pub(crate) trait Job: Send + Sync {
    fn run(&self);
    /// Not when it was given up while it stood in line.
    fn is_wanted(&self) -> bool;
}

/// Why there is no answer.
pub(crate) enum Late<I> {
    /// It stood in line all the time: nothing was done.
    InLine(I),
    /// It hangs, or hung: it may have been done, or may be yet.
    Hangs,
}

pub(crate) struct Ticket<I, T> {
    stage: Mutex<Stage<I, T>>,
    answered: Condvar,
    tally: Arc<Tally>,
    mark: Option<Mark>,
}

type Work<I, T> = Box<dyn FnOnce(I) -> T + Send>;

enum Stage<I, T> {
    InLine(I, Work<I, T>),
    Runs,
    Answered(T),
    /// Nobody waits.
    Left {
        hangs: bool,
    },
}

impl<I, T> Ticket<I, T> {
    pub(crate) fn new(input: I, work: Work<I, T>, tally: Arc<Tally>, mark: Option<Mark>) -> Ticket<I, T> {
        Ticket { stage: Mutex::new(Stage::InLine(input, work)), answered: Condvar::new(), tally, mark }
    }

    /// Until there is an answer, at the longest until `until`.
    pub(crate) fn wait(&self, until: Instant, deadline: Duration) -> Result<T, Late<I>> {
        let mut stage = self.stage.lock();
        while !matches!(*stage, Stage::Answered(_)) {
            if self.answered.wait_until(&mut stage, until).timed_out() {
                break;
            }
        }
        match std::mem::replace(&mut *stage, Stage::Left { hangs: false }) {
            Stage::Answered(answer) => Ok(answer),
            Stage::InLine(input, _work) => Err(Late::InLine(input)),
            Stage::Runs | Stage::Left { .. } => {
                *stage = Stage::Left { hangs: true };
                self.tally.hangs();
                self.tally.took(deadline);
                if let Some(mark) = &self.mark {
                    mark.put();
                }
                Err(Late::Hangs)
            }
        }
    }

    /// The answer is not wanted any more; the call ends by itself.
    pub(crate) fn leave(&self) {
        *self.stage.lock() = Stage::Left { hangs: false };
    }
}

impl<I: Send, T: Send> Job for Ticket<I, T> {
    fn run(&self) {
        let mut stage = self.stage.lock();
        let (input, work) = match std::mem::replace(&mut *stage, Stage::Runs) {
            Stage::InLine(input, work) => (input, work),
            other @ (Stage::Runs | Stage::Answered(_) | Stage::Left { .. }) => {
                *stage = other;
                return;
            }
        };
        drop(stage);
        let began = Instant::now();
        let answer = work(input);
        self.tally.took(began.elapsed());
        let mut stage = self.stage.lock();
        if let Stage::Left { hangs } = *stage {
            if hangs {
                self.tally.came_back();
                if let Some(mark) = &self.mark {
                    mark.lift();
                }
            }
            // Dropping it may take long again.
            drop(stage);
            drop(answer);
            return;
        }
        *stage = Stage::Answered(answer);
        self.answered.notify_one();
    }

    fn is_wanted(&self) -> bool {
        !matches!(*self.stage.lock(), Stage::Left { .. })
    }
}
