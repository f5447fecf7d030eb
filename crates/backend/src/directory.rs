//! A directory of a mounted file system as a back end.
//!
//! Whoever uses it asks [`BackEnd::root`] first, and the core (`link::trust`) whether what is there may be believed and written
//! to: operations go to the directory that the last [`BackEnd::root`] found. The descriptor of the root keeps its file system from
//! being unmounted, except lazily (`umount -l`); after that the next [`BackEnd::root`] lets it go. Where the path leads nowhere,
//! every operation is `ESTALE` until it leads somewhere again.
//!
//! What stands on a way and is no directory of this file system (a symbolic link, a file, a mount) is as if it was not there:
//! `ENOENT`. How looks are proved is told in the module `times`; on a file system that is not local a look asks the server.
//!
//! A rename that must not replace anything is exact where the file system can do it (renameat2). Where it cannot, NFS among them,
//! the name is looked at just before, and what others put there in between is replaced.

use std::{
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use link::{
    Abilities, Attributes, Attrs, BackEnd, Clock, Detail, Found, Making, Over, Reachable, Source, Version,
    Way,
};
use parking_lot::RwLock;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, RenameFlags, fstatvfs, fsync, linkat, makedev, mkdirat,
    mknodat, openat, readlinkat, renameat, renameat_with, symlinkat, unlinkat,
};
use types::{Errno, FileKind, Timestamp};

use crate::{
    abreast::{Abreast, Pace},
    attributes,
    call::Call,
    error::{errno, retry},
    faults::Faults,
    root::{DIRECTORY, LISTED, Root, is_dots},
    source::OpenFile,
    stat::{self, Fresh},
    times::earlier,
    version::{Filling, is_named},
    way, xattrs,
};

const ENTRIES_BYTES: usize = 64 << 10;
/// Names of a listing that are looked at together. Where each look takes a second they are done in a few.
const LOOKED_AT: usize = 64;

/// How a back end is taken that is not a file system of this machine, and trouble to try out.
#[derive(Clone, Debug)]
pub struct Options {
    /// How far the clocks may be apart by which those who write there give times. Local file systems have one clock.
    pub skew: Duration,
    /// For how long a client may show attributes that it asked for earlier: a listing takes them so. The default is that of NFS
    /// (acdirmax). Local file systems show what is there.
    pub cached: Duration,
    pub faults: Faults,
}

impl Default for Options {
    fn default() -> Options {
        Options { skew: Duration::from_secs(1), cached: Duration::from_secs(60), faults: Faults::default() }
    }
}

/// See the module's documentation.
pub struct Directory {
    path: PathBuf,
    options: Options,
    leads: RwLock<Leads>,
    abreast: Abreast,
}

/// What the path led to when it was last looked at.
enum Leads {
    Here(Arc<Root>),
    /// Nowhere. What it led to before could do this.
    Away(Abilities),
}

impl Directory {
    /// The path has to lead to a directory now.
    pub fn open(root: &Path, options: Options) -> Result<Directory, Errno> {
        let found = Arc::new(Root::open(root, options.skew)?);
        Ok(Directory {
            path: root.to_owned(),
            options,
            leads: RwLock::new(Leads::Here(found)),
            abreast: Abreast::default(),
        })
    }

    fn begin(&self, call: Call) -> Result<Arc<Root>, Errno> {
        self.options.faults.check(call)?;
        self.current()
    }

    fn current(&self) -> Result<Arc<Root>, Errno> {
        match &*self.leads.read() {
            Leads::Here(root) => Ok(root.clone()),
            Leads::Away(_) => Err(Errno::ESTALE),
        }
    }

    /// Of the directory to which the path leads now.
    fn found_anew(&self) -> Result<Arc<Root>, Errno> {
        if let Ok(root) = self.current()
            && root.is_at(&self.path)?
        {
            return Ok(root);
        }
        let root = Arc::new(Root::open(&self.path, self.options.skew)?);
        *self.leads.write() = Leads::Here(root.clone());
        Ok(root)
    }

    /// Something that is there, to be asked or told.
    fn there(&self, call: Call, way: &Way) -> Result<(Arc<Root>, OwnedFd), Errno> {
        let root = self.begin(call)?;
        let fd = root.object(way)?.ok_or(Errno::ENOENT)?;
        Ok((root, fd))
    }

    /// A regular file and what it was when it was opened. Other objects are not opened: that alone may do something (a tape), or wait (a fifo).
    fn opened(&self, call: Call, way: &Way, flags: OFlags) -> Result<(Arc<Root>, OwnedFd, Found), Errno> {
        let (root, place) = self.there(call, way)?;
        let kind = stat::kind(&stat::of(place.as_fd(), Fresh::Any)?)?;
        match kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => return Err(Errno::ENOENT),
        }
        let path = xattrs::path(place.as_fd());
        let fd =
            retry(|| openat(CWD, path.as_str(), flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty()))?;
        let clock = root.times.clock();
        let found = root.found(fd.as_fd(), clock)?.ok_or(Errno::ENOENT)?;
        Ok((root, fd, found))
    }
}

impl BackEnd for Directory {
    fn abilities(&self) -> Abilities {
        match &*self.leads.read() {
            Leads::Here(root) => abilities_of(root),
            Leads::Away(abilities) => *abilities,
        }
    }

    fn root(&self) -> Reachable {
        if self.options.faults.check(Call::Root).is_err() {
            return Reachable::No;
        }
        let found = self.found_anew();
        if matches!(found, Err(Errno::ENOENT | Errno::ENOTDIR)) {
            let abilities = self.abilities();
            *self.leads.write() = Leads::Away(abilities);
        }
        match found.and_then(|root| Ok((root.id, root.is_empty()?))) {
            Ok((id, empty)) => Reachable::Yes { id, empty },
            Err(_) => Reachable::No,
        }
    }

    fn clock(&self) -> Clock {
        match &*self.leads.read() {
            Leads::Here(root) => root.times.clock(),
            // It proves nothing.
            Leads::Away(_) => Clock { at: Timestamp::EPOCH, step: Duration::from_secs(1) },
        }
    }

    fn space(&self) -> Result<(u64, u64), Errno> {
        let root = self.begin(Call::Space)?;
        let all = retry(|| fstatvfs(root.fd()))?;
        Ok((all.f_bavail.saturating_mul(all.f_frsize), all.f_blocks.saturating_mul(all.f_frsize)))
    }

    fn look(&self, way: &Way) -> Result<Option<Found>, Errno> {
        let root = self.begin(Call::Look)?;
        let look = || {
            let clock = root.times.clock();
            root.object(way)?.map_or(Ok(None), |fd| root.found(fd.as_fd(), clock))
        };
        match look() {
            // What the kernel remembered of the name is gone; now it knows.
            Err(Errno::ESTALE) => look(),
            other => other,
        }
    }

    fn list(&self, way: &Way, visit: &mut dyn FnMut(&[u8], Found) -> ControlFlow<()>) -> Result<(), Errno> {
        let root = self.begin(Call::List)?;
        let dir = root.dir(way, LISTED)?;
        if !root.site.local {
            stat::of(dir.as_fd(), Fresh::Forced)?;
        }
        let mut buffer = Vec::with_capacity(ENTRIES_BYTES);
        let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
        let look = |name: &Vec<u8>| {
            let now = root.times.clock();
            let clock = if root.site.local { now } else { earlier(now, self.options.cached) };
            match stat::of_name(dir.as_fd(), name, Fresh::AsStat) {
                Ok(stat) if root.is_foreign(&stat) => Ok(None),
                Ok(stat) => {
                    root.times.note(stat::timestamp(stat.stx_ctime));
                    stat::found(&stat, clock).map(Some)
                }
                Err(Errno::ENOENT) => Ok(None),
                Err(e) => Err(e),
            }
        };
        let (mut pace, mut names, mut more) = (Pace::default(), Vec::with_capacity(LOOKED_AT), true);
        while more {
            match entries.next().transpose().map_err(errno)? {
                Some(entry) if is_dots(entry.file_name().to_bytes()) => {}
                Some(entry) => names.push(entry.file_name().to_bytes().to_vec()),
                None => more = false,
            }
            if more && names.len() < LOOKED_AT {
                continue;
            }
            for (name, found) in names.iter().zip(self.abreast.ask(&mut pace, &names, look)) {
                if let Some(found) = found?
                    && visit(name, found).is_break()
                {
                    return Ok(());
                }
            }
            names.clear();
        }
        Ok(())
    }

    fn look_at(&self, dir: &Way, names: &[Vec<u8>]) -> Result<Vec<Option<Found>>, Errno> {
        let root = self.begin(Call::Look)?;
        let dir = root.dir(dir, DIRECTORY)?;
        if !root.site.local {
            stat::of(dir.as_fd(), Fresh::Forced)?;
        }
        let look = |name: &Vec<u8>| {
            way::check(std::slice::from_ref(name))?;
            let clock = root.times.clock();
            match stat::of_name(dir.as_fd(), name, root.fresh()) {
                Ok(stat) if root.is_foreign(&stat) => Ok(None),
                Ok(stat) => {
                    root.times.note(stat::timestamp(stat.stx_ctime));
                    stat::found(&stat, clock).map(Some)
                }
                Err(Errno::ENOENT) => Ok(None),
                Err(e) => Err(e),
            }
        };
        self.abreast.ask(&mut Pace::default(), names, look).into_iter().collect()
    }

    fn details(&self, dir: &Way, of: &[(Vec<u8>, FileKind)]) -> Result<Vec<Result<Detail, Errno>>, Errno> {
        let root = self.begin(Call::Xattrs)?;
        let dir = root.dir(dir, DIRECTORY)?;
        let trusted = xattrs::sees_trusted(&root.site);
        let detail = |(name, kind): &(Vec<u8>, FileKind)| {
            way::check(std::slice::from_ref(name))?;
            let mut detail = Detail::default();
            if *kind == FileKind::Symlink {
                detail.target = retry(|| readlinkat(&dir, &name[..], Vec::new()))?.into_bytes();
            } else if root.has_xattrs {
                detail.xattrs = xattrs::all_of_name(dir.as_fd(), name, trusted)?;
            }
            Ok(detail)
        };
        Ok(self.abreast.ask(&mut Pace::default(), of, detail))
    }

    fn readlink(&self, way: &Way) -> Result<Vec<u8>, Errno> {
        let (_root, fd) = self.there(Call::Readlink, way)?;
        retry(|| readlinkat(&fd, "", Vec::new())).map(std::ffi::CString::into_bytes)
    }

    fn xattrs(&self, way: &Way) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        let (root, fd) = self.there(Call::Xattrs, way)?;
        xattrs::all(fd.as_fd(), xattrs::sees_trusted(&root.site))
    }

    fn open(&self, way: &Way) -> Result<(Box<dyn Source>, Found), Errno> {
        let (root, fd, found) = self.opened(Call::Open, way, OFlags::RDONLY)?;
        Ok((Box::new(OpenFile::new(fd, root, self.options.faults.clone())), found))
    }

    fn make(&self, way: &Way, what: &Making<'_>) -> Result<Found, Errno> {
        let root = self.begin(Call::Make)?;
        let (dir, name) = root.parent(way)?;
        // Nobody else gets in before it has its attributes.
        let (mode, own) = (Mode::RWXU, Mode::RUSR | Mode::WUSR);
        let special = |kind| {
            let (major, minor) = stat::decoded_device(what.rdev);
            retry(|| mknodat(&dir, name, kind, own, makedev(major, minor)))
        };
        match what.kind {
            FileKind::Regular => return Err(Errno::EINVAL),
            FileKind::Directory => retry(|| mkdirat(&dir, name, mode))?,
            FileKind::Symlink => retry(|| symlinkat(what.target, &dir, name))?,
            FileKind::Fifo => special(FileType::Fifo)?,
            FileKind::Socket => special(FileType::Socket)?,
            FileKind::CharDevice => special(FileType::CharacterDevice)?,
            FileKind::BlockDevice => special(FileType::BlockDevice)?,
        }
        let fd = root.named(dir.as_fd(), name)?;
        let clock = root.times.clock();
        let dressed = attributes::set_all(&root, fd.as_fd(), what.with)
            .and_then(|()| root.found(fd.as_fd(), clock))
            .and_then(|found| found.ok_or(Errno::ENOENT));
        if dressed.is_err() && is_named(fd.as_fd(), dir.as_fd(), name) {
            let how = if what.kind == FileKind::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            // If it stays, it is found there, and is taken for what was to be made or for theirs.
            let _ = retry(|| unlinkat(&dir, name, how));
        }
        dressed
    }

    fn begin_version(&self, way: &Way) -> Result<Box<dyn Version>, Errno> {
        let root = self.begin(Call::Begin)?;
        Ok(Box::new(Filling::aside(root, way, self.options.faults.clone())?))
    }

    fn begin_in_place(&self, way: &Way) -> Result<Box<dyn Version>, Errno> {
        let (root, fd, _found) = self.opened(Call::Begin, way, OFlags::WRONLY)?;
        Ok(Box::new(Filling::in_place(root, fd, self.options.faults.clone())))
    }

    fn rename(&self, from: &Way, to: &Way, over: Over) -> Result<(), Errno> {
        let root = self.begin(Call::Rename)?;
        let ((from_dir, from), (to_dir, to)) = (root.parent(from)?, root.parent(to)?);
        let replace = || retry(|| renameat(&from_dir, from, &to_dir, to));
        match over {
            Over::Replace => replace(),
            Over::Nothing => {
                match retry(|| renameat_with(&from_dir, from, &to_dir, to, RenameFlags::NOREPLACE)) {
                    Err(Errno::EINVAL | Errno::ENOSYS) => {
                        free(to_dir.as_fd(), to, root.fresh())?;
                        replace()
                    }
                    other => other,
                }
            }
        }
    }

    fn link(&self, from: &Way, to: &Way) -> Result<(), Errno> {
        let root = self.begin(Call::Link)?;
        let ((from_dir, from), (to_dir, to)) = (root.parent(from)?, root.parent(to)?);
        retry(|| linkat(&from_dir, from, &to_dir, to, AtFlags::empty()))
    }

    fn unlink(&self, way: &Way) -> Result<(), Errno> {
        let root = self.begin(Call::Unlink)?;
        let (dir, name) = root.parent(way)?;
        retry(|| unlinkat(&dir, name, AtFlags::empty()))
    }

    fn rmdir(&self, way: &Way) -> Result<(), Errno> {
        let root = self.begin(Call::Rmdir)?;
        let (dir, name) = root.parent(way)?;
        retry(|| unlinkat(&dir, name, AtFlags::REMOVEDIR))
    }

    fn set_attributes(&self, way: &Way, what: Attrs, to: &Attributes<'_>) -> Result<(), Errno> {
        let (root, fd) = self.there(Call::SetAttributes, way)?;
        attributes::set(&root, fd.as_fd(), what, to)
    }

    /// `EOPNOTSUPP` also for what [`BackEnd::xattrs`] does not show.
    fn set_xattr(&self, way: &Way, name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        let (root, fd) = self.there(Call::SetXattr, way)?;
        if !xattrs::is_shown(name, xattrs::sees_trusted(&root.site)) {
            return Err(Errno::EOPNOTSUPP);
        }
        match value {
            Some(value) => xattrs::set(fd.as_fd(), name, value),
            None => xattrs::remove(fd.as_fd(), name),
        }
    }

    fn sync(&self, way: &Way) -> Result<(), Errno> {
        let (_root, place) = self.there(Call::Sync, way)?;
        let flags = match stat::kind(&stat::of(place.as_fd(), Fresh::Any)?)? {
            FileKind::Directory => LISTED,
            FileKind::Regular => OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC,
            // Opened they may do something, or wait; their directory was synced after they were made.
            FileKind::Symlink
            | FileKind::Fifo
            | FileKind::Socket
            | FileKind::CharDevice
            | FileKind::BlockDevice => return Ok(()),
        };
        let path = xattrs::path(place.as_fd());
        let opened = match retry(|| openat(CWD, path.as_str(), flags & !OFlags::NOFOLLOW, Mode::empty())) {
            // Ours, and nobody may read it.
            Err(Errno::EACCES) => return Ok(()),
            other => other?,
        };
        match retry(|| fsync(&opened)) {
            // A file system that cannot has nothing to make durable by itself.
            Err(Errno::EINVAL) => Ok(()),
            other => other,
        }
    }
}

fn abilities_of(root: &Root) -> Abilities {
    let site = &root.site;
    Abilities {
        hard_links: site.hard_links,
        atomic_rename: true,
        symlinks: site.symlinks,
        special: site.special,
        attributes: site.attributes,
        xattrs: root.has_xattrs,
        in_place: true,
        any_owner: site.attributes && root.gives_away.load(Ordering::Relaxed),
        directory_times: true,
        directory_rename: true,
    }
}

/// `EEXIST` if something has the name.
fn free(dir: BorrowedFd<'_>, name: &[u8], fresh: Fresh) -> Result<(), Errno> {
    match stat::of_name(dir, name, fresh) {
        Ok(_) => Err(Errno::EEXIST),
        Err(Errno::ENOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a file system that is not local is asked anew, and believed later. Method: one that is, taken for one that is not.
    use super::*;
    use crate::times::Times;
    use link::Proof;
    use std::{fs, fs::File};

    const SKEW: Duration = Duration::from_secs(1);

    fn remote(path: &Path) -> Directory {
        let mut root = Root::open(path, SKEW).unwrap();
        let site = crate::site::Site { local: false, ..root.site };
        (root.site, root.times) = (site, Times::new(false, site.step, SKEW));
        let leads = RwLock::new(Leads::Here(Arc::new(root)));
        Directory { path: path.to_owned(), options: Options::default(), leads, abreast: Abreast::default() }
    }

    fn entries(back: &Directory) -> Vec<(Vec<u8>, Found)> {
        let mut all = Vec::new();
        back.list(&[], &mut |name, found| {
            all.push((name.to_vec(), found));
            ControlFlow::Continue(())
        })
        .unwrap();
        all
    }

    #[test]
    fn what_is_remote_is_proved_by_its_own_times() {
        let scratch = tempfile::tempdir().unwrap();
        let back = remote(scratch.path());
        let name = [b"f".to_vec()];
        assert_eq!(back.look(&name), Ok(None));
        File::create(scratch.path().join("f")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(back.clock().at, Timestamp::EPOCH);
        // The first look finds out what time it is there, the second is late enough; a listing may show what was there before.
        assert_eq!(back.look(&name).unwrap().unwrap().seen.proof, Proof::Racy);
        let ctime = back.look(&name).unwrap().unwrap().seen.ctime;
        assert!(back.clock().at >= ctime);
        assert_eq!(back.look(&name).unwrap().unwrap().seen.proof, Proof::Firm);
        assert_eq!(entries(&back)[0].1.seen.proof, Proof::Firm);
        fs::write(scratch.path().join("f"), b"1").unwrap();
        let lately = std::time::SystemTime::now() - Duration::from_secs(30);
        File::open(scratch.path().join("f")).unwrap().set_modified(lately).unwrap();
        assert_eq!(back.look(&name).unwrap().unwrap().seen.size, 1);
        assert_eq!(back.look(&name).unwrap().unwrap().seen.proof, Proof::Firm);
        assert_eq!(entries(&back)[0].1.seen.proof, Proof::Racy);
        assert_eq!(back.look(&[b"x".to_vec(), b"y".to_vec()]), Err(Errno::ENOENT));
        assert_eq!(back.look(&[]).unwrap().unwrap().seen.kind, FileKind::Directory);
    }

    #[test]
    fn without_help_of_the_kernel_a_taken_name_is_seen() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("f"), b"").unwrap();
        std::os::unix::fs::symlink("nowhere", scratch.path().join("l")).unwrap();
        let dir = File::open(scratch.path()).unwrap();
        for fresh in [Fresh::AsStat, Fresh::Forced] {
            assert_eq!(free(dir.as_fd(), b"f", fresh), Err(Errno::EEXIST));
            assert_eq!(free(dir.as_fd(), b"l", fresh), Err(Errno::EEXIST));
            assert_eq!(free(dir.as_fd(), b"x", fresh), Ok(()));
        }
    }
}
