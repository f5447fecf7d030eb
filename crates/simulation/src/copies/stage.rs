//! What all processes of a run share.

use std::time::Duration;

use cluster::tenure::Time;

use super::{cast::Left, said::Said, truth::Truth};
use crate::{
    cast::Place,
    chance::{Random, Weather},
    message::Message,
    network::{Network, Ticket},
};

/// What a run met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub reads: u64,
    pub writes: u64,
    pub syncs: u64,
    pub elsewhere: u64,
    pub views: u64,
    pub rejoined: u64,
    pub revived: u64,
    pub lost_cells: u64,
    pub told: u64,
    pub moved: u64,
    pub dropped: u64,
    pub made_room: u64,
    /// Pieces of a new second that it had from before, or had not.
    pub same: u64,
    pub differed: u64,
    pub kills: u64,
    pub pauses: u64,
    pub power_cuts: u64,
    pub last_words: u64,
    pub not_taken: u64,
}

impl Tally {
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("reads", self.reads),
            ("writes", self.writes),
            ("syncs", self.syncs),
            ("asked elsewhere", self.elsewhere),
            ("changes of a view", self.views),
            ("came back with what they had", self.rejoined),
            ("both copies lost", self.revived),
            ("cells lost with both", self.lost_cells),
            ("syncs that told of a loss", self.told),
            ("moved between tiers", self.moved),
            ("copies dropped", self.dropped),
            ("copies given up for room", self.made_room),
            ("pieces that were there", self.same),
            ("pieces that differed", self.differed),
            ("kills", self.kills),
            ("pauses", self.pauses),
            ("power cuts", self.power_cuts),
            ("who said that he goes on and died", self.last_words),
            ("views not taken", self.not_taken),
        ]
    }
}

pub struct Stage {
    pub random: Random,
    pub net: Network,
    pub weather: Weather,
    pub left: Left,
    pub truth: Truth,
    pub tally: Tally,
    pub wrong: Option<String>,
    numbers: u64,
}

impl Stage {
    pub fn new(random: Random, net: Network, weather: Weather, left: Left) -> Stage {
        let (truth, tally) = (Truth::begin(), Tally::default());
        Stage { random, net, weather, left, truth, tally, wrong: None, numbers: 0 }
    }

    pub fn now(&self) -> Duration {
        self.net.now
    }

    pub fn local(&self, place: Place) -> Time {
        self.net.local(place)
    }

    /// One that nobody else has.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub fn ask(&mut self, from: Place, to: Place, said: Said, patience: Duration) -> u64 {
        self.net.ask(from, to, Message::Copies(Box::new(said)), patience)
    }

    pub fn answer(&mut self, ticket: Ticket, said: Said) {
        self.net.answer(ticket, Message::Copies(Box::new(said)));
    }

    pub fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.net.now;
        self.net.trace.note(now, what);
    }

    /// The first thing that is wrong ends the run.
    pub fn judge(&mut self, verdict: Result<(), String>) {
        if let Err(why) = verdict {
            self.note(|| format!("WRONG: {why}"));
            let now = self.now();
            self.wrong.get_or_insert_with(|| format!("{now:?}: {why}"));
        }
    }

    /// How long a disk takes.
    pub fn disk(&mut self) -> Duration {
        let slow = self.random.one_in(self.weather.slow_disk);
        self.random.millis(if slow { 700 } else { 15 })
    }
}
