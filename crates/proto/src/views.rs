//! Who has an object that is on two data servers, as messages and layouts have it.

use prost::Message;

use crate::Bad;

/// In the generation of a layout whose stripes have two copies, and of their objects.
pub const TWOFOLD: u32 = 1 << 31;

/// In a view's number, above the count of views: how often both copies were lost, and one went on with what outlived it.
pub const REVIVED: u32 = 32;

/// A data server in one of its lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Message)]
pub struct Member {
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// As its report says.
    #[prost(fixed64, tag = "2")]
    pub life: u64,
}

/// The one that stores what the primary orders, before the primary does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Second {
    #[prost(message, required, tag = "1")]
    pub member: Member,
    /// The view with which it became the second.
    #[prost(uint64, tag = "2")]
    pub since: u64,
    /// It has every byte, and may be asked.
    #[prost(bool, tag = "3")]
    pub counts: bool,
    /// It says that it has what it had when it was left behind.
    #[prost(bool, tag = "4")]
    pub kept: bool,
}

/// Who has an object. A later one has a higher number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct View {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(message, required, tag = "2")]
    pub primary: Member,
    /// The view with which it became that.
    #[prost(uint64, tag = "3")]
    pub since: u64,
    #[prost(message, optional, tag = "4")]
    pub second: Option<Second>,
}

impl View {
    pub fn check(&self) -> Result<(), Bad> {
        let second = self.second.unwrap_or_default();
        let is_member = |member: &Member| member.node != 0 && member.life != 0;
        let named = is_member(&self.primary) && (self.second.is_none() || is_member(&second.member));
        if !named || second.member.node == self.primary.node {
            return Err(Bad::Range("member"));
        }
        if self.since == 0 || self.since.max(second.since) > self.number {
            return Err(Bad::Range("view"));
        }
        Ok(())
    }

    /// How often both members had been lost, and it went on from what their devices had.
    pub fn revivals(&self) -> u64 {
        self.number >> REVIVED
    }

    /// Who may be asked for bytes, the primary first.
    pub fn counting(&self) -> impl Iterator<Item = Member> {
        let second = self.second.filter(|second| second.counts).map(|second| second.member);
        [Some(self.primary), second].into_iter().flatten()
    }

    /// All who store what is written, the primary first.
    pub fn all(&self) -> impl Iterator<Item = Member> {
        [Some(self.primary), self.second.map(|second| second.member)].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_that_break_the_rules() {
        let member = |node| Member { node, life: 9 };
        let second = Second { member: member(2), since: 3, counts: true, kept: false };
        let good = View { number: 4, primary: member(1), since: 1, second: Some(second) };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(good.counting().count(), 2);
        let with = |second| View { second: Some(second), ..good };
        assert_eq!(with(Second { counts: false, ..second }).counting().count(), 1);
        for bad in [
            View { number: 0, ..good },
            View { number: 2, ..good },
            View { primary: Member { node: 1, life: 0 }, ..good },
            with(Second { member: member(1), ..second }),
            with(Second { member: member(0), ..second }),
            View { since: 0, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
