//! A node's side: it joins, asks to go on, and knows until when it may act.
//!
//! - I-MEMBER-1: it acts only under a grant of its present joining, and only before that has run out by its own clock.
//!
//! Who acts asks [`Membership::may_act`] before each act. What a process does that is paused between the question and the act, the
//! fence of the database's rows stops.

use std::collections::BTreeMap;

use crate::{
    map::Epoch,
    node::NodeId,
    tenure::{Terms, Time},
};

/// Beats whose answers are still awaited; later ones have made older ones worthless.
const AWAITED_MAX: usize = 8;

/// What a node says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saying {
    /// It wants in. The numbers of its attempts rise, over restarts too.
    Join { node: NodeId, attempt: u64 },
    /// It is there, and wants to go on.
    Beat { node: NodeId, joined: Epoch, number: u64 },
}

/// What it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is in.
    Joined { attempt: u64, joined: Epoch },
    /// It may go on, counted from when it sent the beat.
    Granted { joined: Epoch, number: u64 },
    /// It was given up, or another has its number: it must join anew.
    Refused { joined: Epoch, epoch: Epoch },
}

#[derive(Clone, Debug)]
pub struct Membership {
    node: NodeId,
    terms: Terms,
    attempt: u64,
    joined: Option<Epoch>,
    until: Option<Time>,
    number: u64,
    /// When the beats were sent.
    awaited: BTreeMap<u64, Time>,
    next: Time,
}

impl Membership {
    /// `attempt` is above all that this node ever used.
    pub fn new(node: NodeId, terms: Terms, attempt: u64, now: Time) -> Membership {
        Membership {
            node,
            terms,
            attempt,
            joined: None,
            until: None,
            number: 0,
            awaited: BTreeMap::new(),
            next: now,
        }
    }

    /// The epoch in which it joined.
    pub fn joined(&self) -> Option<Epoch> {
        self.joined
    }

    pub fn may_act(&self, now: Time) -> bool {
        self.joined.is_some() && self.until.is_some_and(|until| now < until)
    }

    /// When there is something to say.
    pub fn next_deadline(&self) -> Time {
        self.next
    }

    pub fn handle_deadline(&mut self, now: Time) -> Option<Saying> {
        if now < self.next {
            return None;
        }
        self.next = now.saturating_add(self.terms.beat_every);
        let Some(joined) = self.joined else {
            return Some(Saying::Join { node: self.node, attempt: self.attempt });
        };
        self.number += 1;
        self.awaited.insert(self.number, now);
        while self.awaited.len() > AWAITED_MAX {
            self.awaited.pop_first();
        }
        Some(Saying::Beat { node: self.node, joined, number: self.number })
    }

    /// What is not about the present joining says nothing.
    pub fn handle(&mut self, now: Time, answer: Answer) {
        match answer {
            Answer::Joined { attempt, joined } => {
                if attempt == self.attempt && self.joined.is_none() {
                    self.joined = Some(joined);
                    self.next = now;
                }
            }
            Answer::Granted { joined, number } => {
                if self.joined == Some(joined)
                    && let Some(sent) = self.awaited.remove(&number)
                {
                    self.until = self.until.max(Some(self.terms.may_until(sent)));
                }
            }
            Answer::Refused { joined, epoch: _ } => {
                if self.joined == Some(joined) {
                    self.joined = None;
                    self.until = None;
                    self.awaited.clear();
                    self.attempt += 1;
                    self.next = now;
                }
            }
        }
    }
}
