//! Conflicts: each is listed once, and stays so until somebody takes it off.
//!
//! A file that both sides changed in place is one at the look that finds it, and gets its name aside at the next one, when theirs
//! is seen to have the name: both looks tell of one conflict.

use std::{collections::HashMap, sync::atomic::Ordering};

use link::{Conflict, Why};
use namespace::{key, txn::Txn};
use types::{Errno, Ino};

use crate::{
    Linked,
    records::{self, Committed},
};

/// Which conflicts a later look may add a name to, by the inode. One entry for each that is listed without a name aside.
pub(crate) type Unnamed = HashMap<Ino, u64>;

pub(crate) fn unnamed(known: &[(u64, Conflict)]) -> Unnamed {
    let nameless = known.iter().filter(|(_, conflict)| is_nameless(conflict));
    nameless.map(|(number, conflict)| (conflict.ino, *number)).collect()
}

fn is_nameless(conflict: &Conflict) -> bool {
    conflict.why == Why::BothChanged && conflict.kept.is_none()
}

impl Linked {
    /// Lists it, in a transaction that may not come to be.
    pub(crate) fn list_conflict(&self, txn: &mut dyn Txn, conflict: &Conflict) -> namespace::Result<()> {
        let mut unnamed = self.unnamed_conflicts.lock();
        if conflict.why == Why::NameTaken
            && let Some(number) = unnamed.get(&conflict.ino)
        {
            let key = key::conflict(*number);
            let listed = txn.get(&key)?.and_then(|bytes| Conflict::decode(&bytes));
            let same = |listed: &Conflict| {
                is_nameless(listed) && (listed.ino, listed.dir) == (conflict.ino, conflict.dir)
            };
            // Nobody took it off, and it is of this name.
            if let Some(listed) = listed.filter(same).filter(|listed| listed.name == conflict.name) {
                let listed = Conflict { kept: conflict.kept.clone(), ..listed };
                txn.put(&key, listed.encode().into());
                return Ok(());
            }
        }
        let number = self.conflicts_made.fetch_add(1, Ordering::Relaxed);
        if is_nameless(conflict) {
            unnamed.insert(conflict.ino, number);
        }
        txn.put(&key::conflict(number), conflict.encode().into());
        Ok(())
    }

    /// What was changed on both sides, by number.
    pub fn conflicts(&self) -> Result<Vec<(u64, Conflict)>, Errno> {
        records::conflicts(&Committed(&self.ledger.mds)).map_err(|error| records::errno(error.into()))
    }

    /// Somebody has seen to it.
    pub fn forget_conflict(&self, number: u64) -> Result<(), Errno> {
        self.unnamed_conflicts.lock().retain(|_, listed| *listed != number);
        self.ledger.mds.put_records(&[(Box::from(&*key::conflict(number)), None)], false)
    }
}
