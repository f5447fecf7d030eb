//! What is measured: groups of phases that share their files.

use std::{fmt, path::PathBuf};

use anyhow::{Context, Result, bail};

/// How much of it.
#[derive(Clone, Debug)]
pub struct Scale {
    pub quick: bool,
    pub tree: Option<PathBuf>,
    pub large_mib: u64,
}

impl Scale {
    pub fn parse(text: &str) -> Result<Scale> {
        let mut parts = text.splitn(3, ',');
        let quick = parts.next() == Some("quick");
        let large_mib = parts.next().context("no size")?.parse()?;
        let tree = parts.next().filter(|t| !t.is_empty()).map(PathBuf::from);
        Ok(Scale { quick, tree, large_mib })
    }
    /// Bytes of each job's file; less for small blocks, which take longer.
    pub fn file_bytes(&self, block: usize) -> u64 {
        let full: u64 = if block < 65536 { 64 << 20 } else { 256 << 20 };
        if self.quick { full / 8 } else { full }
    }
    pub fn files(&self) -> u64 {
        if self.quick { 1000 } else { 10_000 }
    }
    pub fn random_operations(&self) -> u64 {
        if self.quick { 4000 } else { 60_000 }
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tree = self.tree.as_ref().map(|t| t.display().to_string()).unwrap_or_default();
        write!(f, "{},{},{tree}", if self.quick { "quick" } else { "full" }, self.large_mib)
    }
}

/// Phases that share their files, done by one or more processes at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    Sequential {
        block: usize,
        jobs: u32,
    },
    Random {
        jobs: u32,
    },
    Names {
        jobs: u32,
        shared: bool,
    },
    Small {
        jobs: u32,
    },
    Tree,
    /// A file of several times the memory tier; with a cold page cache before the read.
    Large,
}

/// In what a phase is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    MegabytesPerSecond,
    PerSecond,
}

const BLOCKS: [usize; 3] = [4 << 10, 128 << 10, 1 << 20];

impl Group {
    pub fn all(tree: bool, large_mib: u64) -> Vec<Group> {
        let mut all = Vec::new();
        for jobs in [1, 2] {
            all.extend(BLOCKS.map(|block| Group::Sequential { block, jobs }));
        }
        all.extend([1, 2].map(|jobs| Group::Random { jobs }));
        all.extend([(1, false), (2, false), (2, true)].map(|(jobs, shared)| Group::Names { jobs, shared }));
        all.extend([1, 2].map(|jobs| Group::Small { jobs }));
        if tree {
            all.push(Group::Tree);
        }
        if large_mib > 0 {
            all.push(Group::Large);
        }
        all
    }
    pub fn jobs(&self) -> u32 {
        match self {
            Group::Sequential { jobs, .. }
            | Group::Random { jobs }
            | Group::Names { jobs, .. }
            | Group::Small { jobs } => *jobs,
            Group::Tree | Group::Large => 1,
        }
    }
    /// Such as `sequential-4096-1`; [`Group::parse`] reads it.
    pub fn name(&self) -> String {
        match self {
            Group::Sequential { block, jobs } => format!("sequential-{block}-{jobs}"),
            Group::Random { jobs } => format!("random-{jobs}"),
            Group::Names { jobs, shared } => {
                format!("names-{}-{jobs}", if *shared { "shared" } else { "own" })
            }
            Group::Small { jobs } => format!("small-{jobs}"),
            Group::Tree => "tree".to_owned(),
            Group::Large => "large".to_owned(),
        }
    }
    pub fn parse(name: &str) -> Result<Group> {
        let all = Group::all(true, 1);
        match all.into_iter().find(|g| g.name() == name) {
            Some(group) => Ok(group),
            None => bail!("no group {name:?}"),
        }
    }
    pub fn title(&self) -> String {
        let jobs = match self.jobs() {
            1 => "1 job".to_owned(),
            n => format!("{n} jobs"),
        };
        match self {
            Group::Sequential { block, .. } => format!("sequential, {} KiB, {jobs}", block >> 10),
            Group::Random { .. } => format!("random 4 KiB, {jobs}"),
            Group::Names { shared: true, .. } => format!("names, one directory, {jobs}"),
            Group::Names { shared: false, .. } => format!("names, own directory, {jobs}"),
            Group::Small { .. } => format!("small files, {jobs}"),
            Group::Tree => "source tree".to_owned(),
            Group::Large => "larger than the memory tier".to_owned(),
        }
    }
    pub fn phases(&self) -> &'static [&'static str] {
        match self {
            Group::Sequential { .. } => &["write", "read"],
            Group::Random { .. } => &["write", "read", "read by a writer"],
            Group::Names { .. } => &["create", "stat", "open", "readdir", "unlink"],
            Group::Small { .. } => &["create, write, close", "open, read, close"],
            Group::Tree => &["untar", "find", "remove"],
            Group::Large => &["write and fsync", "read, cold"],
        }
    }
    pub fn unit(&self) -> Unit {
        match self {
            Group::Sequential { .. } | Group::Large => Unit::MegabytesPerSecond,
            Group::Random { .. } | Group::Names { .. } | Group::Small { .. } | Group::Tree => Unit::PerSecond,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_scales_round_trip() {
        for group in Group::all(true, 8) {
            assert_eq!(Group::parse(&group.name()).unwrap(), group);
        }
        let scale = Scale { quick: true, tree: Some("/a,b".into()), large_mib: 7 };
        let back = Scale::parse(&scale.to_string()).unwrap();
        assert!(back.quick && back.large_mib == 7 && back.tree == scale.tree);
    }
}
