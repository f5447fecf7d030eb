//! Goal: what `link::BackEnd` promises holds on real file systems. Method: each call on tmpfs and on the disk, by itself
//! and behind a deadline, beside what the standard library sees.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    ops::ControlFlow,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
};

use fixture::*;
use link::{Attributes, Attrs, BackEnd, Found, Making, Over, Proof, Reachable};
use proptest::prelude::*;
use rustix::fs::XattrFlags;
use types::{Errno, FileKind};

/// What was found is what the standard library finds.
fn assert_same(found: &Found, path: &Path) {
    let there = fs::symlink_metadata(path).unwrap();
    let seen = &found.seen;
    assert_eq!(Some(seen.kind), FileKind::from_mode(there.mode()), "{path:?}");
    assert_eq!((seen.fileid, seen.size, seen.nlink), (there.ino(), there.len(), there.nlink() as u32));
    assert_eq!((seen.mode, seen.uid, seen.gid), (there.mode() & 0o7777, there.uid(), there.gid()));
    assert_eq!(seen.mtime, at(there.mtime(), there.mtime_nsec() as u32));
    assert_eq!(seen.ctime, at(there.ctime(), there.ctime_nsec() as u32));
    if !there.is_dir() {
        // Listing a directory sets it.
        assert_eq!(found.atime, at(there.atime(), there.atime_nsec() as u32));
    }
    assert_eq!(seen.birth.is_some(), there.created().is_ok());
    if there.file_type().is_char_device() {
        assert_eq!(u64::from(found.rdev), there.rdev());
    }
}

#[test]
fn looks_tell_what_is_there() {
    on_each(|back, root| {
        fs::create_dir_all(root.join("d/e")).unwrap();
        fs::write(root.join("d/e/f"), b"12345").unwrap();
        symlink("d/e/f", root.join("l")).unwrap();
        for path in ["", "d", "d/e", "d/e/f", "l"] {
            assert_same(&found(back, path), &root.join(path));
        }
        assert_eq!(back.look(&way("x")), Ok(None));
        assert_eq!(back.look(&way("d/x")), Ok(None));
        assert_eq!(back.look(&way("x/y")), Err(Errno::ENOENT));
        assert_eq!(back.look(&way("d/e/f/g")), Err(Errno::ENOENT), "a file is no directory");
        for bad in ["..", "."] {
            assert_eq!(back.look(&[bad.into()]), Err(Errno::EINVAL));
        }
        assert_eq!(back.look(&[b"d/e".to_vec()]), Err(Errno::EINVAL));
    });
}

#[test]
fn looks_at_many_are_those_at_each() {
    on_each(|back, root| {
        fs::create_dir_all(root.join("d/sub")).unwrap();
        symlink("nowhere", root.join("d/l")).unwrap();
        // More than one thread takes.
        let mut names: Vec<Vec<u8>> = (0..200).map(|n| format!("f{n}").into_bytes()).collect();
        for name in &names {
            let path = root.join("d").join(OsStr::from_bytes(name));
            fs::write(&path, name).unwrap();
            rustix::fs::setxattr(&path, "user.name", name, XattrFlags::empty()).unwrap();
        }
        // One that is too long for a short buffer.
        rustix::fs::setxattr(root.join("d/f7"), "user.long", &[b'x'; 3000], XattrFlags::empty()).unwrap();
        names.extend([b"l".to_vec(), b"sub".to_vec(), b"none".to_vec()]);
        let way_of = |name: &Vec<u8>| vec![b"d".to_vec(), name.clone()];
        let looks = back.look_at(&way("d"), &names).unwrap();
        for (name, found) in names.iter().zip(&looks) {
            // The later look proves more.
            let proof = found.map(|found| found.seen.proof);
            let mut alone = back.look(&way_of(name)).unwrap();
            alone.iter_mut().for_each(|alone| alone.seen.proof = proof.unwrap());
            assert_eq!(*found, alone);
        }
        assert_eq!(looks[202], None);
        assert_eq!(back.look_at(&way("none"), &names), Err(Errno::ENOENT));
        assert_eq!(back.look_at(&way("d"), &[b"..".to_vec()]), Err(Errno::EINVAL));

        let kinds: Vec<_> = names
            .iter()
            .zip(looks)
            .map(|(name, found)| (name.clone(), found.map_or(FileKind::Regular, |found| found.seen.kind)))
            .collect();
        let details = back.details(&way("d"), &kinds).unwrap();
        for ((name, kind), detail) in kinds.iter().zip(&details) {
            let way = way_of(name);
            if *kind == FileKind::Symlink {
                assert_eq!(detail.as_ref().unwrap().target, back.readlink(&way).unwrap());
            } else {
                let xattrs = detail.as_ref().map(|detail| detail.xattrs.clone());
                assert_eq!(xattrs.map_err(|errno| *errno), back.xattrs(&way));
            }
        }
        assert_eq!(details[7].as_ref().unwrap().xattrs.len(), 2);
    });
}

#[test]
fn listings_are_whole_and_end_when_told() {
    on_each(|back, root| {
        fs::create_dir(root.join("d")).unwrap();
        // More than one batch, and more than one buffer of entries.
        for n in 0..3000 {
            fs::write(root.join(format!("d/{n:-<100}")), b"").unwrap();
        }
        fs::write(root.join("d/.onfs-way-2a"), b"").unwrap();
        let all = listed(back, "d").unwrap();
        assert_eq!(all.len(), 3001);
        assert_eq!(all[0].0, b".onfs-way-2a");
        for (name, found) in all.iter().step_by(100) {
            assert_same(found, &root.join("d").join(OsStr::from_bytes(name)));
        }
        for stop in [1, 255, 256, 257, 2999] {
            let mut seen = 0;
            let visit = &mut |_: &[u8], _: Found| {
                seen += 1;
                if seen == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            back.list(&way("d"), visit).unwrap();
            assert_eq!(seen, stop);
        }
        assert_eq!(names(back, "x"), Err(Errno::ENOENT));
        assert_eq!(names(back, "d/.onfs-way-2a"), Err(Errno::ENOENT));
        assert_eq!(names(back, "").unwrap(), ["d"]);
    });
}

#[test]
fn a_look_just_after_a_write_proves_nothing_until_times_are_older() {
    on_each(|back, root| {
        fs::write(root.join("new"), b"1").unwrap();
        assert_eq!(found(back, "new").seen.proof, Proof::Racy);
        let old = fs::File::open(root.join("new")).unwrap();
        old.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(found(back, "new").seen.proof, Proof::Firm);
        assert_eq!(listed(back, "").unwrap()[0].1.seen.proof, Proof::Firm);
    });
}

#[test]
fn the_root_is_known_again() {
    on_each(|back, root| {
        let Reachable::Yes { id, empty: true } = back.root() else { panic!("{:?}", back.root()) };
        assert_eq!(id.fileid, fs::metadata(root).unwrap().ino());
        fs::write(root.join("f"), b"").unwrap();
        assert_eq!(back.root(), Reachable::Yes { id, empty: false });
        let (free, all) = back.space().unwrap();
        assert!(free > 0 && free <= all, "{free} {all}");
    });
}

#[test]
fn every_kind_is_made_with_its_attributes() {
    if !is_root() {
        return;
    }
    on_each(|back, root| {
        let xattrs = vec![(b"user.colour".to_vec(), b"blue\0green".to_vec())];
        let kinds = [
            (FileKind::Directory, 0o2750, 0),
            (FileKind::Symlink, 0o777, 0),
            (FileKind::Fifo, 0o640, 0),
            (FileKind::Socket, 0o600, 0),
            (FileKind::CharDevice, 0o660, 0x10_0801),
            (FileKind::BlockDevice, 0o660, 0x801),
        ];
        for (kind, mode, rdev) in kinds {
            let name = format!("{kind:?}");
            let own: &[_] = if kind == FileKind::Directory { &xattrs } else { &[] };
            let with = Attributes { mode, uid: 12, gid: 34, atime: at(-5, 1), mtime: at(77, 8), xattrs: own };
            let what = Making { kind, rdev, target: b"to/\xff where", with: &with };
            let made = back.make(&way(&name), &what).unwrap();
            assert_same(&made, &root.join(&name));
            let seen = made.seen;
            assert_eq!((seen.kind, seen.mode, seen.uid, seen.gid), (kind, mode, 12, 34));
            assert_eq!((made.atime, seen.mtime), (at(-5, 1), at(77, 8)));
            assert_eq!((made.rdev, seen.proof), (rdev, Proof::Firm));
            assert_eq!(back.xattrs(&way(&name)).unwrap(), own);
            assert_eq!(back.make(&way(&name), &what), Err(Errno::EEXIST));
        }
        assert_eq!(back.readlink(&way("Symlink")).unwrap(), b"to/\xff where");
        assert_eq!(back.readlink(&way("Fifo")), Err(Errno::ENOENT));
        let what = Making { kind: FileKind::Regular, rdev: 0, target: b"", with: &plain(0) };
        assert_eq!(back.make(&way("r"), &what), Err(Errno::EINVAL));
        let what = Making { kind: FileKind::Directory, ..what };
        assert_eq!(back.make(&way("x/d"), &what), Err(Errno::ENOENT));
        assert_eq!(back.make(&way(""), &what), Err(Errno::EINVAL));
        // What cannot be had whole is not there at all.
        let bad = vec![(b"user.".to_vec(), b"no name".to_vec())];
        let what = Making { with: &Attributes { xattrs: &bad, ..plain(0o755) }, ..what };
        assert!(back.make(&way("half"), &what).is_err());
        assert_eq!(back.look(&way("half")), Ok(None));
    });
}

const ASIDE: &str = "d/.onfs-way-7";

#[test]
fn a_version_is_whole_or_gone() {
    if !is_root() {
        return;
    }
    on_each(|back, root| {
        fs::create_dir(root.join("d")).unwrap();
        let path = root.join(ASIDE);
        fs::write(&path, b"of an earlier try").unwrap();
        let mut version = back.begin_version(&way(ASIDE)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        version.write_at(b"world", 6).unwrap();
        version.write_at(b"hello ", 0).unwrap();
        version.set_len(13).unwrap();
        let xattrs = vec![(b"user.a".to_vec(), b"1".to_vec()), (b"trusted.b".to_vec(), b"".to_vec())];
        let to =
            Attributes { mode: 0o4751, uid: 5, gid: 6, atime: at(1, 2), mtime: at(3, 4), xattrs: &xattrs };
        let done = version.finish(&to).unwrap();
        assert_same(&done, &path);
        assert_eq!(fs::read(&path).unwrap(), b"hello world\0\0");
        assert_eq!((done.seen.mode, done.seen.uid, done.seen.gid), (0o4751, 5, 6));
        assert_eq!((done.atime, done.seen.mtime, done.seen.proof), (at(1, 2), at(3, 4), Proof::Firm));
        let mut got = back.xattrs(&way(ASIDE)).unwrap();
        got.sort();
        let trusted = xattrs[1..].iter().filter(|_| shows_trusted());
        assert_eq!(got, trusted.chain(&xattrs[..1]).cloned().collect::<Vec<_>>());

        fs::write(root.join("d/f"), b"theirs").unwrap();
        back.rename(&way(ASIDE), &way("d/f"), Over::Replace).unwrap();
        back.sync(&way("d")).unwrap();
        assert!(found(back, "d/f").seen.is_same_object(&done.seen));
    });
}

#[test]
fn a_version_that_is_given_up_takes_only_itself() {
    on_each(|back, root| {
        fs::create_dir(root.join("d")).unwrap();
        let path = root.join(ASIDE);
        let mut version = back.begin_version(&way(ASIDE)).unwrap();
        version.write_at(b"x", 0).unwrap();
        drop(version);
        wait_until(|| !path.exists());
        // Somebody puts another file there.
        let version = back.begin_version(&way(ASIDE)).unwrap();
        fs::write(root.join("other"), b"theirs").unwrap();
        fs::rename(root.join("other"), &path).unwrap();
        drop(version);
        // Behind a deadline it is given up later: after the next change of the same threads.
        let version = back.begin_version(&way("d/.onfs-way-8")).unwrap();
        drop(version);
        wait_until(|| !root.join("d/.onfs-way-8").exists());
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
        // What is no file stays, and so does what might be theirs.
        fs::create_dir(root.join(".onfs-way-9")).unwrap();
        assert_eq!(back.begin_version(&way(".onfs-way-9")).err(), Some(Errno::EEXIST));
        assert_eq!(back.begin_version(&way("other")).err(), Some(Errno::EINVAL));
        assert_eq!(back.begin_version(&way("x/.onfs-way-7")).err(), Some(Errno::ENOENT));
    });
}

/// Waits for what another thread does soon.
fn wait_until(done: impl Fn() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !done() {
        assert!(std::time::Instant::now() < until, "it does not come");
        std::thread::yield_now();
    }
}

#[test]
fn large_versions_arrive_whole() {
    on_each(|back, root| {
        let mut version = back.begin_version(&way(".onfs-way-1")).unwrap();
        let piece: Vec<u8> = (0..1_000_003u32).map(|n| (n * 7 / 5) as u8).collect();
        // More than is left unsynced.
        for n in 0..40 {
            version.write_at(&piece, n * piece.len() as u64).unwrap();
        }
        version.finish(&plain(0o644)).unwrap();
        let got = fs::read(root.join(".onfs-way-1")).unwrap();
        assert_eq!(got.len(), 40 * piece.len());
        assert!(got.chunks(piece.len()).all(|chunk| chunk == piece));
        let (source, _) = back.open(&way(".onfs-way-1")).unwrap();
        let mut all = vec![0; got.len() + 5];
        assert_eq!(source.read_at(&mut all, 0), Ok(got.len()));
        assert!(all[..got.len()] == got);
    });
}

#[test]
fn a_file_is_changed_in_place() {
    on_each(|back, root| {
        let path = root.join("f");
        fs::write(&path, b"old old old").unwrap();
        fs::hard_link(&path, root.join("g")).unwrap();
        let before = found(back, "f").seen;
        let mut version = back.begin_in_place(&way("f")).unwrap();
        version.write_at(b"new", 0).unwrap();
        version.set_len(5).unwrap();
        let done = version.finish(&plain(0o640)).unwrap();
        assert!(done.seen.is_same_object(&before));
        assert_same(&done, &path);
        assert_eq!((fs::read(root.join("g")).unwrap(), done.seen.mode), (b"new o".to_vec(), 0o640));
        drop(back.begin_in_place(&way("f")).unwrap());
        assert!(path.exists());
        fs::create_dir(root.join("d")).unwrap();
        symlink("f", root.join("l")).unwrap();
        assert_eq!(back.begin_in_place(&way("d")).err(), Some(Errno::EISDIR));
        assert_eq!(back.begin_in_place(&way("l")).err(), Some(Errno::ENOENT));
        assert_eq!(back.begin_in_place(&way("x")).err(), Some(Errno::ENOENT));
    });
}

#[test]
fn an_open_file_stays_what_it_was() {
    on_each(|back, root| {
        fs::write(root.join("f"), b"0123456789").unwrap();
        let (source, opened) = back.open(&way("f")).unwrap();
        assert_same(&opened, &root.join("f"));
        fs::write(root.join("g"), b"another").unwrap();
        fs::rename(root.join("g"), root.join("f")).unwrap();
        let mut buf = [0; 4];
        assert_eq!((source.read_at(&mut buf, 3), &buf), (Ok(4), b"3456"));
        assert_eq!((source.read_at(&mut buf, 8), &buf[..2]), (Ok(2), &b"89"[..]));
        assert_eq!(source.read_at(&mut buf, 10), Ok(0));
        assert_eq!(source.read_at(&mut [], 0), Ok(0));
        // It was just read, so it is in memory; a file system may be unable to tell.
        if let Some(length) = source.read_nowait(&mut buf, 2).unwrap() {
            assert_eq!((length, &buf), (4, b"2345"));
        }
        let now = source.look().unwrap().seen;
        assert!(now.is_same_object(&opened.seen) && now.nlink == 0);
        fs::create_dir(root.join("d")).unwrap();
        assert_eq!(back.open(&way("d")).err(), Some(Errno::EISDIR));
        assert_eq!(back.open(&way("x")).err(), Some(Errno::ENOENT));
        assert_eq!(back.open(&way("f/x")).err(), Some(Errno::ENOENT));
    });
}

#[test]
fn names_change_as_asked() {
    on_each(|back, root| {
        fs::create_dir_all(root.join("d/e")).unwrap();
        fs::write(root.join("a"), b"a").unwrap();
        fs::write(root.join("b"), b"b").unwrap();
        symlink("nowhere", root.join("l")).unwrap();
        let go = |from: &str, to: &str, over| back.rename(&way(from), &way(to), over);
        assert_eq!(go("a", "b", Over::Nothing), Err(Errno::EEXIST));
        assert_eq!(go("a", "l", Over::Nothing), Err(Errno::EEXIST));
        assert_eq!(go("a", "d/a", Over::Nothing), Ok(()));
        assert_eq!(go("d/a", "b", Over::Replace), Ok(()));
        assert_eq!(fs::read(root.join("b")).unwrap(), b"a");
        assert_eq!(go("b", "d", Over::Replace), Err(Errno::EISDIR));
        assert_eq!(go("d", "d/e/f", Over::Nothing), Err(Errno::EINVAL));
        assert_eq!(go("x", "y", Over::Nothing), Err(Errno::ENOENT));
        assert_eq!(go("b", "x/y", Over::Replace), Err(Errno::ENOENT));

        assert_eq!(back.link(&way("b"), &way("d/c")), Ok(()));
        assert_eq!(back.link(&way("b"), &way("l")), Err(Errno::EEXIST));
        assert_eq!(back.link(&way("l"), &way("m")), Ok(()));
        assert_eq!(fs::read_link(root.join("m")).unwrap(), Path::new("nowhere"));
        assert_eq!(found(back, "b").seen.nlink, 2);

        assert_eq!(back.rmdir(&way("d")), Err(Errno::ENOTEMPTY));
        assert_eq!(back.rmdir(&way("b")), Err(Errno::ENOTDIR));
        assert_eq!(back.rmdir(&way("d/e")), Ok(()));
        assert_eq!(back.unlink(&way("d")), Err(Errno::EISDIR));
        assert_eq!(back.unlink(&way("d/c")), Ok(()));
        assert_eq!(back.unlink(&way("d/c")), Err(Errno::ENOENT));
        assert_eq!(back.unlink(&[]), Err(Errno::EINVAL));
        assert_eq!(names(back, "d").unwrap(), [""; 0]);
        assert_eq!(back.sync(&way("d")), Ok(()));
        assert_eq!(back.sync(&[]), Ok(()));
        assert_eq!(back.sync(&way("x")), Err(Errno::ENOENT));
    });
}

#[test]
fn attributes_are_set_without_following() {
    if !is_root() {
        return;
    }
    on_each(|back, root| {
        let target = root.join("f");
        fs::write(&target, b"").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o644)).unwrap();
        symlink("f", root.join("l")).unwrap();
        let all = Attrs::OWNER.with(Attrs::MODE).with(Attrs::TIMES);
        let to = Attributes { mode: 0o6711, uid: 9, gid: 8, atime: at(5, 6), mtime: at(7, 8), xattrs: &[] };
        let before = fs::metadata(&target).unwrap();
        back.set_attributes(&way("l"), all, &to).unwrap();
        let after = fs::metadata(&target).unwrap();
        assert_eq!(
            (before.mode(), before.uid(), before.ctime_nsec()),
            (after.mode(), after.uid(), after.ctime_nsec())
        );
        let link = found(back, "l");
        assert_eq!((link.seen.uid, link.seen.gid, link.seen.mode), (9, 8, 0o777));
        assert_eq!((link.seen.mtime, link.atime), (at(7, 8), at(5, 6)));

        back.set_attributes(&way("f"), all, &to).unwrap();
        let file = found(back, "f");
        assert_eq!((file.seen.uid, file.seen.gid, file.seen.mode), (9, 8, 0o6711), "set-id bits survive");
        assert_eq!((file.seen.mtime, file.atime), (at(7, 8), at(5, 6)));
        // Only what is asked for.
        let to = Attributes { mode: 0o600, uid: 1, gid: 1, atime: at(1, 1), mtime: at(1, 1), xattrs: &[] };
        back.set_attributes(&way("f"), Attrs::MODE, &to).unwrap();
        let file = found(back, "f").seen;
        assert_eq!((file.uid, file.mode, file.mtime), (9, 0o600, at(7, 8)));
        back.set_attributes(&way("f"), Attrs::TIMES, &to).unwrap();
        assert_eq!((found(back, "f").seen.uid, found(back, "f").seen.mtime), (9, at(1, 1)));
        back.set_attributes(&[], Attrs::MODE, &plain(0o711)).unwrap();
        assert_eq!(fs::metadata(root).unwrap().mode() & 0o7777, 0o711);
        assert_eq!(back.set_attributes(&way("x"), Attrs::MODE, &to), Err(Errno::ENOENT));
    });
}

/// As the kernel keeps it: version 2; owner rwx, user 7 rw, group r, mask rw, others none.
const ACL: [u8; 44] = [
    2, 0, 0, 0, //
    1, 0, 7, 0, 255, 255, 255, 255, //
    2, 0, 6, 0, 7, 0, 0, 0, //
    4, 0, 4, 0, 255, 255, 255, 255, //
    16, 0, 6, 0, 255, 255, 255, 255, //
    32, 0, 0, 0, 255, 255, 255, 255, //
];

#[test]
fn extended_attributes_are_those_of_users() {
    if !is_root() {
        return;
    }
    on_each(|back, root| {
        let path = root.join("f");
        fs::write(&path, b"").unwrap();
        for name in ["user.onfs.tier", "user.b"] {
            rustix::fs::setxattr(&path, name, b"v", XattrFlags::empty()).unwrap();
        }
        let all = |name: &str| {
            let mut all = back.xattrs(&way(name)).unwrap();
            all.sort();
            all.into_iter().map(|(name, _)| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(all("f"), ["user.b"]);
        let long = vec![7; 3000];
        back.set_xattr(&way("f"), b"user.a", Some(&long)).unwrap();
        back.set_xattr(&way("f"), b"user.b", Some(b"")).unwrap();
        back.set_xattr(&way("f"), b"system.posix_acl_access", Some(&ACL)).unwrap();
        assert_eq!(all("f"), ["system.posix_acl_access", "user.a", "user.b"]);
        let values: BTreeMap<_, _> = back.xattrs(&way("f")).unwrap().into_iter().collect();
        assert_eq!((&values[&b"user.a"[..]], &values[&b"user.b"[..]]), (&long, &vec![]));
        assert_eq!(values[&b"system.posix_acl_access"[..]], ACL);
        for _ in 0..2 {
            back.set_xattr(&way("f"), b"user.a", None).unwrap();
        }
        assert_eq!(all("f"), ["system.posix_acl_access", "user.b"]);
        for name in [&b"user.onfs.tier"[..], b"security.selinux", b"system.other"] {
            assert_eq!(back.set_xattr(&way("f"), name, Some(b"x")), Err(Errno::EOPNOTSUPP));
        }
        // Of the link, not of what it leads to.
        symlink("f", root.join("l")).unwrap();
        let set = back.set_xattr(&way("l"), b"trusted.link", Some(b"x"));
        if shows_trusted() {
            assert_eq!((set, all("l")), (Ok(()), vec!["trusted.link".to_owned()]));
        } else {
            assert_eq!((set, all("l")), (Err(Errno::EOPNOTSUPP), vec![]));
        }
        assert_eq!(all("f"), ["system.posix_acl_access", "user.b"]);
        assert_eq!(back.xattrs(&way("x")), Err(Errno::ENOENT));
    });
}

#[test]
fn what_a_directory_hands_down_is_not_kept() {
    if !is_root() {
        return;
    }
    on_each(|back, root| {
        fs::create_dir(root.join("d")).unwrap();
        back.set_xattr(&way("d"), b"system.posix_acl_default", Some(&ACL)).unwrap();
        back.begin_version(&way(ASIDE)).unwrap().finish(&plain(0o640)).unwrap();
        let what = Making { kind: FileKind::Directory, rdev: 0, target: b"", with: &plain(0o750) };
        back.make(&way("d/e"), &what).unwrap();
        for (name, mode) in [(ASIDE, 0o640), ("d/e", 0o750)] {
            assert_eq!(back.xattrs(&way(name)).unwrap(), [], "{name}");
            assert_eq!(found(back, name).seen.mode, mode);
        }
        let xattrs = vec![(b"system.posix_acl_access".to_vec(), ACL.to_vec())];
        let with = Attributes { xattrs: &xattrs, ..plain(0o760) };
        back.begin_version(&way(ASIDE)).unwrap().finish(&with).unwrap();
        assert_eq!(back.xattrs(&way(ASIDE)).unwrap(), xattrs);
        assert_eq!(found(back, ASIDE).seen.mode, 0o760);
    });
}

/// A name of any bytes, and what has it: a directory with this many levels of the rest below it, a file of some length, a link.
type Node = (Vec<u8>, u8, u16);

fn nodes() -> impl Strategy<Value = Vec<(Vec<u8>, Node)>> {
    let byte = any::<u8>().prop_filter("no name", |b| *b != 0 && *b != b'/');
    let name = prop::collection::vec(byte, 1..20).prop_filter("dots", |n| n != b"." && n != b"..");
    let node = (name, 0u8..4, 0u16..5000);
    prop::collection::vec((prop::collection::vec(any::<u8>(), 0..4), node), 0..40)
}

/// Puts each node into one of the directories that are there already, chosen by `way`.
fn plant(root: &Path, nodes: &[(Vec<u8>, Node)]) {
    let mut dirs = vec![root.to_owned()];
    for (way, (name, kind, length)) in nodes {
        let nth = way.iter().map(|b| usize::from(*b)).sum::<usize>() % dirs.len();
        let path = dirs[nth].join(OsStr::from_bytes(name));
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match kind {
            0 => {
                fs::create_dir(&path).unwrap();
                dirs.push(path);
            }
            1 => symlink("..", &path).unwrap(),
            _ => fs::write(&path, vec![1; usize::from(*length)]).unwrap(),
        }
    }
}

/// All below a directory, by its way.
fn walk(back: &dyn BackEnd, way: &mut Vec<Vec<u8>>, into: &mut BTreeMap<Vec<Vec<u8>>, Found>) {
    let mut here = Vec::new();
    back.list(way, &mut |name, found| {
        here.push((name.to_vec(), found));
        ControlFlow::Continue(())
    })
    .unwrap();
    for (name, found) in here {
        way.push(name);
        assert!(into.insert(way.clone(), found).is_none(), "twice: {way:?}");
        if found.seen.kind == FileKind::Directory {
            walk(back, way, into);
        }
        way.pop();
    }
}

fn walk_std(path: &Path, way: &mut Vec<Vec<u8>>, into: &mut Vec<Vec<Vec<u8>>>) {
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        way.push(entry.file_name().into_vec());
        into.push(way.clone());
        if entry.file_type().unwrap().is_dir() {
            walk_std(&entry.path(), way, into);
        }
        way.pop();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees_are_listed_as_they_are(nodes in nodes()) {
        on_each(|back, root| {
            plant(root, &nodes);
            let (mut ours, mut theirs) = (BTreeMap::new(), Vec::new());
            walk(back, &mut Vec::new(), &mut ours);
            walk_std(root, &mut Vec::new(), &mut theirs);
            theirs.sort();
            assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.iter().collect::<Vec<_>>());
            for (way, found) in &ours {
                let path = way.iter().fold(root.to_owned(), |path, name| path.join(OsStr::from_bytes(name)));
                assert_same(found, &path);
                let looked = back.look(way).unwrap().unwrap();
                assert!(looked.seen.is_same_object(&found.seen));
            }
        });
    }
}
