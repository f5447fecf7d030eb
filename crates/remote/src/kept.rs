//! What this mount keeps of names and attributes, and of which files it may keep bytes. Pure.
//!
//! - I-KEPT-1: nothing is used after the term has ended, counted from when what was answered last was asked; then all is forgotten, since the server may
//!   have given it to others.
//! - I-KEPT-2: an answer is kept only if nothing that it is about was recalled, or changed by this mount, since it was asked for: whatever overtook it.
//! - I-KEPT-3: while this mount changes something, and as long as it may be changed later by a request without an answer, nothing of that is kept.
//! - I-KEPT-4: bytes of a file may be kept under a lease with a number of its own. They are what they were while that lease stands, but for what this mount
//!   itself changes, of which [`crate::pages`] knows.
//! - I-KEPT-5: what is kept has a bound; beyond it the older half goes.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    time::{Duration, Instant},
};

use lease::coherence::rights::Key;
use types::{Attr, Ino};

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

    fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// A question whose answer may be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    number: u64,
    asked: Instant,
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
    term: Duration,
    until: Option<Instant>,
    /// Of what happened last: tickets, recalls, changes.
    number: u64,
    /// Tickets up to this one count for nothing.
    floor: u64,
    open: BTreeSet<u64>,
    /// What was recalled or changed since the oldest open ticket, and when.
    touched: HashMap<Key, u64>,
    /// How often each is being changed.
    changing: HashMap<Key, u32>,
    /// What may be changed until then by a request without an answer.
    doubtful: HashMap<Key, Instant>,
    inodes: Table<Ino, Attr>,
    names: Table<(Ino, Box<[u8]>), Option<Ino>>,
    /// The leases of bytes.
    files: Table<Ino, u64>,
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

    /// How often the server should hear of us, if something is kept.
    pub(crate) fn renew_every(&self, writes: bool) -> Option<Duration> {
        let keeps = !self.is_empty() || (writes && !self.term.is_zero());
        keeps.then(|| self.term / 3)
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
                self.touched_files.clear();
            }
            // Now and then, so that it does not cost more than what is asked.
            Some(oldest) if self.touched.len() + self.touched_files.len() > 64 + 2 * self.open.len() => {
                self.touched.retain(|_, at| *at > oldest);
                self.touched_files.retain(|_, at| *at > oldest);
            }
            Some(_) => (),
        }
    }

    /// The server answered what was asked then.
    pub(crate) fn heard(&mut self, asked: Instant, now: Instant) {
        if self.term.is_zero() {
            return;
        }
        self.lapse(now);
        self.until = self.until.max(Some(asked + self.term));
    }

    fn lapse(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now >= until) {
            self.counts.lapsed += u64::from(!self.is_empty());
            self.clear();
        }
    }

    /// The same, with the term.
    pub(crate) fn heard_term(&mut self, ticket: Ticket, now: Instant, term: Duration) {
        self.term = term;
        self.heard(ticket.asked, now);
    }

    /// The session is another one, or was silent for too long.
    pub(crate) fn clear(&mut self) {
        self.number += 1;
        self.floor = self.number;
        self.inodes.clear();
        self.names.clear();
        self.files.clear();
        self.until = None;
    }

    fn may_keep(&self, ticket: Ticket, now: Instant, key: &Key) -> bool {
        ticket.number > self.floor
            && self.touched.get(key).is_none_or(|at| *at < ticket.number)
            && !self.changing.contains_key(key)
            && self.doubtful.get(key).is_none_or(|until| now >= *until)
    }

    /// `None`: there is no such name.
    pub(crate) fn keep_name(
        &mut self,
        (ticket, now): (Ticket, Instant),
        (dir, name): (Ino, &[u8]),
        ino: Option<Ino>,
    ) {
        let key = Key::Entry { dir, name: name.into() };
        if self.may_keep(ticket, now, &key) {
            self.names.insert((dir, name.into()), ino);
        }
    }

    pub(crate) fn keep_attr(&mut self, (ticket, now): (Ticket, Instant), attr: Attr) {
        if self.may_keep(ticket, now, &Key::Inode(attr.ino)) {
            self.inodes.insert(attr.ino, attr);
        }
    }

    fn lives(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// `Some(None)`: there is no such name.
    pub(crate) fn name(&self, now: Instant, dir: Ino, name: &[u8]) -> Option<Option<Ino>> {
        let found = if self.lives(now) { self.names.get(&(dir, name.into())) } else { None };
        found.copied()
    }

    pub(crate) fn attr(&self, now: Instant, ino: Ino) -> Option<Attr> {
        let found = if self.lives(now) { self.inodes.get(&ino) } else { None };
        found.copied()
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

    pub(crate) fn keep_bytes(&mut self, (ticket, now): (Ticket, Instant), ino: Ino) {
        let overtaken = self.touched_files.get(&ino).is_some_and(|at| *at > ticket.number);
        let in_doubt = self.doubtful_files.get(&ino).is_some_and(|until| now < *until);
        if ticket.number > self.floor && !overtaken && !in_doubt && self.files.get(&ino).is_none() {
            self.number += 1;
            self.files.insert(ino, self.number);
        }
    }

    /// The lease under which bytes of the file may be kept.
    pub(crate) fn bytes(&self, now: Instant, ino: Ino) -> Option<u64> {
        let found = if self.lives(now) { self.files.get(&ino) } else { None };
        found.copied()
    }

    /// May what is written to it from now on be kept back, by the answer to that ticket?
    pub(crate) fn may_write(&self, ticket: Ticket, ino: Ino) -> bool {
        ticket.number > self.floor && self.touched.get(&Key::Inode(ino)).is_none_or(|at| *at < ticket.number)
    }

    /// Was nothing forgotten since that was asked, and is the server heard?
    pub(crate) fn stands(&self, ticket: Ticket, now: Instant) -> bool {
        self.lives(now) && ticket.number > self.floor
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
mod tests {
    //! Goal: whatever overtakes what, nothing is kept that is not true, and nothing is used for too long. Method: questions, recalls and changes
    //! in every order.
    use types::{FileKind, ProjectId, Timestamp};

    use super::*;

    const TERM: Duration = Duration::from_secs(6);

    fn attr(size: u64) -> Attr {
        let at = Timestamp { sec: 1, nsec: 0 };
        Attr {
            ino: Ino::ROOT,
            kind: FileKind::Regular,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 0,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            project: ProjectId::NONE,
        }
    }

    fn key() -> Key {
        Key::Inode(Ino::ROOT)
    }

    fn keep(kept: &mut Kept, ticket: Ticket, now: Instant, size: u64) {
        kept.heard_term(ticket, now, TERM);
        kept.keep_attr((ticket, now), attr(size));
        kept.keep_name((ticket, now), (Ino::ROOT, b"n"), None);
        kept.keep_bytes((ticket, now), Ino::ROOT);
        kept.done(ticket);
    }

    #[test]
    fn what_is_kept_ends_with_its_term_for_ever() {
        let (mut kept, start) = (Kept::default(), Instant::now());
        let ticket = kept.ask(start);
        keep(&mut kept, ticket, start + TERM / 2, 1);
        assert_eq!(kept.attr(start + TERM / 2, Ino::ROOT), Some(attr(1)));
        assert_eq!(kept.name(start, Ino::ROOT, b"n"), Some(None));
        assert_eq!(kept.name(start, Ino::ROOT, b"other"), None);
        assert_eq!(kept.attr(start + TERM, Ino::ROOT), None, "it counts from the asking");
        // Hearing of the server in time carries it on, too late does not.
        kept.heard(start + TERM / 2, start + TERM / 2);
        assert!(kept.attr(start + TERM, Ino::ROOT).is_some());
        let late = start + TERM * 3;
        kept.heard(late, late);
        assert_eq!(kept.attr(late, Ino::ROOT), None);
        assert_eq!((kept.counts().lapsed, kept.counts().inodes, kept.renew_every(false)), (1, 0, None));
        let ticket = kept.ask(late);
        keep(&mut kept, ticket, late, 2);
        assert_eq!(kept.attr(late, Ino::ROOT), Some(attr(2)));
    }

    #[test]
    fn what_was_overtaken_is_not_kept() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        let first = kept.ask(now);
        keep(&mut kept, first, now, 1);
        // A recall, a change of our own, and another session, before the answer.
        let overtaken: [fn(&mut Kept, Instant); 3] = [
            |kept, _| kept.recalled(&key(), false),
            |kept, now| {
                kept.begin_change(&key());
                kept.end_change(&key(), now, None);
            },
            |kept, _| kept.clear(),
        ];
        for overtake in overtaken {
            let (ticket, other) = (kept.ask(now), kept.ask(now));
            overtake(&mut kept, now);
            kept.done(other);
            keep(&mut kept, ticket, now, 2);
            assert_eq!(kept.attr(now, Ino::ROOT), None);
            let ticket = kept.ask(now);
            keep(&mut kept, ticket, now, 3);
            assert_eq!(kept.attr(now, Ino::ROOT), Some(attr(3)), "what is asked afterwards counts");
        }
        assert!(kept.touched.is_empty() && kept.open.is_empty());
    }

    #[test]
    fn what_changes_is_not_kept() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        kept.begin_change(&key());
        kept.begin_change(&key());
        for _ in 0..2 {
            let ticket = kept.ask(now);
            keep(&mut kept, ticket, now, 1);
            assert_eq!(kept.attr(now, Ino::ROOT), None);
            kept.end_change(&key(), now, None);
        }
        let ticket = kept.ask(now);
        keep(&mut kept, ticket, now, 1);
        assert!(kept.attr(now, Ino::ROOT).is_some());
        // One without an answer may be carried out later.
        kept.begin_change(&key());
        kept.end_change(&key(), now, Some(now + TERM));
        for (at, there) in [(now, false), (now + TERM, true)] {
            let ticket = kept.ask(at);
            keep(&mut kept, ticket, at, 1);
            assert_eq!(kept.attr(at, Ino::ROOT).is_some(), there);
        }
    }

    #[test]
    fn bytes_have_a_lease_of_their_own() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        let ticket = kept.ask(now);
        keep(&mut kept, ticket, now, 1);
        let first = kept.bytes(now, Ino::ROOT);
        assert!(first.is_some() && kept.renew_every(false).is_some());
        // Attributes that are asked back, or changed here, are no bytes.
        kept.recalled(&key(), true);
        kept.begin_change(&key());
        assert_eq!((kept.attr(now, Ino::ROOT), kept.bytes(now, Ino::ROOT)), (None, first));
        kept.end_change(&key(), now, None);
        // One that was asked for before it was asked back counts for nothing, one that was asked for afterwards is another.
        let (overtaken, other) = (kept.ask(now), kept.ask(now));
        kept.recalled(&key(), false);
        kept.done(other);
        keep(&mut kept, overtaken, now, 1);
        assert_eq!(kept.bytes(now, Ino::ROOT), None);
        let ticket = kept.ask(now);
        keep(&mut kept, ticket, now, 1);
        let second = kept.bytes(now, Ino::ROOT);
        assert!(second > first);
        assert_eq!(kept.bytes(now + TERM, Ino::ROOT), None, "its term has ended");
        // A write of ours without an answer may be carried out later.
        kept.doubt_bytes(Ino::ROOT, now, now + TERM / 2);
        for (at, there) in [(now, false), (now + TERM / 2, true)] {
            let ticket = kept.ask(at);
            keep(&mut kept, ticket, at, 1);
            assert_eq!(kept.bytes(at, Ino::ROOT).is_some(), there);
        }
        assert!(kept.touched_files.is_empty());
    }

    #[test]
    fn the_older_half_goes() {
        let (mut kept, now) = (Kept::default(), Instant::now());
        let ticket = kept.ask(now);
        kept.heard_term(ticket, now, TERM);
        for n in 0..2 * KEPT_MAX as u64 {
            kept.keep_name((ticket, now), (Ino::ROOT, &n.to_le_bytes()), None);
        }
        assert!(kept.counts().names <= KEPT_MAX as u64);
        let last = 2 * KEPT_MAX as u64 - 1;
        assert_eq!(kept.name(now, Ino::ROOT, &last.to_le_bytes()), Some(None));
        assert_eq!(kept.name(now, Ino::ROOT, &0u64.to_le_bytes()), None);
    }
}
