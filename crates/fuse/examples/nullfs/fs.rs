//! The least file system that a FUSE transport can serve: everything in hash maps, every request answered at once,
//! on the thread that brought it.
//!
//! File data is dropped (reads give zeros up to the size) unless it is asked to be kept. No permissions, no
//! xattrs, no links. It is the yardstick for a "null" FUSE file system, so its operations cost no more than a
//! hash map needs: sharded by inode number, one lock per directory.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuse::{
    AttrOut, Call, Capabilities, DirEntryOut, EntryOut, Filesystem, InitConfig, KernelInfo, OpenFlags,
    OpenOut, Operation, SetattrArgs, StatfsOut, TimeOrNow,
};
use parking_lot::{Mutex, RwLock};
use types::{Attr, Errno, FileKind, Ino, ProjectId, Timestamp};

const SHARDS: usize = 64;

/// Inode numbers are sequential: a multiplication spreads them well enough.
#[derive(Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

type Numbers<V> = HashMap<u64, V, BuildHasherDefault<NumberHasher>>;

struct Child {
    name: Arc<[u8]>,
    ino: u64,
    kind: FileKind,
}

/// Entries in the order of their creation; an entry's cookie is its place + 3.
#[derive(Default)]
struct Dir {
    places: HashMap<Arc<[u8]>, usize>,
    children: Vec<Option<Child>>,
}

impl Dir {
    fn get(&self, name: &[u8]) -> Option<&Child> {
        self.children[*self.places.get(name)?].as_ref()
    }
    fn add(&mut self, name: &[u8], ino: u64, kind: FileKind) {
        let name: Arc<[u8]> = name.into();
        self.places.insert(Arc::clone(&name), self.children.len());
        self.children.push(Some(Child { name, ino, kind }));
    }
    fn take(&mut self, name: &[u8]) -> Option<Child> {
        let place = self.places.remove(name)?;
        let child = self.children[place].take();
        while matches!(self.children.last(), Some(None)) {
            self.children.pop();
        }
        child
    }
}

struct Node {
    attr: Mutex<Attr>,
    dir: Option<Mutex<Dir>>,
    parent: AtomicU64,
    target: Box<[u8]>,
    data: RwLock<Vec<u8>>,
}

/// How the file system behaves.
#[derive(Clone, Copy, Debug)]
pub struct NullOptions {
    /// For names and attributes.
    pub timeout: Duration,
    /// Keep the data of files instead of dropping it.
    pub keep: bool,
    /// Bypass the page cache.
    pub direct_io: bool,
    /// Bypass it for those who may write, as ONFS does; who only reads has pages kept.
    pub direct_writes: bool,
}

pub struct NullFs {
    options: NullOptions,
    shards: [RwLock<Numbers<Arc<Node>>>; SHARDS],
    next: AtomicU64,
    /// For renames, which change two directories.
    renaming: Mutex<()>,
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nsec: since.subsec_nanos() }
}

impl NullFs {
    pub fn new(options: NullOptions) -> NullFs {
        let fs = NullFs {
            options,
            shards: std::array::from_fn(|_| RwLock::default()),
            next: AtomicU64::new(2),
            renaming: Mutex::default(),
        };
        if let Some(root) = NullFs::node(Ino::ROOT, libc::S_IFDIR | 0o755, (0, 0), 1, &[]) {
            fs.insert(1, root);
        }
        fs
    }

    fn node(ino: Ino, mode: u32, owner: (u32, u32), parent: u64, target: &[u8]) -> Option<Arc<Node>> {
        let kind = FileKind::from_mode(mode)?;
        let time = now();
        let is_dir = kind == FileKind::Directory;
        Some(Arc::new(Node {
            attr: Mutex::new(Attr {
                ino,
                kind,
                mode: mode & types::MODE_MASK,
                nlink: if is_dir { 2 } else { 1 },
                uid: owner.0,
                gid: owner.1,
                rdev: 0,
                size: target.len() as u64,
                blocks: 0,
                atime: time,
                mtime: time,
                ctime: time,
                btime: time,
                project: ProjectId::NONE,
            }),
            dir: is_dir.then(Mutex::default),
            parent: AtomicU64::new(parent),
            target: target.into(),
            data: RwLock::default(),
        }))
    }

    fn shard(&self, node: u64) -> &RwLock<Numbers<Arc<Node>>> {
        &self.shards[node as usize % SHARDS]
    }

    fn insert(&self, number: u64, node: Arc<Node>) {
        self.shard(number).write().insert(number, node);
    }

    fn find(&self, number: u64) -> Result<Arc<Node>, Errno> {
        self.shard(number).read().get(&number).cloned().ok_or(Errno::ENOENT)
    }

    fn entry(&self, attr: Attr) -> EntryOut {
        let timeout = self.options.timeout;
        EntryOut { node: attr.ino.get(), generation: 0, entry_timeout: timeout, attr_timeout: timeout, attr }
    }

    /// `flags` as in open(2).
    fn open_flags(&self, flags: u32) -> OpenFlags {
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if self.options.direct_io || self.options.direct_writes && writes {
            OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
        } else {
            OpenFlags::KEEP_CACHE
        }
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Result<EntryOut, Errno> {
        let parent = self.find(parent)?;
        let ino = parent.dir.as_ref().ok_or(Errno::ENOTDIR)?.lock().get(name).ok_or(Errno::ENOENT)?.ino;
        let attr = *self.find(ino)?.attr.lock();
        Ok(self.entry(attr))
    }

    fn make(&self, call: &Call, name: &[u8], mode: u32, target: &[u8]) -> Result<EntryOut, Errno> {
        let header = call.header();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let ino = Ino::from_raw(number).ok_or(Errno::ENOSPC)?;
        let owner = (header.uid, header.gid);
        let node = NullFs::node(ino, mode, owner, header.node, target).ok_or(Errno::EINVAL)?;
        let attr = *node.attr.lock();
        let parent = self.find(header.node)?;
        let mut dir = parent.dir.as_ref().ok_or(Errno::ENOTDIR)?.lock();
        if dir.get(name).is_some() {
            return Err(Errno::EEXIST);
        }
        self.insert(number, node);
        dir.add(name, number, attr.kind);
        Ok(self.entry(attr))
    }

    fn remove(&self, parent: u64, name: &[u8], want_dir: bool) -> Result<(), Errno> {
        let parent = self.find(parent)?;
        let mut dir = parent.dir.as_ref().ok_or(Errno::ENOTDIR)?.lock();
        let child = dir.get(name).ok_or(Errno::ENOENT)?;
        match (want_dir, child.kind == FileKind::Directory) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !self.is_empty(child.ino)? => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        if let Some(child) = dir.take(name) {
            self.drop_node(child.ino);
        }
        Ok(())
    }

    fn is_empty(&self, ino: u64) -> Result<bool, Errno> {
        Ok(self.find(ino)?.dir.as_ref().is_none_or(|dir| dir.lock().places.is_empty()))
    }

    /// The kernel may hold it still; FORGET takes it away.
    fn drop_node(&self, ino: u64) {
        if let Ok(node) = self.find(ino) {
            node.attr.lock().nlink = 0;
        }
    }

    fn forget(&self, number: u64) {
        let gone = self.find(number).is_ok_and(|node| node.attr.lock().nlink == 0);
        if gone {
            self.shard(number).write().remove(&number);
        }
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<(), Errno> {
        let _one_at_a_time = self.renaming.lock();
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        let (source, target) = (self.find(from.0)?, self.find(to.0)?);
        let (source, target) =
            (source.dir.as_ref().ok_or(Errno::ENOTDIR)?, target.dir.as_ref().ok_or(Errno::ENOTDIR)?);
        if source.lock().get(from.1).is_none() {
            return Err(Errno::ENOENT);
        }
        if from == to {
            return Ok(());
        }
        if let Some(old) = target.lock().get(to.1).map(|child| child.ino) {
            if flags & libc::RENAME_NOREPLACE != 0 {
                return Err(Errno::EEXIST);
            }
            if !self.is_empty(old)? {
                return Err(Errno::ENOTEMPTY);
            }
        }
        let moved = source.lock().take(from.1).ok_or(Errno::ENOENT)?;
        let mut target = target.lock();
        if let Some(old) = target.take(to.1) {
            self.drop_node(old.ino);
        }
        target.add(to.1, moved.ino, moved.kind);
        self.find(moved.ino)?.parent.store(to.0, Ordering::Relaxed);
        Ok(())
    }

    fn setattr(&self, number: u64, args: &SetattrArgs) -> Result<AttrOut, Errno> {
        let node = self.find(number)?;
        let time = now();
        let mut attr = node.attr.lock();
        let when = |time_or_now| match time_or_now {
            TimeOrNow::Now => time,
            TimeOrNow::At(at) => at,
        };
        attr.mode = args.mode.map_or(attr.mode, |mode| mode & types::MODE_MASK);
        attr.uid = args.uid.unwrap_or(attr.uid);
        attr.gid = args.gid.unwrap_or(attr.gid);
        attr.atime = args.atime.map_or(attr.atime, when);
        attr.mtime = args.mtime.map_or(attr.mtime, when);
        attr.ctime = args.ctime.unwrap_or(time);
        if let Some(size) = args.size {
            attr.size = size;
            if self.options.keep {
                node.data.write().resize(usize::try_from(size).map_err(|_| Errno::EFBIG)?, 0);
            }
        }
        Ok(AttrOut { timeout: self.options.timeout, attr: *attr })
    }

    fn write(&self, number: u64, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let node = self.find(number)?;
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        if self.options.keep {
            let mut kept = node.data.write();
            let (start, end) = (offset as usize, usize::try_from(end).map_err(|_| Errno::EFBIG)?);
            if kept.len() < end {
                kept.resize(end, 0);
            }
            kept[start..end].copy_from_slice(data);
        }
        let mut attr = node.attr.lock();
        attr.size = attr.size.max(end);
        attr.blocks = attr.size.div_ceil(512);
        u32::try_from(data.len()).map_err(|_| Errno::EINVAL)
    }

    fn read(&self, number: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let node = self.find(number)?;
        let size = node.attr.lock().size;
        let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        if self.options.keep {
            let kept = node.data.read();
            let start = usize::try_from(offset).map_err(|_| Errno::EINVAL)?.min(kept.len());
            let end = start.saturating_add(len).min(kept.len());
            buf[..end - start].copy_from_slice(&kept[start..end]);
            return Ok(end - start);
        }
        buf[..len].fill(0);
        Ok(len)
    }

    fn readdir(&self, call: Call, offset: u64) {
        let node = match self.find(call.header().node) {
            Ok(node) => node,
            Err(errno) => return call.reply_error(errno),
        };
        let own = call.header().node;
        call.reply_dir(|out| {
            let up = node.parent.load(Ordering::Relaxed);
            for (cookie, name, ino) in [(1, b".".as_slice(), own), (2, b"..", up)] {
                let entry = DirEntryOut { name, ino, kind: FileKind::Directory, cookie };
                if offset < cookie && !out.push(&entry) {
                    return Ok(());
                }
            }
            let dir = node.dir.as_ref().ok_or(Errno::ENOTDIR)?.lock();
            let first = usize::try_from(offset.saturating_sub(2)).unwrap_or(usize::MAX);
            for (place, child) in dir.children.iter().enumerate().skip(first) {
                let Some(child) = child else { continue };
                let entry = DirEntryOut {
                    name: &child.name,
                    ino: child.ino,
                    kind: child.kind,
                    cookie: place as u64 + 3,
                };
                let fits = if out.is_plus() {
                    let attr = *self.find(child.ino)?.attr.lock();
                    out.push_plus(&entry, &self.entry(attr))
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
}

fn answer<T>(call: Call, result: Result<T, Errno>, reply: impl FnOnce(Call, T)) {
    match result {
        Ok(value) => reply(call, value),
        Err(errno) => call.reply_error(errno),
    }
}

impl Filesystem for NullFs {
    fn init(&self, kernel: &KernelInfo, config: &mut InitConfig) -> Result<(), Errno> {
        let wanted = Capabilities::NO_OPENDIR_SUPPORT
            | Capabilities::ATOMIC_O_TRUNC
            | Capabilities::EXPLICIT_INVAL_DATA;
        config.capabilities |= wanted & kernel.capabilities;
        Ok(())
    }

    fn dispatch(&self, call: Call) {
        let node = call.header().node;
        let operation = match call.operation() {
            Ok(operation) => operation,
            Err(errno) => return call.reply_error(errno),
        };
        match operation {
            Operation::Lookup { name } => {
                let found = self.lookup(node, name);
                if found == Err(Errno::ENOENT) && !self.options.timeout.is_zero() {
                    return call.reply_negative(self.options.timeout);
                }
                answer(call, found, |call, entry| call.reply_entry(&entry));
            }
            Operation::Getattr { .. } | Operation::Statx { .. } => {
                let attr = self.find(node).map(|node| *node.attr.lock());
                let timeout = self.options.timeout;
                answer(call, attr, |call, attr| call.reply_attr(&AttrOut { timeout, attr }));
            }
            Operation::Setattr(args) => {
                let result = self.setattr(node, &args);
                answer(call, result, |call, attr| call.reply_attr(&attr));
            }
            Operation::Create(args) => {
                let made = self.make(&call, args.name, args.mode & !args.umask, &[]);
                let open = OpenOut { flags: self.open_flags(args.flags), ..OpenOut::default() };
                answer(call, made, |call, entry| call.reply_create(&entry, &open));
            }
            Operation::Mknod { name, mode, umask, .. } => {
                let made = self.make(&call, name, mode & !umask, &[]);
                answer(call, made, |call, entry| call.reply_entry(&entry));
            }
            Operation::Mkdir { name, mode, umask } => {
                let made = self.make(&call, name, (mode & !umask) | libc::S_IFDIR, &[]);
                answer(call, made, |call, entry| call.reply_entry(&entry));
            }
            Operation::Symlink { name, target } => {
                let made = self.make(&call, name, libc::S_IFLNK | 0o777, target);
                answer(call, made, |call, entry| call.reply_entry(&entry));
            }
            Operation::Readlink => {
                answer(call, self.find(node), |call, node| call.reply_bytes(&node.target));
            }
            Operation::Unlink { name } => {
                let result = self.remove(node, name, false);
                answer(call, result, |call, ()| call.reply_ok());
            }
            Operation::Rmdir { name } => {
                let result = self.remove(node, name, true);
                answer(call, result, |call, ()| call.reply_ok());
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let result = self.rename((node, name), (new_parent, new_name), flags);
                answer(call, result, |call, ()| call.reply_ok());
            }
            Operation::Open { flags, .. } => {
                let empty = SetattrArgs { size: Some(0), ..SetattrArgs::default() };
                let truncated = if flags & libc::O_TRUNC as u32 != 0 {
                    self.setattr(node, &empty).map(|_| ())
                } else {
                    Ok(())
                };
                let open = OpenOut { flags: self.open_flags(flags), ..OpenOut::default() };
                answer(call, truncated, |call, ()| call.reply_open(&open));
            }
            Operation::Read(args) => {
                call.reply_with(args.size as usize, |buf| self.read(node, args.offset, buf));
            }
            Operation::Write(args) => {
                let result = self.write(node, args.offset, args.data);
                answer(call, result, |call, bytes| call.reply_written(bytes));
            }
            Operation::Readdir(args) | Operation::Readdirplus(args) => self.readdir(call, args.offset),
            Operation::Forget { .. } => {
                self.forget(node);
                call.reply_none();
            }
            Operation::BatchForget(list) => {
                list.for_each(|one| self.forget(one.node));
                call.reply_none();
            }
            Operation::Interrupt { .. } => call.reply_none(),
            Operation::Statfs => call.reply_statfs(&StatfsOut {
                blocks: 1 << 30,
                blocks_free: 1 << 30,
                blocks_available: 1 << 30,
                files: 1 << 30,
                files_free: 1 << 30,
                block_size: 4096,
                name_max: 255,
            }),
            Operation::Release(_)
            | Operation::Releasedir(_)
            | Operation::Fsync { .. }
            | Operation::Fsyncdir { .. }
            | Operation::Syncfs
            | Operation::Destroy => call.reply_ok(),
            // Asked once and then never again.
            Operation::Flush { .. }
            | Operation::Opendir { .. }
            | Operation::Access { .. }
            | Operation::Setxattr(_)
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Removexattr { .. }
            | Operation::Link { .. }
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
            | Operation::Unknown(_) => call.reply_error(Errno::ENOSYS),
        }
    }
}
