//! From an inode to a path, for people: up through the directories that the records name.
//!
//! Reads records only, so it serves a mounted file system and one that is being checked. A file's record says where it was
//! last named; the name itself is looked for among the directory's entries, up to a bound.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    ops::ControlFlow,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use namespace::{Inode, Spread, dentry::Dentry, key, txn::Reader};
use types::Ino;

/// Deeper than any path.
const DEPTH_MAX: usize = 1 << 16;

pub(super) struct Names<'a> {
    reader: &'a dyn Reader,
    /// Entries of one directory that are looked at.
    entries_max: usize,
    found: HashMap<Ino, (Ino, Vec<u8>)>,
}

impl<'a> Names<'a> {
    pub fn new(reader: &'a dyn Reader, entries_max: usize) -> Names<'a> {
        Names { reader, entries_max, found: HashMap::new() }
    }

    /// From the root, beginning with `/`; `None` when no name was found.
    pub fn path(&mut self, ino: Ino) -> Option<PathBuf> {
        let (mut names, mut at) = (Vec::new(), ino);
        while at != Ino::ROOT {
            if names.len() >= DEPTH_MAX {
                return None;
            }
            let (above, name) = self.name(at)?;
            names.push(name);
            at = above;
        }
        let mut path = PathBuf::from("/");
        path.extend(names.iter().rev().map(|name| OsStr::from_bytes(name)));
        Some(path)
    }

    /// Is it there without a name: removed, and not yet purged?
    pub fn is_removed(&self, ino: Ino) -> bool {
        self.record(ino).is_some_and(|inode| inode.nlink == 0)
    }

    /// Looks through all entries of the file system for names of `wanted`.
    pub fn search(&mut self, wanted: &HashSet<Ino>) {
        let mut found = Vec::new();
        let _ = self.reader.scan(&[0], &[0xff; key::PREFIX_BYTES], &mut |key, value| {
            if key.get(key::PREFIX_BYTES - 1) == Some(&key::DENTRY)
                && let Some(entry) = Dentry::decode(value).filter(|entry| wanted.contains(&entry.ino))
                && let Some(dir) = key.first_chunk::<8>().and_then(|n| Ino::from_raw(u64::from_be_bytes(*n)))
                && let Some(name) = key.get(key::DENTRY_NAME_AT..)
            {
                found.push((entry.ino, (dir, name.to_vec())));
            }
            ControlFlow::Continue(())
        });
        for (ino, (dir, name)) in found {
            // A part is no directory to people.
            let of = self.record(dir).filter(Inode::is_part).and_then(|part| part.parent);
            self.found.insert(ino, (of.unwrap_or(dir), name));
        }
    }

    fn record(&self, ino: Ino) -> Option<Inode> {
        Inode::decode(&self.reader.get(&key::inode(ino)).ok()??)
    }

    fn name(&mut self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        if let Some(known) = self.found.get(&ino) {
            return Some(known.clone());
        }
        let dir = self.record(ino)?.parent?;
        let (mut name, mut left) = (None, self.entries_max);
        let parts = self.record(dir).and_then(|dir| dir.spread()).into_iter().flat_map(Spread::parts);
        for place in std::iter::once(dir).chain(parts) {
            let (from, to) = (key::dentry_from(place, 0), key::dentry_end(place));
            let scanned = self.reader.scan(&from, &to, &mut |key, value| {
                if Dentry::decode(value).is_some_and(|entry| entry.ino == ino) {
                    name = key.get(key::DENTRY_NAME_AT..).map(<[u8]>::to_vec);
                }
                left = left.saturating_sub(1);
                if name.is_some() || left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            scanned.ok()?;
            if name.is_some() || left == 0 {
                break;
            }
        }
        let named = (dir, name?);
        self.found.insert(ino, named.clone());
        Some(named)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a file is found by its name, also when the hint leads nowhere, and a removed one has none. Method: a few
    //! inodes in a real store.
    use kv::{MetaStore, MetaStoreOptions};
    use mds::{Mds, MdsOptions};
    use namespace::{Caller, NewNode};
    use types::FileKind;

    use super::*;

    #[test]
    fn names_lead_to_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let options = MetaStoreOptions::default();
        let store = std::sync::Arc::new(MetaStore::open_default(dir.path(), options).unwrap());
        let mds = Mds::new(store.clone(), MdsOptions::default()).unwrap();
        let caller = Caller { uid: 0, gid: 0, umask: 0 };
        let node = NewNode { kind: FileKind::Regular, mode: 0o644, rdev: 0, target: None, for_write: false };
        let make = |parent, name: &[u8]| mds.create(&caller, parent, name, &node).unwrap().attr.ino;
        let a = mds.mkdir(&caller, Ino::ROOT, b"a", 0o755).unwrap().ino;
        let b = mds.mkdir(&caller, a, b"b", 0o755).unwrap().ino;
        let file = make(b, b"file");
        let other = make(b, b"other");
        let path = |ino| Names::new(&*store, 100).path(ino).map(|p| p.display().to_string());
        assert_eq!(path(Ino::ROOT).as_deref(), Some("/"));
        assert_eq!(path(file).as_deref(), Some("/a/b/file"));
        assert_eq!(path(b).as_deref(), Some("/a/b"));

        // The last name given is the hint; without it the first one must be searched for.
        mds.link(other, a, b"second").unwrap();
        mds.unlink(a, b"second", &|_| true).unwrap();
        let mut names = Names::new(&*store, 100);
        assert_eq!(names.path(other), None);
        names.search(&HashSet::from([other]));
        assert_eq!(names.path(other), Some(PathBuf::from("/a/b/other")));

        // Of a directory that is spread, by its parts.
        mds.spread(b, 2).unwrap();
        assert_eq!(path(file).as_deref(), Some("/a/b/file"));
        let mut names = Names::new(&*store, 100);
        names.search(&HashSet::from([file, other]));
        assert_eq!(names.path(other), Some(PathBuf::from("/a/b/other")));
        mds.gather_parts(b).unwrap();

        mds.hold(file, 1);
        mds.unlink(b, b"file", &|_| true).unwrap();
        let mut names = Names::new(&*store, 100);
        assert!(names.path(file).is_none() && names.is_removed(file) && !names.is_removed(other));
    }
}
