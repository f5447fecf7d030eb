//! Writes through mappings of an object's file, which pass us by.
//!
//! While they may come (`State::mapped`):
//! - Nothing vouches for the object's bytes: no SAU has a seal, and on a device that is durable before the first store.
//! - The copy in place is the one that counts, after a crash too: the record says so. Other copies stay valid in the map and
//!   are brought up to it now and then, so what was safe is as safe as a file that is being written anywhere.

use crate::{
    DataServer,
    copy::reach,
    object::{Mapped, Object, State, UNSAVED},
};
use layout::{Sau, SauIndex};
use std::time::Duration;
use store::ObjectFd;
use types::{Errno, SAU_BYTES, TierId, TierSet, Timestamp};

/// Holes of a file that may be in passthrough: each gets a place in the map before somebody writes through a mapping.
pub(crate) const HOLES_MAX: u64 = 4096;
/// More than a tick of any clock for files.
const TICK_MAX: Duration = Duration::from_secs(1);
/// Bytes of two copies that are compared at once.
const CHUNK: usize = 128 << 10;

impl DataServer {
    /// From now on programs may write through a mapping of the object's file. No store may come before this returns, and
    /// none if it fails.
    pub fn begin_mapped_writes(&self, object: &Object) -> Result<(), Errno> {
        if !object.state.read().is_mapped() {
            self.lift_promised(object)?;
            // The checksums of a copy that is under way would be of bytes that change.
            let _copier = object.stop_copier();
            // Copies must not lose theirs before they are durable. One that a device does not take is distrusted.
            let _ = self.sync_object_devices(object);
            while !self.strike_for_mapping(object)? {
                self.make_durable()?;
            }
        }
        self.wait_until_struck(object)
    }

    /// Records that the object is mapped. `false`: something must become durable first, then again.
    fn strike_for_mapping(&self, object: &Object) -> Result<bool, Errno> {
        let mut state = object.state.write();
        let Some(tier) = state.in_place.filter(|_| !state.is_mapped()) else { return Ok(true) };
        self.save_unsaved(object, &mut state)?;
        // The place of a hole that is taken may be one that the durable map names still.
        if state.condemned.iter().any(|c| c.tier.is_persistent() && !self.is_durable(c.after)) {
            return Ok(false);
        }
        let file = state.files[tier.index()].clone().ok_or(Errno::EIO)?;
        let mtime = file.stat()?.mtime;
        let mapped = Mapped::new(mtime);
        mapped.note_mtime(mtime, self.is_recent(mtime));
        let size = state.size;
        self.take_holes_in(object, &mut state, tier, size)?;
        self.strike_word(object, &mut state);
        let before = state.mapped.replace(mapped);
        match self.save_map(object, &mut state) {
            Ok(saved) => state.struck = saved,
            Err(errno) => {
                state.mapped = before;
                return Err(errno);
            }
        }
        self.note_mapped(object, true);
        if let Some(version) = &mut state.version {
            version.note_mapped();
        }
        if self.linked.is_some() {
            self.notice_dirty(object, tier);
        }
        Ok(true)
    }

    /// A linked near-line's copies end with the first store, and what an fsync promised must not come to depend on memory.
    fn lift_promised(&self, object: &Object) -> Result<(), Errno> {
        loop {
            let next = {
                let state = object.state.read();
                if self.linked.is_none() || state.in_place.is_none() {
                    return Ok(());
                }
                state.map.iter().map(|(sau, _)| sau).find(|sau| self.must_lift(&state, *sau))
            };
            match next {
                Some(sau) => self.lift(object, sau)?,
                None => return Ok(()),
            }
        }
    }

    /// Nothing vouches any more for what programs may store to: no seal, and no file that we cannot bring up to it.
    fn strike_word(&self, object: &Object, state: &mut State) {
        let stays = |now: Sau| Sau::in_tiers(self.ours(now.valid));
        let vouched: Vec<_> = state.map.iter().filter(|(_, now)| !now.lost && *now != stays(*now)).collect();
        let mut verified = object.verified.lock();
        for (sau, now) in vouched {
            let _ = state.map.set(sau, stays(now));
            verified.remove(sau);
        }
    }

    /// A store may come to any place of the file: what was a hole is the file's in place from now on, and where an fsync promised
    /// its zeros, a persistent tier's too.
    /// Returns whether there were any; the caller saves the map. After an error it is as it was.
    fn take_holes_in(
        &self,
        object: &Object,
        state: &mut State,
        tier: TierId,
        size: u64,
    ) -> Result<bool, Errno> {
        let taken = self.try_holes_in(object, state, tier, size);
        taken.inspect_err(|_| state.map.roll_back())
    }

    fn try_holes_in(
        &self,
        object: &Object,
        state: &mut State,
        tier: TierId,
        size: u64,
    ) -> Result<bool, Errno> {
        let saus = size.div_ceil(SAU_BYTES);
        if saus.saturating_sub(u64::from(state.map.used())) > HOLES_MAX {
            return Err(Errno::EFBIG);
        }
        let holes: Vec<_> = (0..saus)
            .filter_map(|n| SauIndex::new(n as u32))
            .filter(|sau| state.map.get(*sau).is_hole())
            .collect();
        let promised = |sau: &SauIndex| tier == TierId::Memory && sau.start() < state.synced_size;
        let safe = self.first_persistent().filter(|_| holes.iter().any(promised));
        let end = state.synced_size.min(state.size);
        let any = !holes.is_empty();
        // As for a write to such a hole: the file comes before the record that names it.
        let begins = safe.filter(|safe| state.map.count_in(*safe) == 0);
        for sau in holes {
            let mut holders = TierSet::of(tier);
            if let Some(safe) = safe.filter(|_| sau.start() < end) {
                self.clear_place(object, state, safe, sau)?;
                let copy = self.file_for_write(object, state, safe)?;
                let reached = end.min(sau.end());
                reach(&copy, reached)?;
                let len = &mut state.file_len[safe.index()];
                *len = (*len).max(reached);
                state.note_change(safe);
                self.note_unsynced(object);
                holders = holders.with(safe);
            }
            let _ = state.map.set(sau, Sau::in_tiers(holders));
        }
        if let Some(file) = begins.and_then(|safe| state.files[safe.index()].as_ref()) {
            self.sync_file(object, file)?;
        }
        Ok(any)
    }

    /// The object is being extended to this size: a store may come to what is new.
    pub(crate) fn take_new_holes_in(
        &self,
        object: &Object,
        state: &mut State,
        size: u64,
    ) -> Result<(), Errno> {
        if let Some(tier) = state.in_place.filter(|_| state.is_mapped())
            && self.take_holes_in(object, state, tier, size)?
        {
            self.save_map(object, state)?;
        }
        Ok(())
    }

    /// Brings the other copies up to what programs wrote through mappings so far; of a device, sees to it that the next
    /// sync makes it durable.
    pub fn absorb_mapped_writes(&self, object: &Object) -> Result<(), Errno> {
        if object.state.read().mapped.is_none() {
            return Ok(());
        }
        let _copier = object.stop_copier();
        {
            let mut state = object.state.write();
            let Some(from) = state.in_place else { return Ok(()) };
            let Some(mapped) = &mut state.mapped else { return Ok(()) };
            mapped.absorbed = std::time::Instant::now();
            if from.is_persistent() {
                // Slower copies have time until the end: this one is safe, and counts after a crash.
                state.note_change(from);
                self.note_unsynced(object);
                return Ok(());
            }
        }
        self.wait_until_struck(object)?;
        self.renew_copies(object).map_err(|(_, errno)| errno)
    }

    /// As `absorb_mapped_writes`, of a file in place on a device, and durable.
    pub(crate) fn absorb_device_stores(&self, object: &Object) -> Result<(), Errno> {
        if object.state.read().in_place.is_some_and(TierId::is_persistent) {
            self.absorb_mapped_writes(object)?;
            self.sync_object_devices(object)?;
        }
        Ok(())
    }

    /// No store waits for longer than `safe_within` to become safe.
    pub(crate) fn absorb_due(&self) {
        for object in self.all_mapped() {
            let due = |mapped: &Mapped| mapped.absorbed.elapsed() >= self.safe_within;
            if self.stopping() || !object.state.read().mapped.as_ref().is_some_and(due) {
                continue;
            }
            let absorbed =
                self.absorb_mapped_writes(&object).and_then(|()| self.sync_object_devices(&object));
            if let Err(errno) = absorbed {
                tracing::warn!(ino = %object.ino(), %errno, "writes through a mapping are not safe yet");
            }
        }
    }

    /// No mapping is left. Copies that cannot be brought up to what was written are given up.
    pub fn end_mapped_writes(&self, object: &Object) -> Result<(), Errno> {
        if object.state.read().mapped.is_none() {
            return Ok(());
        }
        let _copier = object.stop_copier();
        let changed = {
            let state = object.state.write();
            let Some(from) = state.in_place else { return Ok(()) };
            state.note_change(from);
            self.note_if_unsynced(object, &state);
            let mtime = state.files[from.index()].as_ref().and_then(|file| file.stat().ok()).map(|s| s.mtime);
            mtime.is_none_or(|mtime| state.mapped.as_ref().is_some_and(|m| m.may_have_stores(from, mtime)))
        };
        let renewed = if changed {
            self.wait_until_struck(object)
                .map_err(|errno| (SauIndex::ZERO, errno))
                .and_then(|()| self.renew_copies(object))
                // The record does not speak of several copies as equals before they are.
                .and_then(|()| self.sync_object_devices(object).map_err(|errno| (SauIndex::ZERO, errno)))
        } else {
            Ok(())
        };
        let mut state = object.state.write();
        let Some(from) = state.in_place else { return Ok(()) };
        let mut given_up = Vec::new();
        if let Err((first, _)) = renewed {
            let stale = |(sau, now): &(SauIndex, Sau)| *sau >= first && has_others(*now, from);
            let stale: Vec<_> = state.map.iter().filter(stale).collect();
            for (sau, now) in stale {
                given_up.extend(now.valid.without(from).iter().map(|tier| (tier, sau)));
                state.map.note_replaced(sau, from);
            }
        }
        state.mapped = None;
        self.note_mapped(object, false);
        // What is known to be old is not used in any case: if that cannot be recorded now it is before the next change.
        state.map.keep();
        state.unsaved = true;
        for (tier, sau) in given_up {
            self.give_up(object, &mut state, tier, sau, UNSAVED);
        }
        self.save_map(object, &mut state)?;
        drop(state);
        renewed.map_err(|(_, errno)| errno)
    }

    /// The time of the file in place, if something changed it since the last look that did not come by us, or may not
    /// have.
    pub fn stored_since(&self, object: &Object) -> Option<Timestamp> {
        let state = object.state.read();
        let mapped = state.mapped.as_ref()?;
        let mtime = state.files[state.in_place?.index()].as_ref()?.stat().ok()?.mtime;
        mapped.is_news(mtime).then_some(mtime)
    }

    /// May stores leave a file this time, since they come in the same tick of the kernel's clock for files?
    pub(crate) fn is_recent(&self, mtime: Timestamp) -> bool {
        self.now().since(mtime) < TICK_MAX
    }

    /// The file counts as written at this time.
    pub fn note_stored(&self, object: &Object, time: Timestamp) {
        let state = object.state.read();
        let file = state.in_place.and_then(|tier| state.files[tier.index()].as_ref());
        let (Some(mapped), Some(file)) = (&state.mapped, file) else { return };
        let kept = file.set_mtime(time).and_then(|()| file.stat());
        mapped.note_mtime(kept.map_or(time, |stat| stat.mtime), true);
        object.note_written_at(time);
    }

    /// Nobody holds the object's lock.
    fn wait_until_struck(&self, object: &Object) -> Result<(), Errno> {
        while !self.is_durable(object.state.read().struck) {
            self.make_durable()?;
        }
        Ok(())
    }

    /// The caller holds `object.copying`, so copies neither come nor go. An error names the first SAU that was not done.
    fn renew_copies(&self, object: &Object) -> Result<(), (SauIndex, Errno)> {
        let mut next = SauIndex::ZERO;
        loop {
            // One at a time: who reads or writes the file otherwise need not wait for all.
            let mut state = object.state.write();
            let Some(from) = state.in_place else { return Ok(()) };
            let found = state.map.iter_from(next).find(|(_, now)| has_others(*now, from));
            let Some((sau, now)) = found else { return Ok(()) };
            self.renew(object, &mut state, (sau, now), from).map_err(|errno| (sau, errno))?;
            match SauIndex::new(sau.get() + 1) {
                Some(after) => next = after,
                None => return Ok(()),
            }
        }
    }

    fn renew(
        &self,
        object: &Object,
        state: &mut State,
        (sau, now): (SauIndex, Sau),
        from: TierId,
    ) -> Result<(), Errno> {
        let source = state.files[from.index()].clone().ok_or(Errno::EIO)?;
        let end = sau.start() + u64::from(sau.bytes_within(state.size));
        for to in now.valid.without(from).iter() {
            let copy = self.file_for_write(object, state, to)?;
            // Noted first: what fails half-way changed it too.
            if to.is_persistent() {
                state.note_change(to);
                self.note_unsynced(object);
            }
            bring_up(&source, &copy, sau.start(), end)?;
            reach(&copy, end)?;
            if to.is_persistent() {
                state.note_change(to);
            }
            let len = &mut state.file_len[to.index()];
            *len = (*len).max(end);
        }
        Ok(())
    }
}

fn has_others(now: Sau, from: TierId) -> bool {
    now.valid.contains(from) && now.valid != TierSet::of(from)
}

/// Writes to `copy` what differs from `source`.
fn bring_up(source: &ObjectFd, copy: &ObjectFd, start: u64, end: u64) -> Result<(), Errno> {
    let (mut wanted, mut there) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = start;
    while at < end {
        let len = CHUNK.min((end - at) as usize);
        let (wanted, there) = (&mut wanted[..len], &mut there[..len]);
        for (file, part) in [(source, &mut *wanted), (copy, &mut *there)] {
            let got = file.read_at(part, at)?;
            part[got..].fill(0);
        }
        if wanted != there {
            copy.write_at(wanted, at)?;
        }
        at += len as u64;
    }
    Ok(())
}
