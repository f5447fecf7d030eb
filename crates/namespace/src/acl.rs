//! POSIX access control lists (POSIX.1e draft 17, as Linux has them): the xattr form, what is valid, and how an
//! ACL and a mode follow each other.
//!
//! Form: version u32 = 2, then entries of tag u16, permissions u16, id u32, all little-endian.

use types::Errno;

use crate::{
    codec::Fields,
    error::{Result, refuse},
};

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
/// `ACL_UNDEFINED_ID`: entries that name nobody carry it.
const NO_ID: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tag {
    UserObj = 0x01,
    User = 0x02,
    GroupObj = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn from_u16(n: u16) -> Option<Tag> {
        [Tag::UserObj, Tag::User, Tag::GroupObj, Tag::Group, Tag::Mask, Tag::Other]
            .into_iter()
            .find(|tag| *tag as u16 == n)
    }
    fn names_somebody(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }
    /// What `mode` says of an entry with this tag, `class` being the tag that stands for the group bits.
    fn perm_in(self, mode: u32, class: Tag) -> Option<u16> {
        let shift = match self {
            Tag::UserObj => 6,
            Tag::Other => 0,
            tag if tag == class => 3,
            Tag::User | Tag::GroupObj | Tag::Group | Tag::Mask => return None,
        };
        Some(((mode >> shift) & 7) as u16)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    perm: u16,
    id: u32,
}

/// A valid list: owner, named users, owning group, named groups, mask (if anybody is named), others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

/// Who wants something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asker<'a> {
    pub uid: u32,
    pub gid: u32,
    /// Beside `gid`.
    pub groups: &'a [u32],
}

impl Acl {
    /// From the xattr's bytes. `None` for a list without entries, which stands for no ACL. `EOPNOTSUPP` for
    /// another version, `EINVAL` for anything else that is wrong (as the kernel's `posix_acl_from_xattr` and
    /// `posix_acl_valid`).
    pub fn parse(bytes: &[u8]) -> Result<Option<Acl>> {
        let mut fields = Fields::new(bytes);
        match fields.u32() {
            None => return refuse(Errno::EINVAL),
            Some(VERSION) => {}
            Some(_) => return refuse(Errno::EOPNOTSUPP),
        }
        let mut entries = Vec::with_capacity(bytes.len() / ENTRY_BYTES);
        while fields.end().is_none() {
            let Some(entry) = Acl::entry(&mut fields) else { return refuse(Errno::EINVAL) };
            entries.push(entry);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Acl(entries);
        if acl.is_valid() { Ok(Some(acl)) } else { refuse(Errno::EINVAL) }
    }

    fn entry(fields: &mut Fields<'_>) -> Option<Entry> {
        let tag = Tag::from_u16(fields.u16()?)?;
        let perm = fields.u16()?;
        let id = fields.u32()?;
        let id = if tag.names_somebody() { id } else { NO_ID };
        if perm > 7 || (tag.names_somebody() && id == NO_ID) { None } else { Some(Entry { tag, perm, id }) }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let ordered = self.0.is_sorted_by_key(|e| e.tag);
        let named = self.0.iter().any(|e| e.tag.names_somebody());
        let masks = count(Tag::Mask);
        ordered
            && [Tag::UserObj, Tag::GroupObj, Tag::Other].into_iter().all(|tag| count(tag) == 1)
            && masks <= 1
            && (masks == 1 || !named)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 + self.0.len() * ENTRY_BYTES);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            bytes.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            bytes.extend_from_slice(&entry.perm.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    /// The nine permission bits that say the same as this list, or the most that a mode can show of it.
    pub fn mode(&self) -> u32 {
        let mut mode = 0;
        let mut mask = None;
        for entry in &self.0 {
            let perm = u32::from(entry.perm);
            match entry.tag {
                Tag::UserObj => mode |= perm << 6,
                Tag::GroupObj => mode |= perm << 3,
                Tag::Other => mode |= perm,
                Tag::Mask => mask = Some(perm),
                Tag::User | Tag::Group => {}
            }
        }
        mask.map_or(mode, |mask| mode & !0o070 | mask << 3)
    }

    /// A mode says all of it: neither a mask nor anybody named.
    pub fn is_minimal(&self) -> bool {
        self.0.iter().all(|e| !e.tag.names_somebody() && e.tag != Tag::Mask)
    }

    /// chmod: owner, others and the group class (the mask, or the owning group without one) become `mode`'s.
    pub fn chmod(&mut self, mode: u32) {
        let class = self.group_class();
        for entry in &mut self.0 {
            if let Some(perm) = entry.tag.perm_in(mode, class) {
                entry.perm = perm;
            }
        }
    }

    /// A new inode under a directory with this default ACL, created with `mode`: the list is cut down to the
    /// mode, and the mode to the list. Returns the mode; `self` becomes the access ACL (to be dropped if minimal).
    pub fn inherit(&mut self, mode: u32) -> u32 {
        let class = self.group_class();
        for entry in &mut self.0 {
            if let Some(perm) = entry.tag.perm_in(mode, class) {
                entry.perm &= perm;
            }
        }
        mode & !0o777 | self.mode() & mode
    }

    /// Are all bits of `want` (read 4, write 2, search 1) given to who asks, of a file of this owner and group? As the
    /// kernel's `posix_acl_permission`.
    pub fn allows(&self, asker: &Asker<'_>, owner: (u32, u32), want: u16) -> bool {
        let mask = self.0.iter().find(|e| e.tag == Tag::Mask).map_or(7, |e| e.perm);
        let is_in = |gid: u32| gid == asker.gid || asker.groups.contains(&gid);
        let gives = |perm: u16| perm & want == want;
        // In the order of the tags.
        let mut in_a_group = false;
        for entry in &self.0 {
            match entry.tag {
                Tag::UserObj if asker.uid == owner.0 => return gives(entry.perm),
                Tag::User if asker.uid == entry.id => return gives(entry.perm & mask),
                Tag::GroupObj if is_in(owner.1) => in_a_group = true,
                Tag::Group if is_in(entry.id) => in_a_group = true,
                Tag::Other => return !in_a_group && gives(entry.perm),
                Tag::UserObj | Tag::User | Tag::GroupObj | Tag::Group | Tag::Mask => continue,
            }
            if gives(entry.perm & mask) {
                return true;
            }
        }
        false
    }

    fn group_class(&self) -> Tag {
        if self.0.iter().any(|e| e.tag == Tag::Mask) { Tag::Mask } else { Tag::GroupObj }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const U: u16 = 1;
    const NAMED: u16 = 2;
    const G: u16 = 4;
    const M: u16 = 0x10;
    const O: u16 = 0x20;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(perm.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl::parse(&bytes(entries)).unwrap().unwrap()
    }

    /// Goal: exactly the lists that Linux takes are taken. Method: one good list, then each rule broken.
    #[test]
    fn lists_out_of_form_are_refused() {
        let none = u32::MAX;
        let good = [(U, 7, none), (NAMED, 6, 1000), (G, 5, none), (M, 7, none), (O, 0, none)];
        assert_eq!(acl(&good).encode(), bytes(&good));
        let bad: &[&[(u16, u16, u32)]] = &[
            &[(U, 7, none), (NAMED, 6, 1000), (G, 5, none), (O, 0, none)],
            &[(U, 7, none), (G, 5, none)],
            &[(G, 5, none), (U, 7, none), (O, 0, none)],
            &[(U, 8, none), (G, 5, none), (O, 0, none)],
            &[(U, 7, none), (U, 7, none), (G, 5, none), (O, 0, none)],
            &[(U, 7, none), (NAMED, 6, none), (G, 5, none), (M, 7, none), (O, 0, none)],
            &[(U, 7, none), (G, 5, none), (M, 7, none), (M, 7, none), (O, 0, none)],
            &[(3, 7, none), (U, 7, none), (G, 5, none), (O, 0, none)],
        ];
        for entries in bad {
            assert_eq!(Acl::parse(&bytes(entries)), refuse(Errno::EINVAL), "{entries:?}");
        }
        assert_eq!(Acl::parse(&bytes(&[])), Ok(None));
        assert_eq!(Acl::parse(&[2, 0, 0]), refuse(Errno::EINVAL));
        assert_eq!(Acl::parse(&bytes(&good)[..13]), refuse(Errno::EINVAL));
        assert_eq!(Acl::parse(&1u32.to_le_bytes()), refuse(Errno::EOPNOTSUPP));
    }

    /// Goal: list and mode follow each other. Method: the cases of acl(5).
    #[test]
    fn modes_and_lists_follow_each_other() {
        let none = u32::MAX;
        let mut full = acl(&[(U, 7, none), (NAMED, 6, 1000), (G, 5, none), (M, 4, none), (O, 1, none)]);
        assert_eq!((full.mode(), full.is_minimal()), (0o741, false));
        full.chmod(0o620);
        assert_eq!(full, acl(&[(U, 6, none), (NAMED, 6, 1000), (G, 5, none), (M, 2, none), (O, 0, none)]));
        let mut minimal = acl(&[(U, 7, none), (G, 5, none), (O, 1, none)]);
        assert_eq!((minimal.mode(), minimal.is_minimal()), (0o751, true));
        assert_eq!(minimal.inherit(0o4666), 0o4640);
        let mut default = acl(&[(U, 7, none), (NAMED, 7, 5), (G, 7, none), (M, 7, none), (O, 5, none)]);
        assert_eq!(default.inherit(0o640), 0o640);
        assert_eq!(default, acl(&[(U, 6, none), (NAMED, 7, 5), (G, 7, none), (M, 4, none), (O, 0, none)]));
    }

    /// Goal: a list lets in whom the kernel lets in. Method: the cases of acl(5), one asker each.
    #[test]
    fn lists_let_in_whom_they_name() {
        let none = u32::MAX;
        let list = acl(&[
            (U, 4, none),
            (NAMED, 6, 1000),
            (G, 1, none),
            (8, 2, 50),
            (8, 4, 51),
            (M, 6, none),
            (O, 7, none),
        ]);
        let may = |uid, gid, groups: &[u32], want| list.allows(&Asker { uid, gid, groups }, (1, 20), want);
        assert!(may(1, 20, &[], 4) && !may(1, 20, &[], 2), "the owner's entry alone, without the mask");
        assert!(may(1000, 0, &[], 6) && !may(1000, 0, &[], 7));
        assert!(!may(5, 20, &[], 1), "the mask takes it away");
        assert!(!may(5, 20, &[], 4), "a member has nothing from the others' entry");
        assert!(may(5, 0, &[50, 51], 2) && may(5, 0, &[50, 51], 4) && !may(5, 0, &[50, 51], 6));
        assert!(may(5, 0, &[], 7));
    }

    proptest! {
        /// Goal: hostile lists never panic. Method: random bytes after a right version.
        #[test]
        fn parsing_is_total(noise in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut bytes = 2u32.to_le_bytes().to_vec();
            bytes.extend(&noise);
            let _ = Acl::parse(&noise);
            if let Ok(Some(acl)) = Acl::parse(&bytes) {
                prop_assert_eq!(Acl::parse(&acl.encode()), Ok(Some(acl)));
            }
        }
    }
}
