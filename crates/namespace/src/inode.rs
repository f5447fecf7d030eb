//! The inode record and what the interfaces show of it.
//!
//! Record, version 1, 108 bytes, little-endian (`docs/data-model.md`):
//! version u8 | kind u8 | mode u16 | flags u32 | nlink u32 | uid u32 | gid u32 | rdev u32 | size u64 | blocks u64
//! | atime, mtime, ctime, btime (each i64 s, u32 ns) | parent u64 | project u32 | live epoch u32 | memory generation u32

use types::{Attr, Errno, FileKind, Ino, MODE_MASK, ProjectId, S_ISGID, S_ISUID, Timestamp};

use crate::{
    Env,
    codec::{Fields, Writer},
    error::{Result, refuse},
    key,
    mode::FileMode,
    spread::Spread,
    txn::{Bytes, KvError, Reader, Txn},
};

const VERSION: u8 = 1;
const RECORD_BYTES: usize = 108;
/// Bytes of the largest file.
pub const SIZE_MAX: u64 = i64::MAX as u64;

bitflags::bitflags! {
    /// What else is stored about an inode, so that it need not be looked for.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct InodeFlags: u32 {
        /// It has extended attributes other than ACLs.
        const XATTR = 1;
        /// It has an access ACL that the mode alone cannot say.
        const ACL_ACCESS = 2;
        /// A directory with a default ACL.
        const ACL_DEFAULT = 4;
        /// An object with its data may exist in some tier.
        const WRITTEN = 8;
        /// A directory with a policy of its own.
        const POLICY = 16;
        /// A regular file of which the linked directory may have data: without an object record all of it is there. With
        /// [`InodeFlags::WRITTEN`].
        const LINKED = 32;
        /// The linked directory is not told of it; of a directory: of what is in it.
        const APART = 64;
        /// What a regular file says of its mode itself: global, local, or with both transient.
        const GLOBAL = 128;
        const LOCAL = 256;
        /// A directory that says where the data of new files in it go.
        const STRIPING = 512;
        /// A directory whose entries are in its parts.
        const SPREAD = 1024;
        /// A hidden directory that has some entries of its parent.
        const PART = 2048;
    }
}

impl InodeFlags {
    /// What a file says of its mode itself.
    pub const MODE: InodeFlags = InodeFlags::GLOBAL.union(InodeFlags::LOCAL);
}

/// One inode as it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inode {
    pub kind: FileKind,
    /// Within [`MODE_MASK`].
    pub mode: u32,
    pub flags: InodeFlags,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of devices. Of a directory that is spread, and of its parts: over which.
    pub rdev: u32,
    /// Bytes; of a symbolic link the length of its target.
    pub size: u64,
    /// 512-byte units.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// Of a directory: the directory that holds it (the root's is itself). Of anything else: the directory in which it
    /// was last named, a hint, since a name there may be gone and another one stay.
    pub parent: Option<Ino>,
    pub project: ProjectId,
    /// The mount in which the file was last opened for writing and not yet settled; 0 when settled.
    pub live_epoch: u32,
    /// The memory tier's generation when writing began.
    pub memory_generation: u32,
}

/// Where the truth about a regular file's data is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataState {
    /// An object may exist in some tier.
    pub written: bool,
    /// Open for writing in this or an earlier mount and not settled: size and mtime are the object's.
    pub live: bool,
    /// Live since an earlier mount: ask the data server, then settle.
    pub stale_live: bool,
    /// The linked directory may have some of it; without an object record it has all.
    pub linked: bool,
    /// What it says of its mode itself.
    pub mode: Option<FileMode>,
    pub memory_generation: u32,
}

/// What an operation that finds or makes an inode answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    pub attr: Attr,
    pub data: DataState,
    /// Of a directory whose entries are in its parts.
    pub spread: Option<Spread>,
}

impl Inode {
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub fn attr(&self, ino: Ino) -> Attr {
        Attr {
            ino,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: if self.is_dir() { 0 } else { self.rdev },
            size: self.size,
            blocks: self.blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            project: self.project,
        }
    }

    /// What it says of its mode itself.
    pub fn file_mode(&self) -> Option<FileMode> {
        match (self.flags.contains(InodeFlags::GLOBAL), self.flags.contains(InodeFlags::LOCAL)) {
            (false, false) => None,
            (true, false) => Some(FileMode::Global),
            (false, true) => Some(FileMode::Local),
            (true, true) => Some(FileMode::Transient),
        }
    }

    pub(crate) fn set_file_mode(&mut self, mode: Option<FileMode>) {
        let flags = match mode {
            None => InodeFlags::empty(),
            Some(FileMode::Global) => InodeFlags::GLOBAL,
            Some(FileMode::Local) => InodeFlags::LOCAL,
            Some(FileMode::Transient) => InodeFlags::MODE,
        };
        self.flags = self.flags.difference(InodeFlags::MODE) | flags;
    }

    /// Of a directory whose entries are in its parts.
    pub fn spread(&self) -> Option<Spread> {
        if self.flags.contains(InodeFlags::SPREAD) { Spread::decode(self.rdev) } else { None }
    }

    /// The same of its parts, too.
    pub(crate) fn over(&self) -> Option<Spread> {
        let flags = InodeFlags::SPREAD | InodeFlags::PART;
        if self.flags.intersects(flags) { Spread::decode(self.rdev) } else { None }
    }

    /// A hidden directory that has some entries of its parent.
    pub fn is_part(&self) -> bool {
        self.flags.contains(InodeFlags::PART)
    }

    /// The directory that programs see in the place of this one, whose number is `own`.
    pub(crate) fn shown(&self, own: Ino) -> Ino {
        match self.parent {
            Some(parent) if self.is_part() => parent,
            Some(_) | None => own,
        }
    }

    /// The linked directory is not told of it; of a directory: of what is in it.
    pub fn is_apart(&self) -> bool {
        self.flags.contains(InodeFlags::APART)
    }

    /// `epoch` is the number of the running mount.
    pub fn data(&self, epoch: u32) -> DataState {
        DataState {
            written: self.flags.contains(InodeFlags::WRITTEN),
            live: self.live_epoch != 0,
            stale_live: self.live_epoch != 0 && self.live_epoch != epoch,
            linked: self.flags.contains(InodeFlags::LINKED),
            mode: self.file_mode(),
            memory_generation: self.memory_generation,
        }
    }

    pub fn found(&self, ino: Ino, env: &Env) -> Found {
        Found { attr: self.attr(ino), data: self.data(env.epoch), spread: self.spread() }
    }

    /// Set-id bits that a write, a truncation or a change of owner takes away: setuid always, setgid only
    /// with group execution (without it, it once meant mandatory locking). Directories keep theirs.
    pub(crate) fn kill_suidgid(&mut self) {
        if self.is_dir() {
            return;
        }
        self.mode &= !S_ISUID;
        if self.mode & 0o010 != 0 {
            self.mode &= !S_ISGID;
        }
    }

    /// An entry of this directory changed.
    pub(crate) fn entries_changed(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
    }

    pub fn encode(&self) -> Bytes {
        let record = Writer::<RECORD_BYTES>::new()
            .u8(VERSION)
            .u8(self.kind as u8)
            .u16((self.mode & MODE_MASK) as u16)
            .u32(self.flags.bits())
            .u32(self.nlink)
            .u32(self.uid)
            .u32(self.gid)
            .u32(self.rdev)
            .u64(self.size)
            .u64(self.blocks)
            .time(self.atime)
            .time(self.mtime)
            .time(self.ctime)
            .time(self.btime)
            .u64(self.parent.map_or(0, Ino::get))
            .u32(self.project.0)
            .u32(self.live_epoch)
            .u32(self.memory_generation);
        Bytes::copy_from_slice(&record.finish())
    }

    /// `None` when the bytes are not a record that [`Inode::encode`] could have made.
    pub fn decode(bytes: &[u8]) -> Option<Inode> {
        let mut f = Fields::new(bytes);
        if f.u8()? != VERSION {
            return None;
        }
        let kind = FileKind::from_u8(f.u8()?)?;
        let mode = u32::from(f.u16()?);
        let inode = Inode {
            kind,
            mode,
            flags: InodeFlags::from_bits(f.u32()?)?,
            nlink: f.u32()?,
            uid: f.u32()?,
            gid: f.u32()?,
            rdev: f.u32()?,
            size: f.u64()?,
            blocks: f.u64()?,
            atime: f.time()?,
            mtime: f.time()?,
            ctime: f.time()?,
            btime: f.time()?,
            parent: match f.u64()? {
                0 => None,
                raw => Some(Ino::from_raw(raw)?),
            },
            project: ProjectId(f.u32()?),
            live_epoch: f.u32()?,
            memory_generation: f.u32()?,
        };
        f.end()?;
        let mode_of_file = inode.kind == FileKind::Regular || !inode.flags.intersects(InodeFlags::MODE);
        let spread = inode.flags & (InodeFlags::SPREAD | InodeFlags::PART);
        let good_spread = spread.is_empty()
            || (inode.is_dir() && spread.bits().count_ones() == 1 && inode.over().is_some());
        let sane = mode_of_file
            && good_spread
            && mode & !MODE_MASK == 0
            && inode.size <= SIZE_MAX
            && (inode.parent.is_some() || !inode.is_dir());
        if sane { Some(inode) } else { None }
    }
}

/// 512-byte units that `size` bytes without holes fill.
pub fn blocks_of(size: u64) -> u64 {
    size.div_ceil(512)
}

pub(crate) fn corrupt(key: &[u8]) -> KvError {
    KvError::Corrupt(format!("record {} does not have its form", key::describe(key)))
}

/// The record's bytes, good or not.
pub(crate) fn get_raw<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Option<Bytes>> {
    Ok(reader.get(&key::inode(ino))?)
}

/// `None` when there is no such inode.
pub fn get<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Option<Inode>> {
    let key = key::inode(ino);
    match reader.get(&key)? {
        None => Ok(None),
        Some(bytes) => Ok(Some(Inode::decode(&bytes).ok_or_else(|| corrupt(&key))?)),
    }
}

/// `ESTALE` when there is no such inode: the caller has a number that was true once.
pub fn load<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Inode> {
    match get(reader, ino)? {
        Some(inode) => Ok(inode),
        None => refuse(Errno::ESTALE),
    }
}

/// As [`load`], and `ENOTDIR` unless it is a directory.
pub fn load_dir<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Inode> {
    let inode = load(reader, ino)?;
    if inode.is_dir() { Ok(inode) } else { refuse(Errno::ENOTDIR) }
}

/// As [`load_dir`], and `ENOENT` when it was removed: nothing new can be in it.
pub(crate) fn load_live_dir<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Inode> {
    let inode = load_dir(reader, ino)?;
    if inode.nlink == 0 { refuse(Errno::ENOENT) } else { Ok(inode) }
}

/// An inode that an entry names: without it the store is damaged.
pub(crate) fn load_named<R: Reader + ?Sized>(reader: &R, ino: Ino) -> Result<Inode> {
    match get(reader, ino)? {
        Some(inode) => Ok(inode),
        None => Err(KvError::Corrupt(format!("an entry names inode {ino:?}, which is missing")).into()),
    }
}

pub fn store<T: Txn + ?Sized>(txn: &mut T, ino: Ino, inode: &Inode) {
    txn.put(&key::inode(ino), inode.encode());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Inode {
        let t = |n: i64| Timestamp { sec: n, nsec: n.unsigned_abs() as u32 };
        Inode {
            kind: FileKind::Directory,
            mode: 0o2755,
            flags: InodeFlags::XATTR | InodeFlags::ACL_DEFAULT,
            nlink: 3,
            uid: 1000,
            gid: 100,
            rdev: 0,
            size: 0x1122,
            blocks: 9,
            atime: t(1),
            mtime: t(-2),
            ctime: t(3),
            btime: t(4),
            parent: Some(Ino::ROOT),
            project: ProjectId(5),
            live_epoch: 6,
            memory_generation: 7,
        }
    }

    /// Goal: a stored inode can be read by every later version. Method: golden bytes.
    #[test]
    fn the_record_has_its_golden_bytes() {
        let golden = concat!(
            "0102ed05",
            "05000000",
            "03000000",
            "e8030000",
            "64000000",
            "00000000",
            "2211000000000000",
            "0900000000000000",
            "010000000000000001000000",
            "feffffffffffffff02000000",
            "030000000000000003000000",
            "040000000000000004000000",
            "0100000000000000",
            "05000000",
            "06000000",
            "07000000"
        );
        let bytes = sample().encode();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, golden);
        assert_eq!(Inode::decode(&bytes), Some(sample()));
    }

    /// Goal: what cannot be an inode is refused. Method: one field at a time out of range.
    #[test]
    fn records_out_of_form_are_refused() {
        let good = sample().encode();
        for (at, byte) in [(0, 2), (1, 0), (1, 99), (3, 0xff), (4, 0xff), (31, 0xff), (51, 0xff)] {
            let mut bad = good.to_vec();
            bad[at] = byte;
            assert_eq!(Inode::decode(&bad), None, "byte {at} = {byte}");
        }
        let nowhere = Inode { parent: None, ..sample() };
        assert_eq!(Inode::decode(&nowhere.encode()), None);
        let file = Inode { kind: FileKind::Regular, ..nowhere };
        assert_eq!(Inode::decode(&file.encode()), Some(file));
        for len in 0..good.len() {
            assert_eq!(Inode::decode(&good[..len]), None);
        }
        assert_eq!(Inode::decode(&[&good[..], &[0]].concat()), None);
    }

    /// Goal: flags keep their bits, and a file's own mode is one of theirs. Method: golden numbers, every mode.
    #[test]
    fn flags_have_their_golden_bits() {
        let flags = [InodeFlags::LINKED, InodeFlags::APART, InodeFlags::GLOBAL, InodeFlags::LOCAL];
        assert_eq!(flags.map(|flag| flag.bits()), [32, 64, 128, 256]);
        let mut file = Inode { kind: FileKind::Regular, ..sample() };
        for mode in [Some(FileMode::Global), Some(FileMode::Local), Some(FileMode::Transient), None] {
            file.set_file_mode(mode);
            assert_eq!(Inode::decode(&file.encode()).and_then(|inode| inode.file_mode()), mode);
            assert_eq!(file.flags.difference(InodeFlags::MODE), sample().flags);
            let dir = Inode { kind: FileKind::Directory, ..file };
            assert_eq!(Inode::decode(&dir.encode()).is_some(), mode.is_none());
        }
    }

    proptest! {
        /// Goal: damaged bytes never panic, and what decodes encodes to the same bytes. Method: random bytes and
        /// random damage to a good record.
        #[test]
        fn decoding_is_strict(noise in prop::collection::vec(any::<u8>(), 0..140), at in 0usize..108, byte: u8) {
            if let Some(inode) = Inode::decode(&noise) {
                prop_assert_eq!(&inode.encode()[..], &noise[..]);
            }
            let mut bytes = sample().encode().to_vec();
            bytes[at] = byte;
            if let Some(inode) = Inode::decode(&bytes) {
                prop_assert_eq!(&inode.encode()[..], &bytes[..]);
            }
        }
    }
}
