//! What a mount is asked for, and which transport it ends up with.

use std::{fmt, path::PathBuf, thread};

use crate::{buffer::PAGE, flags::Capabilities, queue::possible_cpus};

/// Which transport is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TransportChoice {
    /// io_uring where it can be had, else /dev/fuse.
    #[default]
    Auto,
    /// io_uring or no mount.
    IoUring,
    Device,
}

/// Which transport serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportKind {
    IoUring,
    Device,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TransportKind::IoUring => "io_uring",
            TransportKind::Device => "/dev/fuse",
        })
    }
}

/// Which transport serves, and when it is not io_uring, why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TransportReport {
    pub kind: TransportKind,
    pub reason: Option<String>,
}

#[derive(Clone, Debug)]
pub struct MountOptions {
    pub mountpoint: PathBuf,
    /// What `mount` and `df` show as the source.
    pub fsname: String,
    /// The file system's type is `fuse.<subtype>`.
    pub subtype: String,
    pub allow_other: bool,
    pub default_permissions: bool,
    pub read_only: bool,
    /// As after `mount -o`: `suid`, `dev`, `noexec`, `noatime`, ... The default is `nosuid,nodev`.
    pub options: Vec<String>,
    pub transport: TransportChoice,
    /// Requests under way at once per CPU with io_uring, each with a buffer of `max_transfer`. 1 to 1024.
    pub queue_depth: u16,
    /// Threads with /dev/fuse; 0: as many as there are CPUs, from 2 to 8.
    pub threads: usize,
    /// Bytes that one READ or WRITE carries at most; 4 KiB to 1 MiB (Linux allows more after a sysctl).
    pub max_transfer: u32,
    /// The connection is to outlive the process: /dev/fuse with one descriptor, which another process can go on with.
    pub guarded: bool,
    /// So many more buffers of /dev/fuse are kept than its threads use: for data that the file system holds beyond its answers
    /// ([`Call::take_data`](crate::Call::take_data)).
    pub held_buffers: usize,
    /// What the kernel offers and is not used, as if it did not offer it. For tests.
    pub withhold: Capabilities,
}

impl MountOptions {
    pub fn new(mountpoint: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            mountpoint: mountpoint.into(),
            fsname: "onfs".to_owned(),
            subtype: "onfs".to_owned(),
            allow_other: false,
            default_permissions: false,
            read_only: false,
            options: Vec::new(),
            transport: TransportChoice::Auto,
            queue_depth: 8,
            threads: 0,
            max_transfer: 1 << 20,
            guarded: false,
            held_buffers: 0,
            withhold: Capabilities::empty(),
        }
    }

    /// Address space that the buffers take with io_uring: what to count in a memory budget. Pages that no request
    /// has used yet are not resident.
    pub fn buffer_bytes(&self) -> u64 {
        let entry = u64::from(self.max_transfer) + PAGE as u64;
        u64::from(possible_cpus()) * u64::from(self.depth()) * entry
    }

    /// Has fewer buffers, then smaller ones, until they take `bytes` at most, or the least with which a mount works well.
    pub fn fit_buffers(&mut self, bytes: u64) {
        const DEPTH_MIN: u16 = 2;
        const TRANSFER_MIN: u32 = 128 << 10;
        while self.buffer_bytes() > bytes {
            if self.queue_depth > DEPTH_MIN {
                self.queue_depth -= 1;
            } else if self.max_transfer > TRANSFER_MIN {
                self.max_transfer /= 2;
            } else {
                return;
            }
        }
    }

    pub(crate) fn depth(&self) -> u16 {
        self.queue_depth.clamp(1, 1024)
    }

    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8)),
            n => n,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the buffers keep to a bound where they can, and the least is left otherwise. Method: bounds around both.
    #[test]
    fn buffers_fit_into_what_is_given() {
        let whole = MountOptions::new("/").buffer_bytes();
        let fitted = |bytes| {
            let mut options = MountOptions::new("/");
            options.fit_buffers(bytes);
            options
        };
        assert_eq!(fitted(whole).buffer_bytes(), whole);
        let half = fitted(whole / 2);
        assert_eq!((half.queue_depth, half.max_transfer), (4, 1 << 20));
        let tenth = fitted(whole / 10);
        assert!(tenth.buffer_bytes() <= whole / 10 && tenth.max_transfer < 1 << 20);
        assert_eq!((fitted(0).queue_depth, fitted(0).max_transfer), (2, 128 << 10));
    }
}
