//! A linked file of which theirs is gone, or is another file now, while ours stays: what is here of it has to do without theirs.

use crate::{DataServer, object::Object, theirs::Opened};
use layout::{Sau, SauIndex};
use std::sync::Arc;
use types::{Errno, TierId, TierSet};

impl DataServer {
    /// What near-line alone has of the object is fetched from the file that was theirs, if that is still open and as it was. What no
    /// tier has room for stays there, to be read from it for as long as it is open; near-line has nothing else of the object
    /// any more. What cannot be fetched is lost: reads of it are `EIO`. Returns how many SAUs of it are lost, since whenever.
    ///
    /// An error: the file cannot be asked now, and nothing is lost yet.
    pub fn part_from_theirs(&self, object: &Arc<Object>) -> Result<u32, Errno> {
        let only_there = |now: &Sau| now.valid == TierSet::of(TierId::Nearline);
        let wanted: Vec<SauIndex> = {
            let state = object.state.read();
            state.map.iter().filter(|(_, now)| only_there(now)).map(|(sau, _)| sau).collect()
        };
        let stays = if wanted.is_empty() { false } else { self.fetch_last(object, wanted)? };
        let _copier = object.stop_copier();
        let mut state = object.state.write();
        if state.removed || state.map.count_in(TierId::Nearline) == 0 {
            self.kept.let_go(object.ino);
            return Ok(state.map.lost());
        }
        let there: Vec<SauIndex> = state
            .map
            .iter()
            .filter(|(_, now)| now.valid.contains(TierId::Nearline) && !(stays && only_there(now)))
            .map(|(sau, _)| sau)
            .collect();
        let before = state.map.lost();
        for sau in there {
            state.map.note_failed(sau, TierId::Nearline);
        }
        state.stub = false;
        self.save_map(object, &mut state)?;
        if !stays {
            state.linked_len = 0;
            state.era += 1;
            object.theirs.replace(None);
            self.kept.let_go(object.ino);
        }
        let lost = state.map.lost() - before;
        if lost > 0 {
            tracing::error!(ino = %object.ino, saus = lost, "bytes that only the linked directory had are gone: reads of them give EIO");
        }
        Ok(before + lost)
    }

    /// Whether their file still has what could not be fetched.
    fn fetch_last(&self, object: &Arc<Object>, wanted: Vec<SauIndex>) -> Result<bool, Errno> {
        if self.last_of_theirs(object)?.is_none() {
            return Ok(false);
        }
        for sau in wanted {
            let Err(errno) = self.lift(object, sau) else { continue };
            tracing::warn!(ino = %object.ino, sau = sau.get(), %errno, "bytes of a file that is theirs no more cannot be copied");
            if self.last_of_theirs(object)?.is_none() {
                return Ok(false);
            }
            return if matches!(errno, Errno::ENOSPC | Errno::EDQUOT) { Ok(true) } else { Err(errno) };
        }
        Ok(false)
    }

    /// The file that was theirs, if it is open and has the bytes that it had.
    fn last_of_theirs(&self, object: &Object) -> Result<Option<Opened>, Errno> {
        let file = self.kept.get(object.ino).or_else(|| object.theirs.get());
        file.map_or(Ok(None), |file| file.as_it_is())
    }
}
