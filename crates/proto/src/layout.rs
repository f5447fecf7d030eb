//! Where a file's data are, as messages have it. What it means for an offset is `cluster::striping`.
//!
//! A stripe's object is named by the file's inode number where it was put first. One that was moved has a number of its own, which says
//! which stripe it is: so a server can have two stripes of a file, and nobody with an older layout takes one for the other.

use prost::Message;
use types::SAU_BYTES;

use crate::{
    Bad,
    data::Object,
    views::{Member, TWOFOLD, View},
};

/// Data servers of one file at most.
pub const STRIPES_MAX: usize = 64;

/// In an object's number, above what is counted out to inodes: which stripe it is, and one more. 7 of the 40 bits of the local part.
const STRIPE_SHIFT: u32 = 33;
const STRIPE_MASK: u64 = 0x7f << STRIPE_SHIFT;

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct Layout {
    /// One more whenever the file's data are put elsewhere; from 1.
    #[prost(uint32, tag = "1")]
    pub generation: u32,
    /// Bytes on one data server before the next: whole storage allocation units.
    #[prost(uint64, tag = "2")]
    pub unit: u64,
    /// The node of each stripe.
    #[prost(uint64, repeated, tag = "3")]
    pub stripes: Vec<u64>,
    /// The generation in which each stripe was put where it is; 1: it is where it was put first. None: all of them are.
    #[prost(uint32, repeated, tag = "30")]
    pub moved: Vec<u32>,
    /// Who has each stripe, where there are two copies of each; its node is the view's primary. None: there is one.
    #[prost(message, repeated, tag = "70")]
    pub views: Vec<View>,
}

/// The number of a moved stripe's object; `None`: the file's own number leaves no room for it.
pub fn object_number(ino: u64, stripe: usize) -> Option<u64> {
    (stripe < STRIPES_MAX && ino & STRIPE_MASK == 0).then(|| ino | (stripe as u64 + 1) << STRIPE_SHIFT)
}

/// The file and the stripe of a moved stripe's object.
pub fn file_and_stripe(object: u64) -> Option<(u64, usize)> {
    let stripe = usize::try_from((object & STRIPE_MASK) >> STRIPE_SHIFT).ok()?.checked_sub(1)?;
    Some((object & !STRIPE_MASK, stripe))
}

impl Layout {
    pub fn check(&self) -> Result<(), Bad> {
        if self.stripes.len() > STRIPES_MAX {
            return Err(Bad::TooLong { what: "stripes", len: self.stripes.len(), max: STRIPES_MAX });
        }
        if self.stripes.is_empty() || self.stripes.contains(&0) {
            return Err(Bad::Missing("stripe's node"));
        }
        if !self.moved.is_empty() && self.moved.len() != self.stripes.len() {
            return Err(Bad::Range("generations of stripes"));
        }
        if self.moved.iter().any(|generation| !(1..=self.generation).contains(generation)) {
            return Err(Bad::Range("generation of a stripe"));
        }
        // Moved ones have numbers of their own.
        let first = |at: &usize| self.moved_in(*at).is_none();
        let twice = |at: usize| {
            self.stripes[..at]
                .iter()
                .enumerate()
                .any(|(other, node)| *node == self.stripes[at] && first(&other))
        };
        if (0..self.stripes.len()).filter(first).any(twice) {
            return Err(Bad::Range("a node that has two stripes"));
        }
        self.check_views()?;
        if self.generation == 0 || self.unit == 0 || !self.unit.is_multiple_of(SAU_BYTES) {
            return Err(Bad::Range("generation or unit"));
        }
        Ok(())
    }

    fn check_views(&self) -> Result<(), Bad> {
        if self.is_twofold() == self.views.is_empty() {
            return Err(Bad::Missing("view"));
        }
        let fits = |(view, node): (&View, &u64)| view.primary.node == *node && view.check().is_ok();
        let fit = self.views.iter().zip(&self.stripes).all(fits);
        let named = self.moved.iter().all(|generation| generation & TWOFOLD != 0);
        if self.is_twofold()
            && (self.views.len() != self.stripes.len() || self.moved.is_empty() || !named || !fit)
        {
            return Err(Bad::Range("views"));
        }
        Ok(())
    }

    /// There are two copies of each stripe, or are to be.
    pub fn is_twofold(&self) -> bool {
        self.generation & TWOFOLD != 0
    }

    /// Of a new file: of each stripe the primary, and the second if there is one.
    pub fn twofold(unit: u64, members: &[(Member, Option<Member>)]) -> Layout {
        let view = |(primary, second): &(Member, Option<Member>)| {
            let second =
                second.map(|member| crate::views::Second { member, since: 1, counts: true, kept: false });
            View { number: 1, primary: *primary, since: 1, second }
        };
        Layout {
            generation: TWOFOLD,
            unit,
            stripes: members.iter().map(|(primary, _)| primary.node).collect(),
            // Each object has a number of its own, so a server may have the primary of one stripe and the second of another.
            moved: vec![TWOFOLD; members.len()],
            views: members.iter().map(view).collect(),
        }
    }

    /// The next layout, with another view of a stripe.
    pub fn with_view(&self, stripe: usize, view: View) -> Layout {
        let mut next = Layout { generation: self.generation.saturating_add(1), ..self.clone() };
        if let (Some(node), Some(there)) = (next.stripes.get_mut(stripe), next.views.get_mut(stripe)) {
            (*node, *there) = (view.primary.node, view);
        }
        next
    }

    /// The generation in which a stripe was moved to where it is.
    fn moved_in(&self, stripe: usize) -> Option<u32> {
        self.moved.get(stripe).copied().filter(|generation| *generation > 1)
    }

    /// A stripe's object, as its server knows it.
    pub fn object(&self, ino: u64, stripe: usize) -> Object {
        match self.moved_in(stripe) {
            Some(generation) => {
                let view = self.views.get(stripe).copied();
                Object { ino: object_number(ino, stripe).unwrap_or(ino), generation, view }
            }
            None if self.moved.is_empty() => Object { ino, generation: self.generation, view: None },
            None => Object { ino, generation: 1, view: None },
        }
    }

    /// The next layout, with a stripe put elsewhere.
    pub fn with_moved(&self, stripe: usize, to: u64) -> Layout {
        let generation = self.generation.saturating_add(1);
        let mut next = Layout { generation, ..self.clone() };
        if next.moved.is_empty() {
            next.moved = vec![1; next.stripes.len()];
        }
        if let (Some(node), Some(moved)) = (next.stripes.get_mut(stripe), next.moved.get_mut(stripe)) {
            (*node, *moved) = (to, generation);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_stripes_have_numbers_of_their_own() {
        let first =
            Layout { generation: 1, unit: 4 << 20, stripes: vec![3, 1], moved: vec![], views: vec![] };
        let ino = 7 << 40 | 9;
        assert_eq!(first.object(ino, 1), Object { ino, generation: 1, view: None });
        let moved = first.with_moved(1, 3);
        assert_eq!(moved.check(), Ok(()), "both stripes on one node");
        assert_eq!(moved.object(ino, 0), Object { ino, generation: 1, view: None });
        let object = moved.object(ino, 1);
        assert_eq!((object.generation, file_and_stripe(object.ino)), (2, Some((ino, 1))));
        let back = moved.with_moved(0, 1);
        assert_eq!(back.check(), Ok(()));
        assert_eq!((back.generation, back.stripes.clone(), back.moved.clone()), (3, vec![1, 3], vec![3, 2]));
        assert_eq!(file_and_stripe(ino), None);
        assert_eq!(object_number(1 << 33, 0), None);
        assert_eq!(object_number(ino, STRIPES_MAX), None);
        let last = object_number(ino, STRIPES_MAX - 1).and_then(file_and_stripe);
        assert_eq!(last, Some((ino, STRIPES_MAX - 1)));
    }

    #[test]
    fn layouts_of_two_copies() {
        let member = |node| Member { node, life: node + 100 };
        let pairs = [(member(1), Some(member(2))), (member(2), None)];
        let first = Layout::twofold(4 << 20, &pairs);
        assert_eq!(first.check(), Ok(()));
        let ino = 7 << 40 | 9;
        let object = first.object(ino, 0);
        assert_eq!((object.generation, file_and_stripe(object.ino)), (TWOFOLD, Some((ino, 0))));
        assert_eq!(object.view.map(|view| view.counting().count()), Some(2));
        let view = View { number: 2, primary: member(2), since: 2, second: None };
        let next = first.with_view(0, view);
        assert_eq!((next.check(), next.generation, next.stripes.clone()), (Ok(()), TWOFOLD + 1, vec![2, 2]));
        assert_eq!(next.object(ino, 0), Object { view: Some(view), ..object });
        for bad in [
            Layout { views: vec![], ..first.clone() },
            Layout { views: vec![first.views[0]], ..first.clone() },
            Layout { stripes: vec![2, 1], ..first.clone() },
            Layout { moved: vec![], ..first.clone() },
            Layout { generation: 1, ..first.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn layouts_that_break_the_rules() {
        let good =
            Layout { generation: 2, unit: 4 << 20, stripes: vec![3, 3], moved: vec![1, 2], views: vec![] };
        assert_eq!(good.check(), Ok(()));
        for moved in [vec![], vec![1], vec![1, 1], vec![1, 3], vec![0, 2]] {
            assert!(Layout { moved, ..good.clone() }.check().is_err());
        }
    }
}
