//! A run: all processes, what befalls them, and what has to hold at the end.

use std::{collections::BTreeMap, time::Duration};

use cluster::replica::{Member, View};

use super::{
    cast::{CELLS, KEEPERS, Left, MACHINES, OBJECTS, epoch, node, place_of, server_of},
    client::Client,
    keeper::Keeper,
    records::Records,
    server::Server,
    stage::{Stage, Tally},
    truth::Found,
};
use crate::{
    cast::{Broken, CLIENTS, DATA_SERVERS, END, FAULTS_UNTIL, Place, STEP, WORK_UNTIL},
    chance::{Random, Weather},
    network::Network,
    store::Devices,
    trace::Trace,
};

pub struct World {
    stage: Stage,
    records: Records,
    keepers: Vec<Keeper>,
    servers: Vec<Server>,
    clients: Vec<Client>,
    starts: BTreeMap<Place, u64>,
    paused_until: BTreeMap<Place, Duration>,
    down_until: BTreeMap<Place, Duration>,
    /// Of data servers: the last life of each that ended without power.
    without_power: BTreeMap<usize, u64>,
}

/// What a run came to.
pub struct Outcome {
    pub wrong: Option<String>,
    pub tally: Tally,
    pub hash: u64,
    pub trace: Vec<String>,
    pub ended: Duration,
}

impl World {
    pub fn new(seed: u64, left: Left, traced: bool) -> World {
        let mut random = Random::new(seed ^ 0x7c0_71e5);
        let any = Weather { machines: MACHINES, ..Weather::of(&mut random) };
        let weather = match left.weather() {
            Some(weather) => weather,
            None if seed % 4 == 3 => Weather { machines: MACHINES, ..Weather::ROUGH },
            None if seed % 8 == 1 => super::cast::POWER,
            None => any,
        };
        let net = Network::new(Random::new(random.next()), weather, Broken::Nothing, Trace::wanted(traced));
        let mut stage = Stage::new(random, net, weather, left);
        stage.note(|| format!("two copies, seed {seed}, {left:?}, {weather:?}"));
        let begin = |at| Server::begin(at, 1, Devices::default(), left, stage.local(Place::Data(at)));
        World {
            records: Records::begin(),
            keepers: (0..KEEPERS).map(Keeper::begin).collect(),
            servers: (0..DATA_SERVERS).map(begin).collect(),
            clients: (0..CLIENTS).map(Client::begin).collect(),
            stage,
            starts: BTreeMap::new(),
            paused_until: BTreeMap::new(),
            down_until: BTreeMap::new(),
            without_power: BTreeMap::new(),
        }
    }

    fn places() -> Vec<Place> {
        let all = |count: usize, of: fn(usize) -> Place| (0..count).map(of);
        std::iter::once(Place::Database)
            .chain(all(KEEPERS, Place::Metadata))
            .chain(all(DATA_SERVERS, Place::Data))
            .chain(all(CLIENTS, Place::Client))
            .collect()
    }

    /// From the beginning to rest, or to the first thing that is wrong.
    pub fn run(mut self) -> Outcome {
        let mut calm = false;
        while self.stage.wrong.is_none() {
            self.stage.net.now += STEP;
            let now = self.stage.now();
            if now < FAULTS_UNTIL {
                self.trouble();
            } else if !calm {
                calm = true;
                self.calm();
            }
            self.step();
            if now > WORK_UNTIL && self.is_at_rest() {
                let verdict = self.compare();
                self.stage.judge(verdict);
                break;
            }
            if now > END {
                let waits = self.waits();
                self.stage.judge(Err(format!("it does not come to rest: {waits}")));
            }
        }
        let Stage { net, tally, wrong, .. } = self.stage;
        Outcome { wrong, tally, hash: net.trace.hash(), ended: net.now, trace: net.trace.lines }
    }

    fn is_running(&self, place: Place) -> bool {
        let now = self.stage.now();
        let paused = self.paused_until.get(&place).is_some_and(|until| now < *until);
        !paused && !self.down_until.contains_key(&place)
    }

    fn step(&mut self) {
        self.start_again();
        for place in Self::places() {
            if !self.is_running(place) {
                continue;
            }
            self.stage.net.arrive(place);
            match place {
                Place::Database => {
                    for (object, old, next) in self.records.run(&mut self.stage) {
                        self.stored(object, &old, &next);
                    }
                }
                Place::Metadata(at) => self.keepers[at].run(&mut self.stage),
                Place::Data(at) => self.servers[at].run(&mut self.stage),
                Place::Client(at) => self.clients[at].run(&mut self.stage),
                Place::Coordinator(_) => (),
            }
            self.stage.net.flush(place);
        }
    }

    fn lives(&self, member: Member) -> bool {
        let at = server_of(member);
        !self.down_until.contains_key(&Place::Data(at)) && self.servers[at].me() == member
    }

    /// A view is stored: what that means for what may be lost.
    fn stored(&mut self, object: u64, old: &View, next: &View) {
        self.stage.tally.views += 1;
        self.stage.note(|| format!("object {object} has {next:?}"));
        if epoch(next) == epoch(old) {
            // Who said that he goes on alone has died before anybody knew.
            let dead = !next.members().any(|member| self.lives(member));
            if dead && self.stage.truth.beyond_budget.insert(object) {
                self.stage.tally.last_words += 1;
            }
            return;
        }
        self.stage.tally.revived += 1;
        let member = next.primary;
        let counted = old.members().find(|of| of.node == member.node).map_or(0, |of| of.life);
        let without_power = self.without_power.get(&server_of(member)).is_some_and(|life| *life >= counted);
        let tiers = &self.servers[server_of(member)].tiers;
        let values = self.lives(member).then(|| (0..CELLS).map(|cell| tiers.read(object, cell)).collect());
        let now = self.stage.now();
        let found = Found { values, without_power };
        match self.stage.truth.revived(now, object, next, found) {
            Ok(lost) => self.stage.tally.lost_cells += lost,
            Err(why) => self.stage.judge(Err(why)),
        }
        if !self.lives(member) {
            self.stage.truth.beyond_budget.insert(object);
        }
    }

    fn trouble(&mut self) {
        let weather = self.stage.weather;
        let (places, now) = (Self::places(), self.stage.now());
        let random = &mut self.stage.random;
        if random.one_in(weather.cut)
            && let (Some(from), Some(to)) = (random.any(&places), random.any(&places))
        {
            let until = now + random.millis(3000);
            let both = random.one_in(2);
            self.stage.net.cut(from, to, until);
            if both {
                self.stage.net.cut(to, from, until);
            }
        }
        let random = &mut self.stage.random;
        if random.one_in(weather.reset) {
            self.stage.net.reset_one();
        }
        let random = &mut self.stage.random;
        if random.one_in(weather.pause)
            && let Some(place) = random.any(&places)
        {
            let until = now + random.millis(2500);
            self.stage.tally.pauses += 1;
            self.stage.note(|| format!("{place:?} is stopped until {until:?}"));
            self.paused_until.insert(place, until);
        }
        let random = &mut self.stage.random;
        if random.one_in(weather.kill)
            && let Some(place) = random.any(&places)
        {
            let until = now + Duration::from_millis(20) + random.millis(1200);
            self.end(place, until, false);
        }
        let random = &mut self.stage.random;
        if random.one_in(weather.power)
            && let Some(place) = random.any(weather.machines)
        {
            let until = now + Duration::from_millis(50) + random.millis(1200);
            self.end(place, until, true);
        }
    }

    fn end(&mut self, place: Place, until: Duration, power_cut: bool) {
        if self.down_until.contains_key(&place) {
            return;
        }
        self.stage.note(|| {
            format!("{place:?} {} until {until:?}", if power_cut { "loses power" } else { "is killed" })
        });
        self.paused_until.remove(&place);
        self.down_until.insert(place, until);
        self.stage.net.end_process(place, !power_cut);
        if power_cut {
            self.stage.tally.power_cuts += 1;
        } else {
            self.stage.tally.kills += 1;
        }
        match place {
            Place::Database => self.records.end(),
            Place::Client(at) => self.clients[at].end(&mut self.stage),
            Place::Data(at) => {
                let life = self.servers[at].life;
                if power_cut {
                    self.without_power.insert(at, life);
                    self.servers[at].tiers.devices.power_cut(&mut self.stage.random);
                }
                self.count_losses(Member { node: node(at), life });
            }
            _ => (),
        }
    }

    /// Who has just died was perhaps the last one that counted.
    fn count_losses(&mut self, member: Member) {
        for object in 0..OBJECTS {
            let Some(view) = self.records.views.get(&object) else { continue };
            if view.counts(member) && !view.members().any(|other| self.lives(other)) {
                self.stage.truth.beyond_budget.insert(object);
            }
        }
    }

    fn start_again(&mut self) {
        let now = self.stage.now();
        let due: Vec<Place> =
            self.down_until.iter().filter(|(_, until)| **until <= now).map(|(place, _)| *place).collect();
        for place in due {
            self.down_until.remove(&place);
            let starts = self.starts.entry(place).or_default();
            *starts += 1;
            let life = *starts + 1;
            self.stage.net.begin_process(place);
            self.stage.note(|| format!("{place:?} begins"));
            match place {
                Place::Metadata(at) => self.keepers[at] = Keeper::begin(at),
                Place::Client(at) => self.clients[at] = Client::begin(at),
                Place::Data(at) => {
                    let devices = std::mem::take(&mut self.servers[at].tiers.devices);
                    let (left, local) = (self.stage.left, self.stage.local(place));
                    self.servers[at] = Server::begin(at, life, devices, left, local);
                }
                Place::Database | Place::Coordinator(_) => (),
            }
        }
    }

    /// No more faults: whoever is down or stopped goes on.
    fn calm(&mut self) {
        self.stage.note(|| "the faults stop".to_owned());
        self.stage.net.calm();
        self.stage.weather = Weather::FAIR;
        self.paused_until.clear();
        for until in self.down_until.values_mut() {
            *until = FAULTS_UNTIL;
        }
    }

    fn is_whole(&self, view: &View) -> bool {
        view.members().count() == 2 && view.members().all(|member| self.lives(member))
    }

    fn is_at_rest(&self) -> bool {
        self.clients.iter().all(Client::is_at_rest)
            && self.records.views.values().all(|view| self.is_whole(view))
            && self.servers.iter().all(Server::is_at_rest)
    }

    /// At rest: both copies are the same, and all that was answered has an order.
    fn compare(&self) -> Result<(), String> {
        for (object, view) in &self.records.views {
            for cell in 0..CELLS {
                let values: Vec<_> = view
                    .members()
                    .map(|member| {
                        (place_of(member), self.servers[server_of(member)].tiers.read(*object, cell))
                    })
                    .collect();
                if values.iter().any(|(_, value)| *value != values[0].1) {
                    return Err(format!("the copies of {object}:{cell} differ: {values:?} in {view:?}"));
                }
            }
        }
        self.stage.truth.check()
    }

    fn waits(&self) -> String {
        let clients: Vec<String> = self.clients.iter().filter_map(Client::waits).collect();
        let data: Vec<bool> = self.servers.iter().map(Server::is_at_rest).collect();
        format!("{clients:?} {:?} data at rest {data:?}", self.records.views)
    }
}
