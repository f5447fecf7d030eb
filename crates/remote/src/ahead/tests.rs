//! Goal: what is found is what the file has, whatever is read, changed, asked back, lost or overtaken, and in whatever order; what is asked for is bounded.
//! Method: single histories, and a model: a file, openings of it, and a server whose answers are made at one time and come at another.
use proptest::prelude::*;

use super::*;

const GRAIN: u64 = 16;
const LIMIT: u64 = 128;

fn ino() -> Ino {
    Ino::from_raw(9).unwrap()
}

fn of(opening: u64) -> Of {
    (ino(), opening)
}

fn ranges(fetches: &[Fetch]) -> Vec<(u64, u64)> {
    fetches.iter().map(|fetch| (fetch.from, fetch.len)).collect()
}

/// All of it comes, as the file has it.
fn come(ahead: &mut Ahead<Vec<u8>>, fetches: &[Fetch], file: &[u8]) {
    for fetch in fetches {
        let bytes = file.get(fetch.from as usize..(fetch.from + fetch.len) as usize);
        ahead.came(fetch.number, bytes.map(<[u8]>::to_vec));
    }
}

fn bytes_of(pieces: &[Piece<Vec<u8>>]) -> Vec<u8> {
    pieces.iter().flat_map(|(bytes, range)| bytes[range.clone()].to_vec()).collect()
}

fn file(len: u64) -> Vec<u8> {
    (0..len).map(|n| n as u8).collect()
}

/// A run of reads of that length, each found or not.
fn run(
    ahead: &mut Ahead<Vec<u8>>,
    file: &[u8],
    opening: u64,
    reads: std::ops::Range<u64>,
    len: u64,
) -> Vec<bool> {
    reads
        .map(|n| {
            let fetches = ahead.read(of(opening), 1, (n * len, len), GRAIN);
            come(ahead, &fetches, file);
            match ahead.find(of(opening), 1, (n * len, len)) {
                Step::Found(pieces) => {
                    assert_eq!(bytes_of(&pieces), file[(n * len) as usize..((n + 1) * len) as usize]);
                    true
                }
                Step::Wait(_) => panic!("all has come"),
                Step::No => false,
            }
        })
        .collect()
}

#[test]
fn from_the_second_read_in_a_row_on_all_is_found() {
    let (mut ahead, file) = (Ahead::new(1 << 20), file(2000));
    assert_eq!(ahead.read(of(1), 1, (0, 16), GRAIN), []);
    let fetches = ahead.read(of(1), 1, (16, 16), GRAIN);
    assert_eq!(ranges(&fetches), [(16, 16), (32, 16), (48, 16)], "its own, and as much as was read");
    assert_eq!(ahead.find(of(1), 1, (16, 16)), Step::Wait(fetches[0].number));
    come(&mut ahead, &fetches, &file);
    assert!(matches!(ahead.find(of(1), 1, (16, 16)), Step::Found(_)));
    assert_eq!(run(&mut ahead, &file, 1, 2..60, 16), vec![true; 58]);
    // Buffers of programs that do not begin at a page: of each read a little comes by itself.
    let mut at = 16;
    ahead.read(of(2), 1, (0, 16), GRAIN);
    for len in [13, 3].into_iter().cycle().take(40) {
        assert!(ahead.follows(of(2), (at, len)), "{at}");
        let fetches = ahead.read(of(2), 1, (at, len), GRAIN);
        come(&mut ahead, &fetches, &file);
        assert!(matches!(ahead.find(of(2), 1, (at, len)), Step::Found(_)));
        at += len;
    }
    ahead.close(of(1));
    ahead.close(of(2));
    assert_eq!((ahead.counts().bytes, ahead.runs.len()), (0, 0));
}

#[test]
fn regression_the_short_rest_of_a_first_read_belongs_to_its_run() {
    let mut ahead: Ahead<Vec<u8>> = Ahead::new(1 << 20);
    ahead.read(of(1), 1, (0, 13), GRAIN);
    assert!(ahead.follows(of(1), (13, 3)) && !ahead.follows(of(1), (14, 3)));
    assert!(!ahead.read(of(1), 1, (13, 3), GRAIN).is_empty());
    assert!(ahead.follows(of(1), (16, 13)));
}

#[test]
fn who_reads_here_and_there_has_nothing_asked_for() {
    let mut ahead: Ahead<Vec<u8>> = Ahead::new(1 << 20);
    for offset in [0, 160, 32, 320, 0, 48] {
        assert_eq!(ahead.read(of(1), 1, (offset, 16), GRAIN), []);
    }
    assert_eq!(ahead.counts(), AheadCounts::default());
    // Nor where no block is of use.
    assert_eq!(ahead.read(of(1), 1, (64, 16), 0), []);
}

#[test]
fn what_is_short_or_fails_is_asked_for_by_who_reads_it() {
    let (mut ahead, file) = (Ahead::new(1 << 20), file(100));
    let found = run(&mut ahead, &file[..90], 1, 0..5, 16);
    assert_eq!(found, [false, true, true, true, true]);
    // At the end, and behind it, nothing more is asked for.
    for (offset, len) in [(80, 16), (90, 16)] {
        assert_eq!(ahead.read(of(1), 1, (offset, len), GRAIN), []);
        assert_eq!(ahead.find(of(1), 1, (offset, len)), Step::No);
    }
    assert_eq!(ahead.counts().bytes, 0);
    // An error in the middle is passed by.
    assert!(ahead.read(of(2), 1, (0, 16), GRAIN).is_empty());
    let fetches = ahead.read(of(2), 1, (16, 16), GRAIN);
    ahead.came(fetches[0].number, None);
    assert_eq!(ahead.find(of(2), 1, (16, 16)), Step::No);
    come(&mut ahead, &fetches[1..], &file);
    assert_eq!(run(&mut ahead, &file, 2, 2..5, 16), [true; 3]);
}

#[test]
fn openings_share_what_there_is() {
    let (mut ahead, file) = (Ahead::new(LIMIT), file(2000));
    for opening in 1..20 {
        assert_eq!(run(&mut ahead, &file, opening, 0..6, 16)[1..], [true; 5], "who reads has some");
        assert!(ahead.counts().bytes <= LIMIT);
    }
    // What is on its way is nobody's to take.
    let mut ahead: Ahead<Vec<u8>> = Ahead::new(LIMIT);
    for opening in 1..10 {
        ahead.read(of(opening), 1, (0, 32), GRAIN);
        ahead.read(of(opening), 1, (32, 32), GRAIN);
        ahead.close(of(opening));
        assert!(ahead.counts().bytes <= LIMIT);
    }
    assert_eq!(ahead.counts().bytes, LIMIT);
    (1..=ahead.number).for_each(|number| ahead.came(number, Some(Vec::new())));
    assert_eq!((ahead.counts().bytes, ahead.asked.len()), (0, 0));
}

#[test]
fn what_another_part_of_the_file_is_changed_for_stays() {
    let (mut ahead, file) = (Ahead::new(1 << 20), file(200));
    run(&mut ahead, &file, 1, 0..3, 16);
    for change in [0..16, 150..160] {
        ahead.begin_change(ino(), &change);
        assert!(matches!(ahead.find(of(1), 1, (48, 1)), Step::Found(_)));
        ahead.end_change(ino(), &change);
    }
    ahead.begin_change(ino(), &(50..51));
    assert_eq!(ahead.find(of(1), 1, (48, 1)), Step::No);
    assert_eq!(ahead.read(of(1), 1, (48, 16), GRAIN), [], "until it has ended");
    ahead.end_change(ino(), &(50..51));
    assert!(!ahead.read(of(1), 1, (64, 16), GRAIN).is_empty());
}

#[test]
fn under_another_lease_nothing_is_found_and_it_begins_again() {
    let (mut ahead, file) = (Ahead::new(1 << 20), file(200));
    run(&mut ahead, &file, 1, 0..3, 16);
    assert_eq!(ahead.find(of(1), 2, (48, 16)), Step::No);
    assert_eq!(ahead.read(of(1), 2, (48, 16), GRAIN), []);
    let fetches = ahead.read(of(1), 2, (64, 16), GRAIN);
    come(&mut ahead, &fetches, &file);
    assert!(matches!(ahead.find(of(1), 2, (64, 16)), Step::Found(_)));
    // And when it is another one for who waits.
    let fetches = ahead.read(of(1), 2, (80, 40), GRAIN);
    come(&mut ahead, &fetches, &file);
    assert_eq!(ahead.find(of(1), 3, (80, 16)), Step::No);
}

/// Records of that length and distance, each found or not.
fn records(
    ahead: &mut Ahead<Vec<u8>>,
    file: &[u8],
    reads: std::ops::Range<u64>,
    (len, step): (u64, u64),
) -> Vec<bool> {
    let mut read = |at| {
        if ahead.follows(of(1), (at, len)) {
            let fetches = ahead.read(of(1), 1, (at, len), GRAIN);
            come(ahead, &fetches, file);
        } else {
            ahead.note(of(1), (at, len));
        }
        match ahead.find(of(1), 1, (at, len)) {
            Step::Found(pieces) => {
                assert_eq!(bytes_of(&pieces), file[at as usize..(at + len) as usize]);
                true
            }
            Step::Wait(_) => panic!("all has come"),
            Step::No => false,
        }
    };
    reads.map(|n| read(n * step)).collect()
}

#[test]
fn records_at_a_constant_distance_are_found_from_the_third_on() {
    // What lies between them is worth reading, or not.
    for (len, step) in [(5, 11), (5, 20), (5, 21), (3, 190), (40, 90)] {
        let (mut ahead, file) = (Ahead::new(1 << 20), file(20 * 190));
        let found = records(&mut ahead, &file, 0..19, (len, step));
        assert_eq!(found[..2], [false; 2], "{len} {step}");
        assert_eq!(found[2..], [true; 17], "{len} {step}");
        // Up to the window's end each block once; or each record, in one or two.
        let most = if step <= 4 * len { 2 * (19 * step).div_ceil(GRAIN) + 2 } else { 2 * (19 + RECORDS_MAX) };
        assert!(ahead.counts().asked <= most, "{} of {most}", ahead.counts().asked);
        ahead.close(of(1));
        assert_eq!(ahead.counts().bytes, 0);
    }
}

#[test]
fn of_records_that_are_changed_only_they_are_asked_for() {
    let (mut ahead, file, len, step) = (Ahead::new(1 << 20), file(4000), 5, 11);
    records(&mut ahead, &file, 0..5, (len, step));
    let mut asked = 0;
    for n in 5..60 {
        let at = n * step;
        ahead.begin_change(ino(), &(at - step..at - step + len));
        ahead.end_change(ino(), &(at - step..at - step + len));
        let fetches = ahead.read(of(1), 1, (at, len), GRAIN);
        asked += fetches.iter().map(|fetch| fetch.len).sum::<u64>();
        come(&mut ahead, &fetches, &file);
        assert!(matches!(ahead.find(of(1), 1, (at, len)), Step::Found(_)), "{n}");
    }
    assert!(asked <= (55 + RECORDS_MAX) * len, "{asked}");
}

#[test]
fn where_there_is_no_room_for_blocks_records_are_asked_for_by_themselves() {
    let (mut ahead, file, len, step, openings) = (Ahead::new(LIMIT), file(4000), 5, 11, 12);
    let (mut asked, mut read) = (0, 0);
    for n in 0..300 {
        for opening in 1..=openings {
            let range = (n * step, len);
            if !ahead.follows(of(opening), range) {
                ahead.note(of(opening), range);
                continue;
            }
            let fetches = ahead.read(of(opening), 1, range, GRAIN);
            asked += fetches.iter().map(|fetch| fetch.len).sum::<u64>();
            come(&mut ahead, &fetches, &file);
            ahead.find(of(opening), 1, range);
            read += len;
            assert!(ahead.counts().bytes <= LIMIT);
        }
    }
    assert!(asked <= 6 * read, "{asked} for {read}");
}

#[test]
fn records_go_on_under_another_lease_with_nothing_from_before() {
    let (mut ahead, file) = (Ahead::new(1 << 20), file(400));
    records(&mut ahead, &file, 0..5, (5, 11));
    let fetches = ahead.read(of(1), 2, (55, 5), GRAIN);
    assert_eq!(ranges(&fetches)[0], (55, 9), "its own is asked for again");
    assert_eq!(ahead.find(of(1), 1, (55, 5)), Step::No);
    assert!(matches!(ahead.find(of(1), 2, (55, 5)), Step::Wait(_)));
    come(&mut ahead, &fetches, &file);
    assert!(matches!(ahead.find(of(1), 2, (55, 5)), Step::Found(_)));
}

#[derive(Clone, Debug)]
enum Act {
    Read {
        opening: u64,
        offset: u64,
        len: u64,
    },
    /// The read that follows the last one of the opening.
    Next {
        opening: u64,
        len: u64,
    },
    /// The record at a distance from there.
    Record {
        opening: u64,
        step: u64,
    },
    /// A server makes the answer to one of those it was asked for.
    Serve(usize),
    Come {
        which: usize,
        whole: bool,
    },
    /// Ahead of where the opening is read.
    Begin {
        opening: u64,
        by: u64,
        len: u64,
    },
    Apply(usize),
    End(usize),
    /// Another mount changes it: the lease goes, in order or because its term is over.
    Other {
        opening: u64,
        by: u64,
        recalled: bool,
    },
    Cut(u64),
    Close(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let (opening, offset, which) = (0..2_u64, 0..300_u64, 0..100_usize);
    prop_oneof![
        1 => (opening.clone(), offset, 1..50_u64).prop_map(|(opening, offset, len)| Act::Read { opening, offset, len }),
        12 => (opening.clone(), 1..24_u64).prop_map(|(opening, len)| Act::Next { opening, len }),
        12 => (opening.clone(), prop_oneof![8 => Just(13_u64), 4 => Just(60_u64), 1 => 1..80_u64]).prop_map(|(opening, step)| Act::Record { opening, step }),
        12 => which.clone().prop_map(Act::Serve),
        12 => (which.clone(), prop::bool::weighted(0.9)).prop_map(|(which, whole)| Act::Come { which, whole }),
        1 => (opening.clone(), 0..50_u64, 1..40_u64).prop_map(|(opening, by, len)| Act::Begin { opening, by, len }),
        1 => which.clone().prop_map(Act::Apply),
        1 => which.prop_map(Act::End),
        1 => (opening.clone(), 0..50_u64, any::<bool>()).prop_map(|(opening, by, recalled)| Act::Other { opening, by, recalled }),
        1 => (200..400_u64).prop_map(Act::Cut),
        1 => opening.prop_map(Act::Close),
    ]
}

struct Model {
    ahead: Ahead<Vec<u8>>,
    file: Vec<u8>,
    lease: u64,
    next: [u64; 3],
    version: u8,
    /// With what its answer is, once that is made.
    asked: Vec<(Fetch, Option<Vec<u8>>)>,
    changing: Vec<std::ops::Range<u64>>,
}

impl Model {
    fn new() -> Model {
        let (ahead, asked, changing) = (Ahead::new(LIMIT), Vec::new(), Vec::new());
        Model { ahead, file: file(400), lease: 1, next: [0; 3], version: 0, asked, changing }
    }

    fn part(&self, from: u64, len: u64) -> Vec<u8> {
        let at = |at: u64| self.file.len().min(at as usize);
        self.file[at(from)..at(from + len)].to_vec()
    }

    fn write(&mut self, range: std::ops::Range<u64>) {
        self.version = self.version.wrapping_add(1);
        let end = self.file.len().max(range.end as usize);
        self.file.resize(end, 0);
        self.file[range.start as usize..range.end as usize].fill(self.version);
    }

    fn read(&mut self, opening: u64, offset: u64, len: u64) {
        self.next[opening as usize] = offset + len;
        let fetches = self.ahead.read(of(opening), self.lease, (offset, len), GRAIN);
        for fetch in fetches {
            assert!(!self.changing.iter().any(|one| overlap(one, &(fetch.from..fetch.from + fetch.len))));
            self.asked.push((fetch, None));
        }
        match self.ahead.find(of(opening), self.lease, (offset, len)) {
            Step::Found(pieces) => {
                assert_eq!(bytes_of(&pieces), self.part(offset, len), "{offset} {len}");
                assert!(!self.changing.iter().any(|one| overlap(one, &(offset..offset + len))));
            }
            Step::Wait(number) => assert!(self.ahead.is_asked(number), "somebody wakes who waits"),
            Step::No => (),
        }
    }

    fn come(&mut self, which: usize, whole: bool) {
        let served: Vec<usize> = (0..self.asked.len()).filter(|n| self.asked[*n].1.is_some()).collect();
        let Some(n) = served.get(which % served.len().max(1)) else { return };
        let (fetch, bytes) = self.asked.swap_remove(*n);
        let bytes = bytes.filter(|bytes| whole && bytes.len() as u64 == fetch.len);
        self.ahead.came(fetch.number, bytes);
        assert!(!self.ahead.is_asked(fetch.number));
    }

    fn step(&mut self, act: Act) {
        match act {
            Act::Read { opening, offset, len } => self.read(opening, offset, len),
            Act::Next { opening, len } => {
                // From the beginning again, behind the end.
                let next = self.next[opening as usize];
                self.read(opening, if next < self.file.len() as u64 { next } else { 0 }, len);
            }
            Act::Record { opening, step } => {
                let next = self.next[opening as usize];
                let at = if next < self.file.len() as u64 { next + step.saturating_sub(6) } else { 0 };
                if self.ahead.follows(of(opening), (at, 6)) || step == 60 {
                    self.read(opening, at, 6);
                } else {
                    self.next[opening as usize] = at + 6;
                    self.ahead.note(of(opening), (at, 6));
                }
            }
            Act::Serve(which) => {
                if let Some(n) = which.checked_rem(self.asked.len()) {
                    let Fetch { from, len, .. } = self.asked[n].0;
                    let bytes = self.part(from, len);
                    self.asked[n].1.get_or_insert(bytes);
                }
            }
            Act::Come { which, whole } => self.come(which, whole),
            Act::Begin { opening, by, len } => {
                let offset = self.next[opening as usize] + by;
                self.ahead.begin_change(ino(), &(offset..offset + len));
                self.changing.push(offset..offset + len);
            }
            Act::Apply(which) => {
                if let Some(n) = which.checked_rem(self.changing.len()) {
                    self.write(self.changing[n].clone());
                }
            }
            Act::End(which) => {
                if let Some(n) = which.checked_rem(self.changing.len()) {
                    let range = self.changing.swap_remove(n);
                    self.ahead.end_change(ino(), &range);
                }
            }
            Act::Other { opening, by, recalled } => {
                if recalled {
                    self.ahead.forget(ino());
                }
                self.lease += 1;
                let offset = self.next[opening as usize] + by;
                self.write(offset..offset + 30);
            }
            Act::Cut(size) => {
                self.ahead.begin_change(ino(), &(0..u64::MAX));
                self.file.resize(size as usize, 0);
                self.ahead.end_change(ino(), &(0..u64::MAX));
            }
            Act::Close(opening) => self.ahead.close(of(opening)),
        }
        let there: u64 = self.ahead.runs.values().flat_map(|run| &run.blocks).map(held).sum();
        let on_the_way: u64 = self.ahead.asked.values().map(|(_, range)| range.end - range.start).sum();
        assert_eq!(self.ahead.bytes, there + on_the_way);
        assert!(self.ahead.bytes <= LIMIT);
    }
}

fn held((from, block): (&u64, &Block<Vec<u8>>)) -> u64 {
    match block.state {
        State::There(_) => block.to - from,
        State::Asked(_) | State::Lacking => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn what_is_found_is_what_the_file_has(acts in prop::collection::vec(act(), 1..300)) {
        let mut model = Model::new();
        acts.into_iter().for_each(|act| model.step(act));
        while !model.asked.is_empty() {
            model.step(Act::Serve(0));
            model.step(Act::Come { which: 0, whole: true });
        }
        (0..3).for_each(|opening| model.ahead.close(of(opening)));
        prop_assert_eq!(model.ahead.counts().bytes, 0);
    }
}
