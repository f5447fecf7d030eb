//! Objects that are not done with moving: copies of which it is not known whether they count, and what went and still has bytes here.

use std::{io, ops::ControlFlow};

use kv::WriteSet;
use namespace::key;
use types::Ino;

use super::{
    DataService, Record,
    mark::{Kind, Mark},
    record::refused,
};
use crate::answer::No;

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
