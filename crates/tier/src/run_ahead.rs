//! Reading a file from a slow source: which of its SAUs are fetched whole, and how far ahead of its readers.
//!
//! One [`RunAhead`] per open file is told of each read and advises. It finds streams by their places, not by who reads: several
//! readers of one file are several streams, and the kernel's own readahead, which asks in another order, is one.
//!
//! - What is read from front to back is fetched whole, with a window ahead that doubles with each SAU that the reader enters.
//!   So is what is read in equal steps, forwards or backwards, if the steps leave out no more than they take.
//! - What is read here and there is served as it is asked for, until half of a SAU was asked for: so no more than twice the bytes
//!   are kept that somebody wanted.
//! - A file of one SAU is fetched whole.
//!
//! It does not know what is fetched already, nor what there is room for: the same SAU may be advised again.

use types::SAU_BYTES;

/// Readers at different places of one file; the one that was idle for longest makes way.
const STREAMS: usize = 8;
/// SAUs of which the share that was asked for is counted; the one that was idle for longest makes way.
const SHARES: usize = 64;
/// A request that could not be served at once comes again; more are not under way at once for one file, or are counted twice.
const REPEATS: usize = 32;
/// A request of this size at the beginning of a file is somebody who reads all of it: who looks at the kind of a file reads less.
const BEGINS: u64 = 128 << 10;
/// What the kernel may read ahead or around a page that was asked for, so that requests come in another order; less than that says
/// nothing about the SAU behind.
const AROUND: u64 = 2 << 20;
/// Equal steps between requests after which the next ones are expected.
const STEPS: u32 = 3;

/// What to do about a read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Advice {
    /// The SAUs that it touches are worth having whole.
    pub here: bool,
    /// The next ones that will be asked for, in this order.
    pub ahead: Vec<u32>,
    /// It begins a SAU that was read from its beginning before.
    pub again: bool,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    /// Where the last request began, and the end of the farthest one.
    last: u64,
    next: u64,
    /// Bytes from where it goes from front to back to `next`, and in how many requests.
    run: u64,
    in_run: u32,
    from_start: bool,
    /// SAUs ahead.
    window: u32,
    /// One past the last SAU that was advised ahead.
    advised: u32,
    step: i64,
    steps: u32,
    used: u64,
}

/// The reading of one file.
pub struct RunAhead {
    ahead_max: u32,
    streams: Vec<Stream>,
    /// SAU, bytes asked for, when last.
    shares: Vec<(u32, u64, u64)>,
    recent: Vec<(u64, u64)>,
    /// SAUs that were read from their beginning, 64 in a word.
    passed: Vec<u64>,
    requests: u64,
}

fn sau_of(offset: u64) -> u32 {
    u32::try_from(offset / SAU_BYTES).unwrap_or(u32::MAX - 1)
}

impl RunAhead {
    /// `ahead_max`: SAUs that may be fetched ahead of one stream.
    pub fn new(ahead_max: u32) -> RunAhead {
        RunAhead {
            ahead_max,
            streams: Vec::new(),
            shares: Vec::new(),
            recent: Vec::new(),
            passed: Vec::new(),
            requests: 0,
        }
    }

    /// A read of `len` bytes, of a file that has `size`. Who could not serve it and comes again with it says it again.
    pub fn read(&mut self, offset: u64, len: u64, size: u64) -> Advice {
        if len == 0 || offset >= size {
            return Advice::default();
        }
        let len = len.min(size - offset);
        self.requests += 1;
        let is_repeat = self.take_repeat(offset, len);
        let at = self.stream_of(offset, len, is_repeat);
        let mut advice = Advice::default();
        if !is_repeat {
            advice.again = self.pass(offset, len);
            self.streams[at].follow(offset, len);
            self.count_shares(offset, len);
        }
        let stream = &mut self.streams[at];
        stream.used = self.requests;
        let sequential = stream.is_sequential();
        let stepping = stream.is_stepping(len);
        advice.here = size <= SAU_BYTES || sequential || stepping;
        if !advice.here {
            let half = |sau: u32| SAU_BYTES.min(size - u64::from(sau) * SAU_BYTES) / 2;
            let all = sau_of(offset)..=sau_of(offset + len - 1);
            advice.here = all
                .into_iter()
                .all(|sau| self.shares.iter().any(|(one, bytes, _)| *one == sau && *bytes >= half(sau)));
        }
        let last = sau_of(size - 1);
        let stream = &mut self.streams[at];
        if sequential {
            advice.ahead = stream.ahead(last, self.ahead_max);
        } else if stepping {
            advice.ahead = stream.steps_ahead(len, size, self.ahead_max);
        }
        advice
    }

    fn take_repeat(&mut self, offset: u64, len: u64) -> bool {
        match self.recent.iter().position(|one| *one == (offset, len)) {
            Some(at) => {
                self.recent.remove(at);
                true
            }
            None => {
                if self.recent.len() == REPEATS {
                    self.recent.remove(0);
                }
                self.recent.push((offset, len));
                false
            }
        }
    }

    /// The stream that a request belongs to; a new one if there is none.
    fn stream_of(&mut self, offset: u64, len: u64, is_repeat: bool) -> usize {
        let follows =
            |s: &Stream| s.next == offset || is_repeat && offset < s.next && offset + s.run >= s.next;
        let steps = |s: &Stream| s.steps > 0 && s.last.checked_add_signed(s.step) == Some(offset);
        let goes_on = |s: &Stream| s.goes_on(offset, len);
        let found = self.streams.iter().position(follows);
        let found = found.or_else(|| self.streams.iter().position(steps));
        let found = found.or_else(|| self.streams.iter().position(goes_on));
        // Two requests with the same distance are the beginning of steps: of who came last, if he goes nowhere yet.
        let found = found.or_else(|| {
            let latest = (0..self.streams.len()).max_by_key(|at| self.streams[*at].used)?;
            let stream = &self.streams[latest];
            (!stream.is_sequential() && (stream.is_fresh() || stream.steps > 0)).then_some(latest)
        });
        if let Some(at) = found {
            return at;
        }
        let fresh = Stream { last: offset, next: offset, from_start: offset == 0, ..Stream::default() };
        if self.streams.len() < STREAMS {
            self.streams.push(fresh);
            return self.streams.len() - 1;
        }
        let idle = (0..STREAMS).min_by_key(|at| self.streams[*at].used).unwrap_or(0);
        self.streams[idle] = fresh;
        idle
    }

    fn count_shares(&mut self, offset: u64, len: u64) {
        let mut from = offset;
        while from < offset + len {
            let sau = sau_of(from);
            let end = (offset + len).min((from / SAU_BYTES + 1) * SAU_BYTES);
            match self.shares.iter_mut().find(|(one, ..)| *one == sau) {
                Some((_, bytes, used)) => (*bytes, *used) = (*bytes + (end - from), self.requests),
                None => {
                    if self.shares.len() == SHARES {
                        let idle = (0..SHARES).min_by_key(|at| self.shares[*at].2).unwrap_or(0);
                        self.shares.swap_remove(idle);
                    }
                    self.shares.push((sau, end - from, self.requests));
                }
            }
            from = end;
        }
    }

    /// Notes the SAUs that a request has the first byte of. Was one of them read from there before?
    fn pass(&mut self, offset: u64, len: u64) -> bool {
        let mut again = false;
        let first = offset.div_ceil(SAU_BYTES);
        let end = (offset + len).div_ceil(SAU_BYTES);
        for sau in first..end {
            let (word, bit) = ((sau / 64) as usize, 1u64 << (sau % 64));
            if self.passed.len() <= word {
                self.passed.resize(word + 1, 0);
            }
            again |= self.passed[word] & bit != 0;
            self.passed[word] |= bit;
        }
        again
    }
}

impl Stream {
    fn is_sequential(&self) -> bool {
        self.run >= BEGINS && (self.from_start || self.in_run >= 2)
    }

    /// One request, and nothing is known of the next.
    fn is_fresh(&self) -> bool {
        self.in_run == 1 && self.steps == 0
    }

    /// Equal steps that leave out no more than they take.
    fn is_stepping(&self, len: u64) -> bool {
        let step = self.step.unsigned_abs();
        let far = step.saturating_mul(u64::from(self.steps)) >= BEGINS;
        self.steps >= STEPS && far && self.step != len.cast_signed() && len * 2 >= step.min(SAU_BYTES)
    }

    /// Two requests that came in the other order.
    fn is_before(&self, offset: u64, len: u64) -> bool {
        self.is_fresh() && offset + len == self.last
    }

    fn goes_on(&self, offset: u64, len: u64) -> bool {
        let near = self.run >= AROUND && offset + AROUND >= self.next && offset <= self.next + AROUND;
        self.in_run == 0 || offset == self.next || near || self.is_before(offset, len)
    }

    fn follow(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        let step = offset.cast_signed().wrapping_sub(self.last.cast_signed());
        if self.is_before(offset, len) {
            (self.run, self.in_run, self.from_start) = (self.run + len, 2, offset == 0);
        } else if self.goes_on(offset, len) {
            let before = sau_of(self.next.saturating_sub(1));
            self.run += end.saturating_sub(self.next);
            self.next = self.next.max(end);
            self.in_run = self.in_run.saturating_add(1);
            let entered = self.in_run > 1 && sau_of(self.next - 1) > before;
            let known = self.from_start || self.run > AROUND;
            if self.is_sequential() && known && (entered || self.window == 0) {
                self.window = (self.window * 2).max(1);
            }
        } else {
            // Elsewhere: what went on before did not go on.
            (self.run, self.next, self.in_run) = (len, end, 1);
            (self.window, self.advised, self.from_start) = (0, 0, false);
        }
        if offset != self.last || self.in_run > 1 {
            self.steps = if step == self.step { self.steps.saturating_add(1) } else { 1 };
            self.step = step;
        }
        self.last = offset;
    }

    /// The SAUs of the window that were not advised yet.
    fn ahead(&mut self, last: u32, ahead_max: u32) -> Vec<u32> {
        let here = sau_of(self.next - 1);
        let end =
            here.saturating_add(1).saturating_add(self.window.min(ahead_max)).min(last.saturating_add(1));
        self.window = self.window.min(ahead_max.max(1));
        let first = self.advised.max(here + 1);
        self.advised = self.advised.max(end);
        (first..end).collect()
    }

    /// The SAUs of the next steps.
    fn steps_ahead(&self, len: u64, size: u64, ahead_max: u32) -> Vec<u32> {
        let mut ahead = Vec::new();
        let here = sau_of(self.last)..=sau_of(self.last + len - 1);
        let mut at = self.last;
        // A SAU may be several steps long; more of them are not looked at for one request.
        for _ in 0..ahead_max.saturating_mul(8) {
            let Some(next) = at.checked_add_signed(self.step).filter(|next| *next < size) else { break };
            at = next;
            for sau in sau_of(at)..=sau_of((at + len - 1).min(size - 1)) {
                if !here.contains(&sau) && !ahead.contains(&sau) {
                    ahead.push(sau);
                }
            }
            if ahead.len() >= ahead_max.min(self.steps / STEPS) as usize {
                break;
            }
        }
        ahead.truncate(ahead_max as usize);
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// Reads from front to back and collects what was advised: SAUs, in order.
    fn scan(core: &mut RunAhead, from: u64, to: u64, step: u64, size: u64) -> Vec<u32> {
        let mut advised = Vec::new();
        let mut at = from;
        while at < to {
            let advice = core.read(at, step, size);
            if advice.here {
                advised.extend(
                    (sau_of(at)..=sau_of(at + step - 1))
                        .filter(|sau| !advised.contains(sau))
                        .collect::<Vec<_>>(),
                );
            }
            advised.extend(advice.ahead.into_iter().filter(|sau| !advised.contains(sau)).collect::<Vec<_>>());
            at += step;
        }
        advised
    }

    #[test]
    fn a_reader_from_front_to_back_is_run_ahead_of_by_a_growing_window() {
        // Goal: all is fetched, in order, and each SAU before it is read; the window doubles up to its bound. Method: by hand.
        let mut core = RunAhead::new(8);
        let first = core.read(0, 256 * KIB, GIB);
        assert!(first.here && first.ahead == [1] && !first.again);
        let mut windows = Vec::new();
        for n in 1..256 {
            let at = n * 256 * KIB;
            let advice = core.read(at, 256 * KIB, GIB);
            assert!(advice.here);
            if !advice.ahead.is_empty() {
                windows.push((at / MIB, advice.ahead));
            }
        }
        let lens: Vec<usize> = windows.iter().map(|(_, ahead)| ahead.len()).take(5).collect();
        assert_eq!(lens, [2, 3, 5, 1, 1], "{windows:?}");
        let all: Vec<u32> = windows.into_iter().flat_map(|(_, ahead)| ahead).collect();
        assert_eq!(all, (2..24).collect::<Vec<u32>>());
    }

    #[test]
    fn a_look_at_the_beginning_fetches_nothing_and_a_small_file_is_fetched_whole() {
        // Goal: `file` and `head` cost what they read; small files come whole. Method: first requests as the kernel makes them.
        assert_eq!(RunAhead::new(8).read(0, 16 * KIB, GIB), Advice::default());
        assert_eq!(RunAhead::new(8).read(0, 16 * KIB, 3 * MIB), Advice { here: true, ..Advice::default() });
        assert!(RunAhead::new(8).read(MIB, 4 * KIB, 4 * MIB).here);
        // Who goes on in small requests is found soon.
        let mut core = RunAhead::new(8);
        let found = (0..100).find(|n| core.read(n * 16 * KIB, 16 * KIB, GIB).here).unwrap();
        assert_eq!(found * 16 * KIB, BEGINS - 16 * KIB);
        assert_eq!(RunAhead::new(8).read(GIB, 10, GIB), Advice::default());
        assert_eq!(RunAhead::new(8).read(0, 10, 0), Advice::default());
    }

    #[test]
    fn who_begins_in_the_middle_is_run_ahead_of_only_after_more_than_the_kernel_reads_around_a_page() {
        // Goal: a fault of a mapping, which the kernel makes two requests of 1 MiB of, fetches no SAU behind. Method: by hand.
        let mut core = RunAhead::new(8);
        let at = 100 * SAU_BYTES;
        assert_eq!(core.read(at, MIB, GIB), Advice::default());
        let second = core.read(at + MIB, MIB, GIB);
        assert!(second.here && second.ahead.is_empty());
        assert_eq!(core.read(at + 2 * MIB, MIB, GIB).ahead, [101]);
    }

    #[test]
    fn small_random_reads_are_served_as_they_are_until_half_of_a_sau_was_asked_for() {
        // Goal: no amplification. Method: far apart; then all within one SAU.
        let mut core = RunAhead::new(8);
        let mut at = 12345u64;
        for _ in 0..1000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let advice = core.read((at >> 20) % (GIB / 4096) * 4096, 4096, GIB);
            assert!(!advice.here && advice.ahead.is_empty());
        }
        let mut core = RunAhead::new(8);
        let places: Vec<u64> = (0..1024).map(|n| n * 389 % 1024).collect();
        let found = places.iter().position(|n| core.read(GIB / 2 + n * 4096, 4096, GIB).here).unwrap();
        assert_eq!(found, 511);
    }

    #[test]
    fn several_readers_of_one_file_are_several_streams() {
        // Goal: readers that take turns are each run ahead of. Method: four, far from each other, 1 MiB each in turn.
        let mut core = RunAhead::new(4);
        let mut advised: BTreeSet<u32> = BTreeSet::new();
        for n in 0..64 {
            for reader in 0..4 {
                let advice = core.read(reader * GIB + n * MIB, MIB, 4 * GIB);
                assert!(n < 3 || advice.here, "reader {reader} at {n}");
                advised.extend(advice.ahead);
            }
        }
        for reader in 0..4u32 {
            assert!((2..20).all(|sau| advised.contains(&(reader * 256 + sau))), "{advised:?}");
        }
    }

    #[test]
    fn requests_that_come_again_or_in_another_order_do_not_end_a_stream() {
        // Goal: the kernel's readahead is one stream, also when its requests pass each other, and each comes twice.
        let mut core = RunAhead::new(8);
        let mut advised = BTreeSet::new();
        for pair in 0..40 {
            for n in [2 * pair + 1, 2 * pair] {
                let first = core.read(n * MIB, MIB, GIB);
                let second = core.read(n * MIB, MIB, GIB);
                assert!(second.ahead.is_empty() && !second.again);
                advised.extend(first.ahead);
            }
        }
        assert!((5..20).all(|sau| advised.contains(&sau)), "{advised:?}");
        assert!(advised.last() <= Some(&(20 + 8)));
    }

    #[test]
    fn equal_steps_are_found_forwards_and_backwards_if_they_leave_out_little() {
        // Goal: backwards and strided readers are run ahead of; sparse ones are not. Method: by hand.
        let mut core = RunAhead::new(4);
        let mut backwards = Vec::new();
        for n in (0..64).rev() {
            backwards.extend(core.read(n * MIB, MIB, 64 * MIB).ahead);
        }
        assert!((0..10).all(|sau| backwards.contains(&sau)), "{backwards:?}");
        let mut core = RunAhead::new(4);
        let mut every_third = BTreeSet::new();
        for n in 0..20 {
            every_third.extend(core.read((n + 1) * 3 * SAU_BYTES, SAU_BYTES, GIB).ahead);
        }
        assert!(every_third.iter().all(|sau| sau % 3 == 0) && every_third.len() > 10, "{every_third:?}");
        let mut core = RunAhead::new(4);
        for n in 0..20 {
            let advice = core.read(n * 3 * SAU_BYTES, 64 * KIB, GIB);
            assert_eq!((advice.here, advice.ahead.len()), (false, 0));
        }
    }

    #[test]
    fn a_second_pass_is_told() {
        let mut core = RunAhead::new(4);
        assert!((0..16).all(|n| !core.read(n * MIB, MIB, 16 * MIB).again));
        // The request that could not be served at once is no second pass.
        assert!(!core.read(15 * MIB, MIB, 16 * MIB).again);
        let mut core = RunAhead::new(4);
        scan(&mut core, 0, 64 * MIB, MIB, 64 * MIB);
        assert!(core.read(0, MIB, 64 * MIB).again && !core.read(MIB, MIB, 64 * MIB).again);
        assert!(core.read(4 * MIB, MIB, 64 * MIB).again);
    }

    proptest! {
        /// Goal: whatever is asked, advice is within the file and the bound, and what random readers ask for is at least half of what
        /// they have fetched. Method: random requests; those that are far from all others count as random.
        #[test]
        fn advice_is_bounded(reads in prop::collection::vec((0..2048u64, 1..64u64), 1..200), ahead_max in 1..9u32) {
            let size = 2000 * 64 * KIB + 77;
            let mut core = RunAhead::new(ahead_max);
            for (at, len) in reads {
                let advice = core.read(at * 64 * KIB, len * 16 * KIB, size);
                prop_assert!(advice.ahead.len() <= ahead_max as usize);
                prop_assert!(advice.ahead.iter().all(|sau| u64::from(*sau) * SAU_BYTES < size));
                prop_assert!(core.streams.len() <= STREAMS && core.shares.len() <= SHARES);
            }
        }

        /// Goal: from front to back every SAU is advised before the reader leaves it, whatever the size of his requests.
        #[test]
        fn nothing_of_a_scan_is_left_out(step in 1..64u64, saus in 1..20u64, rest in 0..MIB) {
            let size = saus * SAU_BYTES + rest;
            let mut core = RunAhead::new(8);
            let advised: BTreeSet<u32> = scan(&mut core, 0, size, step * 16 * KIB, size).into_iter().collect();
            let last = sau_of(size - 1);
            prop_assert!((0..last).all(|sau| advised.contains(&sau)));
            prop_assert!(advised.iter().all(|sau| *sau <= last) || step * 16 * KIB > rest);
        }
    }
}
