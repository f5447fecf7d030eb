//! Linked near-line: a directory of the site's file system as the last tier, path for path. What both sides agreed on, what
//! each changed since, and what has to be done about it.
//!
//! Our namespace is the truth for what programs on the mount see. Of each inode we remember what the back end had when we last
//! looked or wrote ([`Seen`]) and where it has it ([`Place`]). Changes of theirs are found when somebody comes by
//! ([`reconcile`]); changes of ours go through a durable log ([`Log`]), in which only the difference of the two sides is kept.
//!
//! Invariants stand in the modules that keep them: I-LINK-1 to 3 in `reconcile`, I-LINK-4 to 8 in `log`.
//!
//! Refuses to know: files, paths, clocks, threads, which data are where. Times come in as arguments.
#![forbid(unsafe_code)]

mod back_end;
mod board;
mod conflict;
mod found;
mod log;
mod matching;
mod place;
mod reconcile;
mod record;
mod root;
mod seen;
mod sides;
mod step;
mod survey;
mod work;

pub use back_end::{Abilities, Attributes, BackEnd, Making, Over, Source, Version, Way};
pub use conflict::{Conflict, Why, beside};
pub use found::{Detail, Found, Xattr};
pub use log::{Clash, Entry, Lag, Log, Settings};
pub use place::{Place, is_on_the_way};
pub use reconcile::{Action, reconcile};
pub use record::LinkRecord;
pub use root::{KnownRoot, Reachable, RootId, Trust, trust};
pub use seen::{Change, Clock, Proof, Seen, compare, due};
pub use sides::{Changed, Listing, Ours, Standing};
pub use step::{Agreed, Attrs, Look, Staged, Step, Trouble, Verdict, judge};
pub use survey::{Names, Survey, Taken, Wanted};
pub use work::{Op, Work};
