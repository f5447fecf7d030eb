//! Slots taken and given back: the rows are locked, [`lease`] rules, the ruling is written.
//!
//! Locks are taken in one order everywhere: writers by name, then slots by number. So a take-over waits for the batch of an owner that is
//! on its way, and the owner's next one finds the rows changed.

use std::{collections::BTreeMap, sync::Arc};

use kv::OpenError;
use namespace::txn::KvError;

use crate::{
    apply::{Ended, commit},
    connection::Session,
    error::Failure,
    lease::{self, DbTime, Ruling, SlotRow},
    shared::{Shared, Writer},
};

/// What became of a wish for slots.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// With their epochs. Now ours.
    pub ours: BTreeMap<u16, u64>,
    /// With their owners, whose leases have not ended.
    pub others: BTreeMap<u16, String>,
}

/// Whose slots may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    Nobody,
    /// Also those of owners whose leases have ended.
    Ended,
}

/// Takes and gives back slots, beside the store that has the engine.
#[derive(Clone)]
pub struct Rights(pub(crate) Arc<Shared>);

impl Rights {
    /// Asks for slots that are nobody's. Others' stay where they are, also when their leases have ended: only their owner's journal says what is
    /// in them.
    pub fn take_free(&self, slots: &[u16]) -> Result<Taken, KvError> {
        Ok(self.0.patiently(|| self.0.take(slots, From::Nobody))?)
    }

    /// Gives slots back. What was committed in them must be in the engine.
    pub fn release(&self, slots: &[u16]) -> Result<(), KvError> {
        Ok(self.0.patiently(|| self.0.release(slots))?)
    }

    /// Those that are ours, with their epochs.
    pub fn ours(&self) -> BTreeMap<u16, u64> {
        self.0.epochs.lock().clone()
    }
}

impl Shared {
    pub(crate) fn take(&self, slots: &[u16], from: From) -> Result<Taken, Failure> {
        let mut writer = self.writer.lock();
        let taken = self.owning(&mut writer, async |session: &Session, number: i64| {
            self.take_in(session, number, (slots, from)).await
        })?;
        self.epochs.lock().extend(taken.ours.iter().map(|(slot, epoch)| (*slot, *epoch)));
        Ok(taken)
    }

    /// What the rows say is this writer's, from before it was opened here: its journal may have batches for them.
    pub(crate) fn resume_slots(&self) -> Result<(), Failure> {
        let sql = "SELECT slot FROM slot WHERE owner = $1 ORDER BY slot";
        let rows = self
            .read(async |session: &Session| Ok(session.client.query(sql, &[&self.identity.writer]).await?));
        let rows = rows.map_err(|error| Failure::Away(error.to_string()))?;
        let slots = rows.iter().filter_map(|row| u16::try_from(row.try_get::<_, i32>(0).ok()?).ok());
        let slots: Vec<u16> = slots.collect();
        if slots.is_empty() { Ok(()) } else { self.take(&slots, From::Nobody).map(drop) }
    }

    /// Those that are ours still.
    pub(crate) fn release(&self, slots: &[u16]) -> Result<(), Failure> {
        let mut writer = self.writer.lock();
        let known: Vec<(u16, u64)> = {
            // Before anybody else can have them.
            let mut epochs = self.epochs.lock();
            slots.iter().filter_map(|slot| Some((*slot, epochs.remove(slot)?))).collect()
        };
        self.owning(&mut writer, async |session: &Session, _: i64| {
            let slots: Vec<i32> = known.iter().map(|(slot, _)| i32::from(*slot)).collect();
            let rows = locked_slots(session, &slots).await?;
            let epoch_of: BTreeMap<u16, u64> = known.iter().copied().collect();
            let free: Vec<i32> = rows
                .iter()
                .filter(|row| {
                    epoch_of
                        .get(&row.slot)
                        .is_some_and(|epoch| lease::may_release(row, &self.identity.writer, *epoch))
                })
                .map(|row| i32::from(row.slot))
                .collect();
            session.client.execute("UPDATE slot SET owner = NULL WHERE slot = ANY($1)", &[&free]).await?;
            Ok(())
        })
        // Or it would not be tried again; a batch for one that is another's by now is refused by its row.
        .inspect_err(|_| self.epochs.lock().extend(known.iter().copied()))
    }

    /// The lease, for another while. False: the row is not ours any more.
    pub(crate) fn renew(&self) -> Result<bool, KvError> {
        self.read(async |session: &Session| {
            let rows = session
                .client
                .execute(
                    "UPDATE writer SET lease_until = clock_timestamp() + make_interval(secs => $3) WHERE id = $1 AND holder = $2",
                    &[&self.identity.writer, &self.holder, &self.lease_seconds()],
                )
                .await?;
            Ok(rows == 1)
        })
    }

    /// Others need not wait for it to end.
    pub(crate) fn end_lease(&self) -> Result<(), KvError> {
        self.read(async |session: &Session| {
            let sql = "UPDATE writer SET lease_until = clock_timestamp() WHERE id = $1 AND holder = $2";
            session.client.execute(sql, &[&self.identity.writer, &self.holder]).await?;
            Ok(())
        })
    }

    /// One transaction about slots or tails. It may be tried again whatever came of it: what is ours already is kept.
    pub(crate) fn owning<T>(
        &self,
        writer: &mut Writer,
        work: impl AsyncFn(&Session, i64) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.connect(writer)?;
        let Some(session) = &writer.session else { return Err(Failure::Away("not connected".to_owned())) };
        let wait = self.options.tuning.answer_wait;
        let number = writer.number;
        let result = self.runtime.block_on(async {
            let body = async {
                session.client.batch_execute("BEGIN").await?;
                work(session, number).await
            };
            let answer = crate::connection::within(wait, body).await?;
            match commit(session, wait).await {
                Ok(()) => Ok(answer),
                Err(Ended::NotDone(failure) | Ended::Unknown(failure)) => Err(failure),
            }
        });
        if result.is_err() {
            session.give_up();
            writer.session = None;
        }
        self.reach.note(&result);
        result
    }

    async fn take_in(
        &self,
        session: &Session,
        number: i64,
        (slots, from): (&[u16], From),
    ) -> Result<Taken, Failure> {
        let me = self.identity.writer.as_str();
        let leases = locked_leases(session, me, number).await?;
        let wanted: Vec<i32> = slots.iter().map(|slot| i32::from(*slot)).collect();
        let rows = locked_slots(session, &wanted).await?;
        // After all locks were had: what had ended by then cannot begin again before we commit.
        let now = session.client.query_one(&format!("SELECT {}", micros("clock_timestamp()")), &[]).await?;
        let now = DbTime(now.try_get(0)?);
        let mut taken = Taken::default();
        let (mut changed, mut epochs) = (Vec::new(), Vec::new());
        for row in rows {
            let until = match (&row.owner, from) {
                (Some(owner), From::Ended) => leases.get(owner).copied(),
                (Some(_), From::Nobody) => Some(DbTime::NEVER),
                (None, _) => None,
            };
            match lease::take(&row, me, until, now) {
                Ruling::Keep { epoch } => drop(taken.ours.insert(row.slot, epoch)),
                Ruling::Take { epoch } => {
                    changed.push(i32::from(row.slot));
                    epochs.push(epoch as i64);
                    taken.ours.insert(row.slot, epoch);
                }
                Ruling::Refuse { owner, until: _ } => drop(taken.others.insert(row.slot, owner)),
            }
        }
        session
            .client
            .execute(
                "UPDATE slot SET owner = $1, epoch = new.epoch FROM unnest($2::int[], $3::bigint[]) AS new (slot, epoch) \
                 WHERE slot.slot = new.slot",
                &[&me, &changed, &epochs],
            )
            .await?;
        let sql =
            "UPDATE writer SET lease_until = clock_timestamp() + make_interval(secs => $2) WHERE id = $1";
        session.client.execute(sql, &[&me, &self.lease_seconds()]).await?;
        Ok(taken)
    }
}

pub(crate) fn micros(time: &str) -> String {
    format!("(extract(epoch FROM {time}) * 1000000)::bigint")
}

/// Of all writers, locked; ours must still have the session number.
pub(crate) async fn locked_leases(
    session: &Session,
    me: &str,
    number: i64,
) -> Result<BTreeMap<String, DbTime>, Failure> {
    let sql = format!("SELECT id, session, {} FROM writer ORDER BY id FOR UPDATE", micros("lease_until"));
    let mut leases = BTreeMap::new();
    let mut ours = false;
    for row in session.client.query(&sql, &[]).await? {
        let id: String = row.try_get(0)?;
        ours |= id == me && row.try_get::<_, i64>(1)? == number;
        leases.insert(id, DbTime(row.try_get(2)?));
    }
    if !ours {
        return Err(Failure::Fenced("this state directory was opened elsewhere".to_owned()));
    }
    Ok(leases)
}

pub(crate) async fn locked_slots(session: &Session, slots: &[i32]) -> Result<Vec<SlotRow>, Failure> {
    let sql = "SELECT slot, owner, epoch FROM slot WHERE slot = ANY($1) ORDER BY slot FOR UPDATE";
    let mut found = Vec::new();
    for row in session.client.query(sql, &[&slots]).await? {
        let (slot, epoch): (i32, i64) = (row.try_get(0)?, row.try_get(2)?);
        let number =
            |n: i64| u64::try_from(n).map_err(|_| Failure::Damaged(format!("slot {slot} has epoch {n}")));
        let small = u16::try_from(slot).map_err(|_| Failure::Damaged(format!("there is a slot {slot}")))?;
        found.push(SlotRow { slot: small, owner: row.try_get(1)?, epoch: number(epoch)? });
    }
    Ok(found)
}

/// What an opening says of slots that it cannot have.
pub(crate) fn others_have(taken: &Taken) -> Option<OpenError> {
    let (slot, owner) = taken.others.first_key_value()?;
    let text = format!("{} slots are another writer's, the first is {slot} of {owner}", taken.others.len());
    Some(OpenError::Engine(KvError::Io(text)))
}
