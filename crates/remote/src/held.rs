//! What locks this mount's programs have, as its server knows it: to come back with after a restart of the server, and to give up what a
//! closed file leaves. Pure.
//!
//! - I-LOCKS-1: answers of one server are applied in the order in which it made them, whatever order they come in: those of one holder
//!   are remembered by their stamps as long as others of his are under way.
//! - I-LOCKS-2: an answer of a session that is not the mount's any more, or is just being made again, is not applied: what it was about
//!   is asked again.

use std::collections::{BTreeMap, BTreeSet};

use lease::coherence::{
    locks::{Class, HadLock, Owner},
    ranges::{Kind, Range, Ranges},
};
use proto::SessionId;
use types::Ino;

/// Whom a lock belongs to on this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Holder {
    pub class: Class,
    /// As the kernel names it.
    pub id: u64,
}

/// What the server did. `kind`: `None` unlocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub stamp: u64,
    pub range: Range,
    pub kind: Option<Kind>,
    pub pid: u32,
}

#[derive(Default)]
struct User {
    /// Openings through which it took locks.
    handles: BTreeSet<u64>,
    under_way: usize,
    /// What was applied while others were under way.
    log: BTreeMap<u64, Change>,
    /// The server may have something for it that we do not know of.
    unsure: bool,
}

#[derive(Default)]
struct OnInode {
    ranges: Ranges<Holder>,
    files: Ranges<Holder>,
    users: BTreeMap<Holder, User>,
}

impl OnInode {
    fn of(&self, class: Class) -> &Ranges<Holder> {
        match class {
            Class::Process | Class::Description => &self.ranges,
            Class::Flock => &self.files,
        }
    }

    fn set(&mut self, holder: Holder, change: &Change) {
        let of = match holder.class {
            Class::Process | Class::Description => &mut self.ranges,
            Class::Flock => &mut self.files,
        };
        of.set(holder, change.range, change.kind, change.pid);
    }

    fn has(&self, holder: Holder) -> bool {
        self.of(holder.class).owners().any(|of| of == holder)
    }
}

/// Who answered: a server's node, 0 for the one that the mount's own lines lead to, and as which the session is known there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Source {
    pub node: u64,
    pub joined: u64,
}

/// As many as the kernel lets programs have files open and the server lets the session have locks.
#[derive(Default)]
pub(crate) struct Held {
    /// At each server the joining whose answers count. One that is being made is not there.
    here: BTreeMap<u64, u64>,
    /// The highest stamp that was heard of.
    stamp: u64,
    inodes: BTreeMap<Ino, OnInode>,
    /// What could not be given up at a close.
    owed: Vec<(Ino, Holder)>,
    /// Openings whose locks are lost, until a session is made that does not have them.
    lost: BTreeSet<u64>,
}

impl Held {
    /// Does an answer of it count?
    pub(crate) fn counts(&self, from: Source) -> bool {
        self.here.get(&from.node) == Some(&from.joined)
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// A request is under way. `handle`: of a lock, where it is asked for.
    pub(crate) fn begin(&mut self, ino: Ino, holder: Holder, handle: Option<u64>) {
        let user = self.inodes.entry(ino).or_default().users.entry(holder).or_default();
        user.under_way += 1;
        user.handles.extend(handle);
    }

    /// It was answered. `false`: by a session that does not count; it is still under way.
    #[must_use]
    pub(crate) fn end(&mut self, from: Source, (ino, holder): (Ino, Holder), change: Option<Change>) -> bool {
        if !self.counts(from) {
            return false;
        }
        if let Some(change) = change {
            self.apply(ino, holder, change);
        }
        self.ended(ino, holder, false);
        true
    }

    /// It came to nothing that we know of. `unsure`: it may have been carried out.
    pub(crate) fn ended(&mut self, ino: Ino, holder: Holder, unsure: bool) {
        if let Some(user) = self.inodes.get_mut(&ino).and_then(|on| on.users.get_mut(&holder)) {
            user.under_way = user.under_way.saturating_sub(1);
            user.unsure |= unsure;
        }
        self.drop_idle(ino, holder);
    }

    /// Also of what still waits: a lock of another kind, that flock(2) gives up first.
    pub(crate) fn apply(&mut self, ino: Ino, holder: Holder, change: Change) {
        self.stamp = self.stamp.max(change.stamp);
        let on = self.inodes.entry(ino).or_default();
        let user = on.users.entry(holder).or_default();
        if change.range == Range::ALL && change.kind.is_none() {
            user.unsure = false;
        }
        user.log.insert(change.stamp, change);
        let later: Vec<Change> = user.log.range(change.stamp..).map(|(_, change)| *change).collect();
        later.iter().for_each(|change| on.set(holder, change));
    }

    pub(crate) fn flock_of(&self, ino: Ino, holder: Holder) -> Option<Kind> {
        self.inodes.get(&ino)?.files.whole(holder)
    }

    pub(crate) fn has(&self, ino: Ino, holder: Holder) -> bool {
        self.inodes.get(&ino).is_some_and(|on| on.has(holder))
    }

    /// May it have a lock there?
    pub(crate) fn is_user(&self, ino: Ino, holder: Holder) -> bool {
        self.inodes.get(&ino).is_some_and(|on| on.users.contains_key(&holder))
    }

    /// Who took locks through an opening and did not give them up.
    pub(crate) fn users_of(&self, ino: Ino, handle: u64) -> Vec<Holder> {
        let users = self.inodes.get(&ino).into_iter().flat_map(|on| &on.users);
        users.filter(|(_, user)| user.handles.contains(&handle)).map(|(holder, _)| *holder).collect()
    }

    /// A process closed a descriptor of it.
    pub(crate) fn forget_handle(&mut self, ino: Ino, holder: Holder, handle: u64) {
        if let Some(user) = self.inodes.get_mut(&ino).and_then(|on| on.users.get_mut(&holder)) {
            user.handles.remove(&handle);
        }
    }

    /// It was closed, and the server was not told: nobody has it here any more, and it is tried again.
    pub(crate) fn owe(&mut self, ino: Ino, holder: Holder) {
        let on = self.inodes.entry(ino).or_default();
        on.set(holder, &Change { stamp: 0, range: Range::ALL, kind: None, pid: 0 });
        let user = on.users.entry(holder).or_default();
        user.log.clear();
        user.unsure = true;
        self.owed.push((ino, holder));
    }

    pub(crate) fn take_owed(&mut self) -> Vec<(Ino, Holder)> {
        std::mem::take(&mut self.owed)
    }

    /// The session is gone at one server: no answer of that counts from now on. All that it had, wherever.
    pub(crate) fn leave(&mut self, node: u64, session: SessionId) -> Vec<HadLock> {
        self.here.remove(&node);
        self.had(session)
    }

    pub(crate) fn had(&self, session: SessionId) -> Vec<HadLock> {
        let mut had = Vec::new();
        for (ino, on) in &self.inodes {
            for found in on.ranges.all().chain(on.files.all()) {
                let owner = Owner { session, class: found.owner.class, id: found.owner.id };
                let (ino, range, kind, pid) = (*ino, found.range, found.kind, found.pid);
                had.push(HadLock { ino, owner, range, kind, pid });
            }
        }
        had
    }

    /// The session has come there, or come back, with what we know of.
    pub(crate) fn enter(&mut self, at: Source) {
        self.here.insert(at.node, at.joined);
    }

    /// Another process had it; the server says with which locks. `users`: who took them through which openings.
    pub(crate) fn resume(&mut self, at: Source, locks: &[HadLock], users: &[(Ino, Holder, u64)]) {
        self.enter(at);
        for lock in locks {
            let holder = Holder { class: lock.owner.class, id: lock.owner.id };
            let on = self.inodes.entry(lock.ino).or_default();
            on.set(holder, &Change { stamp: 0, range: lock.range, kind: Some(lock.kind), pid: lock.pid });
            on.users.entry(holder).or_default().unsure = true;
        }
        for (ino, holder, handle) in users {
            let user = self.inodes.entry(*ino).or_default().users.entry(*holder).or_default();
            user.handles.insert(*handle);
            user.unsure = true;
        }
    }

    /// A session is made that has nothing. To other servers it may have come already.
    pub(crate) fn begin_anew(&mut self, at: Source) {
        self.enter(at);
        self.owed.clear();
        self.lost.clear();
        let mut idle = Vec::new();
        for (ino, on) in &mut self.inodes {
            for (holder, user) in &mut on.users {
                user.unsure = false;
                user.log.clear();
                idle.push((*ino, *holder));
            }
        }
        idle.into_iter().for_each(|(ino, holder)| self.drop_idle(ino, holder));
    }

    /// All is lost, and no answer of anybody counts. Returns the openings through which somebody had a lock, the same until a session is made.
    pub(crate) fn lose(&mut self) -> BTreeSet<u64> {
        self.here.clear();
        for on in self.inodes.values_mut() {
            for (holder, user) in &on.users {
                if on.of(holder.class).owners().any(|of| of == *holder) {
                    self.lost.extend(&user.handles);
                }
            }
            (on.ranges, on.files) = (Ranges::default(), Ranges::default());
        }
        self.lost.clone()
    }

    fn drop_idle(&mut self, ino: Ino, holder: Holder) {
        let Some(on) = self.inodes.get_mut(&ino) else { return };
        let has = on.has(holder);
        let Some(user) = on.users.get_mut(&holder) else { return };
        if user.under_way > 0 {
            return;
        }
        user.log.clear();
        if !has && !user.unsure {
            on.users.remove(&holder);
        }
        if on.users.is_empty() {
            self.inodes.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is held here is what the server has, though its answers come in any order; what a close leaves is known. Method: answers
    //! in another order than their stamps, sessions that are lost.
    use super::*;

    const INO: Ino = Ino::ROOT;
    const ONE: Holder = Holder { class: Class::Process, id: 1 };

    fn at(joined: u64) -> Source {
        Source { node: 0, joined }
    }

    #[test]
    fn what_another_process_had_is_known_and_given_up_with_its_openings() {
        let (mut before, mut held) = (Held::default(), Held::default());
        before.begin_anew(at(5));
        before.begin(INO, ONE, Some(7));
        assert!(before.end(at(5), (INO, ONE), change(1, 3, 9, Some(Kind::Write))));
        let had = before.had(SessionId(1));
        held.resume(at(5), &had, &[(INO, ONE, 7), (INO, Holder { id: 2, ..ONE }, 8)]);
        assert_eq!(held.had(SessionId(1)), had);
        assert_eq!(held.users_of(INO, 7), [ONE]);
        assert!(held.is_user(INO, Holder { id: 2, ..ONE }), "the server may have something for him");
        held.begin(INO, ONE, None);
        assert!(held.end(
            at(5),
            (INO, ONE),
            Some(Change { stamp: 4, range: Range::ALL, kind: None, pid: 0 })
        ));
        assert!(!held.is_user(INO, ONE));
    }

    fn change(stamp: u64, start: u64, end: u64, kind: Option<Kind>) -> Option<Change> {
        Some(Change { stamp, range: Range::new(start, end).unwrap(), kind, pid: 9 })
    }

    fn ranges(held: &mut Held) -> Vec<(u64, u64, Kind)> {
        held.had(SessionId(1)).iter().map(|lock| (lock.range.start(), lock.range.end(), lock.kind)).collect()
    }

    #[test]
    fn answers_count_in_the_order_of_their_stamps() {
        let mut held = Held::default();
        held.begin_anew(at(5));
        (0..3).for_each(|_| held.begin(INO, ONE, Some(7)));
        assert!(held.end(at(5), (INO, ONE), change(3, 0, 9, Some(Kind::Read))));
        assert!(held.end(at(5), (INO, ONE), change(1, 0, 19, Some(Kind::Write))));
        assert_eq!(ranges(&mut held), [(0, 9, Kind::Read), (10, 19, Kind::Write)]);
        assert!(held.end(at(5), (INO, ONE), change(2, 15, 19, None)));
        assert_eq!(ranges(&mut held), [(0, 9, Kind::Read), (10, 14, Kind::Write)]);
        assert_eq!(held.users_of(INO, 7), [ONE]);
        assert!(held.users_of(INO, 8).is_empty());
        held.begin(INO, ONE, None);
        assert!(held.end(at(5), (INO, ONE), change(4, 0, Range::END, None)));
        assert!(!held.is_user(INO, ONE) && held.inodes.is_empty());
    }

    #[test]
    fn answers_of_a_lost_session_do_not_count() {
        let mut held = Held::default();
        held.begin_anew(at(5));
        held.begin(INO, ONE, Some(7));
        held.begin(INO, ONE, Some(8));
        assert!(held.end(at(5), (INO, ONE), change(1, 0, 9, Some(Kind::Write))));
        assert_eq!(held.leave(0, SessionId(1)).len(), 1);
        assert!(!held.end(at(5), (INO, ONE), change(2, 10, 19, Some(Kind::Write))), "it came too late");
        held.begin_anew(at(6));
        assert_eq!(ranges(&mut held), [(0, 9, Kind::Write)]);
        assert!(held.end(at(6), (INO, ONE), None), "it is asked again, and refused");
        for attempt in 0..2 {
            assert_eq!(held.lose(), BTreeSet::from([7, 8]), "{attempt}");
        }
        held.begin_anew(at(7));
        assert!(!held.is_user(INO, ONE));
    }

    #[test]
    fn what_is_not_known_is_given_up_at_the_close() {
        let mut held = Held::default();
        held.begin_anew(at(5));
        held.begin(INO, ONE, Some(7));
        held.ended(INO, ONE, true);
        assert!(ranges(&mut held).is_empty() && held.is_user(INO, ONE));
        held.owe(INO, ONE);
        assert_eq!(held.take_owed(), [(INO, ONE)]);
        held.begin(INO, ONE, None);
        assert!(held.end(at(5), (INO, ONE), change(1, 0, Range::END, None)));
        assert!(!held.is_user(INO, ONE));
    }
}
