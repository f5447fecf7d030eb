//! Kills the daemon at random points under load, mounts again and checks every acknowledged operation; with
//! `--reboot` the memory tier is lost as well, and every fsynced byte must still be there; with `--power-cut` also what the
//! disk was not given yet.
//!
//! One line per kill. A seed fixes each worker's operations and after how many of them the kill comes; where exactly
//! it hits is the machine's.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Parser;
use suites::{
    compare::{Contents, compare},
    crash::{Reboot, Signals, Worker},
    moment::Moment,
    op::{Generator, Shape},
    perform::{Performer, abilities},
    random::Random,
    rig::{Rig, RigOptions, scratch_dir},
    tally::Tally,
    tree::Tree,
};

#[derive(Parser)]
struct Args {
    /// The onfs binary.
    #[arg(long, env = "SUITES_ONFS", default_value = "target/release/onfs")]
    onfs: PathBuf,
    /// Scratch directories are made here, on a disk.
    #[arg(long, env = "SUITES_ROOT", default_value = "/var/tmp")]
    root: PathBuf,
    /// The memory tier's size: small, so that files move down while the test runs.
    #[arg(long, default_value = "48MiB")]
    memory: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Kills; one test case each.
    #[arg(long, default_value_t = 60)]
    kills: u64,
    /// Kills before the file system is made anew.
    #[arg(long, default_value_t = 10)]
    kills_per_state: u64,
    #[arg(long, default_value_t = 3)]
    workers: u64,
    /// Largest number of operations before a kill.
    #[arg(long, default_value_t = 4000)]
    operations_max: u64,
    /// Lose the memory tier at each kill, as a reboot does.
    #[arg(long)]
    reboot: bool,
    /// Lose the memory tier and whatever was not written to the disk.
    #[arg(long, conflicts_with = "reboot")]
    power_cut: bool,
    /// With --power-cut: size of the disk.
    #[arg(long, default_value_t = 768 << 20)]
    disk_bytes: u64,
    /// With --reboot: bytes that may be lost together with a changed one.
    #[arg(long, default_value_t = 4096)]
    eio_unit: u64,
    /// Run `onfs fsck` after every so many kills (0: never).
    #[arg(long, default_value_t = 5)]
    fsck_every: u64,
    /// Keep the state of a failure instead of deleting it.
    #[arg(long)]
    keep: bool,
}

/// No operation takes this long; a file system that makes none in this time hangs.
const STALL: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let args = Args::parse();
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut tally = Tally::new(if args.power_cut {
        "power"
    } else if args.reboot {
        "reboot"
    } else {
        "crash"
    });
    let lost = Arc::new(AtomicU64::new(0));
    let mut kill = 0;
    while kill < args.kills {
        let seed = args.seed + kill / args.kills_per_state.max(1);
        let rounds = args.kills_per_state.clamp(1, args.kills - kill);
        if let Err(why) = one_state(&args, seed, rounds, &lost, &mut tally) {
            tally.fail(&format!("seed {seed}"), &format!("{why:#}\nreplay: --seed {seed} --kills {rounds}"));
        }
        kill += rounds;
    }
    if args.reboot || args.power_cut {
        println!("  {} files were lost at reboots and said so with EIO", lost.load(Ordering::Relaxed));
    }
    tally.exit_code()
}

/// One file system through several kills.
fn one_state(args: &Args, seed: u64, rounds: u64, lost: &Arc<AtomicU64>, tally: &mut Tally) -> Result<()> {
    let scratch = scratch_dir(&args.root, "onfs-crash")?;
    let options = RigOptions {
        onfs: args.onfs.clone(),
        scratch: scratch.clone(),
        memory: args.memory.clone(),
        extra: vec![],
        disk: args.power_cut.then_some(args.disk_bytes),
    };
    let mut rig = Rig::new(options)?;
    let outcome = kill_and_check(args, &mut rig, seed, rounds, lost, tally);
    if let Err(why) = &outcome
        && args.keep
    {
        println!("  kept: {}", scratch.display());
        std::mem::forget(rig);
        return Err(anyhow!("{why:#}"));
    }
    let tail = rig.log_tail();
    rig.destroy()?;
    outcome.map_err(|why| anyhow!("{why:#}\nthe daemon's log ends:\n{tail}"))
}

fn kill_and_check(
    args: &Args,
    rig: &mut Rig,
    seed: u64,
    rounds: u64,
    lost: &Arc<AtomicU64>,
    tally: &mut Tally,
) -> Result<()> {
    let random = Random::new(seed);
    let mut killer = random.fork(1000);
    rig.mount()?;
    let found = abilities(&rig.mountpoint(), true)?;
    let shape = Shape { file_bytes_max: 9 << 20, tree_bytes_max: 40 << 20, remount_per_mille: 0 };
    let mut workers = Vec::new();
    for n in 0..args.workers {
        let dir = rig.mountpoint().join(format!("worker-{n}"));
        std::fs::create_dir(&dir)?;
        std::fs::File::open(&dir)?.sync_all()?;
        workers.push(Worker {
            tree: Tree::default(),
            performer: Performer::new(&dir),
            generator: Generator::new(random.fork(n), found, shape),
            in_flight: None,
            history: Vec::new(),
            since_sync: args.power_cut.then(|| vec![Tree::default()]),
        });
    }
    for round in 0..rounds {
        let after = 10 + killer.log_below(args.operations_max);
        run_until_killed(args, rig, &mut workers, after, killer.below(2_000))?;
        if args.reboot || args.power_cut {
            rig.lose_memory()?;
        }
        if args.power_cut {
            rig.restore_power()?;
        }
        if args.fsck_every > 0 && (round + 1) % args.fsck_every == 0 && !args.reboot && !args.power_cut {
            rig.fsck()?;
        }
        rig.mount().context("mount after the kill")?;
        for (n, worker) in workers.iter_mut().enumerate() {
            let reboot = args.reboot.then(|| Reboot { eio_unit: args.eio_unit, lost: lost.clone() });
            let checked = if args.power_cut { worker.check_cut(lost) } else { worker.check(reboot) };
            if let Err(why) = checked {
                let steps = worker.report();
                bail!(
                    "after kill {round} (operation {after}), worker {n}: {why:#}
its last steps:
{steps}"
                );
            }
        }
        tally.pass(&format!("seed {seed}, kill {round} after {after} operations"));
    }
    rig.unmount().context("the clean unmount at the end")?;
    rig.mount().context("the mount at the end")?;
    for worker in &mut workers {
        compare(worker.performer.root(), &mut worker.tree, Contents::None, Moment::now())
            .context("after a clean remount")?;
    }
    rig.unmount().context("the second clean unmount")
}

/// Lets the workers run and kills the daemon after `count` operations and `spin` further microseconds.
fn run_until_killed(args: &Args, rig: &mut Rig, workers: &mut [Worker], count: u64, spin: u64) -> Result<()> {
    let signals = Signals::default();
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(|| worker.work(&signals, |path, tier| migrate(&args.onfs, path, tier))))
            .collect();
        let killed = wait_and_kill(rig, (&signals, args.power_cut), count, spin, &|| {
            running.iter().all(|r| r.is_finished())
        });
        let mut outcomes = vec![killed];
        for worker in running {
            outcomes.push(worker.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked"))));
        }
        outcomes
    });
    let gone = rig.finish_kill();
    for outcome in outcomes {
        outcome?;
    }
    for worker in workers.iter_mut() {
        worker.performer.close_all();
    }
    gone
}

fn wait_and_kill(
    rig: &mut Rig,
    (signals, cut): (&Signals, bool),
    count: u64,
    spin: u64,
    ended: &dyn Fn() -> bool,
) -> Result<()> {
    let mut seen = (0, Instant::now());
    let stalled = loop {
        let done = signals.done.load(Ordering::Relaxed);
        if done >= count || ended() {
            break false;
        }
        if done > seen.0 {
            seen = (done, Instant::now());
        } else if seen.1.elapsed() > STALL {
            break true;
        }
        std::thread::sleep(Duration::from_micros(100));
    };
    std::thread::sleep(Duration::from_micros(spin));
    signals.killing.store(true, Ordering::Release);
    rig.kill()?;
    if cut {
        rig.cut_power()?;
    }
    ensure!(!stalled, "no operation was answered for {STALL:?}");
    Ok(())
}

/// A move runs beside the operations; whether it is done when the kill comes does not matter.
fn migrate(onfs: &Path, path: &Path, tier: &str) {
    let _ = Command::new("timeout")
        .arg("60")
        .arg(onfs)
        .args(["migrate", "--wait", "--to", tier])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}
