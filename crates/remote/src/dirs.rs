//! Listings.

use std::time::{Duration, Instant};

use prost::Message;
use proto::metadata::{self, ENTRIES_MAX};
use types::{Attr, Errno, FileKind, Ino};

use crate::{Remote, kept::At, names::attr_of};

/// Bytes of one listing as it comes; the kernel asks for far less at once.
const BYTES_MAX: u32 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Listed {
    pub name: Vec<u8>,
    pub ino: Ino,
    pub kind: FileKind,
    /// Where to go on after it.
    pub cookie: u64,
    /// With a reference, if it was asked for.
    pub attr: Option<Attr>,
}

/// Some names of a directory, in its order.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub entries: Vec<Listed>,
    pub end: bool,
}

/// What of a directory is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// What is after it.
    pub cookie: u64,
    pub at_most: usize,
    pub attributes: bool,
}

/// Entries as they came, within their bounds.
pub(crate) fn listed(entries: Vec<metadata::DirEntry>) -> Result<Vec<Listed>, Errno> {
    let listed = |entry: metadata::DirEntry| {
        Ok(Listed {
            ino: proto::attr::ino(entry.ino).map_err(|_| Errno::EIO)?,
            kind: proto::attr::kind(entry.kind).map_err(|_| Errno::EIO)?,
            cookie: entry.cookie,
            attr: entry.attr.map(|attr| attr_of(Some(attr))).transpose()?,
            name: entry.name,
        })
    };
    entries.into_iter().map(listed).collect()
}

impl Remote {
    /// Names after a cookie, of a directory that may be spread. With `attributes` each has those of this moment and a reference, but "." and ".."; what is then not
    /// told to the kernel goes to [`Remote::untold`].
    pub fn list(&self, dir: Ino, cookie: u64, at_most: usize, attributes: bool) -> Result<Page, Errno> {
        if attributes {
            // What cannot be sent is of files that could not be looked at before, either.
            let _ = self.write_all_out();
        }
        self.list_spread(dir, &Wish { cookie, at_most, attributes })
    }

    /// Of one server: all, or a part, of a directory that programs name.
    pub(crate) fn list_one(&self, dir: Ino, wish: &Wish, whole: Ino) -> Result<Page, Errno> {
        let Wish { cookie, at_most, attributes } = *wish;
        let mut want = self.want(false);
        want.answer_bytes_max = BYTES_MAX;
        let entries_max = u32::try_from(at_most).unwrap_or(ENTRIES_MAX).clamp(1, ENTRIES_MAX);
        let asked = (attributes && self.keeps()).then(|| self.asked_to_keep());
        let (answer, _) = self.ask_whom(
            |head| metadata::ReadDir {
                head: Some(head),
                dir: dir.get(),
                cookie,
                entries_max,
                attributes,
                referring: attributes,
                keeping: asked.is_some(),
            },
            want,
        );
        let (listed, body, from) = answer?;
        let found = metadata::Entries::decode(body.as_slice()).map_err(|_| Errno::EIO)?;
        if let Some(asked) = asked.filter(|_| listed.term_ms != 0) {
            let at = At { ticket: asked.ticket, now: Instant::now(), from };
            self.keep_listed(&at, listed.term_ms, whole, &found.entries);
            self.listen_to(from, found.entries.iter().fold(0, |all, entry| all | entry.keeps));
        }
        Ok(Page { entries: self::listed(found.entries)?, end: listed.end })
    }

    fn keep_listed(&self, at: &At, term_ms: u32, dir: Ino, entries: &[metadata::DirEntry]) {
        let mut kept = self.kept.lock();
        kept.heard_term(at, Duration::from_millis(term_ms.into()));
        for entry in entries.iter().filter(|entry| entry.keeps != 0) {
            if let Some(attr) = entry.attr.and_then(|attr| Attr::try_from(attr).ok()) {
                let of = (Some(attr.ino), Some(attr), entry.keeps);
                self.keep(&mut kept, at, (dir, &entry.name), of);
            }
        }
    }

    /// The kernel knows of an entry of a listing, with its attributes.
    pub(crate) fn told(&self, ino: Ino) {
        self.references.add(ino);
    }

    /// The kernel had no room for it.
    pub fn untold(&self, ino: Ino) {
        self.references.untold(ino);
    }
}
