//! One process that does the phases of a group: before each it says `ready` and waits for a line, after it it says
//! how much it did and how long that took.

use std::{
    fs::{self, File, OpenOptions},
    hint::black_box,
    io::{BufRead, Read, Write, stdin, stdout},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use crate::work::{Group, Scale};

/// What a phase did.
pub struct Done {
    pub operations: u64,
    pub bytes: u64,
}

struct Work<'a> {
    dir: &'a Path,
    job: u32,
    scale: &'a Scale,
    /// Entries of the source tree.
    entries: u64,
}

pub fn run(group: &Group, dir: &Path, job: u32, scale: &Scale) -> Result<()> {
    let mut work = Work { dir, job, scale, entries: 0 };
    work.prepare(group).context("prepare")?;
    for (phase, name) in group.phases().iter().enumerate() {
        if *group == Group::Large && phase == 1 {
            drop_page_cache();
        }
        when_told(|| work.phase(group, phase).with_context(|| (*name).to_owned()))?;
    }
    Ok(())
}

/// Says that it is ready, waits for a line, does it, and says how much that was.
pub fn when_told(phase: impl FnOnce() -> Result<Done>) -> Result<()> {
    let mut line = String::new();
    println!("ready");
    stdout().flush()?;
    ensure!(stdin().lock().read_line(&mut line)? > 0, "the parent has gone");
    let start = Instant::now();
    let done = phase()?;
    let nanos = start.elapsed().as_nanos();
    println!("{} {} {nanos}", done.operations, done.bytes);
    stdout().flush()?;
    Ok(())
}

impl Work<'_> {
    /// What is not timed.
    fn prepare(&mut self, group: &Group) -> Result<()> {
        match group {
            Group::Names { shared: false, .. } | Group::Small { .. } => fs::create_dir_all(self.own_dir())?,
            Group::Random { .. } => {
                self.write_file(1 << 20, self.scale.file_bytes(1 << 20), false)?;
            }
            Group::Tree => {
                let archive = self.scale.tree.as_ref().context("no tar file")?;
                let list = Command::new("tar").arg("-tf").arg(archive).output()?;
                self.entries = list.stdout.iter().filter(|b| **b == b'\n').count() as u64;
            }
            Group::Sequential { .. } | Group::Names { shared: true, .. } | Group::Large => {}
        }
        Ok(())
    }

    fn phase(&self, group: &Group, phase: usize) -> Result<Done> {
        match group {
            Group::Sequential { block, .. } if phase == 0 => {
                self.write_file(*block, self.scale.file_bytes(*block), false)
            }
            Group::Sequential { block, .. } => self.read_file(*block),
            Group::Random { .. } => self.random(phase),
            Group::Names { shared, .. } => self.names(*shared, phase),
            Group::Small { .. } => self.small(phase == 0),
            Group::Tree => self.tree(phase),
            Group::Large if phase == 0 => self.write_file(1 << 20, self.scale.large_mib << 20, true),
            Group::Large => self.read_file(1 << 20),
        }
    }

    fn own_dir(&self) -> PathBuf {
        self.dir.join(format!("job-{}", self.job))
    }
    fn file(&self) -> PathBuf {
        self.dir.join(format!("file-{}", self.job))
    }

    fn write_file(&self, block: usize, bytes: u64, sync: bool) -> Result<Done> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(self.file())?;
        let buffer = vec![0x5a; block];
        for _ in 0..bytes / block as u64 {
            file.write_all(&buffer)?;
        }
        if sync {
            file.sync_all()?;
        }
        Ok(Done { operations: bytes / block as u64, bytes })
    }
    fn read_file(&self, block: usize) -> Result<Done> {
        let mut file = File::open(self.file())?;
        let mut buffer = vec![0; block];
        let mut done = Done { operations: 0, bytes: 0 };
        loop {
            let len = file.read(&mut buffer)?;
            if len == 0 {
                return Ok(done);
            }
            black_box(&buffer);
            done.operations += 1;
            done.bytes += len as u64;
        }
    }

    /// Phase 0 writes, 1 reads as who opens a file to read it, 2 as who opened it to write it too (a database).
    fn random(&self, phase: usize) -> Result<Done> {
        const BLOCK: u64 = 4096;
        let bytes = self.scale.file_bytes(1 << 20);
        let write = phase == 0;
        let file = OpenOptions::new().read(true).write(phase != 1).open(self.file())?;
        let mut buffer = [7u8; BLOCK as usize];
        let mut state = u64::from(self.job) + 88_172_645_463_325_252;
        let count = self.scale.random_operations();
        for _ in 0..count {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = state % (bytes / BLOCK) * BLOCK;
            if write {
                file.write_all_at(&buffer, at)?;
            } else {
                file.read_exact_at(&mut buffer, at)?;
                black_box(&buffer);
            }
        }
        Ok(Done { operations: count, bytes: count * BLOCK })
    }

    fn names(&self, shared: bool, phase: usize) -> Result<Done> {
        let dir = if shared { self.dir.to_owned() } else { self.own_dir() };
        let count = self.scale.files();
        let path = |n: u64| dir.join(format!("f{}-{n}", self.job));
        match phase {
            0 => (0..count).try_for_each(|n| File::create_new(path(n)).map(drop))?,
            1 => (0..count).try_for_each(|n| fs::metadata(path(n)).map(|m| _ = black_box(m)))?,
            2 => (0..count).try_for_each(|n| File::open(path(n)).map(drop))?,
            3 => {
                // Several times: one pass is short.
                let mut seen = 0;
                for _ in 0..5 {
                    for entry in fs::read_dir(&dir)? {
                        black_box(entry?);
                        seen += 1;
                    }
                }
                return Ok(Done { operations: seen, bytes: 0 });
            }
            _ => (0..count).try_for_each(|n| fs::remove_file(path(n)))?,
        }
        Ok(Done { operations: count, bytes: 0 })
    }

    fn small(&self, write: bool) -> Result<Done> {
        let count = self.scale.files() / 2;
        let mut buffer = vec![3; 4096];
        for n in 0..count {
            let path = self.own_dir().join(format!("s{n}"));
            if write {
                File::create_new(path)?.write_all(&buffer)?;
            } else {
                File::open(path)?.read_exact(&mut buffer)?;
                black_box(&buffer);
            }
        }
        Ok(Done { operations: count, bytes: count * 4096 })
    }

    fn tree(&self, phase: usize) -> Result<Done> {
        let at = self.dir.join("tree");
        match phase {
            0 => {
                let archive = self.scale.tree.as_ref().context("no tar file")?;
                fs::create_dir(&at)?;
                let status = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&at).status()?;
                ensure!(status.success(), "tar: {status}");
                Ok(Done { operations: self.entries, bytes: 0 })
            }
            1 => Ok(Done { operations: walk(&at)?, bytes: 0 }),
            _ => {
                fs::remove_dir_all(&at)?;
                Ok(Done { operations: self.entries, bytes: 0 })
            }
        }
    }
}

/// Looks at every entry, as `find -newer` does.
fn walk(dir: &Path) -> Result<u64> {
    let mut seen = 0;
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            black_box(entry.metadata()?);
            seen += 1;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Ok(seen)
}

/// As root; otherwise the read is of what is cached, on all targets alike.
fn drop_page_cache() {
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
}
