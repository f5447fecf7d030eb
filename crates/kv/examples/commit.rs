//! What a commit costs: small write sets through the journal and the overlay, in one thread and in several.
//!
//! `cargo run --release -p kv --example commit -- DIRECTORY [COMMITS]`

use std::{path::PathBuf, time::Instant};

use bytes::Bytes;
use kv::{MetaStore, MetaStoreOptions, WriteSet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().ok_or("say in which directory")?);
    let commits: u64 = args.next().map_or(Ok(300_000), |n| n.parse())?;
    for threads in [1, 2] {
        for background in [false, true] {
            let own = dir.join(format!("commit-{threads}-{background}"));
            let options = MetaStoreOptions { background, checkpoint_bytes: 64 << 20, ..Default::default() };
            let store = MetaStore::open_default(&own, options)?;
            let (begin, before) = (Instant::now(), processor_ms()?);
            std::thread::scope(|scope| {
                for ugsd in 0..threads {
                    let store = &store;
                    scope.spawn(move || run(store, ugsd, commits));
                }
            });
            let each = begin.elapsed().as_nanos() as f64 / commits as f64;
            let processor = (processor_ms()? - before) as f64 * 1e6 / (commits * threads) as f64;
            let stats = store.stats();
            println!(
                "threads {threads} background {background}: {each:.0} ns per commit and thread, \
                 {processor:.0} ns of processor time; checkpoints {}, syncs {}, \
                 overlay {} MiB, journal {} MiB",
                stats.checkpoints,
                stats.syncs,
                stats.overlay_bytes >> 20,
                stats.journal_bytes >> 20
            );
            drop(store);
            std::fs::remove_dir_all(&own)?;
        }
    }
    Ok(())
}

/// Of this process, its background threads included.
fn processor_ms() -> Result<u64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit_once(')').ok_or("no stat")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    Ok((fields[11].parse::<u64>()? + fields[12].parse::<u64>()?) * 10)
}

/// Like a create: a new inode, its dentry, the parent and the allocator.
fn run(store: &MetaStore, ugsd: u64, commits: u64) {
    let at = |local: u64, kind: &[u8]| [((ugsd << 40) + local).to_be_bytes().as_slice(), kind].concat();
    let (parent, allocator) = (at(1, b"I"), at(0, b"A"));
    for n in 2..commits + 2 {
        let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        let dentry = [at(1, b"D").as_slice(), &hash, format!("file-{n:08}").as_bytes()].concat();
        let mut writes = WriteSet::new();
        writes.put(&at(n, b"I"), Bytes::from(vec![7; 96]));
        writes.put(&dentry, Bytes::from(vec![7; 9]));
        writes.put(&parent, Bytes::from(vec![7; 96]));
        writes.put(&allocator, Bytes::from(vec![7; 8]));
        if let Err(error) = store.commit(writes) {
            eprintln!("commit: {error}");
            return;
        }
    }
}
