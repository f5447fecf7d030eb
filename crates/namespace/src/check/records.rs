//! The first pass: each inode with all the records that begin with its number, the orphans, the allocators, the
//! quotas and the superblock.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::ControlFlow,
};

use types::{FileKind, Ino, LocalId, ProjectId, TierId, UgsdId};

use super::{
    finding::Finding,
    spreads::{self, Directory},
    walk::{EVERYTHING, walk},
};
use crate::{
    Env, InodeFlags, acl,
    acl::Acl,
    alloc,
    dentry::Dentry,
    error::Result,
    inode::{self, Inode},
    key::{self, Parsed},
    lookup,
    mode::Mode,
    name,
    orphan::{self, Orphan},
    policy::DirPolicy,
    quota::{self, Delta, Quota},
    superblock::{Stored, Superblock},
    txn::{Bytes, Reader},
    xattr,
};

/// Directories that are known to be below the root, at most.
const KNOWN_MAX: usize = 1 << 16;
/// Names that lead to the root are never more than this.
const DEPTH_MAX: usize = 1 << 20;

/// A pin's record is the number of its tier.
fn is_tier(value: &[u8]) -> bool {
    TierId::ALL.into_iter().any(|tier| value == [tier as u8])
}

pub(super) fn check<R: Reader + ?Sized>(reader: &R, env: &Env, found: &mut dyn FnMut(Finding)) -> Result<()> {
    if inode::get_raw(reader, Ino::ROOT)?.is_none() {
        found(Finding::NoRoot);
    }
    let mut pass = Pass { reader, env, found, group: Group::default(), whole: Whole::default() };
    walk(reader, EVERYTHING, &mut |key, value| {
        pass.record(key, value)?;
        Ok(ControlFlow::Continue(()))
    })?;
    pass.finish()
}

/// What was seen of one number so far.
#[derive(Default)]
struct Group {
    raw_ino: u64,
    inode: Option<Inode>,
    /// There is an inode record, good or not.
    has_record: bool,
    others: bool,
    /// A data server holds its object.
    held: bool,
    entries: bool,
    subdirs: u32,
    target: Option<Bytes>,
    attributes: Option<InodeFlags>,
    access: Option<Acl>,
    object: bool,
    stripes: bool,
    /// The linked directory's record.
    link: bool,
    /// Of a directory that has entries.
    of: Option<Directory>,
}

/// What is compared at the end of a UGSD or of everything.
#[derive(Default)]
struct Whole {
    ugsd: u32,
    local_used: u64,
    local_next: Option<u64>,
    ugsd_next: Option<u32>,
    ugsd_used: u32,
    charged: BTreeMap<ProjectId, Quota>,
    counted: BTreeMap<ProjectId, Delta>,
    below_root: BTreeSet<Ino>,
    /// Directories with a policy: their keys come before all inodes.
    policies: BTreeSet<Ino>,
    /// Of these, those that make what is in them transient.
    transient: BTreeSet<Ino>,
    /// Inodes with something to be done in the linked directory: likewise before all inodes.
    works: BTreeSet<Ino>,
}

struct Pass<'a, R: ?Sized> {
    reader: &'a R,
    env: &'a Env,
    found: &'a mut dyn FnMut(Finding),
    group: Group,
    whole: Whole,
}

impl<R: Reader + ?Sized> Pass<'_, R> {
    fn damaged(&mut self, key: &[u8]) -> Result<()> {
        (self.found)(Finding::Damaged { key: key.to_vec() });
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &Bytes) -> Result<()> {
        let Some(parsed) = Parsed::new(key) else { return self.damaged(key) };
        if parsed.raw_ino != self.group.raw_ino {
            self.end_group()?;
            self.group = Group { raw_ino: parsed.raw_ino, ..Group::default() };
        }
        let ugsd = (parsed.raw_ino >> 40) as u32;
        if ugsd != self.whole.ugsd {
            self.end_ugsd();
            self.whole.ugsd = ugsd;
        }
        let good = match (Ino::from_raw(parsed.raw_ino), parsed.kind) {
            (Some(ino), key::INODE) => self.inode(ino, value),
            (Some(ino), key::DENTRY) => self.dentry(ino, &parsed, value)?,
            (Some(_), key::XATTR) => self.xattr(parsed.rest, value),
            (Some(_), key::SYMLINK) => {
                self.group.others = true;
                self.group.target = Some(value.clone());
                parsed.rest.is_empty()
            }
            (Some(_), key::OBJECT) => {
                self.group.others = true;
                self.group.object = true;
                true
            }
            (Some(_), key::STRIPES) => {
                self.group.others = true;
                self.group.stripes |= parsed.kind == key::STRIPES;
                parsed.rest.is_empty()
            }
            (Some(_), key::HELD) => {
                self.group.others = true;
                self.group.held = true;
                parsed.rest.is_empty()
            }
            (Some(ino), key::LINK) => {
                self.used(ino);
                self.group.link = true;
                parsed.rest.is_empty()
            }
            (None, key::ORPHAN) => self.orphan(&parsed, value)?,
            (None, key::ALLOCATOR) => {
                self.whole.local_next = alloc::decode(value);
                self.whole.local_next.is_some()
            }
            (None, key::GLOBAL) if parsed.raw_ino == 0 => self.global(parsed.rest, value),
            (None, key::QUOTA) if parsed.raw_ino == 0 => self.quota(parsed.rest, value),
            (None, key::PIN) if parsed.raw_ino == 0 => self.pin(parsed.rest, value)?,
            (None, key::POLICY) if parsed.raw_ino == 0 => self.policy(parsed.rest, value)?,
            (None, key::WORK) if parsed.raw_ino == 0 => match key::ino_of(parsed.rest) {
                Some(ino) => {
                    self.whole.works.insert(ino);
                    true
                }
                None => false,
            },
            (None, key::HELD | key::STANDING | key::STATE | key::LENT) => {
                parsed.raw_ino == 0 && parsed.rest.len() == 8
            }
            (None, key::VERDICT) => parsed.raw_ino == 0 && matches!(parsed.rest.len(), 0 | 16 | 17),
            (None, key::CONFLICT) => parsed.conflict().is_some(),
            (Some(_) | None, _) => false,
        };
        if good { Ok(()) } else { self.damaged(key) }
    }

    fn inode(&mut self, ino: Ino, value: &[u8]) -> bool {
        self.group.has_record = true;
        self.group.inode = Inode::decode(value);
        self.used(ino);
        self.group.inode.is_some()
    }

    /// Its number must not be given out again.
    fn used(&mut self, ino: Ino) {
        self.whole.local_used = self.whole.local_used.max(ino.local().get());
        self.whole.ugsd_used = self.whole.ugsd_used.max(ino.ugsd().get());
    }

    fn dentry(&mut self, dir: Ino, parsed: &Parsed<'_>, value: &[u8]) -> Result<bool> {
        self.group.others = true;
        self.group.entries = true;
        let (Some((hash, name)), Some(entry)) = (parsed.dentry(), Dentry::decode(value)) else {
            return Ok(false);
        };
        let name_owned = || name.to_vec();
        let of = self.directory(dir)?;
        if let Some(right) = of.right_part(hash).filter(|right| *right != dir) {
            (self.found)(Finding::WrongPart { dir, name: name_owned(), right });
        }
        if hash != self.env.names.hash(name) || name::check_new(name).is_err() {
            (self.found)(Finding::WrongName { dir, hash, name: name_owned() });
        }
        let Some(raw) = inode::get_raw(self.reader, entry.ino)? else {
            (self.found)(Finding::Dangling { dir, name: name_owned(), ino: entry.ino });
            return Ok(true);
        };
        // A damaged one is reported at its own record.
        let Some(inode) = Inode::decode(&raw) else { return Ok(true) };
        if inode.kind != entry.kind {
            (self.found)(Finding::WrongKind { dir, name: name_owned(), ino: entry.ino, kind: inode.kind });
        }
        if of.is_apart && !inode.is_apart() {
            let (stored, counted) = (inode.flags, inode.flags | InodeFlags::APART);
            (self.found)(Finding::WrongFlags { ino: entry.ino, stored, counted });
        }
        if inode.is_dir() {
            if inode.parent == Some(of.shown) && inode.nlink > 0 && entry.ino != Ino::ROOT {
                self.group.subdirs += 1;
            } else {
                (self.found)(Finding::WrongParent { dir, name: name_owned(), ino: entry.ino });
            }
        }
        Ok(true)
    }

    /// Of the directory whose entries are looked at.
    fn directory(&mut self, dir: Ino) -> Result<Directory> {
        if let Some(known) = self.group.of {
            return Ok(known);
        }
        let of = Directory::look(self.reader, dir)?;
        self.group.of = Some(of);
        Ok(of)
    }

    /// By itself, by the directory that it is in, or, of a file, since it was once.
    fn may_be_apart(&self, ino: Ino, inode: &Inode) -> Result<bool> {
        if !inode.is_dir() || inode.nlink == 0 || self.whole.transient.contains(&ino) {
            return Ok(true);
        }
        let Some(parent) = inode.parent else { return Ok(true) };
        let above = inode::get_raw(self.reader, parent)?.and_then(|raw| Inode::decode(&raw));
        // A damaged one is reported at its own record.
        Ok(above.is_none_or(|above| above.is_apart()))
    }

    fn xattr(&mut self, name: &[u8], value: &Bytes) -> bool {
        self.group.others = true;
        let flag = match name {
            acl::ACCESS => InodeFlags::ACL_ACCESS,
            acl::DEFAULT => InodeFlags::ACL_DEFAULT,
            _ => InodeFlags::XATTR,
        };
        *self.group.attributes.get_or_insert(InodeFlags::empty()) |= flag;
        let Some(value) = xattr::decode(value) else { return false };
        if !xattr::is_acl(name) {
            return !name.is_empty();
        }
        let Ok(Some(acl)) = Acl::parse(&value) else { return false };
        if name == acl::ACCESS {
            self.group.access = Some(acl);
        }
        true
    }

    fn orphan(&mut self, parsed: &Parsed<'_>, value: &[u8]) -> Result<bool> {
        let (Some(ino), Some(_)) = (key::ino_of(parsed.rest), Orphan::decode(value)) else {
            return Ok(false);
        };
        if inode::get(self.reader, ino).is_ok_and(|inode| inode.is_none_or(|inode| inode.nlink > 0)) {
            (self.found)(Finding::NotOrphan { ino });
        }
        Ok(u64::from(ino.ugsd().get()) << 40 == parsed.raw_ino)
    }

    fn global(&mut self, name: &[u8], value: &[u8]) -> bool {
        if !name.is_empty() {
            return true;
        }
        match Superblock::decode(value) {
            Some(Stored::Here(superblock)) => {
                self.whole.ugsd_next = Some(superblock.next_ugsd);
                true
            }
            Some(Stored::Nothing | Stored::OtherFormat { .. }) | None => false,
        }
    }

    fn quota(&mut self, project: &[u8], value: &[u8]) -> bool {
        match (project.try_into().map(u32::from_be_bytes), Quota::decode(value)) {
            (Ok(project), Some(quota)) => {
                self.whole.charged.insert(ProjectId(project), quota);
                true
            }
            (Err(_), _) | (_, None) => false,
        }
    }

    fn pin(&mut self, of: &[u8], value: &[u8]) -> Result<bool> {
        let (Some(ino), true) = (key::ino_of(of), is_tier(value)) else { return Ok(false) };
        if inode::get_raw(self.reader, ino)?.is_none() {
            (self.found)(Finding::StrayPin { ino });
        }
        Ok(true)
    }

    fn policy(&mut self, of: &[u8], value: &[u8]) -> Result<bool> {
        let (Some(ino), Some(policy)) = (key::ino_of(of), DirPolicy::decode(value)) else { return Ok(false) };
        // A damaged inode is reported at its own record.
        let directory = match inode::get_raw(self.reader, ino)? {
            None => false,
            Some(raw) => Inode::decode(&raw).is_none_or(|inode| inode.is_dir()),
        };
        if directory {
            self.whole.policies.insert(ino);
            if policy.mode == Some(Mode::Transient) {
                self.whole.transient.insert(ino);
            }
        } else {
            (self.found)(Finding::StrayPolicy { ino });
        }
        Ok(true)
    }

    /// All records of one number were seen.
    fn end_group(&mut self) -> Result<()> {
        let group = std::mem::take(&mut self.group);
        let Some(ino) = Ino::from_raw(group.raw_ino) else { return Ok(()) };
        let Some(inode) = group.inode else {
            // What a data server holds for others has its inode elsewhere, or a number of its own.
            if group.others && !group.has_record && !group.held {
                (self.found)(Finding::Stray { ino });
            }
            // Gone here, and not yet in the linked directory.
            if group.link && !group.has_record && !self.whole.works.contains(&ino) {
                (self.found)(Finding::StrayLink { ino });
            }
            return Ok(());
        };
        if !inode.is_part() {
            let usage = self.whole.counted.entry(inode.project).or_default();
            usage.bytes += quota::bytes_of(&inode) as i64;
            usage.inodes += 1;
        }
        self.judge_parts(ino, &inode, &group)?;
        if inode.is_dir() {
            self.judge_directory(ino, &inode, &group)?;
        } else if group.entries {
            (self.found)(Finding::MisplacedEntries { ino });
        }
        let orphan = orphan::get(self.reader, ino);
        if inode.nlink == 0 && matches!(orphan, Ok(None)) {
            (self.found)(Finding::NoOrphanRecord { ino });
        }
        Ok(())
    }

    fn judge_parts(&mut self, ino: Ino, inode: &Inode, group: &Group) -> Result<()> {
        let target_good = match (&group.target, inode.kind) {
            (Some(target), FileKind::Symlink) => lookup::is_symlink_record(target, inode),
            (target, kind) => target.is_none() && kind != FileKind::Symlink,
        };
        if !target_good {
            (self.found)(Finding::WrongTarget { ino });
        }
        let mut counted = group.attributes.unwrap_or(InodeFlags::empty());
        if group.object || inode.flags.contains(InodeFlags::WRITTEN) {
            counted |= InodeFlags::WRITTEN;
        }
        if inode.kind == FileKind::Regular && inode.flags.contains(InodeFlags::LINKED) {
            counted |= InodeFlags::LINKED | InodeFlags::WRITTEN;
        }
        if inode.is_dir() && group.stripes {
            counted |= InodeFlags::STRIPING;
        }
        if self.whole.policies.contains(&ino) {
            counted |= InodeFlags::POLICY;
        }
        counted |= inode.flags & (InodeFlags::MODE | InodeFlags::SPREAD | InodeFlags::PART);
        if inode.is_apart() && self.may_be_apart(ino, inode)? {
            counted |= InodeFlags::APART;
        }
        if counted != inode.flags {
            (self.found)(Finding::WrongFlags { ino, stored: inode.flags, counted });
        }
        if let Some(access) = &group.access
            && access.mode() != inode.mode & 0o777
        {
            (self.found)(Finding::WrongMode { ino, stored: inode.mode & 0o777, acl: access.mode() });
        }
        Ok(())
    }

    fn judge_directory(&mut self, ino: Ino, inode: &Inode, group: &Group) -> Result<()> {
        if inode.nlink == 0 {
            if group.entries {
                (self.found)(Finding::MisplacedEntries { ino });
            }
            return Ok(());
        }
        spreads::check(self.reader, (ino, inode), self.found)?;
        let counted = 2 + group.subdirs;
        if inode.nlink != counted {
            (self.found)(Finding::WrongLinks { ino, stored: inode.nlink, counted });
        }
        if !self.is_below_root(ino)? {
            (self.found)(Finding::Detached { ino });
        }
        Ok(())
    }

    fn is_below_root(&mut self, ino: Ino) -> Result<bool> {
        let mut at = ino;
        for _ in 0..DEPTH_MAX {
            if at == Ino::ROOT || self.whole.below_root.contains(&at) {
                if self.whole.below_root.len() < KNOWN_MAX {
                    self.whole.below_root.insert(ino);
                }
                return Ok(true);
            }
            let Some(raw) = inode::get_raw(self.reader, at)? else { return Ok(false) };
            match Inode::decode(&raw).filter(Inode::is_dir).and_then(|inode| inode.parent) {
                Some(parent) if parent != ino => at = parent,
                Some(_) | None => return Ok(false),
            }
        }
        Ok(false)
    }

    fn end_ugsd(&mut self) {
        let ugsd = UgsdId::new(self.whole.ugsd);
        let all = ugsd.zip(LocalId::new(LocalId::MAX)).map(|(ugsd, last)| {
            let (first, last) = (Ino::new(ugsd, LocalId::TOP), Ino::new(ugsd, last));
            first..=last
        });
        let pending = all.and_then(|all| self.whole.works.range(all).next_back());
        let used = std::mem::take(&mut self.whole.local_used).max(pending.map_or(0, |ino| ino.local().get()));
        let next = self.whole.local_next.take().unwrap_or(2);
        if let Some(ugsd) = ugsd
            && used >= next
        {
            (self.found)(Finding::AllocatorBehind { ugsd, next, used });
        }
    }

    fn finish(mut self) -> Result<()> {
        self.end_group()?;
        self.end_ugsd();
        let whole = self.whole;
        match whole.ugsd_next {
            None => (self.found)(Finding::Damaged { key: key::superblock().to_vec() }),
            Some(next) if whole.ugsd_used >= next => {
                (self.found)(Finding::UgsdBehind { next, used: whole.ugsd_used });
            }
            Some(_) => {}
        }
        let mut projects: BTreeSet<ProjectId> = whole.charged.keys().copied().collect();
        projects.extend(whole.counted.keys().filter(|p| **p != ProjectId::NONE));
        for project in projects {
            let charged = whole.charged.get(&project).copied().unwrap_or_default();
            let stored = Delta { bytes: charged.bytes as i64, inodes: charged.inodes as i64 };
            let counted = whole.counted.get(&project).copied().unwrap_or_default();
            if stored != counted {
                (self.found)(Finding::WrongUsage { project, stored, counted });
            }
        }
        Ok(())
    }
}
