//! Goal: whatever overtakes what, nothing is kept that is not true, and nothing is used for too long. Method: questions, recalls and changes
//! in every order.
use types::{FileKind, ProjectId, Timestamp};

use super::*;

const TERM: Duration = Duration::from_secs(6);

fn attr(size: u64) -> Attr {
    let at = Timestamp { sec: 1, nsec: 0 };
    Attr {
        ino: Ino::ROOT,
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        blocks: 0,
        atime: at,
        mtime: at,
        ctime: at,
        btime: at,
        project: ProjectId::NONE,
    }
}

fn key() -> Key {
    Key::Inode(Ino::ROOT)
}

const SERVER: Source = Source { node: 0, joined: 7 };

fn keep(kept: &mut Kept, ticket: Ticket, now: Instant, size: u64) {
    keep_of(kept, ticket, now, size, SERVER);
}

fn keep_of(kept: &mut Kept, ticket: Ticket, now: Instant, size: u64, from: Source) {
    let at = At { ticket, now, from };
    kept.heard_term(&at, TERM);
    kept.keep_attr(&at, attr(size));
    kept.keep_name(&at, (Ino::ROOT, b"n"), Ino::ROOT, None);
    kept.keep_bytes(&at, Ino::ROOT);
    kept.done(ticket);
}

/// Goal: what one of several servers granted stands and falls with that server. Method: two of them, one of which is silent, comes as another, or takes a
/// slot back.
#[test]
fn each_server_has_a_term_of_its_own() {
    let (mut kept, start) = (Kept::default(), Instant::now());
    let (one, two) = (SERVER, Source { node: 2, joined: 3 });
    let ticket = kept.ask(start);
    keep_of(&mut kept, ticket, start, 1, one);
    let ticket = kept.ask(start);
    let at = At { ticket, now: start, from: two };
    kept.heard_term(&at, TERM);
    kept.keep_name(&at, (Ino::ROOT, b"m"), Ino::ROOT, None);
    kept.done(ticket);
    let later = start + TERM / 2;
    kept.heard(two, later, later);
    let silent = start + TERM;
    assert_eq!((kept.attr(silent, Ino::ROOT), kept.name(silent, Ino::ROOT, b"m")), (None, Some(None)));
    // Answers to who came there before count for nothing, and what he was granted has gone.
    let ticket = kept.ask(silent);
    let again = Source { joined: 9, ..two };
    let late = kept.ask(silent);
    keep_of(&mut kept, ticket, silent, 2, again);
    assert_eq!((kept.name(silent, Ino::ROOT, b"m"), kept.attr(silent, Ino::ROOT)), (None, Some(attr(2))));
    kept.recalled(&key(), true);
    keep_of(&mut kept, late, silent, 3, two);
    kept.heard(two, silent + TERM, silent + TERM / 2);
    assert_eq!((kept.attr(silent, Ino::ROOT), kept.attr(silent + TERM, Ino::ROOT)), (None, None));
}

/// Goal: a name that is said to have stood was never another's in between. Method: each way in which it can have gone and come back between the question
/// and its answer.
#[test]
fn a_name_that_came_back_did_not_stand() {
    let (mut kept, now) = (Kept::default(), Instant::now());
    let part = Ino::from_raw(5 << 40 | 1).unwrap();
    let name = || Key::Entry { dir: Ino::ROOT, name: b"n"[..].into() };
    let keep_it = |kept: &mut Kept| {
        let ticket = kept.ask(now);
        let at = At { ticket, now, from: SERVER };
        kept.heard_term(&at, TERM);
        kept.keep_name(&at, (Ino::ROOT, b"n"), part, Some(part));
        kept.done(ticket);
    };
    let stood = |kept: &Kept, ticket, at| kept.stood(ticket, at, (Ino::ROOT, b"n", part), part);
    let gone: [fn(&mut Kept, Instant, Key); 5] = [
        |kept, _, name| kept.recalled(&name, false),
        |kept, now, name| {
            kept.begin_change(&name);
            kept.end_change(&name, now, None);
        },
        |kept, _, _| {
            let slots = BTreeSet::from([Ino::from_raw(5 << 40 | 1).unwrap().ugsd().slot()]);
            kept.recalled_slots(&slots, |_, _| Ino::from_raw(5 << 40 | 1).unwrap());
        },
        |kept, _, _| kept.leave(SERVER.node),
        |kept, _, _| kept.clear(),
    ];
    for goes in gone {
        keep_it(&mut kept);
        let ticket = kept.ask(now);
        assert!(stood(&kept, ticket, now) && !stood(&kept, ticket, now + TERM));
        assert!(!kept.stood(ticket, now, (Ino::ROOT, b"n", part), Ino::ROOT), "it names another");
        goes(&mut kept, now, name());
        assert!(!stood(&kept, ticket, now), "it is not there");
        keep_it(&mut kept);
        assert!(!stood(&kept, ticket, now), "it is there again");
        kept.done(ticket);
        let ticket = kept.ask(now);
        assert!(stood(&kept, ticket, now), "since then it is");
        kept.done(ticket);
    }
}

#[test]
fn what_is_recalled_with_its_slot_is_gone_but_for_bytes() {
    let (mut kept, now) = (Kept::default(), Instant::now());
    let slots = BTreeSet::from([Ino::ROOT.ugsd().slot()]);
    let ticket = kept.ask(now);
    keep(&mut kept, ticket, now, 1);
    let (overtaken, other) = (kept.ask(now), kept.ask(now));
    kept.recalled_slots(&slots, |dir, _| dir);
    assert!(kept.bytes(now, Ino::ROOT).is_some());
    kept.done(other);
    keep(&mut kept, overtaken, now, 2);
    assert_eq!((kept.attr(now, Ino::ROOT), kept.name(now, Ino::ROOT, b"n")), (None, None));
    let ticket = kept.ask(now);
    keep(&mut kept, ticket, now, 3);
    assert_eq!(kept.attr(now, Ino::ROOT), Some(attr(3)));
    // A name that the server knows in a part, whose slot it is.
    let part = Ino::from_raw(5 << 40 | 1).unwrap();
    kept.recalled_slots(&BTreeSet::from([part.ugsd().slot()]), |_, _| part);
    assert_eq!((kept.name(now, Ino::ROOT, b"n"), kept.attr(now, Ino::ROOT)), (None, Some(attr(3))));
    assert!(kept.touched_slots.is_empty());
}

#[test]
fn what_is_kept_ends_with_its_term_for_ever() {
    let (mut kept, start) = (Kept::default(), Instant::now());
    let ticket = kept.ask(start);
    keep(&mut kept, ticket, start + TERM / 2, 1);
    assert_eq!(kept.attr(start + TERM / 2, Ino::ROOT), Some(attr(1)));
    assert_eq!(kept.name(start, Ino::ROOT, b"n"), Some(None));
    assert_eq!(kept.name(start, Ino::ROOT, b"other"), None);
    assert_eq!(kept.attr(start + TERM, Ino::ROOT), None, "it counts from the asking");
    // Hearing of the server in time carries it on, too late does not.
    kept.heard(SERVER, start + TERM / 2, start + TERM / 2);
    assert!(kept.attr(start + TERM, Ino::ROOT).is_some());
    let late = start + TERM * 3;
    kept.heard(SERVER, late, late);
    assert_eq!(kept.attr(late, Ino::ROOT), None);
    assert_eq!((kept.counts().lapsed, kept.counts().inodes, kept.renew_every(false)), (1, 0, None));
    let ticket = kept.ask(late);
    keep(&mut kept, ticket, late, 2);
    assert_eq!(kept.attr(late, Ino::ROOT), Some(attr(2)));
}

#[test]
fn what_was_overtaken_is_not_kept() {
    let (mut kept, now) = (Kept::default(), Instant::now());
    let first = kept.ask(now);
    keep(&mut kept, first, now, 1);
    // A recall, a change of our own, and another session, before the answer.
    let overtaken: [fn(&mut Kept, Instant); 3] = [
        |kept, _| kept.recalled(&key(), false),
        |kept, now| {
            kept.begin_change(&key());
            kept.end_change(&key(), now, None);
        },
        |kept, _| kept.clear(),
    ];
    for overtake in overtaken {
        let (ticket, other) = (kept.ask(now), kept.ask(now));
        overtake(&mut kept, now);
        kept.done(other);
        keep(&mut kept, ticket, now, 2);
        assert_eq!(kept.attr(now, Ino::ROOT), None);
        let ticket = kept.ask(now);
        keep(&mut kept, ticket, now, 3);
        assert_eq!(kept.attr(now, Ino::ROOT), Some(attr(3)), "what is asked afterwards counts");
    }
    assert!(kept.touched.is_empty() && kept.open.is_empty());
}

#[test]
fn what_changes_is_not_kept() {
    let (mut kept, now) = (Kept::default(), Instant::now());
    kept.begin_change(&key());
    kept.begin_change(&key());
    for _ in 0..2 {
        let ticket = kept.ask(now);
        keep(&mut kept, ticket, now, 1);
        assert_eq!(kept.attr(now, Ino::ROOT), None);
        kept.end_change(&key(), now, None);
    }
    let ticket = kept.ask(now);
    keep(&mut kept, ticket, now, 1);
    assert!(kept.attr(now, Ino::ROOT).is_some());
    // One without an answer may be carried out later.
    kept.begin_change(&key());
    kept.end_change(&key(), now, Some(now + TERM));
    for (at, there) in [(now, false), (now + TERM, true)] {
        let ticket = kept.ask(at);
        keep(&mut kept, ticket, at, 1);
        assert_eq!(kept.attr(at, Ino::ROOT).is_some(), there);
    }
}

#[test]
fn bytes_have_a_lease_of_their_own() {
    let (mut kept, now) = (Kept::default(), Instant::now());
    let ticket = kept.ask(now);
    keep(&mut kept, ticket, now, 1);
    let first = kept.bytes(now, Ino::ROOT);
    assert!(first.is_some() && kept.renew_every(false).is_some());
    // Attributes that are asked back, or changed here, are no bytes.
    kept.recalled(&key(), true);
    kept.begin_change(&key());
    assert_eq!((kept.attr(now, Ino::ROOT), kept.bytes(now, Ino::ROOT)), (None, first));
    kept.end_change(&key(), now, None);
    // One that was asked for before it was asked back counts for nothing, one that was asked for afterwards is another.
    let (overtaken, other) = (kept.ask(now), kept.ask(now));
    kept.recalled(&key(), false);
    kept.done(other);
    keep(&mut kept, overtaken, now, 1);
    assert_eq!(kept.bytes(now, Ino::ROOT), None);
    let ticket = kept.ask(now);
    keep(&mut kept, ticket, now, 1);
    let second = kept.bytes(now, Ino::ROOT);
    assert!(second > first);
    assert_eq!(kept.bytes(now + TERM, Ino::ROOT), None, "its term has ended");
    // A write of ours without an answer may be carried out later.
    kept.doubt_bytes(Ino::ROOT, now, now + TERM / 2);
    for (at, there) in [(now, false), (now + TERM / 2, true)] {
        let ticket = kept.ask(at);
        keep(&mut kept, ticket, at, 1);
        assert_eq!(kept.bytes(at, Ino::ROOT).is_some(), there);
    }
    assert!(kept.touched_files.is_empty());
}

#[test]
fn the_older_half_goes() {
    let (mut kept, now) = (Kept::default(), Instant::now());
    let ticket = kept.ask(now);
    let at = At { ticket, now, from: SERVER };
    kept.heard_term(&at, TERM);
    for n in 0..2 * KEPT_MAX as u64 {
        kept.keep_name(&at, (Ino::ROOT, &n.to_le_bytes()), Ino::ROOT, None);
    }
    assert!(kept.counts().names <= KEPT_MAX as u64);
    let last = 2 * KEPT_MAX as u64 - 1;
    assert_eq!(kept.name(now, Ino::ROOT, &last.to_le_bytes()), Some(None));
    assert_eq!(kept.name(now, Ino::ROOT, &0u64.to_le_bytes()), None);
}
