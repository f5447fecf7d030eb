//! What sessions have in slots, taken out here and put in there.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use lease::coherence::{
    locks::HadLock,
    message::{Joined, Party},
};
use proto::{
    Head, SessionId,
    locks::HeldLock,
    metadata::Reference,
    owners::{AnswerState, FileState, OpeningState, SessionState, SlotState},
};
use types::{Errno, Ino, Slot};

use crate::{
    answer::{Done, No, Outcome},
    metadata::{
        MetadataService,
        carried::Carried,
        session::{Opening, Session},
        verdicts,
    },
};

/// What becomes of slots in which somebody has something who was given up here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GivenUp {
    /// They do not come: he may be whole where they are.
    Refused,
    /// There is nobody else: he loses it.
    Condemned,
}

impl MetadataService {
    /// Takes out what sessions have in slots that nobody is inside of.
    pub(super) fn take_state(&self, slots: &[Slot]) -> SlotState {
        let slots: HashSet<Slot> = slots.iter().copied().collect();
        let there = |ino: Ino| slots.contains(&ino.ugsd().slot());
        let (carried, due) = self.terms.take_locks(&slots);
        self.carry_on(due);
        let mut locks: BTreeMap<SessionId, Vec<HeldLock>> = BTreeMap::new();
        for lock in &carried.locks {
            locks.entry(lock.owner.session).or_default().push(lock.to_say());
        }
        let sessions = self.sessions.all();
        let condemned: Vec<Arc<Session>> = self.leaving.condemned.lock().values().cloned().collect();
        let mut states = Vec::new();
        for session in sessions.iter().chain(&condemned) {
            let locks = locks.remove(&session.id).unwrap_or_default();
            let state = session_state(session, &there, locks);
            let writing = state.openings.iter().filter(|opening| opening.write);
            self.forget_openings(session, writing.map(|opening| opening.number));
            states.push(state);
        }
        // Of one that is just being given up.
        let others = locks.into_iter().map(|(id, locks)| SessionState {
            head: Some(Head::of(id)),
            locks,
            ..SessionState::default()
        });
        states.extend(others);
        let sessions = states.into_iter().filter(|one| has_something(one) || !one.answers.is_empty());
        let sessions = sessions.collect();
        let files = self.files.take(&there);
        self.due.lock().retain(|ino| !there(*ino));
        SlotState {
            sessions,
            files: files
                .into_iter()
                .map(|(ino, append_end)| FileState { ino: ino.get(), append_end })
                .collect(),
            given_up: carried.given_up.into_iter().map(Head::of).collect(),
            stamp: carried.stamp,
        }
    }

    /// Durably: those who have locks in slots that come are waited for by the next life.
    pub(super) fn expect(&self, state: &SlotState) -> Result<(), No> {
        let with_locks = state.sessions.iter().filter(|one| !one.locks.is_empty());
        verdicts::arrive_all(&self.notes, with_locks.map(SessionState::id)).map_err(|error| {
            tracing::error!(%error, "that sessions are there was not recorded");
            No::from(Errno::EIO)
        })
    }

    fn carried(state: &SlotState) -> Result<Carried, No> {
        let mut locks = Vec::new();
        for one in &state.sessions {
            for lock in &one.locks {
                locks.push(HadLock::said(one.id(), lock)?);
            }
        }
        let given_up = state.given_up.iter().map(Head::session).collect();
        Ok(Carried { locks, given_up, stamp: state.stamp })
    }

    /// Puts it in, before the slots are served.
    pub(super) fn put_state(&self, state: &SlotState, given_up: GivenUp) -> Result<(), No> {
        let carried = Self::carried(state)?;
        let mut sessions = Vec::new();
        for one in &state.sessions {
            match self.session_of(one) {
                Ok(session) => sessions.push((one, session)),
                // What it was answered it cannot ask for again.
                Err(no) if no == No::session_gone() && !has_something(one) => {}
                Err(no) if no == No::session_gone() && given_up == GivenUp::Condemned => {
                    sessions.push((one, self.placed_given_up(one)));
                }
                Err(no) => return Err(no),
            }
        }
        for (one, session) in sessions {
            for Reference { ino, count } in &one.references {
                let ino = proto::attr::ino(*ino)?;
                *session.has.lock().references.entry(ino).or_default() += count;
                self.mds.hold(ino, *count);
            }
            let mut writing = Vec::new();
            for OpeningState { number, ino, write } in &one.openings {
                let opening = Opening { ino: proto::attr::ino(*ino)?, write: *write };
                if session.has.lock().openings.insert(*number, opening).is_none() {
                    self.mds.hold(opening.ino, 1);
                    self.files.with(opening.ino, |_, state| {
                        state.openings += 1;
                        state.writers += u32::from(*write);
                    });
                }
                writing.extend(write.then_some((session.id, *number, opening.ino)));
            }
            self.opened_elsewhere(&writing);
            for answer in &one.answers {
                session.learn(answer.number, &outcome(answer));
            }
        }
        for FileState { ino, append_end } in &state.files {
            self.set_append_end(proto::attr::ino(*ino)?, *append_end);
        }
        let due = self.terms.put_locks(&carried);
        self.carry_on(due);
        Ok(())
    }

    /// Of a file in slots that are not served here: what comes for it before the first request is what counts.
    fn set_append_end(&self, ino: Ino, append_end: u64) {
        // What nobody has open was given to nobody who could write it.
        self.files.with(ino, |_, state| state.append_end = append_end);
    }

    /// The slots were not taken after all.
    pub(super) fn forget_append_ends(&self, files: &[FileState]) {
        files.iter().filter_map(|file| Ino::from_raw(file.ino)).for_each(|ino| self.set_append_end(ino, 0));
    }

    /// One that was given up here. What comes of it is its own until data servers carry out nothing of it there.
    fn placed_given_up(&self, one: &SessionState) -> Arc<Session> {
        let due = self.terms.place_given_up(one.id(), Duration::from_millis(one.silent_ms.into()));
        let condemned = || {
            let by = Party { session: one.id(), joined: Joined::default() };
            Arc::new(Session::new(by, &one.host, (one.node, one.client)))
        };
        let session = self.leaving.condemned.lock().entry(one.id()).or_insert_with(condemned).clone();
        tracing::warn!(session = %one.id(), host = one.host, "what a session had in slots goes with it");
        self.carry_on(due);
        session
    }

    /// One that has asked nothing here yet comes with what it has.
    fn session_of(&self, one: &SessionState) -> Result<Arc<Session>, No> {
        if let Some(session) = self.sessions.get(one.id()) {
            return Ok(session);
        }
        let joined = Joined(self.placed(one.id(), Duration::from_millis(one.silent_ms.into()))?);
        self.sessions.mount(Party { session: one.id(), joined }, &one.host, (one.node, one.client));
        self.sessions.get(one.id()).ok_or_else(No::session_gone)
    }

    /// Files that are being written are, from now on, in this server's epoch.
    pub(super) fn go_on_writing(&self, files: &[FileState]) {
        for ino in files.iter().filter_map(|file| Ino::from_raw(file.ino)) {
            self.files.with(ino, |_, state| {
                match self.mds.begin_write(ino) {
                    Ok(_) => state.begun = true,
                    Err(errno) => {
                        tracing::warn!(%ino, %errno, "a file that is being written is settled later");
                    }
                }
                if state.writers == 0 {
                    self.due.lock().insert(ino);
                }
            });
        }
    }
}

/// Those who have something in the slots.
pub(super) fn present(state: &SlotState) -> HashSet<SessionId> {
    state.sessions.iter().filter(|one| has_something(one)).map(SessionState::id).collect()
}

/// In the slots; answers are of any.
fn has_something(one: &SessionState) -> bool {
    !one.references.is_empty() || !one.openings.is_empty() || !one.locks.is_empty()
}

fn session_state(session: &Session, there: &dyn Fn(Ino) -> bool, locks: Vec<HeldLock>) -> SessionState {
    let (mut references, mut openings) = (Vec::new(), Vec::new());
    {
        let mut has = session.has.lock();
        has.references.retain(|ino, count| {
            let goes = there(*ino);
            if goes {
                references.push(Reference { ino: ino.get(), count: *count });
            }
            !goes
        });
        has.openings.retain(|number, Opening { ino, write }| {
            let goes = there(*ino);
            if goes {
                openings.push(OpeningState { number: *number, ino: ino.get(), write: *write });
            }
            !goes
        });
    }
    // Which slot an operation was about is not known; one that is asked again finds its answer at both.
    let answers = session.kept().into_iter().map(|(number, outcome)| answer(number, outcome)).collect();
    let (head, host) = (Some(Head::of(session.id)), session.host.clone());
    let (node, client) = (session.node(), session.client);
    let silent_ms = u32::try_from(session.times().1.as_millis()).unwrap_or(u32::MAX);
    SessionState { head, host, node, references, openings, answers, client, locks, silent_ms }
}

fn answer(number: u64, outcome: Outcome) -> AnswerState {
    match outcome {
        Ok(Done { meta, .. }) => AnswerState { number, meta, refused: false },
        Err(No(fault)) => AnswerState { number, meta: prost::Message::encode_to_vec(&*fault), refused: true },
    }
}

fn outcome(answer: &AnswerState) -> Outcome {
    if answer.refused {
        Err(No(Box::new(proto::fault::read(&answer.meta))))
    } else {
        Ok(Done { meta: answer.meta.clone(), ..Done::default() })
    }
}
