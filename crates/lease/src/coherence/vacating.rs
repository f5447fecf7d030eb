//! Slots that go to another server: what is kept in them comes back before, and claims of openings go along.
//!
//! - I-VACATE-1: from when the slots are asked back nothing is granted in them, which is the shell's to see to, so there is an end to what comes back.
//! - I-VACATE-2: what is given back for whole slots counts up to the number that was said with it, as of single leases.
//! - I-VACATE-3: bytes, and writes that are kept back, are given back file by file: the holder has to write them first.

use std::collections::BTreeSet;

use cluster::tenure::Time;
use proto::SessionId;
use types::{Ino, Slot};

use super::{
    message::Party,
    rights::{Claim, Key, Rights},
    server::Server,
    table::Table,
};

/// Names and attributes that one session keeps in slots that go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeptThere {
    pub session: SessionId,
    pub slots: BTreeSet<Slot>,
    /// What was granted up to this.
    pub number: u64,
}

impl Table {
    /// Who has leases in these slots, and of what.
    fn leases_in(&self, slots: &BTreeSet<Slot>) -> Vec<(SessionId, Key)> {
        let keys = self.keys_in(slots);
        let held = |key: Key| {
            let sessions: Vec<SessionId> = self.holders(&key).collect();
            sessions.into_iter().map(move |session| (session, key.clone()))
        };
        keys.into_iter().flat_map(held).collect()
    }
}

impl Server {
    /// Sessions that keep something in these slots.
    pub fn holders_in(&self, slots: &BTreeSet<Slot>) -> BTreeSet<SessionId> {
        self.table.leases_in(slots).into_iter().map(|(session, _)| session).collect()
    }

    /// Asks back what is kept in these slots: names and attributes by slots, as is returned; files whose bytes may be kept one by one, which is told
    /// by effects. Said again it is asked again.
    pub fn ask_back(&mut self, now: Time, slots: &BTreeSet<Slot>) -> Vec<KeptThere> {
        let mut there: Vec<KeptThere> = Vec::new();
        let mut leases = self.table.leases_in(slots);
        leases.sort_by_key(|(session, _)| *session);
        for (session, key) in leases {
            let holding = self.table.holding(session, &key).copied();
            let Some(holding) = holding else { continue };
            if holding.rights.contains(Rights::PAGES) && holding.recall.is_none() {
                self.recall(now, session, key.clone(), Rights::NONE);
            }
            match there.last_mut().filter(|last| last.session == session) {
                Some(last) => drop(last.slots.insert(key.slot())),
                None => there.push(KeptThere { session, slots: BTreeSet::from([key.slot()]), number: 0 }),
            }
        }
        let number = self.table.last_number();
        there.iter_mut().for_each(|one| one.number = number);
        there
    }

    /// Whoever did not give all of it back: each lease is asked back by itself, and who keeps it for too long is given up.
    pub fn insist(&mut self, now: Time, slots: &BTreeSet<Slot>) {
        for (session, key) in self.table.leases_in(slots) {
            if self.table.holding(session, &key).is_some_and(|holding| holding.recall.is_none()) {
                self.recall(now, session, key, Rights::NONE);
            }
        }
    }

    /// A session keeps no names and attributes in these slots any more that were granted up to `number`. Files it gives back by themselves.
    pub fn returned_slots(&mut self, by: Party, slots: &BTreeSet<Slot>, number: u64) {
        if !self.is_alive(by) {
            return;
        }
        for key in self.table.keys_in(slots) {
            let holding = self.table.holding(by.session, &key).copied();
            let Some(holding) = holding.filter(|holding| holding.number <= number) else { continue };
            if self.table.returned(by.session, &key, holding.number, Rights::PAGES.with(Rights::WRITE_BACK)) {
                self.begin_waiting(&key);
            }
        }
    }

    /// Files that sessions have open for writing came from another server, where nobody else kept anything of them.
    pub fn put_openings(&mut self, openings: &[(SessionId, u64, Ino)]) {
        for (session, operation, ino) in openings {
            let claims = [(Key::Inode(*ino), Claim::Modify)];
            let in_the_way = self.table.begin((*session, *operation), &claims, Time::ZERO);
            debug_assert!(in_the_way.is_empty(), "nothing is granted in slots that are another's");
            self.table.try_begin(*session, *operation);
        }
    }
}
