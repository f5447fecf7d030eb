//! The tail of a metadata server's journal, kept by its standby, so that another server can go on when it dies.
//!
//! What a server answers is in its journal, and in the engine (the database) only some seconds later. So each *record* (a batch of the
//! journal, or the answer of an operation) is sent to the standby before the operation is answered; what the engine has is forgotten
//! there. [`owner`] is the server's side, [`standby`] the other, [`row`] what the database says about both, [`choice`] who is whose standby.
//!
//! - I-TAIL-1: while the owner's row says that the copy is complete, or may say so, nothing is answered that the standby has not stored
//!   in that copy. So whoever may take over has all that was answered.
//! - I-TAIL-2: an owner goes on without its standby only when the row says, durably, that the copy is not complete.
//! - I-TAIL-3: a copy takes no more records once its standby has begun to take over, nor after the standby was started again. So what was
//!   stored after the look at the copy was never answered.
//! - I-TAIL-4: while the copy may be complete the owner answers nothing, reads neither, later than the standby let it: the standby does
//!   not take over before what it granted has ended, by the slower clock.
//! - I-TAIL-5: what goes into the engine while the copy may be complete was stored by the standby first. So it knows the operations of
//!   all that it finds there.
//!
//! Take-over itself is one transaction: the row is complete and names the asker and its copy, the owner's lease has ended, the slots become the
//! asker's under new epochs, the owner's session is ended, the records that the engine has not are applied.
//!
//! Event machines: [`owner::Owner::handle`] and `handle_deadline`, then `poll_effect` until there is none. They know records by their numbers
//! alone, which follow each other for as long as an owner's journal exists; bytes, files and connections are the shell's.

pub mod choice;
pub mod owner;
pub mod row;
pub mod standby;

use std::time::Duration;

use crate::tenure;

/// Both sides have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// `lease`: how long a standby's word lets an owner answer. The owner says so often that it is there.
    pub tenure: tenure::Terms,
    /// A standby that confirms nothing for so long, of what it was sent, is gone on without.
    pub patience: Duration,
    /// A write of the row, or a look at it, is tried again after so long.
    pub again: Duration,
    /// Between the end of a copy and the beginning of the next.
    pub pause: Duration,
    /// Records that are sent and not confirmed.
    pub window: u64,
    /// Records that the owner keeps for its standby; more, and the copy ends.
    pub kept_max: u64,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            tenure: tenure::Terms {
                lease: Duration::from_secs(5),
                beat_every: Duration::from_millis(500),
                suspect_after: Duration::from_secs(5),
                drift_one_in: 100,
            },
            patience: Duration::from_secs(2),
            again: Duration::from_secs(1),
            pause: Duration::from_secs(3),
            window: 4096,
            kept_max: 1 << 16,
        }
    }
}
