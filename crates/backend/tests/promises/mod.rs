//! What `link::BackEnd` promises, asked of a back end through itself alone: so of any kind of it, each in an empty root. What a kind
//! cannot do its abilities say, and it is not asked.
#![allow(dead_code, reason = "each test uses a part")]

use std::ops::ControlFlow;

use link::{Attributes, Attrs, BackEnd, Found, Making, Over, Proof, Reachable};
use types::{Errno, FileKind, Timestamp};

fn way(path: &str) -> Vec<Vec<u8>> {
    path.split('/').filter(|name| !name.is_empty()).map(|name| name.as_bytes().to_vec()).collect()
}

fn at(sec: i64, nsec: u32) -> Timestamp {
    Timestamp { sec, nsec }
}

fn plain(mode: u32) -> Attributes<'static> {
    Attributes { mode, uid: 0, gid: 0, atime: at(1_000, 0), mtime: at(2_000, 500), xattrs: &[] }
}

fn names(back: &dyn BackEnd, path: &str) -> Result<Vec<String>, Errno> {
    let mut all = Vec::new();
    back.list(&way(path), &mut |name, _| {
        all.push(String::from_utf8_lossy(name).into_owned());
        ControlFlow::Continue(())
    })?;
    all.sort();
    Ok(all)
}

fn found(back: &dyn BackEnd, path: &str) -> Found {
    back.look(&way(path)).unwrap().unwrap()
}

fn dir(back: &dyn BackEnd, path: &str) {
    let what = Making { kind: FileKind::Directory, rdev: 0, target: b"", with: &plain(0o750) };
    back.make(&way(path), &what).unwrap();
}

/// As the shell does it: aside, then renamed.
fn publish(back: &dyn BackEnd, path: &str, bytes: &[u8], over: Over) -> Result<Found, Errno> {
    let mut aside = way(path);
    aside.pop();
    aside.push(b".onfs-way-7".to_vec());
    let mut version = back.begin_version(&aside)?;
    version.write_at(bytes, 0)?;
    version.set_len(bytes.len() as u64)?;
    let made = version.finish(&plain(0o640))?;
    back.rename(&aside, &way(path), over)?;
    Ok(made)
}

fn read(back: &dyn BackEnd, path: &str) -> Vec<u8> {
    let (source, found) = back.open(&way(path)).unwrap();
    let mut bytes = vec![0; found.seen.size as usize + 3];
    let length = source.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(length);
    bytes
}

type Promise = fn(&dyn BackEnd);

/// All of them, each in a root of its own that `fresh` makes, under a name that it is given.
pub fn all(fresh: &dyn Fn(&str) -> Box<dyn BackEnd>) {
    let promises: &[(&str, Promise)] = &[
        ("looks", looks_tell_what_is_there),
        ("listings", listings_are_whole),
        ("versions", versions_are_whole_or_not_there),
        ("large", large_versions_arrive_whole),
        ("renames", renames_do_as_asked),
        ("removals", removals_do_as_asked),
        ("kinds", kinds_are_made_with_their_attributes),
        ("attributes", attributes_are_those_that_were_asked_for),
        ("sources", an_open_file_is_what_it_was_or_an_error),
        ("emptied", an_emptied_directory_stays),
        ("root", the_root_is_known_again),
        ("unable", what_cannot_be_is_refused),
    ];
    for (name, promise) in promises {
        eprintln!("{name}");
        promise(&*fresh(name));
    }
}

fn looks_tell_what_is_there(back: &dyn BackEnd) {
    dir(back, "d");
    dir(back, "d/e");
    publish(back, "d/e/f", b"12345", Over::Nothing).unwrap();
    for (path, kind) in [
        ("", FileKind::Directory),
        ("d", FileKind::Directory),
        ("d/e", FileKind::Directory),
        ("d/e/f", FileKind::Regular),
    ] {
        assert_eq!(found(back, path).seen.kind, kind, "{path}");
    }
    assert_eq!(found(back, "d/e/f").seen.size, 5);
    assert_eq!(back.look(&way("x")), Ok(None));
    assert_eq!(back.look(&way("d/x")), Ok(None));
    assert_eq!(back.look(&way("x/y")), Err(Errno::ENOENT));
    assert_eq!(back.look(&way("d/e/f/g")), Err(Errno::ENOENT), "a file is no directory");
    for bad in ["..", "."] {
        assert_eq!(back.look(&[bad.into()]), Err(Errno::EINVAL));
    }
    assert_eq!(back.look(&[b"d/e".to_vec()]), Err(Errno::EINVAL));
}

fn listings_are_whole(back: &dyn BackEnd) {
    dir(back, "d");
    dir(back, "d/sub");
    publish(back, "d/sub/deep", b"", Over::Nothing).unwrap();
    let wanted: Vec<String> = (0..60).map(|n| format!("{n:02} é")).collect();
    for name in &wanted {
        publish(back, &format!("d/{name}"), name.as_bytes(), Over::Nothing).unwrap();
    }
    let mut all = wanted.clone();
    all.push("sub".to_owned());
    assert_eq!(names(back, "d").unwrap(), all);
    assert_eq!(names(back, "").unwrap(), ["d"]);
    assert_eq!(names(back, "d/sub").unwrap(), ["deep"]);
    assert_eq!(names(back, "x"), Err(Errno::ENOENT));
    assert_eq!(names(back, "d/sub/deep"), Err(Errno::ENOENT));
    back.list(&way("d"), &mut |name, listed| {
        let mut at = way("d");
        at.push(name.to_vec());
        let looked = back.look(&at).unwrap().unwrap();
        assert_eq!(
            looked.seen,
            Found { seen: link::Seen { proof: looked.seen.proof, ..listed.seen }, ..listed }.seen
        );
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut seen = 0;
    let visit = &mut |_: &[u8], _: Found| {
        seen += 1;
        if seen == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    back.list(&way("d"), visit).unwrap();
    assert_eq!(seen, 10);
}

fn versions_are_whole_or_not_there(back: &dyn BackEnd) {
    dir(back, "d");
    let aside = way("d/.onfs-way-7");
    let mut version = back.begin_version(&aside).unwrap();
    version.write_at(b"world", 6).unwrap();
    version.write_at(b"hello ", 0).unwrap();
    version.set_len(13).unwrap();
    let to = Attributes { mode: 0o751, uid: 0, gid: 0, atime: at(1, 2), mtime: at(3, 4), xattrs: &[] };
    let made = version.finish(&to).unwrap();
    assert_eq!(read(back, "d/.onfs-way-7"), b"hello world\0\0");
    assert_eq!((made.seen.kind, made.seen.size), (FileKind::Regular, 13));
    if back.abilities().attributes {
        assert_eq!((made.seen.mode, made.seen.mtime, made.atime), (0o751, at(3, 4), at(1, 2)));
    }
    assert_eq!(made.seen.looked(back.clock()).proof, Proof::Firm, "our time is old enough");
    back.rename(&aside, &way("d/f"), Over::Nothing).unwrap();
    assert_eq!(names(back, "d").unwrap(), ["f"]);
    let named = found(back, "d/f").seen;
    assert!(named.is_same_object(&made.seen), "{named:?} {made:?}");
    assert_eq!((named.size, named.mtime, named.mode), (made.seen.size, made.seen.mtime, made.seen.mode));

    let again = publish(back, "d/f", b"new", Over::Replace).unwrap();
    assert!(!again.seen.is_same_object(&made.seen), "another version is another file");
    assert_eq!(read(back, "d/f"), b"new");
    let empty = publish(back, "d/empty", b"", Over::Nothing).unwrap();
    assert_eq!((empty.seen.size, read(back, "d/empty")), (0, vec![]));

    let mut version = back.begin_version(&aside).unwrap();
    version.write_at(b"x", 0).unwrap();
    drop(version);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while names(back, "d").unwrap() != ["empty", "f"] {
        assert!(std::time::Instant::now() < until, "what was given up stays: {:?}", names(back, "d"));
        std::thread::yield_now();
    }
    assert_eq!(back.begin_version(&way("other")).err(), Some(Errno::EINVAL));
    assert_eq!(back.begin_version(&way("x/.onfs-way-7")).err(), Some(Errno::ENOENT));
}

fn large_versions_arrive_whole(back: &dyn BackEnd) {
    let piece: Vec<u8> = (0..1_000_003u32).map(|n| (n * 7 / 5) as u8).collect();
    let mut version = back.begin_version(&way(".onfs-way-1")).unwrap();
    // More than one part of an upload.
    for n in 0..40 {
        version.write_at(&piece, n * piece.len() as u64).unwrap();
    }
    version.write_at(b"once more", 5).unwrap();
    let made = version.finish(&plain(0o644)).unwrap();
    back.rename(&way(".onfs-way-1"), &way("large"), Over::Nothing).unwrap();
    assert!(found(back, "large").seen.is_same_object(&made.seen));
    let got = read(back, "large");
    assert_eq!(got.len(), 40 * piece.len());
    assert_eq!(&got[5..14], b"once more");
    assert!(got[piece.len()..].chunks(piece.len()).all(|chunk| chunk == piece));
    let (source, _) = back.open(&way("large")).unwrap();
    let (mut part, offset) = (vec![0; 5000], 7_654_321);
    assert_eq!(source.read_at(&mut part, offset), Ok(5000));
    assert_eq!(part, &got[offset as usize..][..5000]);
}

fn renames_do_as_asked(back: &dyn BackEnd) {
    dir(back, "d");
    dir(back, "e");
    publish(back, "a", b"a", Over::Nothing).unwrap();
    publish(back, "b", b"b", Over::Nothing).unwrap();
    let before = found(back, "a").seen;
    let go = |from: &str, to: &str, over| back.rename(&way(from), &way(to), over);
    assert_eq!(go("a", "b", Over::Nothing), Err(Errno::EEXIST));
    assert_eq!(go("a", "d", Over::Nothing), Err(Errno::EEXIST));
    assert_eq!(go("a", "d/a", Over::Nothing), Ok(()));
    assert!(found(back, "d/a").seen.is_same_object(&before));
    assert_eq!(go("d/a", "b", Over::Replace), Ok(()));
    assert_eq!(read(back, "b"), b"a");
    assert_eq!(
        (names(back, "").unwrap(), names(back, "d").unwrap()),
        (vec!["b".into(), "d".into(), "e".into()], vec![])
    );
    assert_eq!(go("b", "d", Over::Replace), Err(Errno::EISDIR));
    assert_eq!(go("x", "y", Over::Nothing), Err(Errno::ENOENT));
    assert_eq!(go("b", "x/y", Over::Replace), Err(Errno::ENOENT));
    let moved = go("d", "e/d", Over::Nothing);
    if back.abilities().directory_rename {
        assert_eq!((moved, names(back, "e").unwrap()), (Ok(()), vec!["d".into()]));
    } else {
        assert_eq!((moved, names(back, "e").unwrap()), (Err(Errno::EXDEV), vec![]));
    }
}

fn removals_do_as_asked(back: &dyn BackEnd) {
    dir(back, "d");
    dir(back, "d/e");
    publish(back, "d/f", b"f", Over::Nothing).unwrap();
    assert_eq!(back.rmdir(&way("d")), Err(Errno::ENOTEMPTY));
    assert_eq!(back.rmdir(&way("d/f")), Err(Errno::ENOTDIR));
    assert_eq!(back.unlink(&way("d/e")), Err(Errno::EISDIR));
    assert_eq!(back.rmdir(&way("d/e")), Ok(()));
    assert_eq!(back.rmdir(&way("d/e")), Err(Errno::ENOENT));
    assert_eq!(back.unlink(&way("d/f")), Ok(()));
    assert_eq!(back.unlink(&way("d/f")), Err(Errno::ENOENT));
    assert_eq!(back.unlink(&[]), Err(Errno::EINVAL));
    assert_eq!(back.rmdir(&way("d")), Ok(()));
    assert_eq!(names(back, "").unwrap(), [""; 0]);
    assert_eq!(back.sync(&[]), Ok(()));
}

fn kinds_are_made_with_their_attributes(back: &dyn BackEnd) {
    let can = back.abilities();
    let kinds = [
        (FileKind::Directory, 0o2750, 0),
        (FileKind::Symlink, 0o777, 0),
        (FileKind::Fifo, 0o640, 0),
        (FileKind::CharDevice, 0o660, 0x10_0801),
    ];
    for (kind, mode, rdev) in kinds {
        let special = !matches!(kind, FileKind::Directory | FileKind::Symlink);
        if special && !can.special || kind == FileKind::Symlink && !can.symlinks {
            continue;
        }
        let name = format!("{kind:?}");
        let with = Attributes { mode, uid: 0, gid: 0, atime: at(5, 1), mtime: at(77, 8), xattrs: &[] };
        let what = Making { kind, rdev, target: b"to/\xff where", with: &with };
        let made = back.make(&way(&name), &what).unwrap();
        assert_eq!((made.seen.kind, made.rdev), (kind, rdev));
        if can.attributes {
            assert_eq!((made.seen.mode, made.seen.mtime), (mode, at(77, 8)));
        }
        assert_eq!(found(back, &name).seen.kind, kind);
        assert_eq!(back.make(&way(&name), &what), Err(Errno::EEXIST));
    }
    if can.symlinks {
        assert_eq!(back.readlink(&way("Symlink")).unwrap(), b"to/\xff where");
    }
    let what = Making { kind: FileKind::Regular, rdev: 0, target: b"", with: &plain(0) };
    assert_eq!(back.make(&way("r"), &what), Err(Errno::EINVAL));
    let what = Making { kind: FileKind::Directory, ..what };
    assert_eq!(back.make(&way("x/d"), &what), Err(Errno::ENOENT));
    assert_eq!(back.make(&way(""), &what), Err(Errno::EINVAL));
}

fn attributes_are_those_that_were_asked_for(back: &dyn BackEnd) {
    if !back.abilities().attributes {
        return;
    }
    dir(back, "d");
    publish(back, "f", b"bytes", Over::Nothing).unwrap();
    let to = Attributes { mode: 0o711, uid: 0, gid: 0, atime: at(5, 6), mtime: at(7, 8), xattrs: &[] };
    for path in ["f", "d"] {
        let before = found(back, path).seen;
        back.set_attributes(&way(path), Attrs::MODE, &to).unwrap();
        let after = found(back, path).seen;
        assert!(after.is_same_object(&before));
        assert_eq!((after.mode, after.mtime), (0o711, before.mtime), "{path}: only what is asked for");
        back.set_attributes(&way(path), Attrs::TIMES, &to).unwrap();
        let timed = found(back, path);
        assert!(timed.seen.is_same_object(&before));
        assert_eq!((timed.seen.mtime, timed.atime, timed.seen.mode), (at(7, 8), at(5, 6), 0o711));
    }
    assert_eq!(read(back, "f"), b"bytes");
    assert_eq!(back.set_attributes(&way("x"), Attrs::MODE, &to), Err(Errno::ENOENT));
    // Its data is still what it was, and its name, whatever its attributes went through.
    back.rename(&way("f"), &way("d/f"), Over::Nothing).unwrap();
    assert_eq!((found(back, "d/f").seen.mode, read(back, "d/f")), (0o711, b"bytes".to_vec()));
}

fn an_open_file_is_what_it_was_or_an_error(back: &dyn BackEnd) {
    publish(back, "f", b"0123456789", Over::Nothing).unwrap();
    let (source, opened) = back.open(&way("f")).unwrap();
    assert!(found(back, "f").seen.is_same_object(&opened.seen));
    let mut buf = [0; 4];
    assert_eq!((source.read_at(&mut buf, 3), &buf), (Ok(4), b"3456"));
    assert_eq!((source.read_at(&mut buf, 8), &buf[..2]), (Ok(2), &b"89"[..]));
    assert_eq!(source.read_at(&mut buf, 10), Ok(0));
    assert_eq!(source.read_at(&mut [], 0), Ok(0));
    publish(back, "f", b"abcdefghij", Over::Replace).unwrap();
    match source.read_at(&mut buf, 3) {
        Ok(4) => assert_eq!(&buf, b"3456"),
        other => assert_eq!(other, Err(Errno::ESTALE)),
    }
    assert_eq!(read(back, "f"), b"abcdefghij");
    dir(back, "d");
    assert_eq!(back.open(&way("d")).err(), Some(Errno::EISDIR));
    assert_eq!(back.open(&way("x")).err(), Some(Errno::ENOENT));
    assert_eq!(back.open(&way("f/x")).err(), Some(Errno::ENOENT));
}

fn an_emptied_directory_stays(back: &dyn BackEnd) {
    dir(back, "d");
    dir(back, "d/e");
    publish(back, "d/e/f", b"f", Over::Nothing).unwrap();
    back.rename(&way("d/e/f"), &way("f"), Over::Nothing).unwrap();
    assert_eq!(names(back, "d/e").unwrap(), [""; 0]);
    back.rmdir(&way("d/e")).unwrap();
    assert_eq!(names(back, "d").unwrap(), [""; 0]);
    assert_eq!(found(back, "d").seen.kind, FileKind::Directory);
}

fn the_root_is_known_again(back: &dyn BackEnd) {
    let Reachable::Yes { id, .. } = back.root() else { panic!("{:?}", back.root()) };
    publish(back, "f", b"", Over::Nothing).unwrap();
    let Reachable::Yes { id: again, empty: false } = back.root() else { panic!("{:?}", back.root()) };
    assert_eq!(id, again);
    assert_eq!(names(back, "").unwrap(), ["f"]);
    let (free, all) = back.space().unwrap();
    assert!(free > 0 && free <= all, "{free} {all}");
}

fn what_cannot_be_is_refused(back: &dyn BackEnd) {
    let can = back.abilities();
    publish(back, "f", b"f", Over::Nothing).unwrap();
    if !can.hard_links {
        assert_eq!(back.link(&way("f"), &way("g")), Err(Errno::EOPNOTSUPP));
    }
    if !can.xattrs {
        assert_eq!(back.set_xattr(&way("f"), b"user.a", Some(b"1")), Err(Errno::EOPNOTSUPP));
        assert_eq!(back.xattrs(&way("f")), Ok(vec![]));
    }
    if !can.in_place {
        assert_eq!(back.begin_in_place(&way("f")).err(), Some(Errno::EOPNOTSUPP));
    }
    assert_eq!(read(back, "f"), b"f");
}
