//! The real directory beside the reference tree: every name, attribute and byte.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{self, FileType, SeekFrom as Whence};

use crate::tree::{Body, Mtime, Node, NodeId, ROOT, Tree};

/// Which files to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    None,
    /// Those that the last step touched.
    Touched,
    All,
}

/// A time before the step, from the same clock as the file system's: what changed must not be older.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(i64, i64);

/// Kernel file systems stamp with the time of the last tick, at most this much behind.
const TICK_NS: i64 = 20_000_000;

impl Moment {
    pub fn now() -> Moment {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let total = t.tv_sec as i128 * 1_000_000_000 + i128::from(t.tv_nsec) - i128::from(TICK_NS);
        Moment((total / 1_000_000_000) as i64, (total % 1_000_000_000) as i64)
    }
}

/// Compares everything below `root`; notes inode numbers and times in the tree on the way.
pub fn compare(root: &Path, tree: &mut Tree, contents: Contents, since: Moment) -> Result<()> {
    compare_dir(root, tree, ROOT, contents, since)?;
    let settled: Vec<NodeId> = tree.nodes.keys().copied().collect();
    let named: BTreeSet<NodeId> = tree.paths().into_iter().map(|(_, id)| id).collect();
    for id in settled.iter().filter(|id| !named.contains(id) && **id != ROOT) {
        // Open and unlinked: reachable through its handle only.
        if let Some(node) = tree.nodes.get_mut(id) {
            node.mtime = Mtime::Unknown;
        }
    }
    let mut by_ino: BTreeMap<u64, NodeId> = BTreeMap::new();
    for (path, id) in tree.paths() {
        if let Some(ino) = tree.nodes.get(&id).and_then(|n| n.ino) {
            let first = *by_ino.entry(ino).or_insert(id);
            ensure!(first == id, "{path}: inode number {ino} also belongs to another file");
        }
    }
    Ok(())
}

fn compare_dir(path: &Path, tree: &mut Tree, id: NodeId, contents: Contents, since: Moment) -> Result<()> {
    let mut there = BTreeSet::new();
    for entry in std::fs::read_dir(path).with_context(|| format!("read directory {}", path.display()))? {
        let entry = entry.with_context(|| format!("read directory {}", path.display()))?;
        let name = entry.file_name().into_string().map_err(|n| anyhow::anyhow!("name {n:?} is not ours"))?;
        ensure!(there.insert(name.clone()), "{}: {name:?} listed twice", path.display());
    }
    let wanted: BTreeMap<String, NodeId> = tree.entries(id)?.clone();
    let (missing, extra): (Vec<_>, Vec<_>) = (
        wanted.keys().filter(|n| !there.contains(*n)).collect(),
        there.iter().filter(|n| !wanted.contains_key(*n)).collect(),
    );
    ensure!(
        missing.is_empty() && extra.is_empty(),
        "{}: missing {missing:?}, not expected {extra:?}",
        path.display()
    );
    for (name, child) in wanted {
        let full = path.join(&name);
        compare_node(&full, tree, child, contents, since).with_context(|| full.display().to_string())?;
        if tree.node(child)?.is_dir() {
            compare_dir(&full, tree, child, contents, since)?;
        }
    }
    Ok(())
}

fn compare_node(path: &Path, tree: &mut Tree, id: NodeId, contents: Contents, since: Moment) -> Result<()> {
    let stat = fs::lstat(path).context("stat")?;
    let touched = tree.touched.contains(&id);
    let node = tree.nodes.get_mut(&id).context("unknown node")?;
    let kind = match node.body {
        Body::File(_) => FileType::RegularFile,
        Body::Dir(_) => FileType::Directory,
        Body::Symlink(_) => FileType::Symlink,
        Body::Fifo => FileType::Fifo,
    };
    ensure!(FileType::from_raw_mode(stat.st_mode) == kind, "is not a {kind:?} (mode {:o})", stat.st_mode);
    let mode = stat.st_mode & 0o7777;
    ensure!(mode == node.mode, "mode is {mode:o}, should be {:o}", node.mode);
    ensure!(
        (stat.st_uid, stat.st_gid) == (node.uid, node.gid),
        "owner is {}:{}, should be {}:{}",
        stat.st_uid,
        stat.st_gid,
        node.uid,
        node.gid
    );
    if kind != FileType::Directory {
        ensure!(stat.st_nlink as u64 == node.nlink, "{} links, should be {}", stat.st_nlink, node.nlink);
    }
    let ino = *node.ino.get_or_insert(stat.st_ino);
    ensure!(ino == stat.st_ino, "inode number changed from {ino} to {}", stat.st_ino);
    // After a kill the time of a file that was being written is its object's, which is that of a clock tick.
    let after_kill = contents == Contents::None;
    let slack_ns = if after_kill { 10_000_000 } else { 0 };
    let since = (!after_kill).then_some(since);
    compare_mtime(node, (stat.st_mtime as i64, stat.st_mtime_nsec as i64), since, slack_ns)?;
    match &node.body {
        Body::File(bytes) => {
            // A file that was open when the machine went down may have lost its size with its bytes; then it says so.
            ensure!(
                stat.st_size as u64 == bytes.len() as u64 || says_it_is_lost(path),
                "size {}, should be {}",
                stat.st_size,
                bytes.len()
            );
            if contents == Contents::All || (contents == Contents::Touched && touched) {
                compare_bytes(path, bytes)?;
            }
        }
        Body::Symlink(target) => {
            let real = fs::readlink(path, Vec::new()).context("readlink")?;
            ensure!(real.as_bytes() == target.as_bytes(), "points to {real:?}, should be {target:?}");
        }
        Body::Dir(_) | Body::Fifo => {}
    }
    compare_xattrs(path, node)
}

/// `since`: the beginning of the step, where there is one.
fn compare_mtime(node: &mut Node, real: (i64, i64), since: Option<Moment>, slack_ns: i64) -> Result<()> {
    match node.mtime {
        Mtime::Is(seconds, nanos) => {
            let ahead = (seconds - real.0) * 1_000_000_000 + i64::from(nanos) - real.1;
            ensure!((0..=slack_ns).contains(&ahead), "mtime is {real:?}, should be ({seconds}, {nanos})");
        }
        Mtime::Changed => {
            let old = since.is_some_and(|since| Moment(real.0, real.1) < since);
            ensure!(!old, "mtime {real:?} is older than the step, {since:?}");
        }
        Mtime::Unknown => {}
    }
    node.mtime = Mtime::Is(real.0, real.1 as u32);
    Ok(())
}

fn compare_xattrs(path: &Path, node: &Node) -> Result<()> {
    let mut list = vec![0u8; 64 << 10];
    let len = match fs::llistxattr(path, &mut list[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(e) => return Err(e).context("list attributes"),
    };
    let names: BTreeSet<String> = list[..len]
        .split(|b| *b == 0)
        .map(|name| String::from_utf8_lossy(name).into_owned())
        // The file system's own reports, and labels that the system may add.
        .filter(|n| !n.is_empty() && !n.starts_with("user.onfs.") && !n.starts_with("security."))
        .collect();
    let wanted: BTreeSet<String> = node.xattrs.keys().cloned().collect();
    ensure!(names == wanted, "attributes {names:?}, should be {wanted:?}");
    for (name, value) in &node.xattrs {
        let mut real = vec![0; 4096];
        let len = fs::lgetxattr(path, name.as_str(), &mut real[..]).with_context(|| name.clone())?;
        ensure!(real[..len] == value[..], "attribute {name} has another value");
    }
    Ok(())
}

fn says_it_is_lost(path: &Path) -> bool {
    let eio = |e: std::io::Error| e.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error());
    let Ok(file) = std::fs::File::open(path) else { return false };
    let Ok(stat) = file.metadata() else { return false };
    std::os::unix::fs::FileExt::read_at(&file, &mut [0], stat.len()).is_err_and(eio)
}

/// Reads the whole file and checks that each hole that it reports is zeros.
pub fn compare_bytes(path: &Path, wanted: &[u8]) -> Result<()> {
    let mut file = std::fs::File::open(path).context("open")?;
    let mut real = Vec::with_capacity(wanted.len());
    file.read_to_end(&mut real).context("read")?;
    differ(&real, wanted)?;
    let mut at = 0;
    while at < wanted.len() as u64 {
        let Ok(hole) = fs::seek(&file, Whence::Hole(at)) else { break };
        if hole >= wanted.len() as u64 {
            break;
        }
        let end = fs::seek(&file, Whence::Data(hole)).unwrap_or(wanted.len() as u64).min(wanted.len() as u64);
        ensure!(end > hole, "the hole at {hole} ends at {end}");
        let zeros = wanted[hole as usize..end as usize].iter().all(|b| *b == 0);
        ensure!(zeros, "a hole is reported at {hole}..{end}, where there is data");
        at = end;
    }
    // Once more from the middle: another path through readahead and direct I/O.
    if wanted.len() > 8192 {
        let middle = (wanted.len() / 2) as u64;
        let mut part = vec![0; 4096];
        file.seek(SeekFrom::Start(0)).context("seek")?;
        file.read_exact_at(&mut part, middle).context("read in the middle")?;
        differ(&part, &wanted[middle as usize..middle as usize + 4096])?;
    }
    Ok(())
}

/// Says where and how two contents differ.
pub fn differ(real: &[u8], wanted: &[u8]) -> Result<()> {
    if real == wanted {
        return Ok(());
    }
    let at = real.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(real.len().min(wanted.len()));
    let wrong = real.iter().zip(wanted).filter(|(a, b)| a != b).count();
    let zeros = real.iter().zip(wanted).filter(|(a, b)| a != b && **a == 0).count();
    bail!(
        "content differs from byte {at} (is {:?}, should be {:?}); {wrong} bytes wrong, {zeros} of them zero; \
         length {}, should be {}",
        real.get(at),
        wanted.get(at),
        real.len(),
        wanted.len()
    )
}
