//! The requests that are being carried out, each with what the next process must know if this one does not answer it: the inodes to
//! which its answer would have given the kernel a reference, and one word of what was so before (a note).
//!
//! A thread has a seat for the requests that it carries out, one after the other. The seats of requests that an earlier process
//! did not answer stay as they are until the kernel has sent the request again and it is answered.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    marker::PhantomData,
    sync::Arc,
};

use parking_lot::Mutex;

use crate::mapping::Mapping;

pub(crate) const SEATS: u32 = 1024;
pub(crate) const SEAT_WORDS: usize = 8192;
const UNIQUE: usize = 0;
const NOTE: usize = 1;
const COUNT: usize = 2;
const HELD: usize = 3;
const HELD_MAX: usize = SEAT_WORDS - HELD;
/// The kernel sets it in the number of a request that it sends again.
const AGAIN: u64 = 1 << 63;

thread_local! {
    static SEAT: RefCell<Option<Seat>> = const { RefCell::new(None) };
    /// The seat of the request that this thread carries out now.
    static NOW: Cell<Option<u32>> = const { Cell::new(None) };
    static AGAIN_NOW: Cell<bool> = const { Cell::new(false) };
    static PUT_OFF: Cell<bool> = const { Cell::new(false) };
}

pub struct Calls {
    memory: Arc<Mapping>,
    at: usize,
    free: Mutex<Vec<u32>>,
    /// Seats of requests that an earlier process did not answer, or of which it did not live to say so.
    left: Mutex<HashMap<u64, Vec<u32>>>,
}

/// A thread's own.
struct Seat {
    calls: Arc<Calls>,
    number: u32,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.calls.clear(self.number);
    }
}

/// While it lives, this thread carries out a request.
pub struct Scope {
    calls: Arc<Calls>,
    unique: u64,
    again: bool,
    _of_this_thread: PhantomData<*const ()>,
}

impl Calls {
    pub(crate) fn open(memory: &Arc<Mapping>, at: usize) -> Calls {
        let calls = Calls { memory: Arc::clone(memory), at, free: Mutex::default(), left: Mutex::default() };
        {
            let (mut free, mut left) = (calls.free.lock(), calls.left.lock());
            for seat in (0..SEATS).rev() {
                match calls.memory.load(calls.word(seat, UNIQUE)) {
                    0 => free.push(seat),
                    unique => left.entry(unique & !AGAIN).or_default().push(seat),
                }
            }
        }
        calls
    }

    /// This thread carries out a request from now on. What an earlier process noted of the same one is known to it, and each
    /// inode to which that one gave a reference that the kernel never got is given to `release`, once.
    pub fn enter(self: &Arc<Calls>, unique: u64, release: &mut dyn FnMut(u64)) -> Scope {
        let (again, unique) = (unique & AGAIN != 0, unique & !AGAIN);
        let note = if again { self.take_left(unique, release) } else { 0 };
        if let Some(seat) = self.seat() {
            self.memory.store(self.word(seat, COUNT), 0);
            self.memory.store(self.word(seat, NOTE), note);
            self.memory.store(self.word(seat, UNIQUE), unique);
            NOW.set(Some(seat));
        }
        PUT_OFF.set(false);
        AGAIN_NOW.set(again);
        Scope { calls: Arc::clone(self), unique, again, _of_this_thread: PhantomData }
    }

    /// After a reference was counted: the answer of the request that this thread carries out gives it to the kernel.
    pub(crate) fn held(&self, ino: u64) {
        let Some(seat) = NOW.get() else { return };
        let count = self.memory.load(self.word(seat, COUNT)) as usize;
        if count < HELD_MAX {
            self.memory.store(self.word(seat, HELD + count), ino);
            self.memory.store(self.word(seat, COUNT), count as u64 + 1);
        }
    }

    fn seat(self: &Arc<Calls>) -> Option<u32> {
        SEAT.with_borrow_mut(|seat| {
            if let Some(seat) = seat.as_ref().filter(|seat| Arc::ptr_eq(&seat.calls, self)) {
                return Some(seat.number);
            }
            let number = self.free.lock().pop()?;
            *seat = Some(Seat { calls: Arc::clone(self), number });
            Some(number)
        })
    }

    /// What was noted of a request that comes again.
    fn take_left(&self, unique: u64, release: &mut dyn FnMut(u64)) -> u64 {
        let seats = self.left.lock().get(&unique).cloned().unwrap_or_default();
        let mut note = 0;
        for seat in seats {
            note = if note == 0 { self.memory.load(self.word(seat, NOTE)) } else { note };
            let mut count = (self.memory.load(self.word(seat, COUNT)) as usize).min(HELD_MAX);
            while count > 0 {
                count -= 1;
                // Off the list before it is given back: a kill in between leaves one too many, not one too few.
                let ino = self.memory.load(self.word(seat, HELD + count));
                self.memory.store(self.word(seat, COUNT), count as u64);
                release(ino);
            }
        }
        note
    }

    fn answered(&self, unique: u64) {
        let seats = self.left.lock().remove(&unique).unwrap_or_default();
        seats.into_iter().for_each(|seat| self.clear(seat));
    }

    fn clear(&self, seat: u32) {
        self.memory.store(self.word(seat, UNIQUE), 0);
        self.free.lock().push(seat);
    }

    /// The numbers and the notes of those.
    pub fn left_notes(&self) -> Vec<(u64, u64)> {
        let left = self.left.lock();
        let noted = |seats: &Vec<u32>| {
            seats.iter().map(|seat| self.memory.load(self.word(*seat, NOTE))).find(|note| *note != 0)
        };
        left.iter().map(|(unique, seats)| (*unique, noted(seats).unwrap_or(0))).collect()
    }

    /// Requests of which an earlier process did not say that it answered them.
    pub fn left(&self) -> usize {
        self.left.lock().len()
    }

    fn word(&self, seat: u32, field: usize) -> usize {
        self.at + seat as usize * SEAT_WORDS + field
    }
}

impl Scope {
    /// The number of the request, the same each time that it comes.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Of the request of this thread; 0: there is none.
    pub fn unique_now() -> u64 {
        with_seat(|calls, seat| calls.memory.load(calls.word(seat, UNIQUE))).unwrap_or(0)
    }

    /// The number of a request as it came, without what says that it comes again.
    pub fn number_of(unique: u64) -> u64 {
        unique & !AGAIN
    }

    /// Does a request with such a number come again?
    pub fn is_again(unique: u64) -> bool {
        unique & AGAIN != 0
    }

    /// Has the kernel sent the request of this thread again, after a process that had it did not answer?
    pub fn comes_again() -> bool {
        AGAIN_NOW.get()
    }

    /// What was noted of the request of this thread, by this or an earlier process; 0: nothing.
    pub fn note() -> u64 {
        with_seat(|calls, seat| calls.memory.load(calls.word(seat, NOTE))).unwrap_or(0)
    }

    /// To be called before anything is changed.
    pub fn set_note(note: u64) {
        with_seat(|calls, seat| calls.memory.store(calls.word(seat, NOTE), note));
    }

    /// The request of this thread is carried out later, on another one.
    pub fn put_off() {
        PUT_OFF.set(true);
    }
}

fn with_seat<T>(act: impl FnOnce(&Calls, u32) -> T) -> Option<T> {
    let now = NOW.get()?;
    SEAT.with_borrow(|seat| seat.as_ref().map(|seat| act(&seat.calls, now)))
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(seat) = NOW.take() {
            self.calls.memory.store(self.calls.word(seat, UNIQUE), 0);
        }
        AGAIN_NOW.set(false);
        if self.again && !PUT_OFF.get() {
            self.calls.answered(self.unique);
        }
    }
}
