//! Writes and checks files whose every byte follows from a seed and its offset, for data larger than any tier; and directories
//! of many names.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Write},
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use suites::{names, random::pattern};

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write `mebibytes` MiB, or until the file system is full with --until-full; print how many bytes were taken.
    Write {
        file: PathBuf,
        mebibytes: u64,
        seed: u32,
        #[arg(long)]
        until_full: bool,
        #[arg(long)]
        fsync: bool,
    },
    /// Read the whole file and compare every byte; print how many there were.
    Check { file: PathBuf, seed: u32 },
    /// Make `count` files of `bytes` each, a thousand to a directory.
    Many { dir: PathBuf, count: u64, bytes: usize },
    /// Check what `many` made.
    CheckMany { dir: PathBuf, count: u64, bytes: usize },
    /// Make a directory of `count` names.
    Names { dir: PathBuf, count: u64 },
    /// Make and remove other names in it until the file `stop` is there.
    StirNames { dir: PathBuf, stop: PathBuf, seed: u64 },
    /// Read it `passes` times: each of its names is there once. Print how many other names were seen.
    CheckNames { dir: PathBuf, count: u64, passes: u64 },
    /// Remove it with all that is in it.
    RemoveNames { dir: PathBuf },
}

const PIECE: usize = 1 << 20;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("pattern: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    let start = Instant::now();
    let bytes = match args.verb {
        Verb::Names { dir, count } => return told(names::make(&dir, count).map(|()| count)),
        Verb::StirNames { dir, stop, seed } => return told(names::stir(&dir, &stop, seed)),
        Verb::CheckNames { dir, count, passes } => return told(names::check(&dir, count, passes)),
        Verb::RemoveNames { dir } => return told(names::remove(&dir)),
        Verb::Write { file, mebibytes, seed, until_full, fsync } => {
            let mut out = File::create(&file).with_context(|| file.display().to_string())?;
            let done = write(&mut out, mebibytes << 20, seed, until_full)?;
            if fsync {
                out.sync_all().context("fsync")?;
            }
            done
        }
        Verb::Check { file, seed } => check(&file, seed)?,
        Verb::Many { dir, count, bytes } => many(&dir, count, bytes, true)?,
        Verb::CheckMany { dir, count, bytes } => many(&dir, count, bytes, false)?,
    };
    let rate = bytes as f64 / 1e6 / start.elapsed().as_secs_f64().max(1e-9);
    eprintln!("{:.0} MB/s", rate);
    println!("{bytes}");
    Ok(())
}

fn told(count: Result<u64>) -> Result<()> {
    println!("{}", count?);
    Ok(())
}

fn write(out: &mut File, total: u64, seed: u32, until_full: bool) -> Result<u64> {
    let mut buffer = vec![0; PIECE];
    let mut done = 0;
    while done < total {
        pattern(seed, done, &mut buffer);
        let piece = PIECE.min((total - done) as usize);
        match out.write(&buffer[..piece]) {
            Ok(0) => anyhow::bail!("a write of {piece} bytes took none"),
            Ok(n) => done += n as u64,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if until_full && e.kind() == ErrorKind::StorageFull => return Ok(done),
            Err(e) => return Err(e).with_context(|| format!("write at {done}")),
        }
    }
    ensure!(!until_full, "{total} bytes fitted: the file system never was full");
    Ok(done)
}

fn check(path: &PathBuf, seed: u32) -> Result<u64> {
    let mut file = OpenOptions::new().read(true).open(path).with_context(|| path.display().to_string())?;
    let (mut real, mut wanted) = (vec![0; PIECE], vec![0; PIECE]);
    let mut done = 0;
    loop {
        let len = file.read(&mut real).with_context(|| format!("read at {done}"))?;
        if len == 0 {
            break;
        }
        pattern(seed, done, &mut wanted[..len]);
        if let Some(at) = (0..len).find(|at| real[*at] != wanted[*at]) {
            anyhow::bail!("byte {} is {}, should be {}", done + at as u64, real[at], wanted[at]);
        }
        done += len as u64;
    }
    let size = file.metadata()?.len();
    ensure!(size == done, "read {done} bytes of a file of {size}");
    Ok(done)
}

fn many(dir: &std::path::Path, count: u64, bytes: usize, make: bool) -> Result<u64> {
    let (mut real, mut wanted) = (Vec::new(), vec![0; bytes]);
    for n in 0..count {
        let parent = dir.join(format!("{}", n / 1000));
        let path = parent.join(format!("{n}"));
        pattern(n as u32, 0, &mut wanted);
        if make {
            if n % 1000 == 0 {
                std::fs::create_dir_all(&parent)?;
            }
            std::fs::write(&path, &wanted).with_context(|| path.display().to_string())?;
        } else {
            real.clear();
            File::open(&path)
                .and_then(|mut f| f.read_to_end(&mut real))
                .with_context(|| path.display().to_string())?;
            ensure!(real == wanted, "{}: wrong content, {} bytes", path.display(), real.len());
        }
    }
    Ok(count * bytes as u64)
}
