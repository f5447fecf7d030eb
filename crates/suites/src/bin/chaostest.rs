//! The workload of `tests/chaos`: see [`suites::chaos`]. It runs until the notes' directory has a file `stop`, then waits until all is at rest, checks
//! what there is, and prints what calls took.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use suites::{
    chaos::{World, appends::Log, files::Owned, locks::Locks, names::Names, prepare},
    random::Random,
};

#[derive(Parser)]
struct Args {
    /// A mount of the cluster.
    #[arg(long = "mount", required = true)]
    mounts: Vec<PathBuf>,
    /// Where faults are noted.
    #[arg(long)]
    notes: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads with files of their own on each mount.
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Files of each.
    #[arg(long, default_value_t = 3)]
    files: u32,
    /// The mounts have `mount.write_back`: what they answered and did not send goes with them when they are killed.
    #[arg(long)]
    keeps_back: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaostest: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<bool> {
    let world = World::new(args.mounts.clone(), args.notes.clone(), args.keeps_back);
    prepare(&args.mounts[0]).context("the directory of the workload")?;
    let random = Random::new(args.seed);
    let (log, locks) = (Log::default(), Locks::default());
    std::thread::scope(|scope| {
        for mount in 0..args.mounts.len() {
            for thread in 0..args.threads {
                let number = mount as u32 * args.threads + thread;
                let random = random.fork(u64::from(number));
                let world = &world;
                scope.spawn(move || own_files(world, args.files, (number, mount), random));
            }
            let (number, log, locks, world) = (mount as u32, &log, &locks, &world);
            scope.spawn(move || log.write(world, number, mount));
            let mut of_names = random.fork(1000 + u64::from(number));
            scope.spawn(move || {
                let mut names = Names::new(world, number);
                while !world.has_ended() {
                    names.step(&mut of_names);
                }
                names.finish();
            });
            for n in 0..2 {
                let mut of_locks = random.fork(2000 + 2 * u64::from(number) + n);
                scope.spawn(move || {
                    while !world.has_ended() {
                        locks.step(world, mount, &mut of_locks);
                    }
                });
            }
        }
        while !args.notes.join("stop").exists() {
            std::thread::sleep(Duration::from_millis(100));
        }
        world.end();
    });
    log.check(&world);
    println!("{}", world.account.report());
    let failures = world.account.failures();
    failures.iter().for_each(|failure| println!("WRONG: {failure}"));
    Ok(failures.is_empty())
}

fn own_files(world: &World, files: u32, (thread, mount): (u32, usize), mut random: Random) {
    let mut owned: Vec<Owned<'_>> =
        (0..files).map(|n| Owned::new(world, thread * files + n, mount)).collect();
    while !world.has_ended() {
        let n = random.below(u64::from(files)) as usize;
        owned[n].step(&mut random);
    }
    owned.iter_mut().for_each(Owned::finish);
}
