//! Goal: over sockets, whatever is asked and however often the server is killed, an object has the bytes that were written, its size, and
//! its time; an object that was removed has nothing. Method: random requests on a few objects against a vector each, with kills
//! between; single cases for what the model does not know; fuzzed metas.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use net::Client;
use prost::Message;
use proto::{
    Method,
    data::{
        Allocate, AllocateMode, Attrs, Object, ObjectAttr, Read, Recorded, Remove, Seek, SetTime, Settle,
        Sync, Truncate, Whence, Write,
    },
};
use site::{DataSite, ask, deadline, ino, until};
use types::Errno;

fn object(n: u64) -> Object {
    Object { ino: ino(n).get(), generation: 1, view: None }
}

fn write(client: &Client, n: u64, offset: u64, bytes: &[u8]) {
    let request = Write { object: Some(object(n)), offset, sync: false, joined: 0, server: 0 };
    let (written, _) = ask(client, &request, bytes, 0).unwrap();
    assert_eq!(written.bytes as usize, bytes.len());
}

fn read(client: &Client, n: u64, offset: u64, length: u32) -> Vec<u8> {
    ask(client, &Read { object: Some(object(n)), offset, length }, &[], length).unwrap().1
}

fn truncate(client: &Client, n: u64, size: u64, grow_only: bool) {
    ask(client, &Truncate { object: Some(object(n)), size, grow_only }, &[], 0).unwrap();
}

fn attr(client: &Client, n: u64) -> ObjectAttr {
    ask(client, &Attrs { objects: vec![object(n)] }, &[], 0).unwrap().0.attrs[0]
}

/// As the metadata server does: asks what it came to, and says that it is recorded.
fn settle(client: &Client, n: u64) -> ObjectAttr {
    let attr = attr(client, n);
    let recorded = Recorded { object: Some(object(n)), mtime: attr.mtime };
    ask(client, &Settle { objects: vec![recorded] }, &[], 0).unwrap();
    attr
}

fn remove(client: &Client, n: u64) {
    let (removed, _) = ask(client, &Remove { objects: vec![object(n)] }, &[], 0).unwrap();
    assert_eq!(removed.errnos, [0]);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.below(255) as u8 + 1).collect()
    }
}

fn compare(client: &Client, n: u64, model: &Option<Vec<u8>>, step: u64) {
    let known = attr(client, n);
    let bytes = model.as_deref().unwrap_or_default();
    assert_eq!((known.errno, known.size), (0, bytes.len() as u64), "step {step}: {known:?}");
    assert!(known.known || bytes.is_empty(), "step {step}");
    let there = read(client, n, 0, bytes.len() as u32 + 100);
    if there != bytes {
        let at = there.iter().zip(bytes).position(|(a, b)| a != b);
        panic!(
            "step {step}: object {n} has other bytes at {at:?}, {} for {} bytes",
            there.len(),
            bytes.len()
        );
    }
}

/// One request. `false`: the object is to go.
fn step(client: &Client, random: &mut Random, n: u64, model: &mut Option<Vec<u8>>) -> bool {
    const MOST: u64 = 300_000;
    let size = model.as_ref().map_or(0, Vec::len) as u64;
    match random.below(12) {
        0..=4 => {
            let (offset, len) = (random.below(MOST), 1 + random.below(20_000));
            let bytes = random.bytes(len);
            write(client, n, offset, &bytes);
            let model = model.get_or_insert_default();
            model.resize(model.len().max((offset + len) as usize), 0);
            model[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
        }
        5 | 6 => {
            let (to, grow_only) = (random.below(MOST), random.below(2) == 0);
            truncate(client, n, to, grow_only);
            if !grow_only || to > size {
                model.get_or_insert_default().resize(to as usize, 0);
            }
        }
        7 => {
            let (offset, length) = (random.below(MOST), 1 + random.below(100_000));
            let mode = AllocateMode::Zero.into();
            ask(
                client,
                &Allocate { object: Some(object(n)), mode, offset, length, joined: 0, server: 0 },
                &[],
                0,
            )
            .unwrap();
            let end = (offset + length).min(size);
            if let Some(model) = model
                && offset < end
            {
                model[offset as usize..end as usize].fill(0);
            }
        }
        8 => {
            ask(client, &Sync { object: Some(object(n)) }, &[], 0).unwrap();
        }
        9 => assert_eq!(settle(client, n).size, size),
        10 => {
            let offset = random.below(MOST);
            let whence = Whence::Hole.into();
            let (sought, _) = ask(client, &Seek { object: Some(object(n)), offset, whence }, &[], 0).unwrap();
            assert_eq!(sought.offset.is_some(), offset < size);
            assert!(sought.offset.is_none_or(|hole| hole >= offset && hole <= size));
        }
        _ => return false,
    }
    true
}

#[test]
fn objects_are_as_they_were_written_over_kills() {
    for seed in 1..=2 {
        let mut random = Random(0x9E37_79B9 * seed);
        let mut site = DataSite::started(1);
        let mut client = site.client();
        let (mut models, mut removed) = (vec![(2, None), (3, None), (4, None)], Vec::new());
        for at in 0..150 {
            if random.below(25) == 0 {
                site.restart();
                client = site.client();
                models.iter().for_each(|(n, model)| compare(&client, *n, model, at));
                removed.iter().for_each(|n| compare(&client, *n, &None, at));
            }
            let (n, model) = &mut models[random.below(3) as usize];
            if !step(&client, &mut random, *n, model) {
                remove(&client, *n);
                compare(&client, *n, &None, at);
                // Numbers are not used again.
                removed.push(*n);
                (*n, *model) = (5 + at, None);
            }
            compare(&client, *n, model, at);
        }
    }
}

#[test]
fn what_was_synced_survives_the_loss_of_memory_and_the_rest_is_an_error() {
    let mut site = DataSite::started(1);
    let client = site.client();
    write(&client, 2, 0, b"safe");
    ask(&client, &Sync { object: Some(object(2)) }, &[], 0).unwrap();
    write(&client, 3, 0, b"lost");
    truncate(&client, 4, 1000, true);
    ask(&client, &Sync { object: Some(object(4)) }, &[], 0).unwrap();
    site.reboot();
    let client = site.client();
    assert_eq!(read(&client, 2, 0, 9), b"safe");
    assert_eq!(attr(&client, 4).size, 1000);
    let lost = ask(&client, &Read { object: Some(object(3)), offset: 0, length: 9 }, &[], 9);
    // Where the movers were fast it is safe; it is never anything else than an error or the bytes.
    match lost {
        Ok((_, bytes)) => assert_eq!(bytes, b"lost"),
        Err(fault) => assert_eq!(Errno::from_raw(fault.errno), Errno::EIO),
    }
}

/// Goal: what is removed stays removed. Method: looks at objects that a kill left live, beside their removal; what a look had opened was
/// settled later, and had its record again.
#[test]
fn regression_a_look_beside_a_removal_leaves_nothing() {
    let mut site = DataSite::started(1);
    for round in 0..8 {
        let objects: Vec<u64> = (0..50).map(|n| 2 + 50 * round + n).collect();
        let client = site.client();
        objects.iter().for_each(|n| write(&client, *n, 0, b"x"));
        site.restart();
        let (client, other) = (site.client(), site.client());
        for n in &objects {
            std::thread::scope(|scope| {
                scope.spawn(|| attr(&other, *n));
                remove(&client, *n);
            });
        }
        until("all are closed", || site.service().in_use() == 0);
        objects.iter().for_each(|n| assert!(!attr(&client, *n).known, "object {n}"));
    }
}

#[test]
fn the_time_of_the_last_write_is_told_until_somebody_has_it() {
    let mut site = DataSite::started(1);
    let client = site.client();
    write(&client, 2, 0, b"x");
    let written = attr(&client, 2).mtime.expect("it was written");
    // Nobody asks for it: it is settled here, and tells the same.
    until("it is closed", || site.service().in_use() == 0);
    assert_eq!(attr(&client, 2).mtime, Some(written));
    site.restart();
    let client = site.client();
    assert_eq!(attr(&client, 2).mtime, Some(written));
    // Of a write that came after what was recorded nothing is forgotten.
    let mtime = Some(proto::attr::Time { sec: 1, nsec: 1 });
    let recorded = Recorded { object: Some(object(2)), mtime };
    ask(&client, &Settle { objects: vec![recorded] }, &[], 0).unwrap();
    assert_eq!(settle(&client, 2).mtime, Some(written));
    assert_eq!(attr(&client, 2).mtime, None);
    write(&client, 2, 0, b"y");
    assert!(attr(&client, 2).mtime.is_some());
    let mtime = proto::attr::Time { sec: 5, nsec: 6 };
    ask(&client, &SetTime { object: Some(object(2)), mtime: Some(mtime) }, &[], 0).unwrap();
    assert_eq!(attr(&client, 2).mtime, None);
}

/// A write that was on its way when its session was given up, and the file went.
#[test]
fn a_late_write_does_not_make_a_removed_object_again() {
    let site = DataSite::started(1);
    let client = site.client();
    write(&client, 2, 0, b"x");
    remove(&client, 2);
    remove(&client, 2);
    let late = Write { object: Some(object(2)), offset: 0, sync: false, joined: 0, server: 0 };
    let fault = ask(&client, &late, b"y", 0).unwrap_err();
    assert_eq!(Errno::from_raw(fault.errno), Errno::ESTALE);
    assert_eq!(attr(&client, 2), ObjectAttr::default());
    assert!(read(&client, 2, 0, 9).is_empty());
}

#[test]
fn an_object_of_another_layout_is_not_the_one() {
    let site = DataSite::started(1);
    let client = site.client();
    write(&client, 2, 0, b"x");
    let other = Object { generation: 2, ..object(2) };
    let fault = ask(&client, &Read { object: Some(other), offset: 0, length: 1 }, &[], 1).unwrap_err();
    assert_eq!(Errno::from_raw(fault.errno), Errno::ESTALE);
    let attrs = ask(&client, &Attrs { objects: vec![other] }, &[], 0).unwrap().0.attrs;
    assert_eq!(Errno::from_raw(attrs[0].errno), Errno::ESTALE);
}

#[test]
fn beyond_the_bounds_there_are_errors() {
    let site = DataSite::started(1);
    let client = site.client();
    let errno = |fault: wire::schema::Fault| Errno::from_raw(fault.errno);
    let far = Write { object: Some(object(2)), offset: u64::MAX - 1, sync: false, joined: 0, server: 0 };
    assert_eq!(errno(ask(&client, &far, b"xyz", 0).unwrap_err()), Errno::EFBIG);
    let far = Truncate { object: Some(object(2)), size: u64::MAX, grow_only: false };
    assert_eq!(errno(ask(&client, &far, &[], 0).unwrap_err()), Errno::EFBIG);
    let mode = AllocateMode::Reserve.into();
    let none = Allocate { object: Some(object(2)), mode, offset: 0, length: 0, joined: 0, server: 0 };
    assert_eq!(errno(ask(&client, &none, &[], 0).unwrap_err()), Errno::EINVAL);
    let none = Write { object: None, offset: 0, sync: false, joined: 0, server: 0 };
    assert_eq!(errno(ask(&client, &none, b"x", 0).unwrap_err()), Errno::EINVAL);
    assert_eq!(attr(&client, 2), ObjectAttr::default());
    assert!(read(&client, 2, 1 << 40, 9).is_empty());
}

/// Whatever bytes come as a meta, there is an answer, and what is there stays as it is.
#[test]
fn hostile_metas_are_answered() {
    let site = DataSite::started(1);
    let client = site.client();
    write(&client, 2, 0, b"stays");
    let one = Some(object(3));
    let good = [
        Read { object: one, offset: 1, length: 5 }.encode_to_vec(),
        Truncate { object: one, size: 100, grow_only: false }.encode_to_vec(),
        Attrs { objects: vec![object(3), object(4)] }.encode_to_vec(),
    ];
    let client = std::sync::Mutex::new(client);
    let turn = std::sync::atomic::AtomicUsize::new(0);
    fuzzing::fuzz_costly("data-metas", &good, fuzzing::as_it_is, |bytes| {
        let at = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) as u16;
        let method = 190 + at % 30;
        if bytes.windows(2).any(|pair| pair == [8, 2]) || method == Method::Allocate.number() {
            return;
        }
        let call = net::Call {
            answer_bytes_max: 64,
            body: wire::frame::Body::new(b"hostile".to_vec()),
            ..net::Call::new(method, bytes.to_vec(), deadline())
        };
        client.lock().unwrap().call(call).unwrap();
    });
    let client = client.into_inner().unwrap();
    assert_eq!(read(&client, 2, 0, 9), b"stays");
}
