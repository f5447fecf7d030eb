//! Sizes and names of source files, their module docs, and that the shell scripts parse.

use std::{path::Path, process::Command};

use anyhow::Result;

use crate::{
    files_below, root, shown,
    source::{strip, without_tests},
};

/// Lines of a file, its tests not counted.
const LINES_MAX: usize = 600;
const LINES_HARD_MAX: usize = 1000;
/// Files that may have more than [`LINES_MAX`], each with its reason.
const LONG: &[(&str, &str)] = &[];
/// Shared code has a noun.
const NO_NOUN: [&str; 9] =
    ["util", "utils", "common", "helper", "helpers", "manager", "managers", "misc", "stuff"];

/// Sizes, names and module docs of every Rust file.
pub fn check() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in files_below(&root().join("crates"), "rs")? {
        let name = shown(&path);
        if !name.contains("/src/") && !name.contains("/tests/") && !name.contains("/examples/") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        found.extend(too_long(&name, &text));
        found.extend(without_noun(&name));
        if !text.starts_with("//!") {
            found.push(format!("{name}: no module doc at the top (//!)"));
        }
    }
    Ok(found)
}

fn too_long(name: &str, text: &str) -> Option<String> {
    if name.contains("/tests/") || name.ends_with("/tests.rs") {
        return None;
    }
    let code = without_tests(&strip(text));
    // Comments were made blank: lines are counted in what is left of the file, so blank lines count.
    let lines = code.lines().count();
    let excused = LONG.iter().any(|(file, _)| *file == name);
    let limit = if excused { LINES_HARD_MAX } else { LINES_MAX };
    (lines > limit).then(|| format!("{name}: {lines} lines, {limit} at the most"))
}

fn without_noun(name: &str) -> Option<String> {
    let bad = Path::new(name)
        .components()
        .filter_map(|part| Path::new(part.as_os_str()).file_stem()?.to_str())
        .find(|part| NO_NOUN.contains(part))?;
    Some(format!("{name}: {bad:?} says nothing; name it after what it is"))
}

/// `bash -n` on every shell script.
pub fn check_scripts() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for dir in ["", "scripts", "tests", "bench", ".ci"] {
        let Ok(entries) = std::fs::read_dir(root().join(dir)) else { continue };
        for entry in entries {
            let path = entry?.path();
            let Ok(text) = std::fs::read(&path) else { continue };
            let first = text.split(|b| *b == b'\n').next().unwrap_or_default();
            if first.starts_with(b"#!") && first.ends_with(b"bash") {
                let output = Command::new("bash").arg("-n").arg(&path).output()?;
                if !output.status.success() {
                    found.push(format!(
                        "{}: {}",
                        shown(&path),
                        String::from_utf8_lossy(&output.stderr).trim()
                    ));
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_not_counted_and_names_are_read_whole() {
        let long = "fn f() {}\n".repeat(601);
        assert!(too_long("crates/x/src/a.rs", &long).is_some());
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(too_long("crates/x/src/a.rs", &tests), None);
        assert!(without_noun("crates/x/src/utils.rs").is_some());
        assert!(without_noun("crates/x/src/misc/mod.rs").is_some());
        assert_eq!(without_noun("crates/x/src/commonality.rs"), None);
    }
}
