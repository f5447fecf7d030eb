//! What clients of a cluster may keep of its files, and who of all programs has which lock (DESIGN section 6). Sessions, locks
//! and leases are called by the metadata service; [`client`] is for clients that keep what they write, and is called by the simulation alone ([0029](../../../../docs/decisions/0029-bytes-at-clients.md)).
//!
//! - [`rights`] what can be leased, and which leases and operations go together; [`message`] what both sides say.
//! - [`server`] who has what, recalls, sessions and how they come, within its [`limits`]; its [`table`] of leases, and how slots are [`vacating`]. [`client`] what may be used until when.
//! - [`locks`] of byte ranges and files, over the [`ranges`] of one inode; how they are `spoken` of. [`circles`] of processes that wait for each other
//!   over several servers.
//!
//! An operation that has to see or change what is true *claims* its keys: what other clients keep in its way is recalled, and until
//! it ends nothing of the kind is granted. An opening of a file is an operation that lasts. So openings choose the mode: while no
//! node has a file open for writing all keep its pages; one node alone that has it open keeps what it writes, too; while one has it
//! open for writing and others have it open in any way, what they read and write goes to the data servers each time.
//!
//! - I-CLEASE-1: at no true time two clients use rights that conflict, nor a right that a running operation of another client
//!   excludes, as long as clocks gain or lose no more than stated and what is fenced cannot write.
//! - I-CLEASE-2: an operation begins when what is in its way is given back, or else after the recall's deadline and the term and the
//!   fence of who did not answer it. Others can ask the same holder for more meanwhile, and the deadline with it: twice at the most.
//! - I-CLEASE-3: recalls come from beginning operations and from a table that is full, never from somebody's wish for a lease: as long
//!   as the same files are open nothing is recalled, and while more than one node has a file open for writing nobody keeps anything of it.
//! - I-CLEASE-4: what a session has is free for others only after its last term has ended by our clock, drift included, and after
//!   the shell said that it is fenced. From the verdict on it gets no term. A server that begins grants nothing before all that earlier
//!   lives granted has ended or was claimed again.
//! - I-CLEASE-5, I-CLEASE-6: of [`locks`].
//! - I-CLEASE-7: a client uses nothing after its term has ended by its clock, and nothing that it was asked to give back and gave back;
//!   a grant that a recall overtook is not used.
//! - I-CIRCLE-1, 2: of [`circles`].
//! - I-CLEASE-8: tables are bounded. What does not fit is not granted, and the oldest leases are recalled before that.

pub mod circles;
pub mod client;
mod coming;
pub mod limits;
pub mod locks;
pub mod message;
mod owner;
pub mod ranges;
pub mod rights;
pub mod server;
mod spoken;
pub mod table;
pub mod vacating;
