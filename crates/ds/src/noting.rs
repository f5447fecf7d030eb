//! What changes of an object while a version of it is copied, and from its snapshot to its publication.

use layout::SauIndex;
use std::sync::Arc;
use types::SAU_BYTES;

/// Ranges that are noted before they are counted in whole SAUs.
const RANGES_MAX: usize = 1024;

/// What changed of an object since its version was begun, or since the snapshot.
#[derive(Default)]
pub(crate) struct Noting {
    /// Whose it is.
    held_by: Arc<()>,
    pub written: Vec<(u64, u64)>,
    /// The smallest size that it had, if it was cut.
    pub lowest: Option<u64>,
    /// Programs can store to it unseen, or could.
    pub mapped: bool,
    /// The version is made of their file itself, which is another one at each look.
    pub in_place: bool,
}

impl Noting {
    /// For whoever has the same token. `mapped`: programs can store to the object unseen.
    pub fn new(held_by: &Arc<()>, in_place: bool, mapped: bool) -> Noting {
        Noting { held_by: held_by.clone(), mapped, in_place, ..Noting::default() }
    }
    pub fn is_held_by(&self, token: &Arc<()>) -> bool {
        Arc::ptr_eq(&self.held_by, token)
    }
    pub fn note(&mut self, offset: u64, len: u64) {
        match self.written.last_mut() {
            Some(last) if last.0 <= offset && offset <= last.0 + last.1 => {
                last.1 = last.1.max(offset - last.0 + len);
            }
            Some(_) | None => self.written.push((offset, len)),
        }
        if self.written.len() > RANGES_MAX {
            self.round_out();
        }
    }
    /// Nothing behind the new end is as it was.
    pub fn note_cut(&mut self, size: u64) {
        self.lowest = Some(self.lowest.map_or(size, |lowest| lowest.min(size)));
        self.note(size, u64::MAX - size);
    }
    pub fn note_mapped(&mut self) {
        self.mapped = true;
    }

    /// Changed bytes within this size.
    pub fn bytes(&self, size: u64) -> u64 {
        self.written.iter().map(|(offset, len)| size.saturating_sub(*offset).min(*len)).sum()
    }
    /// Did something of the SAU change?
    pub fn touches(&self, sau: SauIndex) -> bool {
        self.written
            .iter()
            .any(|(offset, len)| *offset < sau.end() && offset.saturating_add(*len) > sau.start())
    }
    /// What was noted so far; the next changes are noted anew.
    pub fn take(&mut self) -> Noting {
        let next = Noting::new(&self.held_by, self.in_place, self.mapped);
        std::mem::replace(self, next)
    }

    /// Whole SAUs in place of ranges, and one range if that does not help.
    fn round_out(&mut self) {
        let whole = |(offset, len): (u64, u64)| {
            let end = offset.saturating_add(len).checked_next_multiple_of(SAU_BYTES).unwrap_or(u64::MAX);
            (offset / SAU_BYTES * SAU_BYTES, end)
        };
        let mut ranges: Vec<(u64, u64)> = std::mem::take(&mut self.written).into_iter().map(whole).collect();
        ranges.sort_unstable();
        let bound = ranges.len() / 2;
        ranges.dedup_by(|next, last| {
            let meets = next.0 <= last.1;
            last.1 = if meets { last.1.max(next.1) } else { last.1 };
            meets
        });
        if ranges.len() > bound {
            let ends = ranges.first().zip(ranges.last()).map(|(first, last)| (first.0, last.1));
            ranges = ends.into_iter().collect();
        }
        self.written = ranges.into_iter().map(|(from, end)| (from, end - from)).collect();
    }
}

#[cfg(test)]
mod tests {
    //! Goal: whatever changed is noted, with a bound on what is kept. Method: random ranges, looked for byte by byte.
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_that_changed_is_forgotten(
            ranges in prop::collection::vec((0u64..40_000, 1u64..9_000), 1..3000),
            spread in 1u64..2000,
        ) {
            let mut noting = Noting::default();
            let place = |n: u64| n * spread * 997;
            for (n, len) in &ranges {
                noting.note(place(*n), *len);
                prop_assert!(noting.written.len() <= RANGES_MAX);
            }
            for (n, len) in ranges {
                let (mut at, end) = (place(n), place(n) + len);
                prop_assert!(noting.touches(SauIndex::of(at)) && noting.touches(SauIndex::of(end - 1)));
                while at < end {
                    let found = noting.written.iter().find(|(o, l)| *o <= at && at < o + l);
                    prop_assert!(found.is_some(), "byte {at} is forgotten");
                    at = found.map(|(o, l)| o + l).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_cut_changes_all_that_is_behind_it() {
        let mut noting = Noting::default();
        noting.note_cut(5 << 20);
        noting.note_cut(9 << 20);
        noting.note(u64::MAX - 1, 1);
        assert_eq!((noting.lowest, noting.bytes(6 << 20)), (Some(5 << 20), 1 << 20));
        assert!(!noting.touches(SauIndex::ZERO) && noting.touches(SauIndex::of(7 << 20)));
    }
}
