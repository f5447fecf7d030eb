//! Circles of processes that wait for each other over the locks of several servers. Each server sees those of its own locks
//! ([`super::locks`]); for the others one of them looks again and again at who waits for whom at each.
//!
//! What is told by several servers was true at several moments, and a circle that is put together of it may never have been there. So a
//! *pair*, of a request that waits and a process whose lock is in its way, has a number at its server for as long as it lasts without a break. What is
//! told with one number in two looks, of which the second began when the first had ended, was there at the moment between them; a circle
//! of such pairs was there at that moment, as a whole.
//!
//! - I-CIRCLE-1: who is refused was in a circle at one moment at which its request waited. As on one machine another thread may have been about to
//!   give up a lock.
//! - I-CIRCLE-2: of each circle that stays somebody is refused, with the second look after it was closed, and no more than one.

use std::collections::{BTreeMap, BTreeSet};

use proto::SessionId;
use types::Ino;

use super::owner::{Class, Owner};

/// A process's request that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    pub ino: Ino,
    pub owner: Owner,
    /// The session's number of it.
    pub number: u64,
    pub behind: Vec<Behind>,
}

/// A process whose lock is in its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind {
    pub owner: Owner,
    /// The pair's number.
    pub since: u64,
}

/// By the inode and the arrival of who waits.
type Numbers = BTreeMap<(Ino, u64), BTreeMap<Owner, u64>>;

/// The pairs of one server that were told in its last look and have lasted since.
#[derive(Default)]
pub(super) struct Pairs {
    last: u64,
    numbers: Numbers,
}

/// A look that is being made.
pub(super) struct Telling {
    last: u64,
    before: Numbers,
    numbers: Numbers,
    waits: Vec<Wait>,
}

impl Pairs {
    pub(super) fn begin(&mut self) -> Telling {
        let before = std::mem::take(&mut self.numbers);
        Telling { last: self.last, before, numbers: Numbers::new(), waits: Vec::new() }
    }

    pub(super) fn end(&mut self, telling: Telling) -> Vec<Wait> {
        (self.last, self.numbers) = (telling.last, telling.numbers);
        telling.waits
    }

    /// A process's locks on an inode are others now.
    pub(super) fn changed(&mut self, ino: Ino, owner: Owner, blocks: impl Fn(u64) -> bool) {
        for ((_, arrival), behind) in self.numbers.range_mut((ino, 0)..=(ino, u64::MAX)) {
            if behind.contains_key(&owner) && !blocks(*arrival) {
                behind.remove(&owner);
            }
        }
    }

    /// It waits no more.
    pub(super) fn ended(&mut self, ino: Ino, arrival: u64) {
        self.numbers.remove(&(ino, arrival));
    }
}

impl Telling {
    pub(super) fn tell(&mut self, at: (Ino, u64), (owner, number): (Owner, u64), behind: Vec<Owner>) {
        let before = self.before.get(&at);
        let mut numbers = BTreeMap::new();
        for holder in behind.into_iter().filter(|holder| holder.class == Class::Process) {
            let since = before.and_then(|before| before.get(&holder)).copied().unwrap_or_else(|| {
                self.last += 1;
                self.last
            });
            numbers.insert(holder, since);
        }
        if !numbers.is_empty() {
            let behind = numbers.iter().map(|(owner, since)| Behind { owner: *owner, since: *since });
            self.waits.push(Wait { ino: at.0, owner, number, behind: behind.collect() });
            self.numbers.insert(at, numbers);
        }
    }
}

/// A pair as a server told it. `S` names the server's life: in another one numbers begin anew.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pair<S> {
    pub server: S,
    pub owner: Owner,
    pub number: u64,
    pub behind: Owner,
    pub since: u64,
}

impl<S: Copy> Pair<S> {
    pub fn of(server: S, wait: &Wait) -> impl Iterator<Item = Pair<S>> {
        let (owner, number) = (wait.owner, wait.number);
        wait.behind.iter().map(move |behind| Pair {
            server,
            owner,
            number,
            behind: behind.owner,
            since: behind.since,
        })
    }
}

/// A request that is to be told `EDEADLK` by its server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Victim<S> {
    pub server: S,
    pub session: SessionId,
    pub number: u64,
}

/// Of the one who looks.
pub struct Search<S> {
    before: BTreeSet<Pair<S>>,
}

impl<S> Default for Search<S> {
    fn default() -> Search<S> {
        Search { before: BTreeSet::new() }
    }
}

impl<S: Copy + Ord> Search<S> {
    /// What a look found, of each server that answered: it began after the last one had ended. Returns one victim of each circle.
    pub fn look(&mut self, pairs: impl IntoIterator<Item = Pair<S>>) -> Vec<Victim<S>> {
        let now: BTreeSet<Pair<S>> = pairs.into_iter().collect();
        let mut ahead: Ahead<S> = BTreeMap::new();
        for pair in now.intersection(&self.before) {
            ahead.entry(pair.owner).or_default().push(*pair);
        }
        self.before = now;
        let (mut settled, mut victims) = (BTreeSet::new(), Vec::new());
        for start in ahead.keys() {
            while let Some(circle) = circle_from(*start, &ahead, &mut settled) {
                // The same one whoever looks.
                let last = circle.iter().max_by_key(|pair| (pair.owner, pair.server, pair.number));
                victims.extend(last.map(|pair| Victim {
                    server: pair.server,
                    session: pair.owner.session,
                    number: pair.number,
                }));
                settled.extend(circle.iter().map(|pair| pair.owner));
            }
        }
        victims
    }
}

type Ahead<S> = BTreeMap<Owner, Vec<Pair<S>>>;

/// A circle that can be reached from there without those who are settled: they are in none, or in one that was found. Who is found to be in none
/// is settled, too.
fn circle_from<S: Copy>(
    start: Owner,
    ahead: &Ahead<S>,
    settled: &mut BTreeSet<Owner>,
) -> Option<Vec<Pair<S>>> {
    let of = |owner: Owner| ahead.get(&owner).map_or(&[][..], Vec::as_slice);
    if settled.contains(&start) {
        return None;
    }
    // The way from the start: of each step who it leads to, and his pairs that were not gone yet.
    let mut way: Vec<Pair<S>> = Vec::new();
    let mut places = BTreeMap::from([(start, 0)]);
    let mut steps = vec![(start, of(start).iter())];
    while let Some((owner, pairs)) = steps.last_mut() {
        let Some(pair) = pairs.next() else {
            places.remove(owner);
            settled.insert(*owner);
            steps.pop();
            way.pop();
            continue;
        };
        if let Some(place) = places.get(&pair.behind) {
            way.push(*pair);
            return Some(way.split_off(*place));
        }
        if !settled.contains(&pair.behind) {
            places.insert(pair.behind, steps.len());
            way.push(*pair);
            steps.push((pair.behind, of(pair.behind).iter()));
        }
    }
    None
}
