//! Copies of SAUs between tiers while the object is in use (paper, section 7.3): what is written meanwhile is
//! noted and copied again; at the end writers are held off for a moment, and the map changes.

use crate::{
    DataServer,
    object::{Moving, Object, State},
    read::verify,
};
use layout::{Sau, SauIndex, Seal, pieces};
use std::{ops::ControlFlow, sync::Arc};
use store::{CopyRange, ObjectFd};
use types::{Errno, TierId, TierSet};

/// SAUs copied between two changes of the map: 64 MiB.
const BATCH: usize = 16;
/// Noted bytes above which they are copied without holding writers off, for a few rounds.
const SHORT_BLOCK: u64 = 4 << 20;
const ROUNDS: usize = 4;
/// Zeros of this length are not written to a new place.
const BLOCK: usize = 64 << 10;

/// Why a copy ended early. The object is as it was, but for the batches that were finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyStop {
    Cancelled,
    NoSpace,
    Gone,
    /// Something must become durable first: see `durable.rs`.
    Undurable,
    Failed(Errno),
}

impl From<Errno> for CopyStop {
    fn from(errno: Errno) -> CopyStop {
        if matches!(errno, Errno::ENOSPC | Errno::EDQUOT) {
            CopyStop::NoSpace
        } else {
            CopyStop::Failed(errno)
        }
    }
}

/// What became of copies that were to be given up.
pub(crate) struct Dropped {
    pub saus: u64,
    /// There was something that no other tier holds.
    pub uncovered: bool,
}

/// What to copy.
#[derive(Clone, Copy)]
pub(crate) struct CopyPlan {
    pub choice: Choice,
    pub to: TierId,
    /// Afterwards the source's copies are given up.
    pub free: Option<TierId>,
    /// Bytes of SAUs in all, which are whole and the first ones.
    pub most: u64,
}

/// Who carries out a plan: asked before each SAU whether to stop, told of each batch.
pub(crate) trait Copier {
    fn must_stop(&self) -> bool;
    fn copied(&mut self, bytes: u64);
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The SAUs that this tier holds and the destination does not.
    HeldBy(TierId),
    /// The SAUs that no persistent tier holds.
    Dirty,
}

/// One batch: SAUs with the seal that was computed for each.
struct Batch {
    source: TierId,
    from: Arc<ObjectFd>,
    to: Arc<ObjectFd>,
    size: u64,
    saus: Vec<(SauIndex, Sau, Option<Seal>)>,
}

impl Batch {
    fn bytes(&self) -> u64 {
        self.saus.iter().map(|(sau, ..)| u64::from(sau.bytes_within(self.size))).sum()
    }
}

impl DataServer {
    /// Carries out a plan. The caller holds `object.copying`. Returns the bytes copied.
    pub(crate) fn copy_object(
        &self,
        object: &Object,
        plan: CopyPlan,
        copier: &mut dyn Copier,
    ) -> Result<u64, CopyStop> {
        let mut next = SauIndex::ZERO;
        let (mut total, mut left) = (0, plan.most);
        loop {
            if copier.must_stop() {
                return Err(CopyStop::Cancelled);
            }
            let rest = CopyPlan { most: left, ..plan };
            let mut batch = match self.begin_batch(object, rest, next) {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(CopyStop::Undurable) => {
                    self.make_durable()?;
                    continue;
                }
                Err(stop) => return Err(stop),
            };
            let bytes = match copy_batch(object, &mut batch, plan.to, copier) {
                Ok(bytes) => self.finish_batch(object, plan, &batch).map(|()| bytes),
                Err(BatchError::Stopped) => Err(CopyStop::Cancelled),
                Err(BatchError::Damaged(sau)) => Err(self.damaged_source(object, sau, batch.source)),
                Err(BatchError::Errno(errno)) => Err(errno.into()),
            };
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(stop) => {
                    self.abandon_batch(object, &batch, plan.to);
                    return Err(stop);
                }
            };
            total += bytes;
            left -= batch.bytes().min(left);
            copier.copied(bytes);
            match batch.saus.last().and_then(|(sau, ..)| SauIndex::new(sau.get() + 1)) {
                Some(after) => next = after,
                None => break,
            }
        }
        Ok(total)
    }

    /// Picks the next SAUs of one source, prepares their place, and from now on has writes noted.
    fn begin_batch(
        &self,
        object: &Object,
        plan: CopyPlan,
        from: SauIndex,
    ) -> Result<Option<Batch>, CopyStop> {
        let mut state = object.state.write();
        if state.removed {
            return Err(CopyStop::Gone);
        }
        if goes_above_what_is_in_place(&state, plan) {
            return Err(CopyStop::Cancelled);
        }
        self.save_unsaved(object, &mut state).map_err(CopyStop::Failed)?;
        // Of a copy that a device perhaps did not take, no other is given up for.
        if plan.free.is_some() && !state.unsynced.distrusted().is_empty() {
            return Err(CopyStop::Failed(Errno::EIO));
        }
        let present = self.present();
        let (mut source, mut taken) = (None, 0);
        let mut saus = Vec::new();
        for (sau, now) in state.map.iter_from(from) {
            let held = now.valid.intersect(present);
            let wanted = match plan.choice {
                Choice::HeldBy(tier) => held.contains(tier).then_some(tier),
                Choice::Dirty => {
                    if now.is_at_risk() {
                        held.fastest()
                    } else {
                        None
                    }
                }
            };
            let Some(tier) = wanted.filter(|t| source.is_none_or(|s| s == *t)) else { continue };
            if now.valid.contains(plan.to) && plan.free.is_none() {
                continue;
            }
            taken += u64::from(sau.bytes_within(state.size));
            if taken > plan.most {
                break;
            }
            source = Some(tier);
            saus.push((sau, now, None));
            if saus.len() == BATCH {
                break;
            }
        }
        let (Some(source), Some(first), Some(last)) = (source, saus.first(), saus.last()) else {
            return Ok(None);
        };
        let moving = Moving { first: first.0, end: last.0.end(), written: Vec::new() };
        let from = state.files[source.index()].clone().ok_or(CopyStop::Failed(Errno::EIO))?;
        let to = self.file_for_write(object, &mut state, plan.to)?;
        let copied = || saus.iter().filter(|(_, now, _)| !now.valid.contains(plan.to));
        if copied().any(|(sau, ..)| self.still_vouched(&state, plan.to, *sau)) {
            return Err(CopyStop::Undurable);
        }
        for (sau, ..) in copied() {
            self.clear_place(object, &mut state, plan.to, *sau)?;
        }
        state.moving = Some(moving);
        Ok(Some(Batch { source, from, to, size: state.size, saus }))
    }

    /// Copies what was written meanwhile, and changes the map. The copy becomes durable before the map does: a journal
    /// sync makes what is unsynced on devices durable first.
    fn finish_batch(&self, object: &Object, plan: CopyPlan, batch: &Batch) -> Result<(), CopyStop> {
        self.make_batch_durable(object, plan, batch)?;
        let mut rewritten: Vec<(u64, u64)> = Vec::new();
        let mut rounds = 0;
        let mut state = loop {
            let mut state = object.state.write();
            let Some(moving) = &mut state.moving else { return Err(CopyStop::Cancelled) };
            let noted = std::mem::take(&mut moving.written);
            let bytes: u64 = noted.iter().map(|(_, len)| len).sum();
            if noted.is_empty() {
                break state;
            }
            let short = bytes <= SHORT_BLOCK || rounds >= ROUNDS;
            let held = short.then_some(state);
            for (offset, len) in &noted {
                copy_extent(batch, plan.to, *offset, *len)?;
            }
            rewritten.extend(noted);
            rounds += 1;
            if let Some(state) = held {
                break state;
            }
        };
        if state.removed {
            return Err(CopyStop::Gone);
        }
        if goes_above_what_is_in_place(&state, plan) {
            return Err(CopyStop::Cancelled);
        }
        // What may fail comes before the map, which then needs only to be saved.
        let end = batch.saus.last().map_or(0, |(sau, ..)| sau.end()).min(state.size);
        reach(&batch.to, end)?;
        keep_time(object, batch);
        let len = &mut state.file_len[plan.to.index()];
        *len = (*len).max(end);
        // Without a seal nothing would tell, after a power cut, that the record came and the bytes did not.
        if !rewritten.is_empty() && plan.to.is_persistent() {
            self.sync_to_rely_on(object, &batch.to)?;
        }
        state.moving = None;
        if plan.to.is_persistent() {
            state.note_change(plan.to);
            self.note_unsynced(object);
        }
        let noted = note_batch(object, &mut state, plan, (batch, &rewritten));
        let freed = noted.inspect_err(|_| state.map.roll_back())?;
        if let Some(freed) = freed {
            // No room for the record is none that a tier could make.
            let saved = self.save_map(object, &mut state).map_err(CopyStop::Failed)?;
            for (tier, sau) in freed {
                self.give_up(object, &mut state, tier, sau, saved);
            }
        }
        self.settle_charge(object, &mut state, plan.to);
        self.free_condemned(object, &mut state);
        Ok(())
    }

    /// What the record of a batch will rely on, as far as it is known by now.
    fn make_batch_durable(&self, object: &Object, plan: CopyPlan, batch: &Batch) -> Result<(), Errno> {
        // A seal vouches for the source, too: after a power cut one for bytes that did not come would take the others of
        // the SAU along, which had. What is written from now on is noted, and not sealed.
        if object.unsynced.tiers().contains(batch.source) {
            self.sync_to_rely_on(object, &batch.from)?;
        }
        // What is given up was perhaps the last copy that a device has not failed to take. And what has to be synced while
        // writers are held off is less.
        let gets_no_seal = || {
            let state = object.state.read();
            state.mapped.is_some() || state.moving.as_ref().is_some_and(|m| !m.written.is_empty())
        };
        if plan.to.is_persistent() && (plan.free.is_some() || gets_no_seal()) {
            self.sync_to_rely_on(object, &batch.to)?;
        }
        Ok(())
    }

    /// Forgets a batch that failed. What was copied of it is behind the map's back: it is cleared by whoever uses its place
    /// next, or else given up.
    fn abandon_batch(&self, object: &Object, batch: &Batch, to: TierId) {
        let mut state = object.state.write();
        state.moving = None;
        keep_time(object, batch);
        if let Some(file) = state.files[to.index()].clone()
            && let Ok(stat) = file.stat()
        {
            let len = &mut state.file_len[to.index()];
            *len = (*len).max(stat.size);
        }
        for (sau, before, _) in &batch.saus {
            if !state.removed && !before.valid.contains(to) && !state.map.get(*sau).valid.contains(to) {
                self.give_up(object, &mut state, to, *sau, 0);
            }
        }
        self.settle_charge(object, &mut state, to);
    }

    fn damaged_source(&self, object: &Object, sau: SauIndex, tier: TierId) -> CopyStop {
        self.counters.damaged_saus.add(1);
        tracing::error!(name = %object.ino(), sau = sau.get(), %tier, "checksum mismatch while copying: the copy is not used");
        CopyStop::Failed(Errno::EIO)
    }

    /// Gives up a tier's copies of SAUs that other tiers hold too, the first ones, up to `most` bytes.
    pub(crate) fn drop_copies(&self, object: &Object, tier: TierId, most: u64) -> Result<Dropped, CopyStop> {
        self.sync_object_devices(object)?;
        if !object.unsynced.distrusted().is_empty() {
            return Err(CopyStop::Failed(Errno::EIO));
        }
        let mut state = object.state.write();
        if state.removed {
            return Err(CopyStop::Gone);
        }
        if state.in_place == Some(tier) {
            return Err(CopyStop::Cancelled);
        }
        self.save_unsaved(object, &mut state).map_err(CopyStop::Failed)?;
        let mut bytes = 0;
        let within = |(sau, _): &(SauIndex, Sau)| {
            bytes += u64::from(sau.bytes_within(state.size));
            bytes <= most
        };
        let held = state.map.iter().filter(|(_, s)| s.valid.contains(tier)).take_while(within);
        let held: Vec<(SauIndex, Sau)> = held.collect();
        let mut dropped = Vec::new();
        let mut uncovered = false;
        for (sau, now) in held {
            let elsewhere = now.valid.without(tier).intersect(self.present());
            let safe = if tier == TierId::Memory {
                !elsewhere.intersect(TierSet::PERSISTENT).is_empty()
            } else {
                elsewhere.iter().any(|t| t > tier && !state.is_unsynced(t))
            };
            if safe && state.map.note_dropped(sau, tier).is_ok() {
                if tier.is_persistent() {
                    object.verified.lock().remove(sau);
                }
                dropped.push(sau);
            } else {
                uncovered = true;
            }
        }
        if !dropped.is_empty() {
            let saved = self.save_map(object, &mut state).map_err(CopyStop::Failed)?;
            for sau in &dropped {
                self.give_up(object, &mut state, tier, *sau, saved);
            }
            self.free_condemned(object, &mut state);
        }
        Ok(Dropped { saus: dropped.len() as u64, uncovered })
    }
}

/// What a batch does to the map: the copies that are to be given up, by tier, or nothing if it changes nothing.
fn note_batch(
    object: &Object,
    state: &mut State,
    plan: CopyPlan,
    (batch, rewritten): (&Batch, &[(u64, u64)]),
) -> Result<Option<Vec<(TierId, SauIndex)>>, CopyStop> {
    let touched = |sau: SauIndex| rewritten.iter().any(|(o, l)| *o < sau.end() && o + l > sau.start());
    let mut freed = Vec::new();
    let mut changed = false;
    // What reads come from now was not compared yet.
    let mut verified = object.verified.lock();
    for (sau, before, seal) in &batch.saus {
        let now = state.map.get(*sau);
        // The source no longer holds it, or the copy that was there before the batch became old.
        let had = before.valid.contains(plan.to);
        if !now.valid.contains(batch.source) || (had && !now.valid.contains(plan.to)) {
            continue;
        }
        if !had {
            let cut = SauIndex::bytes_within(*sau, state.size) < seal.map_or(0, |s| s.len);
            let seal = seal.filter(|_| !touched(*sau) && !cut && state.mapped.is_none());
            state.map.note_copied(*sau, plan.to, seal).map_err(|_| CopyStop::Failed(Errno::EIO))?;
            verified.remove(*sau);
            changed = true;
        }
        if let Some(tier) = plan.free
            && state.in_place != Some(tier)
            && state.map.note_dropped(*sau, tier).is_ok()
        {
            freed.push((tier, *sau));
            verified.remove(*sau);
            changed = true;
        }
    }
    Ok(changed.then_some(freed))
}

/// Writes go to the fastest copy, and after a crash it counts: while readers have the object's file in place, that is it.
fn goes_above_what_is_in_place(state: &State, plan: CopyPlan) -> bool {
    state.in_place.is_some_and(|tier| plan.to < tier)
}

/// Makes a copy as long as its part of the object: a hole at the end of its source leaves it shorter, and whoever reads
/// the file in place takes its end for the object's. The object's state is locked, so nobody else extends the file.
pub(crate) fn reach(file: &ObjectFd, end: u64) -> Result<(), Errno> {
    if file.stat()?.size < end { file.truncate(end) } else { Ok(()) }
}

/// Changes a file behind the user's back: its time of modification, which counts after a crash, stays.
pub(crate) fn keeping_mtime<T>(
    file: &ObjectFd,
    change: impl FnOnce(&ObjectFd) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let before = file.stat()?.mtime;
    let changed = change(file)?;
    file.set_mtime(before)?;
    Ok(changed)
}

/// After a crash the object's time is that of its latest file: a copy is as old as the last write. That may have gone to
/// another SAU in the copy's own file; when nothing is unsettled, all files have the time that counts.
fn keep_time(object: &Object, batch: &Batch) {
    let source = || batch.from.stat().ok().map(|stat| stat.mtime);
    if let Some(time) = object.mtime().or_else(source) {
        let _ = batch.to.set_mtime(time);
    }
}

enum BatchError {
    Stopped,
    Errno(Errno),
    Damaged(SauIndex),
}

impl From<Errno> for BatchError {
    fn from(errno: Errno) -> BatchError {
        BatchError::Errno(errno)
    }
}

/// Copies the batch's SAUs, computing a seal for each.
fn copy_batch(
    object: &Object,
    batch: &mut Batch,
    to: TierId,
    copier: &dyn Copier,
) -> Result<u64, BatchError> {
    let mut total = 0;
    for (sau, now, seal) in &mut batch.saus {
        if now.valid.contains(to) {
            continue;
        }
        if copier.must_stop() {
            return Err(BatchError::Stopped);
        }
        let len = sau.bytes_within(batch.size);
        let (new, intact) = copy_sau((&batch.from, &batch.to), *sau, len, now.seal)?;
        if len > 0 {
            batch.to.start_writeback(sau.start(), u64::from(len));
        }
        // Over the source of a move writes go on, and end its seal before their first byte.
        if !intact && object.state.read().map.get(*sau).seal == now.seal {
            return Err(BatchError::Damaged(*sau));
        }
        *seal = Some(new);
        total += u64::from(len);
    }
    Ok(total)
}

/// Copies a SAU. Returns the checksum of what was copied, and whether it is what the old one says.
fn copy_sau(
    (from, to): (&ObjectFd, &ObjectFd),
    sau: SauIndex,
    len: u32,
    old: Option<Seal>,
) -> Result<(Seal, bool), Errno> {
    let mut crc = 0;
    if len > 0 {
        crc = copy_range(from, to, sau.start(), u64::from(len), true)?;
    }
    let intact = match old {
        None => true,
        Some(old) if old.len == len => old.crc == crc,
        Some(old) => verify(from, sau, old)?,
    };
    Ok((Seal { crc, len }, intact))
}

/// Writes into a place that reads as zeros.
pub(crate) fn put(file: &ObjectFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    for (n, block) in bytes.chunks(BLOCK).enumerate() {
        if block.iter().any(|byte| *byte != 0) {
            file.write_at(block, offset + (n * BLOCK) as u64)?;
        }
    }
    Ok(())
}

/// Is the seal of these bytes of a SAU? Zeros follow both.
pub(crate) fn is_of(seal: Seal, bytes: &[u8]) -> bool {
    let (sealed, behind) = bytes.split_at(bytes.len().min(seal.len as usize));
    sealed.len() == seal.len as usize && crc32c::crc32c(sealed) == seal.crc && behind.iter().all(|b| *b == 0)
}

/// Copies what was written in the SAUs that the batch copies, and nothing else: other SAUs in its range may have
/// come to live in the destination meanwhile.
fn copy_extent(batch: &Batch, to: TierId, offset: u64, len: u64) -> Result<(), Errno> {
    for piece in pieces(offset, len) {
        let Ok(at) = batch.saus.binary_search_by_key(&piece.sau, |(sau, ..)| *sau) else { continue };
        if !batch.saus[at].1.valid.contains(to) {
            copy_range(&batch.from, &batch.to, piece.offset, u64::from(piece.len), false)?;
        }
    }
    Ok(())
}

/// Copies a range to the same offsets of another tier's file. Returns its CRC-32C if asked, else 0.
pub(crate) fn copy_range(
    from: &ObjectFd,
    to: &ObjectFd,
    offset: u64,
    len: u64,
    checksum: bool,
) -> Result<u32, Errno> {
    let range = CopyRange { offset, len, checksum };
    let copied = from.copy_to(to, range, &mut |_| ControlFlow::Continue(()))?;
    Ok(copied.crc.unwrap_or(0))
}
