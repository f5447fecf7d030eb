//! Checksums for device bytes that came without one: what was written straight to a device, or over a copy there, or through
//! a mapping. When an object has been left alone for a while its bytes are read and each SAU gets a seal.
//!
//! - A seal is of bytes that are durable, and that did not change while they were read.
//! - No lock is held while bytes are read. Each round reads a bounded number of them.

use crate::{
    DataServer,
    object::{Object, State},
};
use layout::{Sau, SauIndex, SauMap, Seal};
use std::{sync::Arc, time::Instant};
use store::ObjectFd;
use types::{Errno, Ino, TierSet};

/// Bytes read in a round, that is in a second: little beside what a device does.
const ROUND_BYTES: u64 = 32 << 20;
/// Objects that wait. More are not noted; they are when they are next loaded.
const WAITING_MAX: usize = 1 << 16;
/// Of an object that is open for writing more time must have passed: the first write over a seal waits for the journal.
const OPEN_TIMES: u32 = 6;

/// A SAU whose checksum is wanted, as it was before its bytes were read.
struct Wanted {
    sau: SauIndex,
    before: Sau,
    file: Arc<ObjectFd>,
    len: u32,
}

/// What became of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sealed {
    /// Nothing is left to do.
    All,
    /// There is more of it.
    Some,
    /// It is in use.
    Later,
}

impl DataServer {
    /// The object may have device bytes without a checksum, which changed a moment ago.
    pub(crate) fn note_unsealed(&self, ino: Ino) {
        let mut unsealed = self.keeper.unsealed.lock();
        if unsealed.len() < WAITING_MAX || unsealed.contains_key(&ino) {
            unsealed.insert(ino, Instant::now());
        }
    }

    /// As `note_unsealed`, if it is not noted yet.
    pub(crate) fn note_found_unsealed(&self, ino: Ino) {
        if !self.keeper.unsealed.lock().contains_key(&ino) {
            self.note_unsealed(ino);
        }
    }

    /// One round.
    pub(crate) fn seal_idle(&self) {
        let mut left = ROUND_BYTES;
        let due =
            |(ino, since): (&Ino, &Instant)| (since.elapsed() >= self.seal_after).then_some((*ino, *since));
        let due: Vec<_> = self.keeper.unsealed.lock().iter().filter_map(due).collect();
        for (ino, since) in due {
            if left == 0 || self.stopping() {
                return;
            }
            let sealed = self.seal_object(ino, since, &mut left).unwrap_or_else(|errno| {
                if errno != Errno::ENOENT {
                    tracing::warn!(%ino, %errno, "bytes on a device got no checksum");
                }
                Sealed::All
            });
            let mut unsealed = self.keeper.unsealed.lock();
            // Not what was noted again meanwhile.
            if unsealed.get(&ino) == Some(&since) {
                match sealed {
                    Sealed::All => unsealed.remove(&ino),
                    Sealed::Some => None,
                    Sealed::Later => unsealed.insert(ino, Instant::now()),
                };
            }
        }
    }

    fn seal_object(&self, ino: Ino, since: Instant, left: &mut u64) -> Result<Sealed, Errno> {
        let object = self.attach_for_move(ino)?;
        if object.is_open_for_write() && since.elapsed() < self.seal_after * OPEN_TIMES {
            return Ok(Sealed::Some);
        }
        let (wanted, changes) = {
            let state = object.state.read();
            if !may_seal(&state) {
                return Ok(Sealed::Later);
            }
            (self.wanted(&state, *left), state.unsynced.changes())
        };
        if wanted.is_empty() {
            return Ok(Sealed::All);
        }
        let mut seals = Vec::with_capacity(wanted.len());
        for one in &wanted {
            if self.stopping() || object.is_wanted() {
                return Ok(Sealed::Some);
            }
            let crc = one.file.checksum(one.sau.start(), u64::from(one.len))?;
            seals.push(Seal { crc, len: one.len });
            *left = left.saturating_sub(u64::from(one.len));
        }
        let mut state = object.state.write();
        // Whoever writes to a device counts it before he lets go of the object.
        if !may_seal(&state) || state.unsynced.changes() != changes {
            return Ok(Sealed::Later);
        }
        self.set_seals(&object, &mut state, wanted.iter().zip(seals))
    }

    fn set_seals<'a>(
        &self,
        object: &Object,
        state: &mut State,
        seals: impl Iterator<Item = (&'a Wanted, Seal)>,
    ) -> Result<Sealed, Errno> {
        let mut sealed = Sealed::Some;
        let mut verified = object.verified.lock();
        for (one, seal) in seals {
            if state.map.get(one.sau) != one.before || one.sau.bytes_within(state.size) < one.len {
                sealed = Sealed::Later;
                continue;
            }
            let _ = state.map.set(one.sau, Sau { seal: Some(seal), ..one.before });
            if one.file.tier().is_persistent() {
                verified.insert(one.sau);
            }
        }
        drop(verified);
        self.save_map(object, state)?;
        Ok(sealed)
    }

    /// The first SAUs without a seal, of about so many bytes.
    fn wanted(&self, state: &State, most: u64) -> Vec<Wanted> {
        let (mut wanted, mut bytes) = (Vec::new(), 0);
        let devices = self.ours(TierSet::PERSISTENT);
        for (sau, before) in state.map.iter().filter(|(_, now)| is_unsealed(*now, devices)) {
            let tier = before.valid.intersect(self.own()).fastest();
            let file = tier.and_then(|tier| state.files[tier.index()].clone());
            let len = sau.bytes_within(state.size);
            let Some(file) = file.filter(|_| len > 0) else { continue };
            wanted.push(Wanted { sau, before, file, len });
            bytes += u64::from(len);
            if bytes >= most {
                break;
            }
        }
        wanted
    }
}

fn may_seal(state: &State) -> bool {
    let trusted = state.unsynced.tiers().is_empty() && state.unsynced.distrusted().is_empty();
    trusted && !state.removed && state.mapped.is_none() && state.moving.is_none()
}

/// Does one of these devices hold it, without a checksum?
pub(crate) fn is_unsealed(now: Sau, devices: TierSet) -> bool {
    now.seal.is_none() && !now.valid.intersect(devices).is_empty()
}

pub(crate) fn has_unsealed(map: &SauMap, devices: TierSet) -> bool {
    map.iter().any(|(_, now)| is_unsealed(now, devices))
}
