//! Goal: what a linked directory has is shown as it is there, whatever our rules for new inodes say, and what is ours stays
//! where that is asked. Method: each operation on a small tree, with every attribute different from what ours would be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod support;

use namespace::{
    DataState, Error, InodeFlags, Keep, Place, RenameMode, SetAttr, SetXattr, Theirs, acl, data, inode, key,
    orphan,
    quota::{self, Limits},
    txn::{Bytes, Reader, Txn},
    xattr,
};
use support::{Fs, at, refused, theirs};
use types::{Attr, Errno, FileKind, Ino, ProjectId};

/// Owner rwx, one named user, mask r-x, others nothing.
fn acl_of(user: u32) -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1u16, 7u16, none), (2, 6, user), (4, 4, none), (0x10, 5, none), (0x20, 0, none)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn import(fs: &mut Fs, dir: Ino, name: &str, theirs: &Theirs) -> namespace::Result<Attr> {
    let ino = fs.fresh();
    let at = Place { dir, name: name.as_bytes() };
    fs.run(|t, env| namespace::import(t, env, at, theirs, b"to/there", ino)).map(|found| found.attr)
}

fn list(fs: &Fs, ino: Ino) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = Vec::new();
    xattr::list(&fs.store, ino, &mut |name| names.push(name.to_vec())).unwrap();
    let value = |name: &[u8]| xattr::get(&fs.store, ino, name).unwrap().to_vec();
    names.into_iter().map(|name| (name.clone(), value(&name))).collect()
}

#[test]
fn imports_have_their_attributes_and_no_others() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "dir");
    let default = acl_of(5);
    fs.run(|t, env| xattr::set(t, env, dir, acl::DEFAULT, &default, SetXattr::default())).unwrap();
    let change = SetAttr { mode: Some(0o2777), ..SetAttr::default() };
    fs.run(|t, env| namespace::setattr(t, env, dir, &change)).unwrap();
    let before = fs.attr(dir);
    for (kind, name) in [
        (FileKind::Regular, "file"),
        (FileKind::Directory, "sub"),
        (FileKind::Symlink, "link"),
        (FileKind::Fifo, "fifo"),
        (FileKind::CharDevice, "device"),
    ] {
        let found = theirs(kind, 4711);
        let attr = import(&mut fs, dir, name, &found).unwrap();
        assert_eq!(fs.lookup(dir, name).unwrap().attr, attr);
        let (size, blocks) = match kind {
            FileKind::Regular => (4711, found.blocks),
            FileKind::Symlink => (8, 0),
            _ => (0, 0),
        };
        let wanted = Attr {
            ino: attr.ino,
            kind,
            mode: if kind == FileKind::Symlink { 0o777 } else { 0o2640 },
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: 7,
            gid: 8,
            rdev: if kind == FileKind::CharDevice { 0x0501 } else { 0 },
            size,
            blocks,
            atime: at(101),
            mtime: at(102),
            ctime: at(103),
            btime: at(100),
            project: ProjectId::NONE,
        };
        assert_eq!(attr, wanted);
        assert_eq!(list(&fs, attr.ino), []);
    }
    assert_eq!(fs.attr(dir), Attr { nlink: 3, ..before }, "its times are theirs to say");
    let link = fs.lookup(dir, "link").unwrap().attr.ino;
    assert_eq!(&namespace::readlink(&fs.store, link).unwrap()[..], b"to/there");
    let unborn = import(&mut fs, dir, "unborn", &Theirs { btime: None, ..theirs(FileKind::Regular, 0) });
    assert_eq!(unborn.unwrap().btime, at(103));
    assert_eq!(fs.findings(), []);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut fs = Fs::new();
    let (dir, file) = (fs.dir(Ino::ROOT, "dir"), theirs(FileKind::Regular, 1));
    import(&mut fs, dir, "taken", &file).unwrap();
    let before = fs.store.0.clone();
    let mut time = at(1);
    time.nsec = 1_000_000_000;
    let long = "x".repeat(256);
    for (name, theirs, errno) in [
        ("taken", theirs(FileKind::Directory, 0), Errno::EEXIST),
        ("", file, Errno::ENOENT),
        ("a/b", file, Errno::EINVAL),
        (&long, file, Errno::ENAMETOOLONG),
        ("time", Theirs { mtime: time, ..file }, Errno::EINVAL),
        ("birth", Theirs { btime: Some(time), ..file }, Errno::EINVAL),
        ("size", Theirs { size: u64::MAX, ..file }, Errno::EFBIG),
    ] {
        // The same transaction goes on after it, so nothing may be in it.
        let ino = Ino::from_raw(9999).unwrap();
        let place = Place { dir, name: name.as_bytes() };
        let got = namespace::import(&mut fs.store, &fs.env, place, &theirs, b"", ino);
        assert_eq!(got, refused(errno), "{name}");
        assert_eq!(fs.store.0, before, "{name}");
    }
    let place = Place { dir, name: b"link" };
    let (link, ino) = (theirs(FileKind::Symlink, 0), Ino::from_raw(9999).unwrap());
    for target in [&b""[..], b"a\0b", &[b'x'; 4096]] {
        assert!(namespace::import(&mut fs.store, &fs.env, place, &link, target, ino).is_err());
    }
    assert_eq!(fs.store.0, before);
    let under_a_file = fs.lookup(dir, "taken").unwrap().attr.ino;
    assert_eq!(import(&mut fs, under_a_file, "a", &file), refused(Errno::ENOTDIR));
}

#[test]
fn a_stub_is_linked_and_an_empty_file_is_not() {
    let mut fs = Fs::new();
    let file = import(&mut fs, Ino::ROOT, "file", &theirs(FileKind::Regular, 1)).unwrap().ino;
    let empty = import(&mut fs, Ino::ROOT, "empty", &theirs(FileKind::Regular, 0)).unwrap().ino;
    let stub = DataState { linked: true, written: true, ..DataState::default() };
    assert_eq!(fs.lookup(Ino::ROOT, "file").unwrap().data, stub);
    assert_eq!(fs.lookup(Ino::ROOT, "empty").unwrap().data, DataState::default());
    // There may be copies of a stub, so it is not gone before the data server was asked.
    let closed = |_| false;
    let unlink = |name: &'static [u8]| Place { dir: Ino::ROOT, name };
    assert_eq!(fs.run(|t, env| namespace::unlink(t, env, unlink(b"file"), &closed)).unwrap().gone, None);
    assert!(fs.run(|t, env| namespace::unlink(t, env, unlink(b"empty"), &closed)).unwrap().gone.is_some());
    assert_eq!(fs.findings(), []);
    fs.run(|t, _| orphan::purge(t, file)).unwrap();
    for ino in [file, empty] {
        assert_eq!(namespace::find(&fs.store, &fs.env, ino), refused(Errno::ESTALE));
    }
    assert_eq!(fs.findings(), []);
}

#[test]
fn quotas_count_imports_and_refuse_none() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "dir");
    let limits = Limits { bytes: Some(100), inodes: Some(2) };
    let (project, _) = fs.run(|t, env| quota::begin(t, env, dir, |_| limits)).unwrap();
    let a = import(&mut fs, dir, "a", &theirs(FileKind::Regular, 90)).unwrap();
    let b = import(&mut fs, dir, "b", &theirs(FileKind::Regular, 90)).unwrap();
    import(&mut fs, dir, "sub", &theirs(FileKind::Directory, 90)).unwrap();
    import(&mut fs, dir, "link", &theirs(FileKind::Symlink, 0)).unwrap();
    assert_eq!((a.project, b.project), (project, project));
    let used = |fs: &Fs| {
        let quota = quota::get(&fs.store, project).unwrap().unwrap();
        (quota.bytes, quota.inodes)
    };
    assert_eq!(used(&fs), (180, 5));
    let grown = theirs(FileKind::Regular, 1000);
    fs.run(|t, env| namespace::refresh(t, env, a.ino, &grown, Keep::empty())).unwrap();
    fs.run(|t, env| namespace::refresh_stub(t, env, b.ino, &theirs(FileKind::Regular, 3), Keep::empty()))
        .unwrap();
    assert_eq!(used(&fs), (1003, 5));
    fs.run(|t, env| namespace::refresh_stub(t, env, a.ino, &theirs(FileKind::Regular, 9), Keep::SIZE))
        .unwrap();
    assert_eq!(used(&fs), (1003, 5));
    assert_eq!(fs.findings(), []);
}

#[test]
fn a_refresh_takes_over_what_is_not_kept() {
    let mut fs = Fs::new();
    let ino = fs.file(Ino::ROOT, "file");
    let before = fs.attr(ino);
    let there = Theirs { btime: None, ..theirs(FileKind::Regular, 10) };
    let refresh =
        |fs: &mut Fs, keep| fs.run(|t, env| namespace::refresh(t, env, ino, &there, keep)).unwrap().attr;
    let all = Keep::all();
    let ctime = at(103);
    assert_eq!(refresh(&mut fs, all), Attr { ctime, ..before }, "the change time is never kept");
    let mode = Attr { mode: 0o2640, ctime: fs.attr(ino).ctime, ..before };
    let got = refresh(&mut fs, all - Keep::MODE);
    assert_eq!(got, Attr { ctime: got.ctime, ..mode });
    let got = refresh(&mut fs, all - Keep::OWNER);
    assert_eq!((got.uid, got.gid, got.size, got.mtime), (7, 8, 0, before.mtime));
    let got = refresh(&mut fs, all - Keep::TIMES);
    assert_eq!((got.atime, got.mtime, got.size, got.btime), (at(101), at(102), 0, before.btime));
    let got = refresh(&mut fs, all - Keep::SIZE);
    assert_eq!((got.size, got.blocks), (10, there.blocks));
    // Each of these came later than theirs, and was seen.
    fs.env.now = at(200);
    let larger = Theirs { size: 11, ..there };
    let got = fs.run(|t, env| namespace::refresh(t, env, ino, &larger, Keep::empty())).unwrap().attr;
    assert_eq!((got.size, got.ctime), (11, at(201)));
    // What changes nothing that is seen leaves no trace.
    let store = fs.store.0.clone();
    assert_eq!(fs.run(|t, env| namespace::refresh(t, env, ino, &larger, Keep::empty())).unwrap().attr, got);
    assert_eq!(fs.store.0, store);
    let read = Theirs { atime: at(150), ..larger };
    let got = fs.run(|t, env| namespace::refresh(t, env, ino, &read, Keep::empty())).unwrap().attr;
    assert_eq!((got.atime, got.ctime), (at(150), at(201)));
    let dir = fs.dir(Ino::ROOT, "dir");
    let wrong = fs.run(|t, env| namespace::refresh(t, env, dir, &there, Keep::empty()));
    assert_eq!(wrong, refused(Errno::EINVAL));
    let found =
        fs.run(|t, env| namespace::refresh(t, env, dir, &theirs(FileKind::Directory, 77), Keep::empty()));
    let attr = found.unwrap().attr;
    assert_eq!((attr.size, attr.blocks, attr.nlink, attr.mode), (0, 0, 2, 0o2640));
    assert_eq!(fs.findings(), []);
}

#[test]
fn an_acl_follows_a_refreshed_mode() {
    let mut fs = Fs::new();
    let ino = fs.file(Ino::ROOT, "file");
    fs.run(|t, env| xattr::set(t, env, ino, acl::ACCESS, &acl_of(5), SetXattr::default())).unwrap();
    assert_eq!(fs.attr(ino).mode, 0o750);
    let there = Theirs { mode: 0o4511, ..theirs(FileKind::Regular, 0) };
    let attr = fs.run(|t, env| namespace::refresh(t, env, ino, &there, Keep::empty())).unwrap().attr;
    assert_eq!(attr.mode, 0o4511);
    assert_eq!(list(&fs, ino).len(), 1);
    assert_eq!(fs.findings(), []);
}

#[test]
fn a_refreshed_stub_has_no_object() {
    let mut fs = Fs::new();
    let (ino, other) = (fs.file(Ino::ROOT, "file"), fs.file(Ino::ROOT, "other"));
    for ino in [ino, other] {
        fs.run(|t, env| data::begin_write(t, env, ino)).unwrap();
        for chunk in [&[][..], &[0, 0, 0, 1], &[0xff; 4]] {
            fs.store.put(&[&key::object(ino), chunk].concat(), Bytes::from_static(b"?"));
        }
    }
    let objects = |fs: &Fs, ino: Ino| {
        let mut n = 0;
        fs.store
            .scan(&key::object(ino), &key::object_end(ino), &mut |_, _| {
                n += 1;
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        n
    };
    let stub = |fs: &mut Fs, size| {
        let there = theirs(FileKind::Regular, size);
        fs.run(|t, env| namespace::refresh_stub(t, env, ino, &there, Keep::empty())).unwrap()
    };
    let found = stub(&mut fs, 100);
    let data = DataState { written: true, linked: true, memory_generation: 1, ..DataState::default() };
    assert_eq!((found.attr.size, found.data), (100, data));
    assert_eq!((objects(&fs, ino), objects(&fs, other)), (0, 3));
    // Of an empty one nothing has to be fetched; copies that were may still have to go.
    assert_eq!(stub(&mut fs, 0).data, DataState { linked: false, ..data });
    let link = import(&mut fs, Ino::ROOT, "link", &theirs(FileKind::Symlink, 0)).unwrap().ino;
    let got =
        fs.run(|t, env| namespace::refresh_stub(t, env, link, &theirs(FileKind::Symlink, 0), Keep::empty()));
    assert_eq!(got, refused(Errno::EINVAL));
    assert_eq!(fs.findings(), []);
}

#[test]
fn a_published_file_is_linked() {
    let mut fs = Fs::new();
    let ino = fs.file(Ino::ROOT, "file");
    let attr = fs.attr(ino);
    let state = |fs: &Fs| fs.lookup(Ino::ROOT, "file").unwrap().data;
    fs.run(|t, _| namespace::set_linked(t, ino, false)).unwrap();
    assert_eq!(state(&fs), DataState::default());
    fs.run(|t, _| namespace::set_linked(t, ino, true)).unwrap();
    let linked = DataState { written: true, linked: true, ..DataState::default() };
    assert_eq!((state(&fs), fs.attr(ino)), (linked, attr), "nothing that programs see");
    assert_eq!(fs.findings(), []);
    fs.run(|t, _| namespace::set_linked(t, ino, false)).unwrap();
    assert_eq!(state(&fs), DataState { linked: false, ..linked });
    assert_eq!(fs.run(|t, _| namespace::set_linked(t, Ino::ROOT, true)), refused(Errno::EINVAL));
    assert_eq!(fs.findings(), []);
}

#[test]
fn a_link_gets_another_target() {
    let mut fs = Fs::new();
    let link = import(&mut fs, Ino::ROOT, "link", &theirs(FileKind::Symlink, 0)).unwrap();
    let same = fs.run(|t, env| namespace::retarget(t, env, link.ino, b"to/there")).unwrap();
    assert_eq!(same.attr, link);
    fs.env.now = at(300);
    let found = fs.run(|t, env| namespace::retarget(t, env, link.ino, b"elsewhere")).unwrap();
    assert_eq!(found.attr, Attr { size: 9, ctime: at(301), ..link });
    assert_eq!(&namespace::readlink(&fs.store, link.ino).unwrap()[..], b"elsewhere");
    assert_eq!(fs.run(|t, env| namespace::retarget(t, env, link.ino, b"")), refused(Errno::ENOENT));
    assert_eq!(fs.run(|t, env| namespace::retarget(t, env, Ino::ROOT, b"a")), refused(Errno::EINVAL));
    assert_eq!(fs.findings(), []);
}

#[test]
fn attributes_are_replaced_by_theirs() {
    let mut fs = Fs::new();
    let ino = fs.file(Ino::ROOT, "file");
    let set = |fs: &mut Fs, list: &[(&[u8], &[u8])]| {
        let list: Vec<_> = list.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        fs.run(|t, _| namespace::import_xattrs(t, ino, &list)).unwrap()
    };
    fs.run(|t, env| xattr::set(t, env, ino, b"user.old", b"1", SetXattr::default())).unwrap();
    let times = fs.attr(ino);
    let access = acl_of(5);
    assert_eq!(set(&mut fs, &[(b"user.b", b"2"), (acl::ACCESS, &access), (b"security.a", b"")]), 0);
    let pairs = |fs: &Fs| list(fs, ino);
    assert_eq!(
        pairs(&fs),
        [
            (b"security.a".to_vec(), vec![]),
            (acl::ACCESS.to_vec(), access.clone()),
            (b"user.b".to_vec(), b"2".to_vec())
        ]
    );
    assert_eq!(
        fs.attr(ino),
        Attr { mode: 0o750, ..times },
        "the mode says what the ACL says, and no time changed"
    );
    assert_eq!(fs.findings(), []);
    let before = fs.store.0.clone();
    set(&mut fs, &[(b"security.a", b""), (acl::ACCESS, &access), (b"user.b", b"2")]);
    assert_eq!(fs.store.0, before);
    // What we do not have, or cannot be, is left out and counted.
    let large = vec![0; 65537];
    let odd: &[(&[u8], &[u8])] = &[
        (b"user.onfs.state", b""),
        (b"lustre.lov", b"x"),
        (b"user.", b"x"),
        (b"user.large", &large),
        (acl::DEFAULT, &access),
        (acl::ACCESS, b"?"),
        (b"user.good", b"x"),
    ];
    assert_eq!(set(&mut fs, odd), 6);
    assert_eq!(pairs(&fs), [(b"user.good".to_vec(), b"x".to_vec())]);
    assert_eq!(inode::load(&fs.store, ino).unwrap().flags, InodeFlags::XATTR);
    let many: Vec<_> = (0..40).map(|n| (format!("user.{n}").into_bytes(), vec![0; 60_000])).collect();
    let left = fs.run(|t, _| namespace::import_xattrs(t, ino, &many)).unwrap();
    assert_eq!((pairs(&fs).len(), left), (17, 23), "one MiB");
    assert_eq!(set(&mut fs, &[]), 0);
    assert_eq!((pairs(&fs), inode::load(&fs.store, ino).unwrap().flags), (vec![], InodeFlags::empty()));
    assert_eq!(
        fs.run(|t, _| namespace::import_xattrs(t, Ino::from_raw(99).unwrap(), &[])),
        refused(Errno::ESTALE)
    );
    let dir = fs.dir(Ino::ROOT, "dir");
    let list = [(acl::DEFAULT.to_vec(), access)];
    assert_eq!(fs.run(|t, _| namespace::import_xattrs(t, dir, &list)).unwrap(), 0);
    assert_eq!(fs.findings(), []);
}

/// Goal: what they did with names runs in one transaction with imports. Method: a rename over something, an exchange, a link,
/// a removal and an import, of what was imported in the same transaction.
#[test]
fn names_change_in_one_transaction() {
    let mut fs = Fs::new();
    let [dir, a, b, c] = [(); 4].map(|()| fs.fresh());
    let at = |name: &'static str| Place { dir, name: name.as_bytes() };
    fs.run(|t, env| {
        let (folder, file) = (theirs(FileKind::Directory, 0), theirs(FileKind::Regular, 5));
        namespace::import(t, env, Place { dir: Ino::ROOT, name: b"dir" }, &folder, b"", dir)?;
        for (name, ino) in [("a", a), ("b", b), ("c", c)] {
            namespace::import(t, env, at(name), &file, b"", ino)?;
        }
        assert_eq!(namespace::import(t, env, at("a"), &file, b"", c), Err(Error::Errno(Errno::EEXIST)));
        namespace::rename(t, env, at("a"), at("b"), RenameMode::Replace)?;
        namespace::rename(t, env, at("b"), at("c"), RenameMode::Exchange)?;
        namespace::link(t, env, a, at("d"))?;
        namespace::unlink(t, env, at("b"), &|_| false)?;
        namespace::refresh(t, env, dir, &folder, Keep::empty())
    })
    .unwrap();
    assert_eq!(
        fs.names(dir, 9).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        [(b"c".to_vec(), a), (b"d".to_vec(), a)].into()
    );
    let (attr, times) = (fs.attr(dir), theirs(FileKind::Directory, 0));
    assert_eq!((attr.atime, attr.mtime), (times.atime, times.mtime));
    assert_eq!(fs.findings(), []);
}
