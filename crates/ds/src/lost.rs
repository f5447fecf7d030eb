//! Bytes that are lost here because they are lost elsewhere: this object is the copy of one of which a part is gone.

use crate::{
    DataServer,
    object::{Object, State},
};
use layout::{Sau, SauIndex, pieces};
use types::Errno;

impl DataServer {
    /// Would reading some byte of the range say that it is lost? Also of a range behind an end that is lost.
    pub fn is_lost(&self, object: &Object, from: u64, to: u64) -> bool {
        let state = object.state.read();
        let touches = |sau: SauIndex| sau.start() < to;
        state.map.lost() > 0
            && (state.map.iter_from(SauIndex::of(from)).any(|(sau, now)| now.lost && touches(sau))
                || to > state.size && state.end_is_lost())
    }

    /// Can a write of the range not be stored, since it keeps a part of something that is lost?
    pub fn keeps_lost(&self, object: &Object, from: u64, to: u64) -> bool {
        let state = object.state.read();
        state.map.lost() > 0
            && pieces(from, to.saturating_sub(from))
                .any(|piece| state.map.get(piece.sau).lost && !piece.covers_all(state.size.max(piece.end())))
    }

    /// What is lost from there on, as numbers of SAUs.
    pub fn lost_saus(&self, object: &Object, from: u64) -> Vec<u32> {
        let state = object.state.read();
        if state.map.lost() == 0 {
            return Vec::new();
        }
        let all = state.map.iter_from(SauIndex::of(from));
        all.filter(|(sau, now)| now.lost && sau.start() >= from).map(|(sau, _)| sau.get()).collect()
    }

    /// From now on the SAUs of these numbers are lost, whatever was here. `EFBIG`: no file has such.
    pub fn lose(&self, object: &Object, saus: &[u32]) -> Result<(), Errno> {
        let saus: Option<Vec<SauIndex>> = saus.iter().map(|n| SauIndex::new(*n)).collect();
        let saus = saus.ok_or(Errno::EFBIG)?;
        loop {
            let mut state = object.state.write();
            if state.moving.is_some() {
                drop(state);
                drop(object.stop_copier());
                continue;
            }
            self.save_unsaved(object, &mut state)?;
            let lost = self.lose_now(object, &mut state, &saus);
            return lost.inspect_err(|_| state.map.roll_back());
        }
    }

    fn lose_now(&self, object: &Object, state: &mut State, saus: &[SauIndex]) -> Result<(), Errno> {
        let (mut freed, mut changed) = (Vec::new(), false);
        for sau in saus.iter().copied() {
            if state.map.get(sau).lost {
                continue;
            }
            freed.extend(state.reaching(sau).iter().map(|tier| (tier, sau)));
            state.map.note_punched(sau);
            changed |= state.map.set(sau, Sau::LOST);
            object.verified.lock().remove(sau);
        }
        self.record_zeroed(object, state, (changed, false), freed)?;
        object.note_written(|| self.now());
        self.free_condemned(object, state);
        self.settle_charges(object, state);
        Ok(())
    }
}
