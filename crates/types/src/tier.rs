//! The three tiers and sets of them.

use std::fmt;

/// A storage tier of one data server. Ordered from fastest to slowest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum TierId {
    /// DS-m: a tmpfs of the data server's own. Lost at a reboot.
    Memory = 0,
    /// DS-s: a directory on a node-local SSD.
    Ssd = 1,
    /// DS-d: the slow, large, safe store.
    Nearline = 2,
}

impl TierId {
    pub const ALL: [TierId; 3] = [TierId::Memory, TierId::Ssd, TierId::Nearline];

    pub const fn index(self) -> usize {
        self as usize
    }
    pub const fn name(self) -> &'static str {
        match self {
            TierId::Memory => "memory",
            TierId::Ssd => "ssd",
            TierId::Nearline => "nearline",
        }
    }
    pub fn from_name(name: &str) -> Option<TierId> {
        TierId::ALL.into_iter().find(|t| t.name() == name)
    }
    /// Does what it holds outlive a reboot?
    pub const fn is_persistent(self) -> bool {
        !matches!(self, TierId::Memory)
    }
}

impl fmt::Display for TierId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl serde::Serialize for TierId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> serde::Deserialize<'de> for TierId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<TierId, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        TierId::from_name(&name)
            .ok_or_else(|| serde::de::Error::custom("not a tier: memory, ssd or nearline"))
    }
}

/// A set of tiers, in one byte: bit `TierId::index()`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TierSet(u8);

impl TierSet {
    pub const EMPTY: TierSet = TierSet(0);
    pub const MEMORY: TierSet = TierSet::of(TierId::Memory);
    pub const PERSISTENT: TierSet = TierSet(0b110);

    pub const fn of(tier: TierId) -> TierSet {
        TierSet(1 << tier as u8)
    }
    /// `None` when a bit beyond the three tiers is set.
    pub const fn from_bits(bits: u8) -> Option<TierSet> {
        if bits & !0b111 == 0 { Some(TierSet(bits)) } else { None }
    }
    pub const fn bits(self) -> u8 {
        self.0
    }
    pub const fn contains(self, tier: TierId) -> bool {
        self.0 & (1 << tier as u8) != 0
    }
    pub const fn with(self, tier: TierId) -> TierSet {
        TierSet(self.0 | 1 << tier as u8)
    }
    pub const fn without(self, tier: TierId) -> TierSet {
        TierSet(self.0 & !(1 << tier as u8))
    }
    pub const fn intersect(self, other: TierSet) -> TierSet {
        TierSet(self.0 & other.0)
    }
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// The fastest member.
    pub fn fastest(self) -> Option<TierId> {
        self.iter().next()
    }
    /// From fastest to slowest.
    pub fn iter(self) -> impl Iterator<Item = TierId> {
        TierId::ALL.into_iter().filter(move |t| self.contains(*t))
    }
}

impl fmt::Debug for TierSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_lists_its_members_fastest_first() {
        let set = TierSet::of(TierId::Nearline).with(TierId::Memory);
        assert_eq!(set.iter().collect::<Vec<_>>(), [TierId::Memory, TierId::Nearline]);
        assert_eq!(set.fastest(), Some(TierId::Memory));
        assert_eq!(set.without(TierId::Memory).intersect(TierSet::PERSISTENT), TierSet::of(TierId::Nearline));
        assert_eq!(TierSet::from_bits(8), None);
    }
}
