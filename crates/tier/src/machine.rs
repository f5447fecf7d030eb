//! The machine: its state, its clock and its order of work. What it does with each input is in the files beside it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use types::{Ino, TierId, TierSet};

use crate::api::{
    CoolnessReport, Effect, Input, MoveId, MoveReport, Request, Settings, TierReport, Time, Why,
};
use crate::coolness;
use crate::lru::List;
use crate::remembered::Remembered;
use crate::space::{self, Measured, Pressure, Space, Supply};
use crate::table::{NIL, Ob, Object, ObjectTable};
use crate::unfinished::{Asked, Move, Rest, Unsaved};

/// Time between two samples of the rates.
const SAMPLE: Duration = Duration::from_secs(1);
/// How far `lru_rank` counts for a report.
const RANK_MAX: u32 = 4096;

/// What a timer is for. The order breaks ties.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    Rest(Ob),
    WriteBehind(Ob),
    Patience(u64),
}

/// Decides all movement of one data server; see the crate's documentation.
pub struct Tiering {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    sampled: Time,
    pub(crate) table: ObjectTable,
    /// By tier (memory, SSD), then by [`class`]: clean objects apart from dirty ones, so that what can be dropped at once
    /// is found at once; transient ones apart, since they leave only when forced; and what is on probation, which leaves first.
    pub(crate) lists: [[List; CLASSES]; 2],
    pub(crate) spaces: [Option<Space>; 3],
    pub(crate) measured: Measured,
    pub(crate) moves: BTreeMap<MoveId, Move>,
    pub(crate) next_move: u64,
    /// At most two timers per object and one per request.
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    pub(crate) resting: BTreeMap<Ob, Rest>,
    pub(crate) unsaved: BTreeMap<Ob, Unsaved>,
    /// Due for their copy, longest first.
    pub(crate) due: BTreeSet<(Time, Ob)>,
    /// No copy could be started at the last try, and nothing has changed since.
    pub(crate) copies_stuck: bool,
    pub(crate) requests: BTreeMap<u64, Asked>,
    pub(crate) next_request: u64,
    /// Something happened that may let a request go on.
    pub(crate) requests_ready: bool,
    /// Bounded by what one input can start: the movement bounds, one wake-up per tier, one end per request.
    pub(crate) effects: VecDeque<Effect>,
    /// When a window of objects with nowhere to go last made way.
    pub(crate) made_way: Time,
    pub(crate) remembered: Remembered,
    /// Tiers whose devices are slow.
    slow: TierSet,
}

impl Tiering {
    pub fn new(settings: Settings) -> Tiering {
        Tiering {
            now: Time::ZERO,
            sampled: Time::ZERO,
            table: ObjectTable::new(),
            lists: [0, 1].map(|lane| [(); CLASSES].map(|()| List::new(lane))),
            spaces: [None, None, None],
            measured: Measured::new(&settings),
            moves: BTreeMap::new(),
            next_move: 1,
            timers: BTreeSet::new(),
            resting: BTreeMap::new(),
            unsaved: BTreeMap::new(),
            due: BTreeSet::new(),
            copies_stuck: false,
            requests: BTreeMap::new(),
            next_request: 0,
            requests_ready: false,
            effects: VecDeque::new(),
            made_way: Time::ZERO,
            remembered: Remembered::default(),
            slow: TierSet::EMPTY,
            settings,
        }
    }

    /// One input. Afterwards: drain [`Self::poll_effect`].
    pub fn handle(&mut self, now: Time, input: Input) {
        self.advance(now);
        match input {
            // The hot one: moves a list entry and decides nothing.
            Input::Touched { ino, offset } => return self.touched(ino, offset),
            Input::Space { tier, limit, used } => self.set_space(tier, limit, Some(used)),
            Input::LimitChanged { tier, limit } => self.set_space(tier, limit, None),
            Input::Slow { tier, slow } => self.set_slow(tier, slow),
            Input::Attached { ino, bytes, dirty } => self.attached(ino, bytes, dirty),
            Input::Detached { ino } => self.detached(ino),
            Input::Removed { ino } => self.removed(ino),
            Input::Opened { ino } => self.opened(ino),
            Input::Closed { ino, dirty_bytes } => self.closed(ino, dirty_bytes),
            Input::Stored { ino, tier, delta } => self.stored(ino, tier, delta),
            Input::Dirty { ino, tier } => self.dirtied(ino, tier),
            Input::Clean { ino, tier } => self.cleaned(ino, tier),
            Input::CopyGrew { ino, tier, more } => self.hold_copy(ino, tier, more),
            Input::ReadAgain { ino } => self.read_again(ino),
            Input::PassthroughBegan { ino } => self.passthrough(ino, true),
            Input::PassthroughEnded { ino } => self.passthrough(ino, false),
            Input::Pinned { ino, tier } => self.pinned(ino, tier, true),
            Input::Unpinned { ino, tier } => self.pinned(ino, tier, false),
            Input::Policy { ino, policy } => self.set_policy(ino, policy),
            Input::Request { id, request } => self.request(id, request),
            Input::RequestCancelled { id } => self.cancel_request(id),
            Input::MoveDone { id, bytes, elapsed } => self.end_move(id, Ok((bytes, elapsed))),
            Input::MoveFailed { id, reason } => self.end_move(id, Err(reason)),
            Input::RateSample => self.sample(),
        }
        self.pump();
        self.wake_writers();
    }

    /// When [`Self::handle_deadline`] should next be called, unless something else happens before.
    pub fn next_deadline(&self) -> Option<(Time, Why)> {
        self.timers.first().map(|(time, timer)| {
            let why = match timer {
                Timer::Rest(_) => Why::RetryMove,
                Timer::WriteBehind(_) => Why::WriteBehindDue,
                Timer::Patience(_) => Why::RequestPatience,
            };
            (*time, why)
        })
    }

    /// Handles every deadline up to `now`. Afterwards: drain [`Self::poll_effect`].
    pub fn handle_deadline(&mut self, now: Time) {
        self.advance(now);
        // Handlers set later timers only, so this ends.
        while let Some((time, timer)) = self.timers.first().copied() {
            if time > self.now {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Rest(ob) => self.rested(ob),
                Timer::WriteBehind(ob) => self.arm_copy(ob),
                Timer::Patience(seq) => self.patience_ended(seq),
            }
        }
        self.pump();
        self.wake_writers();
    }

    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// For `onfs file`. `None`: no record.
    pub fn coolness(&self, ino: Ino, now: Time) -> Option<CoolnessReport> {
        let ob = self.table.find(ino)?;
        let object = self.table.get(ob)?;
        let lane = (0..2).find(|lane| object.has(Object::LINKED[*lane])).filter(|_| object.is_open());
        let rank = lane.map(|lane| {
            let list = &self.lists[lane][class(object, TierId::ALL[lane])];
            list.walk(&self.table, ob).take(RANK_MAX as usize).count() as u32
        });
        Some(coolness::report(object, micros(now), rank))
    }

    /// The tiers where an object has a file, as the shell said with [`Self::note_files`]; `None`: it did not, or the record
    /// is gone since. Nothing is decided by it: the record is where a shell that drops its own state finds it again.
    pub fn files(&self, ino: Ino) -> Option<TierSet> {
        let object = self.table.get(self.table.find(ino)?)?;
        object.has(Object::FILES).then_some(object.files)
    }

    /// What an object holds in each tier; `None`: no record.
    pub fn object_bytes(&self, ino: Ino) -> Option<[u64; 3]> {
        Some(self.table.get(self.table.find(ino)?)?.bytes())
    }

    pub fn note_files(&mut self, ino: Ino, files: TierSet) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        if let Some(object) = self.table.get_mut(ob) {
            object.files = files;
            object.set(Object::FILES, true);
        }
    }

    /// `None`: there is no such tier.
    pub fn tier(&self, tier: TierId) -> Option<TierReport> {
        let space = self.space(tier)?;
        let lists = self.lists.get(tier.index());
        let count = |f: fn(&List) -> u64| lists.map_or(0, |l| l.iter().map(f).sum());
        Some(TierReport {
            limit: space.limit,
            used: space.used,
            reserved: space.reserved,
            available: space.available(),
            thresholds: space.thresholds,
            draining: space.draining,
            write_in_rate: space.in_rate,
            move_out_rate: space.out_rate,
            objects: self.slower(tier).next().map(|_| self.table.holding(tier)),
            closed_objects: count(|l| l.closed),
            open_objects: count(|l| l.open),
            writers_wait: space.wait_least > 0,
        })
    }

    /// Movements and drops under way, oldest first.
    pub fn moves(&self) -> impl Iterator<Item = MoveReport> + '_ {
        self.moves.iter().map(|(id, m)| MoveReport {
            id: *id,
            ino: m.ino,
            from: m.from,
            to: m.to,
            kind: m.kind,
            bytes: m.bytes,
            left: if m.kind.is_some() { m.reserved } else { m.draining },
            started: m.started,
        })
    }

    /// Objects with bytes that are only in memory, and how many bytes: as many as at their last close, or what has not moved
    /// out since.
    pub fn dirty(&self) -> (u64, u64) {
        let held = |ob: Ob| self.table.get(ob).map_or(0, |o| o.holds(TierId::Memory));
        (self.unsaved.len() as u64, self.unsaved.iter().map(|(ob, u)| u.bytes.min(held(*ob))).sum())
    }

    /// Objects with bytes that are only in memory, but for transient ones, which stay there.
    pub fn unsaved(&self) -> impl Iterator<Item = Ino> + '_ {
        let objects = self.unsaved.keys().filter_map(|ob| self.table.get(*ob));
        objects.filter(|object| !object.has(Object::TRANSIENT)).map(|object| object.ino)
    }

    /// Starts all movement that the state calls for. Requests come first: people wait for them.
    pub(crate) fn pump(&mut self) {
        self.pump_requests();
        self.evict(TierId::Memory);
        self.evict(TierId::Ssd);
        self.pump_copies();
    }

    pub(crate) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        if self.now - self.sampled >= SAMPLE {
            self.sample();
        }
    }

    fn sample(&mut self) {
        let passed = self.now - self.sampled;
        // A second sample at once would divide by almost nothing.
        if passed < SAMPLE / 10 {
            return;
        }
        self.sampled = self.now;
        self.spaces.iter_mut().flatten().for_each(|s| s.sample(passed));
        self.set_thresholds();
    }

    fn set_space(&mut self, tier: TierId, limit: u64, used: Option<u64>) {
        let peak = self.settings.bandwidth[tier.index()] as f64;
        let slot = &mut self.spaces[tier.index()];
        if slot.is_none() && used.is_none() {
            return;
        }
        let space = slot.get_or_insert_with(|| Space { in_peak: peak, ..Space::default() });
        space.limit = limit;
        space.used = used.unwrap_or(space.used);
        self.set_thresholds();
        self.stir();
    }

    fn set_thresholds(&mut self) {
        for tier in TierId::ALL {
            let near = self.slower(tier).next();
            let far = self.slower(tier).last();
            let rated = self.settings.bandwidth[tier.index()] as f64;
            let s_w = self.settings.write_stop[tier.index()];
            let mover = |to: TierId| self.measured.mover[to.index()];
            let file_bytes = self.measured.file_bytes;
            let rates = near.zip(far).map(|(near, far)| (mover(near), mover(far)));
            let Some(space) = self.spaces[tier.index()].as_mut() else { continue };
            space.thresholds.s_w = s_w.min(space.limit / 16);
            (space.thresholds.f_m, space.thresholds.n_m) = (space.thresholds.s_w, space.thresholds.s_w);
            if let Some((forced_out, normal_out)) = rates {
                // A quiet hour must not leave a burst without room: a quarter of the rated speed at least.
                let write_in = space.in_peak.clamp(rated / 4.0, rated * 4.0);
                let limit = space.limit;
                let measured =
                    space::thresholds(&Supply { limit, s_w, write_in, forced_out, normal_out, file_bytes });
                let fixed = (self.settings.forced_out[tier.index()], self.settings.normal_out[tier.index()]);
                space.thresholds = measured.with_fixed(limit, fixed.0, fixed.1);
            }
        }
    }

    /// Something changed that may let movement go on which could not start before.
    pub(crate) fn stir(&mut self) {
        self.spaces.iter_mut().flatten().for_each(|s| s.stuck = Pressure::None);
        self.copies_stuck = false;
        self.requests_ready = true;
    }

    pub(crate) fn space(&self, tier: TierId) -> Option<&Space> {
        self.spaces[tier.index()].as_ref()
    }

    /// The tiers that exist and are slower than `tier`, fastest first.
    pub(crate) fn slower(&self, tier: TierId) -> impl Iterator<Item = TierId> + '_ {
        TierId::ALL.into_iter().filter(move |t| *t > tier && self.spaces[t.index()].is_some())
    }

    /// The persistent tiers that exist, in the order in which they are taken.
    pub(crate) fn persistent(&self) -> impl Iterator<Item = TierId> + '_ {
        self.preferred(TierSet::PERSISTENT.iter().filter(|t| self.spaces[t.index()].is_some())).into_iter()
    }

    /// These tiers with the slow ones last; otherwise in their order.
    pub(crate) fn preferred(&self, tiers: impl Iterator<Item = TierId>) -> Vec<TierId> {
        let (well, slow): (Vec<TierId>, Vec<TierId>) = tiers.partition(|tier| !self.slow.contains(*tier));
        well.into_iter().chain(slow).collect()
    }

    fn set_slow(&mut self, tier: TierId, slow: bool) {
        self.slow = if slow { self.slow.with(tier) } else { self.slow.without(tier) };
        self.stir();
    }

    /// Brings the object's place in the LRU tables in line with its state.
    pub(crate) fn relink(&mut self, ob: Ob) {
        self.relink_at(ob, false);
    }

    /// As [`Self::relink`]; what comes back goes to the head of its part if `first`, else to its end.
    pub(crate) fn relink_at(&mut self, ob: Ob, first: bool) {
        for lane in 0..2 {
            let Some(object) = self.table.get(ob) else { return };
            let tier = TierId::ALL[lane];
            let held = Object::PASSTHROUGH | Object::MOVING | Object::RESTING | Object::HOMELESS;
            let wanted = object.holds(tier) > 0
                && !object.has(held)
                && !object.pinned.contains(tier)
                && self.slower(tier).next().is_some();
            let linked = object.has(Object::LINKED[lane]);
            let list = &mut self.lists[lane][class(object, TierId::ALL[lane])];
            if wanted && !linked {
                if first {
                    list.link_first(&mut self.table, ob);
                } else {
                    list.link(&mut self.table, ob);
                }
                if let Some(space) = self.spaces[lane].as_mut() {
                    space.stuck = Pressure::None;
                }
            } else if linked && !wanted {
                list.unlink(&mut self.table, ob);
            }
        }
    }

    /// Takes the object out of the LRU tables, before a change of its open, dirty or transient state.
    pub(crate) fn unlink(&mut self, ob: Ob) {
        for lane in 0..2 {
            let Some(object) = self.table.get(ob) else { return };
            if object.has(Object::LINKED[lane]) {
                self.lists[lane][class(object, TierId::ALL[lane])].unlink(&mut self.table, ob);
            }
        }
    }

    /// Drops the record of an object that the shell no longer knows and nothing here needs.
    pub(crate) fn forget_if_done(&mut self, ob: Ob) {
        let Some(object) = self.table.get(ob) else { return };
        let movable = |t: TierId| object.holds(t) > 0 && self.slower(t).next().is_some();
        let needed = !object.has(Object::DETACHED)
            || object.has(Object::MOVING)
            || object.is_open()
            || TierId::ALL.into_iter().any(movable)
            || self.requests.values().any(|r| r.concerns(object.ino));
        if !needed {
            self.forget(ob);
        }
    }

    pub(crate) fn forget(&mut self, ob: Ob) -> Option<Object> {
        self.unlink(ob);
        self.disarm_copy(ob);
        self.unsaved.remove(&ob);
        if let Some(rest) = self.resting.remove(&ob) {
            self.timers.remove(&(rest.until, Timer::Rest(ob)));
        }
        self.table.remove(ob)
    }

    pub(crate) fn now_us(&self) -> u64 {
        micros(self.now)
    }

    fn request(&mut self, id: crate::api::RequestId, request: Request) {
        self.ask(id, request);
        self.requests_ready = true;
    }

    fn touched(&mut self, ino: Ino, offset: u64) {
        let ob = self.table.find(ino).unwrap_or(NIL);
        let Some(object) = self.table.get_mut(ob) else { return };
        let last = Some(object.last_sau).filter(|sau| *sau != u32::MAX);
        let Some(sau) = crate::touch_counts(offset, last) else { return };
        object.last_sau = sau;
        if object.is_open() {
            self.unlink(ob);
            self.relink(ob);
        }
    }
}

/// Which of a tier's LRU tables an object belongs to.
pub(crate) fn class(object: &Object, tier: TierId) -> usize {
    if object.has(Object::PROBATION) {
        return PROBATION;
    }
    class_of(object.has(Object::TRANSIENT), object.dirty.contains(tier))
}

/// The class of what is on probation, and how many classes there are.
pub(crate) const PROBATION: usize = 4;
const CLASSES: usize = 5;

pub(crate) const fn class_of(transient: bool, dirty: bool) -> usize {
    transient as usize * 2 + dirty as usize
}

pub(crate) fn micros(time: Time) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
