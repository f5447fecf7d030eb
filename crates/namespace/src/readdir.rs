//! Listing a directory in the order of the hashes of its names.
//!
//! A cookie is `hash << 3 | index among equal hashes`, so it stays right while other entries come and go, in
//! directories of any size, over restarts. "." is 1, "..", 2; 0 is the beginning. Equal hashes do not happen outside tests (60
//! keyed bits); if they do, removing one of them during a listing can hide or repeat another one of them.

use std::ops::ControlFlow;

use types::{FileKind, Ino};

use crate::{
    dentry::Dentry,
    error::Result,
    inode::{self, Inode, corrupt},
    key,
    spread::Spread,
    txn::{KvError, Reader},
};

const COOKIE_DOT: u64 = 1;
const COOKIE_DOT_DOT: u64 = 2;
const INDEX_BITS: u32 = 3;
const INDEX_MAX: u64 = (1 << INDEX_BITS) - 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    pub name: &'a [u8],
    pub ino: Ino,
    pub kind: FileKind,
    /// Given to [`readdir`], the listing goes on after this entry.
    pub cookie: u64,
}

/// Visits the entries of `dir` after `cookie`, "." and ".." included, until `visit` breaks; of a part those that are in it. A removed directory has
/// none. Damaged entries are left out; the first of them is returned, for the log.
pub fn readdir<R: Reader + ?Sized>(
    reader: &R,
    dir: Ino,
    cookie: u64,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<Option<KvError>> {
    let inode = match dots(reader, dir, cookie, visit)? {
        ControlFlow::Continue(inode) if inode.nlink > 0 => inode,
        ControlFlow::Continue(_) | ControlFlow::Break(()) => return Ok(None),
    };
    let Some(spread) = inode.spread() else {
        return Ok(visit_names(reader, dir, Position::after(cookie), visit)?.1);
    };
    let mut bad = None;
    for part in parts_after(spread, cookie) {
        let (flow, damaged) = visit_names(reader, part, Position::after(cookie), visit)?;
        bad = bad.or(damaged);
        if flow.is_break() {
            break;
        }
    }
    Ok(bad)
}

/// Visits "." and ".." as far as they are after `cookie`: a part and a removed directory have none.
pub fn dots<R: Reader + ?Sized>(
    reader: &R,
    dir: Ino,
    cookie: u64,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<(), Inode>> {
    let inode = inode::load_dir(reader, dir)?;
    if inode.nlink == 0 || inode.is_part() {
        return Ok(ControlFlow::Continue(inode));
    }
    let parent = inode.parent.unwrap_or(dir);
    for (name, ino, own) in [(&b"."[..], dir, COOKIE_DOT), (b"..", parent, COOKIE_DOT_DOT)] {
        let entry = DirEntry { name, ino, kind: FileKind::Directory, cookie: own };
        if cookie < own && visit(entry).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(inode))
}

/// The parts in which the entries after a cookie are.
pub fn parts_after(spread: Spread, cookie: u64) -> impl Iterator<Item = Ino> {
    spread.parts_from(Position::after(cookie).hash)
}

/// Where the next entry may be.
struct Position {
    hash: u64,
    /// Entries with `hash` that were seen before.
    seen: u64,
}

impl Position {
    fn after(cookie: u64) -> Position {
        if cookie <= COOKIE_DOT_DOT {
            Position { hash: 0, seen: 0 }
        } else {
            Position { hash: cookie >> INDEX_BITS, seen: (cookie & INDEX_MAX) + 1 }
        }
    }
}

fn visit_names<R: Reader + ?Sized>(
    reader: &R,
    dir: Ino,
    position: Position,
    visit: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
) -> Result<(ControlFlow<()>, Option<KvError>)> {
    let (mut bad, mut flow): (Option<KvError>, _) = (None, ControlFlow::Continue(()));
    let (mut current, mut index) = (position.hash, 0);
    reader.scan(&key::dentry_from(dir, position.hash), &key::dentry_end(dir), &mut |key, value| {
        let named = key::Parsed::new(key).and_then(|parsed| parsed.dentry());
        let (Some((hash, name)), Some(entry)) = (named, Dentry::decode(value)) else {
            bad.get_or_insert_with(|| corrupt(key));
            return ControlFlow::Continue(());
        };
        if hash != current {
            (current, index) = (hash, 0);
        }
        let at = index.min(INDEX_MAX);
        index += 1;
        if hash == position.hash && at < position.seen {
            return ControlFlow::Continue(());
        }
        flow = visit(DirEntry { name, ino: entry.ino, kind: entry.kind, cookie: hash << INDEX_BITS | at });
        flow
    })?;
    Ok((flow, bad))
}
