//! Goal: what is found is what the file has, whatever is read, changed, asked back or overtaken, and in whatever order; no more is kept than may be.
//! Method: a model: a file, a mount, and reads of its data servers whose answers come late; every step of random histories.
use super::*;

/// xorshift.
struct Choices(u64);

impl Choices {
    fn new(seed: u64) -> Choices {
        Choices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

const FILE: u64 = 9;

fn ino() -> Ino {
    Ino::from_raw(FILE).unwrap()
}

fn chunks(bytes: &[u8]) -> Vec<Arc<[u8]>> {
    bytes.chunks(CHUNK as usize).map(Arc::from).collect()
}

fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(|(bytes, range)| bytes[range.clone()].to_vec()).collect()
}

fn part(file: &[u8], offset: u64, len: u64) -> &[u8] {
    let at = |at: u64| file.len().min(at as usize);
    &file[at(offset)..at(offset + len)]
}

/// Fills what is asked for from the file.
fn read(
    pages: &mut Pages,
    file: &[u8],
    lease: u64,
    (offset, len): (u64, u64),
    want: u64,
) -> (Vec<u8>, Vec<u64>) {
    let mut fetched = Vec::new();
    for _ in 0..100 {
        match pages.step((ino(), lease), offset, len, want) {
            Step::Found(pieces) => return (bytes_of(&pieces), fetched),
            Step::Fetch(fetch) => {
                let bytes = part(file, fetch.from, fetch.len);
                fetched.push(fetch.len);
                assert!(pages.fill(&fetch, bytes.len() as u64, chunks(bytes)));
            }
            Step::Wait | Step::Pass => panic!("nobody else is there"),
        }
    }
    panic!("it is never found")
}

#[test]
fn what_was_read_is_found() {
    let mut pages = Pages::new(8 << 20).unwrap();
    let file: Vec<u8> = (0..(CHUNK * 3 + 100) as u32).map(|n| n as u8).collect();
    let (got, fetched) = read(&mut pages, &file, 1, (0, 4096), 2 * CHUNK);
    assert_eq!((got, fetched), (file[..4096].to_vec(), vec![2 * CHUNK]));
    // Across the border of what is there, and at the end.
    let (got, fetched) = read(&mut pages, &file, 1, (2 * CHUNK - 10, 20), 20);
    assert_eq!((&got[..], fetched), (part(&file, 2 * CHUNK - 10, 20), vec![CHUNK]));
    let (got, fetched) = read(&mut pages, &file, 1, (CHUNK, 10 * CHUNK), 0);
    assert_eq!(
        (&got[..], fetched),
        (part(&file, CHUNK, 10 * CHUNK), vec![8 * CHUNK]),
        "the end is not known yet"
    );
    let (got, fetched) = read(&mut pages, &file, 1, (CHUNK, 10 * CHUNK), 0);
    assert_eq!((&got[..], fetched), (part(&file, CHUNK, 10 * CHUNK), vec![]));
    assert_eq!(read(&mut pages, &file, 1, (1 << 40, 10), 0), (vec![], vec![]), "behind the end");
    assert!(pages.peek((ino(), 1), 0, 100).is_some() && pages.peek((ino(), 2), 0, 100).is_none());
    // Under another lease nothing is.
    let (_, fetched) = read(&mut pages, &file, 2, (0, 10), 0);
    assert_eq!(fetched, [CHUNK]);
    pages.forget(ino());
    assert_eq!((pages.counts().bytes, pages.files.len()), (0, 0));
}

#[test]
fn no_more_is_kept_than_may_be() {
    let bytes = 40 * CHUNK;
    let mut pages = Pages::new(bytes).unwrap();
    let file = vec![7; 200 * CHUNK as usize];
    for n in 0..200 {
        read(&mut pages, &file, 1, (n * CHUNK, 10), 0);
        assert!(pages.counts().bytes <= bytes);
        let kept: usize = pages.files.values().map(|file| file.chunks.len()).sum();
        assert_eq!(kept, pages.cache.len(), "what went is not counted on");
    }
    assert!(pages.counts().bytes > bytes / 2);
    assert!(Pages::new(CHUNK - 1).is_none());
}

#[test]
fn two_readers_of_the_same_ask_once_and_what_is_overtaken_is_not_kept() {
    let mut pages = Pages::new(8 << 20).unwrap();
    let file = vec![1; 2 * CHUNK as usize];
    let overtake: [fn(&mut Pages); 3] = [
        |pages| pages.forget(ino()),
        |pages| {
            pages.begin_change(ino(), Some(0..1));
            pages.end_change(ino());
        },
        |pages| {
            pages.file(ino(), 8);
        },
    ];
    for overtake in overtake {
        pages.forget(ino());
        let Step::Fetch(fetch) = pages.step((ino(), 1), 0, 10, 0) else { panic!("nothing is there") };
        assert!(matches!(pages.step((ino(), 1), 5, 10, 0), Step::Wait));
        overtake(&mut pages);
        assert!(!pages.fill(&fetch, CHUNK, chunks(&file[..CHUNK as usize])));
        assert!(matches!(pages.step((ino(), 1), 0, 10, 0), Step::Fetch(_)));
    }
    pages.forget(ino());
    let Step::Fetch(fetch) = pages.step((ino(), 1), 0, 10, 0) else { panic!("nothing is there") };
    pages.failed(&fetch);
    let Step::Fetch(fetch) = pages.step((ino(), 1), 0, 10, 0) else { panic!("it failed") };
    pages.begin_change(ino(), Some(0..1));
    assert!(matches!(pages.step((ino(), 1), 0, 10, 0), Step::Pass), "it is being changed");
    assert!(pages.ahead((ino(), 1), 0..10).is_none());
    pages.end_change(ino());
    pages.failed(&fetch);
    assert!(pages.files.is_empty());
}

#[test]
fn runs_are_read_ahead_and_reads_here_and_there_are_not() {
    let mut run = Run::default();
    let (mut asked, mut at) = (0, 0);
    for _ in 0..4096u64 {
        let (want, ahead) = run.read(at, 4096);
        assert!((FIRST..=FETCH_MAX).contains(&want));
        at += 4096;
        if let Some(ahead) = ahead {
            assert!(ahead.start >= at && ahead.end <= at + WINDOW_MAX && ahead.end - ahead.start >= FIRST);
            asked += 1;
        }
    }
    assert!((5..20).contains(&asked), "{asked} times for 16 MiB");
    let mut run = Run::default();
    for at in [7u64, 1 << 20, 5 << 20, 3 << 20, 4096] {
        assert_eq!(run.read(at, 4096), (4096, None));
    }
}

/// A write of this mount that the data servers have, or not yet; and reads of theirs that are under way.
#[test]
fn what_is_found_was_true_during_the_read() {
    let histories = std::env::var("PAGES_SEEDS").map_or(300, |text| text.parse().unwrap());
    for seed in 0..histories {
        let mut random = Choices::new(seed);
        // Small ones, so that something goes.
        let mut pages = Pages::new(6 * CHUNK).unwrap();
        let mut file: Vec<u8> = vec![0; (random.below(5 * CHUNK)) as usize];
        let (mut lease, mut stands, mut stamp) = (1, true, 0u8);
        // What a data server answered, on its way.
        let mut flying: Vec<(Fetch, Vec<u8>)> = Vec::new();
        // Writes that have begun, carried out or not.
        let mut writing: Vec<(u64, u64, u8, bool)> = Vec::new();
        for _ in 0..300 {
            stamp = stamp.wrapping_add(1);
            let offset = random.below(6 * CHUNK);
            let len = 1 + random.below(2 * CHUNK);
            match random.below(10) {
                0..3 if stands => match pages.step((ino(), lease), offset, len, random.below(4 * CHUNK)) {
                    Step::Found(pieces) => {
                        // Nothing is under way but writes, of which a read may see what was there before or after; what is kept is what is there.
                        assert_eq!(bytes_of(&pieces), part(&file, offset, len), "seed {seed}");
                    }
                    Step::Fetch(fetch) => {
                        let bytes = part(&file, fetch.from, fetch.len).to_vec();
                        flying.push((fetch, bytes));
                    }
                    Step::Wait => assert!(!flying.is_empty(), "seed {seed}: nobody wakes it"),
                    Step::Pass => assert!(!writing.is_empty(), "seed {seed}"),
                },
                3 if stands => {
                    if let Some(fetch) = pages.ahead((ino(), lease), offset..offset + len) {
                        let bytes = part(&file, fetch.from, fetch.len).to_vec();
                        flying.push((fetch, bytes));
                    }
                }
                4 | 5 if !flying.is_empty() => {
                    let (fetch, bytes) = flying.swap_remove(random.below(flying.len() as u64) as usize);
                    pages.fill(&fetch, bytes.len() as u64, chunks(&bytes));
                }
                6 if !flying.is_empty() => {
                    let (fetch, _) = flying.swap_remove(random.below(flying.len() as u64) as usize);
                    pages.failed(&fetch);
                }
                7 if stands && writing.len() < 3 => {
                    let resizes = random.below(4) == 0;
                    pages.begin_change(ino(), if resizes { None } else { Some(offset..offset + len) });
                    writing.push((offset, len, stamp, resizes));
                }
                8 if !writing.is_empty() => {
                    let (offset, len, stamp, resizes) = writing.swap_remove(0);
                    if resizes {
                        file.resize(offset as usize, 0);
                    } else {
                        file.resize(file.len().max((offset + len) as usize), 0);
                        file[offset as usize..(offset + len) as usize].fill(stamp);
                    }
                    if random.below(2) == 0 {
                        // Its answer comes later; meanwhile the bytes are there.
                        let Step::Fetch(fetch) = pages.step((ino(), lease), 0, CHUNK, 0) else {
                            pages.end_change(ino());
                            continue;
                        };
                        flying.push((fetch, part(&file, 0, CHUNK).to_vec()));
                    }
                    pages.end_change(ino());
                }
                9 => {
                    // Others write it, and are done with it.
                    if stands {
                        if random.below(2) == 0 {
                            pages.forget(ino());
                        }
                        stands = false;
                    } else {
                        if random.below(2) == 0 {
                            file.resize(offset as usize, stamp);
                        }
                        file.fill(stamp);
                        (stands, lease) = (true, lease + 1);
                    }
                }
                _ => (),
            }
            assert!(pages.counts().bytes <= 6 * CHUNK);
        }
        flying.iter().for_each(|(fetch, _)| pages.failed(fetch));
        writing.iter().for_each(|_| pages.end_change(ino()));
        pages.clear();
        assert!(pages.files.is_empty() && pages.cache.is_empty(), "seed {seed}: something is left");
    }
}
