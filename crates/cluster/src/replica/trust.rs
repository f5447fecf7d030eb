//! For how long a data server may answer for objects that it has together with another one, without asking that one again.
//!
//! Who goes on without a member must know that it has stopped. So each lets the other answer for a while, and who goes on with an object
//! alone tells the other so, or waits until that while is over. No more is granted until it was told: a grant is for all objects that both have.
//!
//! - I-TRUST-1: an object that is settled here is answered for by the other one no more.

use std::collections::BTreeMap;

use types::Ino;

use crate::tenure::{Terms, Time};

/// Questions without an answer that are remembered.
const ASKED_MAX: usize = 64;

/// What two data servers let each other do, on one side.
#[derive(Clone, Debug)]
pub struct Trust {
    terms: Terms,
    number: u64,
    asked: BTreeMap<u64, Time>,
    until: Time,
    granted: Option<Time>,
    /// Objects that it has no more, each with the view, which it was not heard to know.
    untold: BTreeMap<Ino, u64>,
}

impl Trust {
    pub fn new(terms: Terms) -> Trust {
        Trust {
            terms,
            number: 0,
            asked: BTreeMap::new(),
            until: Time::ZERO,
            granted: None,
            untold: BTreeMap::new(),
        }
    }

    /// We may answer.
    pub fn may_act(&self, now: Time) -> bool {
        now < self.until
    }

    /// A question to the other one; its number.
    pub fn ask(&mut self, now: Time) -> u64 {
        self.number += 1;
        self.asked.insert(self.number, now);
        while self.asked.len() > ASKED_MAX {
            self.asked.pop_first();
        }
        self.number
    }

    /// It said yes.
    pub fn granted(&mut self, number: u64) {
        if let Some(asked) = self.asked.get(&number) {
            self.until = self.until.max(self.terms.may_until(*asked));
            self.asked = self.asked.split_off(&number);
        }
    }

    /// The other one asks.
    pub fn grant(&mut self, now: Time) -> bool {
        if self.untold.is_empty() {
            self.granted = Some(now);
        }
        self.untold.is_empty()
    }

    /// The object is not the other one's any more, since this view.
    pub fn leave_out(&mut self, object: Ino, view: u64) {
        let known = self.untold.entry(object).or_default();
        *known = view.max(*known);
    }

    /// What is to be told.
    pub fn untold(&self) -> impl Iterator<Item = (Ino, u64)> {
        self.untold.iter().map(|(object, view)| (*object, *view))
    }

    /// It knows that, and answers no more for the object.
    pub fn knows(&mut self, object: Ino, view: u64) {
        if self.untold.get(&object).is_some_and(|left_out| *left_out <= view) {
            self.untold.remove(&object);
        }
    }

    /// The other one does not answer for the object any more.
    pub fn is_settled(&self, now: Time, object: Ino) -> bool {
        !self.untold.contains_key(&object) || self.settles_at() <= now
    }

    /// What was granted has ended then.
    pub fn settles_at(&self) -> Time {
        self.granted.map_or(Time::ZERO, |granted| self.terms.ended_at(granted))
    }
}
