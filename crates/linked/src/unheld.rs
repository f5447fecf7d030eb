//! What the back end cannot hold ([`link::Abilities`]): a program is told at once where there is another way for it, and what is
//! about the object only stays here.

use link::{Place, Staged, Trouble};
use mds::Change as Made;
use namespace::txn::Txn;
use types::{Errno, FileKind, Ino};

use crate::{
    Linked,
    done::{Done, Record, Task},
    pending::Pending,
    records,
};

impl Linked {
    /// As on file systems without them: `EPERM` for a hard link, `EXDEV` for a directory that is there and gets another name, so that
    /// programs copy.
    pub(crate) fn refuse_unheld(
        &self,
        made: &Made,
        pending: &Pending,
        txn: &mut dyn Txn,
    ) -> Result<(), Errno> {
        let can = self.back.abilities();
        match made {
            Made::Linked { nlink, .. } if *nlink > 1 && !can.hard_links => Err(Errno::EPERM),
            Made::Renamed { ino, kind: FileKind::Directory, .. } if !can.directory_rename => {
                let begun = pending.log.get(*ino).is_some_and(|work| work.begun.is_some());
                let record = records::link_of(&*txn, *ino).map_err(|error| records::errno(error.into()))?;
                if begun || record.is_some() { Err(Errno::EXDEV) } else { Ok(()) }
            }
            Made::Linked { .. }
            | Made::Renamed { .. }
            | Made::Created { .. }
            | Made::Unnamed { .. }
            | Made::Unlinked { .. }
            | Made::Removed { .. }
            | Made::Attributes { .. }
            | Made::Xattr { .. }
            | Made::Written { .. }
            | Made::Settled { .. }
            | Made::Crossed { .. }
            | Made::Gone { .. } => Ok(()),
        }
    }

    /// A version that was given its name by a copy has the one on its way still, if the process ended in between.
    pub(crate) fn clear_half_renamed(&self, task: &Task<'_>, at: &Place) -> Result<(), Errno> {
        let staged = matches!(task.entry.staged, Some(Staged::Aside(_)));
        if !staged || self.back.abilities().atomic_rename {
            return Ok(());
        }
        let aside = self.way_of(&Place::being_made(at.dir, task.entry.ino))?;
        self.clear_aside(&aside)
    }

    /// Of a step that changes attributes only: what the back end does not change stays as we have it, and nothing waits for it.
    pub(crate) fn or_stays_here(&self, ino: Ino, done: Result<Done, Trouble>) -> Result<Done, Trouble> {
        match done {
            Err(Trouble::Refused(Errno::EOPNOTSUPP)) => {
                tracing::warn!(%ino, "the linked directory cannot hold these attributes: they stay here");
                Ok(Done::with(Record::Stays, Vec::new()))
            }
            other => other,
        }
    }
}
