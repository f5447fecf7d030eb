//! Locks of threads on all mounts: who has one has it alone, as long as its opening is well. One that was lost with its client says so at the next use of
//! the descriptor.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, fcntl_lock, flock};

use super::World;
use crate::random::Random;

const FILES: u64 = 3;
const HOLD_MAX_MS: u64 = 20;

#[derive(Default)]
struct Held {
    /// By whom, and whether another one got it meanwhile.
    by: Option<u64>,
    taken: bool,
}

/// Of all threads.
#[derive(Default)]
pub struct Locks {
    held: [Mutex<Held>; FILES as usize],
    turns: Mutex<u64>,
}

impl Locks {
    pub fn step(&self, world: &World, mount: usize, random: &mut Random) {
        let n = random.below(FILES);
        let done = self.turn(world, mount, n, random);
        if done.is_err() {
            world.pause();
        }
    }

    fn turn(&self, world: &World, mount: usize, n: u64, random: &mut Random) -> io::Result<()> {
        let path = world.path(mount, &format!("lock-{n}"));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = world.account.call("open", || options.open(&path))?;
        // Those of fcntl(2) are the process's; of threads of one mount flock(2) is what keeps them apart.
        world.account.call("lock", || Ok(flock(&file, FlockOperation::LockExclusive)?))?;
        let turn = {
            let mut turns = self.turns.lock();
            *turns += 1;
            *turns
        };
        let before = {
            let mut held = self.held[n as usize].lock();
            let before = held.by.replace(turn);
            held.taken = before.is_some();
            before
        };
        std::thread::sleep(Duration::from_millis(random.below(HOLD_MAX_MS)));
        let well = is_well(world, &file);
        let mut held = self.held[n as usize].lock();
        if held.by == Some(turn) {
            held.by = None;
        } else if well {
            // Somebody got it, and ours is well.
            let now = held.by;
            world.account.fail(format!("lock {n}: turn {turn} has it, and {now:?} got it as well"));
        } else {
            world.account.count("locks that were lost, and told so");
        }
        drop(held);
        if before.is_some() {
            world.account.count("locks that were taken from who was given up");
        }
        // Its opening may be gone: then so is the lock.
        world.account.call("unlock", || Ok(flock(&file, FlockOperation::Unlock)?))?;
        // A record lock beside, which waits for nobody.
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A use of the descriptor that the metadata server, or the daemon, has to answer.
fn is_well(world: &World, file: &File) -> bool {
    world.account.call("use", || file.write_all_at(b"mine", 0)).is_ok()
}
