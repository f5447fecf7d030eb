//! Directory entries: a name in a directory, and the inode that it names.
//!
//! Record, version 1, 10 bytes: version u8 | kind u8 | inode number u64. The name is in the key.

use std::ops::ControlFlow;

use types::{FileKind, Ino};

use crate::{
    Place,
    codec::{Fields, Writer},
    error::Result,
    inode::corrupt,
    key,
    name::NameHasher,
    txn::{Bytes, Reader, Txn},
};

const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dentry {
    pub ino: Ino,
    pub kind: FileKind,
}

impl Dentry {
    pub fn encode(&self) -> Bytes {
        let record = Writer::<10>::new().u8(VERSION).u8(self.kind as u8).u64(self.ino.get());
        Bytes::copy_from_slice(&record.finish())
    }

    /// `None` when the bytes are not an entry.
    pub fn decode(bytes: &[u8]) -> Option<Dentry> {
        let mut f = Fields::new(bytes);
        if f.u8()? != VERSION {
            return None;
        }
        let kind = FileKind::from_u8(f.u8()?)?;
        let ino = Ino::from_raw(f.u64()?)?;
        f.end()?;
        Some(Dentry { ino, kind })
    }
}

/// Where an entry is: made once for all that an operation does with it.
pub(crate) fn key_of(names: &NameHasher, place: Place<'_>) -> key::Key {
    key::dentry(place.dir, names.hash(place.name), place.name)
}

pub(crate) fn get<R: Reader + ?Sized>(
    reader: &R,
    names: &NameHasher,
    at: Place<'_>,
) -> Result<Option<Dentry>> {
    get_at(reader, &key_of(names, at))
}

pub(crate) fn get_at<R: Reader + ?Sized>(reader: &R, key: &key::Key) -> Result<Option<Dentry>> {
    match reader.get(key)? {
        None => Ok(None),
        Some(bytes) => Ok(Some(Dentry::decode(&bytes).ok_or_else(|| corrupt(key))?)),
    }
}

pub(crate) fn put<T: Txn + ?Sized>(txn: &mut T, names: &NameHasher, at: Place<'_>, dentry: Dentry) {
    txn.put(&key_of(names, at), dentry.encode());
}

pub(crate) fn delete<T: Txn + ?Sized>(txn: &mut T, names: &NameHasher, at: Place<'_>) {
    txn.delete(&key_of(names, at));
}

pub(crate) fn is_empty<R: Reader + ?Sized>(reader: &R, dir: Ino) -> Result<bool> {
    let mut empty = true;
    reader.scan(&key::dentry_from(dir, 0), &key::dentry_end(dir), &mut |_, _| {
        empty = false;
        ControlFlow::Break(())
    })?;
    Ok(empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: entries keep their form and damage is seen. Method: golden bytes; every truncation and bad fields.
    #[test]
    fn the_record_has_its_golden_bytes() {
        let dentry = Dentry { ino: Ino::from_raw(0x0102030405060708).unwrap(), kind: FileKind::Symlink };
        let bytes = dentry.encode();
        assert_eq!(&bytes[..], b"\x01\x03\x08\x07\x06\x05\x04\x03\x02\x01");
        assert_eq!(Dentry::decode(&bytes), Some(dentry));
        for len in 0..bytes.len() {
            assert_eq!(Dentry::decode(&bytes[..len]), None);
        }
        assert_eq!(Dentry::decode(b"\x02\x03\x08\x07\x06\x05\x04\x03\x02\x01"), None);
        assert_eq!(Dentry::decode(b"\x01\x08\x08\x07\x06\x05\x04\x03\x02\x01"), None);
        assert_eq!(Dentry::decode(b"\x01\x03\0\0\0\0\0\x03\x02\x01"), None);
        assert_eq!(Dentry::decode(b"\x01\x03\x08\x07\x06\x05\x04\x03\x02\x01\0"), None);
    }
}
