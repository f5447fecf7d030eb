//! Numbers for new inodes and new UGSDs. A number that was given out once is never given out again, because
//! ranges are marked as used in the store before numbers from them are.
//!
//! Record, version 1, 9 bytes: version u8 | first local number that no range holds u64.

use std::ops::Range;

use types::{Errno, LocalId, UgsdId};

use crate::{
    codec::{Fields, Writer},
    error::{Result, refuse},
    inode::corrupt,
    key, superblock,
    txn::{Bytes, Reader, Txn},
};

const VERSION: u8 = 1;
/// The first number after [`LocalId::TOP`].
const FIRST: u64 = 2;

pub(crate) fn encode(next: u64) -> Bytes {
    Bytes::copy_from_slice(&Writer::<9>::new().u8(VERSION).u64(next).finish())
}

pub(crate) fn decode(bytes: &[u8]) -> Option<u64> {
    let mut f = Fields::new(bytes);
    if f.u8()? != VERSION {
        return None;
    }
    let next = f.u64()?;
    f.end()?;
    if (FIRST..=LocalId::MAX + 1).contains(&next) { Some(next) } else { None }
}

/// The first local number of `ugsd` that no range holds yet.
pub(crate) fn next<R: Reader + ?Sized>(reader: &R, ugsd: UgsdId) -> Result<u64> {
    let key = key::allocator(ugsd);
    match reader.get(&key)? {
        None => Ok(FIRST),
        Some(bytes) => Ok(decode(&bytes).ok_or_else(|| corrupt(&key))?),
    }
}

/// Takes up to `count` local numbers of `ugsd`, at least one, or `ENOSPC`. They are the caller's once the
/// transaction is committed.
pub fn reserve<T: Txn + ?Sized>(txn: &mut T, ugsd: UgsdId, count: u64) -> Result<Range<u64>> {
    let start = next(txn, ugsd)?;
    let end = start.saturating_add(count.max(1)).min(LocalId::MAX + 1);
    if start >= end {
        return refuse(Errno::ENOSPC);
    }
    txn.put(&key::allocator(ugsd), encode(end));
    Ok(start..end)
}

/// So many numbers for new UGSDs that follow each other: the first. `None`: there are not so many left.
pub(crate) fn new_ugsds<T: Txn + ?Sized>(txn: &mut T, count: u32) -> Result<Option<UgsdId>> {
    let mut superblock = superblock::load(txn)?;
    let (first, next) = (superblock.next_ugsd, superblock.next_ugsd.saturating_add(count));
    let (Some(first), Some(_)) = (UgsdId::new(first), UgsdId::new(next.saturating_sub(1))) else {
        return Ok(None);
    };
    superblock.next_ugsd = next;
    superblock::store(txn, &superblock);
    Ok(Some(first))
}

/// The first local numbers of a UGSD that is made in this transaction, as [`reserve`] would take them.
pub fn first<T: Txn + ?Sized>(txn: &mut T, ugsd: UgsdId, count: u64) -> Range<u64> {
    let end = FIRST.saturating_add(count).min(LocalId::MAX + 1);
    txn.put(&key::allocator(ugsd), encode(end));
    FIRST..end
}

/// Takes up to `count` numbers for new UGSDs, at least one, or `ENOSPC` once all are used. As [`reserve`].
pub fn reserve_ugsds<T: Txn + ?Sized>(txn: &mut T, count: u32) -> Result<Range<u32>> {
    let mut superblock = superblock::load(txn)?;
    let start = superblock.next_ugsd;
    let end = start.saturating_add(count.max(1)).min(UgsdId::MAX + 1);
    if start >= end {
        return refuse(Errno::ENOSPC);
    }
    superblock.next_ugsd = end;
    superblock::store(txn, &superblock);
    Ok(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the record keeps its form. Method: golden bytes and numbers out of range.
    #[test]
    fn the_record_has_its_golden_bytes() {
        assert_eq!(&encode(0x0102030405)[..], b"\x01\x05\x04\x03\x02\x01\0\0\0");
        assert_eq!(decode(b"\x01\x05\x04\x03\x02\x01\0\0\0"), Some(0x0102030405));
        for bad in [
            &b"\x01\x01\0\0\0\0\0\0\0"[..],
            b"\x02\x05\0\0\0\0\0\0\0",
            b"\x01\x05\0\0\0\0\0\0",
            b"\x01\0\0\0\0\0\0\0\x01",
        ] {
            assert_eq!(decode(bad), None);
        }
    }
}
