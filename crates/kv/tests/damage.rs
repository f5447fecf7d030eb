//! Goal: whatever is wrong with the engine's files, the store gives an error or the right data; it never panics, and never
//! shows anything else. Method: a closed store with merged and unmerged runs; each of its files damaged in many places
//! and ways (flipped bytes, zeros, cut short, bytes added, removed), opened, all of it read, written to and closed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use kv::{MetaStore, MetaStoreOptions, OpenError, WriteSet};
use namespace::txn::KvError;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 400;

fn options() -> MetaStoreOptions {
    MetaStoreOptions {
        background: false,
        cache_bytes: 1 << 20,
        checkpoint_bytes: 1 << 20,
        ..Default::default()
    }
}

fn open(dir: &Path) -> Result<MetaStore, OpenError> {
    MetaStore::open_default(dir, options())
}

fn key(n: u64) -> Vec<u8> {
    [(n % KEYS).to_be_bytes().as_slice(), b"I"].concat()
}

/// Runs of older and newer values of the same keys, with removals, some merged and some not.
fn build(dir: &Path) -> Content {
    let mut content = Content::new();
    for life in 0..3u64 {
        let store = open(dir).unwrap();
        for round in 0..9u64 {
            let mut writes = WriteSet::new();
            for n in (round..KEYS).step_by(3) {
                if (n + round + life) % 7 == 0 {
                    content.remove(&key(n));
                    writes.delete(&key(n));
                } else {
                    let value = format!("{life} {round} {n} ").repeat(1 + n as usize % 9).into_bytes();
                    content.insert(key(n), value.clone());
                    writes.put(&key(n), value.into());
                }
            }
            store.commit(writes).unwrap();
            store.checkpoint().unwrap();
        }
        store.close().unwrap();
    }
    content
}

fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path))
        } else {
            found.push((path.clone(), std::fs::read(&path).unwrap()))
        }
    }
    found.sort();
    found
}

/// The engine's directory as it was.
fn restore(engine: &Path, whole: &[(PathBuf, Vec<u8>)]) {
    for (path, _) in files(engine) {
        std::fs::remove_file(path).unwrap();
    }
    for (path, bytes) in whole {
        std::fs::write(path, bytes).unwrap();
    }
}

/// Everything readable is right; `Err` has what refused.
fn judge(dir: &Path, content: &Content, what: &str) -> Result<(), String> {
    let store = match open(dir) {
        Ok(store) => store,
        Err(OpenError::EngineDamaged { path, detail }) => {
            return Err(format!("{}: {detail}", path.display()));
        }
        Err(OpenError::Engine(KvError::Corrupt(detail))) => return Err(detail),
        Err(other) => panic!("{what}: a misleading error: {other:?}"),
    };
    let mut refused = Ok(());
    for n in 0..KEYS {
        match store.get(&key(n)) {
            Ok(found) => {
                assert_eq!(found.as_deref(), content.get(&key(n)).map(Vec::as_slice), "{what}: key {n}")
            }
            Err(KvError::Corrupt(detail)) => refused = Err(detail),
            Err(other) => panic!("{what}: a misleading error: {other:?}"),
        }
    }
    let mut seen = Content::new();
    let scanned = store.scan(&[], &[0xff; 20], &mut |key, value| {
        seen.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    });
    match scanned {
        Ok(()) => assert!(seen == *content, "{what}: a scan shows something else"),
        Err(KvError::Corrupt(detail)) => {
            let last = seen.keys().next_back().cloned().unwrap_or_default();
            assert!(
                seen.iter().eq(content.range(..=last)),
                "{what}: a scan showed something else before its error"
            );
            refused = Err(detail);
        }
        Err(other) => panic!("{what}: a misleading error: {other:?}"),
    }
    let mut writes = WriteSet::new();
    writes.put(&key(1), Bytes::from_static(b"later"));
    store.commit(writes).unwrap();
    // May be refused; then the journal keeps it.
    let carried = store.checkpoint();
    let after = store.get(&key(1)).unwrap();
    assert_eq!(after.as_deref(), Some(&b"later"[..]), "{what}");
    drop(store.close());
    drop(store);
    if let (Ok(()), Ok(again)) = (carried, open(dir)) {
        match again.get(&key(1)) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&b"later"[..]), "{what}: after another opening"),
            Err(error) => assert!(matches!(error, KvError::Corrupt(_)), "{what}: {error:?}"),
        }
    }
    refused
}

/// Names of ways to damage a file, and what it is then; `None` removes it.
fn damages(bytes: &[u8], places: usize) -> Vec<(String, Option<Vec<u8>>)> {
    let mut all = vec![
        ("removed".to_owned(), None),
        ("emptied".to_owned(), Some(Vec::new())),
        ("with bytes added".to_owned(), Some([bytes, &[7; 40]].concat())),
    ];
    let step = (bytes.len() / places).max(1);
    for at in (0..bytes.len()).step_by(step) {
        for (bit, run) in [(0x01, 1), (0x80, 1), (0xff, 8)] {
            let mut damaged = bytes.to_vec();
            damaged[at..(at + run).min(bytes.len())].iter_mut().for_each(|b| *b ^= bit);
            all.push((format!("{run} bytes at {at} ^ {bit:02x}"), Some(damaged)));
        }
        let mut zeros = bytes.to_vec();
        zeros[at..(at + 512).min(bytes.len())].fill(0);
        if zeros != bytes {
            all.push((format!("zeros at {at}"), Some(zeros)));
        }
        all.push((format!("cut at {at}"), Some(bytes[..at].to_vec())));
    }
    all
}

#[test]
fn damaged_engine_files_give_an_error_or_the_right_data() {
    let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let dir = root.path().join("meta");
    let content = build(&dir);
    judge(&dir, &content, "whole").unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let content = build(&dir);
    let outside =
        ["FORMAT", "LOCK", "RESERVE"].map(|name| (dir.join(name), std::fs::read(dir.join(name)).unwrap()));
    let whole = files(&dir.join("engine"));
    // What the engine's own merging, which goes on by itself, leaves at the least: how it all hangs together, and a run.
    assert!(whole.len() > 2, "{whole:?}");
    let (mut cases, mut refusals) = (0, 0);
    for (path, bytes) in &whole {
        let places = if bytes.len() < 100 { bytes.len() } else { 30 };
        for (how, damaged) in damages(bytes, places) {
            restore(&dir.join("engine"), &whole);
            drop(std::fs::remove_dir_all(dir.join("journal")));
            outside.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
            match damaged {
                Some(damaged) => std::fs::write(path, damaged).unwrap(),
                None => std::fs::remove_file(path).unwrap(),
            }
            let what = format!("{} {how}", path.strip_prefix(&dir).unwrap().display());
            cases += 1;
            refusals += u32::from(judge(&dir, &content, &what).is_err());
        }
    }
    println!("{cases} damages, {refusals} refused");
    assert!(cases > 300 && refusals * 2 > cases, "{cases} damages, {refusals} refused");
}
