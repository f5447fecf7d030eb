//! The ends of journals on standbys, in the runs that have them: the machines of `cluster::tail`, and the shells around them.
//!
//! In these runs a server's commits go into its journal, and from there to the database some time later. An operation counts as done when its
//! record may be answered, or when the database has it, whichever is first. Rows of writers rule whose the slots are; a machine that is
//! lost for good leaves nothing but what its standby has.
//!
//! - [`journal`] the owner's side; [`copies`] the standby's; [`writers`] and [`writing`] the database's; [`truth`] what is answered and has to stay.
//!
//! The shells keep the rules of `serve::metadata::tail`: a commit and its operation's answer are one record, answers wait by where the journal
//! was when they were made, answers that came from another server are in a record before their slot is served.

mod copies;
mod disk;
mod effects;
mod journal;
mod truth;
mod writers;
mod writing;

use std::time::Duration;

use cluster::{tail::Terms, tenure};

pub use self::{
    disk::Disk,
    journal::{Inherited, Journal},
    truth::TailTruth,
    writers::Writers,
};

pub const TERMS: Terms = Terms {
    tenure: tenure::Terms {
        lease: Duration::from_millis(600),
        beat_every: Duration::from_millis(100),
        suspect_after: Duration::from_millis(600),
        drift_one_in: 20,
    },
    patience: Duration::from_millis(400),
    again: Duration::from_millis(150),
    pause: Duration::from_millis(250),
    window: 8,
    kept_max: 150,
};

/// Of a server, in the database.
pub const LEASE: Duration = Duration::from_millis(1000);
/// What is in the journal goes to the database so often.
const CARRY_EVERY: Duration = Duration::from_millis(400);
