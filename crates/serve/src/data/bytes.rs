//! Requests for bytes: read, write, cut, free, seek, make durable.

use net::Incoming;
use proto::{Bad, Nothing, Reason, data as asked};
use types::{Errno, Ino};

use super::{
    DataService,
    admission::{Admitted, Asker},
    record::refused,
    table::State,
};
use crate::answer::{Done, No, Outcome};

fn the(object: Option<&asked::Object>) -> Result<&asked::Object, No> {
    object.ok_or_else(|| Bad::Missing("object").into())
}

impl DataService {
    pub(super) fn read(&self, asked: &asked::Read, incoming: &Incoming) -> Outcome {
        let object = the(asked.object.as_ref())?;
        if let Some(replica) = self.asked_replica(object)? {
            return self.read_copy(&replica, asked, incoming);
        }
        if self.is_nothing(object)? {
            return Ok(Done::new(&asked::ReadDone { size: 0 }));
        }
        let ino = proto::attr::ino(object.ino)?;
        if incoming.peer().roles.has(wire::handshake::Roles::DS) {
            // Whoever copies it is still there.
            self.leaving.asked(ino);
        }
        self.read_here(object, asked, incoming)
    }

    pub(super) fn read_here(
        &self,
        object: &asked::Object,
        asked: &asked::Read,
        incoming: &Incoming,
    ) -> Outcome {
        let _one = self.one_of(proto::attr::ino(object.ino)?)?;
        self.shared(object, |_, object| {
            let size = object.size();
            let there = size.saturating_sub(asked.offset);
            let len = there.min(u64::from(asked.length.min(incoming.header.answer_bytes_max)));
            let mut body = incoming.buffer(len as usize);
            let read = self.read_bytes(object, asked.offset, &mut body)?;
            body.truncate(read);
            // A cut meanwhile is told as it is now: what is behind the bytes is not there.
            let size = if (read as u64) < len { object.size() } else { size };
            Ok(Done::with_body(&asked::ReadDone { size }, body))
        })
    }

    pub(super) fn write(&self, asked: &asked::Write, incoming: &mut Incoming) -> Outcome {
        let object = the(asked.object.as_ref())?;
        if incoming.body().is_empty() {
            return Ok(Done::new(&asked::Written { bytes: 0, life: self.life }));
        }
        if let Some(replica) = self.asked_replica(object)? {
            return self.write_copy(&replica, asked, incoming);
        }
        let bytes = incoming.body();
        let ino = proto::attr::ino(object.ino)?;
        let admitted = self.admit(Asker { server: asked.server, joined: asked.joined }, ino)?;
        let _one = self.one_of(ino)?;
        let begun = self.under_way.begin(incoming, ino)?;
        let written = self.writing(object, |there| {
            self.may_change(there.ino())?;
            let _within = self.may_write(there)?;
            let written = self.ds.write(there, asked.offset, bytes);
            // Also what failed may have changed a part.
            self.changed_now(there.ino(), asked.offset, asked.offset.saturating_add(bytes.len() as u64));
            written.map_err(|errno| self.or_without_room(errno))
        })?;
        drop((begun, admitted));
        if asked.sync {
            self.make_safe(object)?;
        }
        Ok(Done::new(&asked::Written { bytes: written as u32, life: self.life }))
    }

    pub(super) fn admit(&self, asker: Asker, ino: Ino) -> Result<Option<Admitted>, No> {
        let admitted = self.admission.begin(asker, ino);
        if admitted.as_ref().is_err_and(|no| Reason::of(&no.0) == Reason::WrongOwner) {
            // Whose the slot is was not heard yet, by one of us.
            self.pressed.nudge();
        }
        admitted
    }

    pub(super) fn sync(&self, asked: &asked::Sync, incoming: &Incoming) -> Outcome {
        if let Some(replica) = self.asked_replica(the(asked.object.as_ref())?)? {
            return self.sync_copy(&replica, incoming);
        }
        self.make_safe(the(asked.object.as_ref())?)?;
        Ok(self.alive())
    }

    fn alive(&self) -> Done {
        Done::new(&asked::Alive { life: self.life })
    }

    /// Where there is only memory that is another data server's to do (I-PRESS-5).
    pub(super) fn make_safe(&self, object: &asked::Object) -> Result<(), No> {
        if self.is_safe() {
            let full = |no: No| if no.errno() == Errno::ENOSPC { self.without_room() } else { no };
            return self.make_durable(object).map_err(full);
        }
        if self.is_nothing(object)? || self.is_declared_unsafe() {
            return Ok(());
        }
        // Or it was moved already.
        let bytes = self.shared(object, |_, there| Ok(there.size()))?;
        Err(self.wait_until_safe(object, bytes))
    }

    fn or_without_room(&self, errno: Errno) -> No {
        if errno == Errno::ENOSPC { self.without_room() } else { errno.into() }
    }

    /// It was never written, or it was removed.
    pub(super) fn is_nothing(&self, object: &asked::Object) -> Result<bool, No> {
        let ino = proto::attr::ino(object.ino)?;
        Ok(self.table.get(ino).is_none() && self.load(ino)?.is_none())
    }

    /// Bytes, then the size, then the journal that holds it.
    pub(super) fn make_durable(&self, object: &asked::Object) -> Result<(), No> {
        if self.is_nothing(object)? {
            return Ok(());
        }
        let ino = proto::attr::ino(object.ino)?;
        let one = self.one_of(ino)?;
        self.shared(object, |_, there| {
            let _within = self.may_sync()?;
            Ok(self.ds.sync(there)?)
        })?;
        drop(one);
        self.alone(object, |state, there| self.note_size(state, there.ino(), there.size()))?;
        self.store.sync().map_err(|error| refused(ino, &error).into())
    }

    /// The record of a live object says how long it is: a hole at its end tells nobody.
    fn note_size(&self, state: &mut State, ino: types::Ino, size: u64) -> Result<(), No> {
        let Some(record) = state.record.filter(|record| state.begun && record.size != size) else {
            return Ok(());
        };
        let Some(object) = state.object.clone().filter(|object| !self.ds.first_record_is_late(object)) else {
            return Ok(());
        };
        let record = super::Record { size: object.size(), ..record };
        self.save(ino, &record, true)?;
        state.record = Some(record);
        Ok(())
    }

    /// The metadata server has the size, and the time, already. It forgets a cut that was answered, so that is durable before.
    pub(super) fn truncate(&self, asked: &asked::Truncate, incoming: &Incoming) -> Outcome {
        let object = the(asked.object.as_ref())?;
        if asked.size > i64::MAX as u64 {
            return Err(Errno::EFBIG.into());
        }
        if let Some(replica) = self.asked_replica(object)? {
            return self.truncate_copy(&replica, asked, incoming);
        }
        let begun = self.under_way.begin(incoming, proto::attr::ino(object.ino)?)?;
        let done = self.resize(asked, object)?;
        drop(begun);
        if !asked.grow_only && !self.is_nothing(object)? {
            let ino = proto::attr::ino(object.ino)?;
            self.store.sync().map_err(|error| refused(ino, &error))?;
        }
        Ok(done)
    }

    pub(super) fn resize(&self, asked: &asked::Truncate, object: &asked::Object) -> Outcome {
        self.alone(object, |state, there| {
            self.may_change(there.ino())?;
            let known = state.record.is_some();
            if asked.grow_only && asked.size <= there.size() || !known && asked.size == 0 {
                return Ok(Done::new(&Nothing {}));
            }
            self.begin(state, there, object, false)?;
            let now = self.ds.live(there).size;
            // After a crash in between the object has its old size, or the larger one of both.
            let record = super::Record { size: asked.size, mtime: None, ..state.record.unwrap_or_default() };
            self.save(there.ino(), &record, true)?;
            state.record = Some(record);
            if asked.size != now || self.ds.end_is_lost(there) {
                let cut = self.ds.truncate(there, asked.size);
                self.changed_now(there.ino(), asked.size.min(now), u64::MAX);
                cut?;
            }
            self.ds.set_mtime(there, clock())?;
            Ok(Done::new(&Nothing {}))
        })
    }

    /// The bytes of these SAUs are lost from now on.
    pub(super) fn lose(&self, object: &asked::Object, saus: &[u32]) -> Result<(), No> {
        self.alone(object, |state, there| {
            self.may_change(there.ino())?;
            self.begin(state, there, object, false)?;
            Ok(self.ds.lose(there, saus)?)
        })
    }

    pub(super) fn allocate(&self, asked: &asked::Allocate, incoming: &Incoming) -> Outcome {
        let object = the(asked.object.as_ref())?;
        if let Some(replica) = self.asked_replica(object)? {
            return self.allocate_copy(&replica, asked, incoming);
        }
        let ino = proto::attr::ino(object.ino)?;
        let _admitted = self.admit(Asker { server: asked.server, joined: asked.joined }, ino)?;
        let _begun = self.under_way.begin(incoming, ino)?;
        self.allot(asked, object)
    }

    pub(super) fn allot(&self, asked: &asked::Allocate, object: &asked::Object) -> Outcome {
        let mode = match asked::AllocateMode::try_from(asked.mode) {
            Ok(asked::AllocateMode::Reserve) => ds::AllocateMode::Reserve,
            Ok(asked::AllocateMode::Zero) => ds::AllocateMode::Zero,
            Err(_) => return Err(Bad::Range("mode of allocation").into()),
        };
        asked.offset.checked_add(asked.length).ok_or(Errno::EFBIG)?;
        self.alone(object, |state, there| {
            self.may_change(there.ino())?;
            let mut length = asked.length;
            if mode == ds::AllocateMode::Zero {
                length = length.min(there.size().saturating_sub(asked.offset));
                if length == 0 {
                    return Ok(self.alive());
                }
                self.begin(state, there, object, false)?;
                self.note_size(state, there.ino(), there.size())?;
            }
            let allocated = self.ds.allocate(there, mode, asked.offset, length);
            if mode == ds::AllocateMode::Zero {
                self.changed_now(there.ino(), asked.offset, asked.offset.saturating_add(length));
            }
            allocated.map_err(|errno| self.or_without_room(errno))?;
            Ok(self.alive())
        })
    }

    pub(super) fn seek(&self, asked: &asked::Seek, incoming: &Incoming) -> Outcome {
        let object = the(asked.object.as_ref())?;
        match self.asked_replica(object)? {
            Some(replica) => self.seek_copy(&replica, asked, incoming),
            None => self.seek_here(asked, object),
        }
    }

    pub(super) fn seek_here(&self, asked: &asked::Seek, object: &asked::Object) -> Outcome {
        let whence = match asked::Whence::try_from(asked.whence) {
            Ok(asked::Whence::Data) => ds::Whence::Data,
            Ok(asked::Whence::Hole) => ds::Whence::Hole,
            Err(_) => return Err(Bad::Range("whence").into()),
        };
        if self.is_nothing(object)? {
            return Ok(Done::new(&asked::Sought { offset: None, size: 0 }));
        }
        self.shared(object, |_, object| {
            let size = object.size();
            let offset = match self.ds.seek(object, asked.offset, whence) {
                Ok(offset) => Some(offset),
                Err(Errno::ENXIO) => None,
                Err(errno) => return Err(errno.into()),
            };
            Ok(Done::new(&asked::Sought { offset, size }))
        })
    }

    pub(super) fn set_time(&self, asked: &asked::SetTime, incoming: &Incoming) -> Outcome {
        let object = the(asked.object.as_ref())?;
        if let Some(replica) = self.asked_replica(object)? {
            return self.set_time_copy(&replica, asked, incoming);
        }
        let time = asked.mtime.ok_or(Bad::Missing("time"))?.try_into()?;
        let _begun = self.under_way.begin(incoming, proto::attr::ino(object.ino)?)?;
        self.set_time_of(object, time)
    }

    pub(super) fn set_time_of(&self, object: &asked::Object, time: types::Timestamp) -> Outcome {
        self.alone(object, |state, there| {
            self.may_change(there.ino())?;
            let Some(record) = state.record else { return Ok(Done::new(&Nothing {})) };
            let record = super::Record { mtime: None, ..record };
            if !(state.begun && self.ds.first_record_is_late(there)) {
                self.save(there.ino(), &record, true)?;
            }
            state.record = Some(record);
            self.ds.set_mtime(there, time)?;
            Ok(Done::new(&Nothing {}))
        })
    }
}

fn clock() -> types::Timestamp {
    mds::Clock::now(&mds::SystemClock)
}
