//! Files of self-describing blocks: one thread owns some of them, writes and syncs them through one mount, renames them through either, and reads
//! them through both.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
};

use super::{
    World,
    block::{Block, Seen},
    sector,
};
use crate::random::Random;

/// Of each file, so far apart that they come to several stripes and pieces.
const BLOCKS: u32 = 64;
const STRIDE: u64 = (128 << 10) + sector::BLOCK as u64;

/// One file, and what is known of it.
pub struct Owned<'a> {
    world: &'a World,
    id: u32,
    mount: usize,
    /// It has one of two names.
    name: u64,
    open: Option<File>,
    blocks: Vec<Block>,
}

impl<'a> Owned<'a> {
    /// Made, or as it was left by nobody: its number is used once.
    pub fn new(world: &'a World, id: u32, mount: usize) -> Owned<'a> {
        let blocks = (0..BLOCKS).map(|_| Block::default()).collect();
        Owned { world, id, mount, name: 0, open: None, blocks }
    }

    fn path(&self, mount: usize, name: u64) -> std::path::PathBuf {
        self.world.path(mount, &format!("file-{}-{name}", self.id))
    }

    /// One call, or a few.
    pub fn step(&mut self, random: &mut Random) {
        let what = random.below(100);
        let done = match what {
            0..45 => self.write(random.below(u64::from(BLOCKS)) as u32),
            45..58 => self.sync(),
            58..90 => {
                let (block, mount) = (random.below(u64::from(BLOCKS)) as u32, random.below(2) as usize);
                self.read(block, mount % self.world.mounts.len()).map(drop)
            }
            90..95 => self.rename(random.below(2) as usize % self.world.mounts.len()),
            _ => {
                self.open = None;
                Ok(())
            }
        };
        if done.is_err() {
            // Its opening may be one that is lost.
            self.open = None;
            self.world.pause();
        }
    }

    fn open(&mut self) -> io::Result<&File> {
        if self.open.is_none() {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            // Who makes it knows that nobody else has.
            let made = self.blocks.iter().any(|block| block.last() > 0);
            options.create(!made);
            let mut opened =
                self.world.account.call("open", || options.open(self.path(self.mount, self.name)));
            if made && opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                // A rename had no answer.
                self.name = 1 - self.name;
                opened = self.world.account.call("open", || options.open(self.path(self.mount, self.name)));
            }
            self.open = Some(opened?);
        }
        self.open.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, block: u32) -> io::Result<()> {
        self.open()?;
        let Some(file) = &self.open else { return Ok(()) };
        let version = self.blocks[block as usize].attempt(self.world.now(self.mount));
        let bytes = sector::make(self.id, block, version);
        self.world.account.call("write", || file.write_all_at(&bytes, u64::from(block) * STRIDE))?;
        self.blocks[block as usize].answered(version);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.open()?;
        let Some(file) = &self.open else { return Ok(()) };
        let until: Vec<u32> = self.blocks.iter().map(Block::last).collect();
        let synced = self.world.account.call("fsync", || file.sync_all());
        let now = self.world.now(self.mount);
        for (block, until) in self.blocks.iter_mut().zip(until) {
            match &synced {
                Ok(()) => block.durable(until, now),
                Err(_) => block.not_durable(now),
            }
        }
        synced
    }

    fn rename(&mut self, mount: usize) -> io::Result<()> {
        if self.blocks.iter().all(|block| block.last() == 0) {
            return Ok(());
        }
        self.open()?;
        let (from, to) = (self.path(mount, self.name), self.path(mount, 1 - self.name));
        self.world.account.call("rename", || std::fs::rename(from, to))?;
        self.name = 1 - self.name;
        Ok(())
    }

    /// An error of the read, and what is wrong told to the account.
    fn read(&mut self, block: u32, mount: usize) -> io::Result<()> {
        if self.blocks[block as usize].last() == 0 {
            return Ok(());
        }
        self.open()?;
        let path = self.path(mount, self.name);
        let mut bytes = vec![0; sector::BLOCK];
        let found = self.world.account.call("read", || {
            let file = File::open(&path)?;
            read_at(&file, &mut bytes, u64::from(block) * STRIDE)
        })?;
        self.judge(block, &bytes[..found]);
        Ok(())
    }

    fn judge(&mut self, number: u32, bytes: &[u8]) {
        let now = self.world.now(self.mount);
        let place = |why: &str| format!("file {}, block {number}: {why}", self.id);
        let versions = match sector::versions(self.id, number, bytes) {
            Ok(versions) => versions,
            Err(why) => return self.world.account.fail(why),
        };
        let block = &mut self.blocks[number as usize];
        let torn = versions.iter().any(|version| *version != versions[0]);
        if torn && !block.in_doubt() {
            self.world.account.fail(place(&format!("TORN: {versions:?}, and nothing is in doubt")));
            return;
        }
        for version in versions {
            match block.read(version, now) {
                Ok(Seen::Right) => {}
                Ok(Seen::RolledBack) => {
                    self.world.account.count("blocks that a lost memory or a killed mount had")
                }
                Ok(Seen::Late) => self.world.account.count("writes of killed mounts that came late"),
                Err(why) => return self.world.account.fail(place(&why)),
            }
        }
    }

    /// When all is at rest: what was made durable can be read through each mount, and the rest as far as nothing was lost.
    pub fn finish(&mut self) {
        self.open = None;
        if self.blocks.iter().all(|block| block.last() == 0) {
            return;
        }
        for mount in 0..self.world.mounts.len() {
            for number in 0..BLOCKS {
                self.read_at_rest(number, mount);
            }
        }
        let (world, mount) = (self.world, self.mount);
        let names = [0, 1].map(|name| self.path(mount, name));
        let there = world.insist("a name", || {
            let found = names.iter().map(|path| path.try_exists()).collect::<io::Result<Vec<bool>>>()?;
            Ok(found.iter().filter(|there| **there).count())
        });
        match there {
            Ok(1) => {}
            Ok(n) => world.account.fail(format!("file {} has {n} names", self.id)),
            Err(why) => world.account.fail(why),
        }
    }

    fn read_at_rest(&mut self, number: u32, mount: usize) {
        let world = self.world;
        if self.blocks[number as usize].may_be_lost(world.now(self.mount)) {
            // One attempt: it may be an error for good.
            if self.read(number, mount).is_err() {
                world.account.count("blocks that cannot be read since a memory was lost");
            }
            return;
        }
        let id = self.id;
        if let Err(why) = world.insist("a read", || {
            let done = self.read(number, mount);
            if done.is_err() {
                self.open = None;
            }
            done
        }) {
            let floor = self.blocks[number as usize].floor();
            world.account.fail(format!("file {id}, block {number} (durable: {floor}): {why}"));
        }
    }
}

fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}
