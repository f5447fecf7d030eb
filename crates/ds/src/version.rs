//! Versions of an object for a linked near-line.
//!
//! - A version is the object as it was at one moment, the snapshot. It is copied while programs go on: what they change is noted and copied
//!   again, and at the end they are held off while a last short part is taken.
//! - From that moment on changes are noted again. When the version is there under its name, near-line has the SAUs that were not
//!   changed since. The map says so after the metadata do: a crash in between leaves SAUs that are published once more.
//! - Nothing is read from a place that a movement might change meanwhile without the object's lock, so movements and versions do not
//!   wait for each other.
//! - A version may be made of their file itself. What near-line has is left as it is there, so a death in between leaves the object whole;
//!   zeros are written where the file may have something else.
//! - What programs store through a mapping is not seen: of such an object near-line gets no SAU.

use crate::{
    DataServer,
    copy::is_of,
    load::attached,
    noting::Noting,
    object::{Object, State},
    theirs::Opened,
};
use layout::{Sau, SauIndex, Seal};
use link::{Source, Version};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};
use types::{Errno, SAU_BYTES, TierId, TierSet, Timestamp};

/// Changed bytes that are taken while programs are held off; with more they are copied beside them, for some rounds.
const SHORT_BLOCK: u64 = 4 << 20;
const ROUNDS: usize = 8;
/// Changed bytes that are taken at most before they are written.
const TAKEN_MAX: usize = 32 << 20;
/// Zeros of this length are not written where nothing was.
const BLOCK: usize = 64 << 10;

/// Bytes of an object, and where they are in it.
type Piece = (u64, Vec<u8>);

/// An object as it was at one moment. Until [`DataServer::note_published`] or its end, the object's changes are noted.
pub struct Snapshot {
    noting: Hold,
    pub size: u64,
    /// Of the last write that the metadata do not know of yet.
    pub mtime: Option<Timestamp>,
    /// The SAUs that were no holes, with the checksum of what was copied if it is known.
    saus: Vec<(SauIndex, Option<Seal>)>,
}

/// The object's changes are noted for as long as this is there.
struct Hold {
    object: Arc<Object>,
    me: Arc<()>,
}

impl Hold {
    /// What was noted for it.
    fn take(&self, state: &mut State) -> Option<Noting> {
        state.version.take_if(|noting| noting.is_held_by(&self.me))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.take(&mut self.object.state.write());
    }
}

/// A version that is being copied.
struct Copying<'a> {
    to: &'a mut dyn Version,
    /// So many bytes are in it from the beginning: those of their file.
    there: u64,
    stop: &'a dyn Fn() -> bool,
    /// The SAUs that it has something of, with the checksum of what was written.
    copied: BTreeMap<SauIndex, Option<Seal>>,
    /// Their file, once a SAU came from there.
    theirs: Option<Opened>,
}

/// What was taken from the object, still to be written.
#[derive(Default)]
struct Taken {
    /// First of all the version is no longer than this.
    cut: Option<u64>,
    parts: Vec<(u64, Vec<u8>)>,
}

impl DataServer {
    /// Copies the object as it is at one moment to `to`, while programs go on. The caller finishes the version.
    ///
    /// `EINTR`: `stop` said so. `EBUSY`: a version of it is on its way already. `ESTALE`: their file is not the one that was agreed
    /// on, and SAUs are in no other place. `EIO`: a SAU is lost or damaged.
    pub fn copy_version(
        &self,
        object: &Arc<Object>,
        to: &mut dyn Version,
        stop: &dyn Fn() -> bool,
    ) -> Result<Snapshot, Errno> {
        self.copy_onto(object, (to, 0), stop)
    }

    /// As `copy_version`, into their own file, of which so many bytes are there. If it ends early, near-line has what it had, and
    /// the version is to be made once more: others see a file that is half changed.
    pub fn copy_changes(
        &self,
        object: &Arc<Object>,
        (to, there): (&mut dyn Version, u64),
        stop: &dyn Fn() -> bool,
    ) -> Result<Snapshot, Errno> {
        self.copy_onto(object, (to, there), stop)
    }

    fn copy_onto(
        &self,
        object: &Arc<Object>,
        (to, there): (&mut dyn Version, u64),
        stop: &dyn Fn() -> bool,
    ) -> Result<Snapshot, Errno> {
        let noting = self.begin_noting(object, there > 0)?;
        let mut copying = Copying { to, there, stop, copied: BTreeMap::new(), theirs: None };
        self.copy_all(object, &mut copying)?;
        let mut rounds = 0;
        let (taken, mut snapshot) = loop {
            if stop() {
                return Err(Errno::EINTR);
            }
            rounds += 1;
            let mut state = object.state.write();
            if state.removed {
                return Err(Errno::ENOENT);
            }
            let size = state.size;
            let Some(noted) = state.version.as_mut().map(Noting::take) else { return Err(Errno::EIO) };
            let short = noted.bytes(size) <= SHORT_BLOCK || rounds > ROUNDS;
            let held = if short {
                Some(state)
            } else {
                drop(state);
                None
            };
            let taken = self.copy_again(object, &mut copying, &noted, held.as_deref())?;
            if let Some(state) = held {
                break (taken, snapshot_of(&state, noting, object.mtime()));
            }
        };
        copying.put(taken)?;
        copying.to.set_len(snapshot.size)?;
        // What came from there counts only if it was the same file to the end.
        if let Some(theirs) = &copying.theirs {
            theirs.check().inspect_err(|_| object.theirs.forget(theirs))?;
        }
        for (sau, seal) in &mut snapshot.saus {
            *seal = copying.copied.get(sau).copied().flatten();
        }
        Ok(snapshot)
    }

    /// The version is there under its name, durably, and the metadata say so; `source` is it. What was not changed since the
    /// snapshot is in near-line from now on.
    pub fn note_published(&self, snapshot: Snapshot, source: Arc<dyn Source>) -> Result<(), Errno> {
        let object = snapshot.noting.object.clone();
        // It has its name, whether it can be looked at just now or not: then it is opened when it is wanted.
        let file = source.look().ok().map(|found| Opened { source, seen: found.seen });
        let mut state = object.state.write();
        if state.removed {
            return Err(Errno::ENOENT);
        }
        self.save_unsaved(&object, &mut state)?;
        let Some(noted) = snapshot.noting.take(&mut state) else { return Err(Errno::EIO) };
        let linked_len = noted.lowest.unwrap_or(u64::MAX).min(snapshot.size);
        let before = std::mem::replace(&mut state.linked_len, linked_len);
        if !noted.mapped && state.mapped.is_none() {
            note_saus(&object, &mut state, &snapshot.saus, &noted);
        }
        let changed = noted.mapped || noted.lowest.is_some() || !noted.written.is_empty();
        self.keep_next(&object, changed, file.clone());
        object.theirs.replace(file);
        state.era += 1;
        // Near-line's SAUs are in this file as they were in the last one, so what is not recorded is done once more.
        self.save_map(&object, &mut state).inspect_err(|_| state.linked_len = before)?;
        if state.known {
            // Under the lock: whoever writes next says afterwards that it is dirty.
            object.noticed.store(0, Ordering::Relaxed);
            self.driver.tell(attached(object.ino, &state));
        }
        drop(state);
        Ok(())
    }

    /// The version did not come to be.
    pub fn give_up_version(&self, snapshot: Snapshot) {
        drop(snapshot);
    }

    /// Does near-line have all bytes of the object?
    pub fn is_published(&self, object: &Object) -> bool {
        let state = object.state.read();
        state.map.is_wholly_in(TierId::Nearline) && state.mapped.is_none()
    }

    /// Is their file, up to the object's size, what the object is? Not asked of files with holes, in which theirs may have bytes.
    pub fn is_as_published(&self, object: &Object) -> bool {
        let state = object.state.read();
        let whole = u64::from(state.map.used()) == state.size.div_ceil(types::SAU_BYTES);
        whole
            && state.linked_len >= state.size
            && state.map.is_wholly_in(TierId::Nearline)
            && state.mapped.is_none()
    }

    /// Bytes of the object that near-line has not, or may not have.
    pub(crate) fn unpublished(&self, object: &Object) -> u64 {
        let state = object.state.read();
        if state.mapped.is_some() {
            return state.size;
        }
        let missing = |(_, now): &(SauIndex, Sau)| !now.valid.contains(TierId::Nearline);
        let bytes = |(sau, _): (SauIndex, Sau)| u64::from(sau.bytes_within(state.size)).max(1);
        state.map.iter().filter(missing).map(bytes).sum()
    }

    fn begin_noting(&self, object: &Arc<Object>, in_place: bool) -> Result<Hold, Errno> {
        let mut state = object.state.write();
        if state.removed {
            return Err(Errno::ENOENT);
        }
        if state.version.is_some() {
            return Err(Errno::EBUSY);
        }
        self.save_unsaved(object, &mut state)?;
        let me = Arc::default();
        state.version = Some(Noting::new(&me, in_place, state.mapped.is_some()));
        Ok(Hold { object: object.clone(), me })
    }

    /// Every SAU, as it is when its turn comes.
    fn copy_all(&self, object: &Object, copying: &mut Copying<'_>) -> Result<(), Errno> {
        let mut bytes = vec![0; SAU_BYTES as usize];
        let mut next = Some(SauIndex::ZERO);
        while let Some(from) = next {
            if (copying.stop)() {
                return Err(Errno::EINTR);
            }
            let (sau, now, linked_len) = {
                let state = object.state.read();
                if state.removed {
                    return Err(Errno::ENOENT);
                }
                // Their file may have something in the holes.
                let there =
                    (from.start() < copying.there.min(state.size)).then(|| (from, state.map.get(from)));
                let found = there.or_else(|| state.map.iter_from(from).next());
                let Some((sau, now)) = found else { return Ok(()) };
                (sau, now, state.linked_len)
            };
            if copying.there > 0 && now.valid.contains(TierId::Nearline) {
                copying.clear_behind(sau, linked_len)?;
            } else {
                self.copy_one(object, copying, (sau, now), &mut bytes)?;
            }
            next = SauIndex::new(sau.get() + 1);
        }
        Ok(())
    }

    fn copy_one(
        &self,
        object: &Object,
        copying: &mut Copying<'_>,
        (sau, now): (SauIndex, Sau),
        bytes: &mut [u8],
    ) -> Result<(), Errno> {
        let only_there = |now: Sau| now.valid == TierSet::of(TierId::Nearline);
        let got = self.read_as_it_is(object, sau.start(), bytes)?;
        let bytes = &bytes[..got];
        let after = object.state.read().map.get(sau);
        if (only_there(now) || only_there(after)) && copying.theirs.is_none() {
            copying.theirs = Some(self.theirs(object)?);
        }
        let changed = {
            let state = object.state.read();
            // A seal that is not the map's any more is of what was there before a write.
            let sealed = now.seal.filter(|seal| state.map.get(sau).seal == Some(*seal));
            let changed = state.version.as_ref().is_none_or(|noting| noting.touches(sau));
            if !changed && sealed.is_some_and(|seal| seal.len as usize <= got && !is_of(seal, bytes)) {
                if only_there(now) {
                    return Err(Errno::ESTALE);
                }
                self.counters.damaged_saus.add(1);
                tracing::error!(ino = %object.ino, sau = sau.get(), "checksum mismatch while publishing: the version is not used");
                return Err(Errno::EIO);
            }
            changed
        };
        let seal = Seal { crc: crc32c::crc32c(bytes), len: got as u32 };
        copying.copied.insert(sau, Some(seal).filter(|_| !changed));
        if sau.start() < copying.there {
            return copying.to.write_at(bytes, sau.start());
        }
        copying.put_fresh(sau.start(), bytes)
    }

    /// What was noted, once more: under the object's lock if `held` is its state, and then perhaps still to be written.
    fn copy_again(
        &self,
        object: &Object,
        copying: &mut Copying<'_>,
        noted: &Noting,
        held: Option<&State>,
    ) -> Result<Taken, Errno> {
        let mut taken = Taken { cut: noted.lowest, parts: Vec::new() };
        if let Some(lowest) = noted.lowest {
            copying.copied.retain(|sau, _| sau.start() < lowest);
        }
        for (offset, len) in &noted.written {
            let (first, end) = (SauIndex::of(*offset), offset.saturating_add(*len));
            let mut next = Some(first);
            while let Some(from) = next {
                if held.is_none() && (copying.stop)() {
                    return Err(Errno::EINTR);
                }
                let found = match held {
                    Some(state) => self.take_again(object, copying, state, (from, *offset, end))?,
                    None => self.take_again(object, copying, &object.state.read(), (from, *offset, end))?,
                };
                let Some((sau, part)) = found else { break };
                taken.parts.extend(part);
                if held.is_none() || taken.bytes() > TAKEN_MAX {
                    copying.put(std::mem::take(&mut taken))?;
                }
                next = SauIndex::new(sau.get() + 1);
            }
        }
        if held.is_none() {
            copying.put(std::mem::take(&mut taken))?;
        }
        Ok(taken)
    }

    /// The first SAU from `from` on that has something of a noted range, or had in the version, and what it has of it.
    fn take_again(
        &self,
        object: &Object,
        copying: &mut Copying<'_>,
        state: &State,
        (from, offset, end): (SauIndex, u64, u64),
    ) -> Result<Option<(SauIndex, Option<Piece>)>, Errno> {
        let end = end.min(state.size);
        let there = state.map.iter_from(from).next().map(|(sau, _)| sau);
        let copied = copying.copied.range(from..).next().map(|(sau, _)| *sau);
        let Some(sau) = there.into_iter().chain(copied).min().filter(|sau| sau.start() < end) else {
            return Ok(None);
        };
        copying.copied.insert(sau, None);
        // What near-line had all the time did not change: what is noted of it is its zeros, and they are there.
        if state.map.get(sau).valid.contains(TierId::Nearline) {
            return Ok(Some((sau, None)));
        }
        let from = offset.max(sau.start());
        let mut bytes = vec![0; end.min(sau.end()).saturating_sub(from) as usize];
        self.read_under(object, state, from, &mut bytes)?;
        Ok(Some((sau, Some((from, bytes)))))
    }
}

impl Taken {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

impl Copying<'_> {
    fn put(&mut self, taken: Taken) -> Result<(), Errno> {
        taken.cut.map_or(Ok(()), |size| self.to.set_len(size))?;
        taken.parts.iter().try_for_each(|(offset, bytes)| self.to.write_at(bytes, *offset))
    }

    /// Near-line has the SAU, and of it the bytes before this end: those stay, and what follows is zeros.
    fn clear_behind(&mut self, sau: SauIndex, linked_len: u64) -> Result<(), Errno> {
        self.copied.insert(sau, None);
        let from = linked_len.clamp(sau.start(), sau.end());
        let zeros = vec![0; self.there.clamp(from, sau.end()).saturating_sub(from) as usize];
        if zeros.is_empty() { Ok(()) } else { self.to.write_at(&zeros, from) }
    }

    /// Where nothing was written before, zeros are left out.
    fn put_fresh(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let is_zero = |block: &&[u8]| block.iter().all(|byte| *byte == 0);
        let blocks: Vec<&[u8]> = bytes.chunks(BLOCK).collect();
        let mut at = 0;
        for run in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let len: usize = run.iter().map(|block| block.len()).sum();
            if !run.first().is_some_and(is_zero) {
                self.to.write_at(&bytes[at..at + len], offset + at as u64)?;
            }
            at += len;
        }
        Ok(())
    }
}

fn snapshot_of(state: &State, noting: Hold, mtime: Option<Timestamp>) -> Snapshot {
    let saus = state.map.iter().map(|(sau, _)| (sau, None)).collect();
    Snapshot { noting, size: state.size, mtime, saus }
}

/// The SAUs of the snapshot that were not changed since are in near-line, too.
fn note_saus(object: &Object, state: &mut State, saus: &[(SauIndex, Option<Seal>)], noted: &Noting) {
    let changed: BTreeSet<SauIndex> =
        saus.iter().map(|(sau, _)| *sau).filter(|sau| noted.touches(*sau)).collect();
    for (sau, seal) in saus.iter().filter(|(sau, _)| !changed.contains(sau)) {
        let now = state.map.get(*sau);
        if now.is_hole() || now.lost {
            continue;
        }
        if let Err(error) = state.map.note_copied(*sau, TierId::Nearline, *seal) {
            tracing::error!(ino = %object.ino, sau = sau.get(), %error, "a published SAU is not what the object has");
        }
    }
}
