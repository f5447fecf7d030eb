//! Directories whose entries are in hidden parts: what programs see is what they always saw.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod support;

use std::ops::ControlFlow;

use namespace::{
    DirEntry, Place, RenameMode, SetAttr, SetTime, SetXattr, Spread,
    check::{self, Finding},
    inode, key, orphan, parts,
    quota::{self, Limits},
    readdir::parts_after,
    setattr, striping,
    txn::{Bytes, Reader, Txn},
    xattr,
};
use support::{Fs, HASH_KEY, USER, at, refused, regular};
use types::{Errno, FileKind, Ino, ProjectId, S_ISGID};

const MANY: usize = 1000;
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

fn spread(fs: &mut Fs, dir: Ino, bits: u32) -> Spread {
    fs.run(|txn, env| {
        let over = parts::reserve(txn, bits)?;
        parts::spread(txn, env, dir, over, MANY)
    })
    .unwrap()
}

fn gather(fs: &mut Fs, dir: Ino) {
    fs.run(|txn, env| parts::gather(txn, env, dir, MANY)).unwrap();
}

fn set(fs: &mut Fs, dir: Ino, change: &SetAttr) -> types::Attr {
    fs.run(|txn, env| setattr::setattr(txn, env, dir, change)).unwrap().attr
}

/// Entries that are stored under a number.
fn stored(fs: &Fs, dir: Ino) -> usize {
    let mut n = 0;
    fs.store
        .scan(&key::dentry_from(dir, 0), &key::dentry_end(dir), &mut |_, _| {
            n += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    n
}

/// All, with dots and cookies, from a cookie on.
fn listed(fs: &Fs, dir: Ino, cookie: u64) -> Vec<(Vec<u8>, Ino, u64)> {
    let mut all = Vec::new();
    let damaged = namespace::readdir(&fs.store, dir, cookie, &mut |entry: DirEntry<'_>| {
        all.push((entry.name.to_vec(), entry.ino, entry.cookie));
        ControlFlow::Continue(())
    });
    assert_eq!(damaged, Ok(None));
    all
}

/// A directory with files and directories.
fn full(fs: &mut Fs, files: usize) -> Ino {
    let dir = fs.dir(Ino::ROOT, "hot");
    (0..files).for_each(|n| _ = fs.file(dir, &format!("f{n}")));
    (0..5).for_each(|n| _ = fs.dir(dir, &format!("d{n}")));
    dir
}

/// Goal: I-SPREAD-1, and nothing that a program sees changes by spreading and gathering: names, numbers, cookies, links, times of
/// change of entries. Method: a full directory before, spread and gathered again, listed from each cookie of before.
#[test]
fn programs_see_the_same_directory() {
    let mut fs = Fs::new();
    let dir = full(&mut fs, 60);
    let (attr, list) = (fs.attr(dir), listed(&fs, dir, 0));
    assert_eq!((attr.nlink, list.len()), (7, 67));
    let over = spread(&mut fs, dir, 3);
    assert_eq!(stored(&fs, dir), 0);
    assert!(over.parts().all(|part| stored(&fs, part) > 0));
    assert_eq!(over.parts().map(|part| stored(&fs, part)).sum::<usize>(), 65);
    for state in ["spread", "gathered"] {
        assert_eq!(listed(&fs, dir, 0), list, "{state}");
        for n in 0..list.len() {
            assert_eq!(listed(&fs, dir, list[n].2), list[n + 1..], "{state}: after {n}");
        }
        let now = fs.attr(dir);
        assert_eq!(
            (now.nlink, now.mtime, now.rdev, now.size),
            (attr.nlink, attr.mtime, 0, attr.size),
            "{state}"
        );
        assert_eq!(fs.lookup(dir, "f7").unwrap().attr.ino, list.iter().find(|one| one.0 == b"f7").unwrap().1);
        assert_eq!(fs.lookup(dir, "..").unwrap().attr.ino, Ino::ROOT);
        let below = fs.lookup(dir, "d3").unwrap().attr.ino;
        assert_eq!(fs.lookup(below, "..").unwrap().attr.ino, dir, "{state}");
        assert_eq!(fs.findings(), [], "{state}");
        if state == "spread" {
            gather(&mut fs, dir);
        }
    }
    assert!(over.parts().all(|part| inode::get(&fs.store, part).unwrap().is_none()));
    assert_eq!(stored(&fs, dir), 65);
}

/// Goal: the parts, asked by themselves, are the listing: what a client does that asks each one's server. Method: dots of the directory,
/// then each part from each cookie, against the whole.
#[test]
fn parts_one_after_the_other_are_the_listing() {
    let mut fs = Fs::new();
    let dir = full(&mut fs, 40);
    let over = spread(&mut fs, dir, 2);
    let all = listed(&fs, dir, 0);
    for cookie in all.iter().map(|one| one.2).chain([0]) {
        let mut got: Vec<_> = parts_after(over, cookie).flat_map(|part| listed(&fs, part, cookie)).collect();
        if cookie < 2 {
            got = listed(&fs, dir, cookie).into_iter().take(2 - cookie as usize).chain(got).collect();
        }
        assert_eq!(got, listed(&fs, dir, cookie), "after {cookie:x}");
    }
}

/// Goal: I-SPREAD-3: what is made in a part is as if it was made in the directory, also after that changed. Method: owner, set-gid, default ACL,
/// layouts and project set before and after the spreading; files and directories made by the directory's and by the part's number.
#[test]
fn what_is_made_inherits_from_the_directory() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "hot");
    fs.run(|txn, env| striping::set(txn, env, dir, Some(b"before"))).unwrap();
    let over = spread(&mut fs, dir, 2);
    let acl: &[u8] = &[
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 32, 0, 1, 0, 255, 255,
        255, 255,
    ];
    let made = |fs: &mut Fs, name: &str| {
        let part = over.part_of(&fs.env.names, name.as_bytes());
        let below = fs.mkdir_as(&USER, part, name.as_bytes(), 0o777).unwrap().ino;
        inode::load(&fs.store, below).unwrap()
    };
    let first = made(&mut fs, "first");
    assert_eq!((first.gid, first.mode, first.project), (100, 0o755, ProjectId::NONE));
    assert_eq!(first.parent, Some(dir), "I-SPREAD-2");
    assert!(first.flags.contains(inode::InodeFlags::STRIPING));

    let change = SetAttr { mode: Some(0o770 | S_ISGID), gid: Some(7), ..SetAttr::default() };
    let shown = set(&mut fs, dir, &change);
    assert_eq!((shown.mode, shown.gid, shown.nlink), (0o770 | S_ISGID, 7, 3));
    // Each change by itself: none does the work of another.
    fs.run(|txn, env| xattr::set(txn, env, dir, DEFAULT_ACL, acl, SetXattr::default())).unwrap();
    assert!(made(&mut fs, "acl").flags.contains(inode::InodeFlags::ACL_DEFAULT));
    fs.run(|txn, env| striping::set(txn, env, dir, None)).unwrap();
    assert!(!made(&mut fs, "striping").flags.contains(inode::InodeFlags::STRIPING));
    let project = ProjectId(4);
    fs.run(|txn, env| quota::assign(txn, env, dir, project)).unwrap();
    let second = made(&mut fs, "second");
    assert_eq!((second.gid, second.mode, second.project), (7, 0o751 | S_ISGID, project));
    assert!(second.flags.contains(inode::InodeFlags::ACL_DEFAULT));
    assert!(!second.flags.contains(inode::InodeFlags::STRIPING));
    let file = fs.file(dir, "file");
    let file = inode::load(&fs.store, file).unwrap();
    assert_eq!((file.gid, file.project, file.parent), (7, project, Some(dir)));
    assert_eq!(fs.findings(), []);

    fs.run(|txn, env| xattr::remove(txn, env, dir, DEFAULT_ACL)).unwrap();
    assert_eq!(made(&mut fs, "third").mode, 0o755 | S_ISGID);
    let unnamed = fs.fresh();
    fs.run(|txn, env| namespace::create_unnamed(txn, env, &USER, dir, 0o600, unnamed)).unwrap();
    fs.link(unnamed, dir, "named").unwrap();
    assert_eq!(namespace::parent(&fs.store, unnamed), Ok(dir));
    assert_eq!(fs.findings(), []);
}

/// Goal: who has enough of a listing is not called again. Method: a break at each entry.
#[test]
fn a_listing_ends_where_it_is_broken_off() {
    let mut fs = Fs::new();
    let dir = full(&mut fs, 20);
    spread(&mut fs, dir, 3);
    for most in 1..27 {
        let mut calls = 0;
        namespace::readdir(&fs.store, dir, 0, &mut |_| {
            calls += 1;
            if calls == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(calls, most);
    }
}

/// Goal: parts are not counted for a quota, and it holds in all of them. Method: a project with room for three inodes.
#[test]
fn parts_cost_no_quota() {
    let (mut fs, project) = (Fs::new(), ProjectId(9));
    let dir = fs.dir(Ino::ROOT, "hot");
    fs.run(|txn, _| quota::set_limits(txn, project, Limits { bytes: None, inodes: Some(3) })).unwrap();
    fs.run(|txn, env| quota::assign(txn, env, dir, project)).unwrap();
    spread(&mut fs, dir, 4);
    let used = |fs: &Fs| quota::get(&fs.store, project).unwrap().unwrap().inodes;
    assert_eq!(used(&fs), 1);
    (0..2).for_each(|n| _ = fs.file(dir, &format!("f{n}")));
    assert_eq!(fs.create_as(&USER, dir, b"more", &regular(0o644)), refused(Errno::EDQUOT));
    fs.unlink(dir, "f0").unwrap();
    gather(&mut fs, dir);
    assert_eq!((used(&fs), fs.findings()), (3, vec![]), "the unlinked one is not purged yet");
}

/// Goal: times of change move on with each entry, and can be set back, as of any directory. Method: entries that come and go in different parts.
#[test]
fn times_move_on_with_each_entry() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "hot");
    spread(&mut fs, dir, 3);
    for n in 0..20 {
        fs.file(dir, &format!("f{n}"));
        let attr = fs.attr(dir);
        assert_eq!((attr.mtime, attr.ctime), (fs.env.now, fs.env.now));
    }
    let back = SetAttr { mtime: Some(SetTime::At(at(5))), ..SetAttr::default() };
    let shown = set(&mut fs, dir, &back);
    assert_eq!((shown.mtime, shown.ctime), (at(5), fs.env.now));
    assert_eq!(fs.attr(dir).mtime, at(5));
    fs.unlink(dir, "f3").unwrap();
    assert_eq!(fs.attr(dir).mtime, fs.env.now);
    gather(&mut fs, dir);
    assert_eq!(fs.attr(dir).ctime, fs.env.now);
}

/// Goal: a directory is removed with its parts if all are empty, also by a rename over it, and leaves nothing. Method: the last entry in each part.
#[test]
fn a_directory_goes_with_its_parts() {
    let mut fs = Fs::new();
    let before = fs.store.0.len();
    for n in 0..12 {
        let dir = fs.dir(Ino::ROOT, "hot");
        let over = spread(&mut fs, dir, 2);
        let name = format!("f{n}");
        fs.file(dir, &name);
        assert_eq!(fs.rmdir(Ino::ROOT, "hot"), refused(Errno::ENOTEMPTY));
        fs.dir(Ino::ROOT, "other");
        let over_it = fs.rename((Ino::ROOT, "other"), (Ino::ROOT, "hot"), RenameMode::Replace);
        assert_eq!(over_it.err(), refused::<()>(Errno::ENOTEMPTY).err());
        let gone = fs.unlink(dir, &name).unwrap();
        if n % 2 == 0 {
            fs.rmdir(Ino::ROOT, "hot").unwrap();
            fs.rmdir(Ino::ROOT, "other").unwrap();
        } else {
            fs.rename((Ino::ROOT, "other"), (Ino::ROOT, "hot"), RenameMode::Replace).unwrap();
            fs.rmdir(Ino::ROOT, "hot").unwrap();
        }
        assert_eq!(fs.findings(), []);
        assert_eq!(fs.create_as(&USER, dir, b"late", &regular(0o644)), refused(Errno::ENOENT));
        let part = over.part_of(&fs.env.names, b"late");
        assert_eq!(fs.create_as(&USER, part, b"late", &regular(0o644)), refused(Errno::ESTALE));
        assert_eq!(fs.lookup(part, "late"), refused(Errno::ESTALE));
        assert_eq!(fs.names(dir, 3), []);
        fs.run(|txn, _| orphan::purge(txn, gone.ino)).unwrap();
    }
    for ino in (2..fs.next).filter_map(Ino::from_raw) {
        fs.run(|txn, _| orphan::purge(txn, ino)).unwrap();
    }
    // The allocator's record alone.
    assert_eq!(fs.store.0.len(), before + 1);
}

/// Goal: no directory comes to be within itself over parts, and moves between parts of one directory are moves within it. Method: each pair of
/// directories in a spread one that has a spread one below.
#[test]
fn renames_go_through_parts() {
    let mut fs = Fs::new();
    let top = fs.dir(Ino::ROOT, "top");
    spread(&mut fs, top, 3);
    let middle = fs.dir(top, "middle");
    spread(&mut fs, middle, 3);
    for n in 0..12 {
        let name = format!("n{n}");
        let below = fs.dir(middle, "below");
        for (from, to) in [
            ((Ino::ROOT, "top"), middle),
            ((Ino::ROOT, "top"), below),
            ((top, "middle"), below),
            ((top, "middle"), middle),
        ] {
            assert_eq!(fs.rename(from, (to, &name), RenameMode::Replace), refused(Errno::EINVAL));
        }
        fs.rename((middle, "below"), (middle, &name), RenameMode::Replace).unwrap();
        assert_eq!(fs.attr(middle).nlink, 3);
        fs.file(top, "file");
        fs.rename((top, "file"), (middle, &name), RenameMode::Exchange).unwrap();
        assert_eq!((fs.attr(middle).nlink, fs.attr(top).nlink), (2, 4));
        assert_eq!(fs.lookup(below, "..").unwrap().attr.ino, top);
        assert_eq!(fs.findings(), []);
        fs.rmdir(top, "file").unwrap();
        fs.unlink(middle, &name).unwrap();
    }
}

/// Goal: a move within a directory is one, whatever project its parts and the file have. Method: a file of another project, to names in each part.
#[test]
fn regression_a_move_between_parts_is_within_the_directory() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "hot");
    spread(&mut fs, dir, 3);
    let files = ["a", "b"].map(|name| fs.file(dir, name));
    fs.run(|txn, env| quota::assign(txn, env, dir, ProjectId(4))).unwrap();
    for n in 0..12 {
        let name = format!("n{n}");
        fs.rename((dir, "a"), (dir, &name), RenameMode::Replace).unwrap();
        fs.rename((dir, &name), (dir, "b"), RenameMode::Exchange).unwrap();
        fs.rename((dir, &name), (dir, "a"), RenameMode::Replace).unwrap();
        assert!(files.contains(&fs.lookup(dir, "a").unwrap().attr.ino));
    }
    assert_eq!(fs.findings(), []);
}

/// Goal: what cannot be spread is refused and stays as it was. Method: the root, a part, a file, a removed one, too many entries or parts; twice.
#[test]
fn what_cannot_be_spread_stays() {
    let mut fs = Fs::new();
    let dir = full(&mut fs, 5);
    let file = fs.lookup(dir, "f0").unwrap().attr.ino;
    let before = fs.store.0.clone();
    let refuse = |fs: &mut Fs, dir: Ino, bits: u32, most: usize, errno: Errno| {
        assert_eq!(
            fs.run(|txn, env| {
                let over = parts::reserve(txn, bits)?;
                parts::spread(txn, env, dir, over, most)
            })
            .err(),
            refused::<()>(errno).err()
        );
    };
    refuse(&mut fs, Ino::ROOT, 2, MANY, Errno::EINVAL);
    refuse(&mut fs, file, 2, MANY, Errno::ENOTDIR);
    refuse(&mut fs, dir, 0, MANY, Errno::EINVAL);
    refuse(&mut fs, dir, 7, MANY, Errno::EINVAL);
    refuse(&mut fs, dir, 2, 9, Errno::EFBIG);
    assert!(fs.store.0 == before);
    let over = fs
        .run(|txn, env| {
            let over = parts::reserve(txn, 2)?;
            parts::spread(txn, env, dir, over, 10)
        })
        .unwrap();
    assert_eq!(spread(&mut fs, dir, 2), over);
    refuse(&mut fs, dir, 3, MANY, Errno::EEXIST);
    let part = over.parts().next().unwrap();
    refuse(&mut fs, part, 2, MANY, Errno::EINVAL);
    assert_eq!(fs.run(|txn, env| parts::gather(txn, env, dir, 9)), refused(Errno::EFBIG));
    assert_eq!(fs.run(|txn, env| parts::gather(txn, env, part, 9)), refused(Errno::EINVAL));
    let mode = SetAttr { mode: Some(0), ..SetAttr::default() };
    assert_eq!(
        fs.run(|txn, env| setattr::setattr(txn, env, part, &mode)).err(),
        refused::<()>(Errno::EINVAL).err()
    );
    // A name where it does not belong.
    let wrong = over.parts().find(|part| *part != over.part_of(&fs.env.names, b"new")).unwrap();
    assert_eq!(fs.create_as(&USER, wrong, b"new", &regular(0o644)), refused(Errno::ESTALE));
    assert_eq!(fs.lookup(wrong, "new"), refused(Errno::ESTALE));
    assert_eq!(fs.findings(), []);
    // The numbers of UGSDs are used up.
    let other = fs.dir(Ino::ROOT, "other");
    let mut superblock = namespace::superblock::load(&fs.store).unwrap();
    superblock.next_ugsd = (1 << 24) - 3;
    namespace::superblock::store(&mut fs.store, &superblock);
    refuse(&mut fs, other, 2, MANY, Errno::ENOSPC);
}

/// What is found, and that repairing it leaves nothing to be found and all names.
fn repaired(mut fs: Fs, wanted: &[Finding], names: usize) {
    let found = fs.findings();
    assert!(wanted.iter().all(|one| found.contains(one)), "{found:?}");
    for _ in 0..9 {
        for finding in fs.findings() {
            fs.run(|txn, env| check::repair(txn, env, &finding)).unwrap();
        }
    }
    assert_eq!(fs.findings(), []);
    let hot = fs.lookup(Ino::ROOT, "hot").unwrap().attr.ino;
    let lost = fs.names(Ino::ROOT, 9).len() - 1;
    assert_eq!(fs.names(hot, 9).len() + lost, names);
}

/// Goal: the check finds what is wrong of parts, and nothing that has a name is lost by its repair. Method: each damage by itself.
#[test]
fn damage_is_found_and_put_right() {
    let whole = || {
        let mut fs = Fs::new();
        let dir = full(&mut fs, 30);
        let over = spread(&mut fs, dir, 2);
        (fs, dir, over)
    };
    // An entry in the directory itself, and one in another part.
    for itself in [true, false] {
        let (mut fs, dir, over) = whole();
        for name in [&b"f1"[..], b"d1"] {
            let right = over.part_of(&fs.env.names, name);
            let wrong = if itself { dir } else { over.parts().find(|part| *part != right).unwrap() };
            let hash = fs.env.names.hash(name);
            let record = fs.store.0.remove(&key::dentry(right, hash, name)[..]).unwrap();
            fs.store.put(&key::dentry(wrong, hash, name), record);
        }
        let right = over.part_of(&fs.env.names, b"f1");
        let wrong = if itself { dir } else { over.parts().find(|part| *part != right).unwrap() };
        repaired(fs, &[Finding::WrongPart { dir: wrong, name: b"f1".to_vec(), right }], 35);
    }
    // A part that is missing, with entries and without.
    let (mut fs, dir, over) = whole();
    let part = over.parts().nth(1).unwrap();
    fs.store.delete(&key::inode(part));
    repaired(fs, &[Finding::BadPart { dir, part }, Finding::Stray { ino: part }], 35);
    // One that says another owner, or has another default ACL.
    let (mut fs, dir, over) = whole();
    let part = over.parts().nth(2).unwrap();
    let record = inode::load(&fs.store, part).unwrap();
    inode::store(&mut fs.store, part, &inode::Inode { gid: 77, ..record });
    repaired(fs, &[Finding::BadPart { dir, part }], 35);
    let (mut fs, _, over) = whole();
    let part = over.parts().nth(2).unwrap();
    fs.store.put(&key::xattr(part, DEFAULT_ACL), Bytes::from_static(b"other"));
    fs.store.put(&key::stripes(part), Bytes::from_static(b"other"));
    let stored = inode::load(&fs.store, part).unwrap().flags;
    let counted = stored | inode::InodeFlags::ACL_DEFAULT | inode::InodeFlags::STRIPING;
    repaired(fs, &[Finding::WrongFlags { ino: part, stored, counted }], 35);
    // The directory is not known to be spread: its parts get names, with all that is in them.
    let (mut fs, dir, over) = whole();
    let record = inode::load(&fs.store, dir).unwrap();
    let flags = record.flags.difference(inode::InodeFlags::SPREAD);
    inode::store(&mut fs.store, dir, &inode::Inode { flags, rdev: 0, ..record });
    let stray: Vec<Finding> = over.parts().map(|ino| Finding::StrayPart { ino }).collect();
    repaired(fs, &stray, 4);
}

/// Goal: the record keeps its form. Method: golden bytes of a spread directory and a part; flags that do not go together.
#[test]
fn records_keep_their_form() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "hot");
    let over = spread(&mut fs, dir, 3);
    assert_eq!(over.first().get(), 1);
    let raw = fs.store.get(&key::inode(dir)).unwrap().unwrap();
    assert_eq!((&raw[4..8], &raw[20..24]), (&[0, 4, 0, 0][..], &[1, 0, 0, 3][..]));
    let part = over.parts().nth(5).unwrap();
    assert_eq!(part.get(), 6 << 40 | 1);
    let raw = fs.store.get(&key::inode(part)).unwrap().unwrap();
    assert_eq!((&raw[4..8], &raw[20..24]), (&[0, 8, 0, 0][..], &[1, 0, 0, 3][..]));
    for (at, byte) in [(5, 12), (23, 0), (23, 7), (1, 1)] {
        let mut bad = raw.to_vec();
        bad[at] = byte;
        assert!(inode::Inode::decode(&bad).is_none(), "byte {at} = {byte}");
    }
    assert_eq!(namespace::NameHasher::new(&HASH_KEY).hash(b"a"), fs.env.names.hash(b"a"));
    let found = namespace::find(&fs.store, &fs.env, dir).unwrap();
    assert_eq!((found.spread, found.attr.kind), (Some(over), FileKind::Directory));
    let _ = Place { dir, name: b"" };
}
