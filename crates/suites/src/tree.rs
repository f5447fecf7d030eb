//! The reference file system in memory: nodes, names, path lookup. What the operations mean is in
//! [`crate::semantics`]. Cloning is cheap: file contents are shared until written.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use rustix::io::Errno;

use crate::moment::Moment;

pub type NodeId = u64;
pub const ROOT: NodeId = 0;

#[derive(Clone, Debug)]
pub enum Body {
    File(Arc<Vec<u8>>),
    Dir(BTreeMap<String, NodeId>),
    Symlink(String),
    Fifo,
}

/// What is known of a modification time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mtime {
    /// This value exactly: seconds and nanoseconds.
    Is(i64, u32),
    /// Changed by the step that has just run: not before that step began.
    Changed,
    /// Changed by a step that began then.
    Since(Moment),
    /// POSIX leaves it open, or it was never looked at.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub body: Body,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    pub mtime: Mtime,
    /// Inode number, once seen; it must stay.
    pub ino: Option<u64>,
    /// The content at the last fsync, and which bytes changed since (for the reboot test).
    pub synced: Option<Arc<Vec<u8>>>,
    pub unsynced: Vec<Range<u64>>,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }
    pub fn content(&self) -> Option<&Arc<Vec<u8>>> {
        match &self.body {
            Body::File(bytes) => Some(bytes),
            Body::Dir(_) | Body::Symlink(_) | Body::Fifo => None,
        }
    }
}

/// Where a path ends: the directory, the last name, and what it names (if it does).
#[derive(Clone, Debug)]
pub struct Found {
    pub parent: NodeId,
    pub name: String,
    pub node: Option<NodeId>,
}

#[derive(Clone, Debug)]
pub struct Tree {
    pub nodes: BTreeMap<NodeId, Node>,
    pub handles: BTreeMap<u8, NodeId>,
    /// Nodes whose content or attributes the last step touched.
    pub touched: BTreeSet<NodeId>,
    next: NodeId,
}

impl Default for Tree {
    fn default() -> Tree {
        let mut tree =
            Tree { nodes: BTreeMap::new(), handles: BTreeMap::new(), touched: BTreeSet::new(), next: ROOT };
        let root = tree.add(Body::Dir(BTreeMap::new()), 0o755, 0);
        tree.nodes.entry(root).and_modify(|n| n.mtime = Mtime::Unknown);
        tree
    }
}

const NAME_MAX: usize = 255;
const SYMLINKS_MAX: u32 = 40;

impl Tree {
    pub fn add(&mut self, body: Body, mode: u32, gid: u32) -> NodeId {
        let id = self.next;
        self.next += 1;
        let nlink = u64::from(id != ROOT);
        let node = Node {
            body,
            mode,
            uid: 0,
            gid,
            nlink,
            xattrs: BTreeMap::new(),
            mtime: Mtime::Changed,
            ino: None,
            synced: None,
            unsynced: Vec::new(),
        };
        self.nodes.insert(id, node);
        self.touched.insert(id);
        id
    }

    pub fn node(&self, id: NodeId) -> Result<&Node, Errno> {
        self.nodes.get(&id).ok_or(Errno::STALE)
    }
    pub fn node_mut(&mut self, id: NodeId) -> Result<&mut Node, Errno> {
        self.touched.insert(id);
        self.nodes.get_mut(&id).ok_or(Errno::STALE)
    }
    pub fn entries(&self, id: NodeId) -> Result<&BTreeMap<String, NodeId>, Errno> {
        match &self.node(id)?.body {
            Body::Dir(entries) => Ok(entries),
            Body::File(_) | Body::Symlink(_) | Body::Fifo => Err(Errno::NOTDIR),
        }
    }
    pub fn entries_mut(&mut self, id: NodeId) -> Result<&mut BTreeMap<String, NodeId>, Errno> {
        match &mut self.node_mut(id)?.body {
            Body::Dir(entries) => Ok(entries),
            Body::File(_) | Body::Symlink(_) | Body::Fifo => Err(Errno::NOTDIR),
        }
    }

    /// Looks a path up as the kernel does, without following a symlink in the last place.
    pub fn find(&self, path: &str) -> Result<Found, Errno> {
        self.walk(vec![ROOT], path, &mut 0, false)
    }
    /// The node that a path names, following symlinks also in the last place.
    pub fn resolve(&self, path: &str) -> Result<NodeId, Errno> {
        self.walk(vec![ROOT], path, &mut 0, true)?.node.ok_or(Errno::NOENT)
    }
    /// The node that a path names, not following a symlink in the last place.
    pub fn existing(&self, path: &str) -> Result<NodeId, Errno> {
        self.find(path)?.node.ok_or(Errno::NOENT)
    }

    fn walk(&self, start: Vec<NodeId>, path: &str, links: &mut u32, follow: bool) -> Result<Found, Errno> {
        let mut at = start;
        let parts: Vec<&str> = path.split('/').collect();
        for (index, name) in parts.iter().enumerate() {
            let last = index + 1 == parts.len();
            let parent = at.last().copied().unwrap_or(ROOT);
            let entries = self.entries(parent)?;
            if name.len() > NAME_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            let node = entries.get(*name).copied();
            let link = match node.map(|id| self.node(id)).transpose()?.map(|n| &n.body) {
                Some(Body::Symlink(target)) if !last || follow => Some(target),
                Some(Body::Symlink(_) | Body::File(_) | Body::Dir(_) | Body::Fifo) | None => None,
            };
            if let Some(target) = link {
                *links += 1;
                if *links > SYMLINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let found = self.walk(at.clone(), target, links, true)?;
                if last {
                    return Ok(found);
                }
                at = self.chain_to(found.node.ok_or(Errno::NOENT)?);
                continue;
            }
            if last {
                return Ok(Found { parent, name: (*name).to_owned(), node });
            }
            at.push(node.ok_or(Errno::NOENT)?);
        }
        Err(Errno::NOENT)
    }

    /// The directories from the root to `id`, with it; just `id` for what is not a directory.
    fn chain_to(&self, id: NodeId) -> Vec<NodeId> {
        let mut chain = vec![id];
        while let Some(parent) = chain.last().and_then(|at| self.parent_of(*at)) {
            chain.push(parent);
        }
        chain.reverse();
        chain
    }
    pub fn parent_of(&self, id: NodeId) -> Option<NodeId> {
        self.nodes.iter().find_map(|(parent, node)| match &node.body {
            Body::Dir(entries) if entries.values().any(|child| *child == id) => Some(*parent),
            Body::Dir(_) | Body::File(_) | Body::Symlink(_) | Body::Fifo => None,
        })
    }
    /// True when `upper` is `lower` or one of the directories above it.
    pub fn is_above(&self, upper: NodeId, lower: NodeId) -> bool {
        let mut at = Some(lower);
        while let Some(id) = at {
            if id == upper {
                return true;
            }
            at = self.parent_of(id);
        }
        false
    }

    /// Takes one name away from a node; it goes when no name and no open handle is left.
    pub fn drop_name(&mut self, id: NodeId) -> Result<(), Errno> {
        let node = self.node_mut(id)?;
        node.nlink = node.nlink.saturating_sub(1);
        self.collect(id);
        Ok(())
    }
    pub fn collect(&mut self, id: NodeId) {
        let gone = self.nodes.get(&id).is_some_and(|n| n.nlink == 0) && id != ROOT;
        if gone && !self.handles.values().any(|open| *open == id) {
            self.nodes.remove(&id);
            self.touched.remove(&id);
        }
    }

    /// All paths with their nodes, parents first.
    pub fn paths(&self) -> Vec<(String, NodeId)> {
        let mut found = Vec::new();
        self.visit(ROOT, "", &mut |path, id| found.push((path.to_owned(), id)));
        found
    }
    fn visit(&self, dir: NodeId, prefix: &str, see: &mut dyn FnMut(&str, NodeId)) {
        let Ok(entries) = self.entries(dir) else { return };
        for (name, id) in entries {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            see(&path, *id);
            if self.nodes.get(id).is_some_and(Node::is_dir) {
                self.visit(*id, &path, see);
            }
        }
    }
    pub fn files(&self) -> Vec<String> {
        self.select(|node| matches!(node.body, Body::File(_)))
    }
    /// The root, as the empty path, and all directories.
    pub fn directories(&self) -> Vec<String> {
        let mut all = vec![String::new()];
        all.extend(self.select(Node::is_dir));
        all
    }
    fn select(&self, keep: impl Fn(&Node) -> bool) -> Vec<String> {
        let all = self.paths().into_iter();
        all.filter(|(_, id)| self.nodes.get(id).is_some_and(&keep)).map(|(path, _)| path).collect()
    }
    pub fn total_bytes(&self) -> u64 {
        self.nodes.values().filter_map(Node::content).map(|bytes| bytes.len() as u64).sum()
    }

    /// Forgets open handles, as after an unmount or a crash.
    pub fn close_all(&mut self) {
        let open: Vec<NodeId> = std::mem::take(&mut self.handles).into_values().collect();
        for id in open {
            self.collect(id);
        }
    }
}
