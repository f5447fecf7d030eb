//! What sessions have in slots, taken out here and put in there.

use std::{collections::HashSet, sync::Arc};

use lease::coherence::message::{Had, Joined, Party};
use proto::{
    Head,
    metadata::Reference,
    owners::{AnswerState, FileState, OpeningState, SessionState, SlotState},
};
use types::{Ino, Slot};

use crate::{
    answer::{Done, No, Outcome},
    metadata::{
        MetadataService,
        session::{Opening, Session},
    },
};

impl MetadataService {
    /// Takes out what sessions have in slots that nobody is inside of.
    pub(super) fn take_state(&self, slots: &[Slot]) -> SlotState {
        let slots: HashSet<Slot> = slots.iter().copied().collect();
        let there = |ino: Ino| slots.contains(&ino.ugsd().slot());
        let sessions = self.sessions.all();
        let sessions = sessions.iter().map(|session| session_state(session, &there));
        let sessions =
            sessions.filter(|s| !s.references.is_empty() || !s.openings.is_empty() || !s.answers.is_empty());
        let sessions = sessions.collect();
        let files = self.files.take(&there);
        self.due.lock().retain(|ino| !there(*ino));
        SlotState {
            sessions,
            files: files
                .into_iter()
                .map(|(ino, append_end)| FileState { ino: ino.get(), append_end })
                .collect(),
        }
    }

    /// Puts it in, before the slots are served.
    pub(super) fn put_state(&self, state: &SlotState) -> Result<(), No> {
        for one in &state.sessions {
            let session = self.session_of(one)?;
            for Reference { ino, count } in &one.references {
                let ino = proto::attr::ino(*ino)?;
                *session.has.lock().references.entry(ino).or_default() += count;
                self.mds.hold(ino, *count);
            }
            for OpeningState { number, ino, write } in &one.openings {
                let opening = Opening { ino: proto::attr::ino(*ino)?, write: *write };
                if session.has.lock().openings.insert(*number, opening).is_none() {
                    self.mds.hold(opening.ino, 1);
                    let file = self.files.get_or_make(opening.ino);
                    let mut state = file.state.lock();
                    state.openings += 1;
                    state.writers += u32::from(*write);
                }
            }
            for answer in &one.answers {
                session.learn(answer.number, &outcome(answer));
            }
        }
        Ok(())
    }

    /// One that has asked nothing here yet comes with what it has.
    fn session_of(&self, one: &SessionState) -> Result<Arc<Session>, No> {
        if let Some(session) = self.sessions.get(one.id()) {
            return Ok(session);
        }
        let new = Party { session: one.id(), joined: Joined::default() };
        let joined = Joined(self.joined(new, Had::default())?);
        self.sessions.mount(Party { joined, ..new }, &one.host, (one.node, one.client));
        self.sessions.get(one.id()).ok_or_else(No::session_gone)
    }

    /// Files that are being written are, from now on, in this server's epoch.
    pub(super) fn go_on_writing(&self, files: &[FileState]) {
        for FileState { ino, append_end } in files {
            let Ok(ino) = proto::attr::ino(*ino) else { continue };
            let file = self.files.get_or_make(ino);
            let mut state = file.state.lock();
            state.append_end = state.append_end.max(*append_end);
            match self.mds.begin_write(ino) {
                Ok(_) => state.begun = true,
                Err(errno) => tracing::warn!(%ino, %errno, "a file that is being written is settled later"),
            }
            if state.writers == 0 {
                self.due.lock().insert(ino);
            }
            self.files.remove_if_idle(&file, &mut state);
        }
    }
}

fn session_state(session: &Session, there: &dyn Fn(Ino) -> bool) -> SessionState {
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
    SessionState { head, host, node, references, openings, answers, client }
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
