//! Project quotas: each inode may belong to a project, which it gets from the directory that it is made in. A
//! project's record counts the inodes and the bytes of its regular files, and may limit both.
//!
//! Invariants: the counters equal the sums over the inode records (orphans included), because every change
//! of an inode's project, size or existence charges in the same transaction. Sizes count, not blocks.
//!
//! Record, version 2, 42 bytes: version u8 | limit of bytes u64 | limit of inodes u64 | bytes u64 | inodes u64 | directory u64
//! (0: none) | assigned u8 (0 or 1); a limit of `u64::MAX` is none.

use std::ops::ControlFlow;

use types::{Errno, FileKind, Ino, ProjectId};

use crate::{
    Env,
    codec::{Fields, Writer},
    error::{Result, refuse},
    inode::{self, Inode, corrupt},
    key, parts,
    txn::{Bytes, Reader, Txn},
};

const VERSION: u8 = 2;
const UNLIMITED: u64 = u64::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    pub bytes: Option<u64>,
    pub inodes: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    pub limits: Limits,
    /// Used.
    pub bytes: u64,
    /// Used.
    pub inodes: u64,
    /// The directory whose quota it is, as long as it is there.
    pub dir: Option<Ino>,
    /// Everything that was below the directory when the quota was set belongs to the project.
    pub assigned: bool,
}

/// A change of what a project uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Delta {
    pub bytes: i64,
    pub inodes: i64,
}

impl Quota {
    pub fn encode(&self) -> Bytes {
        let record = Writer::<42>::new()
            .u8(VERSION)
            .u64(self.limits.bytes.unwrap_or(UNLIMITED))
            .u64(self.limits.inodes.unwrap_or(UNLIMITED))
            .u64(self.bytes)
            .u64(self.inodes)
            .u64(self.dir.map_or(0, Ino::get))
            .u8(u8::from(self.assigned));
        Bytes::copy_from_slice(&record.finish())
    }

    /// `None` when the bytes are not a quota record.
    pub fn decode(bytes: &[u8]) -> Option<Quota> {
        let mut f = Fields::new(bytes);
        if f.u8()? != VERSION {
            return None;
        }
        let limit = |n: u64| if n == UNLIMITED { None } else { Some(n) };
        let limits = Limits { bytes: limit(f.u64()?), inodes: limit(f.u64()?) };
        let quota = Quota {
            limits,
            bytes: f.u64()?,
            inodes: f.u64()?,
            dir: match f.u64()? {
                0 => None,
                raw => Some(Ino::from_raw(raw)?),
            },
            assigned: match f.u8()? {
                0 => false,
                1 => true,
                _ => return None,
            },
        };
        f.end()?;
        Some(quota)
    }

    /// Whether `more` bytes on top of the used ones stay within the limit.
    pub fn has_room_for(&self, more: u64) -> bool {
        self.limits.bytes.is_none_or(|limit| self.bytes.saturating_add(more) <= limit)
    }
}

/// `None` for a project that nothing was ever charged to.
pub fn get<R: Reader + ?Sized>(reader: &R, project: ProjectId) -> Result<Option<Quota>> {
    let key = key::quota(project);
    match reader.get(&key)? {
        None => Ok(None),
        Some(bytes) => Ok(Some(Quota::decode(&bytes).ok_or_else(|| corrupt(&key))?)),
    }
}

pub(crate) fn store<T: Txn + ?Sized>(txn: &mut T, project: ProjectId, quota: &Quota) {
    txn.put(&key::quota(project), quota.encode());
}

/// Changes the limits; they may be below what is used already, which stops only growth.
pub fn set_limits<T: Txn + ?Sized>(txn: &mut T, project: ProjectId, limits: Limits) -> Result<()> {
    if project == ProjectId::NONE {
        return refuse(Errno::EINVAL);
    }
    let quota = Quota { limits, ..get(txn, project)?.unwrap_or_default() };
    store(txn, project, &quota);
    Ok(())
}

pub fn list<R: Reader + ?Sized>(reader: &R) -> Result<Vec<(ProjectId, Quota)>> {
    let mut found = Vec::new();
    let mut bad = None;
    reader.scan(&key::quota_start(), &key::quota_end(), &mut |key, value| {
        let project = key::Parsed::new(key).and_then(|p| p.rest.try_into().ok()).map(u32::from_be_bytes);
        match (project, Quota::decode(value)) {
            (Some(project), Some(quota)) => {
                found.push((ProjectId(project), quota));
                ControlFlow::Continue(())
            }
            (None, _) | (_, None) => {
                bad = Some(corrupt(key));
                ControlFlow::Break(())
            }
        }
    })?;
    match bad {
        None => Ok(found),
        Some(error) => Err(error.into()),
    }
}

/// Charges, and refuses growth beyond a limit with `EDQUOT`.
pub(crate) fn charge<T: Txn + ?Sized>(txn: &mut T, project: ProjectId, delta: Delta) -> Result<()> {
    apply(txn, project, delta, true)
}

/// Charges what has happened already, limits or not.
pub(crate) fn settle<T: Txn + ?Sized>(txn: &mut T, project: ProjectId, delta: Delta) -> Result<()> {
    apply(txn, project, delta, false)
}

fn apply<T: Txn + ?Sized>(txn: &mut T, project: ProjectId, delta: Delta, enforce: bool) -> Result<()> {
    if project == ProjectId::NONE || delta == Delta::default() {
        return Ok(());
    }
    let mut quota = get(txn, project)?.unwrap_or_default();
    quota.bytes = quota.bytes.saturating_add_signed(delta.bytes);
    quota.inodes = quota.inodes.saturating_add_signed(delta.inodes);
    let over =
        |used: u64, limit: Option<u64>, change: i64| change > 0 && limit.is_some_and(|limit| used > limit);
    if enforce
        && (over(quota.bytes, quota.limits.bytes, delta.bytes)
            || over(quota.inodes, quota.limits.inodes, delta.inodes))
    {
        return refuse(Errno::EDQUOT);
    }
    store(txn, project, &quota);
    Ok(())
}

/// Bytes that an inode counts for.
pub(crate) fn bytes_of(inode: &Inode) -> u64 {
    if inode.kind == FileKind::Regular { inode.size } else { 0 }
}

pub(crate) fn bytes_delta(before: u64, after: u64) -> i64 {
    // Sizes are within `inode::SIZE_MAX`, so neither wraps.
    after as i64 - before as i64
}

/// Whether an inode of `project` may get a name in a directory of `dir_project`: as with XFS, a directory without
/// a project takes everything, one with a project only its own.
pub(crate) fn check_move(project: ProjectId, dir_project: ProjectId) -> Result<()> {
    if dir_project == ProjectId::NONE || dir_project == project { Ok(()) } else { refuse(Errno::EXDEV) }
}

/// Gives directory `dir` a quota of its own, or changes its limits. The directory itself belongs to the project at
/// once; what is below it is for the caller to assign, until [`Quota::assigned`].
pub fn begin<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    dir: Ino,
    change: impl Fn(Limits) -> Limits,
) -> Result<(ProjectId, Quota)> {
    let inode = inode::load_live_dir(txn, dir)?;
    let list = list(txn)?;
    let own = list.iter().find(|(_, quota)| quota.dir == Some(dir));
    let (project, before) = match own {
        Some((project, quota)) => (*project, *quota),
        None => {
            let last = list.iter().map(|(project, _)| project.0).max().unwrap_or(0);
            let Some(next) = last.checked_add(1) else { return refuse(Errno::ENOSPC) };
            (ProjectId(next), Quota { dir: Some(dir), ..Quota::default() })
        }
    };
    let assigned = before.assigned && inode.project == project;
    store(txn, project, &Quota { limits: change(before.limits), assigned, ..before });
    assign(txn, env, dir, project)?;
    Ok((project, get(txn, project)?.unwrap_or_default()))
}

/// Whether everything below the project's directory belongs to it.
pub fn set_assigned<T: Txn + ?Sized>(txn: &mut T, project: ProjectId, assigned: bool) -> Result<()> {
    if let Some(quota) = get(txn, project)? {
        store(txn, project, &Quota { assigned, ..quota });
    }
    Ok(())
}

/// The project is no longer `dir`'s: no limits. Its record stays while something counts for it.
pub fn end<T: Txn + ?Sized>(txn: &mut T, project: ProjectId, dir: Ino) -> Result<()> {
    if project == ProjectId::NONE {
        return Ok(());
    }
    match get(txn, project)? {
        Some(quota) if quota.dir == Some(dir) => {
            let rest = Quota { bytes: quota.bytes, inodes: quota.inodes, ..Quota::default() };
            if rest == Quota::default() {
                txn.delete(&key::quota(project));
            } else {
                store(txn, project, &rest);
            }
        }
        Some(_) | None => {}
    }
    Ok(())
}

/// Moves one inode (not what is below it) to `project`, with what it uses. Limits do not hold it up: they stop growth,
/// and this is none of its owner's.
pub fn assign<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, project: ProjectId) -> Result<()> {
    let mut inode = inode::load(txn, ino)?;
    parts::check_shown(&inode)?;
    if inode.project == project {
        return Ok(());
    }
    let bytes = bytes_of(&inode) as i64;
    settle(txn, inode.project, Delta { bytes: -bytes, inodes: -1 })?;
    settle(txn, project, Delta { bytes, inodes: 1 })?;
    inode.project = project;
    inode.ctime = env.now;
    inode::store(txn, ino, &inode);
    parts::reflect(txn, ino, &inode, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the record keeps its form. Method: golden bytes, every truncation, a wrong version and flag.
    #[test]
    fn the_record_has_its_golden_bytes() {
        let limits = Limits { bytes: Some(1), inodes: None };
        let quota = Quota { limits, bytes: 2, inodes: 3, dir: Some(Ino::ROOT), assigned: true };
        let bytes = quota.encode();
        assert_eq!(
            &bytes[..],
            b"\x02\x01\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01"
        );
        assert_eq!(Quota::decode(&bytes), Some(quota));
        for len in 0..bytes.len() {
            assert_eq!(Quota::decode(&bytes[..len]), None);
        }
        for at in [0, 41] {
            let mut bad = bytes.to_vec();
            bad[at] = 3;
            assert_eq!(Quota::decode(&bad), None);
        }
    }
}
