//! What a worker of the crash test did, and what may be true after the daemon was killed, or the machine rebooted.
//!
//! - Killed: every acknowledged operation is there; the one that was in flight happened, or not, or (data only) in part.
//! - Rebooted: names and attributes as above; a byte that was fsynced and not changed since reads as written; every
//!   other one reads as written or gives EIO. Never zeros, never older bytes.

#![expect(clippy::wildcard_enum_match_arm, reason = "one kind of operation at a time is picked out of many")]

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::io::Errno;

use crate::{
    compare::{Contents, compare, differ},
    moment::Moment,
    op::{Generator, Op},
    perform::Performer,
    tree::{Body, Mtime, NodeId, Tree},
};

/// One worker with its own directory: what it knows and the operation that was not answered.
pub struct Worker {
    pub tree: Tree,
    pub performer: Performer,
    pub generator: Generator,
    pub in_flight: Option<Op>,
    /// The last operations, for the report of a failure.
    pub history: Vec<Op>,
    /// The tree after the last sync and after each operation since, if power cuts are played.
    pub since_sync: Option<Vec<Tree>>,
}

/// The signs that the workers and the killer give each other.
#[derive(Default)]
pub struct Signals {
    /// Set just before the kill: from then on an error may be the crash's.
    pub killing: AtomicBool,
    /// No further operation is begun: the daemon is to be killed while it does something else.
    pub stop: AtomicBool,
    pub done: AtomicU64,
}

const HISTORY: usize = 40;

impl Worker {
    /// Works until the file system is gone. An answer that is wrong while the daemon lives is an error.
    pub fn work(&mut self, signals: &Signals, mut move_file: impl FnMut(&Path, &str)) -> Result<()> {
        self.in_flight = None;
        while !signals.stop.load(Ordering::Acquire) {
            let op = self.generator.draw(&self.tree);
            let since = Moment::now();
            let mut after = self.tree.clone();
            let wanted = after.apply(&op);
            if self.history.len() == HISTORY {
                self.history.remove(0);
            }
            self.history.push(op.clone());
            if let (Op::Move { path, tier }, Ok(_)) = (&op, &wanted) {
                move_file(&self.performer.path(path), tier.word());
                if signals.killing.load(Ordering::Acquire) {
                    return Ok(());
                }
            }
            let real = self.performer.perform(&op);
            signals.done.fetch_add(1, Ordering::Relaxed);
            if is_gone(real.as_ref().err()) && signals.killing.load(Ordering::Acquire) {
                // Was it refused because the mount is dead, or cut off while it ran? Both are in flight.
                self.in_flight = Some(op);
                return Ok(());
            }
            ensure!(real == wanted, "{op:?} gave {}, should give {}", brief(&real), brief(&wanted));
            self.tree = after;
            self.date_changes(since);
            self.remember(&op, wanted.is_ok());
        }
        Ok(())
    }

    /// What the last step changed, it changed since it began.
    fn date_changes(&mut self, since: Moment) {
        for node in self.tree.nodes.values_mut().filter(|node| node.mtime == Mtime::Changed) {
            node.mtime = Mtime::Since(since);
        }
    }

    /// What a power cut may leave: the state at the last sync, or after any operation since.
    fn remember(&mut self, op: &Op, done: bool) {
        let Some(states) = &mut self.since_sync else { return };
        if done && op.promises() {
            states.clear();
        }
        states.push(self.tree.clone());
    }

    /// Checks the tree after a kill and takes over what the in-flight operation did.
    pub fn check(&mut self, rebooted: Option<Reboot>) -> Result<()> {
        self.performer.close_all();
        let mut before = self.tree.clone();
        let mut after = self.tree.clone();
        let op = self.in_flight.take();
        if let Some(op) = &op
            && (op.promises() || after.apply(op).is_err())
        {
            after = before.clone();
        }
        let in_part = op.as_ref().is_some_and(changes_data);
        if rebooted.is_some() {
            // The time of a write is settled after the last close, a moment later; until then it may be in memory alone.
            for tree in [&mut before, &mut after] {
                for node in tree.nodes.values_mut().filter(|node| node.content().is_some()) {
                    if let Mtime::Since(_) = node.mtime {
                        node.mtime = Mtime::Unknown;
                    }
                }
            }
        }
        before.close_all();
        after.close_all();
        let root = self.performer.root().to_owned();
        let mut whys = Vec::new();
        for (candidate, what) in [(after, "done"), (before.clone(), "not done")] {
            let mut tree = candidate;
            for node in tree.nodes.values_mut() {
                // By the operation in flight, which may have happened in part.
                if node.mtime == Mtime::Changed {
                    node.mtime = Mtime::Unknown;
                }
            }
            if in_part {
                adopt_sizes(&root, &mut tree, &before, op.as_ref());
            }
            // Names and sizes alone may agree with both: of what is lost the size may be unknown.
            let found = compare(&root, &mut tree, Contents::None, Moment::now()).and_then(|()| {
                self.tree = tree;
                let partial = op.clone().filter(|_| in_part);
                self.check_contents(&root, &before, partial, rebooted.as_ref())
            });
            match found {
                Ok(lost) => {
                    if let Some(reboot) = &rebooted {
                        reboot.lost.fetch_add(lost.len() as u64, Ordering::Relaxed);
                    }
                    return self.remove_lost(&root, &lost);
                }
                Err(why) => whys.push(format!("{what}: {why:#}")),
            }
        }
        Err(anyhow!("the operation in flight is neither {} (in flight: {op:?})", whys.join(", nor ")))
    }

    /// Compares every file with what the tree says, and returns those that were lost.
    fn check_contents(
        &mut self,
        root: &Path,
        before: &Tree,
        partial: Option<Op>,
        rebooted: Option<&Reboot>,
    ) -> Result<Vec<NodeId>> {
        let touched = partial.as_ref().and_then(|op| target(&self.tree, op));
        let mut seen: Vec<NodeId> = Vec::new();
        let mut lost: Vec<NodeId> = Vec::new();
        for (path, id) in self.tree.paths() {
            if seen.contains(&id) {
                continue;
            }
            let Some(wanted) = self.tree.node(id)?.content().cloned() else { continue };
            seen.push(id);
            let full = root.join(&path);
            let outcome = if Some(id) == touched {
                let old = before.nodes.get(&id).and_then(|n| n.content()).cloned().unwrap_or_default();
                check_mixture(&full, &old, &wanted, rebooted.is_some())
            } else if let Some(reboot) = rebooted {
                reboot.check_file(&full, &wanted, self.tree.node(id)?)
            } else {
                read_whole(&full).and_then(|real| differ(&real, &wanted)).map(|()| State::Intact)
            };
            match outcome.map_err(|why| anyhow!("{path}: {why:#}"))? {
                State::Intact => {}
                State::Mixed(real) => self.adopt(id, real)?,
                State::Lost => lost.push(id),
            }
        }
        Ok(lost)
    }

    fn adopt(&mut self, id: NodeId, real: Vec<u8>) -> Result<()> {
        let node = self.tree.node_mut(id)?;
        node.unsynced = std::iter::once(0..real.len() as u64).collect();
        node.body = Body::File(Arc::new(real));
        Ok(())
    }

    /// A lost file is removed or written again, as its owner would; both must work.
    pub(crate) fn remove_lost(&mut self, _root: &Path, lost: &[NodeId]) -> Result<()> {
        let all = self.tree.paths();
        for (n, id) in lost.iter().enumerate() {
            for (index, (path, _)) in all.iter().filter(|(_, at)| at == id).enumerate() {
                let rewrite = n % 2 == 0;
                if rewrite && index > 0 {
                    continue;
                }
                let op = if rewrite {
                    Op::Rewrite { path: path.clone(), len: 5000, fill: 77 }
                } else {
                    Op::Unlink { path: path.clone() }
                };
                let since = Moment::now();
                self.tree.apply(&op)?;
                let real = self.performer.perform(&op);
                ensure!(real.is_ok(), "{op:?} of a lost file gave {}", brief(&real));
                self.date_changes(since);
            }
        }
        Ok(())
    }

    pub fn report(&self) -> String {
        self.history.iter().map(|op| format!("  {op:?}\n")).collect()
    }
}

/// The rules of a reboot.
#[derive(Clone)]
pub struct Reboot {
    /// Bytes that may share the fate of a changed one: EIO is given in such units.
    pub eio_unit: u64,
    /// How many files were lost, over all.
    pub lost: Arc<AtomicU64>,
}

enum State {
    Intact,
    Mixed(Vec<u8>),
    Lost,
}

impl Reboot {
    fn check_file(&self, path: &Path, wanted: &[u8], node: &crate::tree::Node) -> Result<State> {
        const BLOCK: usize = 4096;
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if is_eio(&e) && node.synced.is_none() => return Ok(State::Lost),
            Err(e) => return Err(e).context("open"),
        };
        let mut lost = false;
        let mut block = [0u8; BLOCK];
        for offset in (0..wanted.len() as u64).step_by(BLOCK) {
            let end = (offset + BLOCK as u64).min(wanted.len() as u64);
            match file.read_at(&mut block, offset) {
                // What is known of a file whose end is lost ends with the error, as in any read that fails half way.
                Ok(len) if offset + (len as u64) < end && ends_with_eio(&file, offset + len as u64) => {
                    differ(&block[..len], &wanted[offset as usize..offset as usize + len])
                        .with_context(|| format!("after a reboot, the last block, at {offset}"))?;
                    ensure!(
                        !self.is_safe(node, offset + len as u64, end),
                        "fsynced bytes before {end} give EIO"
                    );
                    lost = true;
                    break;
                }
                Ok(len) => differ(&block[..len], &wanted[offset as usize..end as usize])
                    .with_context(|| format!("after a reboot, block at {offset}"))?,
                Err(e) if is_eio(&e) => {
                    ensure!(!self.is_safe(node, offset, end), "fsynced bytes {offset}..{end} give EIO");
                    lost = true;
                }
                Err(e) => return Err(e).with_context(|| format!("read at {offset}")),
            }
        }
        Ok(if lost { State::Lost } else { State::Intact })
    }

    /// True when every byte of the unit around the range was fsynced and not changed since.
    fn is_safe(&self, node: &crate::tree::Node, offset: u64, end: u64) -> bool {
        let Some(synced) = &node.synced else { return false };
        let start = offset / self.eio_unit * self.eio_unit;
        let stop = end.div_ceil(self.eio_unit) * self.eio_unit;
        let changed = node.unsynced.iter().any(|range| range.start < stop && start < range.end);
        end <= synced.len() as u64 && !changed
    }
}

fn ends_with_eio(file: &File, at: u64) -> bool {
    file.read_at(&mut [0], at).is_err_and(|e| is_eio(&e))
}

pub(crate) fn is_eio(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(Errno::IO.raw_os_error())
}

fn is_gone(error: Option<&Errno>) -> bool {
    // AGAIN: of a ring whose daemon is dying, once in some hundred kills; the daemon itself never answers it.
    let gone = [
        Errno::NOTCONN,
        Errno::CONNABORTED,
        Errno::CANCELED,
        Errno::IO,
        Errno::NODEV,
        Errno::INTR,
        Errno::AGAIN,
    ];
    error.is_some_and(|e| gone.contains(e))
}

fn brief(outcome: &Result<crate::semantics::Answer, Errno>) -> String {
    match outcome {
        Ok(answer) => answer.data.as_ref().map_or_else(|| "success".into(), |d| format!("{} bytes", d.len())),
        Err(errno) => format!("{errno:?}"),
    }
}

/// Operations of several requests: a crash can leave them done in part.
fn changes_data(op: &Op) -> bool {
    matches!(
        op,
        Op::Rewrite { .. }
            | Op::Write { .. }
            | Op::Append { .. }
            | Op::Truncate { .. }
            | Op::Allocate { .. }
            | Op::CopyRange { .. }
            | Op::Tmpfile { .. }
            | Op::WriteOpen { .. }
            | Op::TruncateOpen { .. }
    )
}

/// The file whose data the operation changes, if it has a name.
fn target(tree: &Tree, op: &Op) -> Option<NodeId> {
    match op {
        Op::Rewrite { path, .. }
        | Op::Write { path, .. }
        | Op::Append { path, .. }
        | Op::Truncate { path, .. }
        | Op::Allocate { path, .. }
        | Op::Tmpfile { path, .. } => tree.existing(path).ok(),
        Op::CopyRange { to, .. } => tree.existing(to).ok(),
        Op::WriteOpen { .. } | Op::TruncateOpen { .. } => tree.touched.iter().next().copied(),
        _ => None,
    }
}

/// Takes the real size of the file in flight when it lies between those before and after.
fn adopt_sizes(root: &Path, tree: &mut Tree, before: &Tree, op: Option<&Op>) {
    let Some(id) = op.and_then(|op| target(tree, op)) else { return };
    let Some((path, _)) = tree.paths().into_iter().find(|(_, at)| *at == id) else { return };
    let Ok(meta) = std::fs::symlink_metadata(root.join(path)) else { return };
    let old = before.nodes.get(&id).and_then(|n| n.content()).map_or(0, |b| b.len() as u64);
    let Some(node) = tree.nodes.get_mut(&id) else { return };
    node.mtime = Mtime::Unknown;
    let Body::File(bytes) = &mut node.body else { return };
    let new = bytes.len() as u64;
    let low = if matches!(op, Some(Op::Rewrite { .. } | Op::Tmpfile { .. })) { 0 } else { old.min(new) };
    if (low..=old.max(new)).contains(&meta.len()) {
        let kept = before.nodes.get(&id).and_then(|n| n.content()).cloned().unwrap_or_default();
        let bytes = Arc::make_mut(bytes);
        bytes.resize(meta.len() as usize, 0);
        // Where only the old content reaches, it is what can be there.
        if kept.len() as u64 > new {
            let (from, to) = (new as usize, kept.len().min(meta.len() as usize));
            if from < to {
                bytes[from..to].copy_from_slice(&kept[from..to]);
            }
        }
    }
}

fn read_whole(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).context("read")
}

/// Each byte of a half-done operation is the old one, the new one, or zero beyond the old end.
fn check_mixture(path: &Path, old: &[u8], new: &[u8], rebooted: bool) -> Result<State> {
    let real = match std::fs::read(path) {
        Ok(real) => real,
        Err(e) if is_eio(&e) && rebooted => return Ok(State::Lost),
        Err(e) => return Err(e).context("read the file that was in flight"),
    };
    for (at, byte) in real.iter().enumerate() {
        let was = old.get(at).copied().unwrap_or(0);
        let becomes = new.get(at).copied().unwrap_or(0);
        if *byte != was && *byte != becomes && *byte != 0 {
            bail!("byte {at} is {byte}: neither the old {was} nor the new {becomes}");
        }
        if *byte == 0 && was != 0 && becomes != 0 {
            bail!("byte {at} is zero where {was} became {becomes}");
        }
    }
    Ok(State::Mixed(real))
}
