//! FUSE transport: requests of the kernel in, answers out, over io_uring or /dev/fuse.
//!
//! A [`Filesystem`] gets each request as a [`Call`] and answers it, there or on another thread, without knowing
//! which transport runs. [`Session::mount`] mounts, picks the transport and serves until the file system is
//! unmounted by whomever.
//!
//! Invariants:
//! - Every request gets one answer: a call that is dropped answers `EIO`.
//! - No request's bytes can make the decoder panic or read outside of them.
//! - The memory of a ring entry belongs to its call until that is answered, and to the kernel otherwise.
//! - `destroy` is called once, when the last thread of the session has ended.
//!
//! It knows nothing of inodes, permissions or caching: node ids and file handles are numbers to it.

use types::Errno;

mod abi;
mod buffer;
mod call;
mod connection;
mod core;
mod data;
mod decode;
mod device;
mod dir;
mod flags;
mod init;
mod mount;
mod operation;
mod options;
mod queue;
mod record;
mod reply;
mod resume;
mod ring;
mod session;
mod under_way;

pub use call::Call;
pub use data::Data;
pub use device::{Backing, Notifier};
pub use dir::{DirBuffer, DirEntryOut};
pub use flags::{Capabilities, OpenFlags};
pub use init::{InitConfig, KernelInfo};
pub use mount::{MountError, UnmountError};
pub use operation::{
    CopyArgs, CreateArgs, ForgetList, Forgotten, Header, IoctlArgs, Lock, LockArgs, Operation, ReadArgs,
    ReleaseArgs, SetattrArgs, SetxattrArgs, TimeOrNow, WriteArgs,
};
pub use options::{MountOptions, TransportChoice, TransportKind, TransportReport};
pub use reply::{AttrOut, BackingId, EntryOut, OpenOut, StatfsOut};
pub use session::Session;

/// The node id of a file system's root.
pub const ROOT_NODE: u64 = abi::ROOT_ID;

/// What a [`Header`]'s opcode is called, for people.
pub const fn operation_name(opcode: u32) -> &'static str {
    abi::op::name(opcode)
}

/// A file system, as the kernel's requests see it.
pub trait Filesystem: Send + Sync + 'static {
    /// Before the first request: what is below, and what we want of it. An error ends the mount.
    fn init(&self, kernel: &KernelInfo, config: &mut InitConfig) -> Result<(), Errno>;

    /// After `init`, before the first request, where an earlier process served: takes over what the kernel believes.
    fn resume(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// One request, on a thread of the transport. What can be answered without waiting is best answered here;
    /// anything else is moved to another thread, since the requests behind it on this CPU wait meanwhile (and
    /// answers given on this thread leave it only when `dispatch` has returned).
    fn dispatch(&self, call: Call);

    /// After the last request; calls that other threads still hold have no caller any more.
    fn destroy(&self) {}
}
