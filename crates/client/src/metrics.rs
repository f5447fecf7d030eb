//! Counters of the client role: requests and errors per operation, bytes, waits.
//!
//! Invariants: plain relaxed atomics, so that counting costs nanoseconds; labels come from the closed set
//! [`Op`], never from paths or ids.

use std::sync::atomic::{AtomicU64, Ordering};

use types::Errno;

macro_rules! ops {
    ($($op:ident = $name:literal,)*) => {
        /// The kinds of requests that are told apart in counters and logs.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Op { $($op,)* }

        impl Op {
            pub const ALL: &'static [Op] = &[$(Op::$op,)*];
            pub const fn name(self) -> &'static str {
                match self { $(Op::$op => $name,)* }
            }
        }
    };
}

ops! {
    Lookup = "lookup",
    Forget = "forget",
    Getattr = "getattr",
    Setattr = "setattr",
    Readlink = "readlink",
    Symlink = "symlink",
    Mknod = "mknod",
    Mkdir = "mkdir",
    Unlink = "unlink",
    Rmdir = "rmdir",
    Rename = "rename",
    Link = "link",
    Create = "create",
    Tmpfile = "tmpfile",
    Open = "open",
    Read = "read",
    Write = "write",
    Flush = "flush",
    Fsync = "fsync",
    Release = "release",
    Fallocate = "fallocate",
    Lseek = "lseek",
    CopyFileRange = "copy_file_range",
    Opendir = "opendir",
    Readdir = "readdir",
    Readdirplus = "readdirplus",
    Releasedir = "releasedir",
    Fsyncdir = "fsyncdir",
    Syncfs = "syncfs",
    Getxattr = "getxattr",
    Setxattr = "setxattr",
    Listxattr = "listxattr",
    Removexattr = "removexattr",
    Statfs = "statfs",
    Other = "other",
}

const OPS: usize = Op::ALL.len();

pub(crate) struct Metrics {
    requests: [AtomicU64; OPS],
    errors: [AtomicU64; OPS],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    invalidations: AtomicU64,
    purged: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            requests: std::array::from_fn(|_| AtomicU64::new(0)),
            errors: std::array::from_fn(|_| AtomicU64::new(0)),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            invalidations: AtomicU64::new(0),
            purged: AtomicU64::new(0),
        }
    }
    pub(crate) fn request(&self, op: Op) {
        self.requests[op as usize].fetch_add(1, Ordering::Relaxed);
    }
    /// Counts errors that say something is wrong or refused; that a name is not there is an answer.
    pub(crate) fn error(&self, op: Op, error: Errno) {
        if error != Errno::ENOENT && error != Errno::ENODATA {
            self.errors[op as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
    pub(crate) fn read(&self, bytes: usize) {
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    pub(crate) fn written(&self, bytes: usize) {
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    pub(crate) fn invalidated(&self) {
        self.invalidations.fetch_add(1, Ordering::Relaxed);
    }
    pub(crate) fn purged(&self, inodes: usize) {
        self.purged.fetch_add(inodes as u64, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> ClientStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientStats {
            operations: Op::ALL
                .iter()
                .map(|op| OpStats {
                    name: op.name(),
                    requests: load(&self.requests[*op as usize]),
                    errors: load(&self.errors[*op as usize]),
                })
                .collect(),
            read_bytes: load(&self.bytes_read),
            written_bytes: load(&self.bytes_written),
            invalidations: load(&self.invalidations),
            purged_inodes: load(&self.purged),
            ..ClientStats::default()
        }
    }
}

/// Requests of one kind since the mount.
#[derive(Clone, Debug, Default)]
pub struct OpStats {
    pub name: &'static str,
    pub requests: u64,
    /// Answers with an error other than "not there".
    pub errors: u64,
}

/// What the client has done since the mount, and what it holds now. Passthrough reads and writes are the
/// kernel's own and not in the byte counts.
#[derive(Clone, Debug, Default)]
pub struct ClientStats {
    pub operations: Vec<OpStats>,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub invalidations: u64,
    pub purged_inodes: u64,
    /// Requests that were given to a worker because they had to wait.
    pub deferred: u64,
    /// Those of them that found the queue full and ran on the transport's thread.
    pub run_inline: u64,
    /// Requests, deferred or not, that took longer than the deadline.
    pub overdue: u64,
    pub open_files: u64,
    pub open_inodes: u64,
    pub passthrough_inodes: u64,
    /// Inodes of which the age of the kernel's pages is kept.
    pub remembered_inodes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each operation has its own counter and name. Method: count one of each and compare.
    #[test]
    fn operations_are_counted_apart() {
        let metrics = Metrics::new();
        for op in Op::ALL {
            metrics.request(*op);
        }
        metrics.error(Op::Write, Errno::ENOSPC);
        metrics.error(Op::Lookup, Errno::ENOENT);
        let stats = metrics.snapshot();
        assert!(stats.operations.iter().all(|op| op.requests == 1));
        assert_eq!(stats.operations.iter().map(|op| op.errors).sum::<u64>(), 1);
        let mut names: Vec<_> = stats.operations.iter().map(|op| op.name).collect();
        names.dedup();
        assert_eq!(names.len(), OPS);
    }
}
