//! Names: finding, listing, making, moving and removing them.

use std::ops::ControlFlow;

use kv::BeforeNew;
use mds::{Caller, Found, NewNode};
use namespace::key;
use prost::Message;
use proto::{
    Bad, Nothing,
    metadata::{
        Create, DirEntry, ENTRIES_MAX, Entries, Entry, Find, Link, Listed, Lookup, Mkdir, Mknod, Opened,
        ReadDir, ReadLink, Rename, RenameMode, Rmdir, Symlink, Target, TmpFile, Unlink,
    },
};
use types::{Attr, Errno, FileKind, Ino, MODE_MASK};

use super::{MetadataService, keeping::EntryGrant, session::Session};
use crate::answer::{Done, No, Outcome};

/// What an entry takes beside its name, and its attributes.
const ENTRY_BYTES: usize = 48;
const ATTR_BYTES: usize = 176;

/// The inode is another server's to know.
fn elsewhere(ino: Ino) -> Outcome {
    Ok(Done::new(&Entry { attr: None, ino: ino.get() }))
}

fn caller(of: Option<proto::attr::Caller>) -> Result<Caller, No> {
    Ok(of.ok_or(Bad::Missing("caller"))?.into())
}

impl MetadataService {
    /// Answers with an inode, to which the session refers then.
    fn entry(&self, session: &Session, found: Found) -> Outcome {
        let _looking = self.look_through(session, found.attr.ino)?;
        let attr = self.complete(found)?;
        self.refer(session, attr.ino)?;
        Ok(Done::new(&Entry { attr: Some(attr.into()), ino: 0 }))
    }

    /// As [`MetadataService::entry`], of what was made: a data server that is away changes nothing of that.
    fn made(&self, session: &Session, attr: Attr) -> Outcome {
        // What was brought for it may have gone back.
        let Ok(_inside) = self.enter([attr.ino]) else { return elsewhere(attr.ino) };
        self.refer(session, attr.ino)?;
        Ok(Done::new(&Entry { attr: Some(attr.into()), ino: 0 }))
    }

    pub(super) fn lookup(&self, session: &Session, asked: &Lookup) -> Outcome {
        let dir = proto::attr::ino(asked.dir)?;
        let found = match self.mds.lookup(dir, &asked.name) {
            Err(Errno::EREMOTE) => return elsewhere(self.mds.lookup_entry(dir, &asked.name)?.0),
            other => other?,
        };
        let Ok(_inside) = self.enter([found.attr.ino]) else { return elsewhere(found.attr.ino) };
        self.entry(session, found)
    }

    pub(super) fn find(&self, session: &Session, asked: &Find) -> Outcome {
        let found = self.mds.find_by_number(proto::attr::ino(asked.ino)?)?;
        self.entry(session, found)
    }

    pub(super) fn read_link(&self, asked: &ReadLink) -> Outcome {
        let target = self.mds.readlink(proto::attr::ino(asked.ino)?)?.to_vec();
        Ok(Done::new(&Target { target }))
    }

    pub(super) fn read_dir(&self, session: &Session, asked: &ReadDir, most: usize) -> Outcome {
        let dir = proto::attr::ino(asked.dir)?;
        let count = if asked.entries_max == 0 { ENTRIES_MAX } else { asked.entries_max.min(ENTRIES_MAX) };
        let (mut entries, mut bytes, mut end) = (Vec::new(), 0, true);
        let listed = self.mds.readdir(dir, asked.cookie, &mut |entry| {
            bytes += entry.name.len() + ENTRY_BYTES + if asked.attributes { ATTR_BYTES } else { 0 };
            if bytes > most || entries.len() >= count as usize {
                end = false;
                return ControlFlow::Break(());
            }
            entries.push(DirEntry {
                name: entry.name.to_vec(),
                ino: entry.ino.get(),
                kind: entry.kind as u32,
                cookie: entry.cookie,
                attr: None,
                keeps: 0,
            });
            ControlFlow::Continue(())
        });
        if listed == Err(Errno::EREMOTE) {
            // Some of its parts are another's.
            self.find_whole(dir)?;
        }
        listed?;
        if entries.is_empty() && !end {
            // Not one fits.
            return Err(Errno::EINVAL.into());
        }
        let term = if asked.keeping && asked.attributes { self.listing_term(session) } else { None };
        if asked.attributes {
            self.fill(session, &mut entries, (asked.referring, term.map(|_| dir)));
        }
        Ok(Done::with_body(&Listed { end, term_ms: term.unwrap_or(0) }, Entries { entries }.encode_to_vec()))
    }

    /// Adds attributes, and references to what has them. Without them the asker has to look it up. `keeping`: he would keep them, of
    /// the names in this directory.
    fn fill(&self, session: &Session, entries: &mut [DirEntry], (referring, keeping): (bool, Option<Ino>)) {
        let dots = |entry: &DirEntry| entry.name == b"." || entry.name == b"..";
        // What may be kept is read after it was granted.
        let grants: Vec<EntryGrant> = entries
            .iter()
            .map(|entry| match keeping.filter(|_| !dots(entry)) {
                Some(dir) => self.grant_entry(session, dir, entry),
                None => EntryGrant::default(),
            })
            .collect();
        let mut found: Vec<Result<Found, No>> =
            entries.iter().map(|entry| Ok(self.mds.find(proto::attr::ino(entry.ino)?)?)).collect();
        let _looking = self.look_through_all(session, &mut found);
        let written: Vec<bool> =
            found.iter().map(|found| found.as_ref().is_ok_and(|found| self.is_theirs(found))).collect();
        let attrs = self.complete_all(found);
        for (((entry, attr), grant), written) in entries.iter_mut().zip(attrs).zip(grants).zip(written) {
            let Ok(attr) = attr else { continue };
            entry.keeps = self.kept_of_entry(session, attr.ino, grant, written);
            let Ok(_inside) = self.enter([attr.ino]) else { continue };
            if dots(entry) || !referring || self.refer(session, attr.ino).is_ok() {
                entry.attr = Some(attr.into());
            }
        }
    }

    pub(super) fn create(&self, session: &Session, asked: &Create) -> Outcome {
        let node = NewNode {
            kind: FileKind::Regular,
            mode: asked.mode & MODE_MASK,
            rdev: 0,
            target: None,
            for_write: false,
        };
        let dir = proto::attr::ino(asked.dir)?;
        let _changing = self.change_names((session, asked.head), &[(dir, &asked.name)], &[])?;
        let before = self.store.before_new();
        let found = self.mds.create(&caller(asked.caller)?, dir, &asked.name, &node)?;
        self.opened(session, asked.opening, (found, before), asked.write)
    }

    /// Opens what was just made, and refers to it. `before`: of before it was made.
    fn opened(
        &self,
        session: &Session,
        opening: u64,
        (found, before): (Found, BeforeNew),
        write: bool,
    ) -> Outcome {
        // It is looked for when the file is written.
        self.store.was_new(before, &key::stripes(found.attr.ino));
        self.refer(session, found.attr.ino)?;
        let (attr, none) = self.open_found(session, opening, &found.attr, write)?;
        let layout = if write { self.begin_new(session, opening, attr.ino) } else { none };
        Ok(Done::new(&Opened { attr: Some(attr.into()), layout, ..Opened::default() }))
    }

    pub(super) fn tmp_file(&self, session: &Session, asked: &TmpFile) -> Outcome {
        let (caller, dir) = (caller(asked.caller)?, proto::attr::ino(asked.dir)?);
        let before = self.store.before_new();
        let found = self.mds.create_unnamed(&caller, dir, asked.mode & MODE_MASK)?;
        self.opened(session, asked.opening, (found, before), true)
    }

    pub(super) fn mkdir(&self, session: &Session, asked: &Mkdir) -> Outcome {
        let (caller, dir) = (caller(asked.caller)?, proto::attr::ino(asked.dir)?);
        let _changing = self.change_names((session, asked.head), &[(dir, &asked.name)], &[])?;
        let attr = self.mds.mkdir(&caller, dir, &asked.name, asked.mode & MODE_MASK)?;
        self.made(session, attr)
    }

    pub(super) fn mknod(&self, session: &Session, asked: &Mknod) -> Outcome {
        let kind = proto::attr::kind(asked.kind)?;
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(Errno::EINVAL.into());
        }
        let node =
            NewNode { kind, mode: asked.mode & MODE_MASK, rdev: asked.rdev, target: None, for_write: false };
        let dir = proto::attr::ino(asked.dir)?;
        let _changing = self.change_names((session, asked.head), &[(dir, &asked.name)], &[])?;
        let found = self.mds.create(&caller(asked.caller)?, dir, &asked.name, &node)?;
        self.made(session, found.attr)
    }

    pub(super) fn symlink(&self, session: &Session, asked: &Symlink) -> Outcome {
        let (kind, target) = (FileKind::Symlink, Some(&asked.target[..]));
        let node = NewNode { kind, mode: 0o777, rdev: 0, target, for_write: false };
        let dir = proto::attr::ino(asked.dir)?;
        let _changing = self.change_names((session, asked.head), &[(dir, &asked.name)], &[])?;
        let found = self.mds.create(&caller(asked.caller)?, dir, &asked.name, &node)?;
        self.made(session, found.attr)
    }

    pub(super) fn link(&self, session: &Session, asked: &Link) -> Outcome {
        let (ino, dir) = (proto::attr::ino(asked.ino)?, proto::attr::ino(asked.dir)?);
        let _changing = self.change_names((session, asked.head), &[(dir, &asked.name)], &[ino])?;
        let linked = self.mds.link(ino, dir, &asked.name)?;
        // Of a file that is being written the attributes are its data servers'; the link is made without them.
        let attr = self.mds.find(ino).map_err(No::from).and_then(|found| self.complete(found));
        self.made(session, attr.unwrap_or(linked))
    }

    pub(super) fn unlink(&self, session: &Session, asked: &Unlink) -> Outcome {
        let dir = proto::attr::ino(asked.dir)?;
        self.with_needed(|| {
            let _changing = self.change_names((session, asked.head), &[(dir, &asked.name)], &[])?;
            // Some session may be about to open it: the purger looks at the references, and removes it a little later.
            self.mds.unlink(dir, &asked.name, &|_| true)?;
            Ok(Done::new(&Nothing {}))
        })
    }

    pub(super) fn rmdir(&self, session: &Session, asked: &Rmdir) -> Outcome {
        let dir = proto::attr::ino(asked.dir)?;
        self.with_needed(|| {
            let _changing = self.change_names((session, asked.head), &[(dir, &asked.name)], &[])?;
            self.mds.rmdir(dir, &asked.name)?;
            Ok(Done::new(&Nothing {}))
        })
    }

    pub(super) fn rename(&self, session: &Session, asked: &Rename) -> Outcome {
        let mode = RenameMode::try_from(asked.mode).map_err(|_| Bad::Range("mode of renaming"))?;
        let from = (proto::attr::ino(asked.from_dir)?, &asked.from_name[..]);
        let to = (proto::attr::ino(asked.to_dir)?, &asked.to_name[..]);
        self.with_needed(|| {
            let _changing = self.change_names((session, asked.head), &[from, to], &[])?;
            self.mds.rename(from, to, mode.into())?;
            Ok(Done::new(&Nothing {}))
        })
    }
}
