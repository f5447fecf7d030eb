//! A directory of many names that is read while others come and go in it.
//!
//! Names that stay all the while must be seen exactly once in each pass, from the start, from a place that was told before,
//! and after a rewind; names that come and go at most once. The directory is read by getdents64 on its descriptor, and its
//! places are the offsets that lseek takes: what telldir, seekdir and rewinddir are.

use std::{collections::HashSet, fs::File, io::ErrorKind, mem::MaybeUninit, os::fd::AsFd, path::Path};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{RawDir, SeekFrom, seek};

use crate::random::Random;

/// Entries between two places that are told.
const TOLD_EVERY: u64 = 50_000;

fn staying(n: u64) -> String {
    format!("stays-{n:07}")
}

/// The number in a staying name; `None`: one that comes and goes.
fn number_of(name: &[u8]) -> Result<Option<u64>> {
    let name = std::str::from_utf8(name).context("a name that nobody gave")?;
    match (name.strip_prefix("stays-"), name.strip_prefix("passing-")) {
        (Some(number), _) => number.parse().map(Some).context("a name that nobody gave"),
        (None, Some(_)) => Ok(None),
        (None, None) => bail!("{name:?}: a name that nobody gave"),
    }
}

/// Makes `dir` with `count` names that stay: a thousand links to each file, which takes less memory than as many
/// files.
pub fn make(dir: &Path, count: u64) -> Result<()> {
    std::fs::create_dir(dir)?;
    let mut linked = dir.join(staying(0));
    for n in 0..count {
        let path = dir.join(staying(n));
        if n % 1000 == 0 {
            File::create_new(&path).with_context(|| path.display().to_string())?;
            linked = path;
        } else {
            std::fs::hard_link(&linked, &path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}

/// Makes and removes names beside those that stay, until the file `stop` is there. Returns how many.
pub fn stir(dir: &Path, stop: &Path, seed: u64) -> Result<u64> {
    let mut random = Random::new(seed);
    let mut there = HashSet::new();
    let mut changes = 0;
    while !stop.exists() {
        for _ in 0..100 {
            let n = random.below(5000);
            let path = dir.join(format!("passing-{n}"));
            if there.remove(&n) {
                std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
            } else {
                File::create_new(&path).with_context(|| path.display().to_string())?;
                there.insert(n);
            }
            changes += 1;
        }
    }
    for n in there {
        std::fs::remove_file(dir.join(format!("passing-{n}")))?;
    }
    Ok(changes)
}

/// What one pass saw.
struct Pass {
    /// How often each staying name was seen.
    seen: Vec<u8>,
    passing: HashSet<Vec<u8>>,
    /// Places to read on from, and which staying names were seen before each.
    told: Vec<(u64, Vec<u8>)>,
}

impl Pass {
    /// From where the descriptor stands to the end.
    fn read(dir: &File, count: u64, tell: bool) -> Result<Pass> {
        let mut pass = Pass { seen: vec![0; count as usize], passing: HashSet::new(), told: Vec::new() };
        let mut buffer = [MaybeUninit::uninit(); 32 << 10];
        let mut entries = RawDir::new(dir.as_fd(), &mut buffer);
        let mut read = 0;
        while let Some(entry) = entries.next() {
            let entry = entry.context("getdents64")?;
            let (name, place) = (entry.file_name().to_bytes(), entry.next_entry_cookie());
            read += 1;
            if name != b"." && name != b".." {
                pass.take(name)?;
            }
            if tell && read % TOLD_EVERY == 0 {
                pass.told.push((place, pass.seen.clone()));
            }
        }
        Ok(pass)
    }

    fn take(&mut self, name: &[u8]) -> Result<()> {
        match number_of(name)? {
            Some(number) => {
                let seen = self.seen.get_mut(number as usize).context("a number that nobody gave")?;
                *seen = seen.saturating_add(1);
            }
            None => {
                // It may have gone and come again behind the reader, but not in its place.
                let new = self.passing.insert(name.to_vec());
                ensure!(new, "{} was seen twice in one pass", name.escape_ascii());
            }
        }
        Ok(())
    }

    /// Each staying name once, less those that were seen before.
    fn is_whole(&self, before: Option<&[u8]>) -> Result<()> {
        for (n, seen) in self.seen.iter().enumerate() {
            let wanted = 1 - before.map_or(0, |before| before[n]);
            ensure!(*seen == wanted, "{} was seen {seen} times, not {wanted}", staying(n as u64));
        }
        Ok(())
    }
}

/// Reads `dir` several times. Returns how many entries were seen that come and go.
pub fn check(dir: &Path, count: u64, passes: u64) -> Result<u64> {
    let file = File::open(dir)?;
    let mut passing = 0;
    for n in 0..passes {
        let whole = Pass::read(&file, count, true)?;
        whole.is_whole(None).with_context(|| format!("pass {n}"))?;
        passing += whole.passing.len() as u64;
        // On from a place that was told in this pass, while the names after it changed: the rest, and nothing else.
        if let Some((place, before)) = whole.told.get(n as usize % whole.told.len().max(1)) {
            seek(&file, SeekFrom::Start(*place)).context("seekdir")?;
            let rest = Pass::read(&file, count, false)?;
            rest.is_whole(Some(before)).with_context(|| format!("pass {n}, on from {place:#x}"))?;
        }
        seek(&file, SeekFrom::Start(0)).context("rewinddir")?;
    }
    Ok(passing)
}

/// Removes what [`make`] made, by reading the directory while it shrinks.
pub fn remove(dir: &Path) -> Result<u64> {
    let mut removed = 0;
    for entry in std::fs::read_dir(dir)? {
        std::fs::remove_file(entry?.path())?;
        removed += 1;
    }
    match std::fs::remove_dir(dir) {
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {
            bail!("names are left after {removed} were removed")
        }
        other => other.context("rmdir")?,
    }
    Ok(removed)
}
