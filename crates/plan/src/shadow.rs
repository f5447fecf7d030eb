//! What a plan would have been worth, measured on a run of its job, whether it acts or not.
//!
//! As if all came up in no time: a file is a hit if its group might have come up before it was opened. What the plan would have
//! brought up and nobody opened counts against it as much as what it did not know. The opening that names the job is
//! before any plan, and not counted.

use std::collections::BTreeMap;

use types::Ino;

use crate::{
    history::Score,
    order::{Judge, Order, Wrongness},
};

#[derive(Debug)]
pub struct Shadow {
    planned: BTreeMap<Ino, Planned>,
    current: Option<u32>,
    judge: Judge,
    is_wrong: bool,
    begun: bool,
    hits: u32,
    missed: u32,
}

#[derive(Debug)]
struct Planned {
    group: u32,
    opened: bool,
}

impl Shadow {
    pub fn new(groups: &[Vec<Ino>]) -> Shadow {
        let mut planned = BTreeMap::new();
        for (group, files) in groups.iter().enumerate() {
            for ino in files {
                planned.entry(*ino).or_insert(Planned { group: group as u32, opened: false });
            }
        }
        Shadow {
            planned,
            current: None,
            judge: Judge::new(Wrongness::HISTORY),
            is_wrong: false,
            begun: false,
            hits: 0,
            missed: 0,
        }
    }

    /// The first opening of this file in the run.
    pub fn opened(&mut self, ino: Ino) {
        let first = !std::mem::replace(&mut self.begun, true);
        let frontier = self.current.map_or(0, |group| group + 1);
        let (group, is_hit) = match self.planned.get_mut(&ino) {
            Some(planned) => {
                planned.opened = true;
                (Some(planned.group), planned.group <= frontier && !self.is_wrong)
            }
            None => (None, false),
        };
        let order = Order::of(group, self.current);
        if let Order::Right(group) | Order::Ahead(group) = order {
            self.current = Some(self.current.map_or(group, |current| current.max(group)));
        }
        self.is_wrong |= self.judge.hear(order);
        if !first {
            self.hits += u32::from(is_hit);
            self.missed += u32::from(!is_hit);
        }
    }

    /// At the end of the run.
    pub fn score(&self, acted: bool) -> Score {
        let frontier = self.current.map_or(0, |group| group + 1);
        let in_vain = self.planned.values().filter(|p| p.group <= frontier && !p.opened).count();
        Score { hits: self.hits, missed: self.missed, in_vain: in_vain as u32, acted }
    }
}
