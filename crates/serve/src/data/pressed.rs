//! A data server that is full, or has only memory: what it would be rid of, and whom it has wait until that is gone.
//!
//! The metadata server orders the movements, and says with each report that it takes how much room there is elsewhere.
//!
//! - I-PRESS-5: nobody is told that his bytes are safe while only memory has them: who asks for that, where there is only memory, waits until the object
//!   is at another data server, or is told `ENOSPC`; but in a cluster that never had anything else than memory.
//! - I-PRESS-6: who waits for room or safety waits while something leaves, and for a stated time without anything leaving, no longer.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use cluster::pressure::{Level, Stand};
use proto::{
    BATCH_MAX, Reason,
    control::{NodeReported, Pressure},
    data::Object,
    moving::{Cool, CoolList, CoolWhy, Coolest},
    owners,
};
use types::{Errno, Ino, TierSet};
use wire::schema::Retry;

use super::{
    DataService,
    pressure::{ASKED_AGAIN, Room, WAITING_MAX, Waits},
};
use crate::answer::{Done, No};

/// Of one list.
const LIST_MAX: usize = BATCH_MAX / 2;
fn leaving(why: &str) -> No {
    let mut no = No::new(Errno::EAGAIN, Retry::After, Reason::Leaving, why);
    no.0.after_ms = 50;
    no
}

fn no_room(why: &str) -> No {
    No::new(Errno::ENOSPC, Retry::Never, Reason::None, why)
}

impl DataService {
    /// Called when somebody begins to wait; the metadata server should be told then.
    pub fn on_pressure(&self, nudge: Box<dyn Fn() + Send + Sync>) {
        self.pressed.nudges.lock().push(nudge);
    }

    /// The metadata server took a report, and said what room there is.
    pub fn told(&self, reported: &NodeReported) {
        let (safe, any) = (reported.safe_room, reported.any_room);
        let mut state = self.pressed.state.lock();
        state.room.insert(reported.server, Room { safe, any, said: Instant::now() });
        // Of several metadata servers one may have heard later.
        state.outlives = Some(!reported.nothing_safe || state.outlives == Some(true));
    }

    /// There is nothing but memory in the whole cluster, so its data are declared not to outlive it.
    pub(super) fn is_declared_unsafe(&self) -> bool {
        self.pressed.state.lock().outlives == Some(false)
    }

    /// Does what is here outlive the machine?
    pub(super) fn is_safe(&self) -> bool {
        !self.ds.present().intersect(TierSet::PERSISTENT).is_empty()
    }

    fn stand(&self) -> Stand {
        let tiers = self.ds.tiers();
        let level = |status: &ds::TierStatus| Level {
            limit: status.report.limit,
            available: u64::try_from(status.report.available).unwrap_or(0),
            persistent: status.tier.is_persistent(),
        };
        let levels: Vec<Level> = tiers.iter().map(level).collect();
        Stand::of(&levels, self.ds.dirty().1, self.pressed.is_starved())
    }

    pub(super) fn pressure(&self) -> Pressure {
        let Stand { lacking, forced, spare, most, safe } = self.stand();
        let waiting = {
            let mut state = self.pressed.state.lock();
            state.unsafe_ones.retain(|_, (waits, _)| waits.asked.elapsed() < ASKED_AGAIN);
            state.unsafe_ones.len() as u64
        };
        Pressure { lacking, forced, spare, most, safe, waiting, aged: self.aged() }
    }

    /// How many objects are to leave since they have been in memory alone for long. Looked for now and then.
    fn aged(&self) -> u64 {
        let Some(after) = self.pressed.leave_after.filter(|_| !self.is_safe()) else { return 0 };
        let known = self.pressed.state.lock().aged;
        if let Some((_, count)) = known.filter(|(looked, _)| looked.elapsed() < after / 4) {
            return count;
        }
        let (mut count, now) = (0, self.pressed.now());
        let looked = self.ds.scan_lowest(&mut |ino, _| {
            let usage = self.pressed.usage.lock();
            count += u64::from(!usage.is_open(ino) && usage.closed_for(ino, now) >= after);
        });
        if let Err(errno) = looked {
            tracing::warn!(%errno, "what is in memory alone was not looked through");
        }
        self.pressed.state.lock().aged = Some((Instant::now(), count));
        count
    }

    /// Is so much welcome now?
    pub(super) fn is_welcome(&self, bytes: u64) -> bool {
        let coming: u64 = self.arriving.attempts.lock().values().map(|attempt| attempt.room_left()).sum();
        self.stand().most >= bytes.saturating_add(coming)
    }

    /// A write found no room here. It waits if something can leave.
    pub(super) fn without_room(&self) -> No {
        let waits = {
            let mut state = self.pressed.state.lock();
            let now = Instant::now();
            let before = state.starved.filter(|waits| waits.asked.elapsed() < ASKED_AGAIN);
            let waits = Waits { since: before.map_or(now, |waits| waits.since), asked: now };
            state.starved = Some(waits);
            waits
        };
        if self.pressed.is_without(waits.since, |room| room.any) {
            return no_room("no data server has room");
        }
        if self.is_hopeless(waits.since) {
            return no_room("nothing left this data server for long");
        }
        self.pressed.nudge();
        leaving("this data server is full, and sends something away")
    }

    /// Somebody wants to know that an object is safe, and here is only memory.
    pub(super) fn wait_until_safe(&self, object: &Object, bytes: u64) -> No {
        let Ok(ino) = proto::attr::ino(object.ino) else { return Errno::EINVAL.into() };
        let since = {
            let mut state = self.pressed.state.lock();
            let (now, count) = (Instant::now(), state.unsafe_ones.len());
            match state.unsafe_ones.get_mut(&ino) {
                Some((waits, size)) => {
                    (waits.asked, *size) = (now, bytes);
                    waits.since
                }
                None => {
                    if count < WAITING_MAX {
                        state.unsafe_ones.insert(ino, (Waits { since: now, asked: now }, bytes));
                    }
                    now
                }
            }
        };
        if self.pressed.is_without(since, |room| room.safe) {
            return no_room("no data server has room in a tier that outlives its machine");
        }
        if self.is_hopeless(since) {
            return no_room("nothing left this data server for long");
        }
        self.pressed.nudge();
        leaving("the object is to go where it outlives its machine")
    }

    fn is_hopeless(&self, since: Instant) -> bool {
        let left = self.pressed.state.lock().left.map_or(since, |left| left.max(since));
        left.elapsed() > self.pressed.patience && !self.leaving.is_active(ASKED_AGAIN)
    }

    /// What it would be rid of.
    pub(super) fn coolest(&self, asked: &Coolest) -> Result<Done, No> {
        let slots: HashSet<u16> = owners::slots(&asked.slots).into_iter().collect();
        let of_asker = |ino: Ino| slots.is_empty() || slots.contains(&ino.ugsd().slot().get());
        let stand = self.stand();
        let pressure = Some(self.pressure());
        let mut objects = self.to_be_safe(&of_asker);
        if stand.lacking > 0 || self.aged() > 0 {
            let left = LIST_MAX - objects.len();
            objects.extend(self.cool_ones(&stand, &of_asker, left)?);
        }
        Ok(Done::new(&CoolList { pressure, objects }))
    }

    /// Those that somebody waits for, who waits longest first.
    fn to_be_safe(&self, of_asker: &dyn Fn(Ino) -> bool) -> Vec<Cool> {
        let mut waiting: Vec<(Instant, Ino, u64)> = {
            let state = self.pressed.state.lock();
            let asked = state.unsafe_ones.iter().filter(|(ino, _)| of_asker(**ino));
            asked.map(|(ino, (waits, bytes))| (waits.since, *ino, *bytes)).collect()
        };
        waiting.sort_unstable();
        waiting.truncate(LIST_MAX / 2);
        let count = waiting.len() as u64;
        let cool = |(n, (_, ino, bytes)): (usize, (Instant, Ino, u64))| {
            let (object, cool) = (ino.get(), count - n as u64);
            Cool { object, bytes, open: true, cool, why: CoolWhy::Safe.into() }
        };
        waiting.into_iter().enumerate().map(cool).collect()
    }

    /// The coolest of what is in the lowest tier.
    fn cool_ones(&self, stand: &Stand, of_asker: &dyn Fn(Ino) -> bool, most: usize) -> Result<Vec<Cool>, No> {
        let now = self.pressed.now();
        let aged_after = self.pressed.leave_after.filter(|_| !self.is_safe());
        let unused = self.table.idle(Duration::ZERO);
        let count = unused.len() as u64;
        let rank: HashMap<Ino, u64> =
            unused.iter().enumerate().map(|(n, held)| (held.ino, count - n as u64)).collect();
        let mut cool = Vec::new();
        let key = |one: &Cool| (one.why == i32::from(CoolWhy::Room), one.open, u64::MAX - one.cool);
        let scanned = self.ds.scan_lowest(&mut |ino, bytes| {
            if !of_asker(ino) {
                return;
            }
            let usage = self.pressed.usage.lock();
            let open = rank.get(&ino).copied();
            let aged = open.is_none() && aged_after.is_some_and(|after| usage.closed_for(ino, now) >= after);
            let why = if aged { CoolWhy::Aged } else { CoolWhy::Room };
            if bytes == 0 || why == CoolWhy::Room && (stand.lacking == 0 || open.is_some() && !stand.forced) {
                return;
            }
            let value = match open {
                Some(rank) => usage.cool_open(ino, rank, now),
                None => usage.cool_closed(ino, now),
            };
            let open = open.is_some();
            cool.push(Cool { object: ino.get(), bytes, open, cool: value, why: why.into() });
            if cool.len() >= 4 * LIST_MAX {
                cool.sort_unstable_by_key(key);
                cool.truncate(LIST_MAX);
            }
        });
        scanned?;
        // Copies of which it is not said that they count are nobody's to send.
        let marked = |one: &Cool| {
            Ino::from_raw(one.object).is_some_and(|ino| self.is_copy(ino) || self.replicas.has(ino))
        };
        cool.retain(|one| !marked(one));
        cool.sort_unstable_by_key(key);
        cool.truncate(most);
        Ok(cool)
    }
}
