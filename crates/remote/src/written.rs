//! What a guarded mount of a cluster writes down for the process that goes on with it, beside its references and openings: words of its own in
//! the memory that the guardian keeps ([`handover`]), and what is noted of a request.

use std::cell::Cell;

use handover::{Estate, Scope};
use proto::{Method, SessionId};

/// The session; its serial number counts, and is written last.
const ID: [usize; 2] = [0, 1];
const SERIAL: usize = 2;
/// Of its operations.
const LAST_NUMBER: usize = 3;
/// As which the mount is known on its connections.
const NODE: usize = 4;
/// 1: not all files are opened in the session yet.
const FRESH: usize = 6;
/// As which it asks data servers ([`net::Instance`]).
const INSTANCE: usize = 5;

/// In the word that says how a file was opened.
const READ: u64 = 1;
const WRITE: u64 = 2;
const NO_ATIME: u64 = 4;
/// A lock that was taken through it is lost.
const UNLOCKED: u64 = 8;
/// The next fsync or close says that what was answered is lost.
const LATE: u64 = 16;
/// In place of the request that made an opening: the kernel has closed it.
pub(crate) const CLOSED: u64 = 1 << 63;

thread_local! {
    /// The number that was noted of the request of this thread was used again.
    static USED: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn session(estate: &Estate) -> Option<(SessionId, u64)> {
    let serial = Some(estate.own(SERIAL)).filter(|serial| *serial != 0)?;
    let id = u128::from(estate.own(ID[1])) << 64 | u128::from(estate.own(ID[0]));
    Some((SessionId(id), serial))
}

/// `fresh`: not all files are opened in it yet.
pub(crate) fn set_session(estate: &Estate, (id, serial): (SessionId, u64), fresh: bool) {
    estate.set_own(SERIAL, 0);
    estate.set_own(FRESH, fresh.into());
    estate.set_own(ID[0], id.0 as u64);
    estate.set_own(ID[1], (id.0 >> 64) as u64);
    estate.set_own(SERIAL, serial);
}

pub(crate) fn is_fresh(estate: &Estate) -> bool {
    estate.own(FRESH) != 0
}

pub(crate) fn set_opened(estate: &Estate) {
    estate.set_own(FRESH, 0);
}

pub(crate) fn last_number(estate: &Estate) -> u64 {
    estate.own(LAST_NUMBER)
}

pub(crate) fn set_last_number(estate: &Estate, number: u64) {
    estate.set_own(LAST_NUMBER, number);
}

/// The word, made by whoever comes first.
fn once(estate: &Estate, word: usize, make: impl FnOnce() -> u64) -> u64 {
    match estate.own(word) {
        0 => {
            let made = make();
            estate.set_own(word, made);
            made
        }
        there => there,
    }
}

/// The number of the client, which all processes of a mount share.
pub fn node(estate: &Estate, own: u64) -> u64 {
    once(estate, NODE, || own)
}

pub(crate) fn instance(estate: &Estate) -> net::Instance {
    net::Instance::again(once(estate, INSTANCE, || net::Instance::random().number()))
}

/// What an opening lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Standing {
    /// Bytes, and it was not told.
    pub late: bool,
    /// A lock.
    pub unlocked: bool,
}

/// How a file was opened, and what became of that.
pub(crate) fn opening(access: crate::Access, standing: Standing) -> u64 {
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    let opened = bit(access.read, READ) | bit(access.write, WRITE) | bit(access.no_atime, NO_ATIME);
    opened | bit(standing.unlocked, UNLOCKED) | bit(standing.late, LATE)
}

pub(crate) fn standing(opening: u64) -> Standing {
    Standing { late: opening & LATE != 0, unlocked: opening & UNLOCKED != 0 }
}

pub(crate) fn access(opening: u64) -> crate::Access {
    let has = |bit: u64| opening & bit != 0;
    crate::Access { read: has(READ), write: has(WRITE), no_atime: has(NO_ATIME), exclusive: false }
}

/// The last operation of a request, which is asked for again under its number if the request comes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub number: u64,
    /// Of the session, the last eight bits.
    pub serial: u8,
    pub method: Method,
}

impl Note {
    fn word(self) -> u64 {
        self.number << 24 | u64::from(self.serial) << 16 | u64::from(self.method.number())
    }

    /// Before it is asked.
    pub(crate) fn leave(self) {
        Scope::set_note(self.word());
    }

    /// Of the request of this thread, if it comes again and was asked the same.
    pub(crate) fn take(method: Method) -> Option<Note> {
        let word = Scope::note();
        let is_it = Scope::comes_again() && word & 0xffff == u64::from(method.number());
        let (number, serial) = Note::read(word)?;
        (is_it && !USED.replace(true)).then_some(Note { number, serial, method })
    }

    /// The number and the session's.
    pub(crate) fn read(word: u64) -> Option<(u64, u8)> {
        Some((word >> 24, (word >> 16) as u8)).filter(|(number, _)| *number != 0)
    }
}

/// A request is begun.
pub(crate) fn begin_request() {
    USED.set(false);
}

#[cfg(test)]
mod tests {
    //! Goal: what is written down is read as it was. Method: an estate that another one opens.
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_written_down_is_there_for_the_next_one() {
        let memory = Estate::create().unwrap();
        let estate = Estate::open(memory.as_fd()).unwrap();
        assert_eq!((session(&estate), last_number(&estate)), (None, 0));
        let id = SessionId(7 << 100 | 5);
        set_session(&estate, (id, 3), true);
        assert!(is_fresh(&estate));
        set_opened(&estate);

        set_last_number(&estate, 99);
        let (node_is, instance_is) = (node(&estate, 12), instance(&estate));
        let next = Estate::open(memory.as_fd()).unwrap();
        assert_eq!((session(&next), last_number(&next), is_fresh(&next)), (Some((id, 3)), 99, false));
        assert_eq!((node(&next, 13), instance(&next)), (node_is, instance_is));
        (0..32).for_each(|word| assert_eq!(opening(access(word), standing(word)), word));
    }

    #[test]
    fn a_request_that_comes_again_is_asked_under_its_number_once() {
        const AGAIN: u64 = 1 << 63;
        let memory = Estate::create().unwrap();
        let first = Estate::open(memory.as_fd()).unwrap();
        let scope = first.calls.enter(8, &mut |_| ());
        begin_request();
        let note = Note { number: 70, serial: 3, method: Method::Unlink };
        note.leave();
        // The process ends here.
        std::mem::forget(scope);
        let next = Estate::open(memory.as_fd()).unwrap();
        assert_eq!(next.calls.left_notes(), [(8, note.word())]);
        let taken = std::thread::spawn(move || {
            let _scope = next.calls.enter(8 | AGAIN, &mut |_| ());
            begin_request();
            [Method::Create, Method::Unlink, Method::Unlink].map(Note::take)
        });
        assert_eq!(taken.join().unwrap(), [None, Some(note), None]);
        let fresh = Estate::open(memory.as_fd()).unwrap();
        let _scope = fresh.calls.enter(10, &mut |_| ());
        begin_request();
        assert_eq!(Note::take(Method::Unlink), None);
    }
}
