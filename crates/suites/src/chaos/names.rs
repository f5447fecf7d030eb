//! Names that come and go through one mount and are looked for through another: what was answered is what there is.

use std::{collections::BTreeMap, fs, io, path::PathBuf};

use super::World;
use crate::random::Random;

/// Of a thread.
const NAMES: u64 = 24;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    There,
    Not,
    /// A call had no answer.
    Unknown,
}

pub struct Names<'a> {
    world: &'a World,
    thread: u32,
    is: BTreeMap<u64, Is>,
}

impl<'a> Names<'a> {
    pub fn new(world: &'a World, thread: u32) -> Names<'a> {
        Names { world, thread, is: (0..NAMES).map(|n| (n, Is::Not)).collect() }
    }

    fn path(&self, mount: usize, n: u64) -> PathBuf {
        self.world.path(mount, &format!("dir-{}", self.thread)).join(format!("name-{n}"))
    }

    pub fn step(&mut self, random: &mut Random) {
        let (n, mount) = (random.below(NAMES), random.below(self.world.mounts.len() as u64) as usize);
        let done = if random.chance(50) { self.change(n, mount) } else { self.look(n, mount) };
        if done.is_err() {
            self.world.pause();
        }
    }

    fn change(&mut self, n: u64, mount: usize) -> io::Result<()> {
        let (world, path) = (self.world, self.path(mount, n));
        if let Some(dir) = path.parent()
            && self.is.values().all(|is| *is == Is::Not)
        {
            // Made again if it is there.
            let made = world.account.call("mkdir", || match fs::create_dir(dir) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            });
            made?;
        }
        let was = self.is.insert(n, Is::Unknown);
        let (done, is, wrong) = match was {
            Some(Is::Not) => {
                let made = world
                    .account
                    .call("create", || world.through(mount, || fs::File::create_new(&path).map(drop)));
                (made, Is::There, io::ErrorKind::AlreadyExists)
            }
            Some(Is::There) => {
                let removed =
                    world.account.call("unlink", || world.through(mount, || fs::remove_file(&path)));
                (removed, Is::Not, io::ErrorKind::NotFound)
            }
            Some(Is::Unknown) | None => {
                let there = world.account.call("look", || world.through(mount, || path.try_exists()))?;
                self.is.insert(n, if there { Is::There } else { Is::Not });
                return Ok(());
            }
        };
        match &done {
            Ok(()) => drop(self.is.insert(n, is)),
            Err(error) if error.kind() == wrong => {
                world.account.fail(format!("{}: was {was:?}, and changing it says {error}", path.display()));
            }
            Err(_) => {}
        }
        done
    }

    fn look(&mut self, n: u64, mount: usize) -> io::Result<()> {
        let (world, path) = (self.world, self.path(mount, n));
        let there = world.account.call("look", || world.through(mount, || path.try_exists()))?;
        self.judge(n, &path, there);
        Ok(())
    }

    fn judge(&mut self, n: u64, path: &std::path::Path, there: bool) {
        let now = if there { Is::There } else { Is::Not };
        let was = self.is.insert(n, now);
        if was.is_some_and(|was| was != now && was != Is::Unknown) {
            self.world.account.fail(format!("{}: should be {was:?}, and is {now:?}", path.display()));
        }
    }

    /// When all is at rest.
    pub fn finish(&mut self) {
        for mount in 0..self.world.mounts.len() {
            for n in 0..NAMES {
                let path = self.path(mount, n);
                match self.world.insist("a name", || path.try_exists()) {
                    Ok(there) => self.judge(n, &path, there),
                    Err(why) => self.world.account.fail(format!("{}: {why}", path.display())),
                }
            }
        }
    }
}
