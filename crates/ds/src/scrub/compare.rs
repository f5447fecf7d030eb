//! An object's copies, each SAU against its checksum.

use std::sync::Arc;

use layout::{Sau, SauIndex, Seal};
use store::ObjectFd;
use tier::Input;
use types::{Errno, Ino, TierId, TierSet};

use super::Found;
use crate::{
    DataServer,
    load::dirty_tiers,
    object::{Object, State},
    read::{Damage, Damaged, verify},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Compared {
    pub found: Found,
    /// There is more from here on.
    pub next: Option<SauIndex>,
}

/// A SAU with a checksum, and the files that should match it.
struct Sealed {
    sau: SauIndex,
    now: Sau,
    files: Vec<Arc<ObjectFd>>,
}

impl DataServer {
    /// From a SAU on, about as many bytes as are left.
    pub(super) fn compare_object(&self, ino: Ino, from: SauIndex, left: &mut u64) -> Result<Compared, Errno> {
        let object = self.attach_for_move(ino)?;
        let mut compared = Compared::default();
        let sealed = {
            let state = object.state.read();
            if state.removed {
                return Ok(compared);
            }
            if state.moving.is_some() || state.mapped.is_some() || !object.unsynced.distrusted().is_empty() {
                compared.found.passed_over = 1;
                return Ok(compared);
            }
            self.sealed(&state, from, *left)
        };
        for one in sealed {
            if *left == 0 || self.stopping() {
                compared.next = Some(one.sau);
                return Ok(compared);
            }
            self.compare_sau(&object, &one, &mut compared.found);
            *left = left.saturating_sub(one.bytes().max(1));
            compared.next = SauIndex::new(one.sau.get() + 1);
        }
        if compared.next.is_some() {
            // Until nothing is left of it.
            let state = object.state.read();
            let rest = compared.next.filter(|next| state.map.iter().any(|(sau, _)| sau >= *next));
            compared.next = rest;
        }
        Ok(compared)
    }

    /// The first ones, of about so many bytes.
    fn sealed(&self, state: &State, from: SauIndex, most: u64) -> Vec<Sealed> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for (sau, now) in state.map.iter().filter(|(sau, now)| *sau >= from && now.seal.is_some()) {
            let tiers = now.valid.intersect(self.own());
            let files = tiers.iter().filter_map(|tier| state.files[tier.index()].clone()).collect();
            let one = Sealed { sau, now, files };
            bytes += one.bytes();
            all.push(one);
            if bytes >= most {
                break;
            }
        }
        all
    }

    fn compare_sau(&self, object: &Object, one: &Sealed, found: &mut Found) {
        let Some(seal) = one.now.seal else { return };
        let theirs = one.now.valid.iter().filter(|tier| !self.own().contains(*tier));
        let (mut bad, mut good) = (Vec::new(), theirs.fold(TierSet::EMPTY, TierSet::with));
        for file in &one.files {
            found.bytes += u64::from(seal.len);
            self.counters.scrubbed_bytes.add(u64::from(seal.len));
            if matches(file, one.sau, seal) == Ok(true) {
                good = good.with(file.tier());
            } else if let Some(why) = self.is_still_wrong(object, one, file) {
                bad.push((file.tier(), why));
            }
        }
        for (tier, why) in bad {
            found.damaged += 1;
            let damaged = Damaged { sau: one.sau, tier, why };
            if self.give_up_damaged(object, damaged, good) {
                found.repaired += 1;
                self.counters.repaired_saus.add(1);
            } else if good.is_empty() {
                found.hopeless += 1;
                self.counters.hopeless_saus.add(1);
            }
        }
    }

    /// While nobody can change the SAU.
    fn is_still_wrong(&self, object: &Object, one: &Sealed, file: &ObjectFd) -> Option<Damage> {
        let state = object.state.read();
        let seal = one.now.seal.filter(|_| state.map.get(one.sau) == one.now && !state.removed)?;
        match matches(file, one.sau, seal) {
            Ok(true) => None,
            Ok(false) => Some(Damage::Changed(seal)),
            Err(errno) => Some(Damage::Unreadable(errno)),
        }
    }

    /// Whoever reads it does so from another copy; `false`: there is none that is good, and he gets an error.
    fn give_up_damaged(&self, object: &Object, damaged: Damaged, good: TierSet) -> bool {
        let Damaged { sau, tier, .. } = damaged;
        // It was compared when it came into use.
        object.verified.lock().remove(sau);
        if good.is_empty() {
            self.counters.damaged_saus.add(1);
            tracing::error!(name = %object.ino(), sau = sau.get(), %tier, "checksum mismatch, and no copy is good: EIO");
            if tier == TierId::Memory
                && let Err(errno) = self.lose_in_memory(object, &damaged)
            {
                tracing::error!(name = %object.ino(), sau = sau.get(), %errno, "damaged bytes in memory stay readable");
            }
            return false;
        }
        // It may be readable again, and memory is not as safe as it.
        if matches!(damaged.why, Damage::Unreadable(_)) && good.intersect(TierSet::PERSISTENT).is_empty() {
            return false;
        }
        if self.drop_damaged(object, damaged).is_err() {
            return false;
        }
        // What it was the copy of has to be copied again.
        for tier in dirty_tiers(&object.state.read()).iter() {
            self.driver.tell(Input::Dirty { ino: object.ino(), tier });
        }
        true
    }

    /// Reads of memory are not compared.
    fn lose_in_memory(&self, object: &Object, damaged: &Damaged) -> Result<(), Errno> {
        let mut state = object.state.write();
        let now = state.map.get(damaged.sau);
        let is_it = matches!(damaged.why, Damage::Changed(seal) if now.seal == Some(seal));
        if !is_it || !now.valid.contains(TierId::Memory) {
            return Ok(());
        }
        if state.in_place == Some(TierId::Memory) {
            return Err(Errno::EBUSY);
        }
        state.map.note_failed(damaged.sau, TierId::Memory);
        self.save_map(object, &mut state).map(drop)
    }
}

impl Sealed {
    /// Of all its copies.
    fn bytes(&self) -> u64 {
        self.now.seal.map_or(0, |seal| u64::from(seal.len)) * self.files.len() as u64
    }
}

/// What the device has, not what the page cache has.
fn matches(file: &ObjectFd, sau: SauIndex, seal: Seal) -> Result<bool, Errno> {
    if !file.tier().is_persistent() {
        return verify(file, sau, seal);
    }
    Ok(file.checksum_on_device(sau.start(), u64::from(seal.len))? == seal.crc)
}
