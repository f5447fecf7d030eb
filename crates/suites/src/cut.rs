//! What may be true after a power cut: of names and attributes the state at one moment since the worker's last fsync; of
//! data every byte that was fsynced and not changed since. Other bytes may be old, new, zeros or `EIO`.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    compare::{Contents, compare, differ},
    crash::{Worker, is_eio},
    moment::Moment,
    tree::{Body, Mtime, Node, NodeId, Tree},
};

/// A changed byte may take the others of its unit with it.
const UNIT: usize = 4096;
/// Of the states that are not there, newest first.
const REASONS: usize = 6;

impl Worker {
    /// Finds the state that the disk came back with, checks the bytes that must be there, and goes on from it.
    pub fn check_cut(&mut self, lost: &AtomicU64) -> Result<()> {
        self.performer.close_all();
        let root = self.performer.root().to_owned();
        let mut states = self.since_sync.take().unwrap_or_default();
        let mut after = states.last().unwrap_or(&self.tree).clone();
        let in_flight = self.in_flight.take();
        if let Some(op) = &in_flight
            && !op.promises()
            && after.apply(op).is_ok()
        {
            // Nobody knows when it was done.
            for node in after.nodes.values_mut().filter(|node| node.mtime == Mtime::Changed) {
                node.mtime = Mtime::Unknown;
            }
            states.push(after);
        }
        let mut why_not = Vec::new();
        for state in states.iter().rev() {
            let mut tree = state.clone();
            tree.close_all();
            match compare(&root, &mut tree, Contents::Names, Moment::now()) {
                Ok(()) => {
                    self.tree = tree;
                    self.check_bytes(&root, &states, lost)
                        .with_context(|| format!("in flight: {in_flight:?}"))?;
                    // The names of what was lost and is gone now must not come back.
                    File::open(&root)?.sync_all()?;
                    self.since_sync = Some(vec![self.tree.clone()]);
                    return Ok(());
                }
                Err(why) => why_not.push(format!("{why:#}")),
            }
        }
        why_not.dedup();
        why_not.truncate(REASONS);
        let why_not = why_not.join("\n  ");
        bail!(
            "in flight: {in_flight:?}; none of {} states since the last fsync is there:\n  {why_not}",
            states.len()
        )
    }

    fn check_bytes(&mut self, root: &Path, states: &[Tree], lost: &AtomicU64) -> Result<()> {
        let mut gone = Vec::new();
        let mut seen: Vec<NodeId> = Vec::new();
        for (path, id) in self.tree.paths() {
            // What was done to the file later may have reached the disk: only what nobody changed any more is sure.
            let newest = states.iter().rev().find_map(|tree| tree.nodes.get(&id));
            let Some(newest) = newest.filter(|n| n.content().is_some() && !seen.contains(&id)) else {
                continue;
            };
            seen.push(id);
            match check_file(&root.join(&path), newest).with_context(|| path.clone())? {
                Some(real) => {
                    let kept = newest.synced.is_some() && newest.unsynced.is_empty();
                    let node = self.tree.node_mut(id)?;
                    node.body = Body::File(Arc::new(real));
                    node.synced = node.content().cloned().filter(|_| kept);
                    node.unsynced.clear();
                }
                None => gone.push(id),
            }
        }
        lost.fetch_add(gone.len() as u64, Ordering::Relaxed);
        self.remove_lost(root, &gone)
    }
}

/// The content; `None` if a part of it is lost.
fn check_file(path: &Path, newest: &Node) -> Result<Option<Vec<u8>>> {
    let file = File::open(path).context("open")?;
    let mut real = Vec::new();
    let mut lost = false;
    let mut block = [0; UNIT];
    loop {
        match file.read_at(&mut block, real.len() as u64) {
            Ok(0) => break,
            Ok(n) => real.extend_from_slice(&block[..n]),
            Err(e) if is_eio(&e) => {
                lost = true;
                if real.len() as u64 >= file.metadata()?.len() {
                    break;
                }
                // Blocks behind it may be there.
                real.resize(((real.len() / UNIT) + 1) * UNIT, 0);
                ensure!(!is_safe(newest, real.len() - UNIT), "fsynced bytes before {} give EIO", real.len());
            }
            Err(e) => return Err(e).with_context(|| format!("read at {}", real.len())),
        }
    }
    let Some(synced) = &newest.synced else { return Ok((!lost).then_some(real)) };
    if newest.unsynced.is_empty() && !lost {
        differ(&real, synced).context("fsynced and not changed since")?;
    }
    for at in (0..synced.len()).step_by(UNIT).filter(|at| is_safe(newest, *at)) {
        let end = (at + UNIT).min(synced.len());
        let there = real.get(at..end.min(real.len())).unwrap_or_default();
        differ(there, &synced[at..end]).with_context(|| format!("fsynced block at {at}"))?;
    }
    Ok((!lost).then_some(real))
}

/// Was this block fsynced as a whole, and not changed since?
fn is_safe(node: &Node, at: usize) -> bool {
    let Some(synced) = &node.synced else { return false };
    let (start, end) = (at as u64, (at + UNIT) as u64);
    at < synced.len() && !node.unsynced.iter().any(|r| r.start < end && start < r.end)
}
