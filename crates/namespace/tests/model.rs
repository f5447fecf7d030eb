//! Random operations against a simple tree, compared operation by operation and at the end, and then checked.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use namespace::{
    Error, Keep, NameHasher, NewNode, Place, RenameMode, SetAttr, SetXattr, Settled, data, orphan, parts,
    quota::{self, Limits},
    xattr,
};
use proptest::prelude::*;
use support::{Fs, HASH_KEY, USER, regular, theirs};
use types::{Errno, FileKind, Ino, ProjectId};

const PROJECT: ProjectId = ProjectId(9);
const INODES_MAX: u64 = 6;
const BYTES_MAX: u64 = 1000;
/// More than there are names.
const ENTRIES_MAX: usize = 16;
const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", ".", "..", "", "x/y"];

#[derive(Clone, Debug)]
enum Op {
    Create(usize, usize),
    Symlink(usize, usize),
    Mkdir(usize, usize),
    Unnamed(usize),
    Unlink(usize, usize),
    Rmdir(usize, usize),
    Link(usize, usize, usize),
    Rename(usize, usize, usize, usize, u8),
    Truncate(usize, u16),
    Settle(usize, u16),
    SetXattr(usize, u8),
    RemoveXattr(usize, u8),
    Assign(usize, bool),
    Purge(usize),
    Import(usize, usize, u8, u16),
    Refresh(usize, u8, u16, bool),
    ImportXattrs(usize, u8),
    Spread(usize, u32),
    Gather(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let (n, name) = (0usize..12, 0..NAMES.len());
    // Good names are more likely.
    let name = prop_oneof![9 => 0usize..5, 1 => name];
    prop_oneof![
        4 => (n.clone(), name.clone()).prop_map(|(a, b)| Op::Create(a, b)),
        1 => (n.clone(), name.clone()).prop_map(|(a, b)| Op::Symlink(a, b)),
        5 => (n.clone(), name.clone()).prop_map(|(a, b)| Op::Mkdir(a, b)),
        1 => n.clone().prop_map(Op::Unnamed),
        2 => (n.clone(), name.clone()).prop_map(|(a, b)| Op::Unlink(a, b)),
        2 => (n.clone(), name.clone()).prop_map(|(a, b)| Op::Rmdir(a, b)),
        3 => (n.clone(), n.clone(), name.clone()).prop_map(|(a, b, c)| Op::Link(a, b, c)),
        9 => (n.clone(), name.clone(), n.clone(), name.clone(), 0u8..3).prop_map(|(a, b, c, d, e)| Op::Rename(a, b, c, d, e)),
        1 => (n.clone(), any::<u16>()).prop_map(|(a, b)| Op::Truncate(a, b % 1500)),
        1 => (n.clone(), any::<u16>()).prop_map(|(a, b)| Op::Settle(a, b % 1500)),
        1 => (n.clone(), 0u8..3).prop_map(|(a, b)| Op::SetXattr(a, b)),
        1 => (n.clone(), 0u8..3).prop_map(|(a, b)| Op::RemoveXattr(a, b)),
        1 => (n.clone(), any::<bool>()).prop_map(|(a, b)| Op::Assign(a, b)),
        2 => n.clone().prop_map(Op::Purge),
        3 => (n.clone(), name, 0u8..3, any::<u16>()).prop_map(|(a, b, c, d)| Op::Import(a, b, c, d % 1500)),
        2 => (n.clone(), 0u8..16, any::<u16>(), any::<bool>()).prop_map(|(a, b, c, d)| Op::Refresh(a, b, c % 1500, d)),
        1 => (n.clone(), 0u8..8).prop_map(|(a, b)| Op::ImportXattrs(a, b)),
        5 => (n.clone(), 0u32..4).prop_map(|(a, b)| Op::Spread(a, b)),
        1 => n.prop_map(Op::Gather),
    ]
}

struct Node {
    kind: FileKind,
    nlink: u32,
    parent: Ino,
    entries: BTreeMap<String, Ino>,
    size: u64,
    project: ProjectId,
    linkable: bool,
    attributes: BTreeSet<u8>,
    spread: Option<u32>,
}

/// The reference: what POSIX says, in the plainest way.
struct Model {
    nodes: BTreeMap<Ino, Node>,
}

type Answer<V = ()> = Result<V, Errno>;

fn good_name(name: &str) -> Answer {
    match name {
        "" => Err(Errno::ENOENT),
        "x/y" => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

fn new_name(name: &str) -> Answer {
    good_name(name)?;
    if name.starts_with('.') { Err(Errno::EEXIST) } else { Ok(()) }
}

impl Model {
    fn new() -> Model {
        let root = Node::new(FileKind::Directory, Ino::ROOT, ProjectId::NONE);
        Model { nodes: BTreeMap::from([(Ino::ROOT, root)]) }
    }

    fn dir(&self, ino: Ino) -> Answer<&Node> {
        let node = self.nodes.get(&ino).ok_or(Errno::ESTALE)?;
        if node.kind == FileKind::Directory { Ok(node) } else { Err(Errno::ENOTDIR) }
    }

    fn live_dir(&self, ino: Ino) -> Answer<&Node> {
        let node = self.dir(ino)?;
        if node.nlink == 0 { Err(Errno::ENOENT) } else { Ok(node) }
    }

    fn used(&self) -> (u64, u64) {
        let mine = self.nodes.values().filter(|n| n.project == PROJECT);
        mine.fold((0, 0), |(bytes, inodes), n| (bytes + n.bytes(), inodes + 1))
    }

    fn room_for_inode(&self, project: ProjectId) -> Answer {
        if project == PROJECT && self.used().1 >= INODES_MAX { Err(Errno::EDQUOT) } else { Ok(()) }
    }

    fn add(&mut self, dir: Ino, name: &str, ino: Ino, kind: FileKind) -> Answer {
        new_name(name)?;
        let parent = self.live_dir(dir)?;
        if parent.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.room_for_inode(parent.project)?;
        self.import(dir, name, ino, (kind, 0))
    }

    fn import(&mut self, dir: Ino, name: &str, ino: Ino, (kind, size): (FileKind, u64)) -> Answer {
        new_name(name)?;
        let parent = self.live_dir(dir)?;
        if parent.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let project = parent.project;
        let mut node = Node::new(kind, dir, project);
        node.size = match kind {
            FileKind::Symlink => 6,
            FileKind::Regular => size,
            _ => 0,
        };
        self.nodes.insert(ino, node);
        self.enter(dir, name, ino);
        Ok(())
    }

    fn enter(&mut self, dir: Ino, name: &str, ino: Ino) {
        let is_dir = self.nodes[&ino].kind == FileKind::Directory;
        let parent = self.nodes.get_mut(&dir).unwrap();
        assert!(parent.entries.insert(name.to_owned(), ino).is_none());
        if is_dir {
            parent.nlink += 1;
        }
        self.nodes.get_mut(&ino).unwrap().parent = dir;
    }

    fn leave(&mut self, dir: Ino, name: &str) -> Ino {
        let ino = self.nodes.get_mut(&dir).unwrap().entries.remove(name).unwrap();
        if self.nodes[&ino].kind == FileKind::Directory {
            self.nodes.get_mut(&dir).unwrap().nlink -= 1;
        }
        ino
    }

    fn unnamed(&mut self, dir: Ino, ino: Ino) -> Answer {
        let project = self.live_dir(dir)?.project;
        self.room_for_inode(project)?;
        let node = Node { nlink: 0, linkable: true, ..Node::new(FileKind::Regular, dir, project) };
        self.nodes.insert(ino, node);
        Ok(())
    }

    fn unlink(&mut self, dir: Ino, name: &str) -> Answer<u32> {
        good_name(name)?;
        let parent = self.dir(dir)?;
        if name.starts_with('.') {
            return Err(Errno::EISDIR);
        }
        let ino = *parent.entries.get(name).ok_or(Errno::ENOENT)?;
        if self.nodes[&ino].kind == FileKind::Directory {
            return Err(Errno::EISDIR);
        }
        self.leave(dir, name);
        let node = self.nodes.get_mut(&ino).unwrap();
        node.nlink -= 1;
        Ok(node.nlink)
    }

    fn rmdir(&mut self, dir: Ino, name: &str) -> Answer {
        good_name(name)?;
        let parent = self.dir(dir)?;
        match name {
            "." => return Err(Errno::EINVAL),
            ".." => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let ino = *parent.entries.get(name).ok_or(Errno::ENOENT)?;
        let node = &self.nodes[&ino];
        if node.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !node.entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.leave(dir, name);
        self.nodes.get_mut(&ino).unwrap().nlink = 0;
        Ok(())
    }

    fn link(&mut self, ino: Ino, dir: Ino, name: &str) -> Answer {
        new_name(name)?;
        let parent = self.live_dir(dir)?;
        let node = self.nodes.get(&ino).ok_or(Errno::ESTALE)?;
        if node.kind == FileKind::Directory {
            return Err(Errno::EPERM);
        }
        if parent.entries.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if node.nlink == 0 && !node.linkable {
            return Err(Errno::ENOENT);
        }
        if parent.project == PROJECT && node.project != PROJECT {
            return Err(Errno::EXDEV);
        }
        self.enter(dir, name, ino);
        let node = self.nodes.get_mut(&ino).unwrap();
        node.nlink += 1;
        node.linkable = false;
        Ok(())
    }

    fn is_below(&self, dir: Ino, top: Ino) -> bool {
        let mut at = dir;
        while at != Ino::ROOT {
            if at == top {
                return true;
            }
            at = self.nodes[&at].parent;
        }
        top == Ino::ROOT
    }

    fn rename(&mut self, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> Answer {
        good_name(from.1)?;
        good_name(to.1)?;
        let (from_dir, to_dir) = (self.dir(from.0)?, self.dir(to.0)?);
        if from.1.starts_with('.') || to.1.starts_with('.') {
            return Err(Errno::EBUSY);
        }
        let source = *from_dir.entries.get(from.1).ok_or(Errno::ENOENT)?;
        if to_dir.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let target = to_dir.entries.get(to.1).copied();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (_, Some(target)) if target == source => return Ok(()),
            _ => {}
        }
        let is_dir = |ino: Ino| self.nodes[&ino].kind == FileKind::Directory;
        let moved = from.0 != to.0;
        if moved && is_dir(source) && self.is_below(to.0, source) {
            return Err(Errno::EINVAL);
        }
        let fits =
            |ino: Ino, dir: &Node| dir.project == ProjectId::NONE || dir.project == self.nodes[&ino].project;
        if mode == RenameMode::Exchange {
            let target = target.unwrap();
            if moved && is_dir(target) && self.is_below(from.0, target) {
                return Err(Errno::EINVAL);
            }
            if moved && !(fits(source, to_dir) && fits(target, from_dir)) {
                return Err(Errno::EXDEV);
            }
            self.leave(from.0, from.1);
            self.leave(to.0, to.1);
            self.enter(from.0, from.1, target);
            self.enter(to.0, to.1, source);
            return Ok(());
        }
        if let Some(target) = target {
            match (is_dir(source), is_dir(target)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.nodes[&target].entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        if moved && !fits(source, to_dir) {
            return Err(Errno::EXDEV);
        }
        if let Some(target) = target {
            self.leave(to.0, to.1);
            let node = self.nodes.get_mut(&target).unwrap();
            node.nlink = if node.kind == FileKind::Directory { 0 } else { node.nlink - 1 };
        }
        self.leave(from.0, from.1);
        self.enter(to.0, to.1, source);
        Ok(())
    }

    fn resize(&mut self, ino: Ino, size: u64, enforce: bool) -> Answer {
        let used = self.used().0;
        let node = self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)?;
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        if enforce && node.project == PROJECT && size > node.size && used - node.size + size > BYTES_MAX {
            return Err(Errno::EDQUOT);
        }
        node.size = size;
        Ok(())
    }

    fn assign(&mut self, ino: Ino, project: ProjectId) -> Answer {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)?.project = project;
        Ok(())
    }
}

impl Node {
    fn new(kind: FileKind, parent: Ino, project: ProjectId) -> Node {
        Node {
            kind,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            parent,
            entries: BTreeMap::new(),
            size: 0,
            project,
            linkable: false,
            attributes: BTreeSet::new(),
            spread: None,
        }
    }
    fn bytes(&self) -> u64 {
        if self.kind == FileKind::Regular { self.size } else { 0 }
    }
}

fn answer<V>(result: namespace::Result<V>) -> Answer<V> {
    result.map_err(|e| match e {
        Error::Errno(errno) => errno,
        Error::Store(error) => panic!("the store is whole, but: {error}"),
    })
}

struct Pair {
    fs: Fs,
    model: Model,
    /// All numbers ever given, the purged ones too.
    known: Vec<Ino>,
}

impl Pair {
    fn new(hash_bits: u32) -> Pair {
        let mut fs = Fs::with_names(NameHasher::colliding(&HASH_KEY, hash_bits));
        let limits = Limits { bytes: Some(BYTES_MAX), inodes: Some(INODES_MAX) };
        fs.run(|txn, _| quota::set_limits(txn, PROJECT, limits)).unwrap();
        Pair { fs, model: Model::new(), known: vec![Ino::ROOT] }
    }

    fn pick(&self, n: usize) -> Ino {
        self.known[n % self.known.len()]
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(dir, name) => self.add(*dir, NAMES[*name], FileKind::Regular),
            Op::Symlink(dir, name) => self.add(*dir, NAMES[*name], FileKind::Symlink),
            Op::Mkdir(dir, name) => self.add(*dir, NAMES[*name], FileKind::Directory),
            Op::Unnamed(dir) => {
                let (dir, ino) = (self.pick(*dir), self.fs.fresh());
                let got =
                    answer(self.fs.run(|t, env| namespace::create_unnamed(t, env, &USER, dir, 0o600, ino)));
                assert_eq!(got.map(|_| ()), self.model.unnamed(dir, ino));
                self.note(ino);
            }
            Op::Unlink(dir, name) => {
                let dir = self.pick(*dir);
                let got = answer(self.fs.unlink(dir, NAMES[*name]));
                assert_eq!(got.map(|u| u.nlink_left), self.model.unlink(dir, NAMES[*name]));
            }
            Op::Rmdir(dir, name) => {
                let dir = self.pick(*dir);
                let got = answer(self.fs.rmdir(dir, NAMES[*name]));
                assert_eq!(got.map(|_| ()), self.model.rmdir(dir, NAMES[*name]));
            }
            Op::Link(ino, dir, name) => {
                let (ino, dir) = (self.pick(*ino), self.pick(*dir));
                let got = answer(self.fs.link(ino, dir, NAMES[*name]));
                assert_eq!(got.map(|_| ()), self.model.link(ino, dir, NAMES[*name]));
            }
            Op::Rename(from, from_name, to, to_name, mode) => {
                let from = (self.pick(*from), NAMES[*from_name]);
                let to = (self.pick(*to), NAMES[*to_name]);
                let mode =
                    [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][usize::from(*mode)];
                let got = answer(self.fs.rename(from, to, mode));
                assert_eq!(got.map(|_| ()), self.model.rename(from, to, mode));
            }
            Op::Truncate(ino, size) => {
                let (ino, size) = (self.pick(*ino), u64::from(*size));
                let change = SetAttr { size: Some(size), ..SetAttr::default() };
                let got = answer(self.fs.run(|t, env| namespace::setattr(t, env, ino, &change)));
                assert_eq!(got.map(|_| ()), self.model.resize(ino, size, true));
            }
            Op::Settle(ino, size) => {
                let (ino, size) = (self.pick(*ino), u64::from(*size));
                let settled = Settled { size, blocks: None, mtime: None, still_open: false };
                let begun = answer(self.fs.run(|t, env| data::begin_write(t, env, ino)));
                let got = answer(self.fs.run(|t, env| data::settle(t, env, ino, &settled)));
                assert_eq!(begun.map(|_| ()), got.map(|_| ()));
                assert_eq!(got.map(|_| ()), self.model.resize(ino, size, false));
            }
            Op::SetXattr(..) | Op::RemoveXattr(..) | Op::Assign(..) | Op::Purge(..) => self.apply_rest(op),
            Op::Import(..) | Op::Refresh(..) | Op::ImportXattrs(..) => self.apply_theirs(op),
            Op::Spread(..) | Op::Gather(..) => self.apply_spreading(op),
        }
    }

    fn apply_rest(&mut self, op: &Op) {
        match op {
            Op::SetXattr(ino, n) => {
                let (ino, name) = (self.pick(*ino), format!("trusted.{n}"));
                let got = answer(
                    self.fs.run(|t, env| xattr::set(t, env, ino, name.as_bytes(), b"v", SetXattr::default())),
                );
                let node = self.model.nodes.get_mut(&ino).ok_or(Errno::ESTALE);
                assert_eq!(got, node.map(|node| _ = node.attributes.insert(*n)));
            }
            Op::RemoveXattr(ino, n) => {
                let (ino, name) = (self.pick(*ino), format!("trusted.{n}"));
                let got = answer(self.fs.run(|t, env| xattr::remove(t, env, ino, name.as_bytes())));
                let node = self.model.nodes.get_mut(&ino).ok_or(Errno::ESTALE);
                let removed = node
                    .and_then(|node| if node.attributes.remove(n) { Ok(()) } else { Err(Errno::ENODATA) });
                assert_eq!(got, removed);
            }
            Op::Assign(ino, mine) => {
                let (ino, project) = (self.pick(*ino), if *mine { PROJECT } else { ProjectId::NONE });
                let got = answer(self.fs.run(|t, env| quota::assign(t, env, ino, project)));
                assert_eq!(got, self.model.assign(ino, project));
            }
            Op::Purge(ino) => {
                let ino = self.pick(*ino);
                answer(self.fs.run(|t, _| orphan::purge(t, ino))).unwrap();
                if self.model.nodes.get(&ino).is_some_and(|n| n.nlink == 0) {
                    self.model.nodes.remove(&ino);
                }
            }
            _ => unreachable!(),
        }
    }

    /// Nothing that a program sees changes.
    fn apply_spreading(&mut self, op: &Op) {
        let dir = match op {
            Op::Spread(dir, _) | Op::Gather(dir) => self.pick(*dir),
            _ => unreachable!(),
        };
        let before = self.model.live_dir(dir).map(|node| node.spread);
        let (got, wanted) = match op {
            Op::Spread(_, bits) => {
                let got = self.fs.run(|t, env| {
                    let over = parts::reserve(t, *bits)?;
                    parts::spread(t, env, dir, over, ENTRIES_MAX)
                });
                let wanted = match before {
                    Err(errno) => Err(errno),
                    Ok(_) if dir == Ino::ROOT || *bits == 0 => Err(Errno::EINVAL),
                    Ok(Some(other)) if other != *bits => Err(Errno::EEXIST),
                    Ok(_) => Ok(Some(*bits)),
                };
                (answer(got).map(|_| ()), wanted)
            }
            _ => {
                let got = self.fs.run(|t, env| parts::gather(t, env, dir, ENTRIES_MAX));
                (answer(got), before.map(|_| None))
            }
        };
        assert_eq!(got, wanted.map(|_| ()), "{op:?}");
        if let Ok(spread) = wanted {
            self.model.nodes.get_mut(&dir).unwrap().spread = spread;
        }
    }

    fn apply_theirs(&mut self, op: &Op) {
        match op {
            Op::Import(dir, name, kind, size) => {
                let (dir, name, ino) = (self.pick(*dir), NAMES[*name], self.fs.fresh());
                let kind = [FileKind::Regular, FileKind::Directory, FileKind::Symlink][usize::from(*kind)];
                let (at, theirs) = (Place { dir, name: name.as_bytes() }, theirs(kind, u64::from(*size)));
                let got =
                    answer(self.fs.run(|t, env| namespace::import(t, env, at, &theirs, b"target", ino)));
                let made = self.model.import(dir, name, ino, (kind, u64::from(*size)));
                assert_eq!(got.map(|_| ()), made);
                self.note(ino);
            }
            Op::Refresh(ino, keep, size, stub) => {
                let (ino, keep) = (self.pick(*ino), Keep::from_bits_truncate(*keep));
                let kind = self.model.nodes.get(&ino).map_or(FileKind::Regular, |node| node.kind);
                let theirs = theirs(kind, u64::from(*size));
                let got = answer(self.fs.run(|t, env| match stub {
                    true => namespace::refresh_stub(t, env, ino, &theirs, keep),
                    false => namespace::refresh(t, env, ino, &theirs, keep),
                }));
                let wanted = match self.model.nodes.get_mut(&ino) {
                    _ if *stub && kind != FileKind::Regular => Err(Errno::EINVAL),
                    None => Err(Errno::ESTALE),
                    Some(node) => {
                        if kind == FileKind::Regular && !keep.contains(Keep::SIZE) {
                            node.size = theirs.size;
                        }
                        Ok(())
                    }
                };
                assert_eq!(got.map(|_| ()), wanted);
            }
            Op::ImportXattrs(ino, set) => {
                let ino = self.pick(*ino);
                let names = (0..3u8).filter(|n| set & (1 << n) != 0);
                let list: Vec<_> = names
                    .clone()
                    .map(|n| (format!("trusted.{n}").into_bytes(), b"theirs".to_vec()))
                    .collect();
                let got = answer(self.fs.run(|t, _| namespace::import_xattrs(t, ino, &list)));
                let node = self.model.nodes.get_mut(&ino).ok_or(Errno::ESTALE);
                let replaced = node.map(|node| node.attributes = names.collect());
                assert_eq!(got, replaced.map(|()| 0));
            }
            _ => unreachable!(),
        }
    }

    fn add(&mut self, dir: usize, name: &str, kind: FileKind) {
        let (dir, ino) = (self.pick(dir), self.fs.fresh());
        let at = Place { dir, name: name.as_bytes() };
        let got = answer(self.fs.run(|t, env| match kind {
            FileKind::Directory => namespace::mkdir(t, env, &USER, at, 0o755, ino).map(|_| ()),
            FileKind::Symlink => {
                let node = NewNode { kind, target: Some(b"target"), ..regular(0o777) };
                namespace::create(t, env, &USER, at, &node, ino).map(|_| ())
            }
            _ => namespace::create(t, env, &USER, at, &regular(0o644), ino).map(|_| ()),
        }));
        assert_eq!(got, self.model.add(dir, name, ino, kind));
        self.note(ino);
    }

    fn note(&mut self, ino: Ino) {
        if self.model.nodes.contains_key(&ino) {
            self.known.push(ino);
        }
    }

    fn compare(&self) {
        for ino in &self.known {
            match self.model.nodes.get(ino) {
                None => {
                    let found = namespace::find(&self.fs.store, &self.fs.env, *ino);
                    assert_eq!(found, support::refused(Errno::ESTALE));
                }
                Some(node) => self.compare_node(*ino, node),
            }
        }
        let quota = quota::get(&self.fs.store, PROJECT).unwrap().unwrap();
        assert_eq!((quota.bytes, quota.inodes), self.model.used());
    }

    fn compare_node(&self, ino: Ino, node: &Node) {
        let attr = self.fs.attr(ino);
        assert_eq!(
            (attr.kind, attr.nlink, attr.size, attr.project),
            (node.kind, node.nlink, node.size, node.project),
            "{ino:?}"
        );
        let mut attributes = BTreeSet::new();
        xattr::list(&self.fs.store, ino, &mut |name| {
            attributes.insert(name.last().unwrap() - b'0');
        })
        .unwrap();
        assert_eq!(attributes, node.attributes);
        if node.nlink > 0 || node.kind != FileKind::Directory {
            assert_eq!(namespace::parent(&self.fs.store, ino).unwrap(), node.parent);
        }
        if node.kind == FileKind::Directory {
            for step in [1, 3] {
                let mut names = self.fs.names(ino, step);
                names.sort();
                let wanted: Vec<_> = node.entries.iter().map(|(n, i)| (n.clone().into_bytes(), *i)).collect();
                assert_eq!(names, wanted, "{ino:?} in steps of {step}");
            }
        }
    }
}

fn run(ops: &[Op], hash_bits: u32) {
    let mut pair = Pair::new(hash_bits);
    for op in ops {
        pair.apply(op);
    }
    pair.compare();
    assert_eq!(pair.fs.findings(), []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Goal: each operation answers what the model answers, the trees are equal, and the check finds nothing. Method:
    /// random sequences, with names that collide and without.
    #[test]
    fn operations_do_what_the_model_does(ops in prop::collection::vec(op(), 1..80), hash_bits in prop_oneof![Just(5u32), Just(60)]) {
        run(&ops, hash_bits);
    }
}
