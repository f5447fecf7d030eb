//! The offline check of a store, and its repair.

use kv::MetaStore;
use namespace::{
    Env, NameHasher,
    check::{self, Finding},
    superblock::{self, FORMAT, Stored},
};
use types::Timestamp;

use crate::error::Error;

/// Checks after repairs, at most: one repair can uncover another finding, a few levels deep.
const ROUNDS_MAX: usize = 16;
/// Findings repaired after one check; more wait for the next.
const BATCH_MAX: usize = 1 << 16;

/// What a check came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fsck {
    /// In the first check.
    pub found: u64,
    pub repaired: u64,
    /// In the last check: 0 when all is well.
    pub left: u64,
}

/// Checks the metadata in `store`, which nobody has mounted, and puts right what it can if `repair`. `found` is called
/// with each finding of the first check; what repairs uncover is counted.
pub fn fsck(
    store: &MetaStore,
    now: Timestamp,
    repair: bool,
    found: &mut dyn FnMut(&Finding),
) -> Result<Fsck, Error> {
    let superblock = match superblock::read(store)? {
        Stored::Here(superblock) => superblock,
        Stored::OtherFormat { format } => {
            return Err(Error::OtherFormat { found: format, supported: FORMAT });
        }
        Stored::Nothing => return Ok(Fsck::default()),
    };
    let env = Env {
        now,
        epoch: superblock.epoch,
        memory_generation: superblock.memory_generation,
        names: NameHasher::new(&superblock.hash_key),
    };
    let mut result = Fsck::default();
    for round in 0..ROUNDS_MAX {
        let (mut seen, mut batch) = (0, Vec::new());
        check::check(store, &env, &mut |finding| {
            seen += 1;
            if round == 0 {
                found(&finding);
            }
            if repair && batch.len() < BATCH_MAX {
                batch.push(finding);
            }
        })?;
        if round == 0 {
            result.found = seen;
        }
        result.left = seen;
        let mut repaired = 0;
        for finding in &batch {
            repaired += u64::from(put_right(store, &env, finding)?);
        }
        result.repaired += repaired;
        if repaired == 0 {
            break;
        }
    }
    if result.repaired > 0 {
        store.sync()?;
    }
    Ok(result)
}

fn put_right(store: &MetaStore, env: &Env, finding: &Finding) -> Result<bool, Error> {
    let mut txn = store.begin();
    txn.use_reserve();
    match check::repair(&mut txn, env, finding) {
        Ok(true) => {
            txn.commit()?;
            Ok(true)
        }
        // The record went with another repair.
        Ok(false) | Err(namespace::Error::Errno(_)) => Ok(false),
        Err(namespace::Error::Store(error)) => Err(error.into()),
    }
}
