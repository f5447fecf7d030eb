//! The data service: objects of a node for the clients of a cluster.
//!
//! An object is the stripe of a file, named by the file's inode number. Each has a small record of the service's own beside its map,
//! so that nobody else has to be asked what it is after a restart.
//!
//! - I-DATA-1: before the first byte of an object changes its record says that it is live; the first time in the same commit as its
//!   map. A live object's size is what its bytes say, a settled one's what its record says.
//! - I-DATA-2: an object that is used is in the table, with one state, and settled before it leaves it.
//!
//! - I-DATA-3: an object that went to another data server is never changed here again, and whoever asks for it is told so (`cluster::moving`).
//! - I-DATA-4: a change that came over a connection in whose place there is a newer one does not begin; of one that has begun nothing is left to
//!   do when a change of the same object that came over the newer one begins.
//!
//! It believes its askers no further than its own bounds, and knows neither names nor sessions.

mod admission;
mod arriving;
mod attempt;
mod bytes;
mod copying;
mod dispatch;
mod first;
mod followed;
mod held_up;
mod here;
mod leaving;
mod lending;
mod lent;
mod lent_record;
mod life;
mod mark;
mod marks;
mod objects;
mod pressed;
mod pressure;
mod record;
mod removed;
mod replica;
mod reports;
mod service;
mod source;
mod space;
mod table;
mod under_way;
mod usage;
mod vouched;
mod waiting;

pub use first::{FirstRecords, first_record};
pub use life::forget_life;
pub use record::Record;
pub use service::{DataOptions, DataService};
