//! A client's side: what may be kept until when, what is given back, and what is lost.
//!
//! An event machine: [`Client::handle`] and [`Client::handle_deadline`], then [`Client::poll_effect`] until there is none. Before the
//! term ends the shell is told to stop: it has `stop_before` to take pages and attributes from the kernel. Times that the kernel
//! keeps entries and attributes for by itself must not be longer than [`Client::may_until`]. Pages have no such time: a process that
//! is stopped while its kernel is not shows old ones until it goes on, and what they wrote is refused, since it was fenced.
//!
//! Openings, operations and locks are requests of the shell's own; for a joining it adds what it has of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cluster::tenure::{Terms, Time};

use super::{
    message::{Joined, Life, Saying, Telling},
    rights::{Key, Rights},
};

/// Renewals whose answers are still awaited; later ones have made older ones worthless.
const AWAITED_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientLimits {
    pub terms: Terms,
    /// For the shell to stop in; less than a term.
    pub stop_before: Time,
    pub leases: usize,
    /// Wishes without an answer. What is wished beyond that is answered with what is there: it is only slower.
    pub wants: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    Told(Telling),
    /// Somebody uses it, and would gain.
    Want {
        key: Key,
        rights: Rights,
    },
    /// [`Effect::Release`] is carried out.
    Released {
        key: Key,
        number: u64,
    },
    /// More than `keeps` is not used any more; it is written back and forgotten already.
    GiveBack {
        key: Key,
        keeps: Rights,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    Say {
        joined: Joined,
        saying: Saying,
    },
    /// To be said with the shell's claims and locks as [`Saying::Join`].
    Join {
        before: Joined,
        number: u64,
        life: Life,
        leases: Vec<(Key, Rights)>,
    },
    /// A wish was answered: this is what may be used, wished or not.
    Answered {
        key: Key,
        rights: Rights,
    },
    /// Write back and forget what goes beyond `keeps`; then [`Input::Released`].
    Release {
        key: Key,
        keeps: Rights,
        number: u64,
    },
    /// The term ends soon: whatever is clean is forgotten, nothing is answered from here, and what was written is kept, unseen.
    Stop,
    /// The term goes on, and so does all that was there.
    Resume,
    /// The session is over. Nothing of this is ours: what was written under [`Rights::WRITE_BACK`] and not written back is lost, and all
    /// openings and locks are.
    Over {
        had: Vec<(Key, Rights)>,
    },
}

struct Kept {
    rights: Rights,
    /// Of the last grant or recall.
    number: u64,
    /// What stays when the shell has released the rest.
    releasing: Option<Rights>,
}

impl Kept {
    fn stays(&self) -> Rights {
        self.releasing.map_or(self.rights, |keeps| self.rights.both(keeps))
    }
}

struct Want {
    request: u64,
    rights: Rights,
    /// Grants up to this one were recalled or returned before they came.
    floor: u64,
}

pub struct Client {
    limits: ClientLimits,
    joined: Joined,
    /// A life to come to.
    joining: Option<Life>,
    until: Option<Time>,
    stopped: bool,
    over: bool,
    number: u64,
    /// When renewals were sent.
    awaited: BTreeMap<u64, Time>,
    next: Time,
    requests: u64,
    kept: BTreeMap<Key, Kept>,
    /// Those of them that are not being released, by number.
    by_age: BTreeSet<(u64, Key)>,
    wants: BTreeMap<Key, Want>,
    effects: VecDeque<Effect>,
}

impl Client {
    /// Of a session that nobody ever had.
    pub fn new(limits: ClientLimits, now: Time) -> Client {
        Client {
            limits,
            joined: Joined::default(),
            joining: None,
            until: None,
            stopped: true,
            over: false,
            number: 0,
            awaited: BTreeMap::new(),
            next: now,
            requests: 0,
            kept: BTreeMap::new(),
            by_age: BTreeSet::new(),
            wants: BTreeMap::new(),
            effects: VecDeque::new(),
        }
    }

    pub fn joined(&self) -> Joined {
        self.joined
    }

    /// What the server's former life answers from now on, to openings and for locks, is not in what it was told: it does not count.
    pub fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    pub fn is_over(&self) -> bool {
        self.over
    }

    /// When whatever is kept must be forgotten, unless the term goes on. `None`: nothing may be kept.
    pub fn may_until(&self) -> Option<Time> {
        self.until.filter(|_| !self.stopped && !self.over)
    }

    /// What the shell may answer from what it keeps, and keep more of.
    pub fn may(&self, now: Time, key: &Key) -> Rights {
        let lives = self.may_until().is_some_and(|until| now < until);
        self.kept.get(key).filter(|_| lives).map_or(Rights::NONE, Kept::stays)
    }

    /// All that the server may believe we have.
    pub fn kept(&self) -> impl Iterator<Item = (&Key, Rights)> {
        self.kept.iter().map(|(key, kept)| (key, kept.rights))
    }

    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    pub fn handle(&mut self, now: Time, input: Input) {
        if self.over {
            return;
        }
        match input {
            Input::Told(telling) => self.told(now, telling),
            Input::Want { key, rights } => self.want(key, rights),
            Input::Released { key, number } => self.released(&key, number),
            Input::GiveBack { key, keeps } => self.give_back(&key, keeps),
        }
    }

    /// When there is something to say or to stop.
    pub fn next_deadline(&self) -> Option<Time> {
        let stop = self.stop_at().filter(|_| !self.stopped);
        (!self.over).then(|| stop.map_or(self.next, |stop| stop.min(self.next)))
    }

    pub fn handle_deadline(&mut self, now: Time) {
        if self.over {
            return;
        }
        if !self.stopped && self.stop_at().is_none_or(|stop| now >= stop) {
            self.stopped = true;
            self.effects.push_back(Effect::Stop);
        }
        if now < self.next {
            return;
        }
        self.next = now.saturating_add(self.limits.terms.beat_every);
        self.number += 1;
        let number = self.number;
        self.awaited.insert(number, now);
        while self.awaited.len() > AWAITED_MAX {
            self.awaited.pop_first();
        }
        if let Some(life) = self.joining {
            let leases = self.kept.iter().map(|(key, kept)| (key.clone(), kept.rights)).collect();
            return self.effects.push_back(Effect::Join { before: self.joined, number, life, leases });
        }
        self.say(Saying::Renew { number });
        let wants: Vec<Saying> = self.wants.iter().map(|(key, want)| want.saying(key)).collect();
        wants.into_iter().for_each(|saying| self.say(saying));
    }

    fn stop_at(&self) -> Option<Time> {
        self.until.map(|until| until.saturating_sub(self.limits.stop_before))
    }

    fn say(&mut self, saying: Saying) {
        self.effects.push_back(Effect::Say { joined: self.joined, saying });
    }

    /// Of all that was granted up to `number` we have only that; so what still comes of it does not count.
    fn returned(&mut self, key: Key, number: u64, keeps: Rights) {
        if let Some(want) = self.wants.get_mut(&key) {
            want.floor = want.floor.max(number);
        }
        self.say(Saying::Returned { key, number, keeps });
    }

    fn told(&mut self, now: Time, telling: Telling) {
        match telling {
            Telling::Joined { before, joined, number, leases } => {
                if before == self.joined && self.joining.is_some() {
                    self.joining = None;
                    self.joined = joined;
                    self.renumber(&leases);
                    self.renewed(now, number);
                    self.next = now;
                }
            }
            Telling::Renewed { joined, number } if joined == self.joined => self.renewed(now, number),
            Telling::Rejoin { joined, life } if joined == self.joined => {
                if self.joining.is_none_or(|known| known < life) && life > Life::of(joined.0) {
                    self.joining = Some(life);
                    self.next = now;
                }
            }
            Telling::Gone { joined } if joined == self.joined => self.end(),
            // What an ended life says late is not in what we said we have.
            Telling::Granted { joined, request, key, rights, number }
                if joined == self.joined && self.joining.is_none() =>
            {
                self.granted(request, key, rights, number);
            }
            Telling::Recall { joined, key, keeps, number }
                if joined == self.joined && self.joining.is_none() =>
            {
                self.recalled(key, keeps, number);
            }
            // About another life, or another session with our number.
            Telling::Renewed { .. }
            | Telling::Rejoin { .. }
            | Telling::Gone { .. }
            | Telling::Granted { .. }
            | Telling::Recall { .. } => (),
        }
    }

    fn renewed(&mut self, now: Time, number: u64) {
        let Some(sent) = self.awaited.remove(&number) else { return };
        self.until = self.until.max(Some(self.limits.terms.may_until(sent)));
        if self.stopped && self.stop_at().is_some_and(|stop| now < stop) {
            self.stopped = false;
            self.effects.push_back(Effect::Resume);
        }
    }

    /// The other life counts anew. What was given back since we said what we had, it does not know yet.
    fn renumber(&mut self, leases: &[(Key, Rights, u64)]) {
        for (key, rights, number) in leases {
            match self.kept.get_mut(key) {
                Some(kept) => {
                    self.by_age.remove(&(kept.number, key.clone()));
                    (kept.number, kept.rights) = (*number, kept.rights.both(*rights));
                    // By the old number it would not be believed.
                    match kept.releasing {
                        Some(keeps) => {
                            let (key, number) = (key.clone(), *number);
                            self.effects.push_back(Effect::Release { key, keeps, number });
                        }
                        None => drop(self.by_age.insert((*number, key.clone()))),
                    }
                }
                None => self.returned(key.clone(), *number, Rights::NONE),
            }
        }
    }

    fn want(&mut self, key: Key, rights: Rights) {
        let there = self.kept.get(&key).map_or(Rights::NONE, Kept::stays);
        let waits = self.wants.get(&key).is_some_and(|want| want.rights.contains(rights));
        if waits && self.joined != Joined::default() {
            return;
        }
        let full = self.wants.len() >= self.limits.wants && !self.wants.contains_key(&key);
        if there.contains(rights) || full || self.joined == Joined::default() {
            return self.effects.push_back(Effect::Answered { key, rights: there });
        }
        self.requests += 1;
        let floor = self.wants.get(&key).map_or(0, |want| want.floor);
        let want = Want { request: self.requests, rights, floor };
        self.say(want.saying(&key));
        self.wants.insert(key, want);
    }

    fn granted(&mut self, request: u64, key: Key, rights: Rights, number: u64) {
        let want = self.wants.get(&key).filter(|want| want.request == request);
        let floor = want.map(|want| want.floor);
        if floor.is_some() {
            self.wants.remove(&key);
        }
        let room = self.kept.len() < self.limits.leases;
        match self.kept.get_mut(&key) {
            // Nothing that we have is taken away by a grant; only a recall does that.
            Some(kept) if number > kept.number && rights.contains(kept.rights) => {
                if kept.releasing.is_none() {
                    self.by_age.remove(&(kept.number, key.clone()));
                    (kept.number, kept.rights) = (number, rights);
                    self.by_age.insert((number, key.clone()));
                }
            }
            Some(_) => (),
            None if rights.is_empty() => (),
            None if floor.is_some_and(|floor| number > floor) => {
                if !room {
                    self.release_oldest();
                }
                self.kept.insert(key.clone(), Kept { rights, number, releasing: None });
                self.by_age.insert((number, key.clone()));
            }
            // An answer to nothing, or one that a recall overtook.
            None => self.returned(key.clone(), number, Rights::NONE),
        }
        if floor.is_some() {
            let rights = self.kept.get(&key).map_or(Rights::NONE, Kept::stays);
            self.effects.push_back(Effect::Answered { key, rights });
        }
    }

    fn release_oldest(&mut self) {
        let Some((number, key)) = self.by_age.pop_first() else { return };
        if let Some(kept) = self.kept.get_mut(&key) {
            kept.releasing = Some(Rights::NONE);
            self.effects.push_back(Effect::Release { key, keeps: Rights::NONE, number });
        }
    }

    fn recalled(&mut self, key: Key, keeps: Rights, number: u64) {
        if let Some(want) = self.wants.get_mut(&key) {
            want.floor = want.floor.max(number);
        }
        let Some(kept) = self.kept.get_mut(&key) else {
            return self.returned(key, number, Rights::NONE);
        };
        if number < kept.number || (number == kept.number && kept.releasing.is_some()) {
            return;
        }
        self.by_age.remove(&(kept.number, key.clone()));
        kept.number = number;
        let keeps = kept.releasing.map_or(keeps, |releasing| releasing.both(keeps));
        if keeps.contains(kept.rights) {
            let rights = kept.rights;
            self.by_age.insert((number, key.clone()));
            return self.returned(key, number, rights);
        }
        kept.releasing = Some(keeps);
        self.effects.push_back(Effect::Release { key, keeps, number });
    }

    fn released(&mut self, key: &Key, number: u64) {
        let Some(kept) = self.kept.get_mut(key).filter(|kept| kept.number == number) else { return };
        if let Some(keeps) = kept.releasing.take() {
            self.drop_rights(key, keeps);
        }
    }

    fn give_back(&mut self, key: &Key, keeps: Rights) {
        if self.kept.get(key).is_some_and(|kept| kept.releasing.is_none()) {
            self.drop_rights(key, keeps);
        }
    }

    fn drop_rights(&mut self, key: &Key, keeps: Rights) {
        let Some(kept) = self.kept.get_mut(key) else { return };
        kept.rights = kept.rights.both(keeps);
        let (rights, number) = (kept.rights, kept.number);
        if rights.is_empty() {
            self.by_age.remove(&(number, key.clone()));
            self.kept.remove(key);
        } else {
            self.by_age.insert((number, key.clone()));
        }
        self.returned(key.clone(), number, rights);
    }

    fn end(&mut self) {
        self.over = true;
        self.effects.retain(|effect| matches!(effect, Effect::Answered { .. }));
        for key in std::mem::take(&mut self.wants).into_keys() {
            self.effects.push_back(Effect::Answered { key, rights: Rights::NONE });
        }
        let had = std::mem::take(&mut self.kept).into_iter().map(|(key, kept)| (key, kept.rights)).collect();
        self.by_age.clear();
        self.effects.push_back(Effect::Over { had });
    }
}

impl Want {
    fn saying(&self, key: &Key) -> Saying {
        Saying::Want { request: self.request, key: key.clone(), rights: self.rights }
    }
}
