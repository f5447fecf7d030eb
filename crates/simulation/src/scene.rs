//! What all processes of a run share: time, chance, the network, and the truth that answers are held against.

use std::time::Duration;

use cluster::tenure::Time;

use crate::{
    cast::{Broken, METADATA_SERVERS, Place},
    chance::{Random, Weather},
    content::ContentTruth,
    names::NameTruth,
    network::Network,
    tail::TailTruth,
};

impl Tally {
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("calls", self.calls),
            ("answers from a cache", self.from_cache),
            ("recalls", self.recalls),
            ("sessions fenced", self.fenced_sessions),
            ("commits fenced", self.fenced_commits),
            ("sessions that came back", self.came_back),
            ("sessions lost", self.gone),
            ("slots taken on again", self.take_overs),
            ("locks", self.locks),
            ("refused at data servers", self.refused_data),
            ("calls lost", self.errors),
            ("kills", self.kills),
            ("pauses", self.pauses),
            ("power cuts", self.power_cuts),
            ("requests made again", self.again),
            ("answers given again", self.known_answers),
            ("moved down", self.moved_down),
            ("slots handed over", self.handed_over),
            ("locks handed over", self.locks_handed_over),
        ]
    }
}

/// What a run met. One that meets only fair weather shows nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub calls: u64,
    pub from_cache: u64,
    pub recalls: u64,
    pub fenced_sessions: u64,
    pub fenced_commits: u64,
    pub came_back: u64,
    pub gone: u64,
    pub take_overs: u64,
    pub locks: u64,
    pub refused_data: u64,
    pub errors: u64,
    pub kills: u64,
    pub pauses: u64,
    pub power_cuts: u64,
    pub again: u64,
    pub known_answers: u64,
    pub moved_down: u64,
    pub handed_over: u64,
    pub locks_handed_over: u64,
}

pub struct Scene {
    pub random: Random,
    pub net: Network,
    pub broken: Broken,
    pub weather: Weather,
    /// Servers have journals, and standbys for their ends.
    pub journals: bool,
    /// Of metadata, that take part; the last one may only keep copies.
    pub servers: usize,
    pub third_only: bool,
    pub names: NameTruth,
    pub content: ContentTruth,
    pub tail: TailTruth,
    pub tally: Tally,
    pub wrong: Option<String>,
    numbers: u64,
}

impl Scene {
    pub fn new(random: Random, net: Network, weather: Weather, broken: Broken) -> Scene {
        Scene {
            random,
            net,
            broken,
            weather,
            journals: false,
            servers: METADATA_SERVERS - 1,
            third_only: false,
            names: NameTruth::begin(),
            content: ContentTruth::begin(),
            tail: TailTruth::default(),
            tally: Tally::default(),
            wrong: None,
            numbers: 0,
        }
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
        let most = if !slow {
            15
        } else if self.random.one_in(8) {
            3000
        } else {
            500
        };
        self.random.millis(most)
    }
}
