//! Keys of the metadata store: inode number (8 bytes, big-endian), one type byte, then what the type needs.
//!
//! Invariants: everything about an inode sorts together; keys of one UGSD sort together; the keys with inode
//! number 0 belong to the file system as a whole. The layout is described in `docs/data-model.md`.

use types::{Ino, NAME_MAX, ProjectId, UgsdId};

/// Bytes before what a type adds.
pub const PREFIX_BYTES: usize = 9;
/// Bytes of a dentry key before the name.
pub const DENTRY_NAME_AT: usize = PREFIX_BYTES + 8;
const KEY_MAX: usize = DENTRY_NAME_AT + NAME_MAX;

pub const INODE: u8 = b'I';
pub const DENTRY: u8 = b'D';
pub const XATTR: u8 = b'X';
pub const SYMLINK: u8 = b'S';
/// The map of an object's storage allocation units; its content is the data server's.
pub const OBJECT: u8 = b'O';
pub const ORPHAN: u8 = b'U';
pub const ALLOCATOR: u8 = b'A';
pub const GLOBAL: u8 = b'G';
pub const QUOTA: u8 = b'Q';
/// In which tier a user holds an object; its content is the data server's.
pub const PIN: u8 = b'P';
/// What a directory says about where data is kept.
pub const POLICY: u8 = b'Y';
/// What the linked directory had of an inode; its content is that of who keeps the two in step.
pub const LINK: u8 = b'L';
/// What the linked directory lacks of an inode; theirs as well.
pub const WORK: u8 = b'W';
/// What was changed on both sides; theirs as well.
pub const CONFLICT: u8 = b'C';
/// On which data servers a file's data are; its content is the metadata service's.
pub const STRIPES: u8 = b'T';
/// What a data server keeps of an object that it has for others; its content is the data service's.
pub const HELD: u8 = b'H';
/// Lives of the metadata service, and the sessions that it gave up; its content is the service's.
pub const VERDICT: u8 = b'V';
/// Of a data server: an object whose file is lent.
pub const LENT: u8 = b'F';

/// Of a cluster: a data server that is taken out; its content is the metadata service's.
pub const STANDING: u8 = b'N';
/// Of a cluster: which state directory a data server's number stands for; its content is the metadata service's.
pub const STATE: u8 = b'E';

/// A key, built without touching the heap.
#[derive(Clone)]
pub struct Key {
    bytes: [u8; KEY_MAX],
    len: usize,
}

impl Key {
    fn new(raw_ino: u64, kind: u8) -> Key {
        let mut key = Key { bytes: [0; KEY_MAX], len: PREFIX_BYTES };
        key.bytes[..8].copy_from_slice(&raw_ino.to_be_bytes());
        key.bytes[8] = kind;
        key
    }
    /// Names longer than a key can hold are cut; callers have checked them against the limits.
    fn with(mut self, part: &[u8]) -> Key {
        let part = &part[..part.len().min(KEY_MAX - self.len)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        self
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", describe(self))
    }
}

pub fn inode(ino: Ino) -> Key {
    Key::new(ino.get(), INODE)
}

/// `hash` as [`crate::NameHasher::hash`] gives it.
pub fn dentry(dir: Ino, hash: u64, name: &[u8]) -> Key {
    Key::new(dir.get(), DENTRY).with(&hash.to_be_bytes()).with(name)
}

/// The first key that a dentry with this hash or a greater one can have.
pub fn dentry_from(dir: Ino, hash: u64) -> Key {
    Key::new(dir.get(), DENTRY).with(&hash.to_be_bytes())
}

/// The first key after all dentries of `dir`.
pub fn dentry_end(dir: Ino) -> Key {
    Key::new(dir.get(), DENTRY + 1)
}

pub fn xattr(ino: Ino, name: &[u8]) -> Key {
    Key::new(ino.get(), XATTR).with(name)
}

pub fn xattr_end(ino: Ino) -> Key {
    Key::new(ino.get(), XATTR + 1)
}

pub fn symlink(ino: Ino) -> Key {
    Key::new(ino.get(), SYMLINK)
}

pub fn object(ino: Ino) -> Key {
    Key::new(ino.get(), OBJECT)
}

/// The first key after an object's record.
pub fn object_end(ino: Ino) -> Key {
    Key::new(ino.get(), OBJECT + 1)
}

pub fn stripes(ino: Ino) -> Key {
    Key::new(ino.get(), STRIPES)
}

pub fn held(ino: Ino) -> Key {
    Key::new(ino.get(), HELD)
}

/// An object that came from another data server, or went to one, and is not done with; its content is the data service's.
pub fn moving(ino: Ino) -> Key {
    Key::new(0, HELD).with(&ino.get().to_be_bytes())
}

/// An object whose file a client on this machine may read by itself; its content is the data service's.
pub fn lent(ino: Ino) -> Key {
    Key::new(0, LENT).with(&ino.get().to_be_bytes())
}

pub fn lent_start() -> Key {
    Key::new(0, LENT)
}

pub fn lent_end() -> Key {
    Key::new(0, LENT + 1)
}

pub fn moving_start() -> Key {
    Key::new(0, HELD)
}

pub fn moving_end() -> Key {
    Key::new(0, HELD + 1)
}

pub fn standing(node: u64) -> Key {
    Key::new(0, STANDING).with(&node.to_be_bytes())
}

pub fn standing_start() -> Key {
    Key::new(0, STANDING)
}

pub fn standing_end() -> Key {
    Key::new(0, STANDING + 1)
}

pub fn state(node: u64) -> Key {
    Key::new(0, STATE).with(&node.to_be_bytes())
}

pub fn state_start() -> Key {
    Key::new(0, STATE)
}

pub fn state_end() -> Key {
    Key::new(0, STATE + 1)
}

pub fn link(ino: Ino) -> Key {
    Key::new(ino.get(), LINK)
}

/// Not beside its inode: a mount reads all of them, and only them.
pub fn work(ino: Ino) -> Key {
    Key::new(0, WORK).with(&ino.get().to_be_bytes())
}

pub fn work_start() -> Key {
    Key::new(0, WORK)
}

pub fn work_end() -> Key {
    Key::new(0, WORK + 1)
}

pub fn conflict(number: u64) -> Key {
    Key::new(0, CONFLICT).with(&number.to_be_bytes())
}

pub fn conflict_start() -> Key {
    Key::new(0, CONFLICT)
}

pub fn conflict_end() -> Key {
    Key::new(0, CONFLICT + 1)
}

fn ugsd_raw(ugsd: UgsdId) -> u64 {
    u64::from(ugsd.get()) << 40
}

pub fn allocator(ugsd: UgsdId) -> Key {
    Key::new(ugsd_raw(ugsd), ALLOCATOR)
}

pub fn orphan(ino: Ino) -> Key {
    Key::new(ugsd_raw(ino.ugsd()), ORPHAN).with(&ino.get().to_be_bytes())
}

/// Where the orphans of `ugsd` begin.
pub fn orphan_start(ugsd: UgsdId) -> Key {
    Key::new(ugsd_raw(ugsd), ORPHAN)
}

pub fn orphan_end(ugsd: UgsdId) -> Key {
    Key::new(ugsd_raw(ugsd), ORPHAN + 1)
}

pub fn superblock() -> Key {
    Key::new(0, GLOBAL)
}

/// A named value of the file system as a whole, beside the superblock.
pub fn global(name: &[u8]) -> Key {
    Key::new(0, GLOBAL).with(name)
}

pub fn quota(project: ProjectId) -> Key {
    Key::new(0, QUOTA).with(&project.0.to_be_bytes())
}

pub fn quota_start() -> Key {
    Key::new(0, QUOTA)
}

pub fn quota_end() -> Key {
    Key::new(0, QUOTA + 1)
}

/// Pins are few and looked for all together, so they are not beside their inodes.
pub fn pin(ino: Ino) -> Key {
    Key::new(0, PIN).with(&ino.get().to_be_bytes())
}

/// Policies of directories, for the same reason.
pub fn policy(dir: Ino) -> Key {
    Key::new(0, POLICY).with(&dir.get().to_be_bytes())
}

pub fn policy_start() -> Key {
    Key::new(0, POLICY)
}

pub fn policy_end() -> Key {
    Key::new(0, POLICY + 1)
}

pub fn lives() -> Key {
    Key::new(0, VERDICT)
}

pub fn verdict(session: u128) -> Key {
    Key::new(0, VERDICT).with(&session.to_be_bytes())
}

/// That the session is there, and may have something. Beside its verdict.
pub fn presence(session: u128) -> Key {
    verdict(session).with(b"p")
}

/// Without the lives, which are in front of them.
pub fn verdict_start() -> Key {
    verdict(0)
}

pub fn verdict_end() -> Key {
    Key::new(0, VERDICT + 1)
}

/// The inode that the rest of an orphan's, a pin's, a policy's or a work's key names.
pub fn ino_of(rest: &[u8]) -> Option<Ino> {
    Ino::from_raw(u64::from_be_bytes(rest.try_into().ok()?))
}

/// A key taken apart. `rest` is what follows the type byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parsed<'a> {
    pub raw_ino: u64,
    pub kind: u8,
    pub rest: &'a [u8],
}

impl<'a> Parsed<'a> {
    /// `None` for keys shorter than any of ours.
    pub fn new(key: &'a [u8]) -> Option<Parsed<'a>> {
        let (ino, rest) = key.split_first_chunk::<8>()?;
        let (kind, rest) = rest.split_first()?;
        Some(Parsed { raw_ino: u64::from_be_bytes(*ino), kind: *kind, rest })
    }
    /// Whether it is a record of who keeps a linked directory in step, under a lock of theirs.
    pub fn is_linked(&self) -> bool {
        match self.kind {
            LINK => Ino::from_raw(self.raw_ino).is_some(),
            WORK | CONFLICT => self.raw_ino == 0,
            _ => false,
        }
    }
    /// The number of a conflict, for its keys.
    pub fn conflict(&self) -> Option<u64> {
        let number = self.rest.try_into().ok().map(u64::from_be_bytes);
        number.filter(|_| self.raw_ino == 0 && self.kind == CONFLICT)
    }
    /// The hash and the name, for dentry keys.
    pub fn dentry(&self) -> Option<(u64, &'a [u8])> {
        let (hash, name) = self.rest.split_first_chunk::<8>()?;
        Some((u64::from_be_bytes(*hash), name))
    }
    /// The UGSD whose slot guards the key. `None` for quota records and those of a linked directory, which no slot
    /// guards, and for numbers that are not a UGSD's.
    pub fn ugsd(&self) -> Option<UgsdId> {
        if (self.raw_ino == 0 && self.kind == QUOTA) || self.is_linked() {
            return None;
        }
        UgsdId::new((self.raw_ino >> 40) as u32)
    }
}

/// A key for people: `5:17 D 00.. "name"`.
pub fn describe(key: &[u8]) -> String {
    match Parsed::new(key) {
        None => format!("{key:02x?}"),
        Some(p) => {
            let ino = format!("{}:{}", p.raw_ino >> 40, p.raw_ino & ((1 << 40) - 1));
            let kind = char::from(p.kind).escape_default();
            let names_inode =
                p.kind == ORPHAN || (p.raw_ino == 0 && matches!(p.kind, PIN | POLICY | WORK | HELD));
            if let Some(number) = p.conflict() {
                return format!("{ino} {kind} {number}");
            }
            match (p.dentry().filter(|_| p.kind == DENTRY), ino_of(p.rest).filter(|_| names_inode)) {
                (Some((hash, name)), _) => format!("{ino} {kind} {hash:015x} \"{}\"", name.escape_ascii()),
                (None, Some(of)) => format!("{ino} {kind} {of}"),
                (None, None) => format!("{ino} {kind} \"{}\"", p.rest.escape_ascii()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use types::LocalId;

    use super::*;

    /// Goal: stored keys never change form. Method: golden bytes.
    #[test]
    fn keys_have_their_golden_bytes() {
        let ugsd = UgsdId::new(0x010203).unwrap();
        let ino = Ino::new(ugsd, LocalId::new(0x0405060708).unwrap());
        assert_eq!(&*inode(ino), b"\x01\x02\x03\x04\x05\x06\x07\x08I");
        assert_eq!(
            &*dentry(ino, 0x1122334455667788, b"n"),
            b"\x01\x02\x03\x04\x05\x06\x07\x08D\x11\x22\x33\x44\x55\x66\x77\x88n"
        );
        assert_eq!(&*xattr(ino, b"user.a"), b"\x01\x02\x03\x04\x05\x06\x07\x08Xuser.a");
        assert_eq!(&*symlink(ino), b"\x01\x02\x03\x04\x05\x06\x07\x08S");
        assert_eq!(&*object(ino), b"\x01\x02\x03\x04\x05\x06\x07\x08O");
        assert_eq!(&*orphan(ino), b"\x01\x02\x03\0\0\0\0\0U\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(&*allocator(ugsd), b"\x01\x02\x03\0\0\0\0\0A");
        assert_eq!(&*superblock(), b"\0\0\0\0\0\0\0\0G");
        assert_eq!(&*pin(ino), b"\0\0\0\0\0\0\0\0P\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(&*policy(ino), b"\0\0\0\0\0\0\0\0Y\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(&*quota(ProjectId(0x0a0b0c0d)), b"\0\0\0\0\0\0\0\0Q\x0a\x0b\x0c\x0d");
        assert_eq!(&*link(ino), b"\x01\x02\x03\x04\x05\x06\x07\x08L");
        assert_eq!(&*work(ino), b"\0\0\0\0\0\0\0\0W\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(&*conflict(0x0102), b"\0\0\0\0\0\0\0\0C\0\0\0\0\0\0\x01\x02");
    }

    /// Goal: any name fits, and any bytes can be taken apart. Method: the longest name; hostile keys.
    #[test]
    fn the_longest_name_fits_and_short_keys_are_not_parsed() {
        let name = [b'x'; NAME_MAX];
        let key = dentry(Ino::ROOT, 16, &name);
        assert_eq!(Parsed::new(&key).unwrap().dentry(), Some((16, &name[..])));
        for len in 0..9 {
            assert_eq!(Parsed::new(&key[..len]), None);
        }
        assert_eq!(Parsed::new(&key[..12]).unwrap().dentry(), None);
        assert_eq!(describe(&dentry(Ino::ROOT, 16, b"a\n")), "0:1 D 000000000000010 \"a\\n\"");
    }

    /// Goal: what belongs to a linked directory is told from the rest, and lies in its range. Method: one key of each type,
    /// and such types under numbers where they cannot be.
    #[test]
    fn keys_of_a_linked_directory_are_known() {
        let ino = Ino::new(UgsdId::new(5).unwrap(), LocalId::new(7).unwrap());
        for key in [link(ino), work(ino), conflict(9)] {
            let parsed = Parsed::new(&key).unwrap();
            assert!(parsed.is_linked() && parsed.ugsd().is_none(), "{key:?}");
        }
        for (raw, kind) in [(0, LINK), (5 << 40, LINK), (5 << 40 | 7, WORK), (5 << 40 | 7, CONFLICT)] {
            assert!(!Parsed::new(&Key::new(raw, kind)).unwrap().is_linked());
        }
        for key in [inode(ino), object(ino), orphan(ino), superblock(), pin(ino), policy(ino)] {
            assert!(!Parsed::new(&key).unwrap().is_linked());
        }
        let within = |key: &Key, from: &Key, to: &Key| **from <= **key && **key < **to;
        assert!(within(&conflict(u64::MAX), &conflict_start(), &conflict_end()));
        assert!(
            within(&work(ino), &work_start(), &work_end()) && !within(&pin(ino), &work_start(), &work_end())
        );
        assert!(within(&object(ino), &object(ino), &object_end(ino)));
        assert!(!within(&symlink(ino), &object(ino), &object_end(ino)));
        assert_eq!(Parsed::new(&conflict(9)).unwrap().conflict(), Some(9));
        assert_eq!(describe(&conflict(9)), "0:0 C 9");
        assert_eq!(describe(&work(ino)), format!("0:0 W {ino}"));
    }
}
