//! The real directory beside the reference tree: every name, attribute and byte.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{self, FileType, SeekFrom as Whence};

use crate::{
    moment::Moment,
    tree::{Body, Mtime, Node, NodeId, ROOT, Tree},
};

/// Which files to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    None,
    /// And the sizes and times of files are open too.
    Names,
    /// Those that the last step touched.
    Touched,
    All,
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
    let open = contents == Contents::Names && kind == FileType::RegularFile;
    if open {
        node.mtime = Mtime::Unknown;
    }
    compare_mtime(node, (stat.st_mtime as i64, stat.st_mtime_nsec as i64), since)?;
    match &node.body {
        Body::File(bytes) => {
            // A file that was open when the machine went down may have lost its size with its bytes; then it says so.
            ensure!(
                open || stat.st_size as u64 == bytes.len() as u64 || says_it_is_lost(path),
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

/// `since`: the beginning of the step.
fn compare_mtime(node: &mut Node, real: (i64, i64), since: Moment) -> Result<()> {
    let not_before = |since: Moment| {
        ensure!(Moment::at(real.0, real.1) >= since, "mtime {real:?} is older than the step, {since:?}");
        Ok(())
    };
    match node.mtime {
        Mtime::Is(seconds, nanos) => {
            let wanted = (seconds, i64::from(nanos));
            ensure!(real == wanted, "mtime is {real:?}, should be {wanted:?}");
        }
        Mtime::Changed => not_before(since)?,
        Mtime::Since(then) => not_before(then)?,
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
        // A copy that comes up between the two calls may fill a hole with its zeros; that it was one must be right.
        let end = end.max(hole + 1);
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
