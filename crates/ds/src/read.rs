//! Reads: each SAU from the fastest tier that holds it, checked against its seal the first time that it comes
//! from a device. What only a linked near-line has is read from there without the object's lock: a call to a back end may take long,
//! and nobody changes the bytes that it was asked for.

use crate::{
    DataServer,
    fetch::{Fetch, Got},
    linked::unreachable,
    object::{Object, State},
    theirs::within,
};
use layout::{ReadPlace, SauIndex, Seal, pieces, read_place};
use std::sync::Arc;
use store::ObjectFd;
use types::{Errno, TierId, TierSet};

/// The outcome of a call that must not wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attempt<T> {
    Done(T),
    /// It would have waited for a device, for space or for a move: call the waiting form from a thread that may wait.
    WouldWait,
}

/// Consecutive bytes that one place serves.
struct Span {
    place: ReadPlace,
    offset: u64,
    len: usize,
}

/// What is still to be read of their file, how much of that counts, and which it is.
struct Linked {
    spans: Vec<Span>,
    len: u64,
    era: u64,
    /// What is on its way of it.
    fetches: Vec<Arc<Fetch>>,
}

/// A copy that cannot be used.
pub(crate) struct Damaged {
    pub sau: SauIndex,
    pub tier: TierId,
    pub why: Damage,
}

#[derive(Clone, Copy)]
pub(crate) enum Damage {
    /// Its bytes are not those of this seal.
    Changed(Seal),
    Unreadable(Errno),
}

impl DataServer {
    /// Reads as [`DataServer::read`] does if that needs no waiting.
    pub fn try_read(&self, object: &Object, offset: u64, buf: &mut [u8]) -> Result<Attempt<usize>, Errno> {
        self.touch(object, offset);
        let Some(state) = object.state.try_read() else { return Ok(Attempt::WouldWait) };
        let wanted = readable(&state, offset, buf.len())?;
        let buf = &mut buf[..wanted];
        self.note_read(object, &state, offset, wanted);
        for span in self.spans(&state, offset, wanted) {
            let at = (span.offset - offset) as usize;
            let part = &mut buf[at..at + span.len];
            match span.place {
                ReadPlace::Zeros => part.fill(0),
                ReadPlace::Lost | ReadPlace::Absent => return Err(Errno::EIO),
                ReadPlace::Tier(TierId::Memory) => read_file(&state, TierId::Memory, span.offset, part)?,
                ReadPlace::Tier(tier) if self.ours(TierSet::of(tier)).is_empty() => {
                    if !self.try_read_linked(object, &state, span.offset, part) {
                        return Ok(Attempt::WouldWait);
                    }
                }
                ReadPlace::Tier(tier) => {
                    // A device that fails is the waiting call's concern: another tier may have the bytes.
                    if self.first_unverified(object, &state, tier, &span).is_some()
                        || !try_read_file(&state, tier, span.offset, part).unwrap_or(false)
                    {
                        return Ok(Attempt::WouldWait);
                    }
                }
            }
        }
        Ok(Attempt::Done(wanted))
    }

    /// Fills `buf` from `offset`; short only at the end of the file. May wait for devices.
    ///
    /// `EIO` when any byte of the range is lost, or fails its checksum or cannot be read in every tier that holds it: never
    /// a short read, which callers would take for the end of the file.
    pub fn read(&self, object: &Object, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.read_both(object, (offset, buf), true, unreachable)
    }

    /// As `read`; what a linked file fails with is as it came.
    pub(crate) fn read_as_it_is(&self, object: &Object, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.read_both(object, (offset, buf), false, |errno| errno)
    }

    fn read_both(
        &self,
        object: &Object,
        (offset, buf): (u64, &mut [u8]),
        is_program: bool,
        failed: impl Fn(Errno) -> Errno,
    ) -> Result<usize, Errno> {
        loop {
            let (wanted, linked) = self.read_ours(object, (offset, buf), is_program)?;
            for span in &linked.spans {
                let at = (span.offset - offset) as usize;
                let part = &mut buf[at..at + span.len];
                self.read_linked(object, &linked, (span.offset, part)).map_err(&failed)?;
            }
            // Another file came to be theirs meanwhile, perhaps, and bytes of both would be those of neither.
            if linked.spans.is_empty() || object.state.read().era == linked.era {
                return Ok(wanted);
            }
        }
    }

    /// Through what is on its way, where there is something.
    fn read_linked(
        &self,
        object: &Object,
        linked: &Linked,
        (offset, buf): (u64, &mut [u8]),
    ) -> Result<(), Errno> {
        if linked.fetches.is_empty() {
            return self.read_theirs(object, offset, buf, linked.len);
        }
        for piece in pieces(offset, buf.len() as u64) {
            let at = (piece.offset - offset) as usize;
            let part = &mut buf[at..at + piece.len as usize];
            let there = within(piece.offset, part.len(), linked.len);
            let fetch = linked.fetches.iter().find(|fetch| fetch.sau == piece.sau).filter(|_| there > 0);
            let got = fetch.map(|fetch| (fetch, fetch.read(within_sau(piece.offset), &mut part[..there])));
            match got {
                Some((fetch, Got::Bytes)) => {
                    part[there..].fill(0);
                    self.pass(object, fetch, piece.offset + there as u64);
                }
                Some((_, Got::Failed(errno))) => return Err(errno),
                Some((_, Got::Nothing)) | None => self.read_theirs(object, piece.offset, part, linked.len)?,
            }
        }
        Ok(())
    }

    /// The same if it needs no waiting. `false`: it would.
    fn try_read_linked(&self, object: &Object, state: &State, offset: u64, buf: &mut [u8]) -> bool {
        for piece in pieces(offset, buf.len() as u64) {
            let at = (piece.offset - offset) as usize;
            let part = &mut buf[at..at + piece.len as usize];
            let there = within(piece.offset, part.len(), state.linked_len);
            match object.reading.find(piece.sau, state.era).filter(|_| there > 0) {
                Some(fetch) => {
                    if !fetch.try_read(within_sau(piece.offset), &mut part[..there]) {
                        return false;
                    }
                    part[there..].fill(0);
                    self.pass(object, &fetch, piece.offset + there as u64);
                }
                None if !object.theirs.try_read(piece.offset, part, state.linked_len) => return false,
                None => {}
            }
        }
        true
    }

    fn pass(&self, object: &Object, fetch: &Arc<Fetch>, end: u64) {
        if end == fetch.sau.start() + u64::from(fetch.len) {
            self.passed(object, fetch);
        }
    }

    fn read_ours(
        &self,
        object: &Object,
        (offset, buf): (u64, &mut [u8]),
        is_program: bool,
    ) -> Result<(usize, Linked), Errno> {
        // Each round either finishes or takes one bad copy out of the map, so it ends.
        loop {
            let mut linked = Linked { spans: Vec::new(), len: 0, era: 0, fetches: Vec::new() };
            let bad = {
                let state = object.state.read();
                let wanted = readable(&state, offset, buf.len())?;
                (linked.len, linked.era) = (state.linked_len, state.era);
                let buf = &mut buf[..wanted];
                if is_program {
                    self.note_read(object, &state, offset, wanted);
                }
                match self.read_spans(object, &state, (offset, buf), &mut linked.spans)? {
                    None => {
                        let spans = linked.spans.iter().flat_map(|span| pieces(span.offset, span.len as u64));
                        // What comes to a tier after this look is found here: it is forgotten after the map has it.
                        let fetches = spans.filter_map(|piece| object.reading.find(piece.sau, state.era));
                        linked.fetches = fetches.collect();
                        return Ok((wanted, linked));
                    }
                    Some(bad) => bad,
                }
            };
            self.drop_damaged(object, bad)?;
        }
    }

    /// What our tiers have of a range within the object, while its state is locked; zeros stand for the rest.
    pub(crate) fn read_under(
        &self,
        object: &Object,
        state: &State,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), Errno> {
        buf.fill(0);
        match self.read_spans(object, state, (offset, buf), &mut Vec::new())? {
            None => Ok(()),
            Some(Damaged { why: Damage::Unreadable(errno), .. }) => Err(errno),
            Some(Damaged { why: Damage::Changed(_), .. }) => Err(Errno::EIO),
        }
    }

    fn read_spans(
        &self,
        object: &Object,
        state: &State,
        (offset, buf): (u64, &mut [u8]),
        linked: &mut Vec<Span>,
    ) -> Result<Option<Damaged>, Errno> {
        for span in self.spans(state, offset, buf.len()) {
            let at = (span.offset - offset) as usize;
            let part = &mut buf[at..at + span.len];
            match span.place {
                ReadPlace::Zeros => part.fill(0),
                ReadPlace::Lost | ReadPlace::Absent => return Err(Errno::EIO),
                ReadPlace::Tier(tier) if self.ours(TierSet::of(tier)).is_empty() => linked.push(span),
                ReadPlace::Tier(tier) => {
                    while let Some((sau, seal)) = self.first_unverified(object, state, tier, &span) {
                        let file = state.files[tier.index()].as_ref().ok_or(Errno::EIO)?;
                        let why = match verify_once(object, file, sau, seal) {
                            Ok(true) => continue,
                            Ok(false) => Damage::Changed(seal),
                            Err(errno) => Damage::Unreadable(errno),
                        };
                        return Ok(Some(Damaged { sau, tier, why }));
                    }
                    if let Err(errno) = read_file(state, tier, span.offset, part) {
                        let (sau, why) = (SauIndex::of(span.offset), Damage::Unreadable(errno));
                        return Ok(Some(Damaged { sau, tier, why }));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The first sealed SAU of a device span that was not compared with its seal yet.
    fn first_unverified(
        &self,
        object: &Object,
        state: &State,
        tier: TierId,
        span: &Span,
    ) -> Option<(SauIndex, Seal)> {
        if tier == TierId::Memory {
            return None;
        }
        let verified = object.verified.lock();
        pieces(span.offset, span.len as u64)
            .filter(|p| !verified.contains(p.sau))
            .find_map(|p| state.map.get(p.sau).seal.map(|seal| (p.sau, seal)))
    }

    fn spans(&self, state: &State, offset: u64, len: usize) -> Vec<Span> {
        let present = self.present();
        let mut spans: Vec<Span> = Vec::with_capacity(2);
        for piece in pieces(offset, len as u64) {
            let place = read_place(state.map.get(piece.sau), present);
            match spans.last_mut() {
                Some(last) if last.place == place => last.len += piece.len as usize,
                Some(_) | None => spans.push(Span { place, offset: piece.offset, len: piece.len as usize }),
            }
        }
        spans
    }

    /// A copy does not match its checksum, or cannot be read. If another tier holds the SAU, the bad copy is taken out of
    /// the map; otherwise the bytes are gone: `EIO`. Nothing is punched: the device's bytes stay for whoever wants to look.
    pub(crate) fn drop_damaged(&self, object: &Object, damaged: Damaged) -> Result<(), Errno> {
        let Damaged { sau, tier, why } = damaged;
        let mut state = object.state.write();
        let (name, now) = (object.ino(), state.map.get(sau));
        let (errno, what) = match why {
            // Overwritten or taken out meanwhile: whoever reads it again sees.
            Damage::Changed(seal) if now.seal != Some(seal) => return Ok(()),
            Damage::Changed(_) => (Errno::EIO, "checksum mismatch"),
            Damage::Unreadable(errno) => (errno, "a device failed to read"),
        };
        if !now.valid.contains(tier) {
            return Ok(());
        }
        if let Damage::Changed(_) = why {
            self.counters.damaged_saus.add(1);
        }
        // What programs store through a mapping is in the copy in place alone until it is absorbed. And readers in place go on
        // with the copy that they have: another one would be written past them.
        let others = now.valid.without(tier).intersect(self.present());
        if others.is_empty() || state.mapped.is_some() || state.in_place == Some(tier) {
            tracing::error!(%name, sau = sau.get(), %tier, %errno, "{what}, and no other copy: EIO");
            return Err(errno);
        }
        tracing::error!(%name, sau = sau.get(), %tier, %errno, "{what}: using another tier's copy");
        state.map.note_dropped(sau, tier).map_err(|_| Errno::EIO)?;
        self.save_map(object, &mut state)?;
        // It is another copy that reads come from now.
        object.verified.lock().remove(sau);
        Ok(())
    }
}

fn within_sau(offset: u64) -> u32 {
    (offset % types::SAU_BYTES) as u32
}

/// How many bytes can be read; `EIO` where a lost SAU begins at or behind the end of the file (its true size is
/// lost with it).
fn readable(state: &State, offset: u64, len: usize) -> Result<usize, Errno> {
    if offset >= state.size {
        return if state.end_is_lost() { Err(Errno::EIO) } else { Ok(0) };
    }
    Ok(len.min(usize::try_from(state.size - offset).unwrap_or(usize::MAX)))
}

/// Reads what the tier's file has; what lies past its end is zeros (I-DS-3). A file that ends before the place that we know is
/// not as we left it.
fn read_file(state: &State, tier: TierId, offset: u64, part: &mut [u8]) -> Result<(), Errno> {
    let Some(file) = &state.files[tier.index()] else { return Err(Errno::EIO) };
    let got = file.read_at(part, offset)?;
    if got < in_file(state, tier, offset, part.len()) {
        return Err(Errno::EIO);
    }
    part[got..].fill(0);
    Ok(())
}

/// How many of these bytes lie before the end of the tier's file.
fn in_file(state: &State, tier: TierId, offset: u64, len: usize) -> usize {
    let before_end = state.file_len[tier.index()].saturating_sub(offset);
    len.min(usize::try_from(before_end).unwrap_or(usize::MAX))
}

/// `false` if the bytes are not in the page cache.
fn try_read_file(state: &State, tier: TierId, offset: u64, part: &mut [u8]) -> Result<bool, Errno> {
    let Some(file) = &state.files[tier.index()] else { return Err(Errno::EIO) };
    let in_file = in_file(state, tier, offset, part.len());
    if file.read_nowait(&mut part[..in_file], offset)? != Some(in_file) {
        return Ok(false);
    }
    part[in_file..].fill(0);
    Ok(true)
}

/// Compares a SAU with its seal and remembers that it matched. Readers come several at once for the parts of one SAU.
fn verify_once(object: &Object, file: &ObjectFd, sau: SauIndex, seal: Seal) -> Result<bool, Errno> {
    let _turn = object.verifying[sau.get() as usize % object.verifying.len()].lock();
    if object.verified.lock().contains(sau) {
        return Ok(true);
    }
    let intact = verify(file, sau, seal)?;
    if intact {
        object.verified.lock().insert(sau);
    }
    Ok(intact)
}

/// Do the file's bytes of this SAU match the seal?
pub(crate) fn verify(file: &ObjectFd, sau: SauIndex, seal: Seal) -> Result<bool, Errno> {
    Ok(file.checksum(sau.start(), u64::from(seal.len))? == seal.crc)
}
