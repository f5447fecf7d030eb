//! What every metadata server does at the word of the one on duty: lets slots go, takes them on.

use std::{collections::BTreeMap, time::Duration};

use prost::Message;
use proto::{
    Nothing, Reason,
    owners::{
        Gone, LetGo, Loads, PART_BYTES, PutState, SlotLoads, SlotState, StatePart, TakeOn, TakenOn, slots,
    },
};
use types::{Errno, Slot, UgsdId};
use wire::schema::Retry;

use super::{
    Owners,
    rights::as_slots,
    state::{GivenUp, present},
};
use crate::{
    answer::{Done, No, Outcome},
    metadata::MetadataService,
};

/// Requests inside of a slot that goes are waited for so long.
const SHUT_WAIT: Duration = Duration::from_secs(6);

fn refused(what: &str, why: &str) -> No {
    tracing::warn!(why, "{what}");
    No::new(Errno::EAGAIN, Retry::After, Reason::None, format!("{what}: {why}"))
}

impl MetadataService {
    pub(in crate::metadata) fn slots_let_go(&self, meta: &[u8]) -> Outcome {
        let owners = self.shared()?;
        let asked = slots(&proto::decode::<LetGo>(meta)?.slots);
        if let Some((ticket, gone, state)) = &owners.states.lock().gone
            && *gone == asked
            && !as_slots(&asked).iter().any(|slot| self.mds.serves(*slot))
        {
            // The answer was lost.
            return Ok(Done::new(&Gone { ticket: *ticket, length: state.len() as u64 }));
        }
        let state = self.let_go(owners, &asked)?;
        let mut states = owners.states.lock();
        states.last_ticket += 1;
        let (ticket, length) = (states.last_ticket, state.len() as u64);
        states.gone = Some((ticket, asked, state));
        Ok(Done::new(&Gone { ticket, length }))
    }

    /// When it returns they are nobody's, and this is what sessions had in them. After an error they are ours still.
    pub(super) fn let_go(&self, owners: &Owners, numbers: &[u16]) -> Result<Vec<u8>, No> {
        let slots = as_slots(numbers);
        if let Some(slot) = slots.iter().find(|slot| !self.mds.serves(**slot)) {
            return Err(refused("slots are not let go", &format!("{} is not ours", slot.get())));
        }
        let coming = self.in_grace() || self.terms.in_grace() || self.terms.is_unsettled();
        if coming && slots.iter().any(|slot| self.is_used(*slot)) {
            // What sessions of an earlier life have in them is known when they have come back; the next owner would take it for closed.
            return Err(refused("slots are not let go", "clients of before the start may still come back"));
        }
        let _vacant = self.vacate_slots(&slots)?;
        if !owners.gates.shut(&slots, SHUT_WAIT) {
            return Err(refused("slots are not let go", "they are in use"));
        }
        let result = self.let_go_shut(owners, numbers, &slots);
        owners.gates.open(&slots);
        result
    }

    fn let_go_shut(&self, owners: &Owners, numbers: &[u16], slots: &[Slot]) -> Result<Vec<u8>, No> {
        if slots.iter().any(|slot| !self.mds.serves(*slot)) {
            return Err(refused("slots are not let go", "they went meanwhile"));
        }
        self.mds
            .let_go(slots)
            .map_err(|errno| refused("slots are not let go", &format!("the engine: {errno}")))?;
        self.slots_changed(false);
        let state = self.take_state(slots);
        owners.bares.remove(slots);
        match owners.rights.release(numbers) {
            Ok(()) => Ok(state.encode_to_vec()),
            Err(why) => {
                // Released or not: nobody else was told, and what is ours comes back to us.
                let known = self.mds.next_ugsd().unwrap_or(0);
                match self.take_back(owners, numbers, &state, known) {
                    Ok(()) => Err(refused("slots are not let go", &why)),
                    Err(no) => {
                        tracing::error!(
                            why,
                            detail = no.0.detail,
                            "slots are nobody's until they are taken again"
                        );
                        Ok(state.encode_to_vec())
                    }
                }
            }
        }
    }

    fn take_back(
        &self,
        owners: &Owners,
        numbers: &[u16],
        state: &SlotState,
        next_ugsd: u32,
    ) -> Result<(), No> {
        self.take_on(owners, numbers, state, next_ugsd).map(|_| ())
    }

    /// Takes slots that are nobody's, with what sessions have in them. Returns their epochs.
    pub(super) fn take_on(
        &self,
        owners: &Owners,
        numbers: &[u16],
        state: &SlotState,
        next_ugsd: u32,
    ) -> Result<BTreeMap<u16, u64>, No> {
        self.take_in(owners, numbers, state, (next_ugsd, GivenUp::Refused))
    }

    /// The same, when nobody else takes them.
    pub(super) fn take_at_last(
        &self,
        owners: &Owners,
        numbers: &[u16],
        state: &[u8],
    ) -> Result<BTreeMap<u16, u64>, No> {
        let state = SlotState::decode(state).map_err(|_| Errno::EIO)?;
        self.take_in(owners, numbers, &state, (self.mds.next_ugsd()?, GivenUp::Condemned))
    }

    fn take_in(
        &self,
        owners: &Owners,
        numbers: &[u16],
        state: &SlotState,
        (next_ugsd, given_up): (u32, GivenUp),
    ) -> Result<BTreeMap<u16, u64>, No> {
        let _come = self.slots_come();
        // Before they are ours: the next life waits for whoever has locks in them.
        self.expect(state)?;
        let taken = owners.rights.take_free(numbers).map_err(|why| refused("slots are not taken", &why))?;
        if let Some(missing) = numbers.iter().find(|slot| !taken.contains_key(slot)) {
            let ours: Vec<u16> = taken.into_keys().filter(|n| !self.serves(*n)).collect();
            if let Err(why) = owners.rights.release(&ours) {
                tracing::warn!(why, "slots that were taken are not given back");
            }
            return Err(refused("slots are not taken", &format!("{missing} is another's")));
        }
        let served = self.put_state(state, given_up).and_then(|()| {
            self.pass_on(state)?;
            Ok(self.mds.take_on(&as_slots(numbers), next_ugsd)?)
        });
        if let Err(no) = served {
            self.terms.drop_locks(&as_slots(numbers).into_iter().collect());
            self.forget_append_ends(&state.files);
            // Whoever had them takes them back.
            if let Err(why) = owners.rights.release(numbers) {
                tracing::error!(why, "slots that are not served are not given back");
            }
            return Err(no);
        }
        self.slots_changed(true);
        self.fence_there(&present(state));
        self.go_on_writing(&state.files);
        Ok(taken)
    }

    /// Was ever a directory made in it? The root's always was.
    pub(super) fn is_used(&self, slot: Slot) -> bool {
        slot == UgsdId::ROOT.slot() || self.mds.next_ugsd().map_or(true, |next| u32::from(slot.get()) < next)
    }

    fn serves(&self, number: u16) -> bool {
        Slot::new(number).is_some_and(|slot| self.mds.serves(slot))
    }

    pub(in crate::metadata) fn state_part(&self, meta: &[u8], most: usize) -> Outcome {
        let asked: StatePart = proto::decode(meta)?;
        let states = self.shared()?.states.lock();
        let Some((_, _, state)) = states.gone.as_ref().filter(|(ticket, ..)| *ticket == asked.ticket) else {
            return Err(Errno::ENOENT.into());
        };
        let from = usize::try_from(asked.offset).map_err(|_| Errno::EINVAL)?.min(state.len());
        let end = state.len().min(from + most.min(PART_BYTES as usize));
        Ok(Done::with_body(&Nothing {}, state[from..end].to_vec()))
    }

    pub(in crate::metadata) fn put_part(&self, meta: &[u8], body: &[u8]) -> Outcome {
        let asked: PutState = proto::decode(meta)?;
        let mut states = self.shared()?.states.lock();
        if asked.offset == 0 {
            states.coming = Some((asked.ticket, Vec::new()));
        }
        match &mut states.coming {
            Some((ticket, bytes)) if *ticket == asked.ticket && bytes.len() as u64 == asked.offset => {
                bytes.extend_from_slice(body);
                Ok(Done::new(&Nothing {}))
            }
            // A part that comes twice.
            Some((ticket, bytes))
                if *ticket == asked.ticket && asked.offset + body.len() as u64 == bytes.len() as u64 =>
            {
                Ok(Done::new(&Nothing {}))
            }
            Some(_) | None => Err(Errno::EINVAL.into()),
        }
    }

    pub(in crate::metadata) fn slots_take_on(&self, meta: &[u8]) -> Outcome {
        let owners = self.shared()?;
        let asked: TakeOn = proto::decode(meta)?;
        let numbers = slots(&asked.slots);
        if numbers.iter().all(|slot| self.serves(*slot)) {
            // The answer was lost.
            return Ok(taken_on(&numbers, &owners.rights.ours()));
        }
        if let Some(standings) = &asked.standings {
            self.take_standings(standings)?;
        }
        let state = self.coming(owners, asked.ticket, asked.length)?;
        let taken = self.take_on(owners, &numbers, &state, asked.next_ugsd)?;
        Ok(taken_on(&numbers, &taken))
    }

    /// What was put for slots that come.
    pub(super) fn coming(&self, owners: &Owners, ticket: u64, length: u64) -> Result<SlotState, No> {
        let coming = owners.states.lock().coming.take();
        let bytes = match coming {
            _ if length == 0 => Vec::new(),
            Some((of, bytes)) if of == ticket && bytes.len() as u64 == length => bytes,
            Some(_) | None => return Err(Errno::EINVAL.into()),
        };
        SlotState::decode(&bytes[..]).map_err(|_| Errno::EINVAL.into())
    }

    pub(in crate::metadata) fn slot_loads(&self, meta: &[u8]) -> Outcome {
        let _: SlotLoads = proto::decode(meta)?;
        let requests = self.shared()?.gates.take_requests();
        let (slots, requests) = requests.into_iter().map(|(slot, n)| (u32::from(slot.get()), n)).unzip();
        Ok(Done::new(&Loads { slots, requests }))
    }

    /// What it is of several servers.
    pub(in crate::metadata) fn shared(&self) -> Result<&Owners, No> {
        self.owners.as_ref().ok_or_else(|| Errno::ENOSYS.into())
    }
}

fn taken_on(numbers: &[u16], epochs: &BTreeMap<u16, u64>) -> Done {
    let epochs = numbers.iter().map(|slot| epochs.get(slot).copied().unwrap_or(0)).collect();
    Done::new(&TakenOn { epochs })
}
