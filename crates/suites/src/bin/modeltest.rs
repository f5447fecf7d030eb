//! Random operations on a mount and on a reference file system in memory, compared after each step. Tier moves and
//! remounts are operations too. A failure is cut down by running shorter lists and printed with its seed.

#![expect(clippy::wildcard_enum_match_arm, reason = "one kind of operation at a time is picked out of many")]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use suites::{
    compare::{Contents, compare},
    moment::Moment,
    op::{Abilities, Generator, Op, Shape},
    perform::{Performer, abilities},
    random::Random,
    rig::{Rig, RigOptions, save_lines, scratch_dir},
    shrink::shrink,
    tally::Tally,
    tree::Tree,
};

#[derive(Parser)]
#[command(args_override_self = true)]
struct Args {
    /// Test this plain directory instead of an ONFS mount.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The onfs binary.
    #[arg(long, env = "SUITES_ONFS", default_value = "target/release/onfs")]
    onfs: PathBuf,
    /// Scratch directories are made here, on a disk.
    #[arg(long, env = "SUITES_ROOT", default_value = "/var/tmp")]
    root: PathBuf,
    /// The memory tier's size.
    #[arg(long, default_value = "64MiB")]
    memory: String,
    /// Further options of `onfs mount`, separated by spaces.
    #[arg(long, env = "SUITES_MOUNT_OPTIONS", default_value = "", allow_hyphen_values = true)]
    mount_options: String,
    /// What the cases are printed under.
    #[arg(long, default_value = "model")]
    name: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, one test case each.
    #[arg(long, default_value_t = 10)]
    runs: u64,
    #[arg(long, default_value_t = 2000)]
    steps: u64,
    /// Run a recorded list of operations (JSON lines) instead.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Seconds for making a counterexample shorter.
    #[arg(long, default_value_t = 90)]
    shrink_seconds: u64,
}

/// What is tested: a mount that can be remounted, or a directory.
enum Place {
    Plain(PathBuf),
    Onfs(Box<Rig>),
}

impl Place {
    fn path(&self) -> PathBuf {
        match self {
            Place::Plain(dir) => dir.clone(),
            Place::Onfs(rig) => rig.mountpoint(),
        }
    }
    fn remount(&mut self) -> Result<()> {
        match self {
            Place::Plain(_) => Ok(()),
            Place::Onfs(rig) => rig.unmount().and_then(|()| rig.mount()),
        }
    }
    /// After a failure: what follows needs a mount. When it is gone, the daemon's log is the first to ask why.
    fn revive(&mut self) -> Result<()> {
        let Place::Onfs(rig) = self else { return Ok(()) };
        if rig.is_alive() {
            return Ok(());
        }
        let said = rig.log_tail();
        let again = rig.revive();
        bail!(
            "the daemon or its mount is gone; its log ends:\n{said}\nmounted again: {}",
            again.map_or_else(|e| format!("{e:#}"), |()| "yes".to_owned())
        )
    }
    fn migrate(&self, path: &Path, tier: &str) -> Result<()> {
        let Place::Onfs(rig) = self else { return Ok(()) };
        let output = rig.command(&["migrate", "--wait", "--to", tier], &[path])?;
        let said =
            [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat();
        // A tier that is full refuses; that is not an error of the move.
        ensure!(output.status.success() || said.contains("no room"), "migrate: {said}");
        Ok(())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // The modes that are asked for are the modes that are made.
    rustix::process::umask(rustix::fs::Mode::empty());
    match run(&args) {
        Ok(code) => code,
        Err(e) => {
            println!("FAIL model/set-up: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let mut tally = Tally::new(&args.name);
    let scratch = scratch_dir(args.dir.as_ref().unwrap_or(&args.root), "onfs-model")?;
    let mut place = match &args.dir {
        Some(_) => Place::Plain(scratch.clone()),
        None => {
            let options = RigOptions {
                disk: None,
                link: false,
                onfs: args.onfs.clone(),
                scratch: scratch.clone(),
                memory: args.memory.clone(),
                extra: args.mount_options.split_whitespace().map(str::to_owned).collect(),
            };
            let mut rig = Rig::new(options)?;
            rig.mount()?;
            Place::Onfs(Box::new(rig))
        }
    };
    let found = abilities(&place.path(), args.dir.is_none())?;
    if let Some(path) = &args.replay {
        let lines = std::fs::read_to_string(path)?;
        let steps: Vec<Op> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        tally.record("replay", run_steps(&mut place, 0, &mut Steps::Given(steps.iter())).map(drop));
    } else {
        for seed in args.seed..args.seed + args.runs {
            one_seed(args, &mut place, found, seed, &mut tally);
        }
    }
    match place {
        Place::Plain(dir) => std::fs::remove_dir_all(dir)?,
        Place::Onfs(mut rig) => {
            let end = rig.unmount().and_then(|()| rig.fsck());
            tally.record("fsck at the end", end);
            rig.destroy()?;
        }
    }
    Ok(tally.exit_code())
}

fn one_seed(args: &Args, place: &mut Place, found: Abilities, seed: u64, tally: &mut Tally) {
    let case = format!("seed {seed}, {} steps", args.steps);
    let shape = Shape { file_bytes_max: 9 << 20, tree_bytes_max: 160 << 20, remount_per_mille: 2 };
    let mut generator = Generator::new(Random::new(seed), found, shape);
    let mut done = Vec::new();
    let outcome = run_steps(place, 0, &mut Steps::Drawn(&mut generator, args.steps, &mut done));
    let why = match outcome {
        // A generator that mostly draws what cannot be done tests little.
        Ok(succeeded) if succeeded * 2 > args.steps => return tally.pass(&case),
        Ok(succeeded) => return tally.fail(&case, &format!("only {succeeded} steps did something")),
        Err(why) => why,
    };
    println!("  seed {seed} failed at step {}: {why:#}", done.len());
    if let Err(gone) = place.revive() {
        return tally.fail(&case, &format!("{why:#}\n{gone:#}"));
    }
    println!("  making it shorter ...");
    let deadline = Instant::now() + Duration::from_secs(args.shrink_seconds);
    let mut attempt = 0;
    let short = shrink(done, deadline, |steps| {
        attempt += 1;
        let failed = run_steps(place, attempt, &mut Steps::Given(steps.iter())).is_err();
        // A list that ends the daemon is a counterexample too, and the next one needs a daemon.
        failed | place.revive().is_err()
    });
    let saved = std::env::temp_dir().join(format!("onfs-model-seed-{seed}.jsonl"));
    let listed: String = short.iter().take(60).map(|op| format!("{op:?}\n")).collect();
    let kept = save_lines(&saved, &short).map_or_else(|e| e.to_string(), |()| saved.display().to_string());
    let last = run_steps(place, attempt + 1, &mut Steps::Given(short.iter())).err().unwrap_or(why);
    tally.fail(&case, &format!("{last:#}\n{} operations, kept in {kept} (--replay):\n{listed}", short.len()));
}

/// Where the operations come from.
enum Steps<'a> {
    Given(std::slice::Iter<'a, Op>),
    Drawn(&'a mut Generator, u64, &'a mut Vec<Op>),
}

impl Steps<'_> {
    fn next(&mut self, tree: &Tree) -> Option<Op> {
        match self {
            Steps::Given(list) => list.next().cloned(),
            Steps::Drawn(_, 0, _) => None,
            Steps::Drawn(generator, left, done) => {
                *left -= 1;
                let op = generator.draw(tree);
                done.push(op.clone());
                Some(op)
            }
        }
    }
}

/// Runs a list in a fresh directory, and deletes that at the end. Gives the number of steps that succeeded.
fn run_steps(place: &mut Place, attempt: u64, steps: &mut Steps<'_>) -> Result<u64> {
    let name = format!("run-{attempt}");
    let dir = place.path().join(&name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("delete an earlier run")?;
    }
    std::fs::create_dir(&dir)?;
    let mut performer = Performer::new(&dir);
    let mut tree = Tree::default();
    let (mut step, mut succeeded) = (0u64, 0u64);
    let outcome = loop {
        let Some(op) = steps.next(&tree) else {
            break compare(&dir, &mut tree, Contents::All, Moment::now());
        };
        step += 1;
        match one_step(place, &mut performer, &mut tree, &op, step) {
            Ok(did) => succeeded += u64::from(did),
            Err(why) => break Err(why.context(format!("step {step}, {op:?}"))),
        }
    };
    performer.close_all();
    let deleted = std::fs::remove_dir_all(&dir).context("delete the run's directory");
    outcome.and(deleted).map(|()| succeeded)
}

/// True when the step succeeded, false when it failed as it should.
fn one_step(
    place: &mut Place,
    performer: &mut Performer,
    tree: &mut Tree,
    op: &Op,
    step: u64,
) -> Result<bool> {
    let since = Moment::now();
    let wanted = tree.apply(op);
    let real = performer.perform(op);
    match (&real, &wanted) {
        (Ok(a), Ok(b)) if a == b => {}
        (Err(a), Err(b)) if a == b => {}
        (Ok(a), Ok(b)) => {
            let empty = Vec::new();
            let (a, b) = (a.data.as_ref().unwrap_or(&empty), b.data.as_ref().unwrap_or(&empty));
            suites::compare::differ(a, b)?;
        }
        (real, wanted) => bail!("gave {:?}, should give {:?}", outcome(real), outcome(wanted)),
    }
    let mut contents = if step.is_multiple_of(64) { Contents::All } else { Contents::Touched };
    match op {
        Op::Remount => {
            place.remount()?;
            contents = Contents::All;
        }
        Op::Move { path, tier } if wanted.is_ok() => place.migrate(&performer.path(path), tier.word())?,
        _ => {}
    }
    compare(performer.root(), tree, contents, since)?;
    Ok(wanted.is_ok())
}

fn outcome<T, E: std::fmt::Debug>(result: &Result<T, E>) -> String {
    result.as_ref().map_or_else(|e| format!("{e:?}"), |_| "success".to_owned())
}
