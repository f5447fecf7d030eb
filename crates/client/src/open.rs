//! Opening and closing files, and what is kept of an open one.
//!
//! Invariants:
//! - The arbiter decides how the kernel treats an open file; the shell here carries it out under the inode's
//!   lock, so that two opens of one file never disagree about its backing file.
//! - A file is registered for passthrough once per inode, and let go when the last such open file is gone.
//! - Reads may pass us by, writes never do (the arbiter sees to that): quotas, synchronous writes and set-id bits
//!   rely on it.

use std::sync::{Arc, atomic::Ordering};

use fuse::{EntryOut, Header, OpenOut};
use handover::Scope;
use lease::{Closed, Mode, OpenRequest};
use mds::{FileMode, Found, NewNode, SetAttr, SetTime};
use types::{Errno, FileKind, Ino, ProjectId, SAU_BYTES, TierId};

use crate::{
    Client,
    access::{Access, open_flags},
    attr::atime_due,
    inode::{InodeRef, State},
    names::{Place, caller},
    open_file::OpenFile,
    passthrough::opening_waits,
    policies::Waits,
    turn::{Answer, Stop, Turn},
};

/// What CREATE and TMPFILE carry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreateArgs {
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
}

impl Client {
    pub(crate) fn open(&self, turn: Turn, ino: Ino, flags: u32, kill_suidgid: bool) -> Answer<OpenOut> {
        let access = Access::from_flags(flags)?;
        self.visit(turn, ino)?;
        let (inode, found) = self.inodes.acquire_if(ino, |found| {
            turn.wait_if(found.data.stale_live || access.truncate && found.attr.size > SAU_BYTES)
        })?;
        turn.wait_if(access.truncate && self.ds.truncating_waits(&inode.object, 0))?;
        turn.wait_if(opening_waits(&*inode.lock_in(turn)?, access))?;
        if found.data.stale_live
            && let Err(error) = inode.settle_if_idle()
            && (access.write || access.truncate)
        {
            return Err(error.into());
        }
        // Cutting writes, also through a descriptor that then only reads.
        if access.write || access.truncate {
            inode.add_writer();
        }
        let truncated = if access.truncate { self.truncate_opened(&inode, kill_suidgid) } else { Ok(()) };
        if access.truncate && (truncated.is_err() || !access.write) {
            inode.end_write();
        }
        truncated?;
        self.opened(turn, inode, &found, access)
    }

    pub(crate) fn create(
        &self,
        turn: Turn,
        header: &Header,
        at: Place<'_>,
        args: CreateArgs,
    ) -> Answer<(EntryOut, OpenOut)> {
        let access = Access::from_flags(args.flags)?;
        let new = NewNode {
            kind: FileKind::Regular,
            mode: args.mode & types::MODE_MASK,
            rdev: 0,
            target: None,
            for_write: false,
        };
        match self.mds.create(&caller(header, args.umask), at.parent, at.name, &new) {
            Ok(found) => self.created(&found, access),
            // Made by somebody else since the kernel looked, or by the daemon before this one for the same request.
            Err(Errno::EEXIST) if !access.exclusive || Scope::comes_again() => {
                let found = self.mds.lookup(at.parent, at.name)?;
                let open = self.open(turn, found.attr.ino, args.flags, false)?;
                // Its size may be another now. Nobody will close what is not answered.
                let entry = self
                    .mds
                    .find(found.attr.ino)
                    .map_err(Stop::from)
                    .and_then(|found| self.entry(turn, found));
                entry.map(|entry| (entry, open)).inspect_err(|_| self.close_handle(open.fh))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// `O_TMPFILE`: a file without a name, which LINK may give it later.
    pub(crate) fn create_unnamed(
        &self,
        header: &Header,
        parent: Ino,
        args: CreateArgs,
    ) -> Answer<(EntryOut, OpenOut)> {
        let access = Access::from_flags(args.flags)?;
        let mode = args.mode & types::MODE_MASK;
        let found = self.mds.create_unnamed(&caller(header, args.umask), parent, mode)?;
        self.created(&found, access)
    }

    pub(crate) fn release(&self, turn: Turn, handle: u64) -> Answer<()> {
        self.file(handle)?.inode.wait_for_lock(turn)?;
        self.close_handle(handle);
        Ok(())
    }

    pub(crate) fn close_handle(&self, handle: u64) {
        if let Some(file) = self.files.remove(handle) {
            self.close(&file);
        }
    }

    /// Ends an open file: at RELEASE, or at the end of the mount.
    pub(crate) fn close(&self, file: &OpenFile) {
        let inode = &file.inode;
        self.strike_opening(file);
        {
            let mut state = inode.lock();
            self.note_unseen_writes(inode.ino, file.access, file.mode);
            let version = self.versions.get(inode.ino);
            let closed = self.arbiter.lock().close(inode.ino, file.mode, file.access.write, version);
            self.after_close(inode, &mut state, closed);
        }
        self.end_use(inode, file.access);
        self.tell_closed(inode.ino);
    }

    /// The file is new, so nobody else has it open and there is nothing to wait for.
    fn created(&self, found: &Found, access: Access) -> Answer<(EntryOut, OpenOut)> {
        let inode = self.inodes.acquire_created(found)?;
        if access.write {
            inode.add_writer();
        }
        let open = self.opened(Turn::Worker, inode, found, access)?;
        let timeout = self.attr_timeout(&found.attr, false);
        Ok((self.held_entry(found.attr, timeout), open))
    }

    fn truncate_opened(&self, inode: &InodeRef, kill_suidgid: bool) -> Result<(), Errno> {
        inode.before_change()?;
        let set = SetAttr { size: Some(0), mtime: Some(SetTime::Now), kill_suidgid, ..SetAttr::default() };
        let found = self.resize_open(inode, 0, &set)?;
        inode.note_mode(found.attr.mode);
        Ok(())
    }

    /// The last steps of every open. When they fail, or have to wait after all, the write that was begun ends.
    fn opened(&self, turn: Turn, inode: InodeRef, found: &Found, access: Access) -> Answer<OpenOut> {
        let limit_seen = self.mds.quota_changes();
        let limited = access.write && self.is_limited(found.attr.project);
        let waits = self.apply_policy(&inode, found.data.mode).at_close && access.write;
        self.ds.open(&inode.object, access.kind());
        let (mode, keep_cache, backing) =
            self.grant(turn, &inode, access).inspect_err(|_| self.end_use(&inode, access))?;
        let kept = access.no_atime || self.options.no_atime;
        let due = access.read && !kept && atime_due(&found.attr, self.now());
        if due && mode == Mode::Passthrough {
            inode.was_read(Turn::Worker, self.now())?;
        }
        let file = Arc::new(OpenFile::new(inode, access, mode, (limited, limit_seen)));
        file.atime_due.store(due && mode != Mode::Passthrough, Ordering::Relaxed);
        match self.files.insert(file.clone()) {
            Some(fh) => {
                self.write_down_opening(fh, &file);
                Ok(OpenOut { fh, flags: open_flags(mode, keep_cache, waits), backing })
            }
            None => {
                self.close(&file);
                Err(Errno::EMFILE.into())
            }
        }
    }

    /// Tells the data server what holds for the file now. A policy that cannot be read leaves what held before.
    pub(crate) fn apply_policy(&self, inode: &InodeRef, own: Option<FileMode>) -> Waits {
        if !self.policies.is_active() && own.is_none() {
            return Waits::default();
        }
        match self.policies.of_opened(inode.ino, own) {
            Ok((policy, waits)) => {
                let mut state = inode.lock();
                state.waits = waits;
                if state.policy != Some(policy) {
                    self.ds.set_policy(&inode.object, policy);
                    state.policy = Some(policy);
                }
                waits
            }
            Err(error) => {
                tracing::warn!(ino = inode.ino.get(), %error, "a file's policy could not be found");
                inode.lock().waits
            }
        }
    }

    fn end_use(&self, inode: &InodeRef, access: Access) {
        self.ds.close(&inode.object, access.kind());
        if access.write {
            inode.end_write();
        }
    }

    /// Must growth be asked for?
    pub(crate) fn is_limited(&self, project: ProjectId) -> bool {
        // When the quota cannot be read, asking finds out why.
        project != ProjectId::NONE
            && !self.mds.quota_get(project).is_ok_and(|quota| quota.limits.bytes.is_none())
    }

    /// As it was at the opening, unless some quota has changed since.
    pub(crate) fn is_limited_now(&self, file: &OpenFile) -> bool {
        let changes = self.mds.quota_changes();
        if file.limit_seen.swap(changes, Ordering::AcqRel) != changes {
            // Of what cannot be read, asking finds out why.
            let limited = self.mds.find(file.inode.ino).map_or(true, |now| self.is_limited(now.attr.project));
            file.limited.store(limited, Ordering::Release);
        }
        file.limited.load(Ordering::Acquire)
    }

    /// Asks the arbiter, and does what it decides.
    fn grant(
        &self,
        turn: Turn,
        inode: &InodeRef,
        access: Access,
    ) -> Answer<(Mode, bool, Option<fuse::BackingId>)> {
        let ino = inode.ino;
        let mut state = inode.lock_in(turn)?;
        // Others may have opened and closed it since this opening looked.
        turn.wait_if(opening_waits(&state, access))?;
        if access.write {
            self.end_if_lingering(inode, &mut state);
        }
        let mut request = OpenRequest {
            read: access.read,
            write: access.write,
            direct: access.direct,
            // The page cache would end the file at its known size; asked, the ds says that its end is lost.
            end_is_lost: self.ds.end_is_lost(&inode.object),
            direct_mmap: self.kernel_maps_direct_files(),
            wholly_in: if self.passthrough_is_on() { self.wholly_in(inode) } else { None },
            passthrough_allowed: self.passthrough_is_on(),
            version: self.versions.get(ino),
        };
        let mut grant = self.arbiter.lock().open(ino, request);
        if grant.mode.is_passthrough() && !self.begin_passthrough(inode, &mut state) {
            let mut arbiter = self.arbiter.lock();
            let closed = arbiter.close(ino, grant.mode, access.write, request.version);
            debug_assert!(closed.is_some());
            arbiter.end_passthrough(ino);
            request.passthrough_allowed = false;
            grant = arbiter.open(ino, request);
        }
        if access.may_map_writable() && grant.mode.is_passthrough() {
            let allowed =
                inode.begin(&mut state, false).and_then(|()| self.allow_mapped_writes(inode, &mut state));
            if let Err(error) = allowed {
                let closed = self.arbiter.lock().close(ino, grant.mode, access.write, request.version);
                self.after_close(inode, &mut state, closed);
                return Err(error.into());
            }
        }
        self.note_unseen_writes(ino, access, grant.mode);
        inode.cached_readers.store(self.arbiter.lock().invalidate_on_write(ino), Ordering::Release);
        let backing = state.backing_id().filter(|_| grant.mode.is_passthrough());
        Ok((grant.mode, grant.keep_cache, backing))
    }

    /// Before and after an open file whose writes go by the page cache of a kernel that does not look there.
    pub(crate) fn note_unseen_writes(&self, ino: Ino, access: Access, mode: Mode) {
        if access.write && mode == Mode::Direct && !self.kernel_maps_direct_files() {
            self.versions.changed(ino);
        }
    }

    /// Of a small file the kernel keeps the pages instead: that takes one READ, and a registration is dearer.
    fn wholly_in(&self, inode: &InodeRef) -> Option<(TierId, u64)> {
        if inode.object.size() < self.options.passthrough_min_bytes {
            return None;
        }
        let (tier, _) = self.ds.passthrough_file(&inode.object)?;
        Some((tier, self.ds.size_in(&inode.object, tier)))
    }

    fn after_close(&self, inode: &InodeRef, state: &mut State, closed: Option<Closed>) {
        match closed {
            None => tracing::error!(ino = inode.ino.get(), "a file was closed that was not open"),
            Some(closed) => {
                if closed.lingers {
                    self.linger(inode, state);
                }
                inode
                    .cached_readers
                    .store(self.arbiter.lock().invalidate_on_write(inode.ino), Ordering::Release);
            }
        }
    }
}
