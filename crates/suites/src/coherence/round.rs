//! One round: a fresh directory, threads that take turns on the mounts, what they called and were answered.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::{
    CallOf, Workload,
    beside::Beside,
    history::{Call, Clock, Header},
};
use crate::random::Random;

/// What is killed while a round runs: a program kills it when run with `kill`, and brings it back when run with `back`.
#[derive(Clone, Debug)]
pub enum Fault {
    None,
    Server(PathBuf),
    /// The daemon of the last mount.
    Client(PathBuf),
}

#[derive(Clone, Debug)]
pub struct RoundOptions {
    pub mounts: Vec<PathBuf>,
    /// Of each mount.
    pub threads: u32,
    /// Calls of each thread; with a fault it goes on until some time after that.
    pub calls: u64,
    pub fault: Fault,
    /// Runs beside the threads.
    pub beside: Option<PathBuf>,
}

/// A thread that waits for servers makes no more than so many calls.
const CALLS_MAX_WITH_FAULT: u64 = 400;
/// While a server comes back few calls are enough, and what waits for it overlaps all of them.
const PAUSE_WITH_FAULT: Duration = Duration::from_millis(30);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(200);

/// Runs a round; its directory is removed afterwards.
pub fn run<W: Workload>(options: &RoundOptions, seed: u64, round: u64) -> Result<(Header, Vec<CallOf<W>>)> {
    let random = Random::new(seed).fork(round);
    let name = format!("{}-{seed}-{round}-{}", W::KIND, std::process::id());
    let dirs: Vec<PathBuf> = options.mounts.iter().map(|m| m.join(&name)).collect();
    std::fs::create_dir(&dirs[0]).context("make the round's directory")?;
    if let Some(program) = &options.beside {
        Beside::prepare(program, &dirs[0])?;
    }
    let workload = W::prepare(dirs.clone(), &mut random.fork(1_000)).context("prepare the round")?;
    let beside = options.beside.as_ref().map(|program| Beside::start(program, &dirs[0])).transpose()?;
    let clock = Clock::start();
    let faulted = AtomicBool::new(matches!(options.fault, Fault::None));
    let (fault, calls) = std::thread::scope(|scope| -> Result<_> {
        let mut workers = Vec::new();
        for thread in 0..options.threads * options.mounts.len() as u32 {
            let mut worker = Worker {
                workload: &workload,
                options,
                thread,
                random: random.fork(u64::from(thread)),
                clock,
                faulted: &faulted,
            };
            workers.push(scope.spawn(move || worker.run()));
        }
        let fault = strike(options, &mut random.fork(2_000), clock);
        faulted.store(true, Ordering::Release);
        let mut calls = Vec::new();
        for worker in workers {
            calls.extend(worker.join().map_err(|_| anyhow!("a thread of the round panicked"))??);
        }
        Ok((fault?, calls))
    })?;
    beside.map(Beside::end).transpose()?;
    let mut header =
        Header { kind: W::KIND.to_owned(), seed, round, faults: Vec::new(), client_killed: false };
    match options.fault {
        Fault::None => {}
        Fault::Server(_) => header.faults.extend(fault),
        Fault::Client(_) => header.client_killed = true,
    }
    let mut calls: Vec<_> = calls;
    let last = patiently(&options.fault, || {
        let last = workload.look_back(clock)?;
        match last.iter().find_map(|c| c.answer.as_ref().err()) {
            Some(why) => bail!("{}", why.said),
            None => Ok(last),
        }
    });
    calls.extend(last.context("look at what came out of the round")?);
    calls.sort_by_key(|c| c.called);
    drop(workload);
    patiently(&options.fault, || Ok(std::fs::remove_dir_all(&dirs[0])?))
        .context("remove the round's directory")?;
    Ok((header, calls))
}

/// A data server that was away may cost its files until its next report (S-166).
fn patiently<T>(fault: &Fault, mut act: impl FnMut() -> Result<T>) -> Result<T> {
    let tries = if matches!(fault, Fault::None) { 1 } else { 60 };
    for _ in 1..tries {
        if let Ok(done) = act() {
            return Ok(done);
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    act()
}

/// Carries the fault out at a random moment; says between which moments the kill was.
fn strike(options: &RoundOptions, random: &mut Random, clock: Clock) -> Result<Option<(u64, u64)>> {
    let program = match &options.fault {
        Fault::None => return Ok(None),
        Fault::Server(program) | Fault::Client(program) => program,
    };
    let run = |word: &str| -> Result<()> {
        let status = Command::new(program).arg(word).stdin(Stdio::null()).status();
        let status = status.with_context(|| format!("run {}", program.display()))?;
        ensure!(status.success(), "{} {word} ended with {status}", program.display());
        Ok(())
    };
    std::thread::sleep(Duration::from_millis(100 + random.below(300)));
    let (from, to, killed) = clock.time(|| run("kill"));
    killed?;
    run("back")?;
    Ok(Some((from, to)))
}

struct Worker<'a, W> {
    workload: &'a W,
    options: &'a RoundOptions,
    thread: u32,
    random: Random,
    clock: Clock,
    faulted: &'a AtomicBool,
}

impl<W: Workload> Worker<'_, W> {
    fn run(&mut self) -> Result<Vec<CallOf<W>>> {
        let mount = self.thread as usize % self.options.mounts.len();
        let mut hand = self.workload.hand(mount)?;
        let with_fault = !matches!(self.options.fault, Fault::None);
        let mut calls = Vec::new();
        let mut after = 0;
        while after < self.options.calls {
            let op = self.workload.draw(&mut self.random);
            let done = self.workload.perform(&mut hand, &op, self.clock);
            let failed = done.answer.as_ref().err().cloned();
            calls.push(Call {
                thread: self.thread,
                mount,
                called: done.called,
                returned: done.returned,
                op,
                answer: done.answer,
            });
            if let Some(why) = failed {
                if why.mount_is_gone() {
                    break;
                }
                std::thread::sleep(PAUSE_AFTER_ERROR);
            }
            if with_fault {
                std::thread::sleep(PAUSE_WITH_FAULT);
                if calls.len() as u64 > CALLS_MAX_WITH_FAULT {
                    break;
                }
            }
            // A part of the calls comes after the fault.
            if self.faulted.load(Ordering::Acquire) || calls.len() as u64 * 2 < self.options.calls {
                after += 1;
            }
        }
        Ok(calls)
    }
}
