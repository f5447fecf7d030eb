//! Goal: what one process wrote down is what the next one finds, whatever was under way, and bytes that make no sense harm nobody.
//! Method: the same memory opened again and again, as processes do one after the other; golden words; [`fuzzing`].

#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
    sync::Arc,
};

use fuzzing::{as_it_is, fuzz};
use handover::{Estate, EstateError, SESSION_BYTES_MAX, Scope};

const AGAIN: u64 = 1 << 63;

fn new() -> File {
    File::from(Estate::create().unwrap())
}

fn open(memory: &File) -> Arc<Estate> {
    Estate::open(memory.as_fd()).unwrap()
}

fn word(memory: &File, index: u64) -> u64 {
    let mut bytes = [0; 8];
    memory.read_exact_at(&mut bytes, index * 8).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn golden_words() {
    let memory = new();
    let estate = open(&memory);
    estate.set_epoch(7);
    estate.note_uses(5);
    estate.set_session(b"0123456789");
    estate.references.add([2, 3]).unwrap();
    estate.handles.add([0x10, 2, 3, 9]).unwrap();
    estate.backings.add([2, 1, 0x100, 0]).unwrap();
    let head: Vec<u64> = (0..11).map(|n| word(&memory, n)).collect();
    let magic = u64::from_le_bytes(*b"ONFSHAND");
    let text = [u64::from_le_bytes(*b"01234567"), u64::from_le_bytes(*b"89\0\0\0\0\0\0")];
    assert_eq!(head, [magic, 1, 0, 1 << 16, 7, 1, 1, 1, 10, text[0], text[1]]);
    let (references, handles) = (512, 512 + (2 << 24));
    let (backings, seats) = (handles + (4 << 20), handles + (4 << 20) + (4 << 16));
    let at = |from: u64, n: u64| (0..n).map(|n| word(&memory, from + n)).collect::<Vec<_>>();
    assert_eq!(at(references, 2), [2, 3]);
    assert_eq!(at(handles, 4), [0x10, 2, 3, 9]);
    assert_eq!(at(backings, 4), [2, 1, 0x100, 0]);
    let scope = estate.calls.enter(77, &mut |_| {});
    estate.held(2);
    Scope::set_note(8);
    assert_eq!(at(seats, 4), [77, 8, 1, 2]);
    drop(scope);
    assert_eq!(at(seats, 1), [0]);
    estate.answers.add([2, 1, 5, 1, 77]).unwrap();
    let answers = seats + 1024 * 8192;
    assert_eq!((at(answers, 5), word(&memory, 511)), (vec![2, 1, 5, 1, 77], 1));
    assert_eq!(memory.metadata().unwrap().len(), (answers + (5 << 20)) * 8);
}

#[test]
fn the_memory_of_a_guardian_without_answers_is_read() {
    let memory = tempfile();
    let mut page = [0; 4096];
    new().read_exact_at(&mut page, 0).unwrap();
    memory.write_all_at(&page, 0).unwrap();
    memory.set_len(new().metadata().unwrap().len() - (5 << 20) * 8).unwrap();
    let estate = open(&memory);
    assert!(estate.handles.add([0x10, 2, 3, 9]).is_some());
    assert_eq!((estate.answers.add([2, 1, 5, 1, 77]), estate.answers.records()), (None, vec![]));
}

#[test]
fn records_and_places_outlive_a_process() {
    let memory = new();
    let first = open(&memory);
    let places: Vec<_> = (1..=9).map(|n| first.references.add([n, n]).unwrap()).collect();
    first.references.remove(places[3]);
    first.references.set(places[4], 1, 50);
    assert_eq!(first.references.add([0, 1]), None);
    let next = open(&memory);
    let records: Vec<[u64; 2]> = next.references.records().into_iter().map(|(_, record)| record).collect();
    assert_eq!(records, [[1, 1], [2, 2], [3, 3], [5, 50], [6, 6], [7, 7], [8, 8], [9, 9]]);
    assert_eq!(next.references.add([4, 4]), Some(places[3]));
    assert_eq!((next.uses(), next.is_incomplete(), next.session()), (0, false, None));
    next.set_session(&[7; SESSION_BYTES_MAX]);
    next.note_uses(1 << 16);
    next.set_incomplete();
    let last = open(&memory);
    assert_eq!((last.uses(), last.is_incomplete()), (2 << 16, true));
    assert_eq!(last.session(), Some(vec![7; SESSION_BYTES_MAX]));
}

/// A process ends in the middle of a request, the next one in the middle of the same, which came again; the third answers it.
#[test]
fn what_was_not_answered_is_known_until_it_is() {
    let memory = new();
    let first = open(&memory);
    std::mem::forget(first.calls.enter(5, &mut |_| unreachable!()));
    Scope::set_note(99);
    [20, 21, 20].into_iter().for_each(|ino| first.held(ino));
    let second = open(&memory);
    assert_eq!(second.calls.left(), 1);
    let other = std::thread::spawn({
        let second = second.clone();
        move || {
            let mut given_back = Vec::new();
            let scope = second.calls.enter(5 | AGAIN, &mut |ino| given_back.push(ino));
            assert_eq!((Scope::comes_again(), Scope::note(), scope.unique()), (true, 99, 5));
            second.held(30);
            // It goes to another thread, and is not answered there.
            Scope::put_off();
            drop(scope);
            given_back
        }
    });
    assert_eq!(other.join().unwrap(), [20, 21, 20]);
    let third = open(&memory);
    let mut given_back = Vec::new();
    let scope = third.calls.enter(5 | AGAIN, &mut |ino| given_back.push(ino));
    assert_eq!((given_back.as_slice(), Scope::note(), Scope::unique_now()), ([].as_slice(), 99, 5));
    drop(scope);
    assert_eq!((third.calls.left(), Scope::comes_again(), Scope::note()), (0, false, 0));
    assert_eq!(open(&memory).calls.left(), 0);
}

#[test]
fn what_is_no_estate_is_refused() {
    let memory = new();
    memory.write_all_at(&9_u64.to_le_bytes(), 8).unwrap();
    assert!(matches!(Estate::open(memory.as_fd()), Err(EstateError::OtherVersion(9))));
    memory.write_all_at(&[0], 0).unwrap();
    assert!(matches!(Estate::open(memory.as_fd()), Err(EstateError::Foreign)));
    let short = tempfile();
    assert!(matches!(Estate::open(short.as_fd()), Err(EstateError::Foreign)));
}

fn tempfile() -> File {
    File::from(rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap())
}

#[test]
fn fuzz_estate() {
    let memory = new();
    let estate = open(&memory);
    estate.set_session(b"session");
    estate.references.add([2, 3]).unwrap();
    let mut good = vec![0; 4096 + 64];
    memory.read_exact_at(&mut good, 0).unwrap();
    drop(estate);
    fuzz("estate", &[good], as_it_is, |bytes| {
        let len = bytes.len().min(4096 + 64);
        memory.write_all_at(&bytes[..len], 0).unwrap();
        // A count that is larger than the table would have it all looked at, which takes a while and is no error.
        let used = word(&memory, 5).min(64);
        memory.write_all_at(&used.to_le_bytes(), 40).unwrap();
        for at in [6_u64, 7, 511] {
            memory.write_all_at(&word(&memory, at).min(64).to_le_bytes(), at * 8).unwrap();
        }
        let Ok(estate) = Estate::open(memory.as_fd()) else { return };
        let all = estate.references.records();
        assert!(all.iter().all(|(_, record)| record[0] != 0));
        let _ = (estate.session(), estate.uses(), estate.is_incomplete(), estate.epoch());
        if let Some(place) = estate.handles.add([1, 2, 3, 4]) {
            estate.handles.remove(place);
        }
    });
}
