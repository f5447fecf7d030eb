//! The stored forms: what was seen of an inode and where, what is not applied of it, and a conflict.
//!
//! Little-endian, each begins with its version and has exactly its length; anything else is damage. Times are seconds (i64) and
//! nanoseconds (u32, below 1e9). A name is its length u8 (not 0) and its bytes, with neither `/` nor NUL, not "." or "..".
//! ```text
//! seen:     kind u8 | proof u8 | flags u8 (1: birth) | fileid u64 | size u64 | mtime 12 | ctime 12 | birth 12, else zeros
//!           | mode u16 (12 bits) | uid u32 | gid u32 | nlink u32
//! place:    directory u64 | name
//! places:   count u32 | place*, ascending
//! link:     version u8 = 1 | seen | looked 12 | place
//! work:     version u8 = 1 | kind u8 | flags u8 (1 there, 2 deleted, 4 writing, 8 due, 16 begun, 32 staged aside, 64 in place)
//!           | attributes u8 | seq u64 (below 2^63) | since 12 | written u64 | published u64 | needs u64 | [due u64] | names they have and
//!           we have not: places | that we have and they have not: places | attributes by name: count u32 | name*, ascending
//!           | [step] | [seen]
//! step:     tag u8 | 1 create: place | over u64 (0: none) | has data u8 | [version u64]
//!                  | 2 publish: version u64 | 3 rename: place | place | over u64 | 4 link: place | over u64
//!                  | 5 unlink: place | 6 rmdir: place | 7 attributes u8 | 8 by name: count u32 | name*, ascending
//! conflict: version u8 = 1 | why u8 | inode u64 | when 12 | directory u64 | name | kept: 0u8 or name
//! ```

use std::collections::BTreeSet;

use types::{FileKind, Ino, MODE_MASK, NAME_MAX, Timestamp, XATTR_NAME_MAX};

use crate::{
    conflict::{Conflict, Why},
    place::Place,
    seen::{Proof, Seen},
    step::{Attrs, Staged, Step},
    work::Work,
};

const VERSION: u8 = 1;
const BIRTH: u8 = 1;
const THERE: u8 = 1;
const DELETED: u8 = 2;
const WRITING: u8 = 4;
const DUE: u8 = 8;
const BEGUN: u8 = 16;
const ASIDE: u8 = 32;
const IN_PLACE: u8 = 64;

/// What is stored of an inode that the back end has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkRecord {
    pub seen: Seen,
    /// When we looked, by our clock.
    pub looked: Timestamp,
    /// Their place; of an inode with several names there, one of them.
    pub place: Place,
}

impl LinkRecord {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Output(vec![VERSION]);
        out.seen(&self.seen);
        out.time(self.looked);
        out.place(&self.place);
        out.0
    }

    /// `None`: damaged.
    pub fn decode(bytes: &[u8]) -> Option<LinkRecord> {
        let mut input = Input::of(bytes)?;
        let record = LinkRecord { seen: input.seen()?, looked: input.time()?, place: input.place()? };
        input.end(record)
    }
}

impl Work {
    pub fn encode(&self) -> Vec<u8> {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let staged = match self.staged {
            Some(Staged::Aside(_)) => ASIDE,
            Some(Staged::InPlace) => IN_PLACE,
            None => 0,
        };
        let flags = flag(self.there, THERE)
            | flag(self.deleted, DELETED)
            | flag(self.writing, WRITING)
            | flag(self.due.is_some(), DUE)
            | flag(self.begun.is_some(), BEGUN)
            | staged;
        let mut out = Output(vec![VERSION, self.kind as u8, flags, self.attrs.bits()]);
        out.u64(self.seq);
        out.time(self.since);
        [self.written, self.published, self.needs].into_iter().chain(self.due).for_each(|n| out.u64(n));
        for places in [&self.minus, &self.plus] {
            out.count(places.len());
            places.iter().for_each(|at| out.place(at));
        }
        out.names(&self.xattrs);
        if let Some(step) = &self.begun {
            out.step(step);
        }
        if let Some(Staged::Aside(seen)) = &self.staged {
            out.seen(seen);
        }
        out.0
    }

    /// `None`: damaged.
    pub fn decode(bytes: &[u8]) -> Option<Work> {
        let mut input = Input::of(bytes)?;
        let kind = FileKind::from_u8(input.u8()?)?;
        let flags = input.u8()?;
        let attrs = Attrs::from_bits(input.u8()?)?;
        let has = |bit: u8| flags & bit != 0;
        if has(128) || (has(ASIDE) && has(IN_PLACE)) {
            return None;
        }
        let seq = input.u64().filter(|seq| *seq < 1 << 63)?;
        let mut work = Work::new(seq, input.time()?, kind);
        (work.there, work.deleted, work.writing, work.attrs) =
            (has(THERE), has(DELETED), has(WRITING), attrs);
        (work.written, work.published, work.needs) = (input.u64()?, input.u64()?, input.u64()?);
        work.due = if has(DUE) { Some(input.u64()?) } else { None };
        (work.minus, work.plus) = (input.places()?, input.places()?);
        if !work.minus.is_disjoint(&work.plus) {
            return None;
        }
        work.xattrs = input.names()?;
        work.begun = if has(BEGUN) { Some(input.step()?) } else { None };
        work.staged = match (has(ASIDE), has(IN_PLACE)) {
            (true, _) => Some(Staged::Aside(input.seen()?)),
            (false, true) => Some(Staged::InPlace),
            (false, false) => None,
        };
        input.end(work)
    }
}

impl Conflict {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Output(vec![VERSION, self.why as u8]);
        out.u64(self.ino.get());
        out.time(self.when);
        out.u64(self.dir.get());
        out.name(&self.name);
        match &self.kept {
            Some(kept) => out.name(kept),
            None => out.0.push(0),
        }
        out.0
    }

    /// `None`: damaged.
    pub fn decode(bytes: &[u8]) -> Option<Conflict> {
        let mut input = Input::of(bytes)?;
        let why = Why::from_u8(input.u8()?)?;
        let (ino, when, dir) = (input.ino()?, input.time()?, input.ino()?);
        let name = input.name()?;
        let kept = if input.0.first() == Some(&0) { input.u8().map(|_| None)? } else { Some(input.name()?) };
        input.end(Conflict { why, ino, when, dir, name, kept })
    }
}

struct Output(Vec<u8>);

impl Output {
    fn u32(&mut self, n: u32) {
        self.0.extend(n.to_le_bytes());
    }
    fn u64(&mut self, n: u64) {
        self.0.extend(n.to_le_bytes());
    }
    fn time(&mut self, time: Timestamp) {
        self.0.extend(time.sec.to_le_bytes());
        self.u32(time.nsec);
    }
    /// Of things in memory, each of some bytes: there are not 2^32.
    fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }
    fn name(&mut self, name: &[u8]) {
        debug_assert!(is_name(name));
        self.0.push(name.len() as u8);
        self.0.extend(name);
    }
    fn names(&mut self, names: &BTreeSet<Vec<u8>>) {
        self.count(names.len());
        for name in names {
            self.0.push(name.len() as u8);
            self.0.extend(name);
        }
    }
    fn place(&mut self, place: &Place) {
        self.u64(place.dir.get());
        self.name(&place.name);
    }
    fn seen(&mut self, seen: &Seen) {
        let flags = if seen.birth.is_some() { BIRTH } else { 0 };
        self.0.extend([seen.kind as u8, seen.proof as u8, flags]);
        self.u64(seen.fileid);
        self.u64(seen.size);
        [seen.mtime, seen.ctime, seen.birth.unwrap_or_default()].into_iter().for_each(|time| self.time(time));
        self.0.extend(((seen.mode & MODE_MASK) as u16).to_le_bytes());
        [seen.uid, seen.gid, seen.nlink].into_iter().for_each(|n| self.u32(n));
    }
    fn over(&mut self, over: Option<Ino>) {
        self.u64(over.map_or(0, Ino::get));
    }
    fn step(&mut self, step: &Step) {
        match step {
            Step::Create { at, over, data } => {
                self.0.push(1);
                self.place(at);
                self.over(*over);
                self.0.push(u8::from(data.is_some()));
                data.iter().for_each(|version| self.u64(*version));
            }
            Step::Publish { version } => {
                self.0.push(2);
                self.u64(*version);
            }
            Step::Rename { from, to, over } => {
                self.0.push(3);
                self.place(from);
                self.place(to);
                self.over(*over);
            }
            Step::Link { at, over } => {
                self.0.push(4);
                self.place(at);
                self.over(*over);
            }
            Step::Unlink { at } => {
                self.0.push(5);
                self.place(at);
            }
            Step::Rmdir { at } => {
                self.0.push(6);
                self.place(at);
            }
            Step::SetAttr { what } => self.0.extend([7, what.bits()]),
            Step::SetXattr { names } => {
                self.0.push(8);
                self.names(names);
            }
        }
    }
}

fn is_name(name: &[u8]) -> bool {
    let legal = !name.is_empty() && name.len() <= NAME_MAX && !name.iter().any(|b| matches!(b, b'/' | 0));
    legal && name != b"." && name != b".."
}

/// Takes fields off the front; `None` once they run out or are out of range.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn of(bytes: &'a [u8]) -> Option<Input<'a>> {
        let (version, rest) = bytes.split_first()?;
        (*version == VERSION).then_some(Input(rest))
    }
    fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }
    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[b]| b)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn ino(&mut self) -> Option<Ino> {
        Ino::from_raw(self.u64()?)
    }
    fn time(&mut self) -> Option<Timestamp> {
        let sec = i64::from_le_bytes(self.array()?);
        let nsec = self.u32()?;
        (nsec < 1_000_000_000).then_some(Timestamp { sec, nsec })
    }
    fn bytes(&mut self) -> Option<Vec<u8>> {
        let len = usize::from(self.u8()?);
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }
    fn name(&mut self) -> Option<Vec<u8>> {
        self.bytes().filter(|name| is_name(name))
    }
    fn place(&mut self) -> Option<Place> {
        Some(Place { dir: self.ino()?, name: self.name()? })
    }
    /// `count` things, each greater than the one before.
    fn ascending<T: Ord>(&mut self, take: impl Fn(&mut Self) -> Option<T>) -> Option<BTreeSet<T>> {
        let mut set = BTreeSet::new();
        for _ in 0..self.u32()? {
            let one = take(self)?;
            if set.last().is_some_and(|last| *last >= one) {
                return None;
            }
            set.insert(one);
        }
        Some(set)
    }
    fn places(&mut self) -> Option<BTreeSet<Place>> {
        self.ascending(Self::place)
    }
    fn names(&mut self) -> Option<BTreeSet<Vec<u8>>> {
        self.ascending(|input| {
            let name = input.bytes()?;
            (!name.is_empty() && name.len() <= XATTR_NAME_MAX && !name.contains(&0)).then_some(name)
        })
    }
    fn seen(&mut self) -> Option<Seen> {
        let kind = FileKind::from_u8(self.u8()?)?;
        let proof = Proof::from_u8(self.u8()?)?;
        let flags = self.u8()?;
        let (fileid, size) = (self.u64()?, self.u64()?);
        let (mtime, ctime, birth) = (self.time()?, self.time()?, self.time()?);
        let mode = u32::from(u16::from_le_bytes(self.array()?));
        let (uid, gid, nlink) = (self.u32()?, self.u32()?, self.u32()?);
        let birth = match flags {
            0 if birth == Timestamp::EPOCH => None,
            BIRTH => Some(birth),
            _ => return None,
        };
        (mode <= MODE_MASK).then_some(Seen {
            kind,
            fileid,
            birth,
            size,
            mtime,
            ctime,
            mode,
            uid,
            gid,
            nlink,
            proof,
        })
    }
    fn over(&mut self) -> Option<Option<Ino>> {
        match self.u64()? {
            0 => Some(None),
            raw => Ino::from_raw(raw).map(Some),
        }
    }
    fn step(&mut self) -> Option<Step> {
        Some(match self.u8()? {
            1 => {
                let (at, over) = (self.place()?, self.over()?);
                let data = match self.u8()? {
                    0 => None,
                    1 => Some(self.u64()?),
                    _ => return None,
                };
                Step::Create { at, over, data }
            }
            2 => Step::Publish { version: self.u64()? },
            3 => Step::Rename { from: self.place()?, to: self.place()?, over: self.over()? },
            4 => Step::Link { at: self.place()?, over: self.over()? },
            5 => Step::Unlink { at: self.place()? },
            6 => Step::Rmdir { at: self.place()? },
            7 => Step::SetAttr { what: Attrs::from_bits(self.u8()?)? },
            8 => Step::SetXattr { names: self.names()? },
            _ => return None,
        })
    }
}
