//! Changing the size of an object.

use crate::{
    DataServer,
    object::{Object, State},
};
use layout::FILE_BYTES_MAX;
use types::{Errno, TierId};

impl DataServer {
    /// Cuts or extends. After a crash the object has the old size with its old bytes, or the new one.
    pub fn truncate(&self, object: &Object, size: u64) -> Result<(), Errno> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::EFBIG);
        }
        loop {
            let mut state = object.state.write();
            if state.moving.is_some() {
                drop(state);
                drop(object.stop_copier());
                continue;
            }
            return if size < state.size {
                self.shrink(object, &mut state, size)
            } else {
                self.extend(object, &mut state, size)
            };
        }
    }

    fn shrink(&self, object: &Object, state: &mut State, size: u64) -> Result<(), Errno> {
        let files = state.files.iter().flatten().count();
        // One file is cut at once. Several are not: the record says what must be finished after a crash.
        if files > 1 || state.recorded {
            self.save_pending(object, state, Some(size))?;
        }
        for tier in TierId::ALL {
            let Some(file) = &state.files[tier.index()] else { continue };
            if state.file_len[tier.index()] > size {
                file.truncate(size)?;
                state.file_len[tier.index()] = size;
            }
        }
        state.map.truncate_to(size);
        state.size = size;
        object.set_mtime(Some(self.now()));
        if files > 1 || state.recorded {
            self.save_pending(object, state, None)?;
        }
        for tier in TierId::ALL {
            if state.charged[tier.index()] > 0 {
                self.settle_charge(object, state, tier);
            }
        }
        Ok(())
    }

    /// The size is that of the longest file, so that it is found after a crash.
    fn extend(&self, object: &Object, state: &mut State, size: u64) -> Result<(), Errno> {
        if size == state.size {
            return Ok(());
        }
        let tier = TierId::ALL.into_iter().find(|t| state.files[t.index()].is_some());
        let tier = tier.or(self.present().fastest()).ok_or(Errno::EIO)?;
        let file = self.file_for_write(object, state, tier)?;
        // What an earlier copy left between the two sizes must not come to light.
        if state.file_len[tier.index()] > state.size {
            file.truncate(state.size)?;
        }
        file.truncate(size)?;
        state.file_len[tier.index()] = size;
        state.size = size;
        object.set_mtime(Some(self.now()));
        Ok(())
    }

    fn save_pending(&self, object: &Object, state: &mut State, pending: Option<u64>) -> Result<(), Errno> {
        let record = layout::ObjectRecord {
            map: std::mem::take(&mut state.map),
            memory_generation: self.memory_generation,
            pending_truncate: pending,
            mapped: state.mapped,
        };
        let saved = self.maps.save(object.ino(), &record);
        state.map = record.map;
        saved?;
        state.recorded = true;
        Ok(())
    }
}
