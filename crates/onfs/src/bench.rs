//! A small benchmark of any directory: one process, one thread, plain system calls through the page cache.
//!
//! It says whether a mount behaves as expected and compares two directories; it does not replace fio.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{Advice, fadvise};
use serde::Serialize;

const MIB: usize = 1 << 20;
const PAGE: usize = 4 << 10;
/// Random reads and writes, each.
const RANDOM_MAX: u64 = 50_000;
const NAME: &str = ".onfs-bench";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BenchOptions {
    /// Bytes of the large file, rounded down to whole MiB; at least [`BenchOptions::SIZE_MIN`].
    pub size: u64,
    pub files: u32,
}

impl BenchOptions {
    pub const SIZE_MIN: u64 = MIB as u64;
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BenchRow {
    pub name: String,
    pub operations: u64,
    pub seconds: f64,
    pub operations_per_second: u64,
    /// Millions of bytes per second; `None` where no data moves.
    pub megabytes_per_second: Option<f64>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BenchReport {
    pub dir: String,
    pub size_bytes: u64,
    pub files: u64,
    pub rows: Vec<BenchRow>,
}

/// Runs all measurements in a directory made inside `dir`, which is removed again. `step` gets the name of each
/// measurement and how many there are, before it runs.
pub fn run(
    dir: &Path,
    options: BenchOptions,
    step: &mut dyn FnMut(&str, u64, u64),
) -> io::Result<BenchReport> {
    let place = Place::new(dir)?;
    let size = (options.size - options.size % MIB as u64).max(BenchOptions::SIZE_MIN);
    let large = place.0.join("large");
    let bench = Bench { large, small: place.0.join("small"), size, files: options.files };
    type Measure = fn(&Bench) -> io::Result<Measured>;
    let measures: [(&str, Measure); 9] = [
        ("sequential write, 1 MiB", |b| b.write(MIB)),
        ("sequential read, 1 MiB", |b| b.read(MIB)),
        ("sequential write, 4 KiB", |b| b.write(PAGE)),
        ("sequential read, 4 KiB", |b| b.read(PAGE)),
        ("random read, 4 KiB", |b| b.random(false)),
        ("random write, 4 KiB", |b| b.random(true)),
        ("create and close", Bench::create),
        ("stat", Bench::stat),
        ("unlink", Bench::unlink),
    ];
    let total = measures.len() as u64;
    let mut rows = Vec::with_capacity(measures.len());
    for (i, (name, measure)) in measures.into_iter().enumerate() {
        step(name, i as u64, total);
        rows.push(measure(&bench)?.row(name));
    }
    drop(place);
    let dir = dir.display().to_string();
    Ok(BenchReport { dir, size_bytes: size, files: options.files.into(), rows })
}

/// The benchmark's own directory; removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(dir: &Path) -> io::Result<Place> {
        let own = dir.join(format!("{NAME}-{}", std::process::id()));
        fs::create_dir(&own)?;
        let place = Place(own);
        fs::create_dir(place.0.join("small"))?;
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Bench {
    large: PathBuf,
    small: PathBuf,
    size: u64,
    files: u32,
}

struct Measured {
    operations: u64,
    bytes: u64,
    time: Duration,
}

impl Measured {
    fn row(self, name: &str) -> BenchRow {
        let seconds = self.time.as_secs_f64().max(1e-9);
        BenchRow {
            name: name.to_owned(),
            operations: self.operations,
            seconds,
            operations_per_second: (self.operations as f64 / seconds) as u64,
            megabytes_per_second: (self.bytes > 0).then(|| self.bytes as f64 / seconds / 1e6),
        }
    }
}

impl Bench {
    /// Writes the large file anew; closing it is part of the time, making it durable is not.
    fn write(&self, unit: usize) -> io::Result<Measured> {
        let buffer = pattern(unit);
        let operations = self.size / unit as u64;
        let start = Instant::now();
        let mut file = File::create(&self.large)?;
        for _ in 0..operations {
            file.write_all(&buffer)?;
        }
        drop(file);
        Ok(Measured { operations, bytes: self.size, time: start.elapsed() })
    }

    fn read(&self, unit: usize) -> io::Result<Measured> {
        self.forget()?;
        let mut buffer = vec![0; unit];
        let mut operations = 0;
        let start = Instant::now();
        let mut file = File::open(&self.large)?;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                _ => operations += 1,
            }
        }
        Ok(Measured { operations, bytes: self.size, time: start.elapsed() })
    }

    fn random(&self, write: bool) -> io::Result<Measured> {
        self.forget()?;
        let mut buffer = pattern(PAGE);
        let pages = self.size / PAGE as u64;
        let operations = pages.min(RANDOM_MAX);
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let start = Instant::now();
        let file = OpenOptions::new().read(true).write(write).open(&self.large)?;
        for _ in 0..operations {
            let offset = next(&mut seed) % pages * PAGE as u64;
            if write {
                file.write_all_at(&buffer, offset)?;
            } else {
                file.read_exact_at(&mut buffer, offset)?;
            }
        }
        drop(file);
        Ok(Measured { operations, bytes: operations * PAGE as u64, time: start.elapsed() })
    }

    fn create(&self) -> io::Result<Measured> {
        self.each(|path| File::create_new(path).map(drop))
    }
    fn stat(&self) -> io::Result<Measured> {
        self.each(|path| fs::symlink_metadata(path).map(drop))
    }
    fn unlink(&self) -> io::Result<Measured> {
        self.each(|path| fs::remove_file(path))
    }

    fn each(&self, run: impl Fn(&Path) -> io::Result<()>) -> io::Result<Measured> {
        let start = Instant::now();
        for n in 0..self.files {
            run(&self.small.join(format!("f{n}")))?;
        }
        Ok(Measured { operations: self.files.into(), bytes: 0, time: start.elapsed() })
    }

    /// Takes the large file out of the kernel's cache, so that reads ask the file system.
    fn forget(&self) -> io::Result<()> {
        let file = File::open(&self.large)?;
        file.sync_data()?;
        Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
    }
}

/// Bytes that do not compress to nothing.
fn pattern(length: usize) -> Vec<u8> {
    let mut seed = 1;
    (0..length).map(|_| next(&mut seed) as u8).collect()
}

/// xorshift64.
fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[cfg(test)]
mod tests {
    //! Goal: every measurement runs and nothing stays behind. Method: a tiny run in a temporary directory.
    use super::*;

    #[test]
    fn a_tiny_run_measures_everything_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut steps = 0;
        let options = BenchOptions { size: MIB as u64 + 5, files: 3 };
        let report = run(dir.path(), options, &mut |_, _, _| steps += 1).unwrap();
        assert_eq!((report.rows.len(), steps), (9, 9));
        assert_eq!(report.size_bytes, MIB as u64);
        assert_eq!(report.rows[3].operations, 256);
        assert_eq!(report.rows[6].operations, 3);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
