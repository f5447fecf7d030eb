//! The database: a row of each server, with what its row says of copies, and whose the slots are.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{
    NodeId,
    tail::row::{Change, Refused, Row},
    tenure::Time,
};

use super::{LEASE, Op, Records};

/// What a server has in the database.
#[derive(Default)]
pub struct DbRow {
    pub life: u64,
    pub session: u64,
    pub until: Time,
    pub tail: Row<NodeId>,
    pub applied: u64,
    /// By whom, and with which copy.
    pub taken: BTreeSet<(NodeId, u64)>,
    /// It was, and was not told yet.
    pub untold: bool,
}

pub struct Db {
    pub rows: BTreeMap<NodeId, DbRow>,
    /// Whose the slots are.
    pub owner: NodeId,
    pub ops: Vec<Op>,
    pub takes: u64,
}

#[derive(Clone, Debug)]
pub enum Ask {
    /// By a server that starts.
    Open,
    Claim,
    Renew,
    Write {
        write: u64,
        change: Change<NodeId>,
    },
    Apply {
        up_to: u64,
        records: Records,
    },
    Look {
        of: NodeId,
    },
    Take {
        from: NodeId,
        copy: u64,
        up_to: u64,
        records: Records,
    },
}

#[derive(Clone, Debug)]
pub enum Told {
    Opened {
        session: u64,
        copy: u64,
        applied: u64,
        owner: bool,
        taken: bool,
    },
    Claimed(u64),
    Done,
    /// The session is not the last one.
    NotDone,
    Fenced,
    Seen {
        row: Row<NodeId>,
        ended: bool,
    },
    Took(Result<(), Refused>),
}

impl Db {
    pub fn carry_out(&mut self, now: Time, me: NodeId, (life, session): (u64, u64), ask: &Ask) -> Told {
        let owner = self.owner == me;
        if let Ask::Look { of } = ask {
            let row = &self.rows[of];
            return Told::Seen { row: row.tail.clone(), ended: now >= row.until };
        }
        let row = self.rows.get_mut(&me).unwrap();
        if let Ask::Open = ask {
            let taken = std::mem::take(&mut row.untold);
            (row.life, row.session, row.until) = (life, row.session + 1, now + LEASE);
            let (copy, applied) = (row.tail.copy, row.applied);
            return Told::Opened { session: row.session, copy, applied, owner, taken };
        }
        if row.life != life {
            return Told::Fenced;
        }
        if let Ask::Claim = ask {
            (row.session, row.until) = (row.session + 1, now + LEASE);
            return Told::Claimed(row.session);
        }
        if row.session != session {
            return Told::NotDone;
        }
        match ask {
            Ask::Renew => row.until = now + LEASE,
            Ask::Write { change, .. } => match row.tail.change(change) {
                Ok(next) => row.tail = next,
                Err(_) => return Told::NotDone,
            },
            Ask::Apply { up_to, records } => {
                if !owner {
                    return Told::Fenced;
                }
                row.until = now + LEASE;
                let new = records.iter().filter(|(number, _)| *number > row.applied);
                self.ops.extend(new.map(|(_, op)| *op));
                row.applied = row.applied.max(*up_to);
            }
            Ask::Take { from, copy, up_to, records } => {
                return Told::Took(self.take(now, (me, *from), *copy, (*up_to, records)));
            }
            other => unreachable!("{other:?}"),
        }
        Told::Done
    }

    pub fn take(
        &mut self,
        now: Time,
        (me, from): (NodeId, NodeId),
        copy: u64,
        (up_to, records): (u64, &Records),
    ) -> Result<(), Refused> {
        let row = self.rows.get_mut(&from).unwrap();
        if row.taken.contains(&(me, copy)) {
            return Ok(());
        }
        row.tail = row.tail.take_over(&me, copy, now >= row.until)?;
        assert_eq!(self.owner, from, "a copy of what is another's is complete");
        (row.life, row.untold) = (0, true);
        row.taken.insert((me, copy));
        let new = records.iter().filter(|(number, _)| *number > row.applied);
        for (next, (number, op)) in (row.applied + 1..).zip(new) {
            assert_eq!(*number, next, "a hole in what is taken over");
            self.ops.push(*op);
        }
        row.applied = row.applied.max(up_to);
        (self.owner, self.takes) = (me, self.takes + 1);
        Ok(())
    }
}
