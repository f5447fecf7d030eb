//! A linked file that they changed and we did not: what is here of it is given up.

use crate::{
    DataServer,
    load::attached,
    object::{Object, UNSAVED},
    truncate::{cut_file, has_condemned},
};
use layout::SauMap;
use std::sync::Arc;
use types::{Errno, TierId};

impl DataServer {
    /// The object is a stub of this size again: all of it is in their file, which is the one that `commit` agrees on.
    ///
    /// `commit` deletes the object's record with all its chunks, in the commit that says what is theirs now, and returns the
    /// number of that. It runs under the object's lock, which the caller does not hold. When it fails nothing has changed.
    ///
    /// `EBUSY`, and nothing is done: the object is written by somebody, or read in place, or published, or has bytes that near-line
    /// has not.
    pub fn become_stub(
        &self,
        object: &Arc<Object>,
        size: u64,
        commit: &mut dyn FnMut() -> Result<u64, Errno>,
    ) -> Result<(), Errno> {
        self.become_stub_if(object, size, &mut |noted| if noted { commit() } else { Err(Errno::EBUSY) })
    }

    /// As `become_stub`; whether near-line has all bytes of the object, as far as is recorded, is told to `commit`. It may have
    /// them though that is not recorded: a version that has its name is recorded after the metadata say so.
    pub fn become_stub_if(
        &self,
        object: &Arc<Object>,
        size: u64,
        commit: &mut dyn FnMut(bool) -> Result<u64, Errno>,
    ) -> Result<(), Errno> {
        let _copier = object.stop_copier();
        let mut state = object.state.write();
        if state.removed {
            return Err(Errno::ENOENT);
        }
        let in_use = state.in_place.is_some() || state.mapped.is_some() || object.in_passthrough();
        let unpublished = state.map.iter().any(|(_, now)| !now.lost && !now.valid.contains(TierId::Nearline));
        if in_use || object.is_open_for_write() || state.version.is_some() {
            return Err(Errno::EBUSY);
        }
        let saved = commit(!unpublished)?;
        let held: Vec<_> = state.map.iter().collect();
        for (sau, now) in held {
            now.valid.iter().for_each(|tier| self.give_up(object, &mut state, tier, sau, saved));
        }
        // What was given up before and is not recorded is so now.
        state.condemned.iter_mut().filter(|c| c.after == UNSAVED).for_each(|c| c.after = saved);
        state.map = SauMap::new();
        state.map.fill(size, TierId::Nearline);
        state.map.keep();
        (state.recorded, state.stub, state.unsaved) = (false, true, false);
        (state.size, state.linked_len, state.synced_size) = (size, size, 0);
        (state.pending, state.found_mtime) = (None, None);
        state.era += 1;
        *object.verified.lock() = Default::default();
        object.set_mtime(None);
        object.theirs.replace(None);
        self.kept.let_go(object.ino);
        // What a device did not take is wanted no more.
        TierId::ALL.into_iter().for_each(|tier| state.unsynced.forget(tier));
        state.unsynced.trust();
        self.free_condemned(object, &mut state);
        // How far a file reaches tells after a crash how long its object was. What is given up is cut when it is freed.
        for tier in TierId::ALL.into_iter().filter(|tier| !has_condemned(&state, *tier)).collect::<Vec<_>>() {
            if let Err(errno) = cut_file(&mut state, tier, size) {
                tracing::warn!(ino = %object.ino, %tier, %errno, "the file of an object that is a stub again was not cut");
            }
        }
        self.note_if_unsynced(object, &state);
        if state.known {
            self.driver.tell(attached(object.ino, &state));
        }
        Ok(())
    }
}
