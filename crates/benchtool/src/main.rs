//! Measures directories beside each other: the same work on each in turn, round by round, medians at the end. So what
//! drifts while it runs (clock rates, other programs) falls on all of them alike.
//!
//! - [`work`] what is measured, phase by phase; [`worker`] one process that does it; [`measure`] starts the workers
//!   together and takes the times and the daemon's CPU; [`table`] medians, ratios, JSON.
//! - [`bare`] and [`requests`] the processes of `bench/cluster/run`, which starts them on the hosts of a cluster.
//!
//! Refuses to know what a target is: it gets directories, and process numbers where CPU is to be counted.

mod aligned;
mod bare;
mod measure;
mod memory;
mod requests;
mod table;
mod work;
mod worker;

use std::{
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand};

use crate::{
    bare::Copying,
    measure::{Target, measure},
    requests::Requests,
    table::Table,
    work::{Group, Scale},
};

#[derive(Parser)]
#[command(about = "Measures directories beside each other")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the rows on every target and print the ratios of the last target to the others
    Compare(CompareArgs),
    /// Memory that a process takes per million files
    Memory {
        dir: PathBuf,
        #[arg(long)]
        pid: u32,
        #[arg(long, default_value_t = 200_000)]
        files: u64,
        /// Add the result to this JSON file, which a comparison may have written
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// One process of a measurement (started by the others)
    #[command(hide = true)]
    Worker {
        group: String,
        dir: PathBuf,
        job: u32,
        #[arg(long)]
        scale: String,
    },
    /// List the rows
    List,
    /// A host of bare copies (bench/cluster/run)
    #[command(hide = true)]
    BareServe { listen: String, dir: PathBuf },
    /// A process that copies to or from them
    #[command(hide = true)]
    Bare(Copying),
    /// A process that writes or reads a part of a file
    #[command(hide = true)]
    Requests(Requests),
}

#[derive(clap::Args)]
struct CompareArgs {
    /// NAME=DIR, with NAME=DIR@PID where the CPU of a process is to be counted
    #[arg(long, required = true)]
    target: Vec<String>,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A tenth of the work
    #[arg(long)]
    quick: bool,
    /// Only the groups whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// A tar file for the source tree
    #[arg(long)]
    tree: Option<PathBuf>,
    /// MiB of the file that is larger than memory (0: leave it out); the targets named for it
    #[arg(long, default_value_t = 0)]
    large: u64,
    /// A shell command that is run after the work on each target, so that what it left to be done later burdens nobody else
    #[arg(long)]
    settle: Option<String>,
    /// Write the results as JSON to this file
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("benchtool: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    match args.verb {
        Verb::Compare(args) => compare(&args),
        Verb::Memory { dir, pid, files, json } => memory::report(&dir, pid, files, json.as_deref()),
        Verb::Worker { group, dir, job, scale } => {
            worker::run(&Group::parse(&group)?, &dir, job, &Scale::parse(&scale)?)
        }
        Verb::BareServe { listen, dir } => bare::serve(&listen, &dir),
        Verb::Bare(copying) => copying.run(),
        Verb::Requests(requests) => requests.run(),
        Verb::List => {
            for group in Group::all(true, 1) {
                println!("{}: {}", group.name(), group.phases().join(", "));
            }
            Ok(())
        }
    }
}

fn compare(args: &CompareArgs) -> Result<()> {
    let targets: Vec<Target> = args.target.iter().map(|t| Target::parse(t)).collect::<Result<_>>()?;
    ensure!(args.rounds > 0, "no rounds, no results");
    let scale = Scale { quick: args.quick, tree: args.tree.clone(), large_mib: args.large };
    let groups: Vec<Group> = Group::all(args.tree.is_some(), args.large)
        .into_iter()
        .filter(|g| g.name().contains(&args.only))
        .collect();
    if groups.is_empty() {
        bail!("no rows match {:?} (benchtool list)", args.only);
    }
    let mut table = Table::new(targets.iter().map(|t| t.name.clone()).collect());
    for group in &groups {
        for round in 0..args.rounds {
            for n in 0..targets.len() {
                // Every round begins with another target.
                let target = &targets[(n + round) % targets.len()];
                match measure(group, target, &scale) {
                    Ok(samples) => table.add(group, &target.name, samples),
                    Err(why) => eprintln!("{} on {}: {why:#}", group.name(), target.name),
                }
                settle(args.settle.as_deref())?;
            }
        }
        table.print_group(group);
    }
    table.print_footer();
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&table.results())?)?;
    }
    Ok(())
}

fn settle(command: Option<&str>) -> Result<()> {
    let Some(command) = command else { return Ok(()) };
    let status = Command::new("sh").args(["-c", command]).stdout(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}
