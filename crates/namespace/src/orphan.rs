//! Orphans: inodes without a name, which live until nobody refers to them and are then purged.
//!
//! Invariants: an inode has a U record exactly while its nlink is 0; both change in one transaction.
//!
//! Record, version 1, 6 bytes: version u8 | origin u8 (0 unlinked, 1 made without a name) | epoch u32.

use std::ops::ControlFlow;

use types::{FileKind, Ino, UgsdId};

use crate::{
    Env,
    codec::{Fields, Writer},
    error::Result,
    inode::{self, Inode, InodeFlags, corrupt},
    key, quota,
    txn::{Bytes, KvError, Reader, Txn},
};

const VERSION: u8 = 1;

/// How an inode came to have no name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    Unlinked,
    /// `O_TMPFILE`: it may still get a name.
    Unnamed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Orphan {
    pub origin: Origin,
    /// The mount in which it lost its name.
    pub epoch: u32,
}

impl Orphan {
    pub fn encode(&self) -> Bytes {
        let origin = match self.origin {
            Origin::Unlinked => 0,
            Origin::Unnamed => 1,
        };
        Bytes::copy_from_slice(&Writer::<6>::new().u8(VERSION).u8(origin).u32(self.epoch).finish())
    }

    /// `None` when the bytes are not an orphan's record.
    pub fn decode(bytes: &[u8]) -> Option<Orphan> {
        let mut f = Fields::new(bytes);
        if f.u8()? != VERSION {
            return None;
        }
        let origin = match f.u8()? {
            0 => Origin::Unlinked,
            1 => Origin::Unnamed,
            _ => return None,
        };
        let orphan = Orphan { origin, epoch: f.u32()? };
        f.end()?;
        Some(orphan)
    }
}

pub(crate) fn get<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Option<Orphan>> {
    let key = key::orphan(ino);
    match reader.get(&key)? {
        None => Ok(None),
        Some(bytes) => Ok(Some(Orphan::decode(&bytes).ok_or_else(|| corrupt(&key))?)),
    }
}

pub(crate) fn add<T: Txn + ?Sized>(txn: &mut T, env: &Env, ino: Ino, origin: Origin) {
    txn.put(&key::orphan(ino), Orphan { origin, epoch: env.epoch }.encode());
}

pub(crate) fn drop_record<T: Txn + ?Sized>(txn: &mut T, ino: Ino) {
    txn.delete(&key::orphan(ino));
}

/// Orphans of `ugsd` with numbers above `after`, in order, until `visit` breaks. `None`: what is noted of it is damaged.
/// A record that names no inode is passed over, and the first of them returned.
pub fn visit<R: Reader + ?Sized>(
    reader: &R,
    ugsd: UgsdId,
    after: Option<Ino>,
    visit: &mut dyn FnMut(Ino, Option<Orphan>) -> ControlFlow<()>,
) -> Result<Option<KvError>> {
    let from = after.map_or_else(|| key::orphan_start(ugsd), key::orphan);
    let mut bad = None;
    reader.scan(&from, &key::orphan_end(ugsd), &mut |key, value| match key::Parsed::new(key)
        .and_then(|p| key::ino_of(p.rest))
    {
        Some(ino) if Some(ino) == after => ControlFlow::Continue(()),
        Some(ino) => visit(ino, Orphan::decode(value)),
        None => {
            bad.get_or_insert_with(|| corrupt(key));
            ControlFlow::Continue(())
        }
    })?;
    Ok(bad)
}

/// What [`purge`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purged {
    Gone,
    /// It has a name (again), or it was gone before: nothing to purge.
    Nothing,
}

/// Removes an inode without a name, with all that is stored about it. The caller knows that nobody refers to
/// it and that its objects are removed.
pub fn purge<T: Txn + ?Sized>(txn: &mut T, ino: Ino) -> Result<Purged> {
    let Some(inode) = inode::get(txn, ino)? else {
        drop_record(txn, ino);
        return Ok(Purged::Nothing);
    };
    if inode.nlink != 0 {
        return Ok(Purged::Nothing);
    }
    delete(txn, ino, &inode)?;
    drop_record(txn, ino);
    if inode.is_dir() {
        quota::end(txn, inode.project, ino)?;
    }
    Ok(Purged::Gone)
}

/// All records of an inode but that of an orphan; its project has it no more.
pub(crate) fn delete<T: Txn + ?Sized>(txn: &mut T, ino: Ino, inode: &Inode) -> Result<()> {
    delete_parts(txn, ino, inode)?;
    txn.delete(&key::inode(ino));
    let bytes = quota::bytes_delta(quota::bytes_of(inode), 0);
    quota::settle(txn, inode.project, quota::Delta { bytes, inodes: -1 })
}

pub(crate) fn delete_parts<T: Txn + ?Sized>(txn: &mut T, ino: Ino, inode: &Inode) -> Result<()> {
    if inode.kind == FileKind::Symlink {
        txn.delete(&key::symlink(ino));
    }
    if inode.flags.intersects(InodeFlags::XATTR | InodeFlags::ACL_ACCESS | InodeFlags::ACL_DEFAULT) {
        delete_range(txn, &key::xattr(ino, b""), &key::xattr_end(ino))?;
    }
    if inode.flags.contains(InodeFlags::POLICY) {
        txn.delete(&key::policy(ino));
    }
    if inode.flags.contains(InodeFlags::STRIPING) {
        txn.delete(&key::stripes(ino));
    }
    if inode.flags.contains(InodeFlags::WRITTEN) {
        // The data server removed all but the head with the object.
        txn.delete(&key::object(ino));
        txn.delete(&key::stripes(ino));
    }
    Ok(())
}

pub(crate) fn delete_range<T: Txn + ?Sized>(txn: &mut T, from: &[u8], to: &[u8]) -> Result<()> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    txn.scan(from, to, &mut |key, _| {
        keys.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    for key in &keys {
        txn.delete(key);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the record keeps its form. Method: golden bytes and values out of range.
    #[test]
    fn the_record_has_its_golden_bytes() {
        let orphan = Orphan { origin: Origin::Unnamed, epoch: 0x01020304 };
        assert_eq!(&orphan.encode()[..], b"\x01\x01\x04\x03\x02\x01");
        assert_eq!(Orphan::decode(&orphan.encode()), Some(orphan));
        for bad in
            [&b"\x01\x02\x04\x03\x02\x01"[..], b"\x02\x01\x04\x03\x02\x01", b"\x01\x01\x04\x03\x02", b""]
        {
            assert_eq!(Orphan::decode(bad), None);
        }
    }
}
