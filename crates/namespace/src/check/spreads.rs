//! What the check looks at where directories are spread.

use types::Ino;

use super::finding::Finding;
use crate::{
    Spread,
    error::Result,
    inode::{self, Inode},
    parts,
    txn::Reader,
};

/// A directory whose entries are looked at.
#[derive(Clone, Copy)]
pub(super) struct Directory {
    /// The linked directory is not told of what is in it.
    pub is_apart: bool,
    /// What programs see in its place.
    pub shown: Ino,
    over: Option<Spread>,
}

impl Directory {
    pub(super) fn look<R: Reader + ?Sized>(reader: &R, dir: Ino) -> Result<Directory> {
        // A damaged one is reported at its own record.
        Ok(match get(reader, dir)? {
            Some(inode) => {
                Directory { is_apart: inode.is_apart(), shown: inode.shown(dir), over: inode.over() }
            }
            None => Directory { is_apart: false, shown: dir, over: None },
        })
    }

    /// Where an entry with this hash belongs, if it is spread.
    pub(super) fn right_part(&self, hash: u64) -> Option<Ino> {
        self.over.map(|spread| spread.part(spread.index_of_hash(hash)))
    }
}

fn get<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Option<Inode>> {
    Ok(inode::get_raw(reader, ino)?.and_then(|raw| Inode::decode(&raw)))
}

/// A directory that is spread has its parts, as it is itself; and a part has its directory.
pub(super) fn check<R: Reader + ?Sized>(
    reader: &R,
    (ino, inode): (Ino, &Inode),
    found: &mut dyn FnMut(Finding),
) -> Result<()> {
    for part in inode.spread().into_iter().flat_map(Spread::parts) {
        if inode::get_raw(reader, part)?.is_some_and(|raw| Inode::decode(&raw).is_none()) {
            continue;
        }
        let is_good = match get(reader, part)? {
            Some(record) => {
                record.parent == Some(ino) && parts::is_like(reader, (ino, inode), (part, &record))?
            }
            None => false,
        };
        if !is_good {
            found(Finding::BadPart { dir: ino, part });
        }
    }
    if inode.is_part() {
        let dir = inode.parent.map(|parent| get(reader, parent)).transpose()?.flatten();
        if !dir.and_then(|dir| dir.spread()).is_some_and(|spread| spread.has(ino)) {
            found(Finding::StrayPart { ino });
        }
    }
    Ok(())
}
