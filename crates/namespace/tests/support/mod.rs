//! A store in memory, and a file system on it, for the tests of this crate.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, reason = "a test's support")]

use std::{collections::BTreeMap, ops::ControlFlow};

use namespace::{
    Caller, DirEntry, Env, Found, NameHasher, NewNode, Place, Result, Theirs, check,
    superblock::{self, FormatOptions},
    txn::{Bytes, KvError, Reader, Txn, Visit},
};
use types::{Attr, Errno, FileKind, Ino, Timestamp};

pub const HASH_KEY: [u8; 16] = *b"0123456789abcdef";
pub const USER: Caller = Caller { uid: 1000, gid: 100, umask: 0o022 };

/// Committed records.
#[derive(Default, Clone)]
pub struct Store(pub BTreeMap<Vec<u8>, Bytes>);

impl Reader for Store {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<Bytes>, KvError> {
        Ok(self.0.get(key).cloned())
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> std::result::Result<(), KvError> {
        for (key, value) in self.0.range(from.to_vec()..to.to_vec()) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

impl Txn for Store {
    fn put(&mut self, key: &[u8], value: Bytes) {
        self.0.insert(key.to_vec(), value);
    }
    fn delete(&mut self, key: &[u8]) {
        self.0.remove(key);
    }
}

/// A file system on a [`Store`]. A failed operation leaves the store as it was.
pub struct Fs {
    pub store: Store,
    pub env: Env,
    pub next: u64,
}

impl Fs {
    pub fn new() -> Fs {
        Fs::with_names(NameHasher::new(&HASH_KEY))
    }

    pub fn with_names(names: NameHasher) -> Fs {
        let mut store = Store::default();
        let now = at(1);
        let options = FormatOptions { uuid: [7; 16], hash_key: HASH_KEY, uid: 0, gid: 0, mode: 0o755, now };
        let mut superblock = superblock::format(&mut store, &options);
        superblock.epoch = 1;
        superblock::store(&mut store, &superblock);
        Fs { store, env: Env { now: at(2), epoch: 1, memory_generation: 1, names }, next: 2 }
    }

    /// Runs one operation; time goes on.
    pub fn run<V>(&mut self, operation: impl FnOnce(&mut Store, &Env) -> Result<V>) -> Result<V> {
        self.env.now.sec += 1;
        let mut txn = self.store.clone();
        let value = operation(&mut txn, &self.env)?;
        self.store = txn;
        Ok(value)
    }

    pub fn fresh(&mut self) -> Ino {
        let ino = Ino::from_raw(self.next).unwrap();
        self.next += 1;
        self.run(|txn, _| {
            txn.put(&namespace::key::allocator(ino.ugsd()), {
                let mut record = vec![1];
                record.extend((ino.get() + 1).to_le_bytes());
                Bytes::from(record)
            });
            Ok(())
        })
        .unwrap();
        ino
    }

    pub fn create_as(&mut self, caller: &Caller, dir: Ino, name: &[u8], node: &NewNode<'_>) -> Result<Found> {
        let ino = self.fresh();
        self.run(|txn, env| namespace::create(txn, env, caller, Place { dir, name }, node, ino))
    }

    pub fn file(&mut self, dir: Ino, name: &str) -> Ino {
        self.create_as(&USER, dir, name.as_bytes(), &regular(0o644)).unwrap().attr.ino
    }

    pub fn mkdir_as(&mut self, caller: &Caller, dir: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let ino = self.fresh();
        self.run(|txn, env| namespace::mkdir(txn, env, caller, Place { dir, name }, mode, ino))
    }

    pub fn dir(&mut self, dir: Ino, name: &str) -> Ino {
        self.mkdir_as(&USER, dir, name.as_bytes(), 0o755).unwrap().ino
    }

    pub fn rename(
        &mut self,
        from: (Ino, &str),
        to: (Ino, &str),
        mode: namespace::RenameMode,
    ) -> Result<namespace::Renamed> {
        let (from, to) =
            (Place { dir: from.0, name: from.1.as_bytes() }, Place { dir: to.0, name: to.1.as_bytes() });
        self.run(|txn, env| namespace::rename(txn, env, from, to, mode))
    }

    pub fn unlink(&mut self, dir: Ino, name: &str) -> Result<namespace::Unlinked> {
        self.run(|txn, env| namespace::unlink(txn, env, Place { dir, name: name.as_bytes() }, &|_| true))
    }

    pub fn rmdir(&mut self, dir: Ino, name: &str) -> Result<Ino> {
        self.run(|txn, env| namespace::rmdir(txn, env, Place { dir, name: name.as_bytes() }))
    }

    pub fn link(&mut self, ino: Ino, dir: Ino, name: &str) -> Result<Attr> {
        self.run(|txn, env| namespace::link(txn, env, ino, Place { dir, name: name.as_bytes() }))
    }

    pub fn lookup(&self, dir: Ino, name: &str) -> Result<Found> {
        namespace::lookup(&self.store, &self.env, Place { dir, name: name.as_bytes() })
    }

    pub fn attr(&self, ino: Ino) -> Attr {
        namespace::find(&self.store, &self.env, ino).unwrap().attr
    }

    /// Names and inodes without "." and "..", read `step` entries at a time, each part from the last cookie.
    pub fn names(&self, dir: Ino, step: usize) -> Vec<(Vec<u8>, Ino)> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let mut seen = 0;
            namespace::readdir(&self.store, dir, cookie, &mut |entry: DirEntry<'_>| {
                if seen == step {
                    return ControlFlow::Break(());
                }
                seen += 1;
                cookie = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    names.push((entry.name.to_vec(), entry.ino));
                }
                ControlFlow::Continue(())
            })
            .unwrap();
            if seen < step {
                return names;
            }
        }
    }

    pub fn findings(&self) -> Vec<check::Finding> {
        let mut findings = Vec::new();
        check::check_in_windows(&self.store, &self.env, 3, &mut |f| findings.push(f)).unwrap();
        findings
    }
}

pub fn regular(mode: u32) -> NewNode<'static> {
    NewNode { kind: FileKind::Regular, mode, rdev: 0, target: None, for_write: false }
}

/// As a linked directory has it, with times of its own.
pub fn theirs(kind: FileKind, size: u64) -> Theirs {
    Theirs {
        kind,
        mode: 0o2640,
        uid: 7,
        gid: 8,
        rdev: 0x0501,
        size,
        blocks: size.div_ceil(512) + 8,
        atime: at(101),
        mtime: at(102),
        ctime: at(103),
        btime: Some(at(100)),
    }
}

pub fn at(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 0 }
}

pub fn refused<V>(errno: Errno) -> Result<V> {
    Err(namespace::Error::Errno(errno))
}
