//! Decides what comes up before it is read (the paper's section 7, active upward pre-migration): from a list that a program
//! gives, and from what earlier runs of a job have read.
//!
//! A [`Run`] is an event machine over an ordered list of groups of files: the shell tells it what is opened and closed, how
//! much room there is and which promotions have ended ([`Run::handle`]), takes [`Run::poll_effect`] until it is empty, and
//! calls [`Run::handle_deadline`] when [`Run::next_deadline`] comes. A [`History`] is what is remembered of a job; a
//! [`Shadow`] measures on a run of it what its plan would have been worth.
//!
//! Invariants (checked by `tests/run.rs`):
//! - I-PLAN-1: a group comes up no sooner than a file of the group before it was opened; the first one at once.
//! - I-PLAN-2: what is under way stays within its bounds of files and bytes, and with all of it the room that was told is not
//!   used up: the tier's own movement out (C_n-m) is left alone.
//! - I-PLAN-3: only a file is given up for room that was opened and closed, that was not in memory before the run, and that
//!   the list does not want again in what may come up.
//! - I-PLAN-4: a run that has ended asks for nothing any more; a wrong list ends its run.
//! - I-PLAN-5: a plan from history acts only with [`History::RUNS_MIN`] runs behind it and a hit rate that reaches the
//!   threshold.
//!
//! Refuses to know: what a tier, a process, a path or a user is. "Memory" is whatever the shell brings files up to.
#![forbid(unsafe_code)]

mod history;
mod name;
mod order;
mod record;
mod run;
mod shadow;

pub use history::{Access, History, Known, Score, Verdict};
pub use name::job_name;
pub use order::{Judge, Order, Wrongness};
pub use record::Damaged;
pub use run::{Closing, Effect, End, Input, Item, Join, Promotion, Report, Run, Settings, Skip, Time};
pub use shadow::Shadow;
