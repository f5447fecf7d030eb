//! Is the list right? Measured on the last files that were opened.

use std::collections::VecDeque;

/// How much may be wrong: more than `share_max` of the last `window` files, once there were `least`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wrongness {
    pub window: usize,
    pub least: usize,
    pub share_max: f64,
}

impl Wrongness {
    /// Of a list that a program gave: it knows what it reads. More than half of the last 32 files, from 16 on.
    pub const LIST: Wrongness = Wrongness { window: 32, least: 16, share_max: 0.5 };
    /// Of a plan from history, which is a guess: more than a quarter of the last 16 files, from 4 on.
    pub const HISTORY: Wrongness = Wrongness { window: 16, least: 4, share_max: 0.25 };
}

/// How an opening fits a list that is being read at some group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Of this group, which is the one being read, the one before or the one after it.
    Right(u32),
    /// Of a group further on: those between are passed over.
    Ahead(u32),
    /// Of a group that was left behind.
    Behind,
    /// Not of the list.
    Outside,
}

impl Order {
    /// Groups may overlap where several processes read them, so one to either side is right.
    pub fn of(group: Option<u32>, current: Option<u32>) -> Order {
        match (group, current) {
            (None, _) => Order::Outside,
            (Some(group), None) if group == 0 => Order::Right(group),
            (Some(group), None) => Order::Ahead(group),
            (Some(group), Some(current)) if group > current + 1 => Order::Ahead(group),
            (Some(group), Some(current)) if group + 1 < current => Order::Behind,
            (Some(group), Some(_)) => Order::Right(group),
        }
    }

    pub const fn is_right(self) -> bool {
        match self {
            Order::Right(_) => true,
            Order::Ahead(_) | Order::Behind | Order::Outside => false,
        }
    }
}

/// Counts right and wrong openings.
#[derive(Clone, Debug)]
pub struct Judge {
    limits: Wrongness,
    /// The last ones: was it wrong?
    last: VecDeque<bool>,
    seen: u64,
    wrong: u64,
}

impl Judge {
    pub fn new(limits: Wrongness) -> Judge {
        Judge { limits, last: VecDeque::with_capacity(limits.window), seen: 0, wrong: 0 }
    }

    /// Is the list wrong, with this one?
    pub fn hear(&mut self, order: Order) -> bool {
        let wrong = !order.is_right();
        if self.last.len() == self.limits.window {
            self.last.pop_front();
        }
        self.last.push_back(wrong);
        self.seen += 1;
        self.wrong += u64::from(wrong);
        let bad = self.last.iter().filter(|wrong| **wrong).count();
        self.last.len() >= self.limits.least && bad as f64 > self.limits.share_max * self.last.len() as f64
    }

    /// All openings that were judged, and the wrong ones of them.
    pub fn counts(&self) -> (u64, u64) {
        (self.seen, self.wrong)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: one group to either side is right, and the share of wrong ones decides at its stated numbers. Method: tables.
    use super::*;

    #[test]
    fn the_neighbours_of_the_group_being_read_are_right() {
        assert_eq!(Order::of(Some(0), None), Order::Right(0));
        assert_eq!(Order::of(Some(1), None), Order::Ahead(1));
        let at_five = |group| Order::of(Some(group), Some(5));
        assert_eq!([3, 4, 5, 6, 7].map(at_five).map(Order::is_right), [false, true, true, true, false]);
        assert_eq!(Order::of(None, Some(5)), Order::Outside);
    }

    #[test]
    fn the_stated_shares_decide() {
        let first_refusal = |limits, wrong_every: usize| {
            let mut judge = Judge::new(limits);
            (1..=1000)
                .find(|n| judge.hear(if n % wrong_every == 0 { Order::Outside } else { Order::Right(0) }))
        };
        assert_eq!(first_refusal(Wrongness::LIST, 1), Some(16), "all are wrong");
        assert_eq!(first_refusal(Wrongness::LIST, 2), None, "half is not more than half");
        assert_eq!(first_refusal(Wrongness::HISTORY, 1), Some(4));
        assert_eq!(first_refusal(Wrongness::HISTORY, 4), None);
        assert_eq!(first_refusal(Wrongness::HISTORY, 3), Some(6), "2 of 6");
        // Right for long, then another program: what was right before does not count beyond the window.
        let mut judge = Judge::new(Wrongness::LIST);
        assert!(!(0..10_000).any(|_| judge.hear(Order::Right(0))));
        assert_eq!((1..=32).find(|_| judge.hear(Order::Outside)), Some(17));
        assert_eq!(judge.counts(), (10_017, 17));
    }
}
