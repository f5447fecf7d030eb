//! A linked file of which theirs is gone, or is another file now, while ours stays: what is here of it has to do without theirs.

use crate::{DataServer, object::Object};
use layout::{Sau, SauIndex};
use std::sync::Arc;
use types::{Errno, TierId, TierSet};

impl DataServer {
    /// Nothing of the object is in near-line any more. What only near-line has is fetched from the file that was theirs, if
    /// that is still open and as it was; otherwise it is lost: reads of it are `EIO`. Returns how many SAUs are lost.
    pub fn part_from_theirs(&self, object: &Arc<Object>) -> Result<u32, Errno> {
        let only_there = |now: &Sau| now.valid == TierSet::of(TierId::Nearline);
        let wanted: Vec<SauIndex> = {
            let state = object.state.read();
            state.map.iter().filter(|(_, now)| only_there(now)).map(|(sau, _)| sau).collect()
        };
        if object.theirs.is_open() {
            for sau in wanted {
                if let Err(errno) = self.lift(object, sau) {
                    tracing::warn!(ino = %object.ino, sau = sau.get(), %errno, "bytes of a file that is theirs no more cannot be read");
                    break;
                }
            }
        }
        let _copier = object.stop_copier();
        let mut state = object.state.write();
        if state.removed || state.map.count_in(TierId::Nearline) == 0 {
            return Ok(state.map.lost());
        }
        let there: Vec<SauIndex> = state
            .map
            .iter()
            .filter(|(_, now)| now.valid.contains(TierId::Nearline))
            .map(|(sau, _)| sau)
            .collect();
        for sau in there {
            state.map.note_failed(sau, TierId::Nearline);
        }
        state.stub = false;
        self.save_map(object, &mut state)?;
        state.linked_len = 0;
        state.era += 1;
        object.theirs.replace(None);
        if state.map.lost() > 0 {
            tracing::error!(ino = %object.ino, saus = state.map.lost(), "bytes that only the linked directory had are gone: reads of them give EIO");
        }
        Ok(state.map.lost())
    }
}
