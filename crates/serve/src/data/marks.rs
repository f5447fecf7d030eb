//! Objects that are not done with moving: copies of which it is not known whether they count, and what went and still has bytes here.
//!
//! Mark, version 1, 14 bytes, little-endian (`docs/data-model.md`), under the key `0, H, inode`: version u8 | kind u8 (1 a copy that came, 2 it
//! went) | generation u32 | attempt u64

use std::{collections::BTreeMap, io, ops::ControlFlow};

use bytes::Bytes;
use kv::WriteSet;
use namespace::key;
use types::Ino;

use super::{DataService, Record, service::refused};
use crate::answer::No;

const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Came = 1,
    Went = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub kind: Kind,
    pub generation: u32,
    pub attempt: u64,
}

/// Of copies alone.
pub(super) type Marks = BTreeMap<Ino, Mark>;

impl Mark {
    pub fn encode(self) -> Bytes {
        let mut bytes = vec![VERSION, self.kind as u8];
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.attempt.to_le_bytes());
        bytes.into()
    }

    pub fn decode(bytes: &[u8]) -> Option<Mark> {
        let [VERSION, kind, rest @ ..] = bytes else { return None };
        let kind = match kind {
            1 => Kind::Came,
            2 => Kind::Went,
            _ => return None,
        };
        let (generation, attempt) = rest.split_first_chunk::<4>()?;
        let attempt = u64::from_le_bytes(attempt.try_into().ok()?);
        Some(Mark { kind, generation: u32::from_le_bytes(*generation), attempt })
    }
}

impl DataService {
    /// At the start: what went in an earlier life is removed now.
    pub(super) fn read_marks(&self) -> io::Result<()> {
        let (mut went, mut damaged) = (Vec::new(), 0);
        let mut marks = self.arriving.marks.lock();
        let scanned = self.store.scan(&key::moving_start(), &key::moving_end(), &mut |key, value| {
            let ino = key.get(key::PREFIX_BYTES..).and_then(key::ino_of);
            match ino.zip(Mark::decode(value)) {
                Some((ino, mark)) if mark.kind == Kind::Came => drop(marks.insert(ino, mark)),
                Some((ino, _)) => went.push(ino),
                None => damaged += 1,
            }
            ControlFlow::Continue(())
        });
        drop(marks);
        scanned.map_err(io::Error::other)?;
        if damaged > 0 {
            tracing::error!(damaged, "records of objects that moved cannot be read");
        }
        for ino in went {
            if let Err(no) = self.remove_what_went(ino) {
                tracing::warn!(%ino, errno = %no.errno(), "what went to another data server is removed later");
            }
        }
        Ok(())
    }

    /// Says durably that the object is elsewhere, and removes its bytes after that. Nobody else is at it.
    pub(super) fn leave_for_good(&self, ino: Ino, generation: u32, attempt: u64) -> Result<(), No> {
        let mut writes = WriteSet::new();
        writes.use_reserve();
        writes.put(&key::held(ino), Record::of_gone(generation, attempt).encode().into());
        writes.put(&key::moving(ino), Mark { kind: Kind::Went, generation, attempt }.encode());
        self.arriving.marks.lock().remove(&ino);
        self.store.commit(writes).and_then(|_| self.store.sync()).map_err(|error| refused(ino, &error))?;
        if let Err(no) = self.remove_what_went(ino) {
            tracing::warn!(%ino, errno = %no.errno(), "what went to another data server is removed at the next start");
        }
        Ok(())
    }

    fn remove_what_went(&self, ino: Ino) -> Result<(), No> {
        self.remove_bytes(ino)?;
        let mut writes = WriteSet::new();
        writes.use_reserve();
        writes.delete(&key::object(ino));
        writes.delete(&key::moving(ino));
        self.store.commit(writes).map_err(|error| refused(ino, &error))?;
        self.ds.forget_removed(&[ino]);
        Ok(())
    }

    /// Its mark goes with the rest.
    pub(super) fn unmark(&self, ino: Ino, writes: &mut WriteSet) {
        if self.arriving.marks.lock().remove(&ino).is_some() {
            writes.delete(&key::moving(ino));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mark = Mark { kind: Kind::Went, generation: 0x0102_0304, attempt: 6 << 32 | 5 };
        let golden = b"\x01\x02\x04\x03\x02\x01\x05\0\0\0\x06\0\0\0";
        assert_eq!((&mark.encode()[..], Mark::decode(golden)), (&golden[..], Some(mark)));
    }

    /// Goal: what is stored is a mark or none. Method: fuzzing.
    #[test]
    fn fuzz_marks() {
        let good =
            [Kind::Came, Kind::Went].map(|kind| Mark { kind, generation: 1, attempt: 2 }.encode().to_vec());
        fuzzing::fuzz("marks", &good, fuzzing::as_it_is, |bytes| {
            if let Some(mark) = Mark::decode(bytes) {
                assert_eq!(&mark.encode()[..], bytes);
            }
        });
    }
}
