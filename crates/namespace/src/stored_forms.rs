//! Goal: no stored bytes make a decoder panic, and each record has one encoding: what decodes encodes to the same bytes.
//! Method: for every record, random bytes, and a good record with random damage (changed, cut, lengthened bytes).

use std::time::Duration;

use proptest::{prelude::*, sample::Index};
use types::{FileKind, Ino, ProjectId, Timestamp};

use crate::{
    acl::Acl,
    alloc,
    dentry::Dentry,
    inode::{Inode, InodeFlags},
    key,
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
    ("policy", |bytes| DirPolicy::decode(bytes).map(|r| r.encode().to_vec())),
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
        transient: Some(false),
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

#[derive(Clone, Debug)]
enum Damage {
    Byte(Index, u8),
    Cut(Index),
    Longer(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        1 => any::<Index>().prop_map(Damage::Cut),
        1 => prop::collection::vec(any::<u8>(), 1..9).prop_map(Damage::Longer),
    ]
}

fn damaged(mut bytes: Vec<u8>, all: &[Damage]) -> Vec<u8> {
    for one in all {
        match one {
            Damage::Byte(at, byte) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Damage::Byte(..) => {}
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Damage::Longer(more) => bytes.extend(more),
        }
    }
    bytes
}

#[test]
fn good_records_come_back() {
    for ((name, round), bytes) in ROUNDS.into_iter().zip(good()) {
        assert_eq!(round(&bytes), Some(bytes), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_records_are_refused_or_canonical(damages in prop::collection::vec(damage(), 1..5)) {
        for ((name, round), bytes) in ROUNDS.into_iter().zip(good()) {
            let bytes = damaged(bytes, &damages);
            if let Some(again) = round(&bytes) {
                prop_assert_eq!(again, bytes, "{}", name);
            }
        }
    }

    #[test]
    fn random_records_are_refused_or_canonical(noise in prop::collection::vec(any::<u8>(), 0..130)) {
        // Most random bytes fail at the version; behind a right one the rest is reached too.
        for first in [noise.first().copied().unwrap_or(0), 1, 2] {
            let bytes = [&[first], noise.get(1..).unwrap_or_default()].concat();
            for (name, round) in ROUNDS {
                if let Some(again) = round(&bytes) {
                    prop_assert_eq!(again, &bytes[..], "{}", name);
                }
            }
        }
        // Keys and ACLs: no panic. An ACL that is taken is stored in its own form, which is taken again.
        let _ = (key::describe(&noise), key::ino_of(&noise));
        if let Some(parsed) = key::Parsed::new(&noise) {
            let _ = (parsed.dentry(), parsed.ugsd());
        }
        for value in [noise.clone(), [&[2, 0, 0, 0], &noise[..]].concat()] {
            if let Ok(Some(acl)) = Acl::parse(&value) {
                prop_assert_eq!(Acl::parse(&acl.encode()).ok().flatten(), Some(acl));
            }
        }
    }
}
