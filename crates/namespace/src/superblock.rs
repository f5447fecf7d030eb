//! What is true of the file system as a whole, and how a store becomes a file system.
//!
//! Record, format 2, 68 bytes: magic "ONFSMETA" | format u32 | uuid 16 bytes | hash key 16 bytes | epoch u32 |
//! next UGSD u32 | memory generation u32 | created (i64 s, u32 ns). `format` counts for every record in the store.

use std::ops::ControlFlow;

use types::{FileKind, Ino, ProjectId, Timestamp};

use crate::{
    codec::{Fields, Writer},
    error::Result,
    inode::{self, Inode, InodeFlags, corrupt},
    key,
    txn::{Bytes, KvError, Reader, Txn},
};

const MAGIC: [u8; 8] = *b"ONFSMETA";
/// The format that this code reads and writes. 2: maps of objects in chunks.
pub const FORMAT: u32 = 2;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    pub uuid: [u8; 16],
    /// Key of the hash that orders directories.
    pub hash_key: [u8; 16],
    /// Number of the running mount, from 1.
    pub epoch: u32,
    /// The next top-level directory becomes this UGSD.
    pub next_ugsd: u32,
    /// Generation of the memory tier: +1 when its content was lost.
    pub memory_generation: u32,
    pub created: Timestamp,
}

/// What a store holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stored {
    /// An empty store.
    Nothing,
    /// A file system of a newer or an older program.
    OtherFormat {
        format: u32,
    },
    Here(Superblock),
}

impl Superblock {
    pub fn encode(&self) -> Bytes {
        let record = Writer::<68>::new()
            .raw(&MAGIC)
            .u32(FORMAT)
            .raw(&self.uuid)
            .raw(&self.hash_key)
            .u32(self.epoch)
            .u32(self.next_ugsd)
            .u32(self.memory_generation)
            .time(self.created);
        Bytes::copy_from_slice(&record.finish())
    }

    /// `None` when the bytes are not a superblock of any format.
    pub fn decode(bytes: &[u8]) -> Option<Stored> {
        let mut f = Fields::new(bytes);
        if f.array::<8>()? != MAGIC {
            return None;
        }
        match f.u32()? {
            FORMAT => {}
            0 => return None,
            format => return Some(Stored::OtherFormat { format }),
        }
        let superblock = Superblock {
            uuid: f.array()?,
            hash_key: f.array()?,
            epoch: f.u32()?,
            next_ugsd: f.u32()?,
            memory_generation: f.u32()?,
            created: f.time()?,
        };
        f.end()?;
        Some(Stored::Here(superblock))
    }
}

/// Looks at what the store holds. A store with records and no superblock is damaged, not empty.
pub fn read<R: Reader + ?Sized>(reader: &R) -> Result<Stored> {
    let key = key::superblock();
    if let Some(bytes) = reader.get(&key)? {
        return Ok(Superblock::decode(&bytes).ok_or_else(|| corrupt(&key))?);
    }
    let mut first = None;
    reader.scan(&[], &[0xff; 16], &mut |key, _| {
        first = Some(key::describe(key));
        ControlFlow::Break(())
    })?;
    match first {
        None => Ok(Stored::Nothing),
        Some(key) => Err(KvError::Corrupt(format!("there is no superblock, but a record {key}")).into()),
    }
}

/// The superblock of a store that was opened before.
pub fn load<R: Reader + ?Sized>(reader: &R) -> Result<Superblock> {
    match read(reader)? {
        Stored::Here(superblock) => Ok(superblock),
        Stored::Nothing | Stored::OtherFormat { .. } => {
            Err(KvError::Corrupt("the superblock changed under a running mount".to_owned()).into())
        }
    }
}

pub fn store<T: Txn + ?Sized>(txn: &mut T, superblock: &Superblock) {
    txn.put(&key::superblock(), superblock.encode());
}

/// What formatting takes from outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Random, names this file system.
    pub uuid: [u8; 16],
    /// Random, secret.
    pub hash_key: [u8; 16],
    /// Owner of the root directory.
    pub uid: u32,
    pub gid: u32,
    /// Permission bits of the root directory.
    pub mode: u32,
    pub now: Timestamp,
}

/// Makes an empty file system: superblock (epoch 0, so that the first mount is 1) and root directory.
pub fn format<T: Txn + ?Sized>(txn: &mut T, options: &FormatOptions) -> Superblock {
    let superblock = Superblock {
        uuid: options.uuid,
        hash_key: options.hash_key,
        epoch: 0,
        next_ugsd: 1,
        memory_generation: 1,
        created: options.now,
    };
    store(txn, &superblock);
    let root = Inode {
        kind: FileKind::Directory,
        mode: options.mode & types::MODE_MASK,
        flags: InodeFlags::empty(),
        nlink: 2,
        uid: options.uid,
        gid: options.gid,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: options.now,
        mtime: options.now,
        ctime: options.now,
        btime: options.now,
        parent: Some(Ino::ROOT),
        project: ProjectId::NONE,
        live_epoch: 0,
        memory_generation: 0,
    };
    inode::store(txn, Ino::ROOT, &root);
    superblock
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a superblock is known by every version, and one of another is told from damage. Method:
    /// golden bytes; a changed format number; every truncation.
    #[test]
    fn the_record_has_its_golden_bytes() {
        let superblock = Superblock {
            uuid: *b"uuiduuiduuiduuid",
            hash_key: *b"hashhashhashhash",
            epoch: 2,
            next_ugsd: 3,
            memory_generation: 4,
            created: Timestamp { sec: 5, nsec: 6 },
        };
        let bytes = superblock.encode();
        let golden = b"ONFSMETA\x02\0\0\0uuiduuiduuiduuidhashhashhashhash\x02\0\0\0\x03\0\0\0\x04\0\0\0\
                       \x05\0\0\0\0\0\0\0\x06\0\0\0";
        assert_eq!(&bytes[..], &golden[..]);
        assert_eq!(Superblock::decode(&bytes), Some(Stored::Here(superblock)));
        for len in 0..bytes.len() {
            assert_eq!(Superblock::decode(&bytes[..len]), None);
        }
        for format in [1, 9] {
            let mut other = bytes.to_vec();
            other[8] = format;
            other.push(0);
            let format = u32::from(format);
            assert_eq!(Superblock::decode(&other), Some(Stored::OtherFormat { format }));
        }
    }
}
