//! Staging: trees and files copied onto ONFS and off it, by several threads, so that it can be gone on with.
//!
//! - I-STAGE-1: a name appears at the destination only when what it names is whole: with its content, its attributes, and,
//!   where that is asked for, durable and read back.
//! - I-STAGE-2: what an earlier run left is used only after it was compared: a piece with its recorded checksum, a file with
//!   the size and time of its source, and with its checksum too if the machine may have lost power since.
//! - I-STAGE-3: what was not copied is in the report. There is no other way to a report that says `complete`.
//!
//! What decides ([`decide`], [`pieces`], [`known`], [`record`], [`pairs`], [`manifest`], [`sum`]) is pure. It refuses to know ONFS: any two
//! directories will do ([decision 0012](../../../docs/decisions/0012-staging.md)).

mod attributes;
mod buffer;
mod copying;
mod decide;
mod ending;
mod extent;
mod facts;
mod job;
mod journal;
mod known;
mod large;
pub mod manifest;
pub mod pairs;
mod pieces;
mod queue;
mod record;
mod report;
mod run;
mod sum;
mod trouble;
mod walk;
mod worker;

pub use job::{Ended, Options, PREFIX, PREFIX_LINKED};
pub use report::StageReport;
pub use run::{Watch, journal_name, journal_of, run};
