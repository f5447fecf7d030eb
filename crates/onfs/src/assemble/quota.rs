//! Quotas of directories: setting and removing them, with the walk that moves what is below the directory into
//! the quota's project or out of it, and listing them by path.
//!
//! Invariants: one such walk at a time; one that was cut short is finished by the next `quota set` of its directory, since
//! the record says whether everything was assigned.

use std::{
    collections::HashSet, ops::ControlFlow, os::unix::ffi::OsStringExt, path::PathBuf, time::Duration,
};

use mds::{Found, Limits, Quota};
use parking_lot::{Mutex, MutexGuard};
use types::{Errno, FileKind, Ino, ProjectId};

use super::{
    parts::{Parts, failed},
    report,
};
use crate::control::{ControlError, ErrorCode, FileRef, Progress, ProgressSink, QuotaReport, Response, Unit};

/// Entries of a directory read at once.
const CHUNK: usize = 1000;
/// How often a command that waits for another's walk shows that it lives.
const BEAT: Duration = Duration::from_millis(100);
/// Deeper than any path.
const DEPTH_MAX: usize = 1 << 16;

pub(super) struct Quotas<'a> {
    pub parts: &'a Parts,
    pub walking: &'a Mutex<()>,
}

impl Quotas<'_> {
    pub fn set(
        &self,
        dir: &FileRef,
        found: &Found,
        bytes: Option<u64>,
        inodes: Option<u64>,
        progress: &mut dyn ProgressSink,
    ) -> Result<Response, ControlError> {
        let wrong = |errno| failed(&dir.path, errno);
        if found.attr.kind != FileKind::Directory {
            return Err(wrong(Errno::ENOTDIR));
        }
        let _one = self.only_one(progress)?;
        let mds = &self.parts.mds;
        let changed = |now: Limits| Limits {
            bytes: bytes.map_or(now.bytes, |n| Some(n).filter(|n| *n > 0)),
            inodes: inodes.map_or(now.inodes, |n| Some(n).filter(|n| *n > 0)),
        };
        let (project, quota) = mds.quota_begin(found.attr.ino, changed).map_err(wrong)?;
        if !quota.assigned {
            self.assign(found.attr.ino, project, &dir.path, progress)?;
            mds.quota_assigned(project, true).map_err(wrong)?;
        }
        self.show(dir).map(Response::Quota)
    }

    /// The quota that counts what is made in the directory: its own, or that of a directory above it.
    pub fn show(&self, dir: &FileRef) -> Result<QuotaReport, ControlError> {
        let wrong = |errno| failed(&dir.path, errno);
        let ino = Ino::from_raw(dir.ino).ok_or_else(|| wrong(Errno::EINVAL))?;
        self.parts.client.settle_closed();
        let project = self.parts.mds.find(ino).map_err(wrong)?.attr.project;
        let quota = self.parts.mds.quota_get(project).map_err(wrong)?;
        match quota.dir {
            Some(owner) if owner == ino => Ok(report::quota(dir.path.clone(), project, &quota)),
            Some(owner) => Ok(report::quota(self.path(owner), project, &quota)),
            None => Ok(report::quota(dir.path.clone(), ProjectId::NONE, &Quota::default())),
        }
    }

    /// Of the directories that `shown` lets pass.
    pub fn list(&self, shown: &dyn Fn(Ino) -> bool) -> Result<Response, ControlError> {
        self.parts.client.settle_closed();
        let list = self.parts.mds.quota_list().map_err(|e| failed("quotas", e))?;
        let rows = list.into_iter().filter_map(|(project, quota)| {
            // Without a directory only what still counts for it is left.
            let dir = quota.dir.filter(|dir| shown(*dir))?;
            Some(report::quota(self.path(dir), project, &quota))
        });
        Ok(Response::Quotas(rows.collect()))
    }

    pub fn remove(
        &self,
        dir: &FileRef,
        found: &Found,
        progress: &mut dyn ProgressSink,
    ) -> Result<Response, ControlError> {
        let wrong = |errno| failed(&dir.path, errno);
        let _one = self.only_one(progress)?;
        let mds = &self.parts.mds;
        let ino = found.attr.ino;
        let own = mds.quota_list().map_err(wrong)?.into_iter().find(|(_, quota)| quota.dir == Some(ino));
        let project = match own {
            Some((project, _)) => project,
            // Perhaps one that nobody's quota is any more.
            None => mds.find(ino).map_err(wrong)?.attr.project,
        };
        if project == ProjectId::NONE || found.attr.kind != FileKind::Directory {
            let text = format!("{}: there is no quota here", dir.path);
            return Err(ControlError::new(ErrorCode::NotFound, text));
        }
        let owner = mds.quota_get(project).map_err(wrong)?.dir;
        if let Some(owner) = owner.filter(|owner| *owner != ino) {
            let text = format!("{}: the quota belongs to {}", dir.path, self.path(owner));
            return Err(ControlError::new(ErrorCode::BadRequest, text));
        }
        let above = self.project_above(ino, project).map_err(wrong)?;
        // A walk that is cut short leaves a quota that is not whole.
        mds.quota_assigned(project, false).map_err(wrong)?;
        mds.quota_assign(ino, above).map_err(wrong)?;
        self.assign(ino, above, &dir.path, progress)?;
        mds.quota_end(ino, project).map_err(wrong)?;
        Ok(Response::Done)
    }

    /// What counts for the directory without a quota of its own.
    fn project_above(&self, dir: Ino, own: ProjectId) -> Result<ProjectId, Errno> {
        if dir == Ino::ROOT {
            return Ok(ProjectId::NONE);
        }
        let above = self.parts.mds.find(self.parts.mds.parent(dir)?)?.attr.project;
        let is_quota = above != own && self.parts.mds.quota_get(above)?.dir.is_some();
        Ok(if is_quota { above } else { ProjectId::NONE })
    }

    fn only_one(&self, progress: &mut dyn ProgressSink) -> Result<MutexGuard<'_, ()>, ControlError> {
        loop {
            if let Some(guard) = self.walking.try_lock_for(BEAT) {
                return Ok(guard);
            }
            progress.report(Progress {
                what: "waiting for another quota command".into(),
                ..Progress::default()
            })?;
        }
    }

    /// Puts what is below `top` into a project, so that it counts there; directories with a quota of their own keep it.
    fn assign(
        &self,
        top: Ino,
        to: ProjectId,
        path: &str,
        progress: &mut dyn ProgressSink,
    ) -> Result<(), ControlError> {
        let wrong = |errno| failed(path, errno);
        let mds = &self.parts.mds;
        let owners: HashSet<Ino> =
            mds.quota_list().map_err(wrong)?.into_iter().filter_map(|(_, quota)| quota.dir).collect();
        let (mut left, mut done) = (vec![top], 0);
        while let Some(dir) = left.pop() {
            let mut cookie = 0;
            loop {
                let found = match self.entries(dir, &mut cookie) {
                    Ok(found) => found,
                    // Removed since.
                    Err(Errno::ENOENT | Errno::ESTALE) => break,
                    Err(errno) => return Err(wrong(errno)),
                };
                let last = found.is_empty();
                for (ino, kind) in found {
                    if owners.contains(&ino) {
                        continue;
                    }
                    match mds.quota_assign(ino, to) {
                        Ok(()) | Err(Errno::ENOENT | Errno::ESTALE) => done += 1,
                        Err(errno) => return Err(wrong(errno)),
                    }
                    if kind == FileKind::Directory {
                        left.push(ino);
                    }
                }
                progress.report(Progress {
                    done,
                    unit: Unit::Items,
                    what: format!("entries of {path}"),
                    ..Progress::default()
                })?;
                if last {
                    break;
                }
            }
        }
        Ok(())
    }

    fn entries(&self, dir: Ino, cookie: &mut u64) -> Result<Vec<(Ino, FileKind)>, Errno> {
        let mut found = Vec::new();
        self.parts.mds.readdir(dir, *cookie, &mut |entry| {
            *cookie = entry.cookie;
            if entry.name != b"." && entry.name != b".." {
                found.push((entry.ino, entry.kind));
            }
            if found.len() < CHUNK { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(found)
    }

    /// Where a directory is now, for people.
    fn path(&self, dir: Ino) -> String {
        match self.names(dir) {
            Ok(names) => {
                let mut path = self.parts.session.mountpoint().to_owned();
                path.extend(names.into_iter().rev());
                path.display().to_string()
            }
            Err(_) => format!("(inode {dir})"),
        }
    }

    /// The names from the directory up to the root.
    fn names(&self, dir: Ino) -> Result<Vec<PathBuf>, Errno> {
        let (mut names, mut at) = (Vec::new(), dir);
        while at != Ino::ROOT && names.len() < DEPTH_MAX {
            let above = self.parts.mds.parent(at)?;
            let mut name = None;
            self.parts.mds.readdir(above, 0, &mut |entry| {
                if entry.ino == at && entry.name != b"." && entry.name != b".." {
                    name = Some(PathBuf::from(std::ffi::OsString::from_vec(entry.name.to_vec())));
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            names.push(name.ok_or(Errno::ENOENT)?);
            at = above;
        }
        Ok(names)
    }
}
