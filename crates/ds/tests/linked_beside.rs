//! Goal: whoever writes and reads a linked file sees what he wrote, while it is published, moved and dropped all the time.
//! Method: writers that own every third block of two files, a publisher and a mover; each block says what it must be.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{DataServer, Object, OpenKind};
use fuzzing::Ending;
use harness::{Site, ino, linked::LinkedDir};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use types::{Errno, TierId};

const RW: OpenKind = OpenKind { read: true, write: true };
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = (12 << 20) / BLOCK;
const WRITERS: usize = 3;
/// Of each writer, at least, and versions that are published meanwhile.
const ROUNDS: u64 = 1000;
const VERSIONS: u64 = 8;
/// Where two processors do much else, versions are rare.
const PATIENCE: Duration = Duration::from_secs(300);

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

fn block(n: usize, value: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        word.copy_from_slice(&(value * 1_000_003 + n as u64 * 31 + at as u64).to_le_bytes());
    }
    bytes
}

/// Returns the value that each of its blocks has at the end.
fn write_and_read(
    server: &DataServer,
    object: &Object,
    writer: usize,
    is_enough: &dyn Fn() -> bool,
) -> Vec<(usize, u64)> {
    let mut random = Random(writer as u64 + object.ino().get() * 7);
    let mut values: Vec<(usize, u64)> = (writer..BLOCKS).step_by(WRITERS).map(|n| (n, 0)).collect();
    for round in (1..).take_while(|round| *round <= ROUNDS || !is_enough()) {
        let mine = random.below(values.len());
        let (n, value) = &mut values[mine];
        *value = round;
        assert_eq!(server.write(object, (*n * BLOCK) as u64, &block(*n, round)).unwrap(), BLOCK);
        let (n, value) = values[random.below(values.len())];
        let mut got = vec![0; BLOCK];
        assert_eq!(server.read(object, (n * BLOCK) as u64, &mut got).unwrap(), BLOCK);
        assert!(got == block(n, value), "block {n} of {} is not as it was written", object.ino());
    }
    values
}

fn run(memory: u64, ssd: bool) {
    let dir = LinkedDir::new();
    let mut site = Site::new(memory);
    site.linked = Some(dir.clone());
    site.has_ssd = ssd;
    site.start();
    dir.serve(&site);
    let server = site.server();
    let objects = [2, 3].map(|n| {
        dir.import(n, &(0..BLOCKS).flat_map(|at| block(at, 0)).collect::<Vec<u8>>());
        let object = server.attach(ino(n), &dir.hint(&site, n)).unwrap();
        server.open(&object, RW);
        object
    });
    let over = AtomicBool::new(false);
    let until = Instant::now() + PATIENCE;
    let is_enough = || {
        let is_late = over.load(Ordering::Acquire) || Instant::now() > until;
        is_late || dir.published.load(Ordering::Relaxed) >= VERSIONS
    };
    let written: Vec<Vec<(usize, u64)>> = std::thread::scope(|scope| {
        for object in &objects {
            let (dir, over) = (&dir, &over);
            scope.spawn(move || {
                let _ending = Ending(over);
                while !over.load(Ordering::Acquire) {
                    match ds::Linked::publish(&**dir, object.ino(), &|| over.load(Ordering::Acquire)) {
                        Ok(()) | Err(Errno::EBUSY | Errno::EINTR) => {}
                        Err(errno) => panic!("{errno}"),
                    }
                }
            });
            scope.spawn(move || {
                let _ending = Ending(over);
                let mut random = Random(object.ino().get());
                while !over.load(Ordering::Acquire) {
                    let to = TierId::ALL[random.below(3)];
                    let _ = server.migrate(object.ino(), to, Some(Duration::from_millis(200)));
                }
            });
        }
        let writers: Vec<_> = objects
            .iter()
            .flat_map(|object| (0..WRITERS).map(move |writer| (object, writer)))
            .map(|(object, writer)| scope.spawn(move || write_and_read(server, object, writer, &is_enough)))
            .collect();
        let done: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Release);
        done.into_iter().map(|values| values.unwrap()).collect()
    });
    let published = dir.published.load(Ordering::Relaxed);
    assert!(published >= VERSIONS, "{published} versions in {PATIENCE:?}");
    for (n, object) in objects.iter().enumerate() {
        server.close(object, RW);
        let mut want = vec![0; BLOCKS * BLOCK];
        for (at, value) in written[n * WRITERS..(n + 1) * WRITERS].iter().flatten() {
            want[at * BLOCK..(at + 1) * BLOCK].copy_from_slice(&block(*at, *value));
        }
        ds::Linked::publish(&*dir, object.ino(), &|| false).unwrap();
        assert!(
            dir.bytes(object.ino().local().get()) == want,
            "the last version is not all that was written"
        );
        let _ = server.migrate(object.ino(), TierId::Nearline, Some(Duration::from_secs(20)));
        let mut got = vec![0; want.len()];
        assert_eq!(server.read(object, 0, &mut got).unwrap(), want.len());
        assert!(got == want);
    }
}

#[test]
fn with_room_and_an_ssd() {
    run(128 << 20, true);
}

#[test]
fn without_room_or_an_ssd() {
    run(20 << 20, false);
}

#[test]
fn without_room_and_with_an_ssd() {
    run(20 << 20, true);
}
