//! A file of blocks that say which write they are of, and what may be read of them.
//!
//! Each block has one writer, who writes its number and a count that rises. So whatever is read is checked at once, word by word: it is of no write before the
//! last that was answered, nor before one that somebody has read already; of none that was not begun.

use std::{
    collections::BTreeSet,
    panic,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use remote::{OpenFile, Remote, WriteHow};

use super::site::until;

pub const BLOCK: usize = 4096;

#[derive(Default)]
struct Block {
    begun: AtomicU64,
    /// Answered, or read.
    known: AtomicU64,
}

pub struct Blocks {
    blocks: Vec<Block>,
    stride: u64,
    stop: AtomicBool,
    written: AtomicUsize,
    read: AtomicUsize,
    /// Of a write and of a read, the longest.
    longest: Mutex<(Duration, Duration)>,
}

fn count_of(block: usize, word: [u8; 8]) -> u64 {
    let word = u64::from_le_bytes(word);
    assert!(word == 0 || word >> 40 == block as u64, "block {block} has {word:x}");
    word & ((1 << 40) - 1)
}

fn fill(block: u64, count: u64) -> Vec<u8> {
    let word = (block << 40 | count).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK).collect()
}

impl Blocks {
    /// So far apart that they are in different stripe units and pieces.
    pub fn new(count: usize, stride: u64) -> Blocks {
        Blocks {
            blocks: (0..count).map(|_| Block::default()).collect(),
            stride,
            stop: AtomicBool::new(false),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            longest: Mutex::default(),
        }
    }

    fn at(&self, block: usize) -> u64 {
        block as u64 * self.stride
    }

    fn write(&self, client: &Remote, file: &OpenFile, block: usize) {
        let of = &self.blocks[block];
        let count = of.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let since = Instant::now();
        let written = client.write(file, self.at(block), &fill(block as u64, count), WriteHow::default());
        let took = since.elapsed();
        assert_eq!(written, Ok(BLOCK), "write {count} of block {block}, after {took:?}");
        of.known.fetch_max(count, Ordering::SeqCst);
        let mut longest = self.longest.lock();
        longest.0 = longest.0.max(took);
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    fn read(&self, client: &Remote, file: &OpenFile, block: usize) {
        let of = &self.blocks[block];
        let known = of.known.load(Ordering::SeqCst);
        let (mut bytes, since) = (vec![0xee; BLOCK], Instant::now());
        let read = client.read(file, self.at(block), &mut bytes);
        let (took, begun) = (since.elapsed(), of.begun.load(Ordering::SeqCst));
        let len = read.unwrap_or_else(|error| panic!("{error} of block {block}, after {took:?}"));
        if len == 0 {
            assert_eq!(known, 0, "block {block} ends before what was written");
            return;
        }
        assert_eq!(len, BLOCK, "block {block} is short");
        let counts: BTreeSet<u64> = bytes.as_chunks().0.iter().map(|word| count_of(block, *word)).collect();
        let fit = counts.iter().all(|count| (known..=begun).contains(count));
        assert!(fit, "block {block} reads {counts:?}, not {known} to {begun}");
        // Of a write at the same time some may be seen (S-170), and nothing is known by that.
        if counts.len() == 1 {
            of.known.fetch_max(counts.into_iter().max().unwrap_or(0), Ordering::SeqCst);
        }
        let mut longest = self.longest.lock();
        longest.1 = longest.1.max(took);
        self.read.fetch_add(1, Ordering::SeqCst);
    }

    /// All of it, by whoever.
    fn check(&self, client: &Remote, file: &OpenFile) {
        (0..self.blocks.len()).for_each(|block| self.read(client, file, block));
    }

    /// Until [`Blocks::stop`]: writer `n` of `of`.
    fn keep_writing(&self, client: &Remote, file: &OpenFile, (n, of): (usize, usize)) {
        while !self.stop.load(Ordering::SeqCst) {
            for block in (n..self.blocks.len()).step_by(of) {
                self.write(client, file, block);
                if block % 7 == 0 {
                    assert_eq!(client.fsync(file), Ok(()));
                }
            }
        }
    }

    fn keep_reading(&self, client: &Remote, file: &OpenFile, seed: usize) {
        let mut n = seed;
        while !self.stop.load(Ordering::SeqCst) {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.read(client, file, (n >> 33) % self.blocks.len());
        }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// They are written and read by both while something is done.
    pub fn while_used(&self, users: [&(Arc<Remote>, Arc<OpenFile>); 2], something: impl FnOnce()) {
        thread::scope(|scope| {
            for (n, (client, file)) in users.into_iter().enumerate() {
                scope.spawn(move || self.keep_writing(client, file, (n, 2)));
                scope.spawn(move || self.keep_reading(client, file, n + 1));
            }
            let done = panic::catch_unwind(panic::AssertUnwindSafe(something));
            self.stop();
            if let Err(panic) = done {
                panic::resume_unwind(panic);
            }
        });
        users.into_iter().for_each(|(client, file)| self.check(client, file));
        self.say_waits();
    }

    /// They are being used, by readers and writers.
    pub fn go_on(&self) {
        let (written, read) = (self.written.load(Ordering::SeqCst), self.read.load(Ordering::SeqCst));
        until("writes and reads go on", || {
            self.written.load(Ordering::SeqCst) > written + 20 && self.read.load(Ordering::SeqCst) > read + 20
        });
    }

    /// For who runs it with `--nocapture`.
    fn say_waits(&self) {
        let (write, read) = *self.longest.lock();
        eprintln!("the longest write {write:?}, the longest read {read:?}");
    }
}
