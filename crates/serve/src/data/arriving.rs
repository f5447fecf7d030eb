//! Objects that come from another data server: attempts, and what becomes of their copies.
//!
//! A copy has a mark until the metadata server has said whether it counts; what it did not say before a restart it is asked later
//! ([`proto::moving::Copies`]). An attempt in whose way an object is that has no mark, or one of a later attempt, is refused.

use std::sync::Arc;

use bytes::Bytes;
use kv::WriteSet;
use namespace::key;
use net::Credentials;
use proto::{
    BATCH_MAX, Nothing,
    data::Object,
    moving::{CopyList, Judge, Judged, Pull},
};
use types::{Errno, Ino};

use super::{
    DataService, Record,
    attempt::{Attempt, GIVEN_UP_AFTER},
    mark::{Kind, Mark},
    record::refused,
    service::USE,
    source::Source,
};
use crate::answer::{Done, No, Outcome};

/// Objects that are copied at once: with four pieces of 1 MiB each under way that bounds the memory.
const ATTEMPTS_MAX: usize = 16;

impl DataService {
    /// With which it asks other data servers. Without them it takes nothing from any.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.replicas.set_credentials(credentials.clone());
        // Once is enough: they are the process's.
        let _ = self.arriving.credentials.set(credentials);
    }

    /// How many copies wait for a word of the metadata server, and nobody is at work on.
    pub(super) fn copies_unjudged(&self) -> u64 {
        self.unjudged().len() as u64
    }

    /// Of which it is not said yet whether it counts.
    pub(super) fn is_copy(&self, ino: Ino) -> bool {
        self.arriving.marks.lock().get(&ino).is_some()
    }

    fn unjudged(&self) -> Vec<(Ino, Mark)> {
        let attempts = self.arriving.attempts.lock();
        let marks = self.arriving.marks.lock();
        let idle = |ino: &Ino| attempts.get(ino).is_none_or(|attempt| attempt.is_given_up());
        marks.iter().filter(|(ino, _)| idle(ino)).map(|(ino, mark)| (*ino, *mark)).collect()
    }

    pub(super) fn copies(&self, after: u64) -> Done {
        let judged = |(ino, mark): (Ino, Mark)| Judged {
            object: Some(Object { ino: ino.get(), generation: mark.generation, view: None }),
            attempt: mark.attempt,
            counts: false,
        };
        // In order.
        let later = self.unjudged().into_iter().filter(|(ino, _)| ino.get() > after);
        let copies = later.take(BATCH_MAX / 2).map(judged).collect();
        Done::new(&CopyList { copies })
    }

    pub(super) fn pull(self: &DataService, asked: &Pull) -> Outcome {
        let (from, to) = (asked.from.unwrap_or_default(), asked.to.unwrap_or_default());
        let ino = proto::attr::ino(to.ino)?;
        let there = self.arriving.attempts.lock().get(&ino).cloned();
        if let Some(attempt) = there.filter(|attempt| attempt.number == asked.attempt) {
            if asked.freeze_ms > 0 {
                self.complete(&attempt, asked.freeze_ms);
            }
            return attempt.says();
        }
        if asked.freeze_ms > 0 {
            return Err(over("there is no such attempt"));
        }
        // Or it would soon have to send it on.
        if asked.room > 0 && !self.is_welcome(asked.room) {
            return Err(No::new(
                Errno::ENOSPC,
                wire::schema::Retry::Never,
                proto::Reason::None,
                "it has no room for it now",
            ));
        }
        let source = Source::new(asked, self.arriving.credentials.get().ok_or(Errno::ENOSYS)?)?;
        self.make_way(ino, to.generation, asked.attempt)?;
        let attempt = Arc::new(Attempt::begin(asked, (from, to), source));
        self.begin_copying(ino, &attempt)?;
        attempt.says()
    }

    fn begin_copying(&self, ino: Ino, attempt: &Arc<Attempt>) -> Result<(), No> {
        let service = self.me.upgrade().ok_or(Errno::EIO)?;
        let mut attempts = self.arriving.attempts.lock();
        attempts.retain(|_, one| !one.is_given_up());
        if attempts.len() >= ATTEMPTS_MAX || self.has_ended() {
            return Err(No::later("as many objects as it takes at once are being copied"));
        }
        attempts.insert(ino, attempt.clone());
        drop(attempts);
        let copier = attempt.clone();
        let thread = std::thread::Builder::new().name("data-copy".into());
        let thread = thread.spawn(move || service.copy(&copier)).map_err(|_| Errno::EAGAIN)?;
        let mut threads = self.arriving.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// What an earlier attempt left goes; an object that counts, or may, does not.
    fn make_way(&self, ino: Ino, generation: u32, attempt: u64) -> Result<(), No> {
        self.end_attempt(ino, Some(attempt))?;
        loop {
            let held = self.place(ino)?;
            let mut state = held.state.write();
            if state.gone {
                continue;
            }
            let mark = self.arriving.marks.lock().get(&ino).copied();
            let record = self.load(ino)?;
            let before = mark.map(|mark| mark.attempt).or(record.and_then(|record| record.gone));
            match (before, record) {
                (Some(before), _) if before >= attempt => return Err(over("a later attempt was here")),
                (None, Some(_)) => return Err(over("the object is in use here")),
                (Some(_), _) | (None, None) => (),
            }
            if let Some(object) = state.object.take() {
                self.ds.close(&object, USE);
            }
            let made = self.begin_anew(ino, Mark { kind: Kind::Came, generation, attempt });
            // Whoever came meanwhile waits for this lock, and then finds what is stored now.
            state.gone = true;
            self.table.remove(ino);
            return made;
        }
    }

    /// In place of whatever was stored: nothing, and a mark.
    fn begin_anew(&self, ino: Ino, mark: Mark) -> Result<(), No> {
        self.remove_bytes(ino)?;
        let record = Record { generation: mark.generation, ..Record::default() };
        let mut writes = WriteSet::new();
        writes.delete(&key::object(ino));
        writes.put(&key::held(ino), Bytes::from(record.encode()));
        writes.put(&key::moving(ino), mark.encode());
        self.store.commit(writes).map_err(|error| refused(ino, &error))?;
        self.ds.forget_removed(&[ino]);
        self.arriving.marks.lock().insert(ino, mark);
        Ok(())
    }

    /// Whoever copies an object stops. `before`: only if that is an earlier attempt than this.
    fn end_attempt(&self, ino: Ino, before: Option<u64>) -> Result<(), No> {
        let Some(there) = self.arriving.attempts.lock().get(&ino).cloned() else { return Ok(()) };
        if before.is_some_and(|number| there.number >= number) {
            return Err(over("a later attempt is under way"));
        }
        there.give_up();
        let _copying =
            there.copying.try_lock_for(GIVEN_UP_AFTER).ok_or_else(|| No::later("it is being copied"))?;
        let mut attempts = self.arriving.attempts.lock();
        if attempts.get(&ino).is_some_and(|one| Arc::ptr_eq(one, &there)) {
            attempts.remove(&ino);
        }
        Ok(())
    }

    /// All stop, and their threads end.
    pub(super) fn end_copying(&self) {
        self.arriving.attempts.lock().values().for_each(|attempt| attempt.give_up());
        let threads = std::mem::take(&mut *self.arriving.threads.lock());
        for thread in threads {
            // The last one that has the service may be a copier.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread that copies ended with a panic");
            }
        }
    }

    /// The metadata server says which copies count.
    pub(super) fn judge(&self, asked: &Judge) -> Outcome {
        for one in &asked.copies {
            let object = one.object.unwrap_or_default();
            let ino = proto::attr::ino(object.ino)?;
            let marked = self.arriving.marks.lock().get(&ino).copied();
            let Some(mark) = marked.filter(|mark| mark.attempt == one.attempt) else { continue };
            if one.counts { self.keep(ino)? } else { self.drop_copy(ino, mark)? }
        }
        Ok(Done::new(&Nothing {}))
    }

    fn keep(&self, ino: Ino) -> Result<(), No> {
        self.end_attempt(ino, None)?;
        let mut writes = WriteSet::new();
        writes.use_reserve();
        self.unmark(ino, &mut writes);
        self.store.commit(writes).map(drop).map_err(|error| refused(ino, &error).into())
    }

    /// What remains says that it is elsewhere: nothing that is late makes it again.
    fn drop_copy(&self, ino: Ino, mark: Mark) -> Result<(), No> {
        self.end_attempt(ino, None)?;
        loop {
            let held = self.place(ino)?;
            let mut state = held.state.write();
            if state.gone {
                continue;
            }
            if self.arriving.marks.lock().get(&ino) != Some(&mark) {
                return Ok(());
            }
            if let Some(object) = state.object.take() {
                self.ds.close(&object, USE);
            }
            let left = self.leave_for_good(ino, mark.generation, mark.attempt);
            state.gone = true;
            self.table.remove(ino);
            return left;
        }
    }
}

fn over(why: &str) -> No {
    No::new(Errno::ESTALE, wire::schema::Retry::Never, proto::Reason::None, why)
}
