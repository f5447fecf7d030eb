//! The layers of the workspace: which crate may depend on which.
//!
//! An edge points to a lower layer, or inside a layer where the table says so. Programs that only test may use
//! everything, and nothing uses them.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::root;

/// From the bottom. In the layer of pure cores a crate may use those named before it.
const LAYERS: [&[&str]; 5] = [
    &["types"],
    &[
        "namespace",
        "layout",
        "link",
        "tier",
        "plan",
        "replica",
        "member",
        "cache",
        "wire",
        "cluster",
        "proto",
        "lease",
    ],
    &["net", "kv", "store", "fuse", "backend", "bucket", "pg", "handover"],
    &["mds", "ds", "linked", "client", "serve", "remote", "coord", "monitor"],
    &["onfs"],
];
const PURE: usize = 1;
/// Edges inside the other layers.
const WITHIN: [(&str, &str); 8] = [
    ("pg", "kv"),
    ("client", "mds"),
    ("client", "ds"),
    ("linked", "mds"),
    ("linked", "ds"),
    ("client", "linked"),
    ("serve", "mds"),
    ("serve", "ds"),
];
const TESTS: [&str; 4] = ["suites", "benchtool", "simulation", "tidy"];
/// Of them the one that puts the pure cores together and may use nothing else.
const OF_CORES: &str = "simulation";
/// Stands below all, and only their tests may use it.
const FOR_TESTS: &str = "fuzzing";

/// One dependency between crates of the workspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edge {
    pub from: String,
    pub to: String,
    /// Only for the crate's own tests.
    pub dev: bool,
}

/// The workspace's crates and the edges between them, from `cargo metadata`.
pub fn edges() -> Result<(Vec<String>, Vec<Edge>)> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .context("run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let names: Vec<String> = packages.iter().filter_map(|p| Some(p["name"].as_str()?.to_owned())).collect();
    let mut edges = Vec::new();
    for package in packages {
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let (Some(from), Some(to)) = (package["name"].as_str(), dependency["name"].as_str()) else {
                continue;
            };
            if dependency["path"].is_string() && names.iter().any(|n| n == to) {
                let dev = dependency["kind"] == "dev";
                edges.push(Edge { from: from.to_owned(), to: to.to_owned(), dev });
            }
        }
    }
    Ok((names, edges))
}

fn place(name: &str) -> Option<(usize, usize)> {
    LAYERS
        .iter()
        .enumerate()
        .find_map(|(layer, crates)| Some((layer, crates.iter().position(|c| *c == name)?)))
}

/// What is wrong with the crates and edges, one line each.
pub fn check(names: &[String], edges: &[Edge]) -> Vec<String> {
    let known = |name: &str| place(name).is_some() || TESTS.contains(&name) || name == FOR_TESTS;
    let mut found: Vec<String> = names
        .iter()
        .filter(|n| !known(n))
        .map(|n| format!("crate {n} has no layer: give it one in crates/tidy/src/layers.rs"))
        .collect();
    found.extend(edges.iter().filter_map(wrong));
    found
}

fn wrong(edge: &Edge) -> Option<String> {
    let Edge { from, to, dev } = edge;
    if from == OF_CORES {
        let pure = place(to).is_some_and(|(layer, _)| layer <= PURE);
        return (!pure).then(|| format!("{from} -> {to}: it is about the pure cores alone"));
    }
    if TESTS.contains(&from.as_str()) {
        return None;
    }
    if to == FOR_TESTS {
        return (!dev).then(|| format!("{from} -> {to}: only for tests, among the dev-dependencies"));
    }
    if from == FOR_TESTS {
        return Some(format!("{from} -> {to}: it depends on nothing"));
    }
    if TESTS.contains(&to.as_str()) {
        return Some(format!("{from} -> {to}: nothing depends on the test programs"));
    }
    let ((upper, n), (lower, m)) = (place(from)?, place(to)?);
    let within = WITHIN.contains(&(from.as_str(), to.as_str())) || (upper == PURE && m < n);
    let fine = lower < upper || (lower == upper && (within || *dev));
    (!fine).then(|| format!("{from} (layer {upper}) -> {to} (layer {lower}): dependencies point down"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: &str, to: &str) -> Edge {
        Edge { from: from.into(), to: to.into(), dev: false }
    }

    #[test]
    fn edges_point_down() {
        for (from, to) in [
            ("kv", "namespace"),
            ("client", "ds"),
            ("tier", "layout"),
            ("onfs", "types"),
            ("simulation", "lease"),
        ] {
            assert_eq!(wrong(&edge(from, to)), None, "{from} -> {to}");
        }
        for (from, to) in [
            ("types", "kv"),
            ("ds", "mds"),
            ("layout", "tier"),
            ("store", "kv"),
            ("onfs", "suites"),
            ("kv", "fuzzing"),
            ("fuzzing", "types"),
            ("simulation", "kv"),
            ("lease", "simulation"),
        ] {
            assert!(wrong(&edge(from, to)).is_some(), "{from} -> {to}");
        }
        assert_eq!(wrong(&Edge { dev: true, ..edge("kv", "fuzzing") }), None);
        assert_eq!(check(&["nobody".into()], &[]).len(), 1);
    }
}
