//! The number of inodes, as the store keeps it: a hint that a crash may leave behind by a few thousand.

use namespace::{
    inode, key,
    txn::{Bytes, Reader, Txn},
};
use types::Ino;

const COUNT: &[u8] = b"inodes";

/// The saved number of inodes; the root is there without one.
pub(crate) fn load<R: Reader + ?Sized>(reader: &R) -> namespace::Result<i64> {
    let saved = reader.get(&key::global(COUNT))?;
    let count = saved.and_then(|bytes| bytes[..].try_into().ok()).map_or(1, i64::from_le_bytes);
    inode::load_dir(reader, Ino::ROOT)?;
    Ok(count.max(1))
}

pub(crate) fn save<T: Txn + ?Sized>(txn: &mut T, count: i64) {
    txn.put(&key::global(COUNT), Bytes::copy_from_slice(&count.to_le_bytes()));
}
