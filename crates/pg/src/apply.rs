//! Batches: each is one transaction, of one writer, under its session number.
//!
//! Steps: the writer's row with the batch's number, which also locks out every other session of this writer; the slots' rows, locked
//! and compared with the epochs that we know; the entries; commit. Nothing is sent before the answers of the first two have
//! come, so a transaction whose client is gone never commits.
//!
//! When the outcome of a commit is unknown, the writer takes the next session number on another connection. That waits
//! for the lock of the transaction in doubt, so afterwards it is over; and its own commit is confirmed by the standby after the
//! one in doubt. The row then says which batch was the last.

use std::time::{Duration, Instant};

use kv::{ApplyError, Batch, Lsn};
use namespace::txn::KvError;
use tokio_postgres::types::ToSql;

use crate::{
    connection::{Session, within},
    error::{Failure, is_fatal},
    schema::SHORT_KEY_MAX,
    shared::{Shared, Writer},
    slots::slot_of,
};

/// Of one statement: so that the server's and our memory for it stay small. A single value may be larger.
const CHUNK_BYTES: usize = 4 << 20;
const CHUNK_ROWS: usize = 8192;
const PAUSE: Duration = Duration::from_millis(200);

/// What is known of a transaction that did not end well.
pub(crate) enum Ended {
    /// It was not done.
    NotDone(Failure),
    /// It may have been.
    Unknown(Failure),
}

impl From<tokio_postgres::Error> for Ended {
    fn from(error: tokio_postgres::Error) -> Ended {
        Ended::NotDone(error.into())
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::NotDone(failure)
    }
}

impl Shared {
    pub(crate) fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        let until = Instant::now() + self.options.tuning.apply_wait;
        let mut writer = self.writer.lock();
        loop {
            let failure = match self.apply_once(&mut writer, batch, lsn) {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            if let Failure::Fenced(why) = &failure {
                self.reach.note_batch(&Err(failure.clone()));
                writer.fenced.get_or_insert_with(|| why.clone());
                return Err(ApplyError::Fenced(failure.into()));
            }
            if !failure.is_passing() || Instant::now() + PAUSE > until {
                let error: KvError = failure.into();
                return Err(if writer.doubt { ApplyError::Again(error) } else { ApplyError::Nothing(error) });
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn apply_once(&self, writer: &mut Writer, batch: &Batch<'_>, lsn: Lsn) -> Result<(), Failure> {
        self.connect(writer)?;
        // The one that was in doubt.
        if writer.applied >= lsn {
            return Ok(());
        }
        let slots = self.epochs_of(batch)?;
        let Some(session) = &writer.session else { return Err(Failure::Away("not connected".to_owned())) };
        let step = self.transaction(session, writer.number, &slots, batch, lsn);
        let result = self.runtime.block_on(step);
        match result {
            Ok(()) => {
                writer.applied = lsn;
                writer.note.put(lsn);
                self.reach.note_batch(&Ok(()));
                Ok(())
            }
            Err(ended) => {
                // Whatever is left of the transaction ends with its connection.
                session.give_up();
                writer.session = None;
                let failure = match ended {
                    Ended::NotDone(failure) => failure,
                    Ended::Unknown(failure) => {
                        writer.doubt = true;
                        failure
                    }
                };
                self.reach.note_batch(&Err(failure.clone()));
                Err(failure)
            }
        }
    }

    /// Sees that there is a session, with a number of its own and nothing in doubt.
    pub(crate) fn connect(&self, writer: &mut Writer) -> Result<(), Failure> {
        if let Some(why) = &writer.fenced {
            return Err(Failure::Fenced(why.clone()));
        }
        if writer.session.as_ref().is_some_and(Session::is_usable) {
            return Ok(());
        }
        writer.session = None;
        let wait = self.options.tuning.answer_wait;
        let claimed = self.runtime.block_on(within(wait, async {
            let session = Session::writer(&self.options).await?;
            let claim = self.claim(&session).await;
            if claim.is_err() {
                session.give_up();
            }
            Ok((session, claim?))
        }));
        match &claimed {
            // Whether it takes batches, too, a batch shows.
            Ok(_) => self.reach.note(&claimed),
            Err(failure) => self.reach.note_batch(&Err(failure.clone())),
        }
        let (session, (number, applied)) = claimed?;
        if applied < writer.applied {
            session.give_up();
            return Err(Failure::Fenced(format!(
                "the database has our changes up to {applied}, but had confirmed {}: it was put back to an earlier state, or a \
                 standby that was not synchronous took over",
                writer.applied
            )));
        }
        writer.note.put(applied);
        (writer.number, writer.applied, writer.doubt) = (number, applied, false);
        writer.session = Some(session);
        Ok(())
    }

    /// The next session number, and the last batch applied.
    async fn claim(&self, session: &Session) -> Result<(i64, Lsn), Failure> {
        let warnings = session.warnings();
        let row = session
            .client
            .query_opt(
                "UPDATE writer SET session = session + 1, lease_until = clock_timestamp() + make_interval(secs => $3) \
                 WHERE id = $1 AND holder = $2 RETURNING session, applied",
                &[&self.identity.writer, &self.holder, &self.lease_seconds()],
            )
            .await?;
        if session.warnings() != warnings {
            return Err(Failure::Busy("the standby did not confirm".to_owned()));
        }
        let Some(row) = row else {
            return Err(Failure::Fenced(
                "this state directory was opened elsewhere, or its rows are gone".to_owned(),
            ));
        };
        let applied: i64 = row.try_get(1)?;
        let applied =
            u64::try_from(applied).map_err(|_| Failure::Damaged(format!("applied is {applied}")))?;
        Ok((row.try_get(0)?, Lsn(applied)))
    }

    pub(crate) fn lease_seconds(&self) -> f64 {
        self.options.tuning.lease.as_secs_f64()
    }

    /// The slots that the batch touches, with the epochs that we know.
    fn epochs_of(&self, batch: &Batch<'_>) -> Result<(Vec<i32>, Vec<i64>), Failure> {
        let mut slots: Vec<u16> = batch.iter().map(|(key, _)| slot_of(key)).collect();
        slots.sort_unstable();
        slots.dedup();
        let owned = self.epochs.lock();
        let epoch = |slot: &u16| match owned.get(slot) {
            Some(epoch) => Ok(*epoch as i64),
            None => Err(Failure::Fenced(format!("slot {slot} is not ours"))),
        };
        let epochs = slots.iter().map(epoch).collect::<Result<_, _>>()?;
        Ok((slots.into_iter().map(i32::from).collect(), epochs))
    }

    async fn transaction(
        &self,
        session: &Session,
        number: i64,
        slots: &(Vec<i32>, Vec<i64>),
        batch: &Batch<'_>,
        lsn: Lsn,
    ) -> Result<(), Ended> {
        let wait = self.options.tuning.answer_wait;
        within(wait, self.fence(session, number, slots, lsn)).await?;
        enter(session, batch, wait).await?;
        if let Some(stop) = self.options.tuning.before_commit {
            stop();
        }
        commit(session, wait).await
    }

    /// Begins, and sees that we are who we think.
    async fn fence(
        &self,
        session: &Session,
        number: i64,
        (slots, epochs): &(Vec<i32>, Vec<i64>),
        lsn: Lsn,
    ) -> Result<(), Failure> {
        let client = &session.client;
        client.batch_execute("BEGIN").await?;
        let ours = client
            .execute(
                "UPDATE writer SET applied = $3, lease_until = clock_timestamp() + make_interval(secs => $4) \
                 WHERE id = $1 AND session = $2",
                &[&self.identity.writer, &number, &(lsn.0 as i64), &self.lease_seconds()],
            )
            .await?;
        if ours != 1 {
            return Err(Failure::Fenced("this state directory was opened elsewhere".to_owned()));
        }
        let held = client
            .query(
                "SELECT slot FROM slot WHERE owner = $1 AND (slot, epoch) IN (SELECT * FROM unnest($2::int[], $3::bigint[])) \
                 ORDER BY slot FOR SHARE",
                &[&self.identity.writer, slots, epochs],
            )
            .await?;
        if held.len() != slots.len() {
            let lost = slots.len() - held.len();
            return Err(Failure::Fenced(format!(
                "{lost} of the {} slots of this change are another's",
                slots.len()
            )));
        }
        Ok(())
    }
}

/// Confirmed by the disk, and by the standby if there must be one; else not known.
pub(crate) async fn commit(session: &Session, wait: Duration) -> Result<(), Ended> {
    let warnings = session.warnings();
    match tokio::time::timeout(wait, session.client.batch_execute("COMMIT")).await {
        Ok(Ok(())) if session.warnings() == warnings => Ok(()),
        Ok(Ok(())) => Err(Ended::Unknown(Failure::Busy("a commit was done with a warning".to_owned()))),
        Ok(Err(error)) if is_fatal(&error) => Err(Ended::Unknown(error.into())),
        Ok(Err(error)) => Err(Ended::NotDone(error.into())),
        Err(_) => Err(Ended::Unknown(Failure::Away(format!("no answer to a commit for {wait:?}")))),
    }
}

/// The entries of a batch, into a transaction that has begun.
pub(crate) async fn enter(session: &Session, batch: &Batch<'_>, wait: Duration) -> Result<(), Failure> {
    for statement in statements(batch) {
        within(wait, statement.run(session)).await?;
    }
    Ok(())
}

/// One statement of a batch.
struct Chunk<'a> {
    sql: &'static str,
    keys: Vec<&'a [u8]>,
    /// None: these keys are deleted.
    values: Option<Vec<&'a [u8]>>,
}

impl Chunk<'_> {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let values = self.values.as_ref();
        let params: Vec<&(dyn ToSql + Sync)> = match &values {
            Some(values) => vec![&self.keys, *values],
            None => vec![&self.keys],
        };
        session.client.execute(self.sql, &params).await?;
        Ok(())
    }
}

const PUT: &str = "INSERT INTO entry (key, value) SELECT * FROM unnest($1::bytea[], $2::bytea[]) \
                   ON CONFLICT (key) DO UPDATE SET value = excluded.value";
const PUT_LONG: &str = "INSERT INTO long_entry (digest, key, value) \
                        SELECT sha256(key), key, value FROM unnest($1::bytea[], $2::bytea[]) AS new (key, value) \
                        ON CONFLICT (digest) DO UPDATE SET value = excluded.value";
const DELETE: &str = "DELETE FROM entry WHERE key = ANY($1::bytea[])";
const DELETE_LONG: &str =
    "DELETE FROM long_entry WHERE digest IN (SELECT sha256(key) FROM unnest($1::bytea[]) AS old (key))";

/// A batch's statements. Its keys are distinct, so their order among each other is free.
fn statements<'a>(batch: &Batch<'a>) -> Vec<Chunk<'a>> {
    let mut all = Vec::new();
    for long in [false, true] {
        let of_kind = || batch.iter().filter(move |(key, _)| (key.len() > SHORT_KEY_MAX) == long);
        let (put, delete) = if long { (PUT_LONG, DELETE_LONG) } else { (PUT, DELETE) };
        let mut bytes = usize::MAX;
        let first = all.len();
        for (key, value) in of_kind().filter_map(|(key, value)| Some((*key, (*value)?))) {
            if bytes > CHUNK_BYTES || full(&all[first..]) {
                all.push(Chunk { sql: put, keys: Vec::new(), values: Some(Vec::new()) });
                bytes = 0;
            }
            bytes += key.len() + value.len();
            if let Some(Chunk { keys, values: Some(values), .. }) = all.last_mut() {
                keys.push(key);
                values.push(value);
            }
        }
        let gone: Vec<&[u8]> = of_kind().filter(|(_, value)| value.is_none()).map(|(key, _)| *key).collect();
        // Rows of the longest keys are 4 KiB.
        let rows = if long { CHUNK_BYTES / 4096 } else { CHUNK_ROWS };
        all.extend(gone.chunks(rows).map(|keys| Chunk { sql: delete, keys: keys.to_vec(), values: None }));
    }
    all
}

fn full(chunks: &[Chunk<'_>]) -> bool {
    chunks.last().is_none_or(|chunk| chunk.keys.len() >= CHUNK_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_in_one_statement_of_bounded_size() {
        let long = vec![7; SHORT_KEY_MAX + 1];
        let keys: Vec<[u8; 4]> = (0..20_000u32).map(u32::to_be_bytes).collect();
        let big = vec![0; 3 << 20];
        let mut batch: Vec<(&[u8], Option<&[u8]>)> = keys
            .iter()
            .enumerate()
            .map(|(n, key)| (&key[..], (n % 3 > 0).then_some(if n % 5000 == 1 { &big[..] } else { key })))
            .collect();
        batch.push((&long, Some(b"x")));
        let chunks = statements(&batch);
        let mut found: Vec<(&[u8], Option<&[u8]>)> = Vec::new();
        for chunk in &chunks {
            assert!(chunk.keys.len() <= CHUNK_ROWS);
            match &chunk.values {
                Some(values) => {
                    assert_eq!(values.len(), chunk.keys.len());
                    let bytes: usize = values.iter().map(|v| v.len()).sum();
                    assert!(bytes <= CHUNK_BYTES + big.len());
                    found.extend(chunk.keys.iter().zip(values).map(|(k, v)| (*k, Some(*v))));
                }
                None => found.extend(chunk.keys.iter().map(|k| (*k, None))),
            }
        }
        found.sort();
        batch.sort();
        assert!(found == batch);
        assert!(statements(&[]).is_empty());
    }
}
