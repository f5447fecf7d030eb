//! What operations on names cost beside the kernel's part: looked up in vain, made, looked up, unlinked.
//!
//! `cargo build --release -p mds --example churn`, then for instructions per file
//! `valgrind --tool=callgrind target/release/examples/churn DIRECTORY [FILES]` and
//! `callgrind_annotate --inclusive=yes`: the functions are `miss`, `make`, `hit` and `unlink`.

use std::{path::PathBuf, sync::Arc, time::Instant};

use kv::{MetaStore, MetaStoreOptions};
use mds::{Caller, Mds, MdsOptions, NewNode};
use types::{Errno, FileKind, Ino};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };
const FILE: NewNode<'static> =
    NewNode { kind: FileKind::Regular, mode: 0o644, rdev: 0, target: None, for_write: false };
/// Checkpoints before it is measured, each with as many files: runs in the engine.
const ROUNDS: usize = 6;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("say in which directory")?).join("churn");
    let files: usize = args.next().map_or(Ok(2000), |n| n.parse())?;
    let options = MetaStoreOptions { background: false, ..MetaStoreOptions::default() };
    let store = Arc::new(MetaStore::open_default(&dir, options)?);
    let mds = Mds::new(Arc::clone(&store), MdsOptions::default())?;
    let top = mds.mkdir(&CALLER, Ino::ROOT, b"top", 0o755)?.ino;
    let names = |round: usize| -> Vec<String> { (0..files).map(|n| format!("file-{round}-{n}")).collect() };
    for round in 0..ROUNDS {
        make(&mds, top, &names(round))?;
        store.checkpoint()?;
    }
    let names = names(ROUNDS);
    for (what, step) in [("miss", miss as Step), ("make", make), ("hit", hit), ("unlink", unlink)] {
        let begin = Instant::now();
        step(&mds, top, &names)?;
        println!("{what}: {} ns", begin.elapsed().as_nanos() / files as u128);
    }
    drop(mds);
    drop(store);
    Ok(std::fs::remove_dir_all(&dir)?)
}

type Step = fn(&Mds, Ino, &[String]) -> Result<(), Errno>;

#[inline(never)]
fn miss(mds: &Mds, top: Ino, names: &[String]) -> Result<(), Errno> {
    for name in names {
        match mds.lookup(top, name.as_bytes()) {
            Err(Errno::ENOENT) => {}
            other => drop(other?),
        }
    }
    Ok(())
}

#[inline(never)]
fn make(mds: &Mds, top: Ino, names: &[String]) -> Result<(), Errno> {
    for name in names {
        let ino = mds.create(&CALLER, top, name.as_bytes(), &FILE)?.attr.ino;
        mds.hold(ino, 1);
    }
    Ok(())
}

#[inline(never)]
fn hit(mds: &Mds, top: Ino, names: &[String]) -> Result<(), Errno> {
    for name in names {
        mds.lookup(top, name.as_bytes())?;
    }
    Ok(())
}

#[inline(never)]
fn unlink(mds: &Mds, top: Ino, names: &[String]) -> Result<(), Errno> {
    for name in names {
        let unlinked = mds.unlink(top, name.as_bytes(), &|_| false)?;
        mds.release(unlinked.ino, 1);
    }
    Ok(())
}
