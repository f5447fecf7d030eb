//! A log to which threads of all mounts append: what was answered is there once, what an fsync covered is there whatever was lost, and nothing is there
//! that nobody wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
};

use parking_lot::Mutex;

use super::{World, block::Moment};
use crate::random::mix;

/// Bytes of a record: who wrote it, its number, and a word that follows from both.
const RECORD: usize = 32;
const SYNC_EVERY: u64 = 8;

#[derive(Clone, Copy, Debug)]
struct Sent {
    answered: bool,
    durable: bool,
    at: Moment,
}

/// Of all threads.
#[derive(Default)]
pub struct Log {
    sent: Mutex<BTreeMap<(u32, u64), Sent>>,
}

fn record(thread: u32, number: u64) -> [u8; RECORD] {
    let words = [u64::from(thread) + 1, number, mix(u64::from(thread) ^ mix(number)), mix(number)];
    let mut bytes = [0; RECORD];
    for (out, word) in bytes.chunks_exact_mut(8).zip(words) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn known(bytes: &[u8]) -> Option<(u32, u64)> {
    let word = |n: usize| bytes[n * 8..].first_chunk().map(|word| u64::from_le_bytes(*word));
    let thread = u32::try_from(word(0)?.checked_sub(1)?).ok()?;
    let number = word(1)?;
    (record(thread, number) == bytes).then_some((thread, number))
}

impl Log {
    /// One thread's records, until the workload ends.
    pub fn write(&self, world: &World, thread: u32, mount: usize) {
        let (mut number, mut open, mut unsynced) = (0, None, Vec::new());
        while !world.has_ended() {
            if self.append(world, (thread, mount), &mut number, &mut open, &mut unsynced).is_err() {
                open = None;
                unsynced.clear();
                world.pause();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    fn append(
        &self,
        world: &World,
        (thread, mount): (u32, usize),
        number: &mut u64,
        open: &mut Option<File>,
        unsynced: &mut Vec<u64>,
    ) -> io::Result<()> {
        if open.is_none() {
            let mut options = OpenOptions::new();
            options.append(true).create(true);
            *open = Some(world.account.call("open", || options.open(world.path(mount, "log")))?);
        }
        let Some(file) = open else { return Ok(()) };
        *number += 1;
        let sent = Sent { answered: false, durable: false, at: world.now(mount) };
        self.sent.lock().insert((thread, *number), sent);
        world.account.call("append", || file.write_all(&record(thread, *number)))?;
        self.note((thread, *number), |sent| sent.answered = true);
        unsynced.push(*number);
        if number.is_multiple_of(SYNC_EVERY) {
            world.account.call("fsync", || file.sync_all())?;
            for number in unsynced.drain(..) {
                self.note((thread, number), |sent| sent.durable = true);
            }
        }
        Ok(())
    }

    fn note(&self, key: (u32, u64), note: impl FnOnce(&mut Sent)) {
        if let Some(sent) = self.sent.lock().get_mut(&key) {
            note(sent);
        }
    }

    /// When all is at rest.
    pub fn check(&self, world: &World) {
        let sent = self.sent.lock();
        if sent.is_empty() {
            return;
        }
        for mount in 0..world.mounts.len() {
            let now = world.now(mount);
            match world.insist("the log", || read(world, mount, now.losses > 0)) {
                Ok(whole) => check(world, &sent, &whole),
                Err(why) => world.account.fail(why),
            }
        }
    }
}

/// Records, one after the other. Where memories were lost some cannot be read.
fn read(world: &World, mount: usize, may_fail: bool) -> io::Result<Vec<Option<[u8; RECORD]>>> {
    let file = File::open(world.path(mount, "log"))?;
    let records = file.metadata()?.len().div_ceil(RECORD as u64);
    let mut found = Vec::new();
    let mut whole = vec![0; (records as usize) * RECORD];
    match file.read_exact_at(&mut whole, 0) {
        Ok(()) => found.extend(whole.as_chunks().0.iter().copied().map(Some)),
        Err(error) if !may_fail => return Err(error),
        Err(_) => {
            for n in 0..records {
                let mut one = [0; RECORD];
                found.push(file.read_exact_at(&mut one, n * RECORD as u64).is_ok().then_some(one));
            }
        }
    }
    Ok(found)
}

fn check(world: &World, sent: &BTreeMap<(u32, u64), Sent>, found: &[Option<[u8; RECORD]>]) {
    let mut there = BTreeSet::new();
    let mut doubt = world.now(0).losses > 0;
    for (n, bytes) in found.iter().enumerate() {
        let Some(bytes) = bytes else { continue };
        match known(bytes) {
            Some(key) if !sent.contains_key(&key) => {
                world.account.fail(format!("log, record {n}: nobody wrote {key:?}"));
            }
            Some(key) if !there.insert(key) => {
                world.account.fail(format!("log, record {n}: {key:?} is there twice"));
            }
            Some(_) => {}
            // Room that was given to an append that failed.
            None if bytes.iter().all(|byte| *byte == 0) => doubt |= true,
            None => world.account.fail(format!("log, record {n}: WRONG BYTES {bytes:02x?}")),
        }
    }
    for (key, sent) in sent.iter().filter(|(key, _)| !there.contains(key)) {
        if sent.durable {
            world.account.fail(format!("log: {key:?} is LOST AFTER FSYNC"));
        } else if sent.answered && !sent.at.is_losable(world.now(key.0 as usize)) {
            world.account.fail(format!("log: {key:?} was answered and is not there"));
        } else if sent.answered {
            world.account.count("appends that a lost memory or a killed mount had");
        }
    }
    if doubt {
        world.account.count("logs with gaps");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_known_again() {
        assert_eq!(known(&record(3, 70_000)), Some((3, 70_000)));
        assert_eq!(known(&[0; RECORD]), None);
        let mut bytes = record(0, 1);
        bytes[31] ^= 1;
        assert_eq!(known(&bytes), None);
    }
}
