//! Goal: with a linked near-line, whatever is written, cut, zeroed, moved, published and dropped, and whenever the process or the
//! machine dies, a read gives the bytes that were written; their file is always a whole version: theirs, or one of ours.
//! Method: random operations on a few files, compared with plain vectors after each step.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{AllocateMode, Attempt, Object, ObjectHint, OpenKind};
use harness::{
    Site, ino,
    linked::{At, LinkedDir, end_record},
};
use std::{sync::Arc, time::Duration};
use types::{Errno, TierId};

const RW: OpenKind = OpenKind { read: true, write: true };
/// Memory of this size never lets a write wait.
const ROOMY: u64 = 256 << 20;

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
    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut value = self.next();
        let mut next = || {
            value = value.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (value >> 56) as u8 | 1
        };
        (0..len).map(|_| next()).collect()
    }
}

struct Model {
    n: u64,
    bytes: Vec<u8>,
    /// What their file is.
    theirs: Vec<u8>,
    handle: Option<Arc<Object>>,
    writing: bool,
}

struct World {
    site: Site,
    dir: Arc<LinkedDir>,
    random: Random,
    files: Vec<Model>,
    seed: u64,
    step: u64,
    memory: u64,
}

impl World {
    fn new(seed: u64, memory: u64, ssd: bool) -> World {
        let dir = LinkedDir::new();
        let mut site = Site::new(memory);
        site.linked = Some(dir.clone());
        site.has_ssd = ssd;
        site.start();
        dir.serve(&site);
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let files = (2..5)
            .map(|n| {
                let len = random.below(14 << 20);
                let bytes = random.bytes(len);
                dir.import(n, &bytes);
                Model { n, theirs: bytes.clone(), bytes, handle: None, writing: false }
            })
            .collect();
        World { site, dir, random, files, seed, step: 0, memory }
    }

    fn at(&self) -> String {
        format!("seed {} step {}", self.seed, self.step)
    }

    fn attach(&mut self, which: usize, stale_live: bool) -> Arc<Object> {
        let file = &mut self.files[which];
        if let Some(object) = &file.handle {
            return object.clone();
        }
        let hint = ObjectHint { stale_live, ..self.dir.hint(&self.site, file.n) };
        let object = self.site.server().attach(ino(file.n), &hint).unwrap();
        file.handle = Some(object.clone());
        object
    }

    fn compare(&self, which: usize, object: &Object) {
        let file = &self.files[which];
        assert_eq!(object.size(), file.bytes.len() as u64, "{}: size of {}", self.at(), file.n);
        let mut buf = vec![0xEE; file.bytes.len() + 100];
        let got = match self.site.server().try_read(object, 0, &mut buf).unwrap() {
            Attempt::Done(n) => n,
            Attempt::WouldWait => self.site.server().read(object, 0, &mut buf).unwrap(),
        };
        assert_eq!(got, file.bytes.len(), "{}: length of {}", self.at(), file.n);
        if let Some(at) = (0..got).find(|i| buf[*i] != file.bytes[*i]) {
            let report = self.site.server().report(object);
            let (has, want) = (buf[at], file.bytes[at]);
            panic!("{}: file {} differs at {at}: {has:#x} for {want:#x}; {report:?}", self.at(), file.n);
        }
        self.check_theirs(which);
    }

    fn write(&mut self, which: usize, object: &Object) {
        let size = self.files[which].bytes.len() as u64;
        let len = match self.random.below(10) {
            0 => 1 + self.random.below(5 << 20),
            1..=4 => 1 + self.random.below(200_000),
            _ => 1 + self.random.below(10_000),
        };
        let offset = if self.random.below(3) == 0 { size } else { self.random.below(13 << 20) };
        let data = self.random.bytes(len);
        let server = self.site.server();
        match server.try_write(object, offset, &data).unwrap() {
            Attempt::Done(n) => assert_eq!(n, data.len()),
            Attempt::WouldWait => assert_eq!(server.write(object, offset, &data).unwrap(), data.len()),
        }
        let (file, end) = (&mut self.files[which], (offset + len) as usize);
        if file.bytes.len() < end {
            file.bytes.resize(end, 0);
        }
        file.bytes[offset as usize..end].copy_from_slice(&data);
    }

    fn step(&mut self, which: usize, object: &Arc<Object>) {
        let n = self.files[which].n;
        let size = self.files[which].bytes.len() as u64;
        match self.random.below(22) {
            0..=6 => self.write(which, object),
            7..=9 => {
                let new = self.random.below(14 << 20);
                self.dir.note_size(n, new);
                self.site.server().truncate(object, new).unwrap();
                self.files[which].bytes.resize(new as usize, 0);
            }
            10 | 11 if size > 0 => {
                let offset = self.random.below(size);
                let len = 1 + self.random.below(6 << 20);
                self.dir.note_size(n, size);
                self.site.server().allocate(object, AllocateMode::Zero, offset, len).unwrap();
                let end = (offset + len).min(size) as usize;
                self.files[which].bytes[offset as usize..end].fill(0);
            }
            12 => {
                self.site.server().sync(object).unwrap();
                self.note_theirs(which);
            }
            13 => {
                self.site.server().flush(object, &mut |_| {}).unwrap();
                self.note_theirs(which);
            }
            14 => self.publish(which),
            15 => self.die_publishing(which),
            16 => self.become_stub(which, object),
            17..=20 => {
                let to = TierId::ALL[self.random.below(3) as usize];
                let _ = self.site.server().migrate(ino(n), to, Some(Duration::from_secs(20)));
                self.note_theirs(which);
            }
            _ => {
                let server = self.site.server();
                let file = &mut self.files[which];
                if file.writing {
                    server.close(object, RW)
                } else {
                    server.open(object, RW)
                }
                file.writing = !file.writing;
            }
        }
    }

    /// The core may have published by itself. Where a write waits for room, a version may have a part of it.
    fn check_theirs(&self, which: usize) -> Vec<u8> {
        let file = &self.files[which];
        let there = self.dir.bytes(file.n);
        let whole = there == file.bytes || there == file.theirs || self.memory < ROOMY;
        assert!(whole, "{}: their file {} is no version", self.at(), file.n);
        there
    }

    fn note_theirs(&mut self, which: usize) {
        self.files[which].theirs = self.check_theirs(which);
    }

    fn publish(&mut self, which: usize) {
        let n = self.files[which].n;
        while let Err(errno) = ds::Linked::publish(&*self.dir, ino(n), &|| false) {
            assert_eq!(errno, Errno::EBUSY, "{}", self.at());
        }
        self.note_theirs(which);
        assert!(self.files[which].theirs == self.files[which].bytes, "{}", self.at());
        let object = self.files[which].handle.clone().unwrap();
        assert!(self.site.server().is_published(&object), "{}", self.at());
    }

    fn die_publishing(&mut self, which: usize) {
        let n = self.files[which].n;
        let at = [At::Copied, At::Renamed, At::Agreed][self.random.below(3) as usize];
        self.dir.die_at(Some(at));
        let _ = ds::Linked::publish(&*self.dir, ino(n), &|| false);
        self.dir.die_at(None);
        self.restart();
        self.note_theirs(which);
    }

    /// They change what we did not.
    fn become_stub(&mut self, which: usize, object: &Arc<Object>) {
        let file = &mut self.files[which];
        if file.writing || !self.site.server().is_published(object) || file.theirs != file.bytes {
            return;
        }
        let len = self.random.below(14 << 20);
        let new = self.random.bytes(len);
        self.dir.replace(file.n, &new);
        let (dir, site) = (&self.dir, &self.site);
        let became = self.site.server().become_stub(object, len, &mut || {
            dir.note_size(file.n, dir.agree(file.n));
            end_record(site, file.n)
        });
        became.unwrap();
        (file.bytes, file.theirs) = (new.clone(), new);
    }

    fn note_sizes(&mut self) {
        for file in &mut self.files {
            self.dir.note_size(file.n, file.bytes.len() as u64);
            (file.handle, file.writing) = (None, false);
        }
    }

    /// Without any word before.
    fn restart(&mut self) {
        let live = self.random.below(2) == 0;
        if !live {
            self.note_sizes();
        }
        for file in &mut self.files {
            (file.handle, file.writing) = (None, false);
        }
        self.site.restart();
        self.dir.recover();
        self.dir.serve(&self.site);
        for which in 0..self.files.len() {
            let object = self.attach(which, live);
            self.note_theirs(which);
            self.compare(which, &object);
        }
        self.note_live();
    }

    fn note_live(&mut self) {
        for file in &self.files {
            self.dir.note_size(file.n, file.bytes.len() as u64);
        }
    }

    /// With all that is in memory safe before it.
    fn reboot(&mut self) {
        for which in 0..self.files.len() {
            let object = self.attach(which, false);
            self.site.server().flush(&object, &mut |_| {}).unwrap();
            self.note_theirs(which);
        }
        self.note_sizes();
        self.site.maps().sync().unwrap();
        self.site.reboot();
        self.dir.recover();
        self.dir.serve(&self.site);
        for which in 0..self.files.len() {
            let object = self.attach(which, false);
            self.compare(which, &object);
        }
    }
}

fn run(seed: u64, steps: u64, memory: u64, ssd: bool) {
    let mut world = World::new(seed, memory, ssd);
    for n in 0..steps {
        world.step = n;
        let which = world.random.below(3) as usize;
        let object = world.attach(which, false);
        world.step(which, &object);
        drop(object);
        // The core publishes by itself, too.
        world.note_theirs(which);
        let object = world.attach(which, false);
        world.compare(which, &object);
        drop(object);
        match world.random.below(40) {
            0 => world.restart(),
            1 => world.reboot(),
            _ => {}
        }
    }
}

#[test]
fn reads_give_what_was_written_while_versions_are_published_and_the_server_dies() {
    for seed in 1..=6 {
        run(seed, 100, ROOMY, seed % 2 == 0);
    }
}

#[test]
fn a_memory_tier_smaller_than_the_files_changes_nothing() {
    for seed in 100..=103 {
        run(seed, 80, 20 << 20, seed % 2 == 0);
    }
}
