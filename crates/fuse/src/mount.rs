//! Mounting and unmounting: mount(2) as root, the `fusermount3` program as anybody else.

use std::{
    ffi::{CString, OsString},
    io::{self, Read as _},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt, net::UnixStream, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    connection::{Connection, Place},
    device::Device,
    options::MountOptions,
};

const HELPER: &str = "fusermount3";

/// Why there is no mount. The messages say what to do.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("{0} does not exist: create the directory first")]
    NoMountpoint(PathBuf),
    #[error("{0} is not a directory")]
    NotADirectory(PathBuf),
    #[error(
        "{0} still holds the mount of a file system whose server is gone: run `fusermount3 -u {0}`, or as root \
         `umount -l {0}`, and try again"
    )]
    Stale(PathBuf),
    #[error("cannot use {path} as mount point: {error}")]
    Mountpoint { path: PathBuf, error: io::Error },
    #[error("/dev/fuse is missing: load the module (`modprobe fuse`), or give the container the device")]
    NoDevice,
    #[error("{HELPER} is missing: install the fuse3 package, or mount as root")]
    NoHelper,
    #[error("not permitted to mount: {0}")]
    NotPermitted(String),
    #[error("the mount option {0:?} was refused")]
    BadOption(String),
    #[error("the mount failed: {0}")]
    Failed(String),
    #[error("the kernel speaks FUSE {major}.{minor}; this needs 7.31 (Linux 5.4) or later")]
    KernelTooOld { major: u32, minor: u32 },
    #[error("the kernel did not begin the conversation in time")]
    NoInit,
    #[error("FUSE over io_uring was asked for but cannot be had: {0}")]
    NoRing(String),
    #[error(
        "a guarded mount needs a kernel that sends again what a dead daemon did not answer (Linux 6.9 and later do): mount \
         without --guard"
    )]
    NoResend,
    #[error("this program does without {0}, which the mount was made with: it has to be mounted anew")]
    OtherTerms(String),
    #[error("the file system refused to start: {0}")]
    Refused(types::Errno),
    #[error("cannot set up the session: {0}")]
    Setup(io::Error),
}

/// Why it is still mounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    #[error("{0} is in use: files are open or it is somebody's current directory")]
    Busy(PathBuf),
    /// Nothing of this session is mounted there, but maybe something else.
    #[error("{0} is not mounted")]
    NotMounted(PathBuf),
    #[error("something else is mounted over {0}: unmount that first")]
    Covered(PathBuf),
    #[error("not permitted to unmount {0}")]
    NotPermitted(PathBuf),
    #[error("cannot unmount: {0}")]
    Failed(String),
}

/// A place that something is mounted on by us.
pub(crate) struct MountPoint {
    pub(crate) path: PathBuf,
    pub(crate) connection: Connection,
    by_helper: bool,
}

pub(crate) fn is_root() -> bool {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Mounts, and returns the connection's descriptor.
pub(crate) fn mount(options: &MountOptions) -> Result<(MountPoint, Device), MountError> {
    let (path, mode) = check_mountpoint(&options.mountpoint)?;
    let plan = Plan::of(options)?;
    let by_helper = !is_root();
    let device = if by_helper { mount_by_helper(&path, &plan)? } else { mount_directly(&path, mode, &plan)? };
    match Connection::of(&device, &path) {
        Ok(connection) => Ok((MountPoint { path, connection, by_helper }, device)),
        Err(error) => {
            let taken =
                if by_helper { unmount_by_helper(&path, true) } else { unmount_directly(&path, true) };
            if let Err(left) = taken {
                tracing::error!(error = %left, "a mount that failed to start is left behind");
            }
            Err(MountError::Setup(error))
        }
    }
}

fn check_mountpoint(path: &Path) -> Result<(PathBuf, u32), MountError> {
    let explain = |error: io::Error| match error.raw_os_error() {
        Some(libc::ENOENT) => MountError::NoMountpoint(path.to_owned()),
        Some(libc::ENOTCONN | libc::ECONNABORTED) => MountError::Stale(path.to_owned()),
        Some(libc::ENOTDIR) => MountError::NotADirectory(path.to_owned()),
        _ => MountError::Mountpoint { path: path.to_owned(), error },
    };
    let meta = std::fs::metadata(path).map_err(explain)?;
    if !meta.is_dir() {
        return Err(MountError::NotADirectory(path.to_owned()));
    }
    Ok((std::fs::canonicalize(path).map_err(explain)?, meta.mode()))
}

/// The options, sorted into what mount(2) wants where.
struct Plan {
    source: String,
    subtype: String,
    flags: libc::c_ulong,
    /// Words that the kernel's FUSE takes.
    data: Vec<String>,
    /// Words for the helper that stand for flags.
    words: Vec<String>,
}

impl Plan {
    fn of(options: &MountOptions) -> Result<Plan, MountError> {
        let mut plan = Plan {
            source: options.fsname.clone(),
            subtype: options.subtype.clone(),
            flags: libc::MS_NOSUID | libc::MS_NODEV,
            data: vec![format!("max_read={}", options.max_transfer)],
            words: Vec::new(),
        };
        for (wanted, word) in
            [(options.allow_other, "allow_other"), (options.default_permissions, "default_permissions")]
        {
            if wanted {
                plan.data.push(word.to_owned());
            }
        }
        if options.read_only {
            plan.add("ro")?;
        }
        for word in options.options.iter().flat_map(|list| list.split(',')).filter(|word| !word.is_empty()) {
            plan.add(word)?;
        }
        Ok(plan)
    }

    fn add(&mut self, word: &str) -> Result<(), MountError> {
        let (on, flag) = match word {
            "ro" => (true, libc::MS_RDONLY),
            "rw" => (false, libc::MS_RDONLY),
            "nosuid" => (true, libc::MS_NOSUID),
            "suid" => (false, libc::MS_NOSUID),
            "nodev" => (true, libc::MS_NODEV),
            "dev" => (false, libc::MS_NODEV),
            "noexec" => (true, libc::MS_NOEXEC),
            "exec" => (false, libc::MS_NOEXEC),
            "sync" => (true, libc::MS_SYNCHRONOUS),
            "async" => (false, libc::MS_SYNCHRONOUS),
            "dirsync" => (true, libc::MS_DIRSYNC),
            "noatime" => (true, libc::MS_NOATIME),
            "atime" => (false, libc::MS_NOATIME),
            "nodiratime" => (true, libc::MS_NODIRATIME),
            "relatime" => (true, libc::MS_RELATIME),
            "strictatime" => (true, libc::MS_STRICTATIME),
            "allow_other" | "default_permissions" => {
                if !self.data.iter().any(|have| have == word) {
                    self.data.push(word.to_owned());
                }
                return Ok(());
            }
            _ => return Err(MountError::BadOption(word.to_owned())),
        };
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
        self.words.push(word.to_owned());
        Ok(())
    }
}

fn mount_directly(path: &Path, mode: u32, plan: &Plan) -> Result<Device, MountError> {
    let device = Device::open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
        Some(libc::EACCES | libc::EPERM) => MountError::NotPermitted(format!("/dev/fuse: {error}")),
        _ => MountError::Failed(format!("/dev/fuse: {error}")),
    })?;
    let mut data = format!("fd={},rootmode={:o},user_id=0,group_id=0", device.raw(), mode & libc::S_IFMT);
    for word in &plan.data {
        data.push(',');
        data.push_str(word);
    }
    let source = c_string(plan.source.as_bytes())?;
    let target = c_string(path.as_os_str().as_bytes())?;
    let kind = c_string(format!("fuse.{}", plan.subtype).as_bytes())?;
    let data = c_string(data.as_bytes())?;
    // SAFETY: four NUL-terminated strings that outlive the call.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), plan.flags, data.as_ptr().cast())
    };
    if result == 0 {
        return Ok(device);
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            MountError::NotPermitted("mounting needs CAP_SYS_ADMIN, which this process lacks".to_owned())
        }
        Some(libc::ENODEV) => MountError::NoDevice,
        Some(libc::EINVAL) => MountError::BadOption(data.to_string_lossy().into_owned()),
        _ => MountError::Failed(error.to_string()),
    })
}

fn c_string(bytes: &[u8]) -> Result<CString, MountError> {
    CString::new(bytes).map_err(|_| MountError::BadOption(String::from_utf8_lossy(bytes).into_owned()))
}

/// The helper mounts with its own privilege and sends the descriptor back over a socket.
fn mount_by_helper(path: &Path, plan: &Plan) -> Result<Device, MountError> {
    if !Path::new("/dev/fuse").exists() {
        return Err(MountError::NoDevice);
    }
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Setup)?;
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut words =
        vec![format!("fsname={}", escape(&plan.source)), format!("subtype={}", escape(&plan.subtype))];
    words.extend(plan.data.iter().chain(&plan.words).cloned());
    let mut command = Command::new(HELPER);
    let fd = theirs.as_raw_fd();
    command.arg("-o").arg(words.join(",")).arg("--").arg(path);
    command
        .env("_FUSE_COMMFD", fd.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: between fork and exec only fcntl is called, which is safe there.
    unsafe {
        command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let mut child = command.spawn().map_err(no_helper)?;
    drop(theirs);
    let received = receive_fd(&ours);
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    let status = child.wait().map_err(MountError::Setup)?;
    match received {
        Ok(fd) if status.success() => Ok(Device::from_fd(fd)),
        _ => Err(explain_helper(text.trim(), plan)),
    }
}

fn no_helper(error: io::Error) -> MountError {
    if error.kind() == io::ErrorKind::NotFound { MountError::NoHelper } else { MountError::Setup(error) }
}

fn explain_helper(text: &str, plan: &Plan) -> MountError {
    if text.contains("user_allow_other") {
        MountError::NotPermitted(
            "allow_other needs the line `user_allow_other` in /etc/fuse.conf when mounting without being root"
                .to_owned(),
        )
    } else if text.contains("unknown option") || text.contains("unsupported option") {
        MountError::BadOption(plan.words.join(","))
    } else if text.contains("ermission denied")
        || text.contains("not permitted")
        || text.contains("no write access")
    {
        MountError::NotPermitted(text.to_owned())
    } else {
        MountError::Failed(text.to_owned())
    }
}

/// One descriptor, sent along with one byte. The other end closes when the helper ends, so that this returns.
fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0_u8; 1];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0_u64; 8];
    // SAFETY: an all-zero msghdr is an empty one.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message points at live buffers of the lengths it gives.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel filled the control buffer in and set its length; the macros stay inside of it.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        if !head.is_null() && (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS
        {
            let fd = libc::CMSG_DATA(head).cast::<i32>().read_unaligned();
            return Ok(OwnedFd::from_raw_fd(fd));
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

impl MountPoint {
    /// Mounted by an earlier process of the same user.
    pub(crate) fn resumed(path: PathBuf, connection: Connection) -> MountPoint {
        MountPoint { path, connection, by_helper: !is_root() }
    }

    /// `lazy`: out of sight at once, gone when its last user is. What is not ours stays where it is.
    pub(crate) fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        match self.connection.place(&self.path) {
            Place::Ours if self.by_helper => unmount_by_helper(&self.path, lazy),
            Place::Ours => unmount_directly(&self.path, lazy),
            Place::Covered => Err(UnmountError::Covered(self.path.clone())),
            Place::Foreign => Err(UnmountError::NotMounted(self.path.clone())),
        }
    }
}

fn unmount_directly(path: &Path, lazy: bool) -> Result<(), UnmountError> {
    let target =
        CString::new(path.as_os_str().as_bytes()).map_err(|error| UnmountError::Failed(error.to_string()))?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: a NUL-terminated string that outlives the call.
    if unsafe { libc::umount2(target.as_ptr(), flags) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EBUSY) => UnmountError::Busy(path.to_owned()),
        Some(libc::EINVAL | libc::ENOENT) => UnmountError::NotMounted(path.to_owned()),
        Some(libc::EPERM) => UnmountError::NotPermitted(path.to_owned()),
        _ => UnmountError::Failed(error.to_string()),
    })
}

fn unmount_by_helper(path: &Path, lazy: bool) -> Result<(), UnmountError> {
    let mut args: Vec<OsString> = vec!["-u".into()];
    if lazy {
        args.push("-z".into());
    }
    args.push("--".into());
    args.push(path.into());
    let output = Command::new(HELPER)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| UnmountError::Failed(format!("{HELPER}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(if text.contains("busy") {
        UnmountError::Busy(path.to_owned())
    } else if text.contains("not found in") || text.contains("not mounted") {
        UnmountError::NotMounted(path.to_owned())
    } else {
        UnmountError::Failed(text.trim().to_owned())
    })
}

/// Raises the kernel's readahead for the mount beyond what INIT may ask for. As root only; says what is set.
pub(crate) fn raise_readahead(connection: Connection, bytes: u32) -> Option<u32> {
    let knob = format!("/sys/class/bdi/{}/read_ahead_kb", connection.device());
    std::fs::write(knob, (bytes / 1024).to_string()).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: words become flags or data, and unknown ones are refused. Method: one of each.
    #[test]
    fn options_are_sorted() {
        let mut options = MountOptions::new("/mnt");
        options.allow_other = true;
        options.options = vec!["dev,noatime".to_owned(), "ro".to_owned()];
        let plan = Plan::of(&options).unwrap();
        assert_eq!(plan.flags, libc::MS_NOSUID | libc::MS_NOATIME | libc::MS_RDONLY);
        assert_eq!(plan.data, ["max_read=1048576", "allow_other"]);
        options.options = vec!["fd=3".to_owned()];
        assert!(matches!(Plan::of(&options), Err(MountError::BadOption(word)) if word == "fd=3"));
    }
}
