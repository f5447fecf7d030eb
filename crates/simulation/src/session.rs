//! A client's session with one slot's owner: the lease machine of `lease::coherence::client`, and what the client's kernel keeps by it.
//!
//! Four rules that a shell has to keep beside the machine's. What is cached was read after its grant, and is not put in place of what this
//! client changed since it asked (`drops`). While a change of names of our own is on its way, nothing about names is answered from here or kept:
//! claims do not exclude what their own client has, and others may see the change already. While a direct write is on its way,
//! nothing of the file is written in place. What was kept is written back before anything is written through.

use std::collections::{BTreeMap, BTreeSet};

use cluster::tenure::{Terms, Time};
use lease::coherence::{
    client::{self, Client, ClientLimits},
    locks::{HadLock, Owner},
    message::{Had, Party, Telling},
    rights::{Claim, Key, Rights},
};
use proto::SessionId;
use types::{Ino, Slot};

use crate::{
    cast::{Broken, TERMS, ugsd_of},
    content::Value,
    message::{CallId, Listing, Message, NameAnswer, NameOp, Op, Seen, Told},
};

/// What is kept of one key.
#[derive(Default)]
pub struct Cache {
    pub entry: Option<Option<Ino>>,
    pub attributes: Option<Option<Told>>,
    pub listing: Option<Listing>,
    pub pages: BTreeMap<u64, Value>,
    /// Newer than what data servers have.
    pub dirty: BTreeMap<u64, u64>,
    /// Rises with all that makes what was asked for before worthless.
    pub drops: u64,
    /// Writes and cuts that go to the data servers now.
    pub direct: u32,
}

impl Cache {
    pub fn forget_clean(&mut self) {
        (self.entry, self.attributes, self.listing) = (None, None, None);
        self.pages.clear();
        self.drops += 1;
    }
}

/// A request that is made until it is answered.
pub struct Asking {
    pub op: Op,
    pub call: CallId,
    pub program: Option<usize>,
    /// On its way, and under which joining.
    pub on_way: Option<Party>,
    pub again: Time,
    pub times: u32,
}

struct Wanting {
    /// A look that ends with the answer.
    look: Option<u64>,
    drops: u64,
}

pub struct Session {
    pub slot: Slot,
    pub id: SessionId,
    pub core: Client,
    pub caches: BTreeMap<Key, Cache>,
    pub asking: BTreeMap<u64, Asking>,
    numbers: u64,
    /// Claims that have begun.
    pub held: BTreeMap<u64, Vec<(Key, Claim)>>,
    wants: BTreeMap<Key, Vec<Wanting>>,
    pub releases: BTreeMap<Key, (u64, Rights)>,
    pub locks: BTreeMap<Owner, HadLock>,
    /// Changes of names of our own that are on their way.
    pub changing: u32,
    /// As [`Cache::drops`], of all names.
    drops: u64,
    /// To be said to the slot's owner.
    pub sayings: Vec<Message>,
    /// It was given up.
    pub over: bool,
    broken: Broken,
}

impl Session {
    pub fn new(slot: Slot, id: SessionId, now: Time, broken: Broken) -> Session {
        let factor = if broken == Broken::ClientTerms { 6 } else { 1 };
        let terms = Terms { lease: TERMS.lease * factor, ..TERMS };
        let stop_before = Time::from_millis(1);
        Session {
            slot,
            id,
            core: Client::new(ClientLimits { terms, stop_before, leases: 8, wants: 4 }, now),
            caches: BTreeMap::new(),
            asking: BTreeMap::new(),
            numbers: 0,
            held: BTreeMap::new(),
            wants: BTreeMap::new(),
            releases: BTreeMap::new(),
            locks: BTreeMap::new(),
            changing: 0,
            drops: 0,
            sayings: Vec::new(),
            over: false,
            broken,
        }
    }

    pub fn party(&self) -> Party {
        Party { session: self.id, joined: self.core.joined() }
    }

    /// Something can be asked under the joining that is.
    pub fn is_in(&self) -> bool {
        self.core.joined().0 != 0 && !self.core.is_joining() && !self.over
    }

    pub fn lives(&self, now: Time) -> bool {
        self.core.may_until().is_some_and(|until| now < until)
    }

    pub fn may(&self, now: Time, key: &Key, rights: Rights) -> bool {
        self.core.may(now, key).contains(rights)
    }

    pub fn cache(&mut self, ino: Ino) -> &mut Cache {
        self.caches.entry(Key::Inode(ino)).or_default()
    }

    pub fn ask(&mut self, op: Op, call: CallId, program: Option<usize>) -> u64 {
        self.numbers += 1;
        let asking = Asking { op, call, program, on_way: None, again: Time::ZERO, times: 0 };
        self.asking.insert(self.numbers, asking);
        self.numbers
    }

    /// All below are answered.
    pub fn acknowledged(&self) -> u64 {
        self.asking.keys().next().copied().unwrap_or(self.numbers + 1)
    }

    pub fn renumber(&mut self, number: u64) -> Option<u64> {
        let asking = self.asking.remove(&number)?;
        self.numbers += 1;
        self.asking.insert(self.numbers, asking);
        Some(self.numbers)
    }

    /// Answers without asking, if it may.
    pub fn look(&self, now: Time, op: &NameOp) -> Option<NameAnswer> {
        if self.changing > 0 {
            return None;
        }
        let (key, rights) = key_of(op)?;
        let cache = self.caches.get(&key).filter(|_| self.may(now, &key, rights))?;
        match op {
            NameOp::Lookup { .. } => cache.entry.map(NameAnswer::Found),
            NameOp::GetAttr { .. } => cache.attributes.map(NameAnswer::Attributes),
            NameOp::List { .. } => cache.listing.clone().map(NameAnswer::Names),
            NameOp::Create { .. }
            | NameOp::Unlink { .. }
            | NameOp::Rename { .. }
            | NameOp::Link { .. }
            | NameOp::Chmod { .. } => None,
        }
    }

    /// A change of names begins or has ended.
    pub fn forget_names(&mut self) {
        self.drops += 1;
        for cache in self.caches.values_mut() {
            (cache.entry, cache.attributes, cache.listing) = (None, None, None);
        }
    }

    pub fn want(&mut self, now: Time, key: Key, rights: Rights, look: Option<u64>) {
        let wanting = Wanting { look, drops: self.drops };
        self.wants.entry(key.clone()).or_default().push(wanting);
        self.core.handle(now, client::Input::Want { key, rights });
        self.effects(now, None);
    }

    pub fn told(&mut self, now: Time, telling: Telling, seen: Option<Seen>) {
        let about = match &telling {
            Telling::Granted { key, .. } => seen.map(|seen| (key.clone(), seen)),
            _ => None,
        };
        self.core.handle(now, client::Input::Told(telling));
        self.effects(now, about);
    }

    pub fn handle_deadline(&mut self, now: Time) {
        if self.core.next_deadline().is_some_and(|at| at <= now) {
            self.core.handle_deadline(now);
            assert!(self.core.next_deadline().is_none_or(|at| at > now), "no busy loop");
        }
        self.effects(now, None);
    }

    fn effects(&mut self, now: Time, seen: Option<(Key, Seen)>) {
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                client::Effect::Say { joined, saying } => {
                    let by = Party { session: self.id, joined };
                    self.sayings.push(Message::Lease { slot: self.slot, by, saying });
                }
                client::Effect::Join { before, number, life, leases } => {
                    let had = self.had(before.0 == 0, leases);
                    let by = Party { session: self.id, joined: before };
                    let saying = lease::coherence::message::Saying::Join { number, life, had };
                    self.sayings.push(Message::Lease { slot: self.slot, by, saying });
                }
                client::Effect::Answered { key, .. } => {
                    let seen = seen.as_ref().filter(|(of, _)| *of == key).map(|(_, seen)| seen.clone());
                    self.answered(now, &key, seen);
                }
                client::Effect::Release { key, keeps, number } => {
                    self.releases.insert(key, (number, keeps));
                }
                client::Effect::Stop => {
                    if self.broken != Broken::StalePages {
                        self.caches.values_mut().for_each(Cache::forget_clean);
                    }
                }
                client::Effect::Resume => (),
                client::Effect::Over { .. } => self.over = true,
            }
        }
    }

    fn had(&self, new: bool, leases: Vec<(Key, Rights)>) -> Had {
        if new {
            return Had::default();
        }
        let claims = self.held.iter().map(|(number, claims)| (*number, claims.clone())).collect();
        Had { leases, claims, locks: self.locks.values().copied().collect() }
    }

    /// A wish was answered: what was read after the grant is kept, and looks end.
    fn answered(&mut self, now: Time, key: &Key, seen: Option<Seen>) {
        let wants = self.wants.remove(key).unwrap_or_default();
        let fresh = !wants.is_empty() && wants.iter().all(|want| want.drops == self.drops);
        for look in wants.into_iter().filter_map(|want| want.look) {
            self.held.remove(&look);
            self.ask(Op::End { number: look }, CallId(0), None);
        }
        let Some(seen) = seen.filter(|_| fresh && self.changing == 0) else { return };
        let rights = self.core.may(now, key);
        let is_directory = *key == Key::Inode(crate::cast::directory(ugsd_of(self.slot)));
        let cache = self.caches.entry(key.clone()).or_default();
        match seen {
            Seen::Entry(ino) if rights.contains(Rights::ATTRIBUTES) => cache.entry = Some(ino),
            Seen::Attributes { told, listing } => {
                if rights.contains(Rights::ATTRIBUTES) {
                    cache.attributes = Some(told);
                }
                if is_directory && rights.contains(Rights::PAGES) {
                    cache.listing = listing;
                }
            }
            Seen::Entry(_) => (),
        }
    }

    /// What the kernel can give back now: what was kept is written back already.
    pub fn release(&mut self, now: Time) {
        let clean = |cache: Option<&Cache>| cache.is_none_or(|c| c.dirty.is_empty() && c.direct == 0);
        let ready: Vec<Key> = self
            .releases
            .iter()
            .filter(|(key, (_, keeps))| keeps.contains(Rights::WRITE_BACK) || clean(self.caches.get(key)))
            .map(|(key, _)| key.clone())
            .collect();
        for key in ready {
            let Some((number, keeps)) = self.releases.remove(&key) else { continue };
            let cache = self.caches.entry(key.clone()).or_default();
            cache.drops += 1;
            if !keeps.contains(Rights::PAGES) && self.broken != Broken::StalePages {
                cache.pages.clear();
                cache.listing = None;
            }
            if !keeps.contains(Rights::ATTRIBUTES) {
                (cache.attributes, cache.entry) = (None, None);
            }
            self.core.handle(now, client::Input::Released { key, number });
        }
        self.effects(now, None);
    }

    /// Cells that have to be written back: of keys that are given back, or all.
    pub fn to_write_back(&self, all: bool) -> Vec<(Ino, u64, u64)> {
        let asked: BTreeSet<&Key> = self
            .releases
            .iter()
            .filter(|(_, (_, k))| !k.contains(Rights::WRITE_BACK))
            .map(|(k, _)| k)
            .collect();
        let of = |(key, cache): (&Key, &Cache)| {
            let Key::Inode(ino) = *key else { return Vec::new() };
            let cells = cache.dirty.iter().filter(|_| all || asked.contains(key));
            cells.map(|(cell, value)| (ino, *cell, *value)).collect()
        };
        self.caches.iter().flat_map(of).collect()
    }

    pub fn is_dirty(&self) -> bool {
        self.caches.values().any(|cache| !cache.dirty.is_empty())
    }

    pub fn is_at_rest(&self, now: Time) -> bool {
        self.asking.is_empty()
            && self.releases.is_empty()
            && !self.is_dirty()
            && self.lives(now)
            && self.held.is_empty()
    }
}

/// What a look is at, and by which right it can be answered from here.
pub fn key_of(op: &NameOp) -> Option<(Key, Rights)> {
    match op {
        NameOp::Lookup { dir, name } => {
            Some((Key::Entry { dir: *dir, name: Box::from(name.as_bytes()) }, Rights::ATTRIBUTES))
        }
        NameOp::GetAttr { ino } => Some((Key::Inode(*ino), Rights::ATTRIBUTES)),
        NameOp::List { dir } => Some((Key::Inode(*dir), Rights::PAGES)),
        NameOp::Create { .. }
        | NameOp::Unlink { .. }
        | NameOp::Rename { .. }
        | NameOp::Link { .. }
        | NameOp::Chmod { .. } => None,
    }
}
