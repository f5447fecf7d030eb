//! What a million files cost the daemon in memory.

use std::{
    fs::{self, File},
    path::Path,
};

use anyhow::{Context, Result, ensure};

/// Makes files twice over and prints how much the process grew the second time, scaled to a million: caches that have a
/// bound fill the first time, and must not be scaled with the rest.
pub fn report(dir: &Path, pid: u32, files: u64, json: bool) -> Result<()> {
    ensure!(files > 0, "no files, no figure");
    let at = dir.join(format!("memory-{}", std::process::id()));
    fs::create_dir(&at)?;
    let first = fill(&at.join("first"), files);
    let before = anonymous_bytes(pid)?;
    let outcome = first.and_then(|()| fill(&at.join("second"), files));
    let full = anonymous_bytes(pid)?;
    // Without the kernel's own caches the daemon need not hold what the kernel refers to.
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
    let forgotten = anonymous_bytes(pid)?;
    let _ = fs::remove_dir_all(&at);
    outcome?;
    let scaled = |now: u64| (now.saturating_sub(before) as f64 * 1e6 / files as f64).round() as u64;
    let (known, left) = (scaled(full), scaled(forgotten));
    if json {
        println!(
            "{{\"files\":{files},\"bytes_per_million\":{known},\"bytes_per_million_forgotten\":{left}}}"
        );
    } else {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "memory per million files: {:.1} MiB while the kernel knows them, {:.1} MiB after",
            mib(known),
            mib(left)
        );
    }
    Ok(())
}

fn fill(at: &Path, files: u64) -> Result<()> {
    fs::create_dir(at)?;
    for n in 0..files {
        let dir = at.join((n / 10_000).to_string());
        if n % 10_000 == 0 {
            fs::create_dir(&dir)?;
        }
        File::create_new(dir.join(n.to_string()))?;
    }
    Ok(())
}

/// Memory of the process's own; files that it maps and shared memory do not count.
fn anonymous_bytes(pid: u32) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).context("the process has ended")?;
    let line = text.lines().find(|l| l.starts_with("RssAnon:")).context("no RssAnon in its status")?;
    let kib: u64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kib << 10)
}
