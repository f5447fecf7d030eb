//! lsm-tree against redb behind the engine trait, in the way the store uses them: durable batches, point reads, scans.
//!
//! `cargo run --release -p kv --example engines -- lsm-tree|redb DIRECTORY [ENTRIES]`, one engine per process, so that the
//! memory figures are its own.

#[path = "../tests/support/redb_engine.rs"]
mod redb_engine;

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kv::{Engine, LsmEngine, Lsn};

const CACHE_BYTES: u64 = 64 << 20;
/// Entries in a checkpoint's batch.
const BATCH: u64 = 50_000;
const READS: u64 = 100_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let kind = args.next().ok_or("say which engine")?;
    let dir = PathBuf::from(args.next().ok_or("say in which directory")?).join(&kind);
    let entries: u64 = args.next().map_or(Ok(1_000_000), |n| n.parse())?;
    std::fs::create_dir_all(&dir)?;
    let open = || -> Outcome<Box<dyn Engine>> {
        Ok(match kind.as_str() {
            "lsm-tree" => Box::new(LsmEngine::open(&dir, CACHE_BYTES)?),
            "redb" => Box::new(redb_engine::RedbEngine::open(&dir, CACHE_BYTES)),
            other => return Err(format!("no engine {other:?}").into()),
        })
    };
    let engine = open()?;
    println!("{kind}, {entries} entries of 9+96 bytes, batches of {BATCH}");
    report("put, in order", entries, timed(|| fill(&*engine, entries, |n| n))?);
    println!("  on the disk after it   {:8} MiB", disk_bytes(&dir)? >> 20);
    report("overwrite, scattered", entries, timed(|| fill(&*engine, entries, |n| scatter(n, entries)))?);
    println!("  on the disk after it   {:8} MiB", disk_bytes(&dir)? >> 20);
    println!("  resident               {:8} MiB", resident_bytes()? >> 20);
    report("get, hit", READS, timed(|| read(&*engine, entries, 0))?);
    report("get, absent", READS, timed(|| read(&*engine, entries, 1))?);
    report("scan of 100 entries", 2000, timed(|| scan(&*engine, entries))?);
    let small = 300;
    report("durable batch of 100", small, timed(|| small_batches(&*engine, entries, small))?);
    engine.close()?;
    drop(engine);
    let (engine, took) = {
        let begin = Instant::now();
        let engine = open()?;
        engine.get(&key(0, 0))?;
        (engine, begin.elapsed())
    };
    println!("  reopen                 {:8.1} ms", took.as_secs_f64() * 1e3);
    report("get, hit, after it", READS, timed(|| read(&*engine, entries, 0))?);
    report("scan, after it", 2000, timed(|| scan(&*engine, entries))?);
    println!("  on the disk at the end {:8} MiB", disk_bytes(&dir)? >> 20);
    println!("  resident at the end    {:8} MiB", resident_bytes()? >> 20);
    println!("  processor time         {:8.1} s", processor_time()?);
    drop(engine);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn key(n: u64, kind: u8) -> [u8; 9] {
    let mut key = [0; 9];
    key[..8].copy_from_slice(&(n + 1).to_be_bytes());
    key[8] = b'I' + kind;
    key
}

fn scatter(n: u64, entries: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % entries
}

/// Half of each value is the same in all, as in inode records.
fn value(n: u64) -> [u8; 96] {
    let mut value = [7; 96];
    for (i, part) in value[..48].chunks_mut(8).enumerate() {
        part.copy_from_slice(&(n ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    value
}

fn fill(engine: &dyn Engine, entries: u64, order: impl Fn(u64) -> u64) -> Outcome<()> {
    for first in (0..entries).step_by(BATCH as usize) {
        put_all(engine, (first..(first + BATCH).min(entries)).map(&order))?;
    }
    Ok(())
}

fn put_all(engine: &dyn Engine, numbers: impl Iterator<Item = u64>) -> Outcome<()> {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    let owned: Vec<_> = numbers.iter().map(|n| (key(*n, 0), value(*n))).collect();
    let batch: Vec<(&[u8], Option<&[u8]>)> = owned.iter().map(|(k, v)| (&k[..], Some(&v[..]))).collect();
    Ok(engine.apply(&batch, Lsn(engine.applied_lsn()?.0 + 1))?)
}

fn small_batches(engine: &dyn Engine, entries: u64, batches: u64) -> Outcome<()> {
    for batch in 0..batches {
        put_all(engine, (0..100).map(|n| scatter(batch * 100 + n, entries)))?;
    }
    Ok(())
}

fn read(engine: &dyn Engine, entries: u64, kind: u8) -> Outcome<()> {
    for n in 0..READS {
        let found = engine.get(&key(scatter(n * 7919, entries), kind))?;
        if found.is_some() != (kind == 0) {
            return Err("a wrong answer".into());
        }
    }
    Ok(())
}

fn scan(engine: &dyn Engine, entries: u64) -> Outcome<()> {
    for n in 0..2000 {
        let from = scatter(n * 7919, entries - 100);
        let mut seen = 0;
        engine.scan(&key(from, 0), &key(from + 100, 0), &mut |_, _| {
            seen += 1;
            ControlFlow::Continue(())
        })?;
        if seen != 100 {
            return Err("a wrong range".into());
        }
    }
    Ok(())
}

fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed())
}

fn report(what: &str, count: u64, took: Duration) {
    println!("  {what:22} {:8.2} us each", took.as_secs_f64() * 1e6 / count as f64);
}

fn disk_bytes(dir: &Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        sum += if meta.is_dir() { disk_bytes(&entry.path())? } else { meta.blocks() * 512 };
    }
    Ok(sum)
}

fn resident_bytes() -> Outcome<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split_whitespace().nth(1).ok_or("no statm")?.parse()?;
    Ok(pages * 4096)
}

fn processor_time() -> Outcome<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').ok_or("no stat")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(ticks as f64 / 100.0)
}
