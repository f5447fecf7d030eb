//! Goal: the check sees damage, and repairs lead to a store in which it finds nothing. Method, in each test: plant one
//! kind of damage in a small tree, look for its finding, repair, check again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod support;

use std::ops::ControlFlow;

use fuzzing::{as_it_is, fuzz_costly};
use namespace::{
    DirEntry, Inode, InodeFlags, Keep, NewNode, Place, RenameMode, SetAttr, SetXattr,
    check::{self, Finding},
    data,
    dentry::Dentry,
    inode, key,
    mode::Mode,
    orphan,
    policy::{self, DirPolicy},
    quota, striping, superblock,
    txn::{Bytes, Txn},
    xattr,
};
use support::{Fs, Store, USER, regular, theirs};
use types::{FileKind, Ino, ProjectId, TierId};

struct Tree {
    fs: Fs,
    dir: Ino,
    sub: Ino,
    file: Ino,
    link: Ino,
}

fn tree() -> Tree {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "dir");
    fs.run(|t, env| quota::assign(t, env, dir, ProjectId(4))).unwrap();
    let (sub, file) = (fs.dir(dir, "sub"), fs.file(dir, "file"));
    fs.file(sub, "deep");
    fs.link(file, sub, "again").unwrap();
    let node = NewNode { kind: FileKind::Symlink, target: Some(b"x"), ..regular(0) };
    let link = fs.create_as(&USER, dir, b"link", &node).unwrap().attr.ino;
    fs.run(|t, env| xattr::set(t, env, file, b"user.a", b"1", SetXattr::default())).unwrap();
    fs.file(dir, "orphan");
    fs.unlink(dir, "orphan").unwrap();
    assert_eq!(fs.findings(), []);
    Tree { fs, dir, sub, file, link }
}

fn edit(fs: &mut Fs, ino: Ino, change: impl FnOnce(&mut Inode)) {
    let mut record = inode::load(&fs.store, ino).unwrap();
    change(&mut record);
    inode::store(&mut fs.store, ino, &record);
}

fn entry_key(fs: &Fs, dir: Ino, name: &[u8]) -> key::Key {
    key::dentry(dir, fs.env.names.hash(name), name)
}

/// Repairs until nothing more can be; returns what is left.
fn repair(fs: &mut Fs) -> Vec<Finding> {
    for _ in 0..16 {
        let mut repaired = false;
        for finding in fs.findings() {
            repaired |= fs.run(|t, env| check::repair(t, env, &finding)).unwrap_or(false);
        }
        if !repaired {
            return fs.findings();
        }
    }
    panic!("repairs do not end: {:?}", fs.findings());
}

fn expect(mut fs: Fs, wanted: &[Finding]) {
    let found = fs.findings();
    for finding in wanted {
        assert!(found.contains(finding), "{finding:?} is not in {found:?}");
        assert!(!finding.to_string().is_empty());
    }
    assert_eq!(repair(&mut fs), []);
}

#[test]
fn a_dangling_entry_goes() {
    let Tree { mut fs, dir, file, .. } = tree();
    fs.store.delete(&key::inode(file));
    let name = b"file".to_vec();
    expect(fs, &[Finding::Dangling { dir, name, ino: file }, Finding::Stray { ino: file }]);
}

#[test]
fn a_lost_tree_gets_a_name() {
    let Tree { mut fs, dir, sub, .. } = tree();
    let key = entry_key(&fs, dir, b"sub");
    fs.store.delete(&key);
    assert!(fs.findings().contains(&Finding::Lost { ino: sub, kind: FileKind::Directory }));
    assert_eq!(repair(&mut fs), []);
    let name = format!("lost+found-{}", sub.get());
    let found = fs.lookup(Ino::ROOT, &name).unwrap().attr;
    assert_eq!((found.ino, found.nlink), (sub, 2));
    assert_eq!(fs.names(sub, 9).len(), 2);
}

#[test]
fn counts_and_kinds_are_put_right() {
    let Tree { mut fs, dir, file, sub, .. } = tree();
    edit(&mut fs, file, |i| i.nlink = 5);
    edit(&mut fs, dir, |i| i.nlink = 9);
    let key = entry_key(&fs, dir, b"sub");
    fs.store.put(&key, Dentry { ino: sub, kind: FileKind::Fifo }.encode());
    let wrong_kind = Finding::WrongKind { dir, name: b"sub".to_vec(), ino: sub, kind: FileKind::Directory };
    expect(
        fs,
        &[
            Finding::WrongLinks { ino: file, stored: 5, counted: 2 },
            Finding::WrongLinks { ino: dir, stored: 9, counted: 3 },
            wrong_kind,
        ],
    );
}

#[test]
fn orphan_records_are_put_right() {
    let Tree { mut fs, dir, .. } = tree();
    let orphan = Ino::from_raw(fs.next - 1).unwrap();
    fs.store.delete(&key::orphan(orphan));
    let record = namespace::orphan::Orphan { origin: namespace::orphan::Origin::Unlinked, epoch: 1 };
    fs.store.put(&key::orphan(dir), record.encode());
    expect(fs, &[Finding::NoOrphanRecord { ino: orphan }, Finding::NotOrphan { ino: dir }]);
}

#[test]
fn a_circle_of_directories_is_opened() {
    let Tree { mut fs, dir, sub, .. } = tree();
    let key = entry_key(&fs, Ino::ROOT, b"dir");
    fs.store.delete(&key);
    edit(&mut fs, Ino::ROOT, |i| i.nlink -= 1);
    let key = entry_key(&fs, sub, b"up");
    fs.store.put(&key, Dentry { ino: dir, kind: FileKind::Directory }.encode());
    edit(&mut fs, dir, |i| i.parent = Some(sub));
    edit(&mut fs, sub, |i| i.nlink += 1);
    assert!(fs.findings().contains(&Finding::Detached { ino: dir }));
    expect(fs, &[Finding::Detached { ino: sub }]);
}

#[test]
fn a_directory_in_two_places_stays_with_its_parent() {
    let Tree { mut fs, sub, dir, .. } = tree();
    let key = entry_key(&fs, Ino::ROOT, b"second");
    fs.store.put(&key, Dentry { ino: sub, kind: FileKind::Directory }.encode());
    let found = fs.findings();
    assert!(found.contains(&Finding::WrongParent { dir: Ino::ROOT, name: b"second".to_vec(), ino: sub }));
    assert_eq!(repair(&mut fs), []);
    assert_eq!(fs.lookup(dir, "sub").unwrap().attr.ino, sub);
    assert!(fs.lookup(Ino::ROOT, "second").is_err());
}

#[test]
fn pins_and_policies_are_of_inodes_that_exist() {
    let Tree { mut fs, dir, file, sub, .. } = tree();
    let policy = DirPolicy { mode: Some(Mode::Transient), ..DirPolicy::default() };
    fs.run(|t, _| policy::set(t, dir, &policy, false)).unwrap();
    fs.store.put(&key::pin(file), Bytes::from_static(&[TierId::Ssd as u8]));
    assert_eq!(fs.findings(), []);
    assert_eq!(policy::list(&fs.store).unwrap(), [(dir, policy)]);
    // Of inodes that are gone, or that cannot have one; a flag without a policy; damage.
    let gone = Ino::from_raw(file.get() + 1000).unwrap();
    fs.store.put(&key::pin(gone), Bytes::from_static(&[0]));
    fs.store.put(&key::policy(gone), policy.encode());
    fs.store.put(&key::policy(file), policy.encode());
    edit(&mut fs, sub, |i| i.flags |= InodeFlags::POLICY);
    let damaged = key::pin(sub);
    fs.store.put(&damaged, Bytes::from_static(&[9]));
    let flags = InodeFlags::POLICY;
    expect(
        fs,
        &[
            Finding::StrayPin { ino: gone },
            Finding::StrayPolicy { ino: gone },
            Finding::StrayPolicy { ino: file },
            Finding::WrongFlags { ino: sub, stored: flags, counted: InodeFlags::empty() },
            Finding::Damaged { key: damaged.to_vec() },
        ],
    );
}

#[test]
fn what_directories_say_of_layouts() {
    let Tree { mut fs, dir, sub, file, .. } = tree();
    fs.run(|t, env| striping::set(t, env, dir, Some(b"said"))).unwrap();
    let below = fs.dir(dir, "below");
    assert_eq!(striping::get(&fs.store, below).unwrap().unwrap(), &b"said"[..], "new ones get it");
    assert_eq!(striping::get(&fs.store, sub).unwrap(), None);
    assert!(striping::get(&fs.store, file).is_err(), "of directories alone");
    let long = [0; striping::RECORD_BYTES_MAX + 1];
    assert!(fs.run(|t, env| striping::set(t, env, sub, Some(&long))).is_err());
    assert_eq!(fs.findings(), []);
    fs.run(|t, env| striping::set(t, env, dir, None)).unwrap();
    assert_eq!(striping::get(&fs.store, dir).unwrap(), None);
    fs.rmdir(dir, "below").unwrap();
    fs.run(|t, _| orphan::purge(t, below)).unwrap();
    assert_eq!(fs.findings(), [], "it goes with its directory");
    // A flag without a record, and a record without its flag.
    edit(&mut fs, sub, |i| i.flags |= InodeFlags::STRIPING);
    fs.store.put(&key::stripes(dir), Bytes::from_static(b"said"));
    let flags = InodeFlags::STRIPING;
    expect(
        fs,
        &[
            Finding::WrongFlags { ino: dir, stored: InodeFlags::empty(), counted: flags },
            Finding::WrongFlags { ino: sub, stored: flags, counted: InodeFlags::empty() },
        ],
    );
}

#[test]
fn records_of_a_linked_directory_are_of_inodes_or_wait() {
    let Tree { mut fs, dir, file, link, .. } = tree();
    let gone = |n| Ino::from_raw(file.get() + n).unwrap();
    let any = Bytes::from_static(b"not ours");
    // Of what is there, of what is gone here alone, of what was never there.
    for ino in [file, gone(1000)] {
        fs.store.put(&key::link(ino), any.clone());
        fs.store.put(&key::work(ino), any.clone());
    }
    fs.store.put(&key::work(gone(1001)), any.clone());
    fs.store.put(&key::conflict(7), any.clone());
    edit(&mut fs, file, |i| i.flags |= InodeFlags::LINKED | InodeFlags::WRITTEN);
    let used = file.get() + 1001;
    let next = fs.next;
    assert_eq!(fs.findings(), [Finding::AllocatorBehind { ugsd: Ino::ROOT.ugsd(), next, used }]);
    assert_eq!(repair(&mut fs), [], "the numbers of what waits are not given out again");
    // A stray of an inode that is gone goes without what is remembered.
    fs.store.put(&key::symlink(gone(1000)), Bytes::from_static(b"\x01x"));
    fs.store.put(&key::xattr(gone(1000), b"user.a"), Bytes::from_static(b"\x01x"));
    fs.store.put(&key::inode(gone(900)), any.clone());
    fs.store.put(&key::link(gone(900)), any.clone());
    assert_eq!(
        fs.findings(),
        [Finding::Damaged { key: key::inode(gone(900)).to_vec() }, Finding::Stray { ino: gone(1000) }]
    );
    assert_eq!(repair(&mut fs).len(), 1, "a damaged inode stays, and keeps what is remembered of it");
    assert!(fs.store.0.contains_key(&key::link(gone(1000))[..]));
    assert!(fs.store.0.contains_key(&key::link(gone(900))[..]));
    fs.store.delete(&key::inode(gone(900)));
    fs.store.delete(&key::link(gone(900)));
    // Without a work; flags where they cannot be, or without the other; keys out of form.
    fs.store.put(&key::link(gone(999)), any.clone());
    edit(&mut fs, dir, |i| i.flags |= InodeFlags::LINKED);
    edit(&mut fs, link, |i| i.flags |= InodeFlags::LINKED);
    edit(&mut fs, file, |i| i.flags.remove(InodeFlags::WRITTEN));
    let longer = |key: &key::Key| [&**key, b"?"].concat();
    let bad = [longer(&key::link(file)), longer(&key::work(file)), longer(&key::conflict(1))];
    bad.iter().for_each(|key| fs.store.put(key, any.clone()));
    let flags = |ino, stored, counted| Finding::WrongFlags { ino, stored, counted };
    let (linked, with) = (InodeFlags::LINKED, InodeFlags::XATTR | InodeFlags::LINKED);
    let mut wanted = vec![
        Finding::StrayLink { ino: gone(999) },
        flags(dir, linked, InodeFlags::empty()),
        flags(link, linked, InodeFlags::empty()),
        flags(file, with, with | InodeFlags::WRITTEN),
    ];
    wanted.extend(bad.map(|key| Finding::Damaged { key }));
    expect(fs, &wanted);
}

#[test]
fn a_purged_directory_takes_its_policy_and_quota_along() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "dir");
    let policy = DirPolicy { mode: Some(Mode::Local), ..DirPolicy::default() };
    fs.run(|t, _| policy::set(t, dir, &policy, false)).unwrap();
    let limits = quota::Limits { bytes: Some(5), inodes: None };
    let (project, quota) = fs.run(|t, env| quota::begin(t, env, dir, |_| limits)).unwrap();
    assert_eq!((quota.inodes, quota.limits, quota.dir, quota.assigned), (1, limits, Some(dir), false));
    fs.run(|t, _| quota::set_assigned(t, project, true)).unwrap();
    // Again for the same directory: the same project.
    let again = fs.run(|t, env| quota::begin(t, env, dir, |old| old)).unwrap();
    assert_eq!(again, (project, quota::Quota { assigned: true, ..quota }));
    assert_eq!(fs.findings(), []);
    fs.run(|t, env| namespace::rmdir(t, env, Place { dir: Ino::ROOT, name: b"dir" })).unwrap();
    fs.run(|t, _| namespace::orphan::purge(t, dir)).unwrap();
    assert_eq!((policy::list(&fs.store).unwrap(), quota::list(&fs.store).unwrap()), (vec![], vec![]));
    assert_eq!(fs.findings(), []);
}

#[test]
fn the_place_of_a_file_is_a_hint() {
    let Tree { mut fs, file, .. } = tree();
    let gone = Ino::from_raw(file.get() + 1000).unwrap();
    for parent in [None, Some(gone), Some(file)] {
        edit(&mut fs, file, |i| i.parent = parent);
        assert_eq!(fs.findings(), []);
    }
}

#[test]
fn quotas_allocators_and_flags_are_put_right() {
    let Tree { mut fs, file, link, .. } = tree();
    let used = fs.next - 1;
    let before = quota::get(&fs.store, ProjectId(4)).unwrap().unwrap();
    fs.store.put(&key::quota(ProjectId(4)), quota::Quota { inodes: 1, bytes: 77, ..before }.encode());
    fs.store.delete(&key::allocator(Ino::ROOT.ugsd()));
    edit(&mut fs, file, |i| i.flags = InodeFlags::empty());
    fs.store.put(&key::symlink(file), Bytes::from_static(b"\x01x"));
    let delta = |bytes, inodes| quota::Delta { bytes, inodes };
    expect(
        fs,
        &[
            Finding::WrongUsage {
                project: ProjectId(4),
                stored: delta(77, 1),
                counted: delta(0, before.inodes as i64),
            },
            Finding::AllocatorBehind { ugsd: Ino::ROOT.ugsd(), next: 2, used },
            Finding::WrongFlags { ino: file, stored: InodeFlags::empty(), counted: InodeFlags::XATTR },
            Finding::WrongTarget { ino: file },
        ],
    );
    let Tree { mut fs, .. } = tree();
    fs.store.delete(&key::symlink(link));
    assert_eq!(repair(&mut fs), [Finding::WrongTarget { ino: link }]);
}

#[test]
fn a_misplaced_name_is_moved() {
    let Tree { mut fs, dir, file, .. } = tree();
    let key = entry_key(&fs, dir, b"file");
    fs.store.delete(&key);
    let entry = Dentry { ino: file, kind: FileKind::Regular };
    fs.store.put(&key::dentry(dir, 17, b"file"), entry.encode());
    assert_eq!(repair(&mut fs), []);
    assert_eq!(fs.lookup(dir, "file").unwrap().attr.ino, file);
}

#[test]
fn regression_damaged_entries_and_inodes_can_be_got_rid_of() {
    // Goal: a damaged entry hides no other, and a repair takes it away and names what it named; the name of a damaged inode
    // can be unlinked. Method: one entry and one inode damaged.
    let Tree { mut fs, dir, sub, link, .. } = tree();
    let key = entry_key(&fs, dir, b"sub");
    fs.store.put(&key, Bytes::from_static(b"?"));
    let mut names = Vec::new();
    let bad = namespace::readdir(&fs.store, dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        std::ops::ControlFlow::Continue(())
    });
    assert!(bad.unwrap().is_some());
    names.sort();
    assert_eq!(names, [&b"."[..], b"..", b"file", b"link"]);
    fs.store.put(&key::inode(link), Bytes::from_static(b"?"));
    assert!(fs.lookup(dir, "link").is_err());
    let at = Place { dir, name: b"link" };
    assert_eq!(namespace::lookup_damaged(&fs.store, &fs.env, at).unwrap(), Some((link, FileKind::Symlink)));
    let unlinked = fs.unlink(dir, "link").unwrap();
    assert_eq!((unlinked.ino, unlinked.nlink_left, unlinked.gone), (link, 1, None));
    assert_eq!(fs.lookup(dir, "link").err(), Some(namespace::Error::Errno(types::Errno::ENOENT)));
    let left = repair(&mut fs);
    assert_eq!(left, [Finding::Damaged { key: key::inode(link).to_vec() }], "nobody knows what it was");
    let named = format!("lost+found-{}", sub.get());
    assert_eq!(fs.lookup(Ino::ROOT, &named).unwrap().attr.ino, sub);
}

/// All records, one after the other: the lengths of key and value, then both.
fn image(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in &store.0 {
        bytes.extend([key.len() as u8, value.len() as u8]);
        bytes.extend(key);
        bytes.extend_from_slice(value);
    }
    bytes
}

/// As much as there is of it.
fn of_image(mut bytes: &[u8]) -> Store {
    let mut store = Store::default();
    while let Some(([key_len, value_len], rest)) = bytes.split_first_chunk() {
        let (key, rest) = rest.split_at(rest.len().min(usize::from(*key_len)));
        let (value, rest) = rest.split_at(rest.len().min(usize::from(*value_len)));
        store.put(key, Bytes::copy_from_slice(value));
        bytes = rest;
    }
    store
}

fn use_everything(fs: &mut Fs, dir: Ino, sub: Ino) {
    let skip = &mut |_: DirEntry<'_>| ControlFlow::Continue(());
    for name in ["file", "sub", "link", "dir", "deep", "again"] {
        for dir in [Ino::ROOT, dir, sub] {
            let at = Place { dir, name: name.as_bytes() };
            let to = Place { dir: sub, name: b"to" };
            if let Ok(found) = fs.lookup(dir, name) {
                let ino = found.attr.ino;
                let _ = namespace::readlink(&fs.store, ino);
                let _ = xattr::get(&fs.store, ino, b"user.a");
                let _ = xattr::list(&fs.store, ino, &mut |_| ());
                let _ = namespace::readdir(&fs.store, ino, 0, skip);
                let _ = fs.run(|t, env| xattr::set(t, env, ino, b"user.b", b"2", SetXattr::default()));
                let change = SetAttr { mode: Some(0o2750), uid: Some(5), ..SetAttr::default() };
                let _ = fs.run(|t, env| namespace::setattr(t, env, ino, &change));
                let _ = fs.run(|t, env| data::begin_write(t, env, ino));
                let _ = fs.run(|t, env| quota::assign(t, env, ino, ProjectId(9)));
                let _ = fs.run(|t, env| namespace::link(t, env, ino, to));
                let there = theirs(found.attr.kind, 9);
                let _ = fs.run(|t, env| namespace::refresh(t, env, ino, &there, Keep::empty()));
                let _ = fs.run(|t, env| namespace::refresh_stub(t, env, ino, &there, Keep::empty()));
                let _ = fs.run(|t, env| namespace::retarget(t, env, ino, b"x"));
                let _ =
                    fs.run(|t, _| namespace::import_xattrs(t, ino, &[(b"user.c".to_vec(), b"3".to_vec())]));
            }
            let new = Ino::from_raw(98).unwrap();
            let file = theirs(FileKind::Regular, 9);
            let _ = fs.run(|t, env| namespace::import(t, env, at, &file, b"", new));
            let _ = fs.run(|t, env| namespace::rename(t, env, at, to, RenameMode::Exchange));
            let _ = fs.run(|t, env| namespace::rename(t, env, at, to, RenameMode::Replace));
            let _ = fs.run(|t, env| namespace::mkdir(t, env, &USER, at, 0o755, Ino::from_raw(99).unwrap()));
            let _ = (fs.rmdir(dir, name), fs.unlink(dir, name));
        }
    }
    let _ = (quota::list(&fs.store), policy::list(&fs.store), superblock::read(&fs.store));
    let mut orphans = Vec::new();
    let _ = orphan::visit(&fs.store, Ino::ROOT.ugsd(), None, &mut |ino, _| {
        orphans.push(ino);
        ControlFlow::Continue(())
    });
    for ino in orphans {
        let _ = fs.run(|t, _| orphan::purge(t, ino));
    }
}

#[test]
fn regression_strays_of_the_last_number_go() {
    let Tree { mut fs, .. } = tree();
    let last = Ino::from_raw(u64::MAX).unwrap();
    fs.store.put(&key::symlink(last), Bytes::from_static(b"\x01x"));
    assert_eq!(fs.findings(), [Finding::Stray { ino: last }]);
    assert_eq!(repair(&mut fs), []);
}

/// Goal: whatever bytes of the records are damaged, using, checking and repairing neither panic nor loop. Method:
/// [`fuzzing`] of all records in one piece.
#[test]
fn fuzz_damaged_store() {
    let Tree { fs, dir, sub, .. } = tree();
    fuzz_costly("damaged-store", &[image(&fs.store)], as_it_is, |bytes| {
        let damaged = of_image(bytes);
        let begin = || Fs { store: damaged.clone(), env: fs.env, next: fs.next };
        use_everything(&mut begin(), dir, sub);
        let mut fs = begin();
        for _ in 0..4 {
            let mut findings = Vec::new();
            let _ = check::check(&fs.store, &fs.env, &mut |f| findings.push(f));
            for finding in findings {
                assert!(!finding.to_string().is_empty());
                let _ = fs.run(|t, env| check::repair(t, env, &finding));
            }
        }
        use_everything(&mut fs, dir, sub);
    });
}
