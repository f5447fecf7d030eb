//! Goal: the invariants I-TIER-1 to I-TIER-7 under any mix of files, opens, writes, policies, limits, requests and
//! movements that end late or fail.
//! Method: a small data server whose objects are lists of 1 MiB units with copies in tiers, driven by a seeded generator
//! in simulated time; the truth that it keeps is compared with what the machine decides. A seed reproduces a run.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on should stop")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tier::*;
use types::{Ino, TierId, TierSet};

const UNIT: u64 = 1 << 20;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Default)]
struct File {
    units: Vec<TierSet>,
    opens: u32,
    pinned: TierSet,
    passthrough: bool,
    transient: bool,
    /// Last write, close, or copy that new bytes were not part of.
    settled: Duration,
    last_failure: Option<Duration>,
    moving: Option<MoveId>,
}

impl File {
    fn holds(&self, tier: TierId) -> u64 {
        self.units.iter().filter(|u| u.contains(tier)).count() as u64 * UNIT
    }
    /// Has `tier` units that no slower tier has?
    fn dirty(&self, tier: TierId) -> bool {
        let slower = TierId::ALL.into_iter().filter(|t| *t > tier).fold(TierSet::EMPTY, TierSet::with);
        self.units.iter().any(|u| u.contains(tier) && u.intersect(slower).is_empty())
    }
}

struct Running {
    ino: Ino,
    from: TierId,
    to: TierId,
    drop: bool,
    keep: bool,
    /// Units that existed at the start.
    units: usize,
    done: usize,
    /// Bytes that may leave.
    most: u64,
    cancelled: bool,
}

struct World {
    random: Random,
    now: Duration,
    machine: Tiering,
    files: BTreeMap<Ino, File>,
    limits: [Option<u64>; 3],
    running: BTreeMap<MoveId, Running>,
    asked: BTreeSet<RequestId>,
    ended: BTreeMap<RequestId, Result<RequestReport, RequestError>>,
    next_ino: u64,
    next_request: u64,
    /// What the tiers hold beyond their limits because a limit shrank.
    allowed: [u64; 3],
    failing: bool,
    movements_only: TierSet,
    seen: BTreeSet<&'static str>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let mut limits = [None; 3];
        while limits.iter().all(Option::is_none) {
            for (i, most) in [64, 200, 3000].into_iter().enumerate() {
                limits[i] = random.chance(80).then(|| (8 + random.below(most)) * UNIT);
            }
        }
        let linked = random.chance(20);
        let movements_only = if linked { TierSet::of(TierId::Nearline) } else { TierSet::EMPTY };
        let settings = Settings {
            window: 1 + random.below(20) as usize,
            parallel: [0; 3].map(|_| 1 + random.below(4) as usize),
            movements_only,
            ..Settings::default()
        };
        let mut world = World {
            random,
            now: Duration::from_secs(1),
            machine: Tiering::new(settings),
            files: BTreeMap::new(),
            limits,
            running: BTreeMap::new(),
            asked: BTreeSet::new(),
            ended: BTreeMap::new(),
            next_ino: 2,
            next_request: 0,
            allowed: [0; 3],
            failing: true,
            movements_only,
            seen: BTreeSet::new(),
        };
        for tier in TierId::ALL {
            if let Some(limit) = world.limits[tier.index()] {
                world.handle(Input::Space { tier, limit, used: 0 });
            }
        }
        world
    }

    fn handle(&mut self, input: Input) {
        self.machine.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            match effect {
                Effect::StartMove { id, ino, from, to, kind, keep_source, most } => {
                    self.seen.insert(match kind {
                        MoveKind::NormalOut => "normal out",
                        MoveKind::ForcedOut => "forced out",
                        MoveKind::WriteBehind => "write-behind",
                        MoveKind::Promote => "promote",
                        MoveKind::Request => "request",
                    });
                    self.start(id, Running { most, ..Running::of(ino, from, to, keep_source) })
                }
                Effect::DropCopy { id, ino, tier, most } => {
                    self.seen.insert("drop");
                    self.start(id, Running { drop: true, most, ..Running::of(ino, tier, tier, false) });
                    let file = &self.files[&ino];
                    assert!(!file.dirty(tier), "I-TIER-3: a drop of the only copy of {ino:?}");
                }
                Effect::CancelMove { id } => {
                    self.seen.insert("cancel");
                    if let Some(running) = self.running.get_mut(&id) {
                        running.cancelled = true;
                    }
                }
                Effect::WakeWriters { .. } => drop(self.seen.insert("wake")),
                Effect::RequestDone { id, result } => {
                    assert!(self.asked.remove(&id), "I-TIER-6: {id:?} was not asked, or ends twice");
                    self.ended.insert(id, result);
                }
            }
        }
    }

    fn start(&mut self, id: MoveId, mut running: Running) {
        let file = self.files.get_mut(&running.ino).expect("a movement of a removed object");
        assert!(file.moving.is_none(), "I-TIER-2: {:?} moves twice", running.ino);
        assert!(self.limits[running.to.index()].is_some());
        assert!(running.keep || !file.pinned.contains(running.from), "I-TIER-3: pinned");
        let in_place = running.keep && running.to > running.from;
        assert!(in_place || !file.passthrough, "I-TIER-3: passthrough");
        assert!(running.keep || running.to >= running.from, "up, and the source is lost");
        running.units = file.units.len();
        file.moving = Some(id);
        self.running.insert(id, running);
    }

    fn stored(&mut self, ino: Ino, tier: TierId, units: i64) {
        self.handle(Input::Stored { ino, tier, delta: units * UNIT as i64 });
    }

    /// Copies one unit; with none left the movement is done.
    fn work(&mut self, id: MoveId) {
        let Some(running) = self.running.get_mut(&id) else { return };
        let (ino, from, to) = (running.ino, running.from, running.to);
        if running.cancelled && !running.drop {
            return self.end(id, Err(MoveFailure::Cancelled));
        }
        let Some(file) = self.files.get_mut(&ino) else {
            return self.end(id, Err(MoveFailure::Gone));
        };
        assert!(running.most >= UNIT, "a movement that cannot move anything");
        let over = (running.done as u64 + 1) * UNIT > running.most;
        let last = if over { 0 } else { running.units.min(file.units.len()) };
        let left = |u: &TierSet| u.contains(from) && (!u.contains(to) || !running.keep);
        let Some(unit) = file.units[..last].iter_mut().find(|u| left(u)) else {
            let bytes = running.done as u64 * UNIT;
            return self.end(id, Ok(bytes));
        };
        running.done += 1;
        let copied = !unit.contains(to);
        let freed = !running.keep;
        *unit = unit.with(to);
        if freed {
            *unit = unit.without(from);
        }
        if copied {
            self.stored(ino, to, 1);
        }
        if freed {
            self.stored(ino, from, -1);
        }
    }

    fn end(&mut self, id: MoveId, result: Result<u64, MoveFailure>) {
        let Some(running) = self.running.remove(&id) else { return };
        if let Some(file) = self.files.get_mut(&running.ino) {
            file.moving = None;
            if result.is_ok() && running.keep {
                file.settled = self.now;
            }
            if result.is_err() {
                file.last_failure = Some(self.now);
            }
            self.say_clean(running.ino);
        }
        match result {
            Ok(bytes) => self.handle(Input::MoveDone { id, bytes, elapsed: Duration::from_millis(20) }),
            Err(reason) => self.handle(Input::MoveFailed { id, reason }),
        }
    }

    fn say_clean(&mut self, ino: Ino) {
        for tier in TierId::ALL {
            if !self.files[&ino].dirty(tier) {
                self.handle(Input::Clean { ino, tier });
            }
        }
    }

    fn any_file(&mut self) -> Option<Ino> {
        let n = self.files.len() as u64;
        (n > 0).then(|| *self.files.keys().nth(self.random.below(n) as usize).unwrap())
    }

    fn write_new(&mut self, ino: Ino, units: u64) {
        for _ in 0..units {
            let waited = Duration::from_millis(self.random.below(2) * 60);
            let need = Need { ino, bytes: UNIT, sync: self.random.chance(10), waited };
            let placement = self.machine.place(self.now, need);
            match placement {
                Placement::Tier(tier) => {
                    assert!(!self.movements_only.contains(tier), "new bytes in {tier}");
                    let file = self.files.get_mut(&ino).unwrap();
                    file.units.push(TierSet::of(tier));
                    file.settled = self.now;
                    self.drain();
                }
                Placement::Wait { .. } => {
                    self.seen.insert("wait");
                    self.drain();
                    // Or for what is tried again in a moment.
                    assert!(
                        !self.running.is_empty() || !self.movements_only.is_empty(),
                        "a wait for nothing"
                    );
                    return;
                }
                Placement::NoSpace => {
                    self.seen.insert("no space");
                    self.drain();
                    assert!(self.running.is_empty(), "I-TIER-5: ENOSPC while something moves");
                    for tier in TierId::ALL.into_iter().filter(|t| !self.movements_only.contains(*t)) {
                        let room =
                            self.machine.tier(tier).map_or(0, |t| t.available - t.thresholds.s_w as i64);
                        assert!(room < UNIT as i64, "I-TIER-5: ENOSPC, {tier} has {room}");
                    }
                    return;
                }
            }
        }
    }

    fn overwrite(&mut self, ino: Ino) {
        let file = self.files.get_mut(&ino).unwrap();
        if file.units.is_empty() {
            return;
        }
        let n = self.random.below(file.units.len() as u64) as usize;
        let Some(tier) = file.units[n].fastest() else { return };
        let stale = file.units[n].without(tier);
        file.units[n] = TierSet::of(tier);
        file.settled = self.now;
        self.handle(Input::Dirty { ino, tier });
        for other in stale.iter() {
            self.stored(ino, other, -1);
        }
        self.say_clean(ino);
    }

    fn truncate(&mut self, ino: Ino) {
        let Some(unit) = self.files.get_mut(&ino).and_then(|f| f.units.pop()) else { return };
        for tier in unit.iter() {
            self.stored(ino, tier, -1);
        }
        self.say_clean(ino);
    }

    fn create(&mut self) -> Ino {
        let ino = Ino::from_raw(self.next_ino).unwrap();
        self.next_ino += 1;
        let transient = self.random.chance(15);
        self.files.insert(ino, File { transient, ..File::default() });
        self.handle(Input::Attached { ino, bytes: [0; 3], dirty: TierSet::EMPTY });
        let promote = [None, Some(true), Some(false)][self.random.below(3) as usize];
        let policy = ObjectPolicy { transient, promote, write_behind_delay: None };
        self.handle(Input::Policy { ino, policy });
        self.open(ino);
        ino
    }

    fn open(&mut self, ino: Ino) {
        self.files.get_mut(&ino).unwrap().opens += 1;
        self.handle(Input::Opened { ino });
    }

    fn close(&mut self, ino: Ino) {
        let file = self.files.get_mut(&ino).unwrap();
        if file.opens > 0 {
            file.opens -= 1;
            file.settled = self.now;
            self.handle(Input::Closed { ino, dirty_bytes: 0 });
        }
    }

    fn remove(&mut self, ino: Ino) {
        self.files.remove(&ino);
        self.handle(Input::Removed { ino });
    }

    fn ask(&mut self, request: Request) {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.asked.insert(id);
        self.handle(Input::Request { id, request });
        if self.random.chance(10) {
            self.handle(Input::RequestCancelled { id });
        }
    }

    fn any_tier(&mut self) -> TierId {
        TierId::ALL[self.random.below(3) as usize]
    }

    fn hold(&mut self, ino: Ino) {
        let (tier, on) = (self.any_tier(), self.random.chance(30));
        let file = self.files.get_mut(&ino).unwrap();
        if self.random.chance(50) {
            file.pinned = if on { file.pinned.with(tier) } else { file.pinned.without(tier) };
            self.handle(if on { Input::Pinned { ino, tier } } else { Input::Unpinned { ino, tier } });
        } else if file.passthrough {
            file.passthrough = false;
            self.handle(Input::PassthroughEnded { ino });
        } else if on && file.moving.is_none() {
            file.passthrough = true;
            self.handle(Input::PassthroughBegan { ino });
        }
    }

    fn shrink_or_grow(&mut self) {
        let tier = self.any_tier();
        if self.limits[tier.index()].is_some() {
            let limit = (4 + self.random.below(100)) * UNIT;
            self.limits[tier.index()] = Some(limit);
            self.allowed[tier.index()] = self.used(tier) + self.machine.tier(tier).unwrap().reserved;
            self.handle(Input::LimitChanged { tier, limit });
        }
    }

    fn used(&self, tier: TierId) -> u64 {
        self.files.values().map(|f| f.holds(tier)).sum()
    }

    fn random_move_work(&mut self) {
        let ids: Vec<MoveId> = self.running.keys().copied().collect();
        for id in ids {
            if self.failing && self.random.chance(2) {
                let reasons =
                    [MoveFailure::Io, MoveFailure::Busy, MoveFailure::NoSpace, MoveFailure::Cancelled];
                let n = self.random.below(4) as usize;
                self.end(id, Err(reasons[n]));
            } else {
                for _ in 0..self.random.below(6) {
                    self.work(id);
                }
            }
        }
    }

    fn step(&mut self) {
        let Some(ino) = self.any_file() else {
            self.create();
            return;
        };
        match self.random.below(22) {
            20.. => self.read(ino),
            0..3 => {
                let ino = self.create();
                let units = self.random.below(12);
                self.write_new(ino, units);
            }
            3..6 => {
                let units = self.random.below(5);
                self.write_new(ino, units);
            }
            6..8 => self.overwrite(ino),
            8 => self.truncate(ino),
            9 => self.open(ino),
            10..15 => self.close(ino),
            15 if self.random.chance(30) => self.remove(ino),
            16 => self.hold(ino),
            17 => {
                let to = self.any_tier();
                let list: Vec<Ino> = self.files.keys().copied().filter(|i| i.get() % 3 == 0).collect();
                let request = match self.random.below(4) {
                    0 => Request::Prefetch { list },
                    1 => Request::Flush { ino },
                    _ => Request::Migrate { ino, to },
                };
                self.ask(request);
            }
            18 if self.random.chance(10) => self.shrink_or_grow(),
            19 => {
                let offset = self.random.below(64) * UNIT;
                self.handle(Input::Touched { ino, offset });
            }
            _ => {}
        }
    }

    /// Somebody reads what only near-line has, and a copy of it is kept if there is room.
    fn read(&mut self, ino: Ino) {
        let file = self.files.get_mut(&ino).unwrap();
        let whole = file.units.len() as u64 * UNIT;
        let near = TierSet::of(TierId::Nearline);
        if let Some(unit) = file.units.iter_mut().find(|unit| **unit == near) {
            if let Room::Here(tier) = self.machine.place_copy(self.now, ino, (UNIT, whole)) {
                assert!(tier < TierId::Nearline);
                *unit = unit.with(tier);
                self.seen.insert("copy");
            }
            self.drain();
        }
        if self.random.chance(5) {
            self.handle(Input::ReadAgain { ino });
        }
    }

    fn pass_time(&mut self, most_ms: u64) {
        self.now += Duration::from_millis(self.random.below(most_ms));
        if self.machine.next_deadline().is_some_and(|(at, _)| at <= self.now) {
            self.machine.handle_deadline(self.now);
            self.drain();
        }
        assert!(
            self.machine.next_deadline().is_none_or(|(at, _)| at > self.now),
            "a deadline is left behind"
        );
    }

    fn check(&mut self) {
        for tier in TierId::ALL {
            let Some(limit) = self.limits[tier.index()] else { continue };
            let (used, report) = (self.used(tier), self.machine.tier(tier).unwrap());
            assert_eq!(report.used, used, "the machine's count of {tier}");
            let held = used + report.reserved;
            assert!(held <= limit.max(self.allowed[tier.index()]), "I-TIER-1: {tier} {held} of {limit}");
            self.allowed[tier.index()] = held;
            assert!(
                report.thresholds.s_w <= report.thresholds.f_m
                    && report.thresholds.f_m <= report.thresholds.n_m
            );
        }
        for (ino, file) in &self.files {
            self.check_copy(*ino, file);
        }
    }

    /// I-TIER-4, with the conditions under which the copy may be late.
    fn check_copy(&self, ino: Ino, file: &File) {
        let recent = |at: Option<Duration>| at.is_some_and(|at| self.now < at + Duration::from_secs(70));
        let overdue = self.now > file.settled + Duration::from_millis(2001);
        if file.opens > 0 || file.transient || file.moving.is_some() || !file.dirty(TierId::Memory) {
            return;
        }
        let copies =
            |to| self.machine.moves().filter(|m| m.to == to && m.kind == Some(MoveKind::WriteBehind)).count();
        for to in TierSet::PERSISTENT.iter() {
            let Some(report) = self.machine.tier(to) else { continue };
            // Sixteen objects that find no room may keep others waiting: only ample room counts.
            let room = report.available - report.thresholds.s_w as i64 >= 120 * UNIT as i64;
            let late = overdue && room && copies(to) == 0 && !recent(file.last_failure);
            assert!(!late, "I-TIER-4: {ino:?} is not copied to {to}");
        }
    }

    /// Load has stopped and nothing fails any more: everything that was asked or promised happens.
    fn settle(&mut self) {
        self.failing = false;
        for _ in 0..3000 {
            self.random_move_work();
            self.pass_time(400);
            self.check();
        }
        assert!(self.asked.is_empty(), "I-TIER-6: {:?} never ended", self.asked);
        assert!(self.running.is_empty(), "movement without end");
        for tier in [TierId::Memory, TierId::Ssd] {
            let Some(report) = self.machine.tier(tier) else { continue };
            if report.available > report.thresholds.n_m as i64 {
                continue;
            }
            let forced = report.available <= report.thresholds.f_m as i64;
            for (ino, file) in &self.files {
                let held = file.pinned.contains(tier) || file.passthrough || file.holds(tier) == 0;
                let stays = !forced && (file.opens > 0 || file.transient);
                let fits = |t: &TierId| {
                    let room = self.machine.tier(*t).map_or(-1, |r| r.available - r.thresholds.s_w as i64);
                    *t > tier && room >= file.holds(tier) as i64
                };
                let could = !file.dirty(tier) || TierId::ALL.iter().any(fits);
                let exists = TierId::ALL.iter().any(|t| *t > tier && self.limits[t.index()].is_some());
                assert!(
                    held || stays || !could || !exists,
                    "I-TIER-7: {ino:?} should have left {tier}: {report:?}"
                );
            }
        }
    }
}

impl Running {
    fn of(ino: Ino, from: TierId, to: TierId, keep: bool) -> Running {
        Running { ino, from, to, drop: false, keep, units: 0, done: 0, most: u64::MAX, cancelled: false }
    }
}

#[test]
fn invariants_hold_in_random_worlds() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let trace = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..400 {
                world.step();
                world.random_move_work();
                world.pass_time(300);
                world.check();
            }
            world.settle();
            world.seen.extend(world.ended.values().map(|r| if r.is_ok() { "asked" } else { "refused" }));
            world.seen
        });
        seen.extend(trace.unwrap_or_else(|_| panic!("seed {seed}")));
    }
    // A run that never came to one of these would prove little.
    assert_eq!(seen.len(), 13, "{seen:?}");
}
