//! Goal: no stored bytes make a decoder panic, and each record has one encoding: what decodes encodes to the same bytes.
//! Method: [`fuzzing`] of every kind of record, of keys and of ACLs.

use std::time::Duration;

use fuzzing::{as_it_is, fuzz};
use types::{FileKind, Ino, ProjectId, Timestamp};

use crate::{
    acl::Acl,
    alloc,
    dentry::Dentry,
    inode::{Inode, InodeFlags},
    key,
    mode::{CloseSync, Mode},
    orphan::{Origin, Orphan},
    policy::{DirPolicy, Promote, WriteBehind},
    quota::{Limits, Quota},
    superblock::{Stored, Superblock},
    txn::Bytes,
    xattr,
};

/// What a decoder makes of bytes, encoded again; `None` when it refuses them.
type Round = fn(&[u8]) -> Option<Vec<u8>>;

const ROUNDS: [(&str, Round); 8] = [
    ("superblock", |bytes| match Superblock::decode(bytes)? {
        Stored::Here(superblock) => Some(superblock.encode().to_vec()),
        // Of another format only the head is known.
        Stored::OtherFormat { .. } => Some(bytes.to_vec()),
        Stored::Nothing => None,
    }),
    ("inode", |bytes| Inode::decode(bytes).map(|r| r.encode().to_vec())),
    ("dentry", |bytes| Dentry::decode(bytes).map(|r| r.encode().to_vec())),
    ("orphan", |bytes| Orphan::decode(bytes).map(|r| r.encode().to_vec())),
    ("allocator", |bytes| alloc::decode(bytes).map(|next| alloc::encode(next).to_vec())),
    ("quota", |bytes| Quota::decode(bytes).map(|r| r.encode().to_vec())),
    ("policy", |bytes| {
        let policy = DirPolicy::decode(bytes)?;
        let again = policy.encode();
        // What is of a former version is written as of this one, and says the same.
        let former = bytes[0] != again[0];
        assert!(!former || DirPolicy::decode(&again) == Some(policy));
        Some(if former { bytes.to_vec() } else { again.to_vec() })
    }),
    ("attribute", |bytes| {
        let value = xattr::decode(&Bytes::copy_from_slice(bytes))?;
        Some([&bytes[..1], &value[..]].concat())
    }),
];

/// A good record for each of [`ROUNDS`].
fn good() -> [Vec<u8>; 8] {
    let (ino, now) = (Ino::from_raw(0x0102_0304_0506).unwrap(), Timestamp { sec: 7, nsec: 8 });
    let superblock = Superblock {
        uuid: [1; 16],
        hash_key: [2; 16],
        epoch: 3,
        next_ugsd: 4,
        memory_generation: 5,
        created: now,
    };
    let inode = Inode {
        kind: FileKind::Directory,
        mode: 0o755,
        flags: InodeFlags::empty(),
        nlink: 2,
        uid: 1,
        gid: 2,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        parent: Some(ino),
        project: ProjectId::NONE,
        live_epoch: 0,
        memory_generation: 1,
    };
    let quota = Quota {
        limits: Limits { bytes: Some(1 << 30), inodes: None },
        bytes: 9,
        inodes: 10,
        dir: Some(ino),
        assigned: true,
    };
    let policy = DirPolicy {
        promote: Some(Promote::OnOpen),
        mode: Some(Mode::Hybrid),
        sync: Some(CloseSync::Forced),
        write_behind: Some(WriteBehind::After(Duration::from_secs(3))),
    };
    [
        superblock.encode().to_vec(),
        inode.encode().to_vec(),
        Dentry { ino, kind: FileKind::Regular }.encode().to_vec(),
        Orphan { origin: Origin::Unnamed, epoch: 3 }.encode().to_vec(),
        alloc::encode(4098).to_vec(),
        quota.encode().to_vec(),
        policy.encode().to_vec(),
        b"\x01value".to_vec(),
    ]
}

#[test]
fn good_records_come_back() {
    for ((name, round), bytes) in ROUNDS.into_iter().zip(good()) {
        assert_eq!(round(&bytes), Some(bytes), "{name}");
    }
}

/// What fuzzing once held against the record: it was one of the former version, which is written anew as of this one.
#[test]
fn regression_a_policy_of_the_first_version_is_read() {
    let former = b"\x01\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let (_, round) = ROUNDS[6];
    assert_eq!(round(former), Some(former.to_vec()));
    let policy = DirPolicy::decode(former).unwrap();
    assert_eq!(policy, DirPolicy { mode: Some(Mode::Local), ..DirPolicy::default() });
}

#[test]
fn fuzz_record() {
    for ((name, round), bytes) in ROUNDS.into_iter().zip(good()) {
        // Also spliced with a record of another kind.
        let others: Vec<_> = good().into_iter().filter(|other| *other != bytes).take(2).collect();
        let encodings: Vec<_> = std::iter::repeat_n(bytes, 6).chain(others).collect();
        fuzz(&format!("record-{name}"), &encodings, as_it_is, |bytes| {
            if let Some(again) = round(bytes) {
                assert_eq!(again, bytes);
            }
        });
    }
}

#[test]
fn fuzz_key() {
    let (ino, name) = (Ino::from_raw(0x0102_0304_0506).unwrap(), b"a name");
    let good = [
        key::inode(ino).to_vec(),
        key::dentry(ino, 0x1122_3344_5566_7788, name).to_vec(),
        key::xattr(ino, name).to_vec(),
        key::orphan(ino).to_vec(),
        key::quota(ProjectId(7)).to_vec(),
        key::pin(ino).to_vec(),
        key::link(ino).to_vec(),
        key::work(ino).to_vec(),
        key::conflict(7).to_vec(),
    ];
    fuzz("key", &good, as_it_is, |bytes| {
        let _ = (key::describe(bytes), key::ino_of(bytes));
        if let Some(parsed) = key::Parsed::new(bytes) {
            let _ = (parsed.dentry(), parsed.ugsd(), key::ino_of(parsed.rest));
            assert!(!parsed.is_linked() || parsed.ugsd().is_none());
        }
    });
}

/// An ACL that is taken is stored in its own form, which is taken again.
#[test]
fn fuzz_acl() {
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let small = [entry(1, 7, none), entry(4, 5, none), entry(0x20, 4, none)].concat();
    let named = [
        entry(1, 7, none),
        entry(2, 6, 1000),
        entry(2, 4, 1001),
        entry(4, 5, none),
        entry(8, 4, 100),
        entry(0x10, 7, none),
        entry(0x20, 0, none),
    ];
    let good = [small, named.concat()].map(|entries| [&2_u32.to_le_bytes()[..], &entries].concat());
    assert!(good.iter().all(|acl| matches!(Acl::parse(acl), Ok(Some(_)))));
    fuzz("acl", &good, as_it_is, |bytes| {
        if let Ok(Some(acl)) = Acl::parse(bytes) {
            assert_eq!(Acl::parse(&acl.encode()).ok().flatten(), Some(acl));
        }
    });
}
