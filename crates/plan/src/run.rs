//! One list that is being read: what comes up next, what may leave for it, and when to stop.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::Range,
    time::Duration,
};

use types::Ino;

use crate::order::{Judge, Order, Wrongness};

/// Monotonic time since an origin that the shell fixes once.
pub type Time = Duration;

/// A file of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Item {
    pub ino: Ino,
    /// Bytes that are not in memory, and so have to come up.
    pub missing: u64,
    /// Some of it was in memory before the run: others may want it there.
    pub was_up: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Files that come up at the same time.
    pub files_max: usize,
    /// Their bytes; a file that is larger comes up alone.
    pub bytes_max: u64,
    pub wrongness: Wrongness,
    /// A run that nobody reads from ends after this time.
    pub idle: Duration,
    /// A file whose promotion failed is tried again after this time, so many times in all.
    pub rest: Duration,
    pub attempts: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            // Two keep a device busy while one of them is begun or made durable; more would only come in each other's way.
            files_max: 2,
            bytes_max: 1 << 30,
            wrongness: Wrongness::LIST,
            // A job may compute for long between two groups.
            idle: Duration::from_secs(6 * 3600),
            rest: Duration::from_secs(2),
            attempts: 3,
        }
    }
}

/// How the groups that are added stand to those before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    /// The first one goes on with the last group that is there.
    Continue,
    Begin,
}

/// Do more groups follow?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    More,
    Complete,
}

/// How a promotion ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promotion {
    /// So many bytes came up.
    Up { bytes: u64 },
    /// The tier had no room above C_n-m after all.
    NoRoom,
    /// In use, or a device failed: tried again.
    Failed,
    /// It cannot come up: removed, pinned elsewhere, not allowed.
    Never,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// Somebody opened the file to read it. Of a file that is not in the list the shell says so only if it is the list's
    /// program that opened it.
    Opened {
        ino: Ino,
    },
    Closed {
        ino: Ino,
    },
    PromotionEnded {
        ino: Ino,
        end: Promotion,
    },
    /// Bytes that may still come up before the tier would begin to move out (`free`), with what is under way counted as free,
    /// and how many there could be at most.
    Room {
        free: u64,
        most: u64,
    },
    /// More of the list.
    Added {
        groups: Vec<Vec<Item>>,
        join: Join,
        closing: Closing,
    },
    Cancelled,
}

/// Why a file stays where it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Skip {
    /// Its program opened it before its turn came: reading it is what brings it up.
    OpenedFirst,
    /// Larger than what memory may hold above C_n-m.
    TooLarge,
    Failed,
    /// The program went on without its group.
    PassedOver,
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All of it is up, or was opened.
    Done,
    /// So many of the last openings did not fit the list.
    Wrong {
        wrong: u64,
        seen: u64,
    },
    Cancelled,
    /// Nobody read from it for too long.
    Idle,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Bring the file up; answered by [`Input::PromotionEnded`].
    Promote {
        ino: Ino,
    },
    /// Its bytes in memory may go, as far as another tier has them.
    Release {
        ino: Ino,
    },
    Ended(End),
}

/// Where a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    pub groups: u32,
    /// Groups of which a file was opened, up to the last such one.
    pub groups_begun: u32,
    pub files: u64,
    pub files_up: u64,
    pub files_coming: u64,
    /// Left where they are, for whatever reason.
    pub files_skipped: u64,
    pub files_opened: u64,
    /// Opened when they were up already.
    pub files_hit: u64,
    pub files_released: u64,
    pub bytes_up: u64,
    pub bytes_left: u64,
    /// Openings that were compared with the list, and those that did not fit.
    pub seen: u64,
    pub wrong: u64,
    pub end: Option<End>,
    /// The next file waits for room.
    pub short_of_room: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Waiting,
    Coming,
    Up,
    Skipped(Skip),
}

#[derive(Clone, Debug)]
struct Entry {
    item: Item,
    group: u32,
    state: State,
    attempts: u32,
    rests_until: Time,
    opened: bool,
    released: bool,
}

/// See the crate. Positions in the list are numbers from 0; a file may have several.
#[derive(Debug)]
pub struct Run {
    settings: Settings,
    entries: Vec<Entry>,
    /// First position of each group.
    groups: Vec<u32>,
    complete: bool,
    positions: BTreeMap<Ino, Vec<u32>>,
    waiting: BTreeSet<u32>,
    coming: BTreeMap<Ino, u64>,
    /// How often files of the list are open now.
    open: BTreeMap<Ino, u32>,
    /// Opened ones, in the order in which they may be given up.
    read: VecDeque<u32>,
    current: Option<u32>,
    /// The last opening was of this group, further on than is right.
    ahead: Option<u32>,
    /// The program went on to a group far ahead, and to none after it yet: it may go the other way.
    strayed: bool,
    judge: Judge,
    free: u64,
    most: Option<u64>,
    /// Given up since the room was told last.
    leaving: u64,
    short_of_room: bool,
    idle_at: Time,
    report: Report,
    effects: VecDeque<Effect>,
}

impl Run {
    pub fn new(settings: Settings, now: Time) -> Run {
        Run {
            entries: Vec::new(),
            groups: Vec::new(),
            complete: false,
            positions: BTreeMap::new(),
            waiting: BTreeSet::new(),
            coming: BTreeMap::new(),
            open: BTreeMap::new(),
            read: VecDeque::new(),
            current: None,
            ahead: None,
            strayed: false,
            judge: Judge::new(settings.wrongness),
            free: 0,
            most: None,
            leaving: 0,
            short_of_room: false,
            idle_at: now + settings.idle,
            report: Report::default(),
            effects: VecDeque::new(),
            settings,
        }
    }

    pub fn handle(&mut self, now: Time, input: Input) {
        if let Input::PromotionEnded { ino, end } = input {
            self.promotion_ended(now, ino, end);
        } else if self.has_ended() {
            return;
        } else {
            match input {
                Input::Opened { ino } => self.opened(now, ino),
                Input::Closed { ino } => self.closed(ino),
                Input::Room { free, most } => {
                    (self.free, self.most, self.leaving) = (free, Some(most), 0);
                }
                Input::Added { groups, join, closing } => self.added(now, groups, join, closing),
                Input::Cancelled => self.end(End::Cancelled),
                Input::PromotionEnded { .. } => {}
            }
        }
        self.pump(now);
    }

    pub fn next_deadline(&self) -> Option<(Time, &'static str)> {
        if self.has_ended() {
            return None;
        }
        let rests = self.allowed().map(|(_, entry)| entry.rests_until).filter(|at| !at.is_zero()).min();
        let idle = (self.idle_at, "nobody reads from the list");
        Some(rests.map_or(idle, |at| idle.min((at, "a file is tried again"))))
    }

    pub fn handle_deadline(&mut self, now: Time) {
        if !self.has_ended() && now >= self.idle_at {
            self.end(End::Idle);
        }
        self.pump(now);
    }

    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub fn has_ended(&self) -> bool {
        self.report.end.is_some()
    }

    /// Is the file in the list?
    pub fn lists(&self, ino: Ino) -> bool {
        self.positions.contains_key(&ino)
    }

    /// Does the list want the file in memory: up or to come, and not opened yet?
    pub fn wants(&self, ino: Ino) -> bool {
        let frontier = self.frontier();
        !self.has_ended()
            && self.positions.get(&ino).is_some_and(|all| {
                all.iter().map(|at| &self.entries[*at as usize]).any(|e| !e.opened && e.group <= frontier)
            })
    }

    /// What comes up now, with the bytes that it has to bring.
    pub fn coming(&self) -> impl Iterator<Item = (Ino, u64)> {
        self.coming.iter().map(|(ino, bytes)| (*ino, *bytes))
    }

    /// Files that were added.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn report(&self) -> Report {
        let (seen, wrong) = self.judge.counts();
        Report {
            groups: self.groups.len() as u32,
            groups_begun: self.current.map_or(0, |group| group + 1),
            files: self.entries.len() as u64,
            files_coming: self.coming.len() as u64,
            bytes_left: self.waiting.iter().map(|at| self.entries[*at as usize].item.missing).sum(),
            seen,
            wrong,
            short_of_room: self.short_of_room && !self.has_ended(),
            ..self.report
        }
    }

    /// The last group that may come up.
    fn frontier(&self) -> u32 {
        self.current.map_or(0, |group| group + 1)
    }

    fn start_of(&self, group: u32) -> u32 {
        self.groups.get(group as usize).copied().unwrap_or(self.entries.len() as u32)
    }

    /// Positions of which one may come up now, in order.
    fn range(&self) -> Range<u32> {
        0..self.start_of(self.frontier() + 1)
    }

    fn allowed(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.waiting.range(self.range()).map(|at| (*at, &self.entries[*at as usize]))
    }

    fn added(&mut self, now: Time, groups: Vec<Vec<Item>>, join: Join, closing: Closing) {
        self.idle_at = now + self.settings.idle;
        for (n, group) in groups.into_iter().enumerate() {
            let continues = n == 0 && join == Join::Continue && !self.groups.is_empty();
            if group.is_empty() {
                continue;
            }
            if !continues {
                self.groups.push(self.entries.len() as u32);
            }
            for item in group {
                let at = self.entries.len() as u32;
                self.positions.entry(item.ino).or_default().push(at);
                self.waiting.insert(at);
                self.entries.push(Entry {
                    item,
                    group: (self.groups.len() - 1) as u32,
                    state: State::Waiting,
                    attempts: 0,
                    rests_until: Time::ZERO,
                    opened: false,
                    released: false,
                });
            }
        }
        self.complete |= closing == Closing::Complete;
    }

    fn opened(&mut self, now: Time, ino: Ino) {
        let Some(all) = self.positions.get(&ino) else {
            return self.judged(Order::Outside);
        };
        *self.open.entry(ino).or_default() += 1;
        self.idle_at = now + self.settings.idle;
        // A file that is read once more than the list says is neither right nor wrong.
        let Some(at) = all.iter().copied().find(|at| !self.entries[*at as usize].opened) else { return };
        let entry = &mut self.entries[at as usize];
        entry.opened = true;
        self.report.files_opened += 1;
        self.report.files_hit += u64::from(entry.state == State::Up);
        self.read.push_back(at);
        let order = Order::of(Some(entry.group), self.current);
        if entry.state == State::Waiting {
            self.skip(at, Skip::OpenedFirst);
        }
        self.follow(order);
        self.judged(order);
    }

    /// Goes on to the group that is being read. One file that is far ahead moves nothing: programs look at an end first.
    fn follow(&mut self, order: Order) {
        let group = match order {
            Order::Right(group) => {
                self.strayed &= self.current.is_none_or(|current| group <= current);
                group
            }
            Order::Ahead(group) => {
                if self.ahead.replace(group).is_none_or(|last| last.abs_diff(group) > 1) {
                    return;
                }
                self.strayed = true;
                group
            }
            Order::Behind | Order::Outside => {
                self.ahead = None;
                return;
            }
        };
        self.ahead = None;
        let current = self.current.map_or(group, |current| current.max(group));
        self.current = Some(current);
        self.pass_over(current.saturating_sub(1));
    }

    fn closed(&mut self, ino: Ino) {
        if let Some(count) = self.open.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&ino);
            }
        }
    }

    fn judged(&mut self, order: Order) {
        if self.judge.hear(order) {
            let (seen, wrong) = self.judge.counts();
            self.end(End::Wrong { wrong, seen });
        }
    }

    /// What is before the group was not wanted.
    fn pass_over(&mut self, group: u32) {
        let before: Vec<u32> = self.waiting.range(..self.start_of(group)).copied().collect();
        before.into_iter().for_each(|at| self.skip(at, Skip::PassedOver));
    }

    fn skip(&mut self, at: u32, why: Skip) {
        self.waiting.remove(&at);
        self.entries[at as usize].state = State::Skipped(why);
        self.report.files_skipped += 1;
    }

    fn promotion_ended(&mut self, now: Time, ino: Ino, end: Promotion) {
        let Some(reserved) = self.coming.remove(&ino) else { return };
        let coming = |at: &u32| self.entries[*at as usize].state == State::Coming;
        let Some(at) = self.positions.get(&ino).and_then(|all| all.iter().copied().find(coming)) else {
            return;
        };
        let settings = self.settings;
        let entry = &mut self.entries[at as usize];
        match end {
            Promotion::Up { bytes } => {
                entry.state = State::Up;
                self.free = self.free.saturating_sub(reserved);
                self.report.files_up += 1;
                self.report.bytes_up += bytes;
            }
            Promotion::NoRoom => {
                entry.state = State::Waiting;
                self.waiting.insert(at);
                // Until the room is told anew.
                self.free = 0;
            }
            Promotion::Failed if entry.attempts < settings.attempts => {
                entry.state = State::Waiting;
                entry.rests_until = now + settings.rest;
                self.waiting.insert(at);
            }
            Promotion::Failed | Promotion::Never => self.skip(at, Skip::Failed),
        }
    }

    fn end(&mut self, end: End) {
        if !self.has_ended() {
            self.report.end = Some(end);
            self.effects.push_back(Effect::Ended(end));
        }
    }

    /// Starts what may be started. Each step takes a file out of the waiting ones, or is the last.
    fn pump(&mut self, now: Time) {
        let Some(most) = self.most else { return };
        self.short_of_room = false;
        while !self.has_ended() && self.coming.len() < self.settings.files_max {
            let next =
                self.allowed().find(|(_, e)| e.rests_until <= now && !self.coming.contains_key(&e.item.ino));
            let Some((at, entry)) = next else { break };
            let Item { ino, missing, .. } = entry.item;
            if missing == 0 || self.is_up(ino) {
                self.waiting.remove(&at);
                self.entries[at as usize].state = State::Up;
                self.report.files_up += 1;
                continue;
            }
            if missing > most {
                self.skip(at, Skip::TooLarge);
                continue;
            }
            let coming: u64 = self.coming.values().sum();
            if !self.coming.is_empty() && coming + missing > self.settings.bytes_max {
                break;
            }
            let left = self.free.saturating_sub(coming);
            if missing > left {
                self.short_of_room = true;
                self.make_room(missing - left);
                break;
            }
            self.waiting.remove(&at);
            let entry = &mut self.entries[at as usize];
            entry.state = State::Coming;
            entry.attempts += 1;
            self.coming.insert(ino, missing);
            self.effects.push_back(Effect::Promote { ino });
        }
        if self.complete && self.waiting.is_empty() && self.coming.is_empty() && !self.strayed {
            self.end(End::Done);
        }
    }

    /// By another place of it in the list.
    fn is_up(&self, ino: Ino) -> bool {
        self.positions.get(&ino).is_some_and(|all| {
            all.iter().map(|at| &self.entries[*at as usize]).any(|e| e.state == State::Up && !e.released)
        })
    }

    /// Gives up files that were read, the first ones first, until so many bytes will be free.
    fn make_room(&mut self, bytes: u64) {
        let mut kept = VecDeque::new();
        while self.leaving < bytes
            && let Some(at) = self.read.pop_front()
        {
            let entry = &self.entries[at as usize];
            let ino = entry.item.ino;
            if entry.item.was_up || entry.released {
                continue;
            }
            if self.open.contains_key(&ino) || self.coming.contains_key(&ino) || self.wants(ino) {
                kept.push_back(at);
                continue;
            }
            self.leaving += entry.item.missing;
            let all = self.positions.get(&ino).map_or(&[][..], |all| all);
            all.iter().for_each(|at| self.entries[*at as usize].released = true);
            self.report.files_released += 1;
            self.effects.push_back(Effect::Release { ino });
        }
        while let Some(at) = kept.pop_back() {
            self.read.push_front(at);
        }
    }
}
