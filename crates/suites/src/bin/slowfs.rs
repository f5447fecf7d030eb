//! `slowfs --delay MS [--while FILE] --calls FILE SOURCE DIR`: a directory passed through at DIR, each call of which takes so long: a file
//! system over a slow network, or a device that is slow at times. Writes the name of each call, one per line, to FILE. Serves until it is unmounted.
//!
//! Names and attributes are kept by the kernel for a second, as a network file system has it; a listing brings attributes along.
//! Calls wait side by side. It is a test's other side and nothing else here links against ONFS: only the transport is ONFS's own.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::Write,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use clap::Parser;
use fuse::{
    AttrOut, Call, Capabilities, DirEntryOut, EntryOut, Filesystem, InitConfig, KernelInfo, MountOptions,
    OpenFlags, OpenOut, Operation, ROOT_NODE, Session, SetattrArgs, StatfsOut, TimeOrNow, TransportChoice,
    operation_name,
};
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    Uid, XattrFlags,
};
use types::{Attr, Errno, FileKind, Ino, ProjectId, Timestamp};

#[derive(Parser)]
struct Args {
    /// Milliseconds that each call takes.
    #[arg(long)]
    delay: u64,
    /// Calls take so long only while this file is there.
    #[arg(long = "while")]
    while_there: Option<PathBuf>,
    /// One line for each call.
    #[arg(long)]
    calls: PathBuf,
    source: PathBuf,
    dir: PathBuf,
}

/// How long the kernel may keep names and attributes.
const KEPT: Duration = Duration::from_secs(1);
/// Calls that wait side by side: more than the back end has threads.
const THREADS: usize = 96;

struct Node {
    /// `O_PATH`: as long as it is open its number is not given to another.
    path: Arc<OwnedFd>,
    lookups: u64,
}

enum Handle {
    File(File),
    Dir(Vec<Vec<u8>>),
}

struct SlowFs {
    delay: Duration,
    while_there: Option<PathBuf>,
    calls: Mutex<File>,
    nodes: Mutex<HashMap<u64, Node>>,
    handles: Mutex<BTreeMap<u64, Arc<Handle>>>,
    next: AtomicU64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slowfs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    rustix::process::umask(Mode::empty());
    let root = rustix::fs::open(&args.source, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
        .with_context(|| format!("open {}", args.source.display()))?;
    let calls = File::options().create(true).append(true).open(&args.calls)?;
    let slow = SlowFs {
        delay: Duration::from_millis(args.delay),
        while_there: args.while_there.clone(),
        calls: Mutex::new(calls),
        nodes: Mutex::new(HashMap::from([(ROOT_NODE, Node { path: Arc::new(root), lookups: 1 })])),
        handles: Mutex::default(),
        next: AtomicU64::new(1),
    };
    let mut options = MountOptions::new(&args.dir);
    options.fsname = "slowfs".to_owned();
    options.subtype = "slowfs".to_owned();
    options.default_permissions = true;
    options.transport = TransportChoice::Device;
    options.threads = THREADS;
    let session = Session::mount(&options, Arc::new(slow))?;
    println!("mounted");
    session.run();
    Ok(())
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// Where an `O_PATH` descriptor can be opened, or given an attribute.
fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn attr_of(fd: &OwnedFd) -> Result<Attr, Errno> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, mask).map_err(errno)?;
    let time = |t: rustix::fs::StatxTimestamp| Timestamp { sec: t.tv_sec, nsec: t.tv_nsec };
    let mode = u32::from(stat.stx_mode);
    Ok(Attr {
        ino: Ino::from_raw(stat.stx_ino).ok_or(Errno::EIO)?,
        kind: FileKind::from_mode(mode).ok_or(Errno::EIO)?,
        mode: mode & types::MODE_MASK,
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: 0,
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        btime: time(stat.stx_btime),
        project: ProjectId::NONE,
    })
}

impl SlowFs {
    fn node(&self, node: u64) -> Result<Arc<OwnedFd>, Errno> {
        self.nodes.lock().get(&node).map(|node| node.path.clone()).ok_or(Errno::ESTALE)
    }

    /// One lookup more of what has this name.
    fn lookup(&self, dir: u64, name: &[u8]) -> Result<EntryOut, Errno> {
        let dir = self.node(dir)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = rustix::fs::openat(&*dir, name, flags, Mode::empty()).map_err(errno)?;
        let attr = attr_of(&path)?;
        let node = attr.ino.get();
        let mut nodes = self.nodes.lock();
        let known = nodes.entry(node).or_insert_with(|| Node { path: Arc::new(path), lookups: 0 });
        known.lookups += 1;
        Ok(EntryOut { node, generation: 0, entry_timeout: KEPT, attr_timeout: KEPT, attr })
    }

    fn forget(&self, node: u64, lookups: u64) {
        let mut nodes = self.nodes.lock();
        if let Some(known) = nodes.get_mut(&node).filter(|_| node != ROOT_NODE) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                nodes.remove(&node);
            }
        }
    }

    fn attr(&self, node: u64) -> Result<AttrOut, Errno> {
        Ok(AttrOut { timeout: KEPT, attr: attr_of(&*self.node(node)?)? })
    }

    fn wait(&self, call: &Call) {
        // A line that cannot be written shows in the test's counts.
        let _ = writeln!(self.calls.lock(), "{}", operation_name(call.header().opcode));
        if self.while_there.as_ref().is_none_or(|file| file.exists()) {
            thread::sleep(self.delay);
        }
    }

    fn keep(&self, handle: Handle) -> OpenOut {
        let fh = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().insert(fh, Arc::new(handle));
        OpenOut { fh, flags: OpenFlags::empty(), backing: None }
    }

    fn handle(&self, fh: u64) -> Result<Arc<Handle>, Errno> {
        self.handles.lock().get(&fh).cloned().ok_or(Errno::EBADF)
    }

    fn open(&self, node: u64, flags: u32) -> Result<OpenOut, Errno> {
        // Appends come with their place.
        let flags =
            OFlags::from_bits_retain(flags).difference(OFlags::NOFOLLOW | OFlags::APPEND | OFlags::DIRECT);
        let file = rustix::fs::open(proc_path(&*self.node(node)?), flags, Mode::empty()).map_err(errno)?;
        Ok(self.keep(Handle::File(file.into())))
    }

    fn create(&self, dir: u64, name: &[u8], flags: u32, mode: u32) -> Result<(EntryOut, OpenOut), Errno> {
        let flags = OFlags::from_bits_retain(flags).difference(OFlags::APPEND | OFlags::DIRECT);
        let at = self.node(dir)?;
        let made = rustix::fs::openat(&*at, name, flags | OFlags::CREATE, Mode::from_bits_retain(mode));
        let made = made.map_err(errno)?;
        Ok((self.lookup(dir, name)?, self.keep(Handle::File(made.into()))))
    }

    fn opendir(&self, node: u64) -> Result<OpenOut, Errno> {
        let entries = std::fs::read_dir(proc_path(&*self.node(node)?))?;
        let names =
            entries.map(|entry| Ok(entry?.file_name().as_bytes().to_vec())).collect::<Result<_, Errno>>()?;
        Ok(self.keep(Handle::Dir(names)))
    }

    fn readdir(&self, call: Call, fh: u64, offset: u64) {
        let node = call.header().node;
        call.reply_dir(|out| {
            let handle = self.handle(fh)?;
            let Handle::Dir(names) = &*handle else { return Err(Errno::ENOTDIR) };
            let dir = self.node(node)?;
            let first = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
            for (place, name) in names.iter().enumerate().skip(first) {
                let stat = rustix::fs::statat(&*dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
                // It is gone since the directory was opened.
                let Ok(stat) = stat else { continue };
                let kind = FileKind::from_mode(stat.st_mode).ok_or(Errno::EIO)?;
                let entry = DirEntryOut { name, ino: stat.st_ino, kind, cookie: place as u64 + 1 };
                let fits = if out.is_plus() {
                    // A lookup counts only when the kernel gets it.
                    if !out.has_room(name.len()) {
                        break;
                    }
                    let Ok(found) = self.lookup(node, name) else { continue };
                    out.push_plus(&entry, &found)
                } else {
                    out.push(&entry)
                };
                if !fits {
                    break;
                }
            }
            Ok(())
        });
    }

    fn setattr(&self, node: u64, args: &SetattrArgs) -> Result<AttrOut, Errno> {
        let fd = self.node(node)?;
        let path = proc_path(&fd);
        if args.uid.is_some() || args.gid.is_some() {
            let (uid, gid) = (args.uid.map(Uid::from_raw), args.gid.map(Gid::from_raw));
            rustix::fs::chownat(&*fd, "", uid, gid, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        if let Some(mode) = args.mode {
            let mode = Mode::from_bits_retain(mode & types::MODE_MASK);
            rustix::fs::chmodat(CWD, path.as_str(), mode, AtFlags::empty()).map_err(errno)?;
        }
        if let Some(size) = args.size {
            File::options().write(true).open(&path)?.set_len(size)?;
        }
        if args.atime.is_some() || args.mtime.is_some() {
            let times =
                Timestamps { last_access: timespec(args.atime), last_modification: timespec(args.mtime) };
            rustix::fs::utimensat(&*fd, "", &times, AtFlags::EMPTY_PATH).map_err(errno)?;
        }
        self.attr(node)
    }

    fn make(
        &self,
        dir: u64,
        name: &[u8],
        make: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> Result<EntryOut, Errno> {
        make(&*self.node(dir)?).map_err(errno)?;
        self.lookup(dir, name)
    }

    fn read(&self, fh: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let handle = self.handle(fh)?;
        let Handle::File(file) = &*handle else { return Err(Errno::EISDIR) };
        let mut got = 0;
        while got < buf.len() {
            match file.read_at(&mut buf[got..], offset + got as u64)? {
                0 => break,
                n => got += n,
            }
        }
        Ok(got)
    }

    fn write(&self, fh: u64, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let handle = self.handle(fh)?;
        let Handle::File(file) = &*handle else { return Err(Errno::EISDIR) };
        file.write_all_at(data, offset)?;
        u32::try_from(data.len()).map_err(|_| Errno::EINVAL)
    }

    fn fsync(&self, fh: u64) -> Result<(), Errno> {
        match &*self.handle(fh)? {
            Handle::File(file) => Ok(file.sync_all()?),
            Handle::Dir(_) => Ok(()),
        }
    }

    fn at(&self, node: u64, act: impl FnOnce(&str) -> rustix::io::Result<()>) -> Result<(), Errno> {
        act(&proc_path(&*self.node(node)?)).map_err(errno)
    }

    fn readlink(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let target = rustix::fs::readlinkat(&*self.node(node)?, "", Vec::new()).map_err(errno)?;
        Ok(target.into_bytes())
    }

    fn link(&self, of: u64, dir: u64, name: &[u8]) -> Result<EntryOut, Errno> {
        let from = proc_path(&*self.node(of)?);
        self.make(dir, name, |dir| rustix::fs::linkat(CWD, from.as_str(), dir, name, AtFlags::SYMLINK_FOLLOW))
    }

    fn remove(&self, dir: u64, name: &[u8], flags: AtFlags) -> Result<(), Errno> {
        rustix::fs::unlinkat(&*self.node(dir)?, name, flags).map_err(errno)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<(), Errno> {
        let (source, target) = (self.node(from.0)?, self.node(to.0)?);
        let flags = RenameFlags::from_bits_retain(flags);
        rustix::fs::renameat_with(&*source, from.1, &*target, to.1, flags).map_err(errno)
    }

    /// An attribute's value, or all names. Of links nothing.
    fn xattr(&self, node: u64, name: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
        let path = proc_path(&*self.node(node)?);
        let mut bytes = vec![0; 64 << 10];
        let got = match name {
            Some(name) => rustix::fs::getxattr(path, name, &mut bytes[..]),
            None => rustix::fs::listxattr(path, &mut bytes[..]),
        };
        bytes.truncate(got.map_err(errno)?);
        Ok(bytes)
    }

    fn statfs(&self, node: u64) -> Result<StatfsOut, Errno> {
        let stat = rustix::fs::fstatvfs(&*self.node(node)?).map_err(errno)?;
        Ok(StatfsOut {
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree,
            blocks_available: stat.f_bavail,
            files: stat.f_files,
            files_free: stat.f_ffree,
            block_size: u32::try_from(stat.f_bsize).unwrap_or(4096),
            name_max: 255,
        })
    }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::At(at)) => Timespec { tv_sec: at.sec, tv_nsec: at.nsec.into() },
    }
}

fn answer<T>(call: Call, result: Result<T, Errno>, reply: impl FnOnce(Call, T)) {
    match result {
        Ok(value) => reply(call, value),
        Err(errno) => call.reply_error(errno),
    }
}

fn answer_xattr(call: Call, value: Result<Vec<u8>, Errno>, size: u32) {
    answer(call, value, |call, value| match (size, u32::try_from(value.len()).unwrap_or(u32::MAX)) {
        (0, length) => call.reply_xattr_size(length),
        (room, length) if length > room => call.reply_error(Errno::ERANGE),
        _ => call.reply_bytes(&value),
    });
}

impl Filesystem for SlowFs {
    fn init(&self, kernel: &KernelInfo, config: &mut InitConfig) -> Result<(), Errno> {
        config.capabilities |= Capabilities::AUTO_INVAL_DATA & kernel.capabilities;
        Ok(())
    }

    fn dispatch(&self, call: Call) {
        let operation = match call.operation() {
            Ok(operation) => operation,
            Err(errno) => return call.reply_error(errno),
        };
        match operation {
            Operation::Forget { .. } | Operation::BatchForget(_) | Operation::Interrupt { .. } => {
                self.forgotten(call);
            }
            // Nobody waits for these.
            Operation::Release(args) | Operation::Releasedir(args) => {
                self.handles.lock().remove(&args.fh);
                call.reply_ok();
            }
            Operation::Destroy => call.reply_ok(),
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Create(_) => {
                self.wait(&call);
                self.name(call);
            }
            Operation::Open { .. }
            | Operation::Opendir { .. }
            | Operation::Read(_)
            | Operation::Readdir(_)
            | Operation::Readdirplus(_)
            | Operation::Write(_)
            | Operation::Fsync { .. }
            | Operation::Fsyncdir { .. } => {
                self.wait(&call);
                self.data(call);
            }
            Operation::Getattr { .. }
            | Operation::Statx { .. }
            | Operation::Setattr(_)
            | Operation::Readlink
            | Operation::Statfs
            | Operation::Setxattr(_)
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Removexattr { .. } => {
                self.wait(&call);
                self.attribute(call);
            }
            // Asked once and then never again.
            Operation::Flush { .. }
            | Operation::Access { .. }
            | Operation::Tmpfile(_)
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Fallocate { .. }
            | Operation::Lseek { .. }
            | Operation::CopyFileRange(_)
            | Operation::Ioctl(_)
            | Operation::Poll { .. }
            | Operation::Bmap { .. }
            | Operation::Syncfs
            | Operation::Unknown(_) => call.reply_error(Errno::ENOSYS),
        }
    }
}

impl SlowFs {
    fn forgotten(&self, call: Call) {
        match call.operation() {
            Ok(Operation::Forget { lookups }) => self.forget(call.header().node, lookups),
            Ok(Operation::BatchForget(list)) => list.for_each(|one| self.forget(one.node, one.lookups)),
            Ok(_) | Err(_) => {}
        }
        call.reply_none();
    }

    fn name(&self, call: Call) {
        let node = call.header().node;
        let made = |call, made| answer(call, made, |call, entry: EntryOut| call.reply_entry(&entry));
        let done = |call, done| answer(call, done, |call, ()| call.reply_ok());
        match call.operation() {
            Ok(Operation::Lookup { name }) => {
                let found = self.lookup(node, name);
                made(call, found);
            }
            Ok(Operation::Symlink { name, target }) => {
                let found = self.make(node, name, |dir| rustix::fs::symlinkat(target, dir, name));
                made(call, found);
            }
            Ok(Operation::Mknod { name, mode, umask, .. }) => {
                let kind = rustix::fs::FileType::from_raw_mode(mode);
                let mode = Mode::from_raw_mode(mode & !umask);
                let found = self.make(node, name, |dir| rustix::fs::mknodat(dir, name, kind, mode, 0));
                made(call, found);
            }
            Ok(Operation::Mkdir { name, mode, umask }) => {
                let mode = Mode::from_raw_mode(mode & !umask);
                let found = self.make(node, name, |dir| rustix::fs::mkdirat(dir, name, mode));
                made(call, found);
            }
            Ok(Operation::Link { node: of, name }) => {
                let found = self.link(of, node, name);
                made(call, found);
            }
            Ok(Operation::Unlink { name }) => {
                let gone = self.remove(node, name, AtFlags::empty());
                done(call, gone);
            }
            Ok(Operation::Rmdir { name }) => {
                let gone = self.remove(node, name, AtFlags::REMOVEDIR);
                done(call, gone);
            }
            Ok(Operation::Rename { name, new_parent, new_name, flags }) => {
                let moved = self.rename((node, name), (new_parent, new_name), flags);
                done(call, moved);
            }
            Ok(Operation::Create(args)) => {
                let both = self.create(node, args.name, args.flags, args.mode & !args.umask);
                answer(call, both, |call, (entry, open)| call.reply_create(&entry, &open));
            }
            Ok(_) | Err(_) => call.reply_error(Errno::ENOSYS),
        }
    }

    fn data(&self, call: Call) {
        let node = call.header().node;
        match call.operation() {
            Ok(Operation::Open { flags, .. }) => {
                let open = self.open(node, flags);
                answer(call, open, |call, open| call.reply_open(&open));
            }
            Ok(Operation::Opendir { .. }) => {
                let open = self.opendir(node);
                answer(call, open, |call, open| call.reply_open(&open));
            }
            Ok(Operation::Read(args)) => {
                call.reply_with(args.size as usize, |buf| self.read(args.fh, args.offset, buf));
            }
            Ok(Operation::Readdir(args) | Operation::Readdirplus(args)) => {
                self.readdir(call, args.fh, args.offset);
            }
            Ok(Operation::Write(args)) => {
                let written = self.write(args.fh, args.offset, args.data);
                answer(call, written, |call, bytes| call.reply_written(bytes));
            }
            Ok(Operation::Fsync { fh, .. } | Operation::Fsyncdir { fh, .. }) => {
                let synced = self.fsync(fh);
                answer(call, synced, |call, ()| call.reply_ok());
            }
            Ok(_) | Err(_) => call.reply_error(Errno::ENOSYS),
        }
    }

    fn attribute(&self, call: Call) {
        let node = call.header().node;
        let done = |call, done| answer(call, done, |call, ()| call.reply_ok());
        match call.operation() {
            Ok(Operation::Getattr { .. } | Operation::Statx { .. }) => {
                answer(call, self.attr(node), |call, attr| call.reply_attr(&attr));
            }
            Ok(Operation::Setattr(args)) => {
                let set = self.setattr(node, &args);
                answer(call, set, |call, attr| call.reply_attr(&attr));
            }
            Ok(Operation::Readlink) => {
                answer(call, self.readlink(node), |call, target| call.reply_bytes(&target));
            }
            Ok(Operation::Statfs) => {
                answer(call, self.statfs(node), |call, stat| call.reply_statfs(&stat));
            }
            Ok(Operation::Setxattr(args)) => {
                let flags = XattrFlags::from_bits_retain(args.flags);
                let set = self.at(node, |path| rustix::fs::setxattr(path, args.name, args.value, flags));
                done(call, set);
            }
            Ok(Operation::Removexattr { name }) => {
                let gone = self.at(node, |path| rustix::fs::removexattr(path, name));
                done(call, gone);
            }
            Ok(Operation::Getxattr { name, size }) => {
                let value = self.xattr(node, Some(name));
                answer_xattr(call, value, size);
            }
            Ok(Operation::Listxattr { size }) => answer_xattr(call, self.xattr(node, None), size),
            Ok(_) | Err(_) => call.reply_error(Errno::ENOSYS),
        }
    }
}
