//! Goal: every engine keeps the contract of `Engine`. Method: the conformance suite on each.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/redb_engine.rs"]
mod redb_engine;

use std::{cell::RefCell, collections::HashMap, path::PathBuf};

use kv::{LsmEngine, MemoryEngine, conformance};

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
fn lsm_tree_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), |dir| Box::new(LsmEngine::open(dir, 1 << 20).unwrap())).unwrap();
}

#[test]
fn redb_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), |dir| Box::new(redb_engine::RedbEngine::open(dir, 1 << 20))).unwrap();
}
