//! Kills the daemon at random points under load, while its memory tier shrinks, while it unmounts, and again while it
//! mounts and replays; then mounts and checks every acknowledged operation; with
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

/// What the daemon does when the kill comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum During {
    Load,
    /// Under load, `onfs memory set` moves data out.
    Shrink,
    /// Nothing is open, `onfs umount` makes all data safe.
    Unmount,
}

impl During {
    const fn word(self) -> &'static str {
        match self {
            During::Load => "under load",
            During::Shrink => "while memory shrinks",
            During::Unmount => "while it unmounts",
        }
    }
}

/// One kill: after how many operations, and then when.
struct Kill {
    during: During,
    after: u64,
    spin: Duration,
    cut: bool,
}

impl Kill {
    /// A reboot and a power cut come under load only: a clean end of the mount gives the memory back.
    fn draw(args: &Args, killer: &mut Random) -> Kill {
        let after = 10 + killer.log_below(args.operations_max);
        let only_load = args.reboot || args.power_cut;
        let during = match killer.below(5) {
            3 if !only_load => During::Shrink,
            4 if !only_load => During::Unmount,
            _ => During::Load,
        };
        let spin = match during {
            During::Load => killer.below(2_000),
            // Some come before it begins, some after it ended.
            During::Shrink | During::Unmount => 1_000 + killer.log_below(1_000_000),
        };
        Kill { during, after, spin: Duration::from_micros(spin), cut: args.power_cut }
    }
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
        link: false,
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
        let kill = Kill::draw(args, &mut killer);
        let in_time = run_until_killed(args, rig, &mut workers, &kill)?;
        suffer(args, rig, round)?;
        let again = if args.reboot || args.power_cut { 0 } else { killer.below(4) };
        for n in 0..again {
            let after = Duration::from_micros(1_000 + killer.below(400_000));
            rig.mount_and_kill(after)
                .with_context(|| format!("kill {n} of {again}, {after:?} after the start"))?;
        }
        rig.mount().context("mount after the kill")?;
        for (n, worker) in workers.iter_mut().enumerate() {
            let reboot = args.reboot.then(|| Reboot { eio_unit: args.eio_unit, lost: lost.clone() });
            let checked = if args.power_cut { worker.check_cut(lost) } else { worker.check(reboot) };
            if let Err(why) = checked {
                let steps = worker.report();
                bail!(
                    "after kill {round} {} (operation {}) and {again} while mounting, worker {n}: {why:#}
its last steps:
{steps}",
                    kill.during.word(),
                    kill.after
                );
            }
        }
        let while_mounting = if again > 0 { format!(", {again} while mounting") } else { String::new() };
        let (during, after) = (if in_time { kill.during.word() } else { "after the unmount" }, kill.after);
        tally.pass(&format!("seed {seed}, kill {round} {during} after {after} operations{while_mounting}"));
    }
    rig.unmount().context("the clean unmount at the end")?;
    rig.mount().context("the mount at the end")?;
    for worker in &mut workers {
        compare(worker.performer.root(), &mut worker.tree, Contents::None, Moment::now())
            .context("after a clean remount")?;
    }
    rig.unmount().context("the second clean unmount")
}

/// What else the kill took, and whether what is left is in order.
fn suffer(args: &Args, rig: &mut Rig, round: u64) -> Result<()> {
    if args.reboot || args.power_cut {
        rig.lose_memory()?;
    }
    if args.power_cut {
        rig.restore_power()?;
    }
    if args.fsck_every > 0 && (round + 1).is_multiple_of(args.fsck_every) && !args.reboot && !args.power_cut {
        rig.fsck()?;
    }
    Ok(())
}

/// Lets the workers run and kills the daemon. Says whether the kill came before it had ended by itself.
fn run_until_killed(args: &Args, rig: &mut Rig, workers: &mut [Worker], kill: &Kill) -> Result<bool> {
    let signals = Signals::default();
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| scope.spawn(|| worker.work(&signals, |path, tier| migrate(&args.onfs, path, tier))))
            .collect();
        let killed = wait_and_kill(rig, &signals, kill, &|| running.iter().all(|r| r.is_finished()));
        let mut outcomes = vec![killed];
        for worker in running {
            outcomes.push(worker.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked"))));
        }
        outcomes
    });
    for worker in workers.iter_mut() {
        worker.performer.close_all();
    }
    let gone = match kill.during {
        During::Load | During::Shrink => rig.finish_kill().map(|()| true),
        During::Unmount => rig.unmount_and_kill(kill.spin),
    };
    for outcome in outcomes {
        outcome?;
    }
    gone
}

fn wait_and_kill(rig: &mut Rig, signals: &Signals, kill: &Kill, ended: &dyn Fn() -> bool) -> Result<()> {
    let mut seen = (0, Instant::now());
    let stalled = loop {
        let done = signals.done.load(Ordering::Relaxed);
        if done >= kill.after || ended() {
            break false;
        }
        if done > seen.0 {
            seen = (done, Instant::now());
        } else if seen.1.elapsed() > STALL {
            break true;
        }
        std::thread::sleep(Duration::from_micros(100));
    };
    if kill.during == During::Unmount {
        signals.stop.store(true, Ordering::Release);
        ensure!(!stalled, "no operation was answered for {STALL:?}");
        return Ok(());
    }
    let at = rig.mountpoint();
    let shrinking = match kill.during {
        During::Shrink => Some(rig.begin(&["memory", "set", "8MiB"], &[&at])?),
        During::Load | During::Unmount => None,
    };
    std::thread::sleep(kill.spin);
    signals.killing.store(true, Ordering::Release);
    rig.kill()?;
    if kill.cut {
        rig.cut_power()?;
    }
    if let Some(mut shrinking) = shrinking {
        shrinking.wait()?;
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
