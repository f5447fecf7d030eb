//! The kernel's requests. All but those that need nobody's answer go to a thread of the pools.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use fuse::{
    AttrOut, Call, Capabilities, DirBuffer, DirEntryOut, EntryOut, Filesystem, Header, InitConfig,
    KernelInfo, OpenOut, Operation, ReadArgs, StatfsOut, TransportKind,
};
use handover::Scope;
use net::trace;
use proto::{attr::Caller, meter::Class};
use types::{Attr, Errno, Ino, NAME_MAX};

use crate::{
    Remote,
    access::{Access, is_append, is_direct, is_sync},
    ahead,
    dirs::Page,
    line::Arrived,
    lock_calls::{in_the_way, process, wish},
    names::Place,
    reading::Answers,
    shape::AllocateArgs,
    writing::WriteHow,
    xattr::Xattr,
};

/// Bytes of an entry of a listing beside its name, with attributes and without.
const PLUS_HEAD: usize = 128 + 24;
const PLAIN_HEAD: usize = 24;
/// `st_blksize`.
const PIECE: u32 = 128 << 10;
/// `f_bsize`.
const BLOCK: u64 = 4096;
/// As many as inode numbers allow; what is used is taken off.
const INODES: u64 = 1 << 40;

impl Filesystem for Remote {
    fn init(&self, kernel: &KernelInfo, config: &mut InitConfig) -> Result<(), Errno> {
        let wanted = Capabilities::ASYNC_READ
            | Capabilities::ASYNC_DIO
            | Capabilities::BIG_WRITES
            | Capabilities::DONT_MASK
            | Capabilities::READDIRPLUS
            | Capabilities::READDIRPLUS_AUTO
            | Capabilities::PARALLEL_DIROPS
            | Capabilities::POSIX_ACL
            | Capabilities::HANDLE_KILLPRIV_V2
            | Capabilities::SETXATTR_EXT
            | Capabilities::AUTO_INVAL_DATA;
        let wanted = wanted | Capabilities::POSIX_LOCKS | Capabilities::FLOCK_LOCKS;
        // Each program that waits for a lock would keep one of the few entries of its queue.
        if kernel.transport == TransportKind::IoUring {
            tracing::error!("a mount of a cluster is served over /dev/fuse");
            return Err(Errno::EINVAL);
        }
        config.capabilities |= wanted & kernel.capabilities;
        // Nothing is to be written back from its cache but what was changed through mappings.
        config.capabilities -= Capabilities::WRITEBACK_CACHE;
        if self.options.passthrough && kernel.capabilities.contains(Capabilities::PASSTHROUGH) {
            config.capabilities |= Capabilities::PASSTHROUGH;
            config.max_stack_depth = 1;
            self.through.attach(kernel.backing.clone());
        }
        // Without leases nobody says when pages of mappings are to go.
        let mappings = kernel.capabilities & Capabilities::DIRECT_IO_ALLOW_MMAP;
        // Which pages the kernel has the next process would not know.
        if self.is_guarded() {
            config.capabilities |= Capabilities::HAS_RESEND & kernel.capabilities;
        }
        if !self.is_guarded()
            && self.keeps()
            && !mappings.is_empty()
            && self.serve_mappings(kernel.notifier.clone())
        {
            config.capabilities |= mappings;
        } else {
            config.capabilities -= Capabilities::DIRECT_IO_ALLOW_MMAP;
        }
        if kernel.can_prune() {
            self.pruning.attach(kernel.notifier.clone());
        }
        config.max_write = 1 << 20;
        config.time_granularity_ns = 1;
        // Without a page cache nobody reads ahead: programs that go by it ask for fewer and larger pieces.
        config.block_size = PIECE;
        Ok(())
    }

    fn resume(&self) -> Result<(), Errno> {
        self.take_over()
    }

    fn dispatch(&self, call: Call) {
        let header = *call.header();
        self.comes_again(header.unique);
        let for_data = match call.operation() {
            Err(error) => return call.reply_error(error),
            Ok(Operation::Forget { lookups }) => {
                self.forget(header.node, lookups);
                return call.reply_none();
            }
            Ok(Operation::BatchForget(list)) => {
                list.for_each(|one| self.forget(one.node, one.lookups));
                return call.reply_none();
            }
            Ok(Operation::Interrupt { unique }) => {
                self.interrupt(Scope::number_of(unique));
                return call.reply_none();
            }
            Ok(Operation::Lookup { name }) if !self.is_guarded() => {
                let dir = Ino::from_raw(header.node);
                match dir.and_then(|dir| self.kept_lookup(Place { dir, name })) {
                    Some(found) => return finish(call, found, reply_entry),
                    None => false,
                }
            }
            Ok(Operation::Getattr { .. } | Operation::Statx { .. }) => {
                match Ino::from_raw(header.node).and_then(|ino| self.kept_attr(ino)) {
                    Some(attr) => return reply_attr(call, attr),
                    None => self.backlog.has_number(header.node),
                }
            }
            Ok(Operation::Setlk(args)) => return self.serve_lock(call, args, false),
            Ok(Operation::Setlkw(args)) => return self.serve_lock(call, args, true),
            // Most who close a file have no lock on it.
            Ok(Operation::Flush { fh, lock_owner }) if self.is_flushed(header.node, fh, lock_owner) => {
                return call.reply_ok();
            }
            Ok(Operation::Flush { .. } | Operation::Release(_)) => self.backlog.has_number(header.node),
            Ok(Operation::Destroy | Operation::Releasedir(_)) => {
                return call.reply_ok();
            }
            // Directories are not to be cached, so there is an answer.
            Ok(Operation::Opendir { .. }) => return call.reply_open(&OpenOut::default()),
            Ok(Operation::Read(args)) => {
                let ino = Ino::from_raw(header.node);
                // What programs read has an owner of locks; what the kernel reads for its pages has none.
                if let Some(ino) = ino.filter(|_| args.lock_owner.is_none()) {
                    self.reads_pages(ino);
                }
                let size = args.size as usize;
                if let Some(found) = ino.and_then(|ino| self.find_now(ino, args.fh, args.offset, size)) {
                    return call.reply_with(size, |buf| self.fill(args.offset, buf, found));
                }
                let Some(ino) = ino else { return call.reply_error(Errno::ESTALE) };
                if let Some(call) = self.serve_in_run(call, ino, &args) {
                    self.defer(call, true);
                }
                return;
            }
            Ok(Operation::Write(_)) => {
                if let Some(call) = self.keep_at_once(call).and_then(|call| self.write_at_once(call)) {
                    self.defer(call, true);
                }
                return;
            }
            Ok(Operation::Fsync { .. } | Operation::Fallocate { .. } | Operation::Lseek { .. }) => true,
            Ok(_) => false,
        };
        self.defer(call, for_data);
    }
}

/// Answers with what came of it.
fn finish<T>(call: Call, result: Result<T, Errno>, reply: impl FnOnce(Call, T)) {
    match result {
        Ok(value) => reply(call, value),
        Err(error) => {
            say(call.header().node, error);
            call.reply_error(error);
        }
    }
}

/// What a program is refused because something failed is said with the id that the servers' logs have, too.
fn say(ino: u64, error: Errno) {
    if Class::of(error) == Class::Failed {
        tracing::warn!(request = %trace::current(), ino, %error, "a program's request failed");
    }
}

fn caller(header: &Header, umask: u32) -> Caller {
    Caller { uid: header.uid, gid: header.gid, umask }
}

fn entry(attr: Attr) -> EntryOut {
    EntryOut {
        node: attr.ino.get(),
        // Inode numbers are never used again.
        generation: 0,
        entry_timeout: Duration::ZERO,
        attr_timeout: Duration::ZERO,
        attr,
    }
}

fn reply_entry(call: Call, attr: Attr) {
    call.reply_entry(&entry(attr));
}

fn reply_attr(call: Call, attr: Attr) {
    call.reply_attr(&AttrOut { timeout: Duration::ZERO, attr });
}

fn reply_ok(call: Call, (): ()) {
    call.reply_ok();
}

fn reply_created(call: Call, (attr, out): (Attr, OpenOut)) {
    call.reply_create(&entry(attr), &out);
}

fn reply_xattr(call: Call, out: Xattr) {
    match out {
        Xattr::Size(bytes) => call.reply_xattr_size(bytes),
        Xattr::Bytes(bytes) => call.reply_bytes(&bytes),
    }
}

/// What comes in one piece goes to the kernel as it came, and so does what was asked for ahead.
pub(crate) fn answer_read(
    remote: &Remote,
    call: Call,
    (offset, size): (u64, usize),
    answers: Result<Answers, Errno>,
) {
    let ino = call.header().node;
    match answers {
        Ok(Answers::Whole(got)) => {
            call.reply_bytes(&got.bytes);
            remote.reuse(got);
        }
        Ok(Answers::Ahead(pieces)) => reply_pieces(call, &pieces),
        Ok(answers) => call
            .reply_with(size, |buf| remote.fill(offset, buf, answers).inspect_err(|error| say(ino, *error))),
        Err(error) => {
            say(ino, error);
            call.reply_error(error);
        }
    }
}

pub(crate) fn reply_pieces(call: Call, pieces: &[ahead::Piece<Arc<Arrived>>]) {
    let pieces: Vec<&[u8]> = pieces.iter().map(|(came, range)| &(**came).as_ref()[range.clone()]).collect();
    call.reply_pieces(&pieces);
}

impl Remote {
    /// A thread of the pools serves it.
    fn defer(&self, call: Call, for_data: bool) {
        let Some(remote) = self.this.upgrade() else { return call.reply_error(Errno::EIO) };
        let pool = if for_data { &self.data_pool } else { &self.pool };
        let request = self.traces.next();
        pool.defer(move || {
            let _request = trace::enter(request);
            remote.serve(call);
        });
    }

    /// Longer than a function should be: it is the table of all operations, one arm each, and nothing else.
    fn serve(&self, call: Call) {
        let header = *call.header();
        let _carrying = self.carry_out(&header);
        let at = match Ino::from_raw(header.node) {
            Some(at) => at,
            None if header.node == 0 => Ino::ROOT,
            None => return call.reply_error(Errno::ESTALE),
        };
        let place = |name| Place { dir: at, name };
        let operation = match call.operation() {
            Ok(operation) => operation,
            Err(error) => return call.reply_error(error),
        };
        match operation {
            Operation::Lookup { name } => {
                let found = self.lookup(place(name));
                finish(call, found, reply_entry);
            }
            Operation::Getattr { .. } | Operation::Statx { .. } => {
                finish(call, self.getattr(at), reply_attr);
            }
            Operation::Setattr(args) => {
                let set = self.setattr(at, &args);
                finish(call, set, reply_attr);
            }
            Operation::Readlink => {
                finish(call, self.readlink(at), |call, target| call.reply_bytes(&target));
            }
            Operation::Symlink { name, target } => {
                let made = self.symlink(caller(&header, 0), place(name), target);
                finish(call, made, reply_entry);
            }
            Operation::Mknod { name, mode, rdev, umask } => {
                let made = self.mknod(caller(&header, umask), place(name), mode, rdev);
                finish(call, made, reply_entry);
            }
            Operation::Mkdir { name, mode, umask } => {
                let made = self.mkdir(caller(&header, umask), place(name), mode);
                finish(call, made, reply_entry);
            }
            Operation::Unlink { name } => {
                let done = self.unlink(place(name));
                finish(call, done, reply_ok);
            }
            Operation::Rmdir { name } => {
                let done = self.rmdir(place(name));
                finish(call, done, reply_ok);
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let to = Ino::from_raw(new_parent).ok_or(Errno::ESTALE);
                let done = to.and_then(|dir| self.rename(place(name), Place { dir, name: new_name }, flags));
                finish(call, done, reply_ok);
            }
            Operation::Link { node, name } => {
                let existing = Ino::from_raw(node).ok_or(Errno::ESTALE);
                let made = existing.and_then(|existing| self.link(existing, place(name)));
                finish(call, made, reply_entry);
            }
            Operation::Setxattr(args) => {
                let done = self.setxattr(at, &args);
                finish(call, done, reply_ok);
            }
            Operation::Getxattr { name, size } => {
                let value = self.getxattr(at, name, size);
                finish(call, value, reply_xattr);
            }
            Operation::Listxattr { size } => {
                finish(call, self.listxattr(header.uid, at, size), reply_xattr);
            }
            Operation::Removexattr { name } => {
                let done = self.removexattr(at, name);
                finish(call, done, reply_ok);
            }
            Operation::Readdir(args) => self.serve_listing(call, at, args, false),
            Operation::Readdirplus(args) => self.serve_listing(call, at, args, true),
            Operation::Fsyncdir { .. } => finish(call, self.fsync_dir(at), reply_ok),
            Operation::Statfs => finish(call, self.statfs(), |call, out| call.reply_statfs(&out)),
            Operation::Open { flags, kill_suidgid: _ } => {
                let opened = Access::from_flags(flags)
                    .and_then(|access| self.open(at, access))
                    .and_then(|file| self.open_for_kernel(&file, flags));
                finish(call, opened, |call, out| call.reply_open(&out));
            }
            Operation::Create(args) => {
                let place = Place { dir: at, name: args.name };
                let made = Access::from_flags(args.flags)
                    .and_then(|access| self.create(caller(&header, args.umask), place, args.mode, access))
                    .and_then(|made| self.create_for_kernel(made, args.flags));
                finish(call, made, reply_created);
            }
            Operation::Tmpfile(args) => {
                let made = Access::from_flags(args.flags).and_then(|access| {
                    self.create_unnamed(caller(&header, args.umask), at, args.mode, access)
                });
                let made = made.and_then(|made| self.create_for_kernel(made, args.flags));
                finish(call, made, reply_created);
            }
            Operation::Release(args) => {
                self.through.leave(at);
                self.close(args.fh);
                call.reply_ok();
            }
            Operation::Read(args) => self.serve_read(call, args),
            Operation::Write(_) => self.serve_write(call, Instant::now()),
            Operation::Fsync { fh, .. } => {
                finish(call, self.file(fh).and_then(|file| self.fsync(&file)), reply_ok);
            }
            Operation::Fallocate { fh, offset, length, mode } => {
                let args = AllocateArgs { offset, length, mode };
                finish(call, self.file(fh).and_then(|file| self.allocate(&file, args)), reply_ok);
            }
            Operation::Lseek { fh, offset, whence } => {
                let found = self.file(fh).and_then(|file| self.seek(&file, offset, whence));
                finish(call, found, |call, at| call.reply_lseek(at));
            }
            Operation::Flush { fh, lock_owner } => {
                let settled = self.openings.get(fh).map_or(Ok(()), |file| self.settle_back(&file));
                self.flush_locks(at, fh, process(lock_owner));
                finish(call, settled, reply_ok);
            }
            Operation::Getlk(args) => {
                let found = wish(at, &args, false).and_then(|wish| self.find_lock(&wish));
                finish(call, found, |call, found| call.reply_lock(&in_the_way(&args, found)));
            }
            Operation::Ioctl(_) => call.reply_error(Errno::ENOTTY),
            // Permissions are the kernel's; copies it makes itself; the rest is other file systems', or was answered before.
            Operation::Forget { .. }
            | Operation::BatchForget(_)
            | Operation::Opendir { .. }
            | Operation::Releasedir(_)
            | Operation::Access { .. }
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::CopyFileRange(_)
            | Operation::Poll { .. }
            | Operation::Interrupt { .. }
            | Operation::Bmap { .. }
            | Operation::Syncfs
            | Operation::Destroy
            | Operation::Unknown(_) => call.reply_error(Errno::ENOSYS),
        }
    }

    /// `since`: when it came. What was changed through a mapping nobody writes again, so that is tried for longer.
    pub(crate) fn serve_write(&self, mut call: Call, since: Instant) {
        let Ok(Operation::Write(args)) = call.operation() else { return call.reply_error(Errno::ESTALE) };
        // Written back from pages, it goes where they are; the flags are nobody's.
        let how = WriteHow {
            append: is_append(args.flags) && !args.cache,
            sync: is_sync(args.flags) && !args.cache,
            kill_suidgid: args.kill_suidgid,
        };
        let past = args.cache || is_direct(args.flags);
        let (cache, fh, offset, len) = (args.cache, args.fh, args.offset, args.data.len());
        // What may be tried again stays with its call.
        let bytes = if cache {
            Ok(Bytes::copy_from_slice(args.data))
        } else {
            call.take_data().map(Bytes::from_owner)
        };
        let written = bytes.and_then(|bytes| {
            let file = self.file(fh)?;
            let write = if past { Remote::write_now } else { Remote::write_bytes };
            write(self, &file, offset, bytes, how)
        });
        if cache && written == Err(Errno::EIO) && since.elapsed() < self.options.patience {
            return self.write_back_later(call, since);
        }
        let range = if how.append { 0..0 } else { offset..offset.saturating_add(len as u64) };
        self.answer_written(call, (!cache).then_some(range), written);
    }

    /// `past`: it went past the kernel's pages, and what it wrote; of an append it is not known where.
    pub(crate) fn answer_written(&self, call: Call, past: Option<Range<u64>>, written: Result<usize, Errno>) {
        let ino = Ino::from_raw(call.header().node);
        let answer = move |call| {
            finish(call, written, |call, bytes| {
                call.reply_written(u32::try_from(bytes).unwrap_or(u32::MAX));
            });
        };
        match ino.filter(|ino| self.dropping.has(*ino)).zip(past) {
            None => answer(call),
            // Pages that were read while it was written may have what was there before.
            Some((ino, range)) => self.drop_written(ino, range, Box::new(move || answer(call))),
        }
    }

    fn serve_read(&self, call: Call, args: ReadArgs) {
        let file = match self.file(args.fh) {
            Ok(file) => file,
            Err(error) => return call.reply_error(error),
        };
        let range = (args.offset, args.size as usize);
        let answers = self.ask_or_find(&file, range.0, range.1);
        answer_read(self, call, range, answers);
    }

    fn serve_listing(&self, call: Call, dir: Ino, args: ReadArgs, plus: bool) {
        let head = if plus { PLUS_HEAD } else { PLAIN_HEAD };
        let at_most = (args.size as usize / (head + 8)).max(1);
        let page = match self.list(dir, args.offset, at_most, plus) {
            Ok(page) => page,
            Err(error) => {
                say(dir.get(), error);
                return call.reply_error(error);
            }
        };
        call.reply_dir(|out| {
            self.pack(page, out);
            Ok(())
        });
    }

    /// What does not fit is asked for again; its references go back.
    fn pack(&self, page: Page, out: &mut DirBuffer<'_>) {
        let mut full = false;
        for listed in page.entries {
            let wire = DirEntryOut {
                name: &listed.name,
                ino: listed.ino.get(),
                kind: listed.kind,
                cookie: listed.cookie,
            };
            match listed.attr.filter(|_| listed.name != b"." && listed.name != b"..") {
                Some(attr) if !full && out.push_plus(&wire, &entry(attr)) => self.told(attr.ino),
                Some(attr) => {
                    full = true;
                    self.untold(attr.ino);
                }
                None => full |= full || !out.push(&wire),
            }
        }
    }

    fn statfs(&self) -> Result<StatfsOut, Errno> {
        let (total, free, inodes) = self.space()?;
        Ok(StatfsOut {
            blocks: total / BLOCK,
            blocks_free: free / BLOCK,
            blocks_available: free / BLOCK,
            files: INODES,
            files_free: INODES.saturating_sub(inodes),
            block_size: BLOCK as u32,
            name_max: NAME_MAX as u32,
        })
    }
}
