//! Goal: a version is the object as it is at the snapshot, whatever changes and moves while it is copied.
//! Method: a version in memory that changes the object at random when some of it is written, compared with the object as it was
//! after each change.
#![allow(clippy::unwrap_used, reason = "a test")]

mod harness;

use ds::{AllocateMode, Object};
use harness::{
    Site, ino,
    linked::{LinkedDir, seen_of},
    read,
};
use link::{Attributes, Found, Version};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use types::{Errno, TierId};

const PATIENCE: Duration = Duration::from_secs(20);

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Keeps what was written by page, so that a sparse one takes little.
struct Kept<'a> {
    pages: BTreeMap<u64, Vec<u8>>,
    len: u64,
    written: u64,
    changes: usize,
    change: &'a mut (dyn FnMut() + Send),
}

const PAGE: u64 = 4096;

impl Kept<'_> {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len.next_multiple_of(PAGE) as usize];
        for (page, content) in &self.pages {
            bytes[(page * PAGE) as usize..((page + 1) * PAGE) as usize].copy_from_slice(content);
        }
        bytes.truncate(self.len as usize);
        bytes
    }
    fn byte(&self, at: u64) -> u8 {
        self.pages.get(&(at / PAGE)).map_or(0, |page| page[(at % PAGE) as usize])
    }
}

impl Version for Kept<'_> {
    fn write_at(&mut self, data: &[u8], offset: u64) -> Result<(), Errno> {
        let (mut at, mut left) = (offset, data);
        while !left.is_empty() {
            let within = (at % PAGE) as usize;
            let (part, rest) = left.split_at(left.len().min(PAGE as usize - within));
            let page = self.pages.entry(at / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[within..within + part.len()].copy_from_slice(part);
            (at, left) = (at + part.len() as u64, rest);
        }
        self.len = self.len.max(offset + data.len() as u64);
        self.written += data.len() as u64;
        if self.changes > 0 {
            self.changes -= 1;
            (self.change)();
        }
        Ok(())
    }
    fn set_len(&mut self, len: u64) -> Result<(), Errno> {
        self.pages.retain(|page, _| page * PAGE < len);
        if let Some(last) = self.pages.get_mut(&(len / PAGE)) {
            last[(len % PAGE) as usize..].fill(0);
        }
        self.len = len;
        Ok(())
    }
    fn finish(self: Box<Self>, _: &Attributes<'_>) -> Result<Found, Errno> {
        Err(Errno::EIO)
    }
}

fn change(site: &Site, object: &Object, random: &mut Random) {
    let server = site.server();
    let size = object.size();
    match random.below(8) {
        0..=2 => {
            let bytes = vec![random.below(255) as u8 + 1; 1 + random.below(300_000) as usize];
            server.write(object, random.below(22 << 20), &bytes).unwrap();
        }
        3 | 4 => server.truncate(object, random.below(24 << 20)).unwrap(),
        5 if size > 0 => {
            server
                .allocate(object, AllocateMode::Zero, random.below(size), 1 + random.below(6 << 20))
                .unwrap();
        }
        _ => {
            let to = [TierId::Memory, TierId::Ssd][random.below(2) as usize];
            let _ = server.migrate(object.ino(), to, Some(PATIENCE));
        }
    }
}

fn linked_site() -> (Site, Arc<LinkedDir>) {
    let dir = LinkedDir::new();
    let mut site = Site::new(128 << 20);
    site.linked = Some(dir.clone());
    site.start();
    dir.serve(&site);
    (site, dir)
}

#[test]
fn a_version_is_the_object_at_one_moment_whatever_changes_while_it_is_copied() {
    let mut late = 0;
    for seed in 1..=30 {
        let (site, dir) = linked_site();
        let mut random = Random(seed);
        let len = 1 + random.below(20 << 20);
        dir.import(2, &vec![0xAA; len as usize]);
        let object = site.server().attach(ino(2), &dir.hint(&site, 2)).unwrap();
        for _ in 0..random.below(4) {
            change(&site, &object, &mut random);
        }
        let content = || read(&site, &object, 0, object.size() as usize).unwrap();
        let mut moments = vec![content()];
        let mut changes = || {
            change(&site, &object, &mut random);
            moments.push(content());
        };
        let mut kept = Kept { pages: BTreeMap::new(), len: 0, written: 0, changes: 3, change: &mut changes };
        let snapshot = site.server().copy_version(&object, &mut kept, &|| false).unwrap();
        assert_eq!(snapshot.size, kept.len, "seed {seed}");
        let version = kept.bytes();
        // The last changes came perhaps after the snapshot.
        let moment = moments.iter().rposition(|moment| *moment == version);
        late += usize::from(moment.is_some_and(|moment| moment > 0));
        if moment.is_none() {
            let differ = |moment: &Vec<u8>| moment.iter().zip(&version).position(|(a, b)| a != b);
            let differ: Vec<_> = moments.iter().map(|moment| (moment.len(), differ(moment))).collect();
            panic!("seed {seed}: a version of {} bytes differs from each moment: {differ:?}", version.len());
        }
    }
    assert!(late > 15, "the changes came while it was copied in {late} of 30");
}

#[test]
fn a_version_in_place_has_the_same_bytes_and_leaves_what_near_line_has() {
    for seed in 100..=130 {
        let (site, dir) = linked_site();
        let mut random = Random(seed);
        let theirs = vec![0xAA; 1 + random.below(20 << 20) as usize];
        dir.import(2, &theirs);
        let object = site.server().attach(ino(2), &dir.hint(&site, 2)).unwrap();
        for _ in 0..random.below(4) {
            change(&site, &object, &mut random);
        }
        let content = || read(&site, &object, 0, object.size() as usize).unwrap();
        let mut moments = vec![content()];
        let mut changes = || {
            change(&site, &object, &mut random);
            moments.push(content());
        };
        let mut kept = Kept { pages: BTreeMap::new(), len: 0, written: 0, changes: 0, change: &mut changes };
        kept.write_at(&theirs, 0).unwrap();
        (kept.written, kept.changes) = (0, 3);
        let there = theirs.len() as u64;
        let snapshot = site.server().copy_changes(&object, (&mut kept, there), &|| false).unwrap();
        assert_eq!(snapshot.size, kept.len, "seed {seed}");
        let version = kept.bytes();
        assert!(moments.contains(&version), "seed {seed}: no moment of the object");
    }
}

#[test]
fn a_version_in_place_writes_only_what_is_new() {
    let (site, dir) = linked_site();
    let theirs = vec![0xAA; 20 << 20];
    dir.import(2, &theirs);
    let object = site.server().attach(ino(2), &dir.hint(&site, 2)).unwrap();
    site.server().write(&object, 9 << 20, b"ours").unwrap();
    site.server().truncate(&object, (17 << 20) + 5).unwrap();
    site.server().truncate(&object, 18 << 20).unwrap();
    dir.fail(Some(Errno::EIO));
    let mut nothing = || {};
    let mut kept = Kept { pages: BTreeMap::new(), len: 0, written: 0, changes: 0, change: &mut nothing };
    kept.write_at(&theirs, 0).unwrap();
    kept.written = 0;
    let there = theirs.len() as u64;
    let snapshot = site.server().copy_changes(&object, (&mut kept, there), &|| false).unwrap();
    // One SAU, and zeros behind the cut: no byte of theirs is asked for.
    assert_eq!((snapshot.size, kept.len, kept.written), (18 << 20, 18 << 20, (4 << 20) + (3 << 20) - 5));
    dir.fail(None);
    site.server().give_up_version(snapshot);
    assert!(kept.bytes() == read(&site, &object, 0, 20 << 20).unwrap());
}

#[test]
fn holes_are_left_out_and_take_no_time() {
    let (site, dir) = linked_site();
    dir.import(2, b"begin");
    let object = site.server().attach(ino(2), &dir.hint(&site, 2)).unwrap();
    const FAR: u64 = 1 << 40;
    site.server().write(&object, FAR, b"end").unwrap();
    let mut first = true;
    let mut once = || {
        // All between is cut and comes back: there is nothing to be said of it.
        if std::mem::take(&mut first) {
            site.server().truncate(&object, 3).unwrap();
            site.server().truncate(&object, 2 * FAR).unwrap();
            site.server().allocate(&object, AllocateMode::Zero, 10, FAR).unwrap();
        }
    };
    let mut kept = Kept { pages: BTreeMap::new(), len: 0, written: 0, changes: 1, change: &mut once };
    let snapshot = site.server().copy_version(&object, &mut kept, &|| false).unwrap();
    assert_eq!((snapshot.size, kept.len), (2 * FAR, 2 * FAR));
    assert!(kept.written < 9 << 20, "{} bytes were written", kept.written);
    assert_eq!((kept.byte(2), kept.byte(3), kept.byte(FAR)), (b'g', 0, 0));
}

#[test]
fn what_near_line_got_is_what_it_is_asked_for_later() {
    // A snapshot that is published by hand, with a cut between it and the word of it.
    let (site, dir) = linked_site();
    dir.import(2, &[7; 9 << 20]);
    let object = site.server().attach(ino(2), &dir.hint(&site, 2)).unwrap();
    site.server().write(&object, 5, b"ours").unwrap();
    let (server, late) = (site.server().clone(), object.clone());
    dir.on_copied(move || {
        server.truncate(&late, (8 << 20) + 5).unwrap();
        server.truncate(&late, 12 << 20).unwrap();
    });
    ds::Linked::publish(&*dir, ino(2), &|| false).unwrap();
    assert_eq!(seen_of(&dir.path(2)).size, 9 << 20, "as it was at the snapshot");
    let tail = read(&site, &object, 8 << 20, 4 << 20).unwrap();
    assert!(tail[..5] == [7; 5] && tail[5..].iter().all(|byte| *byte == 0));
}
