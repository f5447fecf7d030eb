//! Numbers for what an operation makes, and reserving them where none are left that would survive a power cut.

use namespace::{
    superblock,
    txn::{KvError, Txn},
};
use types::{Errno, Ino, LocalId, UgsdId};

use crate::{
    numbers::{Fresh, Reserved, Wanted},
    server::Mds,
    slots::{SlotSet, SlotTxn},
};

/// Each time there is more; one operation takes some hundreds.
const RESERVATIONS_MAX: u32 = 8;

/// What a new UGSD takes: its own number, and its first inode numbers.
pub(crate) type NewUgsd = [Fresh; 2];

impl Mds {
    /// Of what an operation makes, which begins with this one. `Err(Wanted)`: they have to be provided first.
    pub(crate) fn find_fresh(
        &self,
        txn: &mut dyn Txn,
        wanted: Wanted,
        last: Option<&Fresh>,
    ) -> namespace::Result<Result<Fresh, Wanted>> {
        let fresh = self.numbers.fresh(txn, (wanted, last), &|| self.store.synced_lsn())?;
        Ok(fresh.ok_or(wanted))
    }

    /// A directory below the root is a UGSD of its own, as long as there are numbers for one.
    pub(crate) fn find_ugsd(
        &self,
        txn: &mut dyn Txn,
        last: Option<&Fresh>,
    ) -> namespace::Result<Result<Option<(Ino, NewUgsd)>, Wanted>> {
        if self.numbers.has_no_ugsds() {
            return Ok(Ok(None));
        }
        let taken = match self.find_fresh(txn, Wanted::Ugsds, last)? {
            Ok(taken) => taken,
            Err(wanted) => return Ok(Err(wanted)),
        };
        let number = u32::try_from(taken.number).ok().and_then(UgsdId::new).ok_or(Errno::ENOSPC)?;
        let first = self.numbers.first(txn, number);
        Ok(Ok(Some((Ino::new(number, LocalId::TOP), [taken, first]))))
    }

    /// A number in `parent`'s UGSD.
    pub(crate) fn fresh(&self, txn: &mut SlotTxn<'_>, parent: Ino) -> namespace::Result<(Ino, Fresh)> {
        match self.find_fresh(txn, Wanted::Inodes(parent.ugsd()), None)? {
            Ok(fresh) => Ok((fresh.ino(parent.ugsd())?, fresh)),
            Err(wanted) => Err(txn.wants(wanted).into()),
        }
    }

    /// For a directory in `parent`, if that makes it a UGSD.
    pub(crate) fn new_ugsd(
        &self,
        txn: &mut SlotTxn<'_>,
        parent: Ino,
    ) -> namespace::Result<Option<(Ino, NewUgsd)>> {
        if parent != Ino::ROOT {
            return Ok(None);
        }
        self.find_ugsd(txn, None)?.map_err(|wanted| txn.wants(wanted).into())
    }

    /// Reserves numbers, for an operation that holds no lock meanwhile; after as many `times`.
    pub(crate) fn provide(&self, wanted: Wanted, times: u32) -> Result<(), Errno> {
        if times >= RESERVATIONS_MAX {
            return Err(Errno::EAGAIN);
        }
        let lsn = {
            let set = SlotSet::of_slot(wanted.slot());
            let _alone = self.locks.write(&set);
            if !self.serves(wanted.slot()) {
                // The operation will see that for itself.
                return Ok(());
            }
            let mut txn = self.store.begin();
            match self.numbers.reserve(&mut txn, (wanted, times)) {
                Ok(Reserved::At(lsn)) => lsn,
                Ok(Reserved::Now(range)) => {
                    let lsn = txn.commit().map_err(|e| self.errno(e.into()))?;
                    self.numbers.reserved(wanted, range, lsn);
                    lsn
                }
                Err(namespace::Error::Errno(Errno::ENOSPC)) if wanted == Wanted::Ugsds => {
                    self.numbers.no_more_ugsds();
                    return Ok(());
                }
                Err(error) => return Err(self.errno(error)),
            }
        };
        self.store.wait_synced(lsn).map_err(|e: KvError| self.errno(e.into()))
    }

    /// Nobody is given UGSDs here any more: what is left of those that were reserved can be given by the next.
    pub(crate) fn give_back_ugsds(&self) -> Result<(), Errno> {
        if !self.serves(UgsdId::ROOT.slot()) || self.numbers.has_no_ugsds() {
            return Ok(());
        }
        self.change_when_full(SlotSet::root(), |txn, _| {
            let mut superblock = superblock::load(txn)?;
            if let Some(first) = self.numbers.rest_of_ugsds(superblock.next_ugsd) {
                superblock.next_ugsd = first;
                superblock::store(txn, &superblock);
            }
            Ok(())
        })
    }
}
