//! Several metadata servers of one file system: who has which slots, and how they go from one to another.
//!
//! Who has the root's slot is on *duty*: it makes the cluster map and orders the hand-overs, one at a time. The others *follow*: they say
//! each second what they have, and are told the map. Slots are rows of the engine ([`SlotRights`]), which takes a batch of nobody but their owner.
//!
//! - I-OWNERS-1: a request is carried out by the owner of its home, inside the slot's gate; while a slot goes, requests for it are told to
//!   come later, and afterwards whose it is.
//! - I-OWNERS-2: with a slot goes what sessions have in it: references, openings, ranges of appends, answers that were not acknowledged. So an
//!   operation that is asked again elsewhere is not carried out twice, and no open file is lost.
//! - I-OWNERS-3: slots of a server that is silent are taken by its standby alone, and only if that has all that it answered
//!   ([`crate::metadata::tail`]).
//!   Who only keeps copies gives them away when there is another server again.
//! - I-OWNERS-4: what one operation needs of several slots is brought to the owner of its home, and goes back after a while.
//! - I-OWNERS-5: who takes slots without what sessions had in them has each session say that first, before anything of it there is carried out.

mod back;
mod bares;
mod circles;
mod duty;
mod follow;
mod following;
mod gates;
mod halves;
mod hand;
mod leave;
mod peers;
mod removing;
mod rights;
mod sending;
mod sharing;
mod standby;
mod standings;
mod start;
mod state;
mod states;
mod table;
mod tails;
mod turn;

pub(crate) use gates::Inside;
pub use rights::SlotRights;
pub(crate) use standby::Tails;
pub(crate) use standings::Other;
pub use start::{JoinError, Joining, Shared, join};
pub(crate) use table::Owners;
