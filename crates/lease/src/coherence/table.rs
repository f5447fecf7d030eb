//! Who holds which lease, which operations claim what, and which of them wait for what is recalled.
//!
//! It decides by [`Rights`] and [`Claim`] alone: sessions' lives, terms and fences are the server's. A number is given with each
//! grant and each recall, and rises; what a client returns counts for the number that it names, so nothing late takes away a later grant.

use std::collections::{BTreeMap, BTreeSet};

use cluster::tenure::Time;
use proto::SessionId;
use types::{Ino, LocalId, SLOTS, Slot, UgsdId};

use super::{
    message::{Had, Life},
    rights::{Claim, Key, Rights},
};

/// A recall that is not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    pub keeps: Rights,
    /// When it is said again.
    pub again: Time,
    /// When its holder is given up.
    pub deadline: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holding {
    pub rights: Rights,
    /// Of the last grant or recall.
    pub number: u64,
    pub recall: Option<Recall>,
    age: u64,
}

/// What has to be asked back, so that an operation can begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InTheWay {
    pub session: SessionId,
    pub key: Key,
    pub keeps: Rights,
}

#[derive(Default)]
struct Record {
    holdings: BTreeMap<SessionId, Holding>,
    claims: BTreeMap<(SessionId, u64), Claim>,
    /// Somebody looked at what was kept: until then it is not granted again.
    rest: Time,
}

impl Record {
    fn is_idle(&self) -> bool {
        self.holdings.is_empty() && self.claims.is_empty()
    }

    fn hinders(&self, session: SessionId, claim: Claim) -> impl Iterator<Item = (SessionId, &Holding)> {
        let others = self.holdings.iter().filter(move |(of, _)| **of != session);
        others.filter_map(move |(of, holding)| {
            (!holding.rights.both(claim.excludes()).is_empty()).then_some((*of, holding))
        })
    }
}

struct Operation {
    claims: BTreeMap<Key, Claim>,
    begun: bool,
}

pub struct Table {
    number: u64,
    ages: u64,
    records: BTreeMap<Key, Record>,
    operations: BTreeMap<(SessionId, u64), Operation>,
    leases_of: BTreeMap<SessionId, BTreeSet<Key>>,
    leases: usize,
    /// Of leases that are not recalled, the oldest first.
    by_age: BTreeMap<u64, (SessionId, Key)>,
}

/// Who writes back keeps pages and attributes, too; an entry has neither pages nor writes.
fn meaningful(key: &Key, rights: Rights) -> Rights {
    match key {
        Key::Inode(_) if rights.contains(Rights::WRITE_BACK) => Rights::ALL,
        Key::Inode(_) => rights,
        Key::Entry { .. } => rights.both(Rights::ATTRIBUTES),
    }
}

/// The first UGSD after this one that is in one of the slots.
fn next_in(slots: &BTreeSet<Slot>, after: UgsdId) -> Option<UgsdId> {
    let slot = u32::from(after.slot().get());
    let ahead = |of: &Slot| (u32::from(of.get()) + SLOTS - slot - 1) % SLOTS + 1;
    let nearest = slots.iter().map(ahead).min()?;
    UgsdId::new(after.get() + nearest)
}

impl Table {
    pub fn new(life: Life) -> Table {
        Table {
            number: life.first_number(),
            ages: 0,
            records: BTreeMap::new(),
            operations: BTreeMap::new(),
            leases_of: BTreeMap::new(),
            leases: 0,
            by_age: BTreeMap::new(),
        }
    }

    pub fn leases(&self) -> usize {
        self.leases
    }

    pub fn operations(&self) -> usize {
        self.operations.len()
    }

    pub(super) fn last_number(&self) -> u64 {
        self.number
    }

    pub(super) fn holders(&self, key: &Key) -> impl Iterator<Item = SessionId> {
        self.records.get(key).into_iter().flat_map(|record| record.holdings.keys().copied())
    }

    /// Keys in these slots that somebody holds or claims. It looks at no more keys of other slots than there are UGSDs with some.
    pub(super) fn keys_in(&self, slots: &BTreeSet<Slot>) -> Vec<Key> {
        let mut keys = Vec::new();
        let inode = |ugsd: UgsdId| Key::Inode(Ino::new(ugsd, LocalId::TOP));
        let entry = |ugsd: UgsdId| Key::Entry { dir: Ino::new(ugsd, LocalId::TOP), name: [].into() };
        let kinds: [&dyn Fn(UgsdId) -> Key; 2] = [&inode, &entry];
        for first_of in kinds {
            let is_kind =
                |key: &Key| matches!(key, Key::Inode(_)) == matches!(first_of(UgsdId::ROOT), Key::Inode(_));
            let mut from = Some(UgsdId::ROOT);
            while let Some(at) = from {
                let mut rest = self.records.range(first_of(at)..).map(|(key, _)| key);
                let Some(found) = rest.next().filter(|key| is_kind(key)) else { break };
                let ugsd = found.ugsd();
                if slots.contains(&ugsd.slot()) {
                    let more = rest.take_while(|key| is_kind(key) && key.ugsd() == ugsd);
                    keys.extend(std::iter::once(found).chain(more).cloned());
                    from = UgsdId::new(ugsd.get() + 1);
                } else {
                    from = next_in(slots, ugsd);
                }
            }
        }
        keys
    }

    pub fn holding(&self, session: SessionId, key: &Key) -> Option<&Holding> {
        self.records.get(key)?.holdings.get(&session)
    }

    pub fn has_leases(&self, session: SessionId) -> bool {
        self.leases_of.contains_key(&session)
    }

    /// Every lease.
    pub fn all(&self) -> impl Iterator<Item = (&Key, SessionId, &Holding)> {
        self.records.iter().flat_map(|(key, record)| {
            record.holdings.iter().map(move |(session, holding)| (key, *session, holding))
        })
    }

    /// Every operation, and whether it has begun.
    pub fn all_operations(&self) -> impl Iterator<Item = (SessionId, u64, &BTreeMap<Key, Claim>, bool)> {
        self.operations.iter().map(|((session, number), o)| (*session, *number, &o.claims, o.begun))
    }

    /// Has it begun? `None`: there is no such operation.
    pub fn has_begun(&self, session: SessionId, number: u64) -> Option<bool> {
        self.operations.get(&(session, number)).map(|operation| operation.begun)
    }

    /// Claims, and says what is in the way and not asked back yet. `rest`: for how long nothing is written back after a look.
    pub fn begin(
        &mut self,
        (session, number): (SessionId, u64),
        claims: &[(Key, Claim)],
        rest: Time,
    ) -> Vec<InTheWay> {
        self.end(session, number);
        let mut merged: BTreeMap<Key, Claim> = BTreeMap::new();
        for (key, claim) in claims {
            let most = merged.entry(key.clone()).or_insert(*claim);
            *most = (*most).max(*claim);
        }
        let mut in_the_way = Vec::new();
        for (key, claim) in &merged {
            let record = self.records.entry(key.clone()).or_default();
            record.claims.insert((session, number), *claim);
            let mut looked = false;
            for (of, holding) in record.hinders(session, *claim) {
                looked |= holding.rights.contains(Rights::WRITE_BACK);
                let left = holding.recall.map_or(holding.rights, |recall| recall.keeps);
                if !left.both(claim.excludes()).is_empty() {
                    let keeps = left.without(claim.excludes());
                    in_the_way.push(InTheWay { session: of, key: key.clone(), keeps });
                }
            }
            if looked {
                record.rest = record.rest.max(rest);
            }
        }
        let operation = Operation { claims: merged, begun: false };
        self.operations.insert((session, number), operation);
        in_the_way
    }

    /// Those that wait for the key and can begin have begun.
    pub fn begin_waiting(&mut self, key: &Key) -> Vec<(SessionId, u64)> {
        let Some(record) = self.records.get(key) else { return Vec::new() };
        let waits = |at: &&(SessionId, u64)| self.operations.get(*at).is_some_and(|o| !o.begun);
        let waiting: Vec<(SessionId, u64)> = record.claims.keys().filter(waits).copied().collect();
        waiting.into_iter().filter(|(session, number)| self.try_begin(*session, *number)).collect()
    }

    /// `true` when it begins by this.
    pub fn try_begin(&mut self, session: SessionId, number: u64) -> bool {
        let records = &self.records;
        let Some(operation) = self.operations.get_mut(&(session, number)) else { return false };
        let clear = operation.claims.iter().all(|(key, claim)| {
            records.get(key).is_none_or(|record| record.hinders(session, *claim).next().is_none())
        });
        let begins = clear && !operation.begun;
        operation.begun |= clear;
        begins
    }

    /// Begun or not.
    pub fn end(&mut self, session: SessionId, number: u64) {
        let Some(operation) = self.operations.remove(&(session, number)) else { return };
        for key in operation.claims.keys() {
            if let Some(record) = self.records.get_mut(key) {
                record.claims.remove(&(session, number));
            }
            self.drop_idle(key);
        }
    }

    /// What it may have of these rights: nothing that anybody is in the way of.
    pub fn grantable(&self, now: Time, session: SessionId, key: &Key, wanted: Rights) -> Rights {
        let Some(record) = self.records.get(key) else { return Rights::NONE };
        if record.holdings.get(&session).is_some_and(|holding| holding.recall.is_some()) {
            return Rights::NONE;
        }
        let wanted = meaningful(key, wanted);
        let (mut allowed, mut excluded) = (Rights::NONE, Rights::NONE);
        for (at, claim) in &record.claims {
            if at.0 != session {
                excluded = excluded.with(claim.excludes());
            } else if self.operations.get(at).is_some_and(|operation| operation.begun) {
                allowed = allowed.with(claim.allows());
            }
        }
        if now < record.rest {
            excluded = excluded.with(Rights::WRITE_BACK);
        }
        let granted = wanted.both(allowed).without(excluded);
        // The claim that allows it has cleared the way, and none was granted against it since.
        let others = record.holdings.iter().filter(|(of, _)| **of != session);
        let clear = others.into_iter().all(|(_, holding)| !granted.conflicts(holding.rights));
        debug_assert!(clear, "a begun operation excludes what would conflict");
        if clear { granted } else { Rights::NONE }
    }

    /// Adds rights; they are [`Table::grantable`]. Returns what it has, and the number to say so: another one each time, since what it
    /// had by the last number may be on its way back.
    pub fn grant(&mut self, session: SessionId, key: &Key, rights: Rights) -> (Rights, u64) {
        let before = self.holding(session, key).copied();
        let has = before.map_or(Rights::NONE, |holding| holding.rights);
        // The number of a recall is said with the recall alone: the holder has to give back before it goes by it.
        if let Some(recall) = before.and_then(|holding| holding.recall) {
            return (has.both(recall.keeps), 0);
        }
        let rights = has.with(rights);
        if rights.is_empty() {
            return (rights, 0);
        }
        self.number += 1;
        let number = self.number;
        self.put(session, key, Holding { rights, number, recall: None, age: 0 });
        (rights, number)
    }

    /// Asks a holder for what goes beyond `recall.keeps`. Returns the number to say so.
    pub fn recall(&mut self, session: SessionId, key: &Key, recall: Recall) -> Option<u64> {
        let holding = self.records.get_mut(key)?.holdings.get_mut(&session)?;
        self.number += 1;
        holding.number = self.number;
        holding.recall = Some(recall);
        self.by_age.remove(&holding.age);
        Some(self.number)
    }

    /// The recall is said again, and then at `again`. Returns its number.
    pub fn recall_again(&mut self, session: SessionId, key: &Key, again: Time) -> Option<(u64, Rights)> {
        let holding = self.records.get_mut(key)?.holdings.get_mut(&session)?;
        let recall = holding.recall.as_mut()?;
        recall.again = again;
        Some((holding.number, recall.keeps))
    }

    /// `false` when it is about an earlier grant or about nothing.
    pub fn returned(&mut self, session: SessionId, key: &Key, number: u64, keeps: Rights) -> bool {
        let Some(mut holding) = self.holding(session, key).copied() else { return false };
        if holding.number != number {
            return false;
        }
        holding.rights = holding.rights.both(keeps);
        holding.recall = holding.recall.filter(|recall| !recall.keeps.contains(holding.rights));
        self.put(session, key, holding);
        true
    }

    /// The longest held that is not recalled.
    pub fn oldest(&self) -> Option<&(SessionId, Key)> {
        self.by_age.first_key_value().map(|(_, at)| at)
    }

    /// The session is over. Returns the keys that others may wait for.
    pub fn forget(&mut self, session: SessionId) -> Vec<Key> {
        let of = self.operations.range((session, 0)..=(session, u64::MAX));
        let numbers: Vec<u64> = of.map(|((_, number), _)| *number).collect();
        for number in numbers {
            self.end(session, number);
        }
        self.forget_leases(session)
    }

    /// It has no leases any more, but its operations and openings. Returns the keys that others may wait for.
    pub fn forget_leases(&mut self, session: SessionId) -> Vec<Key> {
        let keys: Vec<Key> = self.leases_of.get(&session).into_iter().flatten().cloned().collect();
        for key in &keys {
            if let Some(holding) = self.holding(session, key).copied() {
                self.put(session, key, Holding { rights: Rights::NONE, recall: None, ..holding });
            }
        }
        keys
    }

    /// As [`Table::forget_leases`], but for what may have been kept back of writes.
    pub fn lapse(&mut self, session: SessionId) -> Vec<Key> {
        let keys: Vec<Key> = self.lapsing(session).cloned().collect();
        for key in &keys {
            if let Some(holding) = self.holding(session, key).copied() {
                self.put(session, key, Holding { rights: Rights::NONE, recall: None, ..holding });
            }
        }
        keys
    }

    /// Leases that end without a word.
    pub fn lapsing(&self, session: SessionId) -> impl Iterator<Item = &Key> {
        let keys = self.leases_of.get(&session).into_iter().flatten();
        keys.filter(move |key| {
            let rights = self.holding(session, key).map_or(Rights::NONE, |holding| holding.rights);
            !rights.contains(Rights::WRITE_BACK)
        })
    }

    /// Does somebody else than `session` keep back what it writes there?
    pub fn is_kept_back(&self, session: SessionId, key: &Key) -> bool {
        self.records.get(key).is_some_and(|record| {
            let mut others = record.holdings.iter().filter(|(of, _)| **of != session);
            others.any(|(_, holding)| holding.rights.contains(Rights::WRITE_BACK))
        })
    }

    /// What an operation claims, if it is alone among those of its session to claim that for changing bytes.
    pub fn last_modified_by(&self, session: SessionId, number: u64) -> Vec<Key> {
        let Some(operation) = self.operations.get(&(session, number)) else { return Vec::new() };
        let modified = operation.claims.iter().filter(|(_, claim)| **claim == Claim::Modify);
        let alone = |key: &&Key| {
            let claims = self.records.get(key).into_iter().flat_map(|record| &record.claims);
            claims.filter(|((of, _), claim)| *of == session && **claim == Claim::Modify).count() == 1
        };
        modified.map(|(key, _)| key).filter(alone).cloned().collect()
    }

    /// Could a session of an earlier life have had this, beside what others came back with?
    pub fn fits(&self, session: SessionId, had: &Had) -> bool {
        let leases = had.leases.iter().all(|(key, rights)| {
            let Some(record) = self.records.get(key) else { return true };
            let mut others = record.holdings.iter().filter(|(of, _)| **of != session);
            let mut claims = record.claims.iter().filter(|((of, _), _)| *of != session);
            others.all(|(_, holding)| !holding.rights.conflicts(*rights))
                && claims.all(|(_, claim)| claim.excludes().both(*rights).is_empty())
        });
        let claims = had.claims.iter().flat_map(|(_, claims)| claims).all(|(key, claim)| {
            self.records.get(key).is_none_or(|record| record.hinders(session, *claim).next().is_none())
        });
        leases && claims
    }

    /// What it had before, as it fits.
    pub fn restore(&mut self, session: SessionId, had: &Had) {
        for (number, claims) in &had.claims {
            self.begin((session, *number), claims, Time::ZERO);
            self.try_begin(session, *number);
        }
        for (key, rights) in &had.leases {
            let rights = meaningful(key, *rights);
            if !rights.is_empty() {
                self.grant(session, key, rights);
            }
        }
    }

    /// What a session has.
    pub fn of_session(&self, session: SessionId) -> Vec<(Key, Rights, u64)> {
        let keys = self.leases_of.get(&session).into_iter().flatten();
        let holdings = keys.filter_map(|key| Some((key, self.holding(session, key)?)));
        holdings.map(|(key, holding)| (key.clone(), holding.rights, holding.number)).collect()
    }

    /// The holding as it is, the youngest of all unless it is recalled; without rights there is none.
    fn put(&mut self, session: SessionId, key: &Key, mut holding: Holding) {
        let record = self.records.entry(key.clone()).or_default();
        if let Some(before) = record.holdings.remove(&session) {
            self.by_age.remove(&before.age);
            self.leases -= 1;
        }
        if !holding.rights.is_empty() {
            self.ages += 1;
            holding.age = self.ages;
            if holding.recall.is_none() {
                self.by_age.insert(self.ages, (session, key.clone()));
            }
            record.holdings.insert(session, holding);
            self.leases += 1;
            self.leases_of.entry(session).or_default().insert(key.clone());
        } else if let Some(keys) = self.leases_of.get_mut(&session) {
            keys.remove(key);
            if keys.is_empty() {
                self.leases_of.remove(&session);
            }
        }
        self.drop_idle(key);
    }

    fn drop_idle(&mut self, key: &Key) {
        if self.records.get(key).is_some_and(Record::is_idle) {
            self.records.remove(key);
        }
    }
}
