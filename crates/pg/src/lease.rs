//! Who may take a slot. Pure: the rows and the database's time come in, a ruling comes out; whoever asks holds the rows locked
//! until the ruling is carried out.
//!
//! Invariants: an epoch never falls, and rises whenever the owner changes, so (slot, epoch) names one owner for ever. A slot is
//! never taken from an owner whose lease has not ended. A lease is one of a writer's, for all of its slots.

/// Microseconds of the database's clock. No other clock is ever compared with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct DbTime(pub i64);

impl DbTime {
    /// Later than any other.
    pub const NEVER: DbTime = DbTime(i64::MAX);
}

/// A slot's row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotRow {
    pub slot: u16,
    /// `None`: nobody's, or released.
    pub owner: Option<String>,
    /// 0: never owned.
    pub epoch: u64,
}

/// What is done about a wish for a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ruling {
    /// It is the asker's already, under this epoch.
    Keep { epoch: u64 },
    /// It becomes the asker's, under this epoch.
    Take { epoch: u64 },
    /// It is another's, whose lease has not ended.
    Refuse { owner: String, until: DbTime },
}

/// May `asker` have the slot? `lease_until` is that of the row's owner; an owner without a lease has none to end.
pub fn take(row: &SlotRow, asker: &str, lease_until: Option<DbTime>, now: DbTime) -> Ruling {
    match (&row.owner, lease_until) {
        (Some(owner), _) if owner == asker => Ruling::Keep { epoch: row.epoch },
        (Some(owner), Some(until)) if now < until => Ruling::Refuse { owner: owner.clone(), until },
        (Some(_) | None, _) => Ruling::Take { epoch: row.epoch + 1 },
    }
}

/// May `asker`, who knows `epoch`, give the slot back? A later owner's stays.
pub fn may_release(row: &SlotRow, asker: &str, epoch: u64) -> bool {
    may_commit(row, asker, epoch)
}

/// The fence: may a batch of `writer`, which knows `epoch`, change what is in the slot?
pub fn may_commit(row: &SlotRow, writer: &str, epoch: u64) -> bool {
    row.owner.as_deref() == Some(writer) && row.epoch == epoch
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Take(usize),
        Renew(usize),
        Release(usize),
        Wait(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..3usize).prop_map(Step::Take),
            2 => (0..3usize).prop_map(Step::Renew),
            1 => (0..3usize).prop_map(Step::Release),
            3 => (0..15i64).prop_map(Step::Wait),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Goal: of all who ever believed to own the slot at most one may commit, nobody loses it before the lease ends, and no
        /// epoch is given twice. Method: three writers, each with what it believes, any order of steps.
        #[test]
        fn one_owner_at_a_time(steps in prop::collection::vec(step(), 0..200)) {
            const TTL: i64 = 10;
            let names = ["a", "b", "c"];
            let mut row = SlotRow { slot: 7, owner: None, epoch: 0 };
            let mut leases: BTreeMap<String, DbTime> = BTreeMap::new();
            let mut believed: [Option<u64>; 3] = [None; 3];
            let mut given: BTreeMap<u64, usize> = BTreeMap::new();
            let mut now = DbTime(1000);
            for step in steps {
                match step {
                    Step::Wait(by) => now.0 += by,
                    Step::Renew(who) => drop(leases.insert(names[who].into(), DbTime(now.0 + TTL))),
                    Step::Release(who) => {
                        if let Some(epoch) = believed[who].take()
                            && may_release(&row, names[who], epoch)
                        {
                            row.owner = None;
                        }
                    }
                    Step::Take(who) => {
                        let until = row.owner.as_ref().and_then(|owner| leases.get(owner)).copied();
                        match take(&row, names[who], until, now) {
                            Ruling::Keep { epoch } => {
                                prop_assert_eq!(row.owner.as_deref(), Some(names[who]));
                                prop_assert_eq!(epoch, row.epoch);
                                believed[who] = Some(epoch);
                            }
                            Ruling::Take { epoch } => {
                                prop_assert!(epoch > row.epoch);
                                prop_assert!(row.owner.is_none() || until.is_none_or(|until| until <= now));
                                prop_assert_eq!(given.insert(epoch, who), None);
                                row = SlotRow { slot: 7, owner: Some(names[who].into()), epoch };
                                believed[who] = Some(epoch);
                                leases.insert(names[who].into(), DbTime(now.0 + TTL));
                            }
                            Ruling::Refuse { owner, until } => {
                                prop_assert!(owner != names[who] && now < until);
                                prop_assert_eq!(row.owner.as_deref(), Some(owner.as_str()));
                            }
                        }
                    }
                }
                let may = (0..3).filter(|who| believed[*who].is_some_and(|e| may_commit(&row, names[*who], e)));
                prop_assert!(may.count() <= 1);
            }
        }
    }
}
