//! Goal: the check sees damage, and repairs lead to a store in which it finds nothing. Method, in each test: plant one
//! kind of damage in a small tree, look for its finding, repair, check again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "a test")]

mod support;

use namespace::{
    Inode, InodeFlags, NewNode, Place, SetXattr,
    check::{self, Finding},
    dentry::Dentry,
    inode, key,
    policy::{self, DirPolicy},
    quota,
    txn::{Bytes, Txn},
    xattr,
};
use proptest::prelude::*;
use support::{Fs, USER, regular};
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
    let policy = DirPolicy { transient: Some(true), ..DirPolicy::default() };
    fs.run(|t, _| policy::set(t, dir, &policy)).unwrap();
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
fn a_purged_directory_takes_its_policy_and_quota_along() {
    let mut fs = Fs::new();
    let dir = fs.dir(Ino::ROOT, "dir");
    let policy = DirPolicy { transient: Some(false), ..DirPolicy::default() };
    fs.run(|t, _| policy::set(t, dir, &policy)).unwrap();
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Goal: whatever bytes are damaged, reading, checking and repairing neither panic nor loop. Method: change bytes of
    /// random records, drop some, then check, repair and use everything.
    #[test]
    fn damage_gives_errors_never_panics(
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..6)
    ) {
        let Tree { mut fs, dir, sub, .. } = tree();
        for (which, place, byte, how) in hits {
            let keys: Vec<_> = fs.store.0.keys().cloned().collect();
            let key = &keys[which.index(keys.len())];
            let mut value = fs.store.0[key].to_vec();
            match how {
                0 => _ = fs.store.0.remove(key),
                1 => {
                    value.truncate(place.index(value.len() + 1));
                    fs.store.put(key, value.into());
                }
                2 => {
                    let mut other = key.clone();
                    let at = place.index(other.len());
                    other[at] = byte;
                    fs.store.put(&other, value.into());
                }
                _ => {
                    if !value.is_empty() {
                        let at = place.index(value.len());
                        value[at] = byte;
                    }
                    fs.store.put(key, value.into());
                }
            }
        }
        for name in ["file", "sub", "link", "dir"] {
            for dir in [Ino::ROOT, dir, sub] {
                if let Ok(found) = fs.lookup(dir, name) {
                    let _ = namespace::readlink(&fs.store, found.attr.ino);
                    let _ = xattr::get(&fs.store, found.attr.ino, b"user.a");
                    let _ = namespace::readdir(&fs.store, found.attr.ino, 0, &mut |_| std::ops::ControlFlow::Continue(()));
                }
                let at = Place { dir, name: name.as_bytes() };
                let to = Place { dir: sub, name: b"to" };
                let _ = fs.run(|t, env| namespace::rename(t, env, at, to, namespace::RenameMode::Replace));
            }
        }
        for _ in 0..4 {
            let mut findings = Vec::new();
            let _ = check::check(&fs.store, &fs.env, &mut |f| findings.push(f));
            for finding in findings {
                let _ = fs.run(|t, env| check::repair(t, env, &finding));
            }
        }
    }
}
