//! The end of a metadata server's journal on its standby, and going on in a dead server's place: the shell of [`cluster::tail`].
//!
//! - I-STANDBY-1: a commit and what its operation was answered are one record, or the operation's name is in the record. So whoever goes on
//!   carries out nothing twice: he knows the answer, or that there was one.
//! - I-STANDBY-2: nothing is answered, and no data server told to cut or remove, before all that was committed and answered until then may be:
//!   so nobody has seen what is lost with this server.
//! - I-STANDBY-3: answers that came with a slot, or from a server in whose place this one goes on, are stored by its own standby before
//!   the slot is served.
//! - I-STANDBY-4: a session that was given up is given up by whoever goes on, before he serves a slot; what it had is nobody else's before the standby has
//!   stored that.
//!
//! [`forming`] makes records, [`keeper`] is the owner's side, with what it sends ([`messages`]) and what waits ([`waiting`]); [`copies`] is the
//! standby's, [`known`] the answers of others.

mod clock;
mod copies;
mod forming;
mod keeper;
mod known;
mod messages;
mod rows;
mod state;
mod waiting;

pub(crate) use copies::{Copies, Taking};
pub(crate) use forming::{carried_out, in_operation, into_outcome, of_outcome};
pub(crate) use keeper::Keeper;
pub(crate) use known::{ANSWERS, Known, said_given_up};
pub(crate) use messages::{Message, More};
pub use rows::{StandbyOptions, TailRows, TailTrouble, TailView};
pub(crate) use waiting::Unsettled;
