//! Calls from several threads through several mounts of one file system, and whether their answers are those of one: see
//! [`suites::coherence`]. A history that is wrong is kept, and `--replay` says again what is wrong with it.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use suites::{
    coherence::{
        Judgement, Workload,
        appends::Appends,
        blocks::Blocks,
        entries::Names,
        history::{load_calls, load_header, save},
        lengths::Lengths,
        locks::Locks,
        round::{self, Fault, RoundOptions},
    },
    tally::Tally,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kind {
    Blocks,
    Names,
    Lengths,
    Appends,
    Locks,
}

#[derive(Parser)]
#[command(args_override_self = true)]
struct Args {
    /// A mount of the file system; at least one, a directory given twice is its own twin.
    #[arg(long = "mount")]
    mounts: Vec<PathBuf>,
    /// What is called.
    #[arg(long = "kind", value_enum)]
    kinds: Vec<Kind>,
    /// What the cases are printed under.
    #[arg(long, default_value = "coherence")]
    name: String,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 10)]
    rounds: u64,
    /// Threads on each mount.
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Calls of each thread in a round.
    #[arg(long, default_value_t = 60)]
    calls: u64,
    /// A program that kills a server (`PROGRAM kill`) and brings it back (`PROGRAM back`), once in each round.
    #[arg(long, conflicts_with = "kill_client")]
    kill_server: Option<PathBuf>,
    /// The same for the daemon of the last mount.
    #[arg(long)]
    kill_client: Option<PathBuf>,
    /// A program that runs in each round while its threads call: `PROGRAM begin DIR` before them, then `PROGRAM while DIR` until
    /// its input ends. Nobody may see anything of it.
    #[arg(long)]
    beside: Option<PathBuf>,
    /// Where histories that are wrong are kept.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    keep: PathBuf,
    /// Judge a history that was kept, instead.
    #[arg(long)]
    replay: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // The modes that are asked for are the modes that are made.
    rustix::process::umask(rustix::fs::Mode::empty());
    match run(&args) {
        Ok(code) => code,
        Err(e) => {
            println!("FAIL {}/set-up: {e:#}", args.name);
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let mut tally = Tally::new(&args.name);
    if let Some(path) = &args.replay {
        tally.record("replay", replay(path));
        return Ok(tally.exit_code());
    }
    ensure!(!args.mounts.is_empty(), "no --mount");
    for kind in if args.kinds.is_empty() { Kind::value_variants() } else { &args.kinds } {
        match kind {
            Kind::Blocks => one_kind::<Blocks>(args, &mut tally),
            Kind::Names => one_kind::<Names>(args, &mut tally),
            Kind::Lengths => one_kind::<Lengths>(args, &mut tally),
            Kind::Appends => one_kind::<Appends>(args, &mut tally),
            Kind::Locks => one_kind::<Locks>(args, &mut tally),
        }
    }
    Ok(tally.exit_code())
}

fn replay(path: &Path) -> Result<()> {
    let header = load_header(path)?;
    let judgement = match header.kind.as_str() {
        Blocks::KIND => Blocks::judge(&header, &load_calls(path)?),
        Names::KIND => Names::judge(&header, &load_calls(path)?),
        Lengths::KIND => Lengths::judge(&header, &load_calls(path)?),
        Appends::KIND => Appends::judge(&header, &load_calls(path)?),
        Locks::KIND => Locks::judge(&header, &load_calls(path)?),
        other => bail!("a history of {other:?} is not known"),
    };
    ensure!(judgement.unknown == 0, "not found out within the bound");
    ensure!(judgement.wrong.is_empty(), "{}", judgement.wrong.join("\n"));
    Ok(())
}

/// All rounds of one kind are one case; it ends with the first round that is wrong.
fn one_kind<W: Workload>(args: &Args, tally: &mut Tally) {
    let fault = match (&args.kill_server, &args.kill_client) {
        (Some(command), _) => Fault::Server(command.clone()),
        (None, Some(command)) => Fault::Client(command.clone()),
        (None, None) => Fault::None,
    };
    let options = RoundOptions {
        mounts: args.mounts.clone(),
        threads: args.threads,
        calls: args.calls,
        fault,
        beside: args.beside.clone(),
    };
    let case = format!("{}, seed {}, {} rounds", W::KIND, args.seed, args.rounds);
    match W::missing(&args.mounts).and_then(|missing| match missing {
        Some(why) => Ok(Err(why)),
        None => rounds::<W>(args, &options).map(Ok),
    }) {
        Ok(Err(missing)) => tally.skip(&case, missing),
        Ok(Ok(sum)) => {
            println!("  {}: {sum}", W::KIND);
            tally.pass(&case);
        }
        Err(why) => tally.fail(&case, &format!("{why:#}")),
    }
}

fn rounds<W: Workload>(args: &Args, options: &RoundOptions) -> Result<String> {
    let (mut calls_made, mut unanswered, mut objects, mut unknown, mut longest_ns) = (0, 0, 0, 0, 0);
    for round in 0..args.rounds {
        let (header, calls) =
            round::run::<W>(options, args.seed, round).with_context(|| format!("round {round}"))?;
        // Kept first: what cannot be judged in time must not be lost.
        let kept = args.keep.join(format!("{}-{}-{round}.history", W::KIND, args.seed));
        save(&kept, &header, &calls)?;
        let judgement: Judgement = W::judge(&header, &calls);
        calls_made += calls.len();
        unanswered += calls.iter().filter(|c| c.answer.is_err()).count();
        longest_ns = calls.iter().map(|c| c.returned - c.called).fold(longest_ns, u64::max);
        objects += judgement.objects;
        unknown += judgement.unknown;
        if let Some(first) = judgement.wrong.first() {
            bail!(
                "round {round}: {first}\n{} wrong in all, of {} calls; kept: coherencetest --replay {}",
                judgement.wrong.len(),
                calls.len(),
                kept.display()
            );
        }
        if judgement.unknown == 0 {
            std::fs::remove_file(&kept)?;
        }
    }
    // A checker that gives up has shown nothing. What was under way at a kill has so many orders that it may be all of a few rounds:
    // that is said, and is no mistake of the file system.
    ensure!(
        !matches!(options.fault, Fault::None) || unknown * 10 <= objects,
        "{unknown} of {objects} histories were not found out within the bound"
    );
    Ok(format!(
        "{calls_made} calls, the longest of {} ms, {unanswered} without an answer, {objects} histories, {unknown} not found out",
        longest_ns / 1_000_000
    ))
}
