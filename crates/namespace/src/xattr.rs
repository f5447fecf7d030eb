//! Extended attributes, and ACLs as two of them.
//!
//! Record, version 1: version u8 | value. The name is in the key. ACLs are stored in the form of [`crate::acl`]; an access
//! ACL that the mode can say is not stored.

use std::ops::ControlFlow;

use types::{Errno, FileKind, Ino, S_ISGID, XATTR_NAME_MAX, XATTR_SIZE_MAX};

use crate::{
    Env,
    acl::{self, Acl},
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags, corrupt},
    key, parts,
    txn::{Bytes, KvError, Reader, Txn, Visit},
};

const VERSION: u8 = 1;
/// Bytes of all names of one inode, each with its NUL: what listxattr(2) can return.
const LIST_MAX: usize = 65_536;
/// Bytes of all names and values of one inode: each setting reads them all, while others of its UGSD wait.
const ALL_BYTES_MAX: usize = 1 << 20;
/// File capabilities.
pub const CAPABILITY: &[u8] = b"security.capability";
/// Names that the client answers itself.
const VIRTUAL: &[u8] = b"user.onfs.";

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrMode {
    #[default]
    Set,
    /// `EEXIST` if it is there.
    Create,
    /// `ENODATA` if it is not.
    Replace,
}

/// How to set one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetXattr {
    pub mode: XattrMode,
    /// An access ACL set by somebody who is not in the file's group takes setgid away.
    pub kill_sgid: bool,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Plain,
    Virtual,
    Access,
    Default,
}

fn classify(name: &[u8]) -> Result<Class> {
    if name.len() > XATTR_NAME_MAX {
        return refuse(Errno::ERANGE);
    }
    match name {
        b"" => return refuse(Errno::ERANGE),
        b"user." | b"trusted." | b"security." => return refuse(Errno::EINVAL),
        acl::ACCESS => return Ok(Class::Access),
        acl::DEFAULT => return Ok(Class::Default),
        _ => {}
    }
    if name.contains(&0) {
        return refuse(Errno::EINVAL);
    }
    if name.starts_with(VIRTUAL) {
        return Ok(Class::Virtual);
    }
    let known = [&b"user."[..], b"trusted.", b"security."].iter().any(|prefix| name.starts_with(prefix));
    if known { Ok(Class::Plain) } else { refuse(Errno::EOPNOTSUPP) }
}

impl Class {
    /// The flag without which there is no attribute of this class.
    fn flag(self) -> InodeFlags {
        match self {
            Class::Plain => InodeFlags::XATTR,
            Class::Virtual => InodeFlags::empty(),
            Class::Access => InodeFlags::ACL_ACCESS,
            Class::Default => InodeFlags::ACL_DEFAULT,
        }
    }
}

pub fn get<R: Reader + ?Sized>(reader: &R, ino: Ino, name: &[u8]) -> Result<Bytes> {
    let class = classify(name)?;
    let inode = inode::load(reader, ino)?;
    if matches!(class, Class::Access | Class::Default) && inode.kind == FileKind::Symlink {
        return refuse(Errno::EOPNOTSUPP);
    }
    if !inode.flags.intersects(class.flag()) {
        return refuse(Errno::ENODATA);
    }
    match load(reader, ino, name)? {
        Some(value) => Ok(value),
        None => refuse(Errno::ENODATA),
    }
}

/// Visits the names, ACLs included, in order.
pub fn list<R: Reader + ?Sized>(reader: &R, ino: Ino, visit: &mut dyn FnMut(&[u8])) -> Result<()> {
    let inode = inode::load(reader, ino)?;
    if inode.flags.intersects(InodeFlags::XATTR | InodeFlags::ACL_ACCESS | InodeFlags::ACL_DEFAULT) {
        visit_names(reader, ino, &mut |name| {
            visit(name);
            ControlFlow::Continue(())
        })?;
    }
    Ok(())
}

pub fn set<T: Txn + ?Sized>(
    txn: &mut T,
    env: &Env,
    ino: Ino,
    name: &[u8],
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    let class = classify(name)?;
    if value.len() > XATTR_SIZE_MAX {
        return refuse(Errno::E2BIG);
    }
    let mut inode = inode::load(txn, ino)?;
    parts::check_shown(&inode)?;
    if class == Class::Virtual {
        return refuse(Errno::EPERM);
    }
    let before = if inode.flags.intersects(class.flag()) { txn.get(&key::xattr(ino, name))? } else { None };
    let there = before.is_some();
    match how.mode {
        XattrMode::Create if there => return refuse(Errno::EEXIST),
        XattrMode::Replace if !there => return refuse(Errno::ENODATA),
        XattrMode::Set | XattrMode::Create | XattrMode::Replace => {}
    }
    match class {
        Class::Plain | Class::Virtual => {
            if before.is_none_or(|record| record.len() < 1 + value.len()) {
                check_room(txn, ino, &inode, (name, value))?;
            }
            store(txn, ino, name, value);
            inode.flags |= InodeFlags::XATTR;
        }
        Class::Access => set_access(txn, ino, &mut inode, value, how)?,
        Class::Default => set_default(txn, ino, &mut inode, value)?,
    }
    inode.ctime = env.now;
    inode::store(txn, ino, &inode);
    if matches!(class, Class::Access | Class::Default) {
        parts::reflect(txn, ino, &inode, false)?;
    }
    Ok(())
}

/// Removes one. As on other file systems, removing an ACL that is not there is no error.
pub fn remove<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, name: &[u8]) -> Result<()> {
    let class = classify(name)?;
    let mut inode = inode::load(txn, ino)?;
    parts::check_shown(&inode)?;
    match class {
        Class::Virtual => return refuse(Errno::EPERM),
        Class::Access | Class::Default if inode.kind == FileKind::Symlink => {
            return refuse(Errno::EOPNOTSUPP);
        }
        Class::Access | Class::Default => {
            if !inode.flags.intersects(class.flag()) {
                return Ok(());
            }
            inode.flags.remove(class.flag());
            txn.delete(&key::xattr(ino, name));
        }
        Class::Plain => {
            if !inode.flags.contains(InodeFlags::XATTR) || txn.get(&key::xattr(ino, name))?.is_none() {
                return refuse(Errno::ENODATA);
            }
            remove_plain(txn, ino, &mut inode, name)?;
        }
    }
    inode.ctime = env.now;
    inode::store(txn, ino, &inode);
    if matches!(class, Class::Access | Class::Default) {
        parts::reflect(txn, ino, &inode, false)?;
    }
    Ok(())
}

/// Whether [`CAPABILITY`] is there.
pub fn has_capability<R: Reader + ?Sized>(reader: &R, ino: Ino, inode: &Inode) -> Result<bool> {
    Ok(inode.flags.contains(InodeFlags::XATTR) && reader.get(&key::xattr(ino, CAPABILITY))?.is_some())
}

/// File capabilities do not survive a change of the file. Changes `inode`, which the caller stores.
pub(crate) fn kill_capability<T: Txn + ?Sized>(txn: &mut T, ino: Ino, inode: &mut Inode) -> Result<()> {
    if has_capability(txn, ino, inode)? {
        remove_plain(txn, ino, inode, CAPABILITY)?;
    }
    Ok(())
}

fn remove_plain<T: Txn + ?Sized>(txn: &mut T, ino: Ino, inode: &mut Inode, name: &[u8]) -> Result<()> {
    txn.delete(&key::xattr(ino, name));
    let mut others = false;
    visit_names(txn, ino, &mut |left| {
        others = left != name && !is_acl(left);
        if others { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    inode.flags.set(InodeFlags::XATTR, others);
    Ok(())
}

pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

fn set_access<T: Txn + ?Sized>(
    txn: &mut T,
    ino: Ino,
    inode: &mut Inode,
    value: &[u8],
    how: SetXattr,
) -> Result<()> {
    match take_access(inode, value, how.kill_sgid)? {
        Some(access) => store_acl(txn, ino, acl::ACCESS, &access),
        None => txn.delete(&key::xattr(ino, acl::ACCESS)),
    }
    Ok(())
}

/// Gives the inode's mode and flags what an access ACL says. Returns what is to be stored: nothing if the mode can say it.
fn take_access(inode: &mut Inode, value: &[u8], kill_sgid: bool) -> Result<Option<Acl>> {
    if inode.kind == FileKind::Symlink {
        return refuse(Errno::EOPNOTSUPP);
    }
    let access = Acl::parse(value)?;
    if let Some(access) = &access {
        inode.mode = inode.mode & !0o777 | access.mode();
        if kill_sgid {
            inode.mode &= !S_ISGID;
        }
    }
    let stored = access.filter(|access| !access.is_minimal());
    inode.flags.set(InodeFlags::ACL_ACCESS, stored.is_some());
    Ok(stored)
}

fn set_default<T: Txn + ?Sized>(txn: &mut T, ino: Ino, inode: &mut Inode, value: &[u8]) -> Result<()> {
    match take_default(inode, value)? {
        Some(default) => store_acl(txn, ino, acl::DEFAULT, &default),
        None => txn.delete(&key::xattr(ino, acl::DEFAULT)),
    }
    Ok(())
}

/// As `take_access`, of a default ACL.
fn take_default(inode: &mut Inode, value: &[u8]) -> Result<Option<Acl>> {
    if inode.kind == FileKind::Symlink {
        return refuse(Errno::EOPNOTSUPP);
    }
    let default = Acl::parse(value)?;
    if default.is_some() && !inode.is_dir() {
        return refuse(Errno::EACCES);
    }
    inode.flags.set(InodeFlags::ACL_DEFAULT, default.is_some());
    Ok(default)
}

/// One attribute of many that are to replace all others: its record, if it has one. Changes the inode's mode and flags.
pub(crate) fn take_one(
    inode: &mut Inode,
    room: &mut Room,
    (name, value): (&[u8], &[u8]),
) -> Result<Option<Bytes>> {
    if value.len() > XATTR_SIZE_MAX {
        return refuse(Errno::E2BIG);
    }
    let acl = match classify(name)? {
        Class::Virtual => return refuse(Errno::EPERM),
        Class::Plain => {
            room.take(name, 1 + value.len())?;
            inode.flags |= InodeFlags::XATTR;
            return Ok(Some(record(value)));
        }
        Class::Access => take_access(inode, value, false)?,
        Class::Default => take_default(inode, value)?,
    };
    Ok(acl.map(|acl| record(&acl.encode())))
}

/// What attributes other than ACLs take of what one inode may have.
#[derive(Default)]
pub(crate) struct Room {
    /// Bytes of the list of their names.
    names: usize,
    /// Of names and records.
    all: usize,
}

impl Room {
    /// `ENOSPC` when the list of names would be longer than anybody can read, or all of it larger than an inode may have.
    fn take(&mut self, name: &[u8], record: usize) -> Result<()> {
        let (names, all) = (self.names + name.len() + 1, self.all + name.len() + record);
        // Room for the two ACLs stays.
        if names + acl::ACCESS.len() + acl::DEFAULT.len() + 2 > LIST_MAX || all > ALL_BYTES_MAX {
            return refuse(Errno::ENOSPC);
        }
        (self.names, self.all) = (names, all);
        Ok(())
    }
}

/// See [`Room::take`].
fn check_room<T: Txn + ?Sized>(
    txn: &T,
    ino: Ino,
    inode: &Inode,
    (name, value): (&[u8], &[u8]),
) -> Result<()> {
    if !inode.flags.contains(InodeFlags::XATTR) {
        return Ok(());
    }
    let mut room = Room::default();
    visit_records(txn, ino, &mut |other, record| {
        if other != name {
            room.names += other.len() + 1;
            room.all += other.len() + record.len();
        }
        ControlFlow::Continue(())
    })?;
    room.take(name, value.len())
}

fn visit_names<R: Reader + ?Sized>(
    reader: &R,
    ino: Ino,
    visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> std::result::Result<(), KvError> {
    visit_records(reader, ino, &mut |name, _| visit(name))
}

/// Names, and their records as they are stored.
pub(crate) fn visit_records<R: Reader + ?Sized>(
    reader: &R,
    ino: Ino,
    visit: Visit<'_>,
) -> std::result::Result<(), KvError> {
    reader.scan(&key::xattr(ino, b""), &key::xattr_end(ino), &mut |key, record| {
        visit(key.get(key::PREFIX_BYTES..).unwrap_or_default(), record)
    })
}

pub(crate) fn decode(record: &Bytes) -> Option<Bytes> {
    if record.first() == Some(&VERSION) { Some(record.slice(1..)) } else { None }
}

fn load<R: Reader + ?Sized>(reader: &R, ino: Ino, name: &[u8]) -> Result<Option<Bytes>> {
    let key = key::xattr(ino, name);
    match reader.get(&key)? {
        None => Ok(None),
        Some(record) => Ok(Some(decode(&record).ok_or_else(|| corrupt(&key))?)),
    }
}

fn record(value: &[u8]) -> Bytes {
    let mut record = Vec::with_capacity(1 + value.len());
    record.push(VERSION);
    record.extend_from_slice(value);
    Bytes::from(record)
}

fn store<T: Txn + ?Sized>(txn: &mut T, ino: Ino, name: &[u8], value: &[u8]) {
    txn.put(&key::xattr(ino, name), record(value));
}

/// A stored ACL; one that is not valid is damage.
pub(crate) fn load_acl<R: Reader + ?Sized>(reader: &R, ino: Ino, name: &[u8]) -> Result<Option<Acl>> {
    let Some(value) = load(reader, ino, name)? else { return Ok(None) };
    match Acl::parse(&value) {
        Ok(Some(acl)) => Ok(Some(acl)),
        Ok(None) | Err(_) => Err(corrupt(&key::xattr(ino, name)).into()),
    }
}

pub(crate) fn store_acl<T: Txn + ?Sized>(txn: &mut T, ino: Ino, name: &[u8], acl: &Acl) {
    store(txn, ino, name, &acl.encode());
}
