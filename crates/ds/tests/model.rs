//! Goal: whatever moves, restarts and reboots happen, a read gives the bytes that were written, or EIO after a
//! reboot for bytes that were only in memory; never zeros, never old bytes.
//! Method: random operations on a few objects, compared with plain vectors after each step.

#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{AllocateMode, Attempt, Object, ObjectHint, OpenKind};
use harness::{Site, ino};
use std::{sync::Arc, time::Duration};
use types::{Errno, TierId};

const RW: OpenKind = OpenKind { read: true, write: true };

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
}

const SAU: usize = types::SAU_BYTES as usize;

/// A file as the model knows it. `safe`: nothing was written since the last flush. `kept`: the SAUs that had bytes at a
/// flush and were not cut or punched since; whatever is written to them stays in a persistent tier.
struct Model {
    kept: std::collections::BTreeSet<usize>,
    n: u64,
    bytes: Vec<u8>,
    safe: bool,
    generation: u32,
    handle: Option<Arc<Object>>,
    /// The size that the metadata have: the last that was set.
    noted: u64,
}

fn attach(site: &Site, file: &mut Model, stale: bool) -> Arc<Object> {
    let hint = ObjectHint {
        size: if stale { file.noted } else { file.bytes.len() as u64 },
        written: true,
        stale_live: stale,
        memory_generation: file.generation,
        linked: None,
    };
    let object = site.server().attach(ino(file.n), &hint).unwrap();
    site.server().open(&object, RW);
    file.generation = site.generation();
    file.handle = Some(object.clone());
    object
}

fn compare(site: &Site, file: &Model, object: &Object, seed: u64, step: u64) {
    assert_eq!(object.size(), file.bytes.len() as u64, "seed {seed} step {step}: size of {}", file.n);
    let mut buf = vec![0xEE; file.bytes.len() + 100];
    let got = match site.server().try_read(object, 0, &mut buf).unwrap() {
        Attempt::Done(n) => n,
        Attempt::WouldWait => site.server().read(object, 0, &mut buf).unwrap(),
    };
    assert_eq!(got, file.bytes.len(), "seed {seed} step {step}: length of {}", file.n);
    if let Some(at) = (0..got).find(|i| buf[*i] != file.bytes[*i]) {
        let (has, want) = (buf[at], file.bytes[at]);
        let report = site.server().report(object);
        panic!(
            "seed {seed} step {step}: file {} differs at {at}: {has:#x} for {want:#x}; {report:?}",
            file.n
        );
    }
}

fn write(site: &Site, file: &mut Model, object: &Object, random: &mut Random) {
    let size = file.bytes.len() as u64;
    let len = match random.below(10) {
        0 => 1 + random.below(5 << 20),
        1..=4 => 1 + random.below(200_000),
        _ => 1 + random.below(10_000),
    };
    let offset = if random.below(3) == 0 { size } else { random.below(13 << 20) };
    let mut data = vec![0; len as usize];
    let mut value = random.next();
    for byte in &mut data {
        value = value.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *byte = (value >> 56) as u8 | 1;
    }
    match site.server().try_write(object, offset, &data).unwrap() {
        Attempt::Done(n) => assert_eq!(n, data.len()),
        Attempt::WouldWait => assert_eq!(site.server().write(object, offset, &data).unwrap(), data.len()),
    }
    let end = (offset + len) as usize;
    if file.bytes.len() < end {
        file.bytes.resize(end, 0);
    }
    file.bytes[offset as usize..end].copy_from_slice(&data);
    file.safe = false;
}

fn step(site: &Site, file: &mut Model, object: &Object, random: &mut Random) {
    let server = site.server();
    let size = file.bytes.len() as u64;
    match random.below(20) {
        0..=8 => write(site, file, object, random),
        9 | 10 => {
            let new = random.below(14 << 20);
            file.noted = new;
            server.truncate(object, new).unwrap();
            file.bytes.resize(new as usize, 0);
            file.kept.retain(|sau| (sau + 1) * SAU <= new as usize);
            file.safe = false;
        }
        11 if size > 0 => {
            let offset = random.below(size);
            let len = 1 + random.below(6 << 20);
            file.noted = size;
            server.allocate(object, AllocateMode::Zero, offset, len).unwrap();
            let end = (offset + len).min(size) as usize;
            file.bytes[offset as usize..end].fill(0);
            file.kept.retain(|sau| (sau + 1) * SAU <= offset as usize || sau * SAU >= end);
            file.safe = false;
        }
        12 | 13 => {
            server.sync(object).unwrap();
            keep(file);
        }
        14 => {
            server.flush(object, &mut |_| {}).unwrap();
            keep(file);
        }
        15..=18 => {
            let to = TierId::ALL[random.below(3) as usize];
            if random.below(2) == 0 {
                server.migrate_later(object.ino(), to).unwrap();
            } else {
                let _ = server.migrate(object.ino(), to, Some(Duration::from_secs(20)));
            }
        }
        _ => {
            server.close(object, RW);
            server.open(object, RW);
        }
    }
}

fn keep(file: &mut Model) {
    file.safe = true;
    file.kept = (0..file.bytes.len().div_ceil(SAU))
        .filter(|s| file.bytes[s * SAU..file.bytes.len().min((s + 1) * SAU)].iter().any(|b| *b != 0))
        .collect();
}

fn run(seed: u64, steps: u64, memory: u64, reboots: bool) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut site = Site::new(memory);
    site.start();
    let new = |n| Model {
        kept: Default::default(),
        n,
        bytes: Vec::new(),
        safe: true,
        generation: site.generation(),
        handle: None,
        noted: 0,
    };
    let mut files: Vec<Model> = (2..5).map(new).collect();
    for n in 0..steps {
        let which = random.below(files.len() as u64) as usize;
        let file = &mut files[which];
        let object = match file.handle.clone() {
            Some(object) => object,
            None => attach(&site, file, false),
        };
        step(&site, file, &object, &mut random);
        compare(&site, file, &object, seed, n);
        if random.below(25) == 0 {
            drop(object);
            for file in &mut files {
                file.handle = None;
            }
            site.restart();
            for file in &mut files {
                let stale = !file.bytes.is_empty();
                let object = attach(&site, file, stale);
                compare(&site, file, &object, seed, n);
            }
        } else if reboots && random.below(60) == 0 {
            drop(object);
            reboot(&mut site, &mut files, seed, n);
        }
    }
    for file in &mut files {
        file.handle = None;
    }
}

/// After a reboot a range reads as it was written or as EIO, and as written if a flush came after the last write.
fn reboot(site: &mut Site, files: &mut [Model], seed: u64, n: u64) {
    for file in files.iter_mut() {
        file.handle = None;
    }
    site.maps().sync().unwrap();
    site.reboot();
    for file in files.iter_mut() {
        let safe = file.safe;
        let object = attach(site, file, false);
        for start in (0..file.bytes.len()).step_by(1 << 20) {
            let want = &file.bytes[start..file.bytes.len().min(start + (1 << 20))];
            let mut buf = vec![0; want.len()];
            match site.server().read(&object, start as u64, &mut buf) {
                Ok(got) => assert!(
                    got == want.len() && buf == want,
                    "seed {seed} step {n}: wrong bytes after a reboot in file {} at {start}; {:?}",
                    file.n,
                    site.server().report(&object)
                ),
                Err(errno) => {
                    assert_eq!(errno, Errno::EIO);
                    let kept = file.kept.contains(&(start / SAU));
                    assert!(
                        !kept,
                        "seed {seed} step {n}: bytes of file {} at {start} were safe once",
                        file.n
                    );
                    assert!(!safe, "seed {seed} step {n}: flushed bytes of file {} are lost", file.n);
                }
            }
        }
        // Begin again.
        site.server().truncate(&object, 0).unwrap();
        file.noted = 0;
        file.bytes.clear();
        file.kept.clear();
        file.safe = false;
    }
}

#[test]
fn reads_give_what_was_written_while_data_moves_and_the_server_restarts() {
    for seed in 1..=12 {
        run(seed, 120, 256 << 20, false);
    }
}

#[test]
fn a_memory_tier_smaller_than_the_files_changes_nothing() {
    for seed in 100..=104 {
        run(seed, 100, 12 << 20, false);
    }
}

#[test]
fn after_a_reboot_bytes_are_as_written_or_eio() {
    for seed in 200..=212 {
        run(seed, 150, 24 << 20, true);
    }
}
