//! What this mount keeps of names and attributes, and of which files it may keep bytes. Pure.
//!
//! - I-KEPT-1: nothing is used after the term of the server that granted it has ended, counted from when what that answered last was asked; then all of its
//!   is forgotten, since it may have given it to others. So is what it granted to the session as it came there before.
//! - I-KEPT-2: an answer is kept only if nothing that it is about was recalled, or changed by this mount, since it was asked for: whatever overtook it.
//! - I-KEPT-3: while this mount changes something, and as long as it may be changed later by a request without an answer, nothing of that is kept.
//! - I-KEPT-4: bytes of a file may be kept under a lease with a number of its own. They are what they were while that lease stands, but for what this mount
//!   itself changes, of which [`crate::pages`] knows.
//! - I-KEPT-5: what is kept has a bound; beyond it the older half goes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    time::{Duration, Instant},
};

use lease::coherence::rights::Key;
use types::{Attr, Ino, Slot};

use crate::held::Source;

/// Names, and inodes, each. Some 200 bytes for each.
const KEPT_MAX: usize = 1 << 17;

/// A table of two generations.
struct Table<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K: Hash + Eq, V> Default for Table<K, V> {
    fn default() -> Table<K, V> {
        Table { young: HashMap::new(), old: HashMap::new() }
    }
}

impl<K: Hash + Eq, V> Table<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= KEPT_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        let old = self.old.remove(key);
        self.young.remove(key).or(old)
    }

    fn retain(&mut self, keep: impl Fn(&K, &V) -> bool) {
        self.young.retain(|key, value| keep(key, value));
        self.old.retain(|key, value| keep(key, value));
    }

    fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// In a directory.
type Name = (Ino, Box<[u8]>);

/// A question whose answer may be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    number: u64,
    asked: Instant,
}

/// An answer that may be kept: what it was asked under, when it came, and whose it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub ticket: Ticket,
    pub now: Instant,
    pub from: Source,
}

/// One of the servers that grant.
struct Granter {
    /// As which the session is known there.
    joined: u64,
    term: Duration,
    until: Option<Instant>,
    /// Tickets up to this one count for nothing there.
    floor: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeptCounts {
    /// Questions of the kernel that were answered from what is kept.
    pub answered: u64,
    pub recalled: u64,
    /// Times that all was forgotten, since the server was not heard for too long.
    pub lapsed: u64,
    /// At this moment.
    pub names: u64,
    pub inodes: u64,
    /// Files whose bytes may be kept.
    pub files: u64,
}

#[derive(Default)]
pub(crate) struct Kept {
    /// By their nodes.
    granters: BTreeMap<u64, Granter>,
    /// Of what happened last: tickets, recalls, changes.
    number: u64,
    /// Tickets up to this one count for nothing.
    floor: u64,
    open: BTreeSet<u64>,
    /// What was recalled or changed since the oldest open ticket, and when.
    touched: HashMap<Key, u64>,
    /// Slots that were recalled since then.
    touched_slots: HashMap<Slot, u64>,
    /// How often each is being changed.
    changing: HashMap<Key, u32>,
    /// What may be changed until then by a request without an answer.
    doubtful: HashMap<Key, Instant>,
    /// With the node that granted it.
    inodes: Table<Ino, (Attr, u64)>,
    names: Table<Name, (Option<Ino>, u64)>,
    /// The leases of bytes.
    files: Table<Ino, (u64, u64)>,
    /// Of files whose bytes were asked back since the oldest open ticket, and when.
    touched_files: HashMap<Ino, u64>,
    /// Files whose bytes may be changed until then by a request without an answer.
    doubtful_files: HashMap<Ino, Instant>,
    counts: KeptCounts,
}

impl Kept {
    pub(crate) fn counts(&self) -> KeptCounts {
        let (names, inodes) = (self.names.len() as u64, self.inodes.len() as u64);
        KeptCounts { names, inodes, files: self.files.len() as u64, ..self.counts }
    }

    fn is_empty(&self) -> bool {
        self.names.len() + self.inodes.len() + self.files.len() == 0
    }

    /// How often the servers should hear of us, if something is kept, or `writes` may be kept back.
    pub(crate) fn renew_every(&self, writes: bool) -> Option<Duration> {
        let shortest = self.granters.values().filter(|one| one.until.is_some()).map(|one| one.term).min();
        shortest.filter(|_| writes || !self.is_empty()).map(|term| term / 3)
    }

    pub(crate) fn ask(&mut self, now: Instant) -> Ticket {
        self.lapse(now);
        self.number += 1;
        self.open.insert(self.number);
        Ticket { number: self.number, asked: now }
    }

    pub(crate) fn done(&mut self, ticket: Ticket) {
        self.open.remove(&ticket.number);
        match self.open.first().copied() {
            None => {
                self.touched.clear();
                self.touched_slots.clear();
                self.touched_files.clear();
            }
            // Now and then, so that it does not cost more than what is asked.
            Some(oldest) if self.touched.len() + self.touched_files.len() > 64 + 2 * self.open.len() => {
                self.touched.retain(|_, at| *at > oldest);
                self.touched_slots.retain(|_, at| *at > oldest);
                self.touched_files.retain(|_, at| *at > oldest);
            }
            Some(_) => (),
        }
    }

    /// A server answered what was asked then.
    pub(crate) fn heard(&mut self, from: Source, asked: Instant, now: Instant) {
        self.lapse(now);
        if let Some(granter) = self.granters.get_mut(&from.node)
            && granter.joined == from.joined
            && !granter.term.is_zero()
        {
            granter.until = granter.until.max(Some(asked + granter.term));
        }
    }

    fn lapse(&mut self, now: Instant) {
        let over = |one: &Granter| one.until.is_some_and(|until| now >= until);
        let lapsed = self.granters.iter().filter(|(_, one)| over(one)).map(|(node, _)| *node);
        for node in lapsed.collect::<Vec<u64>>() {
            let before = self.inodes.len() + self.names.len() + self.files.len();
            self.leave(node);
            let after = self.inodes.len() + self.names.len() + self.files.len();
            self.counts.lapsed += u64::from(after < before);
        }
    }

    /// The same, with the term. What an earlier coming of the session was told counts for nothing.
    pub(crate) fn heard_term(&mut self, at: &At, term: Duration) {
        let At { ticket, now, from } = *at;
        if self.granters.get(&from.node).is_none_or(|granter| granter.joined < from.joined) {
            self.leave(from.node);
            let granter = Granter { joined: from.joined, term, until: None, floor: 0 };
            self.granters.insert(from.node, granter);
        }
        self.heard(from, ticket.asked, now);
    }

    /// What that server granted is not used any more, nor what it was asked for before.
    pub(crate) fn leave(&mut self, node: u64) {
        self.number += 1;
        if let Some(granter) = self.granters.get_mut(&node) {
            (granter.until, granter.floor) = (None, self.number);
        }
        self.inodes.retain(|_, (_, of)| *of != node);
        self.names.retain(|_, (_, of)| *of != node);
        self.files.retain(|_, (_, of)| *of != node);
    }

    /// The session is another one, or was silent for too long.
    pub(crate) fn clear(&mut self) {
        self.number += 1;
        self.floor = self.number;
        self.inodes.clear();
        self.names.clear();
        self.files.clear();
        self.granters.values_mut().for_each(|granter| granter.until = None);
    }

    fn may_keep(&self, at: &At, key: &Key) -> bool {
        let number = at.ticket.number;
        self.counts_for(at, key.slot())
            && self.touched.get(key).is_none_or(|at| *at < number)
            && !self.changing.contains_key(key)
            && self.doubtful.get(key).is_none_or(|until| at.now >= *until)
    }

    /// Nothing overtook it that is about all.
    fn counts_for(&self, at: &At, slot: Slot) -> bool {
        let overtaken = self.touched_slots.get(&slot).is_some_and(|touched| *touched > at.ticket.number);
        self.is_of_now(at.ticket, at.from) && !overtaken
    }

    /// The server was not silent since, and the session did not come to it anew.
    fn is_of_now(&self, ticket: Ticket, from: Source) -> bool {
        let granter = self.granters.get(&from.node).filter(|granter| granter.joined == from.joined);
        ticket.number > self.floor && granter.is_some_and(|granter| ticket.number > granter.floor)
    }

    /// `None`: there is no such name. `granted`: in which directory, or which part of it, the server knows the name.
    pub(crate) fn keep_name(&mut self, at: &At, (dir, name): (Ino, &[u8]), granted: Ino, ino: Option<Ino>) {
        let key = Key::Entry { dir, name: name.into() };
        if self.may_keep(at, &key) && self.counts_for(at, granted.ugsd().slot()) {
            self.names.insert((dir, name.into()), (ino, at.from.node));
        }
    }

    pub(crate) fn keep_attr(&mut self, at: &At, attr: Attr) {
        if self.may_keep(at, &Key::Inode(attr.ino)) {
            self.inodes.insert(attr.ino, (attr, at.from.node));
        }
    }

    fn lives(&self, now: Instant, node: u64) -> bool {
        self.granters.get(&node).and_then(|granter| granter.until).is_some_and(|until| now < until)
    }

    /// `Some(None)`: there is no such name.
    pub(crate) fn name(&self, now: Instant, dir: Ino, name: &[u8]) -> Option<Option<Ino>> {
        let (found, node) = *self.names.get(&(dir, name.into()))?;
        self.lives(now, node).then_some(found)
    }

    /// Was the name, that is known in `granted`, kept as that inode's at each moment since the ticket?
    pub(crate) fn stood(
        &self,
        ticket: Ticket,
        now: Instant,
        (dir, name, granted): (Ino, &[u8], Ino),
        ino: Ino,
    ) -> bool {
        let Some((found, node)) = self.names.get(&(dir, name.into())) else { return false };
        let key = Key::Entry { dir, name: name.into() };
        let granter = self.granters.get(node);
        let slots = [key.slot(), granted.ugsd().slot()];
        *found == Some(ino)
            && self.lives(now, *node)
            && ticket.number > self.floor
            && granter.is_some_and(|granter| ticket.number > granter.floor)
            && self.touched.get(&key).is_none_or(|at| *at < ticket.number)
            && slots.iter().all(|slot| self.touched_slots.get(slot).is_none_or(|at| *at < ticket.number))
    }

    pub(crate) fn attr(&self, now: Instant, ino: Ino) -> Option<Attr> {
        let (found, node) = *self.inodes.get(&ino)?;
        self.lives(now, node).then_some(found)
    }

    pub(crate) fn answered(&mut self) {
        self.counts.answered += 1;
    }

    fn touch(&mut self, key: &Key) {
        self.number += 1;
        if !self.open.is_empty() {
            self.touched.insert(key.clone(), self.number);
        }
    }

    fn drop_key(&mut self, key: &Key) {
        match key {
            Key::Inode(ino) => drop(self.inodes.remove(ino)),
            Key::Entry { dir, name } => drop(self.names.remove(&(*dir, name.clone()))),
        }
    }

    /// Nothing of it stays, but for bytes if they are not asked for.
    pub(crate) fn recalled(&mut self, key: &Key, keeps_bytes: bool) {
        self.counts.recalled += 1;
        self.touch(key);
        self.drop_key(key);
        if let (Key::Inode(ino), false) = (key, keeps_bytes) {
            if !self.open.is_empty() {
                self.touched_files.insert(*ino, self.number);
            }
            self.files.remove(ino);
        }
    }

    /// No names and attributes in these slots stay. `granted`: where the server knows a directory's name to be, if not in the directory.
    pub(crate) fn recalled_slots(&mut self, slots: &BTreeSet<Slot>, granted: impl Fn(Ino, &[u8]) -> Ino) {
        self.counts.recalled += 1;
        self.number += 1;
        if !self.open.is_empty() {
            self.touched_slots.extend(slots.iter().map(|slot| (*slot, self.number)));
        }
        let stays = |ino: Ino| !slots.contains(&ino.ugsd().slot());
        self.inodes.retain(|ino, _| stays(*ino));
        self.names.retain(|(dir, name), _| stays(granted(*dir, name)));
    }

    pub(crate) fn keep_bytes(&mut self, at: &At, ino: Ino) {
        let overtaken = self.touched_files.get(&ino).is_some_and(|touched| *touched > at.ticket.number);
        let in_doubt = self.doubtful_files.get(&ino).is_some_and(|until| at.now < *until);
        let has = self.bytes(at.now, ino).is_some();
        if self.counts_for(at, ino.ugsd().slot()) && !overtaken && !in_doubt && !has {
            self.number += 1;
            self.files.insert(ino, (self.number, at.from.node));
        }
    }

    /// The lease under which bytes of the file may be kept.
    pub(crate) fn bytes(&self, now: Instant, ino: Ino) -> Option<u64> {
        let (lease, node) = *self.files.get(&ino)?;
        self.lives(now, node).then_some(lease)
    }

    /// May what is written to it from now on be kept back, by this answer?
    pub(crate) fn may_write(&self, at: &At, ino: Ino) -> bool {
        let overtaken = self.touched.get(&Key::Inode(ino)).is_some_and(|touched| *touched > at.ticket.number);
        self.counts_for(at, ino.ugsd().slot()) && !overtaken
    }

    /// Was nothing of that server forgotten since that was asked, and is it heard?
    pub(crate) fn stands(&self, (ticket, from): (Ticket, Source), now: Instant) -> bool {
        self.lives(now, from.node) && self.is_of_now(ticket, from)
    }

    /// Bytes of it were to be changed by a request without an answer, which may be carried out until then.
    pub(crate) fn doubt_bytes(&mut self, ino: Ino, now: Instant, until: Instant) {
        self.files.remove(&ino);
        self.doubtful_files.retain(|_, until| now < *until);
        self.doubtful_files.insert(ino, until);
    }

    /// This mount begins to change it.
    pub(crate) fn begin_change(&mut self, key: &Key) {
        self.touch(key);
        self.drop_key(key);
        *self.changing.entry(key.clone()).or_default() += 1;
    }

    /// `doubtful_until`: it had no answer, and may be carried out until then.
    pub(crate) fn end_change(&mut self, key: &Key, now: Instant, doubtful_until: Option<Instant>) {
        self.touch(key);
        if let Some(count) = self.changing.get_mut(key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.changing.remove(key);
            }
        }
        if let Some(until) = doubtful_until {
            self.doubtful.retain(|_, until| now < *until);
            self.doubtful.insert(key.clone(), until);
        }
    }
}

#[cfg(test)]
mod tests;
