//! Locks as messages have them.

use proto::{
    Bad, SessionId,
    locks::{HeldLock, LockClass, LockKind},
};

use super::{
    locks::{Class, HadLock, LockRequest, Owner},
    ranges::{Kind, Range},
};

impl From<LockClass> for Class {
    fn from(class: LockClass) -> Class {
        match class {
            LockClass::Process => Class::Process,
            LockClass::Description => Class::Description,
            LockClass::Flock => Class::Flock,
        }
    }
}

impl From<Class> for LockClass {
    fn from(class: Class) -> LockClass {
        match class {
            Class::Process => LockClass::Process,
            Class::Description => LockClass::Description,
            Class::Flock => LockClass::Flock,
        }
    }
}

impl From<LockKind> for Kind {
    fn from(kind: LockKind) -> Kind {
        match kind {
            LockKind::Read => Kind::Read,
            LockKind::Write => Kind::Write,
        }
    }
}

impl From<Kind> for LockKind {
    fn from(kind: Kind) -> LockKind {
        match kind {
            Kind::Read => LockKind::Read,
            Kind::Write => LockKind::Write,
        }
    }
}

impl HadLock {
    /// What `session` says.
    pub fn said(session: SessionId, lock: &HeldLock) -> Result<HadLock, Bad> {
        lock.check()?;
        let class: Class = lock.class().into();
        Ok(HadLock {
            ino: proto::attr::ino(lock.ino)?,
            owner: Owner { session, class, id: lock.owner },
            range: Range::new(lock.start, lock.end).ok_or(Bad::Range("lock's range"))?,
            kind: lock.kind().into(),
            pid: lock.pid,
        })
    }

    /// The session is the sender's.
    pub fn to_say(&self) -> HeldLock {
        HeldLock {
            ino: self.ino.get(),
            class: LockClass::from(self.owner.class).into(),
            owner: self.owner.id,
            start: self.range.start(),
            end: self.range.end(),
            kind: LockKind::from(self.kind).into(),
            pid: self.pid,
        }
    }

    pub fn request(self, wait: bool) -> LockRequest {
        let HadLock { ino, owner, range, kind, pid } = self;
        LockRequest { ino, owner, range, kind, pid, wait }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let session = SessionId(5);
        for class in [Class::Process, Class::Description, Class::Flock] {
            for kind in [Kind::Read, Kind::Write] {
                let owner = Owner { session, class, id: u64::MAX };
                let range = Range::new(3, Range::END).unwrap();
                let lock = HadLock { ino: types::Ino::ROOT, owner, range, kind, pid: 9 };
                assert_eq!(HadLock::said(session, &lock.to_say()), Ok(lock));
            }
        }
        let backwards = HeldLock { ino: 1, start: 2, end: 1, ..HeldLock::default() };
        assert!(HadLock::said(session, &backwards).is_err());
    }
}
