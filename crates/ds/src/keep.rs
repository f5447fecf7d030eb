//! What was fetched of a linked file gets a place in a tier of ours, beside near-line's.
//!
//! - Only whole SAUs, of a file that was the same before and after: as it was when it was opened, and so as it was agreed on.
//! - With a checksum, as every copy; and not where the map, the size or the file of the object changed meanwhile.
//! - A copy that no tier has room for is no error.

use crate::{
    DataServer,
    copy::{put, reach},
    fetch::{Fetch, Kept},
    object::{Object, State},
    theirs::Opened,
};
use layout::Seal;
use std::{sync::Arc, time::Duration};
use tier::{Input, Room};
use types::{Errno, SAU_BYTES, TierId, TierSet};

const PAGE: u64 = 4096;
/// How often, and how long, room or a copier is waited for. Readers do not wait for it.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_millis(10);

/// What was fetched, in order.
struct Bytes {
    pieces: Vec<(u32, Arc<Vec<u8>>)>,
    len: u32,
}

/// Why it has no place yet.
enum Stop {
    Room(TierId),
    Copier,
    Undurable,
    /// It is not to be kept.
    Never,
    Failed(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Failed(errno)
    }
}

impl Bytes {
    /// The checksum of so many bytes; zeros follow what there is.
    fn seal(&self, len: u32) -> Seal {
        let mut crc = 0;
        for (at, bytes) in &self.pieces {
            let most = len.saturating_sub(*at) as usize;
            crc = crc32c::crc32c_append(crc, &bytes[..bytes.len().min(most)]);
        }
        let mut left = len.saturating_sub(self.len) as usize;
        let zeros = [0; PAGE as usize];
        while left > 0 {
            crc = crc32c::crc32c_append(crc, &zeros[..left.min(zeros.len())]);
            left -= left.min(zeros.len());
        }
        Seal { crc, len }
    }

    /// Is the seal of these bytes? Zeros follow both.
    fn are_of(&self, seal: Seal) -> bool {
        let behind = self.pieces.iter().all(|(at, bytes)| {
            let from = (seal.len.saturating_sub(*at) as usize).min(bytes.len());
            bytes[from..].iter().all(|byte| *byte == 0)
        });
        behind && self.seal(seal.len) == seal
    }
}

impl DataServer {
    /// `to`: the tier of a movement, which has reserved the room.
    pub(crate) fn keep(
        &self,
        object: &Object,
        fetch: &Fetch,
        (theirs, to): (&Opened, Option<TierId>),
    ) -> Result<Kept, Errno> {
        theirs.check().inspect_err(|_| object.theirs.forget(theirs))?;
        let bytes = Bytes { pieces: fetch.pieces(), len: fetch.len };
        // Before the lock: nobody waits for it.
        let seal = bytes.seal(fetch.len);
        for _ in 0..TRIES {
            let mut state = object.state.write();
            let stop = match self.try_keep(object, &mut state, fetch, (&bytes, seal, theirs, to)) {
                Ok(to) => {
                    self.counters.carried(TierId::Nearline, to, u64::from(fetch.len));
                    return Ok(Kept::Yes);
                }
                Err(stop) => stop,
            };
            drop(state);
            match stop {
                Stop::Room(tier) => self.driver.wait_for_room(tier, PAUSE),
                Stop::Copier => std::thread::sleep(PAUSE),
                Stop::Undurable => self.make_durable()?,
                Stop::Never | Stop::Failed(Errno::ENOSPC | Errno::EDQUOT | Errno::EMFILE) => {
                    return Ok(Kept::No);
                }
                Stop::Failed(errno) => return Err(errno),
            }
            if self.stopping() {
                break;
            }
        }
        Ok(Kept::No)
    }

    /// The tier that has it now.
    fn try_keep(
        &self,
        object: &Object,
        state: &mut State,
        fetch: &Fetch,
        (bytes, seal, theirs, to): (&Bytes, Seal, &Opened, Option<TierId>),
    ) -> Result<TierId, Stop> {
        let sau = fetch.sau;
        let now = state.map.get(sau);
        let changed = state.removed
            || state.era != fetch.era
            || now.valid != TierSet::of(TierId::Nearline)
            || sau.bytes_within(state.linked_len) != fetch.len;
        // Who writes to a mapping, or reads a file in place, has it in one tier.
        if changed || state.pending.is_some() || state.mapped.is_some() || state.in_place.is_some() {
            return Err(Stop::Never);
        }
        if state.is_moving(sau.start(), SAU_BYTES) {
            return Err(Stop::Copier);
        }
        if now.seal.is_some_and(|old| old != seal && !bytes.are_of(old)) {
            tracing::warn!(name = %object.ino(), sau = sau.get(), "a linked file has other bytes than those that were agreed on");
            object.theirs.forget(theirs);
            return Err(Stop::Failed(Errno::ESTALE));
        }
        self.make_known(object, state);
        self.save_unsaved(object, state)?;
        let len = sau.bytes_within(state.size);
        let seal = if len == seal.len { seal } else { bytes.seal(len) };
        let is_move = to.is_some();
        let to = match to {
            Some(to) => to,
            None => self.room_for(object, state, u64::from(len).next_multiple_of(PAGE))?,
        };
        if self.still_vouched(state, to, sau) {
            self.settle_charge(object, state, to);
            return Err(Stop::Undurable);
        }
        let kept = self.store(object, state, fetch, (bytes, theirs, to)).and_then(|()| {
            state.map.note_copied(sau, to, Some(seal)).map_err(|_| Errno::EIO)?;
            object.verified.lock().remove(sau);
            self.save_map(object, state)
        });
        if kept.is_err() {
            // What is there of it does not count, and is cleared by whoever uses its place next.
            self.give_up(object, state, to, sau, 0);
        }
        self.settle_copy(object, state, to, is_move);
        kept?;
        Ok(to)
    }

    fn room_for(&self, object: &Object, state: &mut State, bytes: u64) -> Result<TierId, Stop> {
        let sizes = (bytes, state.size);
        match self.driver.with(|core, now| core.place_copy(now, object.ino(), sizes)) {
            Room::Here(tier) => {
                state.charged[tier.index()] += bytes;
                Ok(tier)
            }
            Room::Soon(tier) => Err(Stop::Room(tier)),
            Room::None => Err(Stop::Never),
        }
    }

    fn store(
        &self,
        object: &Object,
        state: &mut State,
        fetch: &Fetch,
        (bytes, theirs, to): (&Bytes, &Opened, TierId),
    ) -> Result<(), Errno> {
        let sau = fetch.sau;
        // After a crash the object's time is that of its latest file.
        let had = state.map.count_in(to) > 0;
        self.clear_place(object, state, to, sau)?;
        let file = self.file_for_write(object, state, to)?;
        let time = if had { Some(file.stat()?.mtime) } else { object.mtime() };
        let end = sau.start() + u64::from(sau.bytes_within(state.size));
        // Noted in any case: what fails half-way is in the file, too.
        state.file_len[to.index()] = state.file_len[to.index()].max(end);
        let put =
            bytes.pieces.iter().try_for_each(|(at, piece)| put(&file, piece, sau.start() + u64::from(*at)));
        let put = put.and_then(|()| reach(&file, end));
        file.set_mtime(time.unwrap_or(theirs.seen.mtime))?;
        if to.is_persistent() {
            file.start_writeback(sau.start(), SAU_BYTES);
            state.note_change(to);
            self.note_unsynced(object);
        }
        put
    }

    /// As `settle_charge`. A copy does not make a tier dirty, also if its file takes more than was asked for.
    fn settle_copy(&self, object: &Object, state: &mut State, to: TierId, is_move: bool) {
        let at = to.index();
        let taken = state.files[at].as_ref().and_then(|file| file.stat().ok()).map(|stat| stat.blocks * 512);
        match taken.filter(|taken| *taken > state.charged[at] && !is_move) {
            Some(taken) => {
                state.credit[at] = 0;
                let more = taken - std::mem::replace(&mut state.charged[at], taken);
                self.driver.tell(Input::CopyGrew { ino: object.ino(), tier: to, more });
            }
            None => self.settle_charge(object, state, to),
        }
    }
}
