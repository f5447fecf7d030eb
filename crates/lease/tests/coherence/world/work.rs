//! What programs do on a client, and what its kernel keeps and shows.

use std::time::Duration;

use lease::coherence::{
    client,
    locks::{Class, LockRequest, Owner},
    message::Life,
    ranges::{Found, Kind, Range},
    rights::{Claim, Key, Rights},
};

use super::{
    BYTES, Broken, Cache, INODES, Operation, Request, Use, Value, WORK_UNTIL, World, ino, keys, space,
};

impl World {
    /// What the kernel of a client gives back.
    pub(super) fn release(&mut self, at: usize) {
        // Nobody would take what is written back.
        if self.is_behind(at) {
            return;
        }
        let time = self.time;
        let due = |(_, (when, _)): &(&(Key, u64), &(Duration, Rights))| *when <= time;
        let done: Vec<(Key, u64)> =
            self.hosts[at].releases.iter().filter(due).map(|(key, _)| key.clone()).collect();
        for (key, number) in done {
            let host = &mut self.hosts[at];
            let Some((_, keeps)) = host.releases.remove(&(key.clone(), number)) else { continue };
            if !keeps.contains(Rights::WRITE_BACK) {
                self.write_back(at, &key);
            }
            let host = &mut self.hosts[at];
            let cache = host.caches.entry(key.clone()).or_default();
            if !keeps.contains(Rights::PAGES) && self.broken != Broken::StalePages {
                cache.pages = None;
            }
            if !keeps.contains(Rights::ATTRIBUTES) {
                cache.attr = None;
            }
            let now = host.clock.at(time);
            host.core.handle(now, client::Input::Released { key, number });
        }
    }

    fn write_back(&mut self, at: usize, key: &Key) {
        let session = self.hosts[at].session;
        let cache = self.hosts[at].caches.entry(key.clone()).or_default();
        let dirty = std::mem::take(&mut cache.dirty);
        let refused = self.refused_writers.contains(&session) && self.broken != Broken::NoFence;
        let (true, false, Some(data), Some(attr)) = (dirty, refused, cache.pages, cache.attr) else { return };
        self.seen.written_back += 1;
        self.stored.insert(key.clone(), Value { data, attr });
        if let Some((_, only)) = self.truth.get_mut(key) {
            *only = only.filter(|only| *only != session);
        }
    }

    pub(super) fn work_with_locks(&mut self, at: usize) {
        let session = self.hosts[at].session;
        let which = self.random.below(3);
        let class = if which == 2 { Class::Flock } else { Class::Process };
        let owner = Owner { session, class, id: which };
        let works = self.time < WORK_UNTIL;
        if let Some(number) = self.hosts[at].locking.get(&owner).copied() {
            if works && self.random.one_in(60) {
                self.hosts[at].ask(Request::Cancel(number));
            }
            return;
        }
        // A flock is on one file, so that no circle arises which nobody looks for.
        let ino = if class == Class::Flock { ino(0) } else { ino(self.random.below(INODES)) };
        let (a, b) = (self.random.below(BYTES), self.random.below(BYTES));
        let part = Range::new(a.min(b), a.max(b)).expect("in order");
        let range = if class == Class::Flock { Range::ALL } else { part };
        let kind = if self.random.one_in(2) { Kind::Read } else { Kind::Write };
        let wait = !self.random.one_in(3);
        let unlock = !works || self.random.one_in(2);
        let host = &mut self.hosts[at];
        let spaces = host.locks.entry(ino).or_default();
        let number = if unlock {
            let range = if works { range } else { Range::ALL };
            if !spaces[space(class)].owners().any(|of| of == owner) {
                return;
            }
            spaces[space(class)].set(owner, range, None, 0);
            host.ask(Request::Unlock(owner, ino, range))
        } else {
            self.seen.waited += u64::from(wait);
            // What the program counts on from now: flock gives up first, a lock for reading is no longer one for writing.
            let old = spaces[space(class)].whole(owner);
            if class == Class::Flock && old.is_some_and(|old| old != kind) {
                spaces[space(class)].set(owner, range, None, 0);
            }
            if kind == Kind::Read {
                let mine = |f: &Found<Owner>| {
                    f.owner == owner && f.range.start() <= range.end() && range.start() <= f.range.end()
                };
                for found in spaces[space(class)].all().filter(mine).collect::<Vec<_>>() {
                    let (start, end) = (found.range.start(), found.range.end());
                    let both =
                        Range::new(start.max(range.start()), end.min(range.end())).expect("it overlaps");
                    spaces[space(class)].set(owner, both, Some(Kind::Read), 0);
                }
            }
            host.ask(Request::Lock(LockRequest { ino, owner, range, kind, pid: 1, wait }))
        };
        self.hosts[at].locking.insert(owner, number);
    }

    pub(super) fn work_with_files(&mut self, at: usize) -> Result<(), String> {
        let works = self.time < WORK_UNTIL;
        let numbers: Vec<u64> = self.hosts[at].operations.keys().copied().collect();
        for number in numbers {
            let Some(operation) = self.hosts[at].operations.get(&number) else { continue };
            let (key, claim, kind, begun) =
                (operation.key.clone(), operation.claim, operation.kind, operation.begun);
            if !begun {
                continue;
            }
            if kind == Use::Once {
                self.once(at, &key, claim)?;
            }
            if kind == Use::Once || !works || self.random.one_in(60) {
                self.hosts[at].operations.remove(&number);
                self.hosts[at].ask(Request::End(number));
            } else {
                self.use_open(at, &key, claim)?;
            }
        }
        for key in keys() {
            self.look_cached(at, &key)?;
        }
        if works && self.hosts[at].operations.len() < 2 && self.random.one_in(10) {
            let all = keys();
            let key = all[self.random.below(all.len() as u64) as usize].clone();
            let is_inode = matches!(key, Key::Inode(_));
            let kind = if is_inode && self.random.one_in(2) { Use::Opening } else { Use::Once };
            let claim = match (kind, self.random.below(3)) {
                (_, 0) => Claim::Look,
                (Use::Opening, _) => Claim::Modify,
                (Use::Once, 1) if is_inode => Claim::Modify,
                (Use::Once, _) => Claim::Change,
            };
            let host = &mut self.hosts[at];
            let number = host.ask(Request::Begin(vec![(key.clone(), claim)]));
            host.operations.insert(number, Operation { key, claim, kind, begun: false });
        }
        Ok(())
    }

    /// By the servers, for good or until it has come to their life.
    fn is_refused(&self, at: usize) -> bool {
        let fenced = self.refused_writers.contains(&self.hosts[at].session);
        (fenced || self.is_behind(at)) && self.broken != Broken::NoFence
    }

    fn is_behind(&self, at: usize) -> bool {
        let life = Life::of(self.hosts[at].core.joined().0);
        life < Life(self.server.from) && self.broken != Broken::NoFence
    }

    fn next_value(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    /// A look or a change by the metadata server, while the operation claims its key.
    fn once(&mut self, at: usize, key: &Key, claim: Claim) -> Result<(), String> {
        if self.is_refused(at) {
            return Ok(());
        }
        match claim {
            Claim::Look => {
                self.read(at, key)?;
                let rights = Rights::ATTRIBUTES.with(Rights::PAGES);
                let now = self.hosts[at].clock.at(self.time);
                self.hosts[at].core.handle(now, client::Input::Want { key: key.clone(), rights });
                self.client_effects(at);
                Ok(())
            }
            Claim::Change | Claim::Modify => self.write(at, key, claim == Claim::Modify),
        }
    }

    fn use_open(&mut self, at: usize, key: &Key, claim: Claim) -> Result<(), String> {
        if self.is_refused(at) {
            return Ok(());
        }
        match self.random.below(8) {
            0 => self.read(at, key),
            1 if claim == Claim::Modify => self.write(at, key, true),
            2 => {
                let rights = if claim == Claim::Modify {
                    Rights::ALL
                } else {
                    Rights::ALL.without(Rights::WRITE_BACK)
                };
                let now = self.hosts[at].clock.at(self.time);
                self.hosts[at].core.handle(now, client::Input::Want { key: key.clone(), rights });
                self.client_effects(at);
                Ok(())
            }
            3 if self.random.one_in(4) && self.hosts[at].lives(self.time) => {
                self.write_back(at, key);
                let host = &mut self.hosts[at];
                let now = host.clock.at(self.time);
                *host.caches.entry(key.clone()).or_default() = Cache::default();
                host.core.handle(now, client::Input::GiveBack { key: key.clone(), keeps: Rights::NONE });
                self.client_effects(at);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Under a claim: from the cache as far as it may be used, else from the servers.
    fn read(&mut self, at: usize, key: &Key) -> Result<(), String> {
        self.look_cached(at, key)?;
        let rights = self.hosts[at].may(self.time, key);
        let cache = self.hosts[at].caches.entry(key.clone()).or_default();
        if cache.dirty {
            return Ok(());
        }
        let (stored, truth) = (self.stored[key], self.truth[key].0);
        if stored != truth {
            return Err(format!(
                "{:?}: client {at} reads {stored:?} of {key:?}, which is {truth:?}",
                self.time
            ));
        }
        cache.pages = rights.contains(Rights::PAGES).then_some(stored.data);
        cache.attr = rights.contains(Rights::ATTRIBUTES).then_some(stored.attr);
        Ok(())
    }

    fn write(&mut self, at: usize, key: &Key, data: bool) -> Result<(), String> {
        let value = self.next_value();
        let rights = self.hosts[at].may(self.time, key);
        let session = self.hosts[at].session;
        if self.hosts[at].caches.get(key).is_some_and(|cache| cache.dirty)
            && !rights.contains(Rights::WRITE_BACK)
        {
            // It waits until what it wrote before is written back.
            return Ok(());
        }
        if rights.contains(Rights::WRITE_BACK) {
            self.read(at, key)?;
            let cache = self.hosts[at].caches.entry(key.clone()).or_default();
            cache.dirty = true;
            cache.attr = Some(value);
            if data {
                cache.pages = Some(value);
            }
            let (Some(data), Some(attr)) = (cache.pages, cache.attr) else {
                return Err(format!("{:?}: client {at} has no pages of {key:?}", self.time));
            };
            self.truth.insert(key.clone(), (Value { data, attr }, Some(session)));
            return Ok(());
        }
        let stored = self.stored.get_mut(key).expect("a key");
        let before = *stored;
        stored.attr = value;
        if data {
            stored.data = value;
        }
        if before != self.truth[key].0 {
            return Err(format!("{:?}: client {at} writes {key:?} below what another keeps", self.time));
        }
        let cache = self.hosts[at].caches.entry(key.clone()).or_default();
        cache.attr = cache.attr.map(|_| value);
        cache.pages = cache.pages.map(|old| if data { value } else { old });
        self.truth.insert(key.clone(), (*stored, None));
        Ok(())
    }

    /// What programs see that need not ask.
    fn look_cached(&mut self, at: usize, key: &Key) -> Result<(), String> {
        let rights = self.hosts[at].may(self.time, key);
        let Some(cache) = self.hosts[at].caches.get(key).copied() else { return Ok(()) };
        let truth = self.truth[key].0;
        let pages = cache.pages.filter(|_| rights.contains(Rights::PAGES));
        let attr = cache.attr.filter(|_| rights.contains(Rights::ATTRIBUTES));
        self.seen.cached_reads += u64::from(pages.is_some());
        if pages.is_some_and(|data| data != truth.data) || attr.is_some_and(|attr| attr != truth.attr) {
            return Err(format!(
                "{:?}: client {at} shows {pages:?}, {attr:?} of {key:?}, which is {truth:?}",
                self.time
            ));
        }
        Ok(())
    }
}
