//! Reading directories.
//!
//! Invariants: directories have no handles: a cookie says where to go on, so any number of readers may be anywhere
//! in a directory of any size, and each answer holds one buffer's worth; in READDIRPLUS an entry that carries
//! attributes counts one kernel reference, "." and ".." never do.

use std::ops::ControlFlow;

use fuse::{DirBuffer, DirEntryOut};
use mds::DirEntry;
use types::{Errno, FileKind, Ino};

use crate::{Client, turn::Turn};

/// Bytes of an entry in READDIRPLUS beside its name.
const PLUS_HEAD: usize = 128 + 24;

/// Entries of one answer whose attributes are not there yet.
#[derive(Default)]
struct Page {
    names: Vec<u8>,
    entries: Vec<Listed>,
}

struct Listed {
    ino: Ino,
    kind: FileKind,
    cookie: u64,
    name_end: usize,
}

impl Client {
    pub(crate) fn readdir(&self, dir: Ino, cookie: u64, out: &mut DirBuffer<'_>) -> Result<(), Errno> {
        self.mds.readdir(dir, cookie, &mut |entry: DirEntry<'_>| {
            if out.push(&wire(entry.name, entry.ino, entry.kind, entry.cookie)) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })
    }

    /// As [`Client::readdir`], with attributes. The names of one answer are taken first and their inodes looked up
    /// then, outside of the mds's scan.
    pub(crate) fn readdirplus(
        &self,
        dir: Ino,
        cookie: u64,
        size: usize,
        out: &mut DirBuffer<'_>,
    ) -> Result<(), Errno> {
        let mut page = Page::default();
        let mut room = size;
        self.mds.readdir(dir, cookie, &mut |entry: DirEntry<'_>| {
            let bytes = (PLUS_HEAD + entry.name.len()).next_multiple_of(8);
            if bytes > room {
                return ControlFlow::Break(());
            }
            room -= bytes;
            page.names.extend_from_slice(entry.name);
            page.entries.push(Listed {
                ino: entry.ino,
                kind: entry.kind,
                cookie: entry.cookie,
                name_end: page.names.len(),
            });
            ControlFlow::Continue(())
        })?;
        let mut start = 0;
        for listed in &page.entries {
            let name = &page.names[start..listed.name_end];
            start = listed.name_end;
            if !self.push_plus(out, name, listed) {
                break;
            }
        }
        Ok(())
    }

    fn push_plus(&self, out: &mut DirBuffer<'_>, name: &[u8], listed: &Listed) -> bool {
        let entry = wire(name, listed.ino, listed.kind, listed.cookie);
        if !out.has_room(name.len()) {
            return false;
        }
        if name == b"." || name == b".." {
            return out.push(&entry);
        }
        // What went away meanwhile, and what would have to be waited for, goes without attributes: the kernel
        // looks it up when somebody asks.
        let found = self
            .mds
            .find(listed.ino)
            .ok()
            .filter(|found| !found.data.stale_live && !self.is_to_be_visited(found.attr.ino));
        let completed = found.and_then(|mut found| {
            self.complete(Turn::Transport, &mut found).ok().map(|timeout| (found, timeout))
        });
        match completed {
            Some((found, timeout)) => out.push_plus(&entry, &self.held_entry(found.attr, timeout)),
            None => out.push(&entry),
        }
    }
}

fn wire(name: &[u8], ino: Ino, kind: FileKind, cookie: u64) -> DirEntryOut<'_> {
    DirEntryOut { name, ino: ino.get(), kind, cookie }
}
