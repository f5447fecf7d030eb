//! Goal: what is read, sent and lost is what was written, in its order, whatever happens in between. Method: random writes, reads, sendings that end or
//! fail, rights that come and go, beside a plain array of bytes.
use super::*;

const INO: Ino = Ino::ROOT;
const SIZE: usize = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn right(now: Instant) -> Right {
    Right { ticket: crate::kept::Kept::default().ask(now), from: Source { node: 0, joined: 7 }, asked: now }
}

/// The file as programs see it, as its data servers have it, and what each byte's write was.
struct World {
    back: Back,
    now: Instant,
    seen: Vec<u8>,
    there: Vec<u8>,
    under_way: Option<Batch>,
}

impl World {
    fn new(max: u64) -> World {
        let now = Instant::now();
        let mut back = Back::new(max);
        assert!(back.asks(now, INO));
        back.answered(INO, Some(right(now)));
        World { back, now, seen: vec![0; SIZE], there: vec![0; SIZE], under_way: None }
    }

    fn right(&mut self) {
        self.now += RIGHT_LASTS;
        if self.back.asks(self.now, INO) {
            self.back.answered(INO, Some(right(self.now)));
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let at = At::Offset(offset as u64);
        let bytes = Bytes::copy_from_slice(bytes);
        let wrote = self.back.write(self.now, (INO, 1), (at, &bytes), |_| true);
        if let Some(Wrote::SendSome | Wrote::Wait { send: true }) = wrote {
            // It is sent whenever the test says so.
            self.back.unqueue(INO);
        }
        let kept = wrote.is_some();
        if kept {
            self.seen[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        kept
    }

    /// True: all is there.
    fn begin(&mut self) -> bool {
        let Some((until, _)) = self.back.until_now(INO) else { return true };
        match self.back.step(INO, until) {
            Step::Done => return true,
            Step::Wait => assert!(self.under_way.is_some(), "nobody waits for nobody"),
            Step::Send(batch) => {
                assert!(self.under_way.is_none(), "one at a time");
                self.under_way = Some(batch);
            }
        }
        false
    }

    /// It may have been carried out in part when it fails.
    fn end(&mut self, random: &mut Random, well: bool) {
        let Some(batch) = self.under_way.take() else { return };
        let mut last = 0;
        for (at, bytes) in &batch.pieces {
            assert!(*at >= last && bytes.len() <= crate::extents::PIECE_MAX, "in order, and none overlap");
            last = at + bytes.len() as u64;
            if well || random.below(2) == 0 {
                self.there[*at as usize..last as usize].copy_from_slice(bytes);
            }
        }
        if well {
            self.back.sent(INO);
        } else {
            self.back.failed(INO);
        }
    }

    fn send_all(&mut self, random: &mut Random) {
        self.end(random, true);
        while !self.begin() {
            self.end(random, true);
        }
    }
}

#[test]
fn what_is_kept_back_is_read_and_sent_as_it_was_written() {
    for seed in 1..300 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut world = World::new(3000);
        for n in 0..200 {
            match random.below(12) {
                0..5 => {
                    let offset = random.below(SIZE as u64 - 300) as usize;
                    let bytes = vec![n as u8 + 1; 1 + random.below(299) as usize];
                    if !world.write(offset, &bytes) {
                        // It is full, or has no right: whoever writes has all sent, and goes past.
                        world.send_all(&mut random);
                        world.seen[offset..offset + bytes.len()].copy_from_slice(&bytes);
                        world.there[offset..offset + bytes.len()].copy_from_slice(&bytes);
                    }
                }
                5..8 => {
                    let (offset, len) =
                        (random.below(SIZE as u64 - 400) as usize, 1 + random.below(399) as usize);
                    let want = &world.seen[offset..offset + len];
                    match world.back.find(INO, offset as u64, len) {
                        Found::Bytes(bytes) => assert_eq!(bytes, want),
                        Found::Nothing => assert_eq!(&world.there[offset..offset + len], want),
                        Found::Send => {
                            world.send_all(&mut random);
                            assert_eq!(world.there[offset..offset + len], world.seen[offset..offset + len]);
                        }
                    }
                }
                8 => drop(world.begin()),
                9 => {
                    let well = random.below(3) > 0;
                    world.end(&mut random, well);
                }
                10 => world.right(),
                _ => drop(world.back.stop(INO)),
            }
            assert!(world.back.counts().bytes <= 3000);
        }
        world.send_all(&mut random);
        assert_eq!(world.there, world.seen, "seed {seed}");
        assert_eq!((world.back.counts().bytes, world.back.counts().lost, world.back.has(INO)), (0, 0, false));
        world.back.forget(INO);
        assert!(world.back.files.is_empty());
    }
}

#[test]
fn who_came_first_does_not_wait_for_what_comes_later() {
    let mut world = World::new(1 << 20);
    assert!(world.write(0, &[1; 10]));
    let (until, through) = world.back.until_now(INO).unwrap();
    assert_eq!(through, 1);
    assert!(!world.begin());
    assert!(world.write(5, &[2; 10]), "what is being sent stays as it is");
    world.end(&mut Random(1), true);
    assert_eq!(world.there[..11], [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert!(matches!(world.back.step(INO, until), Step::Done));
    assert!(world.back.has(INO));
}

#[test]
fn nothing_is_kept_back_without_a_right_that_stands() {
    let mut world = World::new(1 << 20);
    let now = world.now;
    let write = |world: &mut World, now, stands: bool| {
        world.back.write(now, (INO, 1), (At::Offset(0), &Bytes::from_static(b"x")), |_| stands).is_some()
    };
    assert!(!write(&mut world, now, false), "all was forgotten since it was asked");
    assert!(!write(&mut world, now + RIGHT_LASTS, true), "it was not asked for again");
    assert!(write(&mut world, now, true));
    // What was kept back under another number is sent first.
    world.back.answered(INO, Some(Right { from: Source { node: 0, joined: 8 }, ..right(now) }));
    assert!(!write(&mut world, now, true));
    assert!(world.back.stop(INO) && !write(&mut world, now, true), "asked back");
    // It is lost when it cannot be sent.
    assert_eq!(world.back.lose(INO), 1);
    assert_eq!((world.back.has(INO), world.back.counts().lost, world.back.counts().bytes), (false, 1, 0));
    // One that was refused is not asked for at once.
    assert!(!world.back.asks(now, INO));
    assert!(world.back.asks(now + ASK_AGAIN, INO));
    assert!(!world.back.asks(now + ASK_AGAIN * 2, INO), "the answer is not there");
}

#[test]
fn appends_are_kept_back_when_the_end_is_known() {
    let mut world = World::new(1 << 20);
    let append = |world: &mut World| {
        world.back.write(world.now, (INO, 1), (At::End, &Bytes::from_static(b"ab")), |_| true).is_some()
    };
    assert!(!append(&mut world), "nobody said where the file ends");
    world.back.begin_direct(INO);
    world.back.end_direct(INO, Some((At::End, 100)));
    assert!(append(&mut world) && append(&mut world));
    assert!(matches!(world.back.find(INO, 100, 4), Found::Bytes(bytes) if bytes == b"abab"));
    // A write behind the end, and one that is under way.
    assert!(world.write(300, b"x") && append(&mut world));
    assert!(matches!(world.back.find(INO, 300, 3), Found::Bytes(bytes) if bytes == b"xab"));
    world.back.begin_direct(INO);
    assert!(!append(&mut world));
    world.back.end_direct(INO, Some((At::Offset(400), 500)));
    assert!(append(&mut world));
    assert!(matches!(world.back.find(INO, 500, 2), Found::Bytes(_)));
    // After a change of size, and of two at once, it is not known.
    world.back.begin_direct(INO);
    world.back.end_direct(INO, None);
    assert!(!append(&mut world));
    world.back.begin_direct(INO);
    world.back.begin_direct(INO);
    world.back.end_direct(INO, Some((At::End, 600)));
    world.back.end_direct(INO, Some((At::End, 590)));
    assert!(!append(&mut world));
}

#[test]
fn what_is_old_or_enough_is_sent_once() {
    let mut world = World::new(64 << 20);
    let (now, part) = (world.now, Bytes::from(vec![1; 64 << 10]));
    let mut wrote = Vec::new();
    for n in 0..FILE_MAX / part.len() as u64 {
        let at = At::Offset(n * part.len() as u64);
        wrote.push(world.back.write(now, (INO, 1), (at, &part), |_| true).unwrap());
    }
    assert_eq!(wrote.iter().filter(|what| **what == Wrote::SendSome).count(), 1);
    assert_eq!(wrote.last(), Some(&Wrote::Wait { send: false }));
    assert!(world.back.is_full(INO));
    world.back.unqueue(INO);
    assert!(world.back.queue_due(now + SEND_AFTER / 2).is_empty());
    assert_eq!(world.back.queue_due(now + SEND_AFTER), [INO]);
    assert!(world.back.queue_due(now + SEND_AFTER).is_empty(), "somebody is at it");
    let (until, _) = world.back.until_now(INO).unwrap();
    let Step::Send(batch) = world.back.step(INO, until) else { panic!() };
    assert_eq!(batch.pieces.len() as u64, FILE_MAX / (1 << 20), "in large pieces");
    // There is room while it is being sent, and when nobody is about to.
    assert!(!world.back.is_full(INO) && !world.back.queue(INO));
    let large = Bytes::from(vec![2; FILE_MAX as usize]);
    let wrote = |world: &mut World| world.back.write(now, (INO, 1), (At::Offset(0), &large), |_| true);
    assert_eq!(wrote(&mut world), Some(Wrote::Wait { send: false }));
    assert!(world.back.is_full(INO));
    world.back.sent(INO);
    world.back.unqueue(INO);
    assert!(!world.back.is_full(INO));
    assert!(world.back.queue(INO) && world.back.is_full(INO) && !world.back.queue(INO));
    world.back.unqueue(INO);
    assert_eq!(wrote(&mut world), Some(Wrote::Wait { send: true }));
}
