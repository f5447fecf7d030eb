//! What a million files cost the daemon in memory.

use std::{
    fs::{self, File},
    io::ErrorKind,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};

/// Makes files twice over and prints how much the process grew the second time, scaled to a million: caches that have a
/// bound fill the first time, and must not be scaled with the rest.
pub fn report(dir: &Path, pid: u32, files: u64, json: Option<&Path>) -> Result<()> {
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
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "memory per million files: {:.1} MiB while the kernel knows them, {:.1} MiB after",
        mib(known),
        mib(left)
    );
    let figures = json!({"files": files, "bytes_per_million": known, "bytes_per_million_forgotten": left});
    json.map_or(Ok(()), |file| add_to(file, figures))
}

/// Beside the results that are in the file already.
fn add_to(file: &Path, figures: Value) -> Result<()> {
    let mut results: Map<String, Value> = match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| file.display().to_string())?,
        Err(error) if error.kind() == ErrorKind::NotFound => Map::new(),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    results.insert("memory".to_owned(), figures);
    fs::write(file, serde_json::to_string_pretty(&results)?)?;
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

#[cfg(test)]
mod tests {
    //! Goal: the figure stands beside the rows of a comparison. Method: a file with rows, and none.
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn figures_are_added_to_what_is_there() {
        let dir = std::env::temp_dir().join(format!("benchtool-memory-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("results.json");
        add_to(&file, json!(1)).unwrap();
        fs::write(&file, r#"{"judged": "onfs", "rows": []}"#).unwrap();
        add_to(&file, json!({"files": 5})).unwrap();
        let results: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(results, json!({"judged": "onfs", "rows": [], "memory": {"files": 5}}));
        fs::write(&file, "nonsense").unwrap();
        assert!(add_to(&file, json!(1)).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
