//! The second pass: every inode with links has as many names as it says.

use std::ops::ControlFlow;

use types::{FileKind, Ino};

use super::{
    finding::Finding,
    walk::{EVERYTHING, walk},
};
use crate::{
    dentry::Dentry,
    error::Result,
    inode::Inode,
    key::{self, Parsed},
    txn::Reader,
};

/// One inode in the window. Sorted by number, since the walk meets them in that order.
struct Counted {
    raw_ino: u64,
    /// Directories have one name, whatever their link count.
    is_dir: bool,
    nlink: u32,
    names: u32,
}

pub(super) fn check<R: Reader + ?Sized>(
    reader: &R,
    window: usize,
    found: &mut dyn FnMut(Finding),
) -> Result<()> {
    let mut after = 0u64;
    loop {
        let mut inodes = collect(reader, after, window)?;
        let Some(last) = inodes.last().map(|c| c.raw_ino) else { return Ok(()) };
        count(reader, &mut inodes)?;
        for counted in &inodes {
            judge(reader, counted, found)?;
        }
        after = last;
    }
}

fn collect<R: Reader + ?Sized>(reader: &R, after: u64, window: usize) -> Result<Vec<Counted>> {
    let mut inodes = Vec::new();
    let from = after.saturating_add(1).to_be_bytes();
    walk(reader, (&from, EVERYTHING.1), &mut |key, value| {
        let parsed = Parsed::new(key).filter(|p| p.kind == key::INODE && p.rest.is_empty());
        if let (Some(parsed), Some(inode)) = (parsed, Inode::decode(value)) {
            inodes.push(Counted {
                raw_ino: parsed.raw_ino,
                is_dir: inode.is_dir(),
                nlink: inode.nlink,
                names: 0,
            });
        }
        Ok(if inodes.len() < window { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(inodes)
}

fn count<R: Reader + ?Sized>(reader: &R, inodes: &mut [Counted]) -> Result<()> {
    walk(reader, EVERYTHING, &mut |key, value| {
        if Parsed::new(key).is_some_and(|p| p.kind == key::DENTRY)
            && let Some(entry) = Dentry::decode(value)
            && let Ok(at) = inodes.binary_search_by_key(&entry.ino.get(), |c| c.raw_ino)
        {
            inodes[at].names = inodes[at].names.saturating_add(1);
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn judge<R: Reader + ?Sized>(reader: &R, counted: &Counted, found: &mut dyn FnMut(Finding)) -> Result<()> {
    let Some(ino) = Ino::from_raw(counted.raw_ino) else { return Ok(()) };
    let (nlink, names) = (counted.nlink, counted.names);
    if ino == Ino::ROOT || (nlink == 0 && names == 0) {
        return Ok(());
    }
    if names == 0 {
        let inode = crate::inode::get(reader, ino)?;
        // Parts have none; of which directory they are the first pass looked at.
        if !inode.is_some_and(|inode| inode.is_part()) {
            let kind = inode.map_or(FileKind::Regular, |inode| inode.kind);
            found(Finding::Lost { ino, kind });
        }
    } else if !counted.is_dir && nlink != names {
        found(Finding::WrongLinks { ino, stored: nlink, counted: names });
    }
    Ok(())
}
