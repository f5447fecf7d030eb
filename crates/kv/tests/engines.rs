//! Goal: every engine keeps the contract of `Engine`. Method: the conformance suite on each.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/redb_engine.rs"]
mod redb_engine;

use std::{cell::RefCell, collections::HashMap, path::PathBuf};

use kv::{FjallEngine, MemoryEngine, OpenError, conformance};

#[test]
fn memory_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let engines: RefCell<HashMap<PathBuf, MemoryEngine>> = RefCell::default();
    conformance::run(dir.path(), |dir| {
        Box::new(engines.borrow_mut().entry(dir.to_owned()).or_default().clone())
    })
    .unwrap();
}

#[test]
fn fjall_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), |dir| Box::new(FjallEngine::open(dir, 1 << 20).unwrap())).unwrap();
}

#[test]
fn redb_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), |dir| Box::new(redb_engine::RedbEngine::open(dir, 1 << 20))).unwrap();
}

#[test]
fn an_engine_of_a_newer_format_is_refused() {
    // Goal: a directory from a later release is told apart from a damaged one. Method: its version marker by hand.
    let dir = tempfile::tempdir().unwrap();
    drop(FjallEngine::open(dir.path(), 1 << 20).unwrap());
    std::fs::write(dir.path().join("version"), b"FJL\x09").unwrap();
    let refused = FjallEngine::open(dir.path(), 1 << 20).err();
    assert_eq!(refused, Some(OpenError::Newer { path: dir.path().to_owned(), found: 9, known: 3 }));
    std::fs::write(dir.path().join("version"), b"nonsense").unwrap();
    assert!(matches!(FjallEngine::open(dir.path(), 1 << 20).err(), Some(OpenError::Engine(_))));
}
