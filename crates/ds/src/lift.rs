//! Lifting: a SAU of a linked near-line comes to a tier of ours before a part of it changes, since nothing changes there.
//!
//! Its bytes are fetched without a lock. Then it gets a place as new bytes do, and near-line is struck from the map that says so.
//! What an fsync promised goes to a persistent tier, also if memory has a copy.

use crate::{
    DataServer,
    copy::{put, reach},
    linked::unreachable,
    object::{Object, State},
    write::{Patience, Stop},
};
use layout::{Piece, Sau, SauIndex};
use std::time::Instant;
use types::{Errno, SAU_BYTES, TierId, TierSet};

/// What their file has of a SAU.
struct Fetched {
    era: u64,
    bytes: Vec<u8>,
}

/// What became of it.
#[derive(PartialEq, Eq)]
enum Lifted {
    Done,
    /// What was fetched, if anything was, is of another file by now.
    Fetch,
}

impl DataServer {
    /// Is the SAU to be lifted before a part of it changes?
    pub(crate) fn must_lift(&self, state: &State, sau: SauIndex) -> bool {
        if self.linked.is_none() {
            return false;
        }
        let valid = state.map.get(sau).valid;
        valid.contains(TierId::Nearline) && (self.ours(valid).is_empty() || self.loses_promise(state, sau))
    }

    /// Does near-line alone keep what an fsync promised, though another tier of ours could?
    fn loses_promise(&self, state: &State, sau: SauIndex) -> bool {
        let safe = self.ours(state.map.get(sau).valid).intersect(TierSet::PERSISTENT);
        safe.is_empty() && sau.start() < state.synced_size && self.has_persistent()
    }

    /// Afterwards the SAU need not be lifted. The caller holds no lock of the object.
    pub(crate) fn lift(&self, object: &Object, sau: SauIndex) -> Result<(), Errno> {
        let begun = Instant::now();
        let (mut fetched, mut relieved) = (None, false);
        loop {
            let mut state = object.state.write();
            let patience = Patience::since(begun);
            let stop = match self.try_lift(object, &mut state, sau, (fetched.as_ref(), patience)) {
                Ok(Lifted::Done) => {
                    drop(state);
                    // What it has besides is wanted until near-line has a version of ours.
                    if fetched.is_some() {
                        self.keep_open(object);
                    }
                    return Ok(());
                }
                Ok(Lifted::Fetch) => {
                    let (era, linked_len) = (state.era, state.linked_len);
                    let changes = state.version.as_ref().is_some_and(|version| version.in_place);
                    drop(state);
                    fetched = Some(Fetched { era, bytes: self.fetch(object, sau, (linked_len, changes))? });
                    continue;
                }
                Err(stop) => stop,
            };
            drop(state);
            self.wait_out(object, stop, &mut relieved)?;
        }
    }

    /// `changes`: we are about to make another version of that file, which leaves what is fetched alone.
    fn fetch(
        &self,
        object: &Object,
        sau: SauIndex,
        (linked_len, changes): (u64, bool),
    ) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; sau.bytes_within(linked_len) as usize];
        self.read_theirs(object, sau.start(), &mut bytes, linked_len).map_err(unreachable)?;
        if !bytes.is_empty() && !changes {
            // Ours are not to be mixed with those of another file.
            let theirs = self.theirs(object).map_err(unreachable)?;
            theirs.check_bytes().inspect_err(|_| object.theirs.forget(&theirs)).map_err(unreachable)?;
        }
        Ok(bytes)
    }

    fn try_lift(
        &self,
        object: &Object,
        state: &mut State,
        sau: SauIndex,
        (fetched, patience): (Option<&Fetched>, Patience),
    ) -> Result<Lifted, Stop> {
        if !self.must_lift(state, sau) {
            return Ok(Lifted::Done);
        }
        if state.removed {
            return Err(Stop::Failed(Errno::ENOENT));
        }
        self.make_known(object, state);
        self.save_unsaved(object, state)?;
        if state.is_moving(sau.start(), SAU_BYTES) {
            return Err(Stop::Copier);
        }
        let piece = Piece { sau, offset: sau.start(), len: sau.bytes_within(state.size) };
        if !self.ours(state.map.get(sau).valid).is_empty() {
            self.add_safe_copy(object, state, piece, patience)?;
            return Ok(Lifted::Done);
        }
        let Some(fetched) = fetched.filter(|fetched| fetched.era == state.era) else {
            return Ok(Lifted::Fetch);
        };
        let to = self.place_fresh(object, state, piece, patience)?;
        // Cut meanwhile, perhaps.
        let len = fetched.bytes.len().min(sau.bytes_within(state.linked_len) as usize);
        let filled = self.fill(object, state, piece, (&fetched.bytes[..len], to));
        let saved = filled.and_then(|()| {
            state.map.note_replaced(sau, to);
            self.save_map(object, state).map_err(Stop::from)
        });
        self.settle_charge(object, state, to);
        self.notice_dirty(object, to);
        saved.map(|_| Lifted::Done)
    }

    /// Writes what was fetched to its place.
    fn fill(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        (bytes, to): (&[u8], TierId),
    ) -> Result<(), Stop> {
        let file = self.file_for_write(object, state, to)?;
        let end = piece.end();
        // Noted in any case: what fails half-way is in the file, too.
        state.file_len[to.index()] = state.file_len[to.index()].max(end);
        put(&file, bytes, piece.offset)?;
        reach(&file, end)?;
        if to.is_persistent() {
            self.sync_to_rely_on(object, &file)?;
            state.note_change(to);
            self.note_unsynced(object);
        }
        object.verified.lock().remove(piece.sau);
        Ok(())
    }

    /// Memory has a copy. The one that keeps what an fsync promised is to be a persistent tier's from now on.
    fn add_safe_copy(
        &self,
        object: &Object,
        state: &mut State,
        piece: Piece,
        patience: Patience,
    ) -> Result<(), Stop> {
        let bytes = u64::from(piece.len);
        match self.place_safe(object, state, piece, bytes, patience) {
            Ok(to) if state.in_place.is_some() => self.copy_beside(object, state, piece, to),
            Ok(to) => self.relocate(object, state, piece, TierId::Memory, to),
            // No room but in memory.
            Err(Stop::Failed(Errno::ENOSPC)) => {
                let ours = self.ours(state.map.get(piece.sau).valid);
                let _ = state.map.set(piece.sau, Sau::in_tiers(ours));
                self.save_map(object, state)?;
                self.notice_dirty(object, TierId::Memory);
                Ok(())
            }
            Err(stop) => Err(stop),
        }
    }

    /// As `relocate`, but readers have the memory file in place, so that copy stays.
    fn copy_beside(&self, object: &Object, state: &mut State, piece: Piece, to: TierId) -> Result<(), Stop> {
        self.clear_stale(object, state, piece, to)?;
        let mut bytes = vec![0; piece.len as usize];
        let source = state.files[TierId::Memory.index()].clone().ok_or(Stop::Failed(Errno::EIO))?;
        let got = source.read_at(&mut bytes, piece.offset)?;
        bytes.truncate(got);
        self.fill(object, state, piece, (&bytes, to))?;
        let _ = state.map.set(piece.sau, Sau::in_tiers(TierSet::MEMORY.with(to)));
        self.save_map(object, state)?;
        Ok(())
    }
}
