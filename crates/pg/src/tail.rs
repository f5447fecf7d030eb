//! What the database says of the copies of journals' ends, and going on in a dead writer's place: one transaction.
//!
//! Locks: writers by name, the row of the tail, slots by number. So a take-over waits for a batch of the owner that is on its way, and
//! whatever the owner asks afterwards finds its session ended.

use std::collections::{BTreeMap, BTreeSet};

use cluster::tail::row::{Change, Refused, Row};
use kv::{Entry, Lsn};
use namespace::txn::KvError;

use crate::{
    Rights, Taken,
    apply::enter,
    connection::Session,
    error::Failure,
    lease::DbTime,
    ownership::{locked_leases, locked_slots, micros},
    shared::Shared,
    slots::slot_of,
};

/// One commit of a writer's journal.
pub type TailBatch = (Lsn, Vec<Entry>);

/// What is seen of a writer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TailSeen {
    pub row: Row<String>,
    /// Its slots may be taken, as far as its lease is concerned.
    pub ended: bool,
    /// The engine has its commits up to here.
    pub applied: Lsn,
}

/// Why nothing was done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TailError {
    /// By the rules. It stays so until a row changes.
    #[error("the rows do not allow it: {0:?}")]
    Refused(Refused),
    /// Somebody went on in our place: nothing may be answered any more.
    #[error("{0}")]
    Fenced(KvError),
    /// It may work later, or was done: the same again finds out.
    #[error("{0}")]
    Failed(KvError),
}

impl From<Failure> for TailError {
    fn from(failure: Failure) -> TailError {
        let fenced = matches!(failure, Failure::Fenced(_));
        let error: KvError = failure.into();
        if fenced { TailError::Fenced(error) } else { TailError::Failed(error) }
    }
}

impl Rights {
    /// The name of this writer in the rows.
    pub fn writer(&self) -> &str {
        &self.0.identity.writer
    }

    /// Of a writer, by its name; `None`: there is no such one.
    pub fn tail_of(&self, writer: &str) -> Result<Option<TailSeen>, KvError> {
        self.0.read(async |session: &Session| {
            let sql = "SELECT lease_until <= clock_timestamp(), applied FROM writer WHERE id = $1";
            let Some(found) = session.client.query_opt(sql, &[&writer]).await? else { return Ok(None) };
            let (row, _) = tail_row(session, writer, false).await?;
            let applied: i64 = found.try_get(1)?;
            Ok(Some(TailSeen { row, ended: found.try_get(0)?, applied: Lsn(unsigned(applied)?) }))
        })
    }

    /// Changes what is said of our own copy, under our session: what was sent before it is over when this is done. Returns the row as it is.
    pub fn write_tail(&self, change: &Change<String>) -> Result<Row<String>, TailError> {
        self.0.patiently(|| self.0.write_tail(change))?.map_err(TailError::Refused)
    }

    /// Goes on in the place of `from`, of whom we have this complete copy: its slots are ours, and `tail` is in the engine, as far as it was
    /// not. All of it or nothing; the same again has the same answer. Commits of `tail` follow each other.
    pub fn take_over(&self, from: &str, copy: u64, tail: &[TailBatch]) -> Result<Taken, TailError> {
        self.0.patiently(|| self.0.take_over(from, copy, tail))?.map_err(TailError::Refused)
    }
}

impl Shared {
    fn write_tail(&self, change: &Change<String>) -> Result<Result<Row<String>, Refused>, Failure> {
        let mut writer = self.writer.lock();
        let me = self.identity.writer.as_str();
        self.owning(&mut writer, async |session: &Session, number: i64| {
            locked_leases(session, me, number).await?;
            let (row, _) = tail_row(session, me, true).await?;
            let next = row.change(change);
            if let Ok(next) = &next {
                put_row(session, me, next).await?;
            }
            Ok(next)
        })
    }

    fn take_over(
        &self,
        from: &str,
        copy: u64,
        tail: &[TailBatch],
    ) -> Result<Result<Taken, Refused>, Failure> {
        let mut writer = self.writer.lock();
        let taken = self.owning(&mut writer, async |session: &Session, number: i64| {
            self.take_over_in(session, number, (from, copy), tail).await
        })?;
        if let Ok(taken) = &taken {
            self.epochs.lock().extend(taken.ours.iter().map(|(slot, epoch)| (*slot, *epoch)));
        }
        Ok(taken)
    }

    async fn take_over_in(
        &self,
        session: &Session,
        number: i64,
        (from, copy): (&str, u64),
        tail: &[TailBatch],
    ) -> Result<Result<Taken, Refused>, Failure> {
        let (client, me) = (&session.client, self.identity.writer.as_str());
        let leases = locked_leases(session, me, number).await?;
        let (row, _) = tail_row(session, from, true).await?;
        let sql = "SELECT 1 FROM take_over WHERE writer = $1 AND copy = $2 AND taker = $3";
        // Also when the one before has come back since, and was told.
        let done = client.query_opt(sql, &[&from, &(copy as i64), &me]).await?.is_some();
        let owner = if done { me } else { from };
        let sql = "SELECT slot FROM slot WHERE owner = $1 ORDER BY slot";
        let slots: Vec<i32> =
            client.query(sql, &[&owner]).await?.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let rows = locked_slots(session, &slots).await?;
        let now = client.query_one(&format!("SELECT {}", micros("clock_timestamp()")), &[]).await?;
        let now = DbTime(now.try_get(0)?);
        let step = if done { 0 } else { 1 };
        let ours: BTreeMap<u16, u64> = rows
            .iter()
            .filter(|row| row.owner.as_deref() == Some(owner))
            .map(|row| (row.slot, row.epoch + step))
            .collect();
        let taken = Taken { ours, others: BTreeMap::new() };
        if done {
            return Ok(Ok(taken));
        }
        let ended = leases.get(from).is_some_and(|until| *until <= now);
        let next = match row.take_over(&me.to_owned(), copy, ended) {
            Ok(next) => next,
            Err(refused) => return Ok(Err(refused)),
        };
        let applied: i64 =
            client.query_one("SELECT applied FROM writer WHERE id = $1", &[&from]).await?.try_get(0)?;
        let (batch, last) = merged(tail, Lsn(unsigned(applied)?), &taken.ours.keys().copied().collect())?;
        let batch: Vec<(&[u8], Option<&[u8]>)> = batch.into_iter().collect();
        enter(session, &batch, self.options.tuning.answer_wait).await?;
        let sql = "UPDATE writer SET session = session + 1, holder = '', applied = $2 WHERE id = $1";
        client.execute(sql, &[&from, &(last.0 as i64)]).await?;
        let sql = "UPDATE slot SET owner = $1, epoch = epoch + 1 WHERE owner = $2";
        client.execute(sql, &[&me, &from]).await?;
        put_row(session, from, &next).await?;
        client.execute("UPDATE tail SET taken_over = true WHERE writer = $1", &[&from]).await?;
        let sql = "INSERT INTO take_over (writer, copy, taker) VALUES ($1, $2, $3)";
        client.execute(sql, &[&from, &(copy as i64), &me]).await?;
        Ok(Ok(taken))
    }

    /// Somebody went on in our place, and we have not begun anew since.
    pub(crate) fn was_taken_over(&self) -> Result<bool, KvError> {
        self.read(async |session: &Session| {
            let (_, taken_over) = tail_row(session, &self.identity.writer, false).await?;
            Ok(taken_over)
        })
    }

    pub(crate) fn begin_anew(&self) -> Result<(), Failure> {
        let mut writer = self.writer.lock();
        let me = self.identity.writer.as_str();
        self.owning(&mut writer, async |session: &Session, number: i64| {
            locked_leases(session, me, number).await?;
            let sql = "UPDATE tail SET taken_over = false WHERE writer = $1";
            session.client.execute(sql, &[&me]).await?;
            Ok(())
        })
    }
}

/// The last word of each key.
type Merged<'a> = BTreeMap<&'a [u8], Option<&'a [u8]>>;

/// What the engine lacks of a tail, the last word of each key; and the tail's last number. All of it is in these slots, and there is no
/// hole: otherwise it is not what it is said to be.
fn merged<'a>(
    tail: &'a [TailBatch],
    applied: Lsn,
    slots: &BTreeSet<u16>,
) -> Result<(Merged<'a>, Lsn), Failure> {
    let (mut batch, mut last) = (BTreeMap::new(), applied);
    for (lsn, entries) in tail.iter().filter(|(lsn, _)| *lsn > applied) {
        if lsn.0 != last.0 + 1 {
            return Err(Failure::Damaged(format!("the copy of a journal has {lsn} after {last}")));
        }
        last = *lsn;
        for (key, value) in entries {
            if !slots.contains(&slot_of(key)) {
                let slot = slot_of(key);
                return Err(Failure::Damaged(format!(
                    "the copy of a journal has {lsn} in slot {slot}, which is another's"
                )));
            }
            batch.insert(&**key, value.as_deref());
        }
    }
    Ok((batch, last))
}

fn unsigned(number: i64) -> Result<u64, Failure> {
    u64::try_from(number).map_err(|_| Failure::Damaged(format!("there is a number {number}")))
}

/// The row of a writer, and whether somebody went on in its place and it was not told yet.
async fn tail_row(session: &Session, of: &str, lock: bool) -> Result<(Row<String>, bool), Failure> {
    let lock = if lock { "FOR UPDATE" } else { "" };
    let sql = format!("SELECT standby, copy, complete, taken_over FROM tail WHERE writer = $1 {lock}");
    let Some(row) = session.client.query_opt(&sql, &[&of]).await? else { return Ok((Row::default(), false)) };
    let tail = Row { standby: row.try_get(0)?, copy: unsigned(row.try_get(1)?)?, complete: row.try_get(2)? };
    Ok((tail, row.try_get(3)?))
}

async fn put_row(session: &Session, of: &str, row: &Row<String>) -> Result<(), Failure> {
    let sql = "INSERT INTO tail (writer, standby, copy, complete) VALUES ($1, $2, $3, $4) \
               ON CONFLICT (writer) DO UPDATE SET standby = $2, copy = $3, complete = $4";
    session.client.execute(sql, &[&of, &row.standby, &(row.copy as i64), &row.complete]).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(lsn: u64, key: [u8; 4], value: &'static [u8]) -> TailBatch {
        (Lsn(lsn), vec![(Box::from(key), Some(kv_bytes(value)))])
    }

    fn kv_bytes(value: &'static [u8]) -> bytes::Bytes {
        bytes::Bytes::from_static(value)
    }

    /// Goal: a copy with a hole, or with what is another's, is applied by nobody. Method: by hand.
    #[test]
    fn what_is_applied_has_no_hole() {
        let slots = BTreeSet::from([1, 2]);
        let (one, two) = ([0, 0, 1, 7], [0, 0, 2, 7]);
        let tail = [batch(4, one, b"a"), batch(5, two, b"b"), batch(6, one, b"c")];
        let (merged_all, last) = merged(&tail, Lsn(4), &slots).unwrap();
        assert_eq!(last, Lsn(6));
        let expected: Merged<'_> = [(&one[..], Some(&b"c"[..])), (&two[..], Some(&b"b"[..]))].into();
        assert_eq!(merged_all, expected);
        assert_eq!(merged(&tail, Lsn(9), &slots).unwrap().1, Lsn(9));
        assert!(merged(&tail, Lsn(2), &slots).is_err(), "the third is missing");
        assert!(merged(&tail[1..], Lsn(3), &slots).is_err());
        assert!(merged(&[tail[0].clone(), tail[2].clone()], Lsn(3), &slots).is_err());
        assert!(merged(&tail, Lsn(4), &BTreeSet::from([1])).is_err(), "slot 2 is another's");
    }
}
