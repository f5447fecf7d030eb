//! A run: all processes, what befalls them, and what has to hold at each moment and at the end.

use std::{collections::BTreeMap, time::Duration};

use lease::coherence::ranges::Kind;

use crate::{
    cast::{
        Broken, CLIENTS, COORDINATORS, DATA_SERVERS, END, FAULTS_UNTIL, METADATA_SERVERS, Place, STEP,
        WORK_UNTIL, spot,
    },
    chance::{Random, Weather},
    client::Client,
    coordinator::Coordinator,
    data::{DataServer, Fences},
    database::{Database, env},
    metadata::Metadata,
    network::Network,
    scene::{Scene, Tally},
    store::Devices,
    tail::{Disk, TailTruth},
    trace::Trace,
};

pub struct World {
    scene: Scene,
    database: Database,
    coordinators: Vec<Coordinator>,
    metadata: Vec<Metadata>,
    data: Vec<DataServer>,
    clients: Vec<Client>,
    /// How often each was started again.
    starts: BTreeMap<Place, u64>,
    paused_until: BTreeMap<Place, Duration>,
    /// Down until then, and whether its machine lost power.
    down_until: BTreeMap<Place, (Duration, bool)>,
    /// Its machine is gone, and what was on it: it is another one when its standby has gone on.
    lost: BTreeMap<Place, u64>,
}

/// What a run came to.
pub struct Outcome {
    pub wrong: Option<String>,
    pub tally: Tally,
    pub hash: u64,
    pub trace: Vec<String>,
    pub ended: Duration,
    pub commits: u64,
    pub kept: u64,
    pub kept_lost: u64,
    pub bytes_lost: u64,
    pub names_lost: u64,
    pub connections_broken: u64,
    pub frames: u64,
    pub tail: TailTruth,
}

impl Outcome {
    /// What it met, by name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let mut counts = self.tally.counts();
        counts.extend([
            ("commits", self.commits),
            ("writes kept", self.kept),
            ("writes lost with their keeper", self.kept_lost),
            ("bytes lost by power cuts", self.bytes_lost),
            ("names lost by power cuts", self.names_lost),
            ("connections broken", self.connections_broken),
            ("frames", self.frames),
            ("copies complete", self.tail.complete),
            ("servers gone on for", self.tail.take_overs),
            ("records that only a standby had", self.tail.brought),
            ("machines lost", self.tail.machines_lost),
        ]);
        counts
    }
}

impl World {
    pub fn new(seed: u64, broken: Broken, traced: bool) -> World {
        let mut random = Random::new(seed);
        let any = Weather::of(&mut random);
        let weather = match Weather::for_want_of(broken) {
            Some(weather) => weather,
            None if seed % 4 == 3 => Weather::ROUGH,
            None => any,
        };
        let net = Network::new(Random::new(random.next()), weather, broken, Trace::wanted(traced));
        let mut scene = Scene::new(random, net, weather, broken);
        scene.journals = broken.is_of_tails() || broken == Broken::Nothing && seed % 3 == 2;
        if scene.journals && scene.random.below(3) > 0 {
            scene.servers = METADATA_SERVERS;
            scene.third_only = scene.random.one_in(2);
        }
        let (journals, servers) = (scene.journals, scene.servers);
        scene
            .note(|| format!("seed {seed}, {broken:?}, journals {journals}, {servers} servers, {weather:?}"));
        let data =
            (0..DATA_SERVERS).map(|at| DataServer::begin(at, Devices::default(), Fences::default(), broken));
        World {
            database: Database::new(),
            coordinators: (0..COORDINATORS).map(|at| Coordinator::new((at, 0))).collect(),
            metadata: (0..scene.servers)
                .map(|at| Metadata::new(&mut scene, at, 0, Disk::default()))
                .collect(),
            data: data.collect(),
            clients: (0..CLIENTS).map(|at| Client::new(&scene, at, 0)).collect(),
            scene,
            starts: BTreeMap::new(),
            paused_until: BTreeMap::new(),
            down_until: BTreeMap::new(),
            lost: BTreeMap::new(),
        }
    }

    /// From the beginning to rest, or to the first thing that is wrong.
    pub fn run(mut self) -> Outcome {
        let mut calm = false;
        while self.scene.wrong.is_none() {
            self.scene.net.now += STEP;
            let now = self.scene.now();
            if now < FAULTS_UNTIL {
                self.trouble();
            } else if !calm {
                calm = true;
                self.calm();
            }
            self.step();
            self.together();
            if now > WORK_UNTIL && self.is_at_rest() {
                let verdict = self.compare();
                self.scene.judge(verdict);
                break;
            }
            if now > END {
                let waits = self.waits();
                self.scene.judge(Err(format!("it does not come to rest: {waits}")));
            }
        }
        let Scene { net, names, content, tail, tally, wrong, .. } = self.scene;
        Outcome {
            wrong,
            tally,
            hash: net.trace.hash(),
            ended: net.now,
            commits: names.commits,
            kept: content.kept,
            kept_lost: content.kept_lost,
            bytes_lost: content.lost,
            names_lost: names.taken_away,
            connections_broken: net.broken_off,
            frames: net.frames,
            tail,
            trace: net.trace.lines,
        }
    }

    fn is_running(&self, place: Place) -> bool {
        let now = self.scene.now();
        let paused = self.paused_until.get(&place).is_some_and(|until| now < *until);
        !paused && !self.down_until.contains_key(&place)
    }

    /// Who takes part.
    fn places(&self) -> Vec<Place> {
        let absent = |place: &Place| matches!(place, Place::Metadata(at) if *at >= self.metadata.len());
        Place::all().into_iter().filter(|place| !absent(place)).collect()
    }

    fn step(&mut self) {
        self.start_again();
        for place in self.places() {
            if !self.is_running(place) {
                continue;
            }
            self.scene.net.arrive(place);
            match place {
                Place::Database => self.database.run(&mut self.scene),
                Place::Coordinator(at) => self.coordinators[at].run(&mut self.scene),
                Place::Metadata(at) => self.metadata[at].run(&mut self.scene),
                Place::Data(at) => self.data[at].run(&mut self.scene),
                Place::Client(at) => self.clients[at].run(&mut self.scene),
            }
            self.scene.net.flush(place);
        }
    }

    fn trouble(&mut self) {
        let weather = self.scene.weather;
        let places = weather.who.map_or_else(|| self.places(), <[Place]>::to_vec);
        let now = self.scene.now();
        let random = &mut self.scene.random;
        if random.one_in(weather.cut)
            && let (Some(from), Some(to)) = (random.any(&places), random.any(&places))
        {
            let until = now + random.millis(3000);
            self.scene.net.cut(from, to, until);
        }
        let random = &mut self.scene.random;
        if random.one_in(weather.reset) {
            self.scene.net.reset_one();
        }
        let random = &mut self.scene.random;
        if random.one_in(weather.pause)
            && let Some(place) = random.any(&places)
        {
            let until = now + random.millis(3500);
            self.scene.tally.pauses += 1;
            self.scene.note(|| format!("{place:?} is stopped until {until:?}"));
            self.paused_until.insert(place, until);
        }
        let random = &mut self.scene.random;
        if random.one_in(weather.kill)
            && let Some(place) = random.any(&places)
        {
            let until = now + Duration::from_millis(20) + random.millis(1500);
            self.end(place, until, false);
        }
        let random = &mut self.scene.random;
        if random.one_in(weather.power)
            && let Some(place) = random.any(weather.machines)
        {
            let until = now + Duration::from_millis(50) + random.millis(1500);
            self.end(place, until, true);
        }
        if self.scene.journals {
            self.trouble_of_servers();
        }
    }

    /// Of journals: servers that cannot hear each other or the database, and machines that are gone.
    fn trouble_of_servers(&mut self) {
        let (weather, now) = (self.scene.weather, self.scene.now());
        let random = &mut self.scene.random;
        let at = random.below(self.metadata.len() as u64) as usize;
        if random.one_in(weather.part) {
            let other =
                (at + 1 + random.below(self.metadata.len() as u64 - 1) as usize) % self.metadata.len();
            let other = if random.one_in(4) { Place::Database } else { Place::Metadata(other) };
            let until = now + random.millis(4000);
            self.scene.net.cut(Place::Metadata(at), other, until);
            self.scene.net.cut(other, Place::Metadata(at), until);
        }
        let random = &mut self.scene.random;
        if random.one_in(weather.kill) {
            let until = now + random.millis(6000);
            self.end(Place::Metadata(at), until, false);
        }
        let random = &mut self.scene.random;
        if random.one_in(weather.lost) {
            let until = now + random.millis(3000);
            self.lose_machine(at, until);
        }
    }

    /// Only if somebody has a copy, who is not lost himself. A server that goes on without may have said so to the database already.
    fn lose_machine(&mut self, at: usize, until: Duration) {
        let (place, node) = (Place::Metadata(at), Place::node_id(at));
        let Some((by, copy)) = self.database.writers.complete(node) else { return };
        let standby = self.metadata.get(by.0 as usize - 1).and_then(|server| server.journal.as_ref());
        let has = standby.is_some_and(|of| of.disk.files.get(&node).is_some_and(|file| file.copy == copy));
        let held = self.metadata[at].journal.as_ref().is_some_and(|journal| journal.is_held());
        let down = self.down_until.contains_key(&place);
        if !has || !held || down || !self.lost.is_empty() {
            return;
        }
        self.scene.note(|| format!("the machine of {place:?} is lost"));
        self.scene.tail.machines_lost += 1;
        self.lost.insert(place, self.database.writers.taken_over(node));
        self.end(place, until, true);
    }

    fn end(&mut self, place: Place, until: Duration, power_cut: bool) {
        if self.down_until.contains_key(&place) {
            return;
        }
        self.scene.note(|| {
            format!("{place:?} {} until {until:?}", if power_cut { "loses power" } else { "is killed" })
        });
        self.paused_until.remove(&place);
        self.down_until.insert(place, (until, power_cut));
        self.scene.net.end_process(place, !power_cut);
        if power_cut {
            self.scene.tally.power_cuts += 1;
        } else {
            self.scene.tally.kills += 1;
        }
        // What is on the disks from this moment on.
        match place {
            Place::Database if power_cut => self.database.power_cut(&mut self.scene),
            Place::Database => self.database.kill(),
            Place::Data(at) if power_cut => self.data[at].devices.power_cut(&mut self.scene.random),
            Place::Data(_) | Place::Coordinator(_) | Place::Metadata(_) | Place::Client(_) => (),
        }
        if let Place::Data(at) = place {
            let server = &mut self.data[at];
            let (devices, fences) = (std::mem::take(&mut server.devices), std::mem::take(&mut server.fences));
            *server = DataServer::begin(at, devices, fences, self.scene.broken);
            if power_cut {
                server.look_after_power_cut(&mut self.scene);
            }
        }
    }

    fn start_again(&mut self) {
        let now = self.scene.now();
        let due: Vec<Place> =
            self.down_until.iter().filter(|(_, (until, _))| *until <= now).map(|(place, _)| *place).collect();
        for place in due {
            if let Place::Metadata(at) = place
                && let Some(times) = self.lost.get(&place)
            {
                if self.database.writers.taken_over(Place::node_id(at)) == *times {
                    continue;
                }
                self.lost.remove(&place);
                self.metadata[at].journal.iter_mut().for_each(|journal| journal.disk = Disk::default());
            }
            self.down_until.remove(&place);
            self.scene.note(|| format!("{place:?} is started"));
            self.scene.net.begin_process(place);
            let starts = self.starts.entry(place).or_default();
            *starts += 1;
            match place {
                Place::Coordinator(at) => self.coordinators[at] = Coordinator::new((at, *starts)),
                Place::Metadata(at) => {
                    let journal = self.metadata[at].journal.as_mut();
                    let disk = journal.map(|journal| std::mem::take(&mut journal.disk)).unwrap_or_default();
                    self.metadata[at] = Metadata::new(&mut self.scene, at, *starts, disk);
                }
                Place::Client(at) => self.clients[at] = Client::new(&self.scene, at, *starts),
                Place::Database | Place::Data(_) => (),
            }
        }
    }

    /// No more faults: whoever is down or stopped goes on.
    fn calm(&mut self) {
        self.scene.note(|| "the faults stop".to_owned());
        self.scene.net.calm();
        self.scene.weather = Weather::FAIR;
        self.paused_until.clear();
        for (until, _) in self.down_until.values_mut() {
            *until = FAULTS_UNTIL;
        }
    }

    /// I-CLEASE-1 and I-CLEASE-5 at this moment of true time.
    fn together(&mut self) {
        let mut wrong = None;
        let running: Vec<&Client> =
            self.clients.iter().filter(|client| self.is_running(client.place())).collect();
        for (n, one) in running.iter().enumerate() {
            for other in &running[n + 1..] {
                wrong = wrong.or_else(|| self.conflict(one, other));
            }
        }
        // What only this sees would be seen by nobody.
        if self.scene.broken == Broken::Nothing {
            wrong = wrong.or_else(|| self.two_serve());
        }
        self.scene.judge(wrong.map_or(Ok(()), Err));
    }

    /// With journals: one answers in a slot at a time.
    fn two_serve(&self) -> Option<String> {
        let mut serves: BTreeMap<_, usize> = BTreeMap::new();
        for (at, server) in self.metadata.iter().enumerate().filter(|(_, server)| server.journal.is_some()) {
            let place = Place::Metadata(at);
            if !self.is_running(place) || !server.may_act(self.scene.local(place), &self.scene) {
                continue;
            }
            for slot in server.domains.keys() {
                if let Some(other) = serves.insert(*slot, at) {
                    return Some(format!("metadata {other} and {at} may both answer in {slot:?}"));
                }
            }
        }
        None
    }

    fn conflict(&self, one: &Client, other: &Client) -> Option<String> {
        let (now, then) = (self.scene.local(one.place()), self.scene.local(other.place()));
        for (slot, a) in &one.sessions {
            let b = other.sessions.get(slot)?;
            if !a.lives(now) || !b.lives(then) {
                continue;
            }
            for (key, _) in a.core.kept() {
                let (mine, theirs) = (a.core.may(now, key), b.core.may(then, key));
                if mine.conflicts(theirs) {
                    return Some(format!("{} has {mine:?} and {} {theirs:?} of {key:?}", a.id, b.id));
                }
            }
            for (x, of_x, y, at) in [(a, now, b, then), (b, then, a, now)] {
                let _ = of_x;
                for (key, claim) in x.held.values().flatten() {
                    let theirs = y.core.may(at, key);
                    if !claim.excludes().both(theirs).is_empty() && !x.core.is_joining() {
                        return Some(format!(
                            "{} claims {claim:?} beside {theirs:?} of {} of {key:?}",
                            x.id, y.id
                        ));
                    }
                }
            }
            for mine in a.locks.values() {
                let meets = |theirs: &&lease::coherence::locks::HadLock| {
                    let (m, t) = (mine.range, theirs.range);
                    let shares = m.start() <= t.end() && t.start() <= m.end();
                    mine.ino == theirs.ino
                        && shares
                        && (mine.kind == Kind::Write || theirs.kind == Kind::Write)
                };
                if let Some(theirs) = b.locks.values().find(meets) {
                    return Some(format!("two have a lock: {mine:?} and {theirs:?}"));
                }
            }
        }
        None
    }

    fn is_at_rest(&self) -> bool {
        let quiet = self.clients.iter().all(|client| client.is_at_rest(&self.scene))
            && self.data.iter().all(DataServer::is_at_rest);
        let owned: usize = self.metadata.iter().map(|server| server.domains.len()).sum();
        let served = self
            .metadata
            .iter()
            .enumerate()
            .all(|(at, server)| server.is_at_rest(self.scene.local(Place::Metadata(at)), &self.scene));
        quiet && served && owned == crate::cast::UGSDS.len()
    }

    /// At rest: what is stored is what was done, nothing is kept, nothing is damaged.
    fn compare(&mut self) -> Result<(), String> {
        self.scene.names.compare(&self.database.data)?;
        for (ino, cell) in self.scene.content.spots() {
            let value = self.data[spot(cell).0].read(ino, cell);
            self.scene.content.compare((ino, cell), value)?;
        }
        let mut findings = Vec::new();
        let checked =
            namespace::check::check(&self.database.data, &env(1000), &mut |finding| findings.push(finding));
        match (checked, findings.is_empty()) {
            (Ok(()), true) => Ok(()),
            (checked, _) => Err(format!("the records are damaged: {checked:?} {findings:?}")),
        }
    }

    fn waits(&self) -> String {
        let clients: Vec<String> = self.clients.iter().map(Client::waits).collect();
        let servers: Vec<String> = self
            .metadata
            .iter()
            .enumerate()
            .map(|(at, server)| {
                let now = self.scene.local(Place::Metadata(at));
                let domains: Vec<_> = server.domains.values().map(crate::domain::Domain::waits).collect();
                let journal = server.journal.as_ref().map(crate::tail::Journal::waits);
                format!(
                    "metadata {at}: may act {}, {domains:?}, {journal:?}",
                    server.may_act(now, &self.scene)
                )
            })
            .collect();
        let data: Vec<bool> = self.data.iter().map(DataServer::is_at_rest).collect();
        format!("{clients:?} {servers:?} data at rest {data:?}")
    }
}
