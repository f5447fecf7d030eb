//! What a directory says of where the data of new files in it go. Who places them knows what the record means; here it is bytes.
//!
//! Invariants: a directory has the flag [`InodeFlags::STRIPING`] exactly while it has a record, under the key `inode, T`, where a
//! regular file has its layout. A directory that is made in it gets the same.

use types::{Errno, Ino};

use crate::{
    Env,
    error::{Result, refuse},
    inode::{self, Inode, InodeFlags, corrupt},
    key, parts,
    txn::{Bytes, Reader, Txn},
};

/// Bytes of a record.
pub const RECORD_BYTES_MAX: usize = 256;

/// `ENOTDIR` for anything but a directory.
pub fn get<R: Reader + ?Sized>(reader: &R, dir: Ino) -> Result<Option<Bytes>> {
    let inode = inode::load(reader, dir)?;
    if !inode.is_dir() {
        return refuse(Errno::ENOTDIR);
    }
    load(reader, dir, &inode)
}

/// `None` takes it away.
pub fn set<T: Txn + ?Sized>(txn: &mut T, env: &Env, dir: Ino, record: Option<&[u8]>) -> Result<()> {
    let mut inode = inode::load_live_dir(txn, dir)?;
    parts::check_shown(&inode)?;
    match record {
        Some(record) if record.len() > RECORD_BYTES_MAX => return refuse(Errno::E2BIG),
        Some(record) => txn.put(&key::stripes(dir), Bytes::copy_from_slice(record)),
        None => txn.delete(&key::stripes(dir)),
    }
    inode.flags.set(InodeFlags::STRIPING, record.is_some());
    inode.ctime = env.now;
    inode::store(txn, dir, &inode);
    parts::reflect(txn, dir, &inode, false)
}

/// A new directory `ino` in `dir`. Changes `inode`, which the caller stores.
pub(crate) fn inherit<T: Txn + ?Sized>(
    txn: &mut T,
    (dir, of_dir): (Ino, &Inode),
    (ino, inode): (Ino, &mut Inode),
) -> Result<()> {
    if let Some(record) = load(txn, dir, of_dir)? {
        txn.put(&key::stripes(ino), record);
        inode.flags |= InodeFlags::STRIPING;
    }
    Ok(())
}

fn load<R: Reader + ?Sized>(reader: &R, dir: Ino, inode: &Inode) -> Result<Option<Bytes>> {
    if !inode.flags.contains(InodeFlags::STRIPING) {
        return Ok(None);
    }
    let key = key::stripes(dir);
    Ok(Some(reader.get(&key)?.ok_or_else(|| corrupt(&key))?))
}
