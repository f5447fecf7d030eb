//! How the metadata server makes one view of an object into the next.
//!
//! It says what is next; the caller stores that in the layout's record, and tells all whom the views name when it is stored. Views are
//! stored one after the other, each in place of the one that it was made from.
//!
//! - I-KEEPER-1: who counts in a view counted in the one before, or its primary said in that one that it has every byte.
//! - I-KEEPER-2: an object is never left with nobody who counts. Who is to go on alone was asked whether it is there, and said so in that view:
//!   that it was heard of a moment before somebody got no answer of the other does not say that it lives.

use super::{Member, Second, View};

/// What is known about an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Somebody gets no answer of this member, or it is known to be gone, or started again.
    Silent(Member),
    /// By one of two that count, who was asked for it in this view ([`View::asks`]): it is there, and goes on without the other.
    GoesOn { by: Member, view: u64 },
    /// By the primary, in this view: the second one has every byte.
    Complete { view: u64 },
    /// A data server that has room for a second copy; `kept`: it has what it had when it was left behind.
    Room { member: Member, kept: bool },
}

impl View {
    /// Of an object that is made: there is nothing to be copied.
    pub fn first(primary: Member, second: Option<Member>) -> View {
        let second = second.map(|member| Second { member, since: 1, counts: true, kept: false });
        View { number: 1, primary, since: 1, second }
    }

    /// Who is to be asked whether it goes on alone before anything changes; it is asked again whenever the same is known again.
    pub fn asks(&self, known: Known) -> Option<Member> {
        match known {
            Known::Silent(member) if self.counts(member) => self.other(member),
            Known::Silent(_) | Known::GoesOn { .. } | Known::Complete { .. } | Known::Room { .. } => None,
        }
    }

    /// The view to store in place of this one; `None`: it stays. `is_up`: it was heard of lately, in this life.
    pub fn next(&self, known: Known, is_up: impl Fn(Member) -> bool) -> Option<View> {
        let number = self.number + 1;
        match known {
            Known::Silent(member) => {
                self.second.filter(|second| second.member == member && !second.counts)?;
                Some(View { number, second: None, ..*self })
            }
            Known::GoesOn { by, view } => {
                self.other(by).filter(|_| self.counts(by) && self.number == view && is_up(by))?;
                let since = if by == self.primary { self.since } else { number };
                Some(View { number, primary: by, since, second: None })
            }
            Known::Complete { view } => {
                let second = self.second.filter(|second| !second.counts && self.number == view)?;
                Some(View { number, second: Some(Second { counts: true, kept: false, ..second }), ..*self })
            }
            Known::Room { member, kept } => {
                let can = self.second.is_none() && member.node != self.primary.node && is_up(self.primary);
                can.then_some(View {
                    number,
                    second: Some(Second { member, since: number, counts: false, kept }),
                    ..*self
                })
            }
        }
    }
}
