//! From requests to operations and back.
//!
//! Invariants: every request is answered once, here or on a worker; a request that goes to a worker has changed
//! nothing before, and is served there from its beginning.

use fuse::{Call, EntryOut, Operation};
use handover::Scope;
use types::{Errno, Ino};

use crate::{
    Client,
    io::FallocateArgs,
    metrics::Op,
    names::{MknodArgs, Place, ino},
    open::CreateArgs,
    turn::{Answer, Stop, Turn},
    watch::Label,
    xattr::XattrOut,
};

/// Serves one kind of request: counts it, does it, answers it.
macro_rules! answer {
    ($self:ident, $call:ident, $turn:ident, $op:ident, $result:expr, $reply:expr) => {{
        let result = $result;
        $self.finish($call, $turn, Op::$op, result, $reply)
    }};
}

impl Client {
    pub(crate) fn serve(&self, call: Call, turn: Turn) {
        let _scope = self.carry_out(call.header());
        self.serve_one(call, turn);
    }

    /// Longer than a function should be: it is the table of all operations, one arm each, and nothing else.
    fn serve_one(&self, call: Call, turn: Turn) {
        let header = *call.header();
        let at = match ino(header.node) {
            Ok(at) => at,
            // FORGETs of several nodes, and what concerns the connection, name no node.
            Err(_) if header.node == 0 => Ino::ROOT,
            Err(error) => return self.fail(call, Op::Other, error),
        };
        let place = |name| Place { parent: at, name };
        let operation = match call.operation() {
            Ok(operation) => operation,
            Err(error) => return self.fail(call, Op::Other, error),
        };
        match operation {
            Operation::Lookup { name } => {
                let result = self.lookup(turn, place(name));
                self.finish_lookup(call, turn, result);
            }
            Operation::Forget { lookups } => {
                self.forget(header.node, lookups);
                self.count(turn, Op::Forget);
                call.reply_none();
            }
            Operation::BatchForget(list) => {
                list.for_each(|one| self.forget(one.node, one.lookups));
                self.count(turn, Op::Forget);
                call.reply_none();
            }
            Operation::Getattr { .. } | Operation::Statx { .. } => {
                answer!(self, call, turn, Getattr, self.getattr(turn, at), |call, out| call.reply_attr(&out))
            }
            Operation::Setattr(args) => {
                answer!(self, call, turn, Setattr, self.setattr(turn, at, &args), |call, out| call
                    .reply_attr(&out))
            }
            Operation::Readlink => {
                answer!(self, call, turn, Readlink, self.mds.readlink(at).map_err(Stop::from), |call, out| {
                    call.reply_bytes(&out)
                })
            }
            Operation::Symlink { name, target } => {
                answer!(self, call, turn, Symlink, self.symlink(&header, place(name), target), |call, out| {
                    call.reply_entry(&out)
                })
            }
            Operation::Mknod { name, mode, rdev, umask } => {
                let node = MknodArgs { mode, rdev, umask };
                answer!(self, call, turn, Mknod, self.mknod(&header, place(name), node), |call, out| {
                    call.reply_entry(&out)
                })
            }
            Operation::Mkdir { name, mode, umask } => {
                answer!(
                    self,
                    call,
                    turn,
                    Mkdir,
                    self.mkdir(&header, place(name), mode, umask),
                    |call, out| call.reply_entry(&out)
                )
            }
            Operation::Unlink { name } => {
                answer!(self, call, turn, Unlink, self.unlink(place(name)), |call, ()| call.reply_ok())
            }
            Operation::Rmdir { name } => {
                answer!(self, call, turn, Rmdir, self.rmdir(place(name)), |call, ()| call.reply_ok())
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let result = self.serve_rename(place(name), new_parent, new_name, flags);
                answer!(self, call, turn, Rename, result, |call, ()| call.reply_ok())
            }
            Operation::Link { node, name } => {
                let result =
                    ino(node).map_err(Stop::from).and_then(|node| self.link(turn, node, place(name)));
                answer!(self, call, turn, Link, result, |call, out| call.reply_entry(&out))
            }
            Operation::Open { flags, kill_suidgid } => {
                let result = self.open(turn, at, flags, kill_suidgid);
                result.iter().for_each(|_| self.tell_opened(&header, at, flags));
                answer!(self, call, turn, Open, result, |call, out| call.reply_open(&out))
            }
            Operation::Create(args) => {
                let make = CreateArgs { flags: args.flags, mode: args.mode, umask: args.umask };
                let result = self.create(turn, &header, place(args.name), make);
                result.iter().for_each(|(entry, _)| self.tell_created(&header, entry.node));
                answer!(self, call, turn, Create, result, |call, (entry, open)| call
                    .reply_create(&entry, &open))
            }
            Operation::Tmpfile(args) => {
                let make = CreateArgs { flags: args.flags, mode: args.mode, umask: args.umask };
                let result = self.create_unnamed(&header, at, make);
                answer!(self, call, turn, Tmpfile, result, |call, (entry, open)| call
                    .reply_create(&entry, &open))
            }
            Operation::Read(args) => {
                self.count(turn, Op::Read);
                self.read(call, turn, &args);
            }
            Operation::Write(args) => {
                answer!(self, call, turn, Write, self.write(turn, &args), |call, bytes| call
                    .reply_written(bytes))
            }
            Operation::Statfs => {
                answer!(self, call, turn, Statfs, self.statfs(turn, at), |call, out| call.reply_statfs(&out))
            }
            Operation::Release(args) => {
                answer!(self, call, turn, Release, self.release(turn, args.fh), |call, ()| call.reply_ok())
            }
            Operation::Flush { fh, .. } => {
                answer!(self, call, turn, Flush, self.flush(turn, fh), |call, ()| call.reply_ok())
            }
            Operation::Fsync { fh, datasync: _ } => {
                answer!(self, call, turn, Fsync, self.fsync(turn, fh), |call, ()| call.reply_ok())
            }
            Operation::Opendir { .. } if self.options.linked.is_some() => {
                let open = self.open_linked_dir(turn, at);
                answer!(self, call, turn, Opendir, open, |call, open| call.reply_open(&open))
            }
            // Directories have no handles: with this answer the kernel stops asking, and caches directories.
            Operation::Opendir { .. } => self.refuse(call, turn, Op::Opendir, Errno::ENOSYS),
            Operation::Readdir(args) => {
                let look = self.before_listing(turn, at, args.offset);
                self.finish(call, turn, Op::Readdir, look, |call, ()| {
                    call.reply_dir(|out| self.readdir(at, args.offset, out));
                });
            }
            Operation::Readdirplus(args) => {
                let look = self
                    .before_listing(turn, at, args.offset)
                    .and_then(|()| self.visit_listed(turn, at, args.offset));
                self.finish(call, turn, Op::Readdirplus, look, |call, ()| {
                    call.reply_dir(|out| self.readdirplus(at, args.offset, args.size as usize, out));
                });
            }
            Operation::Releasedir(_) => {
                answer!(self, call, turn, Releasedir, Ok(()), |call, ()| call.reply_ok())
            }
            Operation::Fsyncdir { .. } => {
                answer!(self, call, turn, Fsyncdir, self.fsyncdir(turn, at), |call, ()| call.reply_ok())
            }
            Operation::Setxattr(args) => {
                answer!(self, call, turn, Setxattr, self.setxattr(turn, header.uid, at, &args), |call, ()| {
                    call.reply_ok()
                })
            }
            Operation::Getxattr { name, size } => {
                answer!(self, call, turn, Getxattr, self.getxattr(turn, at, name, size), reply_xattr)
            }
            Operation::Listxattr { size } => {
                answer!(self, call, turn, Listxattr, self.listxattr(header.uid, at, size), reply_xattr)
            }
            Operation::Removexattr { name } => {
                answer!(
                    self,
                    call,
                    turn,
                    Removexattr,
                    self.removexattr(turn, header.uid, at, name),
                    |call, ()| call.reply_ok()
                )
            }
            Operation::Fallocate { fh, offset, length, mode } => {
                let args = FallocateArgs { fh, offset, length, mode };
                answer!(self, call, turn, Fallocate, self.fallocate(turn, &header, &args), |call, ()| call
                    .reply_ok())
            }
            Operation::Lseek { fh, offset, whence } => {
                answer!(self, call, turn, Lseek, self.lseek(turn, fh, offset, whence), |call, out| call
                    .reply_lseek(out))
            }
            Operation::CopyFileRange(args) => {
                answer!(
                    self,
                    call,
                    turn,
                    CopyFileRange,
                    self.copy_file_range(turn, &header, &args),
                    |call, out| call.reply_copied(out)
                )
            }
            Operation::Syncfs => {
                answer!(self, call, turn, Syncfs, self.syncfs(turn), |call, ()| call.reply_ok())
            }
            // Locks and permissions are the kernel's (see `init` and the mount option default_permissions);
            // the rest is for other kinds of file systems.
            Operation::Access { .. }
            | Operation::Getlk(_)
            | Operation::Setlk(_)
            | Operation::Setlkw(_)
            | Operation::Poll { .. }
            | Operation::Bmap { .. }
            | Operation::Unknown(_) => self.refuse(call, turn, Op::Other, Errno::ENOSYS),
            Operation::Ioctl(_) => self.refuse(call, turn, Op::Other, Errno::ENOTTY),
            Operation::Interrupt { .. } => call.reply_none(),
            Operation::Destroy => call.reply_ok(),
        }
    }

    /// That there is no such name is an answer that the kernel may keep.
    fn finish_lookup(&self, call: Call, turn: Turn, result: Answer<EntryOut>) {
        let entry = match result {
            Ok(entry) => Ok(Some(entry)),
            Err(Stop::Failed(Errno::ENOENT)) => Ok(None),
            Err(stop) => Err(stop),
        };
        self.finish(call, turn, Op::Lookup, entry, |call, entry| match entry {
            Some(entry) => call.reply_entry(&entry),
            None => call.reply_negative(self.options.entry_timeout),
        });
    }

    fn before_listing(&self, turn: Turn, dir: Ino, cookie: u64) -> Answer<()> {
        if cookie == 0 { self.visit_dir(turn, dir) } else { Ok(()) }
    }

    fn serve_rename(&self, from: Place<'_>, new_parent: u64, new_name: &[u8], flags: u32) -> Answer<()> {
        self.rename(from, Place { parent: ino(new_parent)?, name: new_name }, flags)
    }

    fn finish<T>(&self, call: Call, turn: Turn, op: Op, result: Answer<T>, reply: impl FnOnce(Call, T)) {
        self.count(turn, op);
        match result {
            Ok(value) => reply(call, value),
            Err(Stop::MustWait) => self.defer(call, op),
            Err(Stop::Failed(error)) => self.fail(call, op, error),
        }
    }

    /// A request counts once, when the transport brings it.
    fn count(&self, turn: Turn, op: Op) {
        if turn == Turn::Transport {
            self.metrics.request(op);
        }
    }

    fn refuse(&self, call: Call, turn: Turn, op: Op, error: Errno) {
        self.count(turn, op);
        call.reply_error(error);
    }

    pub(crate) fn fail(&self, call: Call, op: Op, error: Errno) {
        self.metrics.error(op, error);
        call.reply_error(error);
    }

    /// Has the request served again on a worker.
    pub(crate) fn defer(&self, call: Call, op: Op) {
        Scope::put_off();
        let label = Label { operation: op.name(), ino: call.header().node };
        match self.this() {
            Some(client) => self.pool.defer(label, move || client.serve(call, Turn::Worker)),
            // The client is being dropped: nobody waits for the answer.
            None => call.reply_error(Errno::EIO),
        }
    }
}

fn reply_xattr(call: Call, out: XattrOut) {
    match out {
        XattrOut::Size(bytes) => call.reply_xattr_size(bytes),
        XattrOut::Bytes(bytes) => call.reply_bytes(&bytes),
    }
}
