//! The /dev/fuse descriptor: reading requests, writing answers and notifications, and its ioctls.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    sync::Arc,
    time::{Duration, Instant},
};

use types::Errno;

use crate::{abi, reply::BackingId};

pub(crate) const DEVICE: &std::ffi::CStr = c"/dev/fuse";

/// Of an answer's data.
pub(crate) const PIECES_MAX: usize = 7;

pub(crate) struct Device {
    fd: OwnedFd,
}

impl Device {
    pub(crate) fn open() -> io::Result<Device> {
        // SAFETY: a constant path.
        let fd = unsafe { libc::open(DEVICE.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just opened, owned by nobody else.
        Ok(Device { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Device {
        Device { fd }
    }

    /// Another descriptor of the same connection, with a queue of its own for requests under way.
    pub(crate) fn clone_channel(&self) -> io::Result<Device> {
        let other = Device::open()?;
        let main: u32 = self.fd.as_raw_fd().cast_unsigned();
        // SAFETY: the ioctl reads one u32, which lives until it returns.
        let done = unsafe { libc::ioctl(other.raw(), abi::IOC_CLONE, &raw const main) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(other) }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Has the kernel send again what was read and not answered, before all that waits.
    pub(crate) fn resend(&self) -> io::Result<()> {
        self.answer(0, abi::NOTIFY_RESEND, &[])
    }

    /// See [`Notifier::alone`].
    fn alone(&self) -> io::Result<()> {
        let own = self.raw().cast_unsigned();
        // SAFETY: no pointers; only the table of descriptors of the calling thread changes, which from then on is its own.
        let done = unsafe {
            let mut done = libc::unshare(libc::CLONE_FILES) == 0;
            done = done && (own == 0 || libc::close_range(0, own - 1, 0) == 0);
            done && libc::close_range(own + 1, u32::MAX, 0) == 0
        };
        if done { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// One whole request.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `buf.len()` bytes into a buffer that we have exclusively.
        let n = unsafe { libc::read(self.raw(), buf.as_mut_ptr().cast(), buf.len()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Waits until there is something to read.
    pub(crate) fn wait_readable(&self, patience: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            let left_ms = deadline.saturating_duration_since(Instant::now()).as_millis();
            let mut poll = libc::pollfd { fd: self.raw(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd, alive until poll returns.
            let n = unsafe { libc::poll(&raw mut poll, 1, i32::try_from(left_ms).unwrap_or(i32::MAX)) };
            if n >= 0 {
                return Ok(n > 0);
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(error);
            }
        }
    }

    /// False when the kernel has ended the connection.
    pub(crate) fn is_connected(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.raw(), events: 0, revents: 0 };
        // SAFETY: one pollfd, alive until poll returns.
        let n = unsafe { libc::poll(&raw mut poll, 1, 0) };
        n <= 0 || poll.revents & libc::POLLERR == 0
    }

    /// Writes one answer: header and then data in at most [`PIECES_MAX`] pieces, which the kernel takes whole or not at all.
    pub(crate) fn answer(&self, unique: u64, error: i32, data: &[&[u8]]) -> io::Result<()> {
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 1 + PIECES_MAX];
        let bytes: usize = data.iter().map(|part| part.len()).sum();
        let header = abi::OutHeader { len: (size_of::<abi::OutHeader>() + bytes) as u32, error, unique };
        parts[0] = iovec(abi::bytes_of(&header));
        for (part, data) in parts[1..].iter_mut().zip(data) {
            *part = iovec(data);
        }
        let count = 1 + data.len().min(PIECES_MAX);
        // SAFETY: the first `count` entries describe borrowed bytes that outlive the call and are only read.
        let n = unsafe { libc::writev(self.raw(), parts.as_ptr(), count as i32) };
        if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Tells the kernel what changed behind its back.
///
/// Not to be called from `dispatch` for a node that the request itself holds: the kernel may wait for that very
/// request. Use another thread. What the kernel has not cached is no error.
#[derive(Clone)]
pub struct Notifier {
    device: Arc<Device>,
}

impl Notifier {
    pub(crate) fn new(device: Arc<Device>) -> Notifier {
        Notifier { device }
    }

    /// Drops the attributes of a node, and its cached pages from `offset` on (`len` 0: to the end; `offset` below 0:
    /// the attributes only).
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> Result<(), Errno> {
        let out = abi::InvalInode { ino: node, off: offset, len };
        self.send(abi::NOTIFY_INVAL_INODE, &[abi::bytes_of(&out)])
    }

    /// Drops a cached name.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.entry(parent, name, 0)
    }

    /// Has a cached name looked up again at its next use, without dropping it. Needs `HAS_EXPIRE_ONLY`.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.entry(parent, name, abi::EXPIRE_ONLY)
    }

    /// As [`Notifier::inval_entry`], and tells those who watch the directory that the entry was deleted.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<(), Errno> {
        let namelen = name_len(name)?;
        let out = abi::NotifyDelete { parent, child, namelen, padding: 0 };
        self.send(abi::NOTIFY_DELETE, &[abi::bytes_of(&out), name, b"\0"])
    }

    /// Asks the kernel to forget those of these nodes that nobody uses. See [`crate::KernelInfo::can_prune`].
    pub fn prune(&self, nodes: &[u64]) -> Result<(), Errno> {
        let count = u32::try_from(nodes.len()).map_err(|_| Errno::E2BIG)?;
        let out = abi::NotifyPrune { count, padding: 0, spare: 0 };
        let list: Vec<u8> = nodes.iter().flat_map(|node| node.to_ne_bytes()).collect();
        self.send(abi::NOTIFY_PRUNE, &[abi::bytes_of(&out), &list])
    }

    /// Gives the calling thread a table of descriptors of its own, with the connection alone in it. For a thread that does nothing but
    /// call this: the kernel may keep it, even of a killed process, until somebody answers a request; the locks of that
    /// process must not stay with it.
    pub fn alone(&self) -> Result<(), Errno> {
        self.device.alone().map_err(Errno::from)
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> Result<(), Errno> {
        let out = abi::InvalEntry { parent, namelen: name_len(name)?, flags };
        self.send(abi::NOTIFY_INVAL_ENTRY, &[abi::bytes_of(&out), name, b"\0"])
    }

    fn send(&self, code: i32, data: &[&[u8]]) -> Result<(), Errno> {
        match self.device.answer(0, code, data) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn name_len(name: &[u8]) -> Result<u32, Errno> {
    u32::try_from(name.len()).map_err(|_| Errno::ENAMETOOLONG)
}

/// Registers files that the kernel reads and writes in our place. Needs `PASSTHROUGH` and CAP_SYS_ADMIN.
#[derive(Clone)]
pub struct Backing {
    device: Arc<Device>,
}

impl Backing {
    pub(crate) fn new(device: Arc<Device>) -> Backing {
        Backing { device }
    }

    /// The kernel takes a reference of its own: `file` may be closed afterwards.
    pub fn open(&self, file: BorrowedFd<'_>) -> Result<BackingId, Errno> {
        let map = abi::BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the ioctl reads the structure, which lives until it returns.
        let id = unsafe { libc::ioctl(self.device.raw(), abi::IOC_BACKING_OPEN, &raw const map) };
        if id <= 0 { Err(io::Error::last_os_error().into()) } else { Ok(BackingId(id)) }
    }

    /// No open from now on can use it; those that do keep it alive.
    pub fn close(&self, id: BackingId) -> Result<(), Errno> {
        let raw = id.0.cast_unsigned();
        // SAFETY: the ioctl reads one u32, which lives until it returns.
        let done = unsafe { libc::ioctl(self.device.raw(), abi::IOC_BACKING_CLOSE, &raw const raw) };
        if done < 0 { Err(io::Error::last_os_error().into()) } else { Ok(()) }
    }
}

/// Sets `enable_uring` of the fuse module when we may, and says why it stays off.
pub(crate) fn enable_ring() -> Result<(), String> {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    let on = || std::fs::read_to_string(SWITCH).map(|text| matches!(text.trim(), "Y" | "1"));
    match on() {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err("this kernel has no FUSE over io_uring (Linux 6.14 and later do)".to_owned());
        }
        Err(error) => return Err(format!("{SWITCH}: {error}")),
    }
    let write =
        File::options().write(true).open(SWITCH).and_then(|mut file| io::Write::write_all(&mut file, b"1"));
    match (write, on()) {
        (Ok(()), Ok(true)) => Ok(()),
        (Err(error), _) => {
            Err(format!("it is off, and {SWITCH} cannot be set ({error}): as root, write 1 to it"))
        }
        _ => Err(format!("it is off, and writing 1 to {SWITCH} did not turn it on")),
    }
}
