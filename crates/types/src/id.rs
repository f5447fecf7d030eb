//! Identifiers. An inode number is `ugsd (24 bits) | local (40 bits)`, so that the server of an inode is found
//! by arithmetic (DESIGN section 3).

use std::fmt;

/// Number of slots that UGSDs are spread over; the cluster map says who owns each.
pub const SLOTS: u32 = 4096;
const LOCAL_BITS: u32 = 40;
const LOCAL_MASK: u64 = (1 << LOCAL_BITS) - 1;

/// A user group sub-directory: the unit in which metadata is divided between servers. 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UgsdId(u32);

impl UgsdId {
    /// The UGSD that holds the root directory.
    pub const ROOT: UgsdId = UgsdId(0);
    pub const MAX: u32 = (1 << 24) - 1;

    /// `None` when `n` does not fit in 24 bits.
    pub const fn new(n: u32) -> Option<UgsdId> {
        if n <= Self::MAX { Some(UgsdId(n)) } else { None }
    }
    pub const fn get(self) -> u32 {
        self.0
    }
    /// Which slot serves this UGSD: `n mod 4096`.
    pub const fn slot(self) -> Slot {
        Slot((self.0 % SLOTS) as u16)
    }
}

/// One of the [`SLOTS`] entries of the cluster map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(u16);

impl Slot {
    /// `None` when there is no such slot.
    pub const fn new(n: u16) -> Option<Slot> {
        if (n as u32) < SLOTS { Some(Slot(n)) } else { None }
    }
    /// All of them, in order.
    pub fn all() -> impl Iterator<Item = Slot> {
        (0..SLOTS as u16).map(Slot)
    }
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// An inode's number inside its UGSD. 40 bits, from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LocalId(u64);

impl LocalId {
    pub const MAX: u64 = LOCAL_MASK;
    /// The top directory of a UGSD.
    pub const TOP: LocalId = LocalId(1);

    /// `None` when `n` is 0 or does not fit in 40 bits.
    pub const fn new(n: u64) -> Option<LocalId> {
        if n >= 1 && n <= LOCAL_MASK { Some(LocalId(n)) } else { None }
    }
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// An inode number. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(u64);

impl Ino {
    /// The root directory: UGSD 0, local 1, which is also FUSE's node id of the root.
    pub const ROOT: Ino = Ino(1);

    pub const fn new(ugsd: UgsdId, local: LocalId) -> Ino {
        Ino(((ugsd.0 as u64) << LOCAL_BITS) | local.0)
    }
    /// `None` for numbers whose local part is 0, which name no inode.
    pub const fn from_raw(raw: u64) -> Option<Ino> {
        if raw & LOCAL_MASK == 0 { None } else { Some(Ino(raw)) }
    }
    pub const fn get(self) -> u64 {
        self.0
    }
    pub const fn ugsd(self) -> UgsdId {
        UgsdId((self.0 >> LOCAL_BITS) as u32)
    }
    pub const fn local(self) -> LocalId {
        LocalId(self.0 & LOCAL_MASK)
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ino({}:{})", self.ugsd().get(), self.local().get())
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A quota project. 0 means none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProjectId(pub u32);

impl ProjectId {
    pub const NONE: ProjectId = ProjectId(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_number_carries_its_ugsd() {
        let ino = Ino::new(UgsdId::new(UgsdId::MAX).unwrap(), LocalId::new(LocalId::MAX).unwrap());
        assert_eq!(ino.ugsd().get(), UgsdId::MAX);
        assert_eq!(ino.local().get(), LocalId::MAX);
        assert_eq!(Ino::from_raw(ino.get()), Some(ino));
        assert_eq!(Ino::ROOT.ugsd(), UgsdId::ROOT);
        assert_eq!(UgsdId::new(4097).unwrap().slot().get(), 1);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        assert_eq!(UgsdId::new(1 << 24), None);
        assert_eq!((Slot::new(4095).map(Slot::get), Slot::new(4096)), (Some(4095), None));
        assert_eq!(Slot::all().count(), SLOTS as usize);
        assert_eq!(LocalId::new(0), None);
        assert_eq!(LocalId::new(1 << 40), None);
        assert_eq!(Ino::from_raw(7 << 40), None);
    }
}
