//! What the kernel says of locks: its requests in our terms, and our answers in its.
//!
//! It does not say whether a lock of fcntl(2) is a process's or an open file description's, only a number for whoever it is: both are taken
//! for processes, which differ in nothing but who is told `EDEADLK`.

use fuse::{Call, Lock, LockArgs};
use handover::Scope;
use lease::coherence::{
    locks::Class,
    ranges::{Kind, Range},
};
use types::{Errno, Ino};

use crate::{Remote, held::Holder, waiting::LockWish};

/// As in fcntl(2).
const F_RDLCK: u32 = 0;
const F_WRLCK: u32 = 1;
const F_UNLCK: u32 = 2;

pub(crate) fn process(id: u64) -> Holder {
    Holder { class: Class::Process, id }
}

fn holder(args: &LockArgs) -> Holder {
    let class = if args.flock { Class::Flock } else { Class::Process };
    Holder { class, id: args.owner }
}

fn range(args: &LockArgs) -> Result<Range, Errno> {
    Range::new(args.lock.start, args.lock.end).ok_or(Errno::EINVAL)
}

/// `EINVAL` of what is no lock.
pub(crate) fn wish(ino: Ino, args: &LockArgs, wait: bool) -> Result<LockWish, Errno> {
    let kind = match args.lock.kind {
        F_RDLCK => Kind::Read,
        F_WRLCK => Kind::Write,
        _ => return Err(Errno::EINVAL),
    };
    let range = if args.flock { Range::ALL } else { range(args)? };
    Ok(LockWish { ino, handle: args.fh, holder: holder(args), range, kind, pid: args.lock.pid, wait })
}

/// The answer to F_GETLK.
pub(crate) fn in_the_way(args: &LockArgs, found: Option<(Range, Kind, u32)>) -> Lock {
    match found {
        Some((range, kind, pid)) => {
            let kind = match kind {
                Kind::Read => F_RDLCK,
                Kind::Write => F_WRLCK,
            };
            Lock { start: range.start(), end: range.end(), kind, pid }
        }
        None => Lock { kind: F_UNLCK, ..args.lock },
    }
}

impl Remote {
    pub(crate) fn may_have_locks(&self, node: u64, lock_owner: u64) -> bool {
        Ino::from_raw(node).is_some_and(|ino| self.locks.lock().held.is_user(ino, process(lock_owner)))
    }

    /// Returns at once: the answer comes from another thread, be it after hours.
    pub(crate) fn serve_lock(&self, call: Call, args: LockArgs, wait: bool) {
        let Some(ino) = Ino::from_raw(call.header().node) else { return call.reply_error(Errno::ESTALE) };
        let (unique, call) = (Scope::number_of(call.header().unique), call.park());
        let reply = move |result| match result {
            Ok(()) => call.reply_ok(),
            Err(errno) => call.reply_error(errno),
        };
        if args.lock.kind == F_UNLCK {
            let Some(remote) = self.this.upgrade() else { return reply(Err(Errno::EIO)) };
            return self.pool.defer(move || {
                let range = if args.flock { Ok(Range::ALL) } else { range(&args) };
                reply(range.and_then(|range| remote.unlock(ino, holder(&args), range)));
            });
        }
        match self.file(args.fh).and_then(|_| wish(ino, &args, wait)) {
            Ok(wish) => self.lock(unique, wish, reply),
            Err(errno) => reply(Err(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: locks mean what fcntl(2) says. Method: a request of each kind, and ranges that are none.
    #[test]
    fn requests_are_read_and_answered() {
        let lock = Lock { start: 3, end: Range::END, kind: F_WRLCK, pid: 8 };
        let args = LockArgs { fh: 1, owner: 5, lock, flock: false };
        let wished = wish(Ino::ROOT, &args, true).unwrap();
        assert_eq!((wished.holder, wished.kind, wished.range.start()), (process(5), Kind::Write, 3));
        let whole = wish(Ino::ROOT, &LockArgs { flock: true, ..args }, true).unwrap();
        assert_eq!((whole.holder.class, whole.range), (Class::Flock, Range::ALL));
        for bad in [Lock { kind: F_UNLCK, ..lock }, Lock { end: 2, ..lock }, Lock { end: u64::MAX, ..lock }] {
            assert_eq!(wish(Ino::ROOT, &LockArgs { lock: bad, ..args }, false), Err(Errno::EINVAL));
        }
        let found = Some((Range::new(4, 9).unwrap(), Kind::Read, 6));
        assert_eq!(in_the_way(&args, found), Lock { start: 4, end: 9, kind: F_RDLCK, pid: 6 });
        assert_eq!(in_the_way(&args, None).kind, F_UNLCK);
    }
}
