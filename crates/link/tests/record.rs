//! Goal: stored records keep their form, damage is seen, and no bytes make a decoder panic or take much memory. Method: golden
//! bytes, every truncation, and [`fuzzing`]; what decodes has this encoding and no other.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;

use fuzzing::{as_it_is, fuzz};
use link::*;
use types::{FileKind, Ino, Timestamp};

fn ino(n: u64) -> Ino {
    Ino::from_raw(n).unwrap()
}

fn time(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 9 }
}

fn place(dir: u64, name: &[u8]) -> Place {
    Place::new(ino(dir), name)
}

fn seen(birth: Option<Timestamp>) -> Seen {
    Seen {
        kind: FileKind::Regular,
        fileid: 0x0102,
        birth,
        size: 0x0304,
        mtime: time(5),
        ctime: time(6),
        mode: 0o644,
        uid: 10,
        gid: 11,
        nlink: 1,
        proof: Proof::Racy,
    }
}

fn link_record() -> LinkRecord {
    LinkRecord { seen: seen(Some(time(4))), looked: time(7), place: place(8, b"name") }
}

fn conflict(kept: Option<&[u8]>) -> Conflict {
    let kept = kept.map(<[u8]>::to_vec);
    Conflict { why: Why::NameTaken, ino: ino(3), when: time(7), dir: ino(8), name: b"a".to_vec(), kept }
}

fn work(begun: Option<Step>, staged: Option<Staged>) -> Work {
    Work {
        seq: 21,
        since: time(7),
        kind: FileKind::Regular,
        there: true,
        deleted: false,
        minus: BTreeSet::from([place(8, b"a"), place(8, b"b")]),
        plus: BTreeSet::from([place(9, b"c")]),
        written: 33,
        published: 31,
        due: begun.as_ref().map(|_| 32),
        needs: 30,
        writing: false,
        attrs: Attrs::MODE.with(Attrs::TIMES),
        xattrs: BTreeSet::from([b"user.a".to_vec(), b"user.b".to_vec()]),
        begun,
        staged,
    }
}

fn steps() -> Vec<Step> {
    let (at, over) = (place(9, b"c"), Some(ino(77)));
    vec![
        Step::Create { at: at.clone(), over: None, data: Some(32) },
        Step::Create { at: at.clone(), over, data: None },
        Step::Publish { version: 32 },
        Step::Rename { from: place(8, b"a"), to: at.clone(), over },
        Step::Link { at: at.clone(), over: None },
        Step::Unlink { at: place(8, b"a") },
        Step::Rmdir { at },
        Step::SetAttr { what: Attrs::OWNER },
        Step::SetXattr { names: BTreeSet::from([b"user.c".to_vec()]) },
    ]
}

fn works() -> Vec<Work> {
    let mut all = vec![work(None, None), work(None, Some(Staged::InPlace))];
    let staged = |n: usize| [None, Some(Staged::Aside(seen(None)))][n % 2];
    all.extend(steps().into_iter().enumerate().map(|(n, step)| work(Some(step), staged(n))));
    all.push(Work {
        minus: BTreeSet::new(),
        plus: BTreeSet::new(),
        xattrs: BTreeSet::new(),
        ..work(None, None)
    });
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What stands in every test of a form: it comes back, and nothing shorter or longer does.
fn comes_back<T: PartialEq + std::fmt::Debug>(value: T, bytes: &[u8], decode: fn(&[u8]) -> Option<T>) {
    assert_eq!(decode(bytes).as_ref(), Some(&value));
    for len in 0..bytes.len() {
        assert_eq!(decode(&bytes[..len]), None, "cut to {len}");
    }
    assert_eq!(decode(&[bytes, &[0]].concat()), None);
    assert_eq!(decode(&[&[2], &bytes[1..]].concat()), None, "another version");
}

#[test]
fn a_link_record_has_its_golden_bytes() {
    let bytes = link_record().encode();
    let golden = concat!(
        "01010201",
        "02010000000000000403000000000000",
        "050000000000000009000000",
        "060000000000000009000000",
        "040000000000000009000000",
        "a4010a0000000b00000001000000",
        "070000000000000009000000",
        "0800000000000000",
        "046e616d65",
    );
    assert_eq!(hex(&bytes), golden);
    comes_back(link_record(), &bytes, LinkRecord::decode);
}

#[test]
fn work_has_its_golden_bytes() {
    let bytes = work(Some(Step::Publish { version: 32 }), Some(Staged::InPlace)).encode();
    let golden = concat!(
        "01015905",
        "1500000000000000070000000000000009000000",
        "21000000000000001f000000000000001e000000000000002000000000000000",
        "02000000080000000000000001610800000000000000",
        "0162",
        "0100000009000000000000000163",
        "0200000006757365722e6106757365722e62",
        "022000000000000000",
    );
    assert_eq!(hex(&bytes), golden);
    for work in works() {
        let bytes = work.encode();
        comes_back(work, &bytes, Work::decode);
    }
}

#[test]
fn a_conflict_has_its_golden_bytes() {
    let bytes = conflict(Some(b"a.onfs-conflict-1")).encode();
    let golden = concat!(
        "0102030000000000000007000000000000000900000008000000000000000161",
        "11612e6f6e66732d636f6e666c6963742d31",
    );
    assert_eq!(hex(&bytes), golden);
    comes_back(conflict(Some(b"a.onfs-conflict-1")), &bytes, Conflict::decode);
    for (stored, why) in
        [Why::BothChanged, Why::NameTaken, Why::DeletedHere, Why::BytesLost].into_iter().enumerate()
    {
        let conflict = Conflict { why, ..conflict(None) };
        assert_eq!(usize::from(conflict.encode()[1]), stored + 1, "{why:?}");
        comes_back(conflict.clone(), &conflict.encode(), Conflict::decode);
    }
    comes_back(conflict(None), &conflict(None).encode(), Conflict::decode);
}

#[test]
fn fields_out_of_range_are_refused() {
    let good = link_record().encode();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        LinkRecord::decode(&bytes)
    };
    for (at, byte) in [(1, 8), (2, 4), (3, 2), (3, 0), (31, 0x40), (57, 0x10), (82, 0), (90, 0), (91, b'/')] {
        assert_eq!(with(at, byte), None, "{byte:#x} at {at}");
    }
    // The same names in another order, and a name on both sides.
    let text = hex(&work(None, None).encode());
    for (from, to) in [("01610800000000000000", "01630800000000000000"), ("0163", "0163")] {
        let changed = text.replace(from, to);
        let bytes: Vec<u8> = (0..changed.len())
            .step_by(2)
            .map(|n| u8::from_str_radix(&changed[n..n + 2], 16).unwrap())
            .collect();
        assert_eq!(Work::decode(&bytes).is_some(), from == to);
    }
    let both = Work { plus: BTreeSet::from([place(8, b"a")]), ..work(None, None) };
    assert_eq!(Work::decode(&both.encode()), None);
}

#[test]
fn fuzz_link_record() {
    let good = [link_record().encode(), LinkRecord { seen: seen(None), ..link_record() }.encode()];
    fuzz("link-record", &good, as_it_is, |bytes| {
        if let Some(record) = LinkRecord::decode(bytes) {
            assert_eq!(record.encode(), bytes);
        }
    });
}

#[test]
fn fuzz_link_work() {
    let good: Vec<Vec<u8>> = works().iter().map(Work::encode).collect();
    fuzz("link-work", &good, as_it_is, |bytes| {
        if let Some(work) = Work::decode(bytes) {
            assert_eq!(work.encode(), bytes);
            // Whatever was stored, the log takes it and comes to an end.
            let settings = Settings {
                root: Ino::ROOT,
                entries_max: 10,
                retry_first: std::time::Duration::from_secs(1),
                retry_most: std::time::Duration::from_secs(1),
                held_retry: std::time::Duration::from_secs(1),
            };
            let mut log = Log::rebuild(settings, [(ino(5), work)]).unwrap();
            for _ in 0..200 {
                for entry in log.ready(time(9), 4, &|_| Some(Ino::ROOT)) {
                    log.applied(entry.ino);
                }
            }
        }
    });
}

#[test]
fn fuzz_link_conflict() {
    let good = [conflict(None).encode(), conflict(Some(b"a.onfs-conflict-1")).encode()];
    fuzz("link-conflict", &good, as_it_is, |bytes| {
        if let Some(conflict) = Conflict::decode(bytes) {
            assert_eq!(conflict.encode(), bytes);
        }
    });
}
