//! Runs one group on one target: starts the processes, lets them begin each phase together, takes times and CPU.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::work::{Group, Scale, Unit};

/// A directory to measure, and whose CPU counts.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    pub dir: PathBuf,
    pub pid: Option<u32>,
}

impl Target {
    /// `NAME=DIR` or `NAME=DIR@PID`.
    pub fn parse(text: &str) -> Result<Target> {
        let (name, rest) = text.split_once('=').with_context(|| format!("{text:?} is not NAME=DIR"))?;
        let (dir, pid) = match rest.rsplit_once('@') {
            Some((dir, pid)) => (dir, Some(pid.parse().with_context(|| format!("{pid:?} is no process"))?)),
            None => (rest, None),
        };
        let dir = PathBuf::from(dir);
        ensure!(dir.is_dir(), "{}: not a directory", dir.display());
        Ok(Target { name: name.to_owned(), dir, pid })
    }
}

/// One phase, once.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// In the group's unit.
    pub rate: f64,
    pub operations: u64,
    /// CPU of the target's process.
    pub cpu_seconds: Option<f64>,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(group: &Group, dir: &std::path::Path, job: u32, scale: &Scale) -> Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["worker", &group.name()])
            .arg(dir)
            .arg(job.to_string())
            .args(["--scale", &scale.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("no pipe")?;
        let output = BufReader::new(child.stdout.take().context("no pipe")?);
        Ok(Worker { child, input, output })
    }
    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!("a worker ended early ({})", self.child.wait()?);
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does the group's phases in a directory of their own, which is removed again. One sample per phase.
pub fn measure(group: &Group, target: &Target, scale: &Scale) -> Result<Vec<Sample>> {
    let dir = target.dir.join(format!("bench-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let outcome = phases(group, target, &dir, scale);
    let _ = std::fs::remove_dir_all(&dir);
    outcome
}

fn phases(group: &Group, target: &Target, dir: &std::path::Path, scale: &Scale) -> Result<Vec<Sample>> {
    let mut workers =
        (0..group.jobs()).map(|job| Worker::start(group, dir, job, scale)).collect::<Result<Vec<_>>>()?;
    let mut samples = Vec::new();
    for _ in group.phases() {
        for worker in &mut workers {
            ensure!(worker.line()? == "ready", "a worker did not become ready");
        }
        let before = target.pid.map(cpu_seconds).transpose()?;
        for worker in &mut workers {
            worker.input.write_all(b"go\n")?;
        }
        let (mut operations, mut bytes, mut seconds) = (0, 0, 0f64);
        for worker in &mut workers {
            let line = worker.line()?;
            let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            let [ops, size, nanos] = numbers[..] else { bail!("a worker said {line:?}") };
            operations += ops;
            bytes += size;
            seconds = seconds.max(nanos as f64 / 1e9);
        }
        let after = target.pid.map(cpu_seconds).transpose()?;
        let amount = match group.unit() {
            Unit::MegabytesPerSecond => bytes as f64 / 1e6,
            Unit::PerSecond => operations as f64,
        };
        let cpu_seconds = after.zip(before).map(|(a, b)| a - b);
        samples.push(Sample { rate: amount / seconds.max(1e-9), operations, cpu_seconds });
    }
    Ok(samples)
}

/// User and system time of a process so far.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).context("the target's process has ended")?;
    // After the name, which may hold anything, in brackets: state is field 3.
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n - 3).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((ticks(14) + ticks(15)) / rustix::param::clock_ticks_per_second() as f64)
}
