//! Whether an opening is read in records of one length at a constant distance: what one of several clients reads of a file that they share. Pure.

/// Further apart nothing says that the next one comes.
const STEP_MAX: u64 = 1 << 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stride {
    last: Option<(u64, u64)>,
    /// From where one begins to where the next one does; 0: unknown.
    step: u64,
    /// Records that were read so.
    seen: u64,
}

impl Stride {
    pub(crate) fn step(&self) -> u64 {
        self.step
    }

    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// What was asked for went unread: little at first, once more.
    pub(crate) fn lessen(&mut self) {
        self.seen = self.seen.min(1);
    }

    /// From the third one on: two have any distance.
    pub(crate) fn is_next(&self, (offset, len): (u64, u64)) -> bool {
        let next = |(at, of): (u64, u64)| len == of && at.checked_add(self.step) == Some(offset);
        self.step > 0 && self.last.is_some_and(next)
    }

    /// Is this one of its records? `there`: it was asked for, so it may be overtaken or be ahead.
    pub(crate) fn goes_on(&mut self, (offset, len): (u64, u64), there: bool) -> bool {
        let next = self.is_next((offset, len));
        let among = |(at, of): (u64, u64)| len == of && at.abs_diff(offset).is_multiple_of(self.step);
        if !(next || there && self.step > 0 && self.last.is_some_and(among)) {
            return false;
        }
        self.seen = self.seen.saturating_add(1);
        if self.last.is_some_and(|(at, _)| at < offset) {
            self.last = Some((offset, len));
        }
        true
    }

    /// A read that is none of its records; it may begin others.
    pub(crate) fn note(&mut self, (offset, len): (u64, u64)) {
        // What follows at once is no record but the rest of a run.
        let apart =
            |(at, of): (u64, u64)| of == len && offset > at.saturating_add(of) && offset - at <= STEP_MAX;
        let last = self.last.filter(|last| apart(*last));
        *self = Stride {
            last: Some((offset, len)),
            step: last.map_or(0, |(at, _)| offset - at),
            seen: if last.is_some() { 2 } else { 1 },
        };
    }
}

#[cfg(test)]
mod tests {
    //! Goal: records are told from reads in a row and here and there. Method: single histories.
    use super::*;

    const LEN: u64 = 47_008;

    #[test]
    fn the_third_record_at_the_same_distance_goes_on() {
        let mut stride = Stride::default();
        for at in [LEN, 3 * LEN] {
            assert!(!stride.goes_on((at, LEN), false));
            stride.note((at, LEN));
        }
        for n in 2..10 {
            assert!(stride.goes_on(((2 * n + 1) * LEN, LEN), false), "{n}");
        }
        assert_eq!((stride.step(), stride.seen()), (2 * LEN, 10));
        // Overtaken ones, and one ahead, if they were asked for.
        for n in [12, 10, 11, 13] {
            assert!(stride.goes_on(((2 * n + 1) * LEN, LEN), true), "{n}");
        }
        assert!(!stride.goes_on((28 * LEN, LEN), true) && !stride.goes_on((40 * LEN, LEN), false));
        assert!(!stride.goes_on((29 * LEN, LEN - 1), false));
        stride.note((100 * LEN, LEN));
        assert!(!stride.is_next((102 * LEN, LEN)), "it begins again");
    }

    #[test]
    fn other_reads_are_no_records() {
        let histories: [&[(u64, u64)]; 4] = [
            // In a row, backward, of other lengths, and far apart.
            &[(0, LEN), (LEN, LEN), (2 * LEN, LEN)],
            &[(9 * LEN, LEN), (6 * LEN, LEN), (3 * LEN, LEN)],
            &[(0, LEN), (3 * LEN, LEN + 1), (6 * LEN, LEN)],
            &[(0, LEN), (1 << 40, LEN), (2 << 40, LEN)],
        ];
        for history in histories {
            let mut stride = Stride::default();
            for read in history {
                assert!(!stride.goes_on(*read, true), "{history:?}");
                stride.note(*read);
            }
        }
        let mut stride = Stride::default();
        [(0, LEN), (3 * LEN, LEN)].into_iter().for_each(|read| stride.note(read));
        stride.note((u64::MAX - LEN, LEN));
        assert!(!stride.goes_on((u64::MAX, LEN), true));
    }
}
