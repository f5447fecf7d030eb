//! Goal: a data server gives what it holds to others while files are used, loses nothing whoever dies when, and is removed only when it holds nothing
//! (S-220 to S-226). Method: real services behind real sockets; writers that note what was answered; servers killed and started again at random
//! moments; a source that is asked by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod site;

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use net::Client;
use proto::{
    Layout, Reason,
    data::{Attrs, Object, Read, Truncate, Write},
    metadata::{Append, FindLayout, SetXattr, XattrMode},
    moving::{
        Changed, Copies, DrainNode, Follow, HandOver, Pull, PullState, RemoveNode, Standing, StandingKind,
        StandingList, Standings,
    },
};
use site::{
    DataSite, ask, client_to,
    cluster::{META, Session, Site},
    ino, until,
};
use types::{Errno, SAU_BYTES};
use wire::schema::{Fault, Lane};

fn drain(site: &Site, node: u64, undo: bool) -> Result<Standing, Fault> {
    let control = client_to(&site.address(), META, Lane::Control);
    ask(&control, &DrainNode { node, undo }, &[], 0).map(|(standing, _)| standing)
}

fn remove(site: &Site, node: u64) -> Result<(), Fault> {
    let control = client_to(&site.address(), META, Lane::Control);
    ask(&control, &RemoveNode { node }, &[], 0).map(drop)
}

fn standing(site: &Site, node: u64) -> Standing {
    let control = client_to(&site.address(), META, Lane::Control);
    let (_, body) = ask(&control, &Standings {}, &[], 1 << 20).unwrap();
    let list: StandingList = prost::Message::decode(&body[..]).unwrap();
    list.standings.into_iter().find(|one| one.node == node).unwrap_or_default()
}

fn until_drained(site: &Site, node: u64) {
    let end = std::time::Instant::now() + Duration::from_secs(120);
    loop {
        let now = standing(site, node);
        if now.known && now.files_left == 0 {
            return;
        }
        assert!(std::time::Instant::now() < end, "not drained: {now:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn layout(session: &Session, ino: u64) -> Layout {
    session.try_ask(&FindLayout { head: session.head(), ino }).unwrap().layout.unwrap()
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i / 512) * 7 + i + seed) as u8 | 1).collect()
}

/// A write to where the stripe is, as a client makes it: who is told that it moved asks where it is.
fn write_moving(session: &Session, site: &Site, ino: u64, offset: u64, bytes: &[u8]) {
    let end = site::deadline() + Duration::from_secs(60);
    loop {
        let layout = layout(session, ino);
        let striped = cluster::striping::Striped::new(layout.unit, layout.stripes.len()).unwrap();
        let ok = striped.parts(offset, bytes.len() as u64).all(|part| {
            let data = site.data.iter().find(|data| data.node == layout.stripes[part.stripe]).unwrap();
            let write = Write {
                object: Some(layout.object(ino, part.stripe)),
                offset: part.object_offset,
                sync: false,
                joined: 0,
                server: 0,
            };
            let from = (part.offset - offset) as usize;
            match ask(&data.client(), &write, &bytes[from..from + part.len as usize], 0) {
                Ok(_) => true,
                Err(fault) => {
                    assert_eq!(Reason::of(&fault), Reason::Moved, "{fault:?}");
                    false
                }
            }
        });
        if ok {
            return;
        }
        assert!(std::time::Instant::now() < end);
    }
}

#[test]
fn files_in_use_go_elsewhere_with_all_that_was_answered() {
    let site = Site::new(3);
    let session = site.session();
    // Striped over all three: its stripe can only go to a server that has one.
    let striped = session.create("striped", 1).unwrap().ino;
    let placed = session.begin(striped, 1).unwrap();
    let mut want = pattern(7 * SAU_BYTES as usize + 777, 1);
    session.write(striped, &placed, 0, &want);
    let node = placed.stripes[1];
    // With holes, a size beyond the last byte, and a time that was set.
    let sparse = session.create("sparse", 2).unwrap().ino;
    let placed = session.begin(sparse, 2).unwrap();
    session.write(sparse, &placed, 5 * SAU_BYTES + 3, b"there");
    session.set_size(sparse, 9 * SAU_BYTES, false).unwrap();
    session.close(2);
    let before = session.attr(sparse).unwrap();
    // Without a name, and open.
    let unlinked = session.create("unlinked", 3).unwrap().ino;
    let placed = session.begin(unlinked, 3).unwrap();
    session.write(unlinked, &placed, 0, &want[..100_000]);
    session.unlink("unlinked").unwrap();

    let said = drain(&site, node, false).unwrap();
    assert_eq!((said.kind(), said.name), (StandingKind::Draining, format!("data-{node}")));
    let status = site.service().nodes().status();
    assert!(status.iter().all(|one| one.draining == (one.report.node == node)), "and who watches is told");
    // Writes, cuts and appends meanwhile.
    let done = AtomicBool::new(false);
    let lines = std::thread::scope(|scope| {
        let other = site.session();
        let (done, site) = (&done, &site);
        let appender = scope.spawn(move || {
            let ino = other.create("log", 9).unwrap().ino;
            let mut lines = Vec::new();
            while !done.load(Ordering::Acquire) || lines.len() < 50 {
                let line = format!("{:08}\n", lines.len());
                let appended =
                    other.try_ask(&Append { head: other.op(), ino, opening: 9, length: 9 }).unwrap();
                write_moving(&other, site, ino, appended.offset, line.as_bytes());
                lines.push(line);
            }
            other.close(9);
            (ino, lines.concat())
        });
        for n in 0..60_u64 {
            let at = (n * 1_234_567) % (6 * SAU_BYTES);
            let piece = pattern(5000, n);
            write_moving(&session, site, striped, at, &piece);
            want[at as usize..at as usize + 5000].copy_from_slice(&piece);
            if n % 20 == 10 {
                let size = 6 * SAU_BYTES + 6000 + n;
                session.set_size(striped, size, false).unwrap();
                want.truncate(size as usize);
                let longer = 7 * SAU_BYTES + n;
                session.set_size(striped, longer, false).unwrap();
                want.resize(longer as usize, 0);
            }
            assert_eq!(session.attr(striped).unwrap().size, want.len() as u64);
        }
        until_drained(site, node);
        done.store(true, Ordering::Release);
        appender.join().unwrap()
    });

    let now = layout(&session, striped);
    assert!(!now.stripes.contains(&node) && now.stripes.len() == 3, "{now:?}");
    assert!(session.read(striped, &now, want.len() as u64) == want);
    assert_eq!(session.attr(striped).unwrap().size, want.len() as u64);
    let now = layout(&session, sparse);
    assert!(!now.stripes.contains(&node));
    let bytes = session.read(sparse, &now, 9 * SAU_BYTES);
    let at = 5 * SAU_BYTES as usize + 3;
    assert_eq!(&bytes[at..at + 5], b"there");
    assert!(bytes[..at].iter().chain(&bytes[at + 5..]).all(|byte| *byte == 0));
    let after = session.attr(sparse).unwrap();
    assert_eq!(
        (after.size, after.mtime, after.blocks),
        (before.size, before.mtime, before.blocks),
        "holes are holes"
    );
    let now = layout(&session, unlinked);
    assert!(!now.stripes.contains(&node));
    assert!(session.read(unlinked, &now, 100_000) == pattern(7 * SAU_BYTES as usize + 777, 1)[..100_000]);
    let (log, text) = lines;
    let now = layout(&session, log);
    assert_eq!(String::from_utf8(session.read(log, &now, text.len() as u64)).unwrap(), text);
    // Nothing new goes there, and it is removed with nothing on it.
    let fresh = session.create("fresh", 4).unwrap().ino;
    assert!(!session.begin(fresh, 4).unwrap().stripes.contains(&node));
    remove(&site, node).unwrap();
    assert_eq!(standing(&site, node).kind(), StandingKind::Removed);
    assert!(site.service().nodes().map().node(cluster::NodeId(node)).is_none());
}

#[test]
fn who_is_not_drained_is_not_removed_and_who_is_removed_stays_out() {
    let mut site = Site::new(2);
    let session = site.session();
    let ino = session.create("f", 1).unwrap().ino;
    let placed = session.begin(ino, 1).unwrap();
    session.write(ino, &placed, 0, &pattern(100_000, 3));
    let fault = remove(&site, 2).unwrap_err();
    assert!(fault.detail.contains("is not drained"), "{fault:?}");
    assert!(drain(&site, 77, false).unwrap_err().detail.contains("no data server 77"));
    assert!(drain(&site, 2, true).unwrap_err().detail.contains("neither"));
    // The only one that has room is the other; without it nothing can go.
    site.kill_data(0);
    until("it is away", || site.service().nodes().measures().len() == 1);
    drain(&site, 2, false).unwrap();
    until("it cannot be moved", || standing(&site, 2).files_failed == 1);
    let said = standing(&site, 2);
    assert!(said.why.contains("no other data server"), "{said:?}");
    let fault = remove(&site, 2).unwrap_err();
    assert!(fault.detail.contains("still holds something of 1 files"), "{fault:?}");
    // Draining outlives a restart of the metadata server.
    site.kill();
    site.start();
    site.start_data(0);
    until("both report", || site.service().nodes().status().len() == 2);
    assert_eq!(standing(&site, 2).kind(), StandingKind::Draining);
    session.mount();
    until_drained(&site, 2);
    remove(&site, 2).unwrap();
    until("it is told that it was removed", || {
        site.trouble(1).is_some_and(|trouble| trouble.why.contains("was removed from the cluster"))
    });
    assert_eq!(site.service().nodes().status().len(), 1);
    assert!(drain(&site, 2, false).unwrap_err().detail.contains("removed already"));
    drain(&site, 2, true).unwrap();
    until("it is back", || site.service().nodes().measures().len() == 2);
    assert_eq!(standing(&site, 2).kind(), StandingKind::In);
}

/// An attempt of a metadata server that does not go on.
fn followed(client: &Client, object: Object, attempt: u64) -> Result<(), Fault> {
    ask(client, &Follow { object: Some(object), attempt }, &[], 0).map(drop)
}

#[test]
fn a_freeze_ends_by_itself_and_its_copy_does_not_count() {
    let site = DataSite::started(1);
    let client = site.client();
    let object = Object { ino: ino(7).get(), generation: 1, view: None };
    let write = Write { object: Some(object), offset: 0, sync: false, joined: 0, server: 0 };
    ask(&client, &write, b"before", 0).unwrap();
    followed(&client, object, 5).unwrap();
    let changed = |freeze_ms| {
        let asked = Changed { object: Some(object), attempt: 5, freeze_ms };
        ask(&client, &asked, &[], 0).map(|(changes, _)| changes)
    };
    assert!(changed(0).unwrap().ranges.is_empty());
    ask(&client, &write, b"during", 0).unwrap();
    ask(&client, &Truncate { object: Some(object), size: 4, grow_only: false }, &[], 0).unwrap();
    let noted = changed(300).unwrap();
    assert_eq!((noted.size, noted.ranges.len()), (4, 1));
    // Reads go on; a write comes later, and is told so until the freeze has ended.
    assert_eq!(
        ask(&client, &Read { object: Some(object), offset: 0, length: 9 }, &[], 9).unwrap().1,
        b"duri"
    );
    ask(&client, &write, b"after!", 0).unwrap();
    let asked = HandOver { object: Some(object), attempt: 5 };
    assert!(!ask(&client, &asked, &[], 0).unwrap().0.done, "the freeze was over");
    assert!(changed(300).is_err(), "an attempt has one freeze");

    // The next one is handed over: for ever.
    followed(&client, object, 6).unwrap();
    let asked = Changed { object: Some(object), attempt: 6, freeze_ms: 10_000 };
    ask(&client, &asked, &[], 0).unwrap();
    let late = HandOver { object: Some(object), attempt: 5 };
    assert!(!ask(&client, &late, &[], 0).unwrap().0.done, "what is late is another attempt");
}

#[test]
fn what_was_handed_over_is_never_written_again() {
    let mut site = DataSite::started(1);
    let object = Object { ino: ino(8).get(), generation: 1, view: None };
    let write = Write { object: Some(object), offset: 0, sync: false, joined: 0, server: 0 };
    let client = site.client();
    ask(&client, &write, b"bytes", 0).unwrap();
    followed(&client, object, 6).unwrap();
    let asked = Changed { object: Some(object), attempt: 6, freeze_ms: 10_000 };
    ask(&client, &asked, &[], 0).unwrap();
    let hand = HandOver { object: Some(object), attempt: 6 };
    assert!(ask(&client, &hand, &[], 0).unwrap().0.done);
    for restart in [false, true] {
        if restart {
            site.power_cut();
        }
        let client = site.client();
        assert!(ask(&client, &hand, &[], 0).unwrap().0.done, "the same answer again");
        let fault = ask(&client, &write, b"late", 0).unwrap_err();
        assert_eq!((Errno::from_raw(fault.errno), Reason::of(&fault)), (Errno::ESTALE, Reason::Moved));
        let cut = Truncate { object: Some(object), size: 0, grow_only: false };
        assert_eq!(Reason::of(&ask(&client, &cut, &[], 0).unwrap_err()), Reason::Moved);
        let attrs = ask(&client, &Attrs { objects: vec![object] }, &[], 0).unwrap().0;
        assert_eq!(attrs.attrs[0].errno, Errno::ESTALE.raw());
        assert!(followed(&client, object, 9).is_err());
    }
}

/// Goal: who asks the old place in the moment of a hand-over sees the bytes or is told that they moved, and nothing is taken there afterwards.
/// Method: readers that ask all the time while objects are handed over.
#[test]
fn regression_who_asks_in_the_moment_of_a_hand_over_is_told_the_truth() {
    let site = DataSite::started(1);
    for n in 0..30 {
        let object = Object { ino: ino(100 + n).get(), generation: 1, view: None };
        let write = Write { object: Some(object), offset: 0, sync: false, joined: 0, server: 0 };
        let client = site.client();
        ask(&client, &write, b"bytes", 0).unwrap();
        followed(&client, object, 6).unwrap();
        ask(&client, &Changed { object: Some(object), attempt: 6, freeze_ms: 10_000 }, &[], 0).unwrap();
        let (asking, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let read = || ask(&site.client(), &Read { object: Some(object), offset: 0, length: 5 }, &[], 5);
        let handed = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let client = site.client();
                    while !over.load(Ordering::Acquire) {
                        let read = Read { object: Some(object), offset: 0, length: 5 };
                        match ask(&client, &read, &[], 5) {
                            Ok((_, bytes)) => assert_eq!(bytes, b"bytes"),
                            Err(fault) => assert_eq!(Reason::of(&fault), Reason::Moved, "{fault:?}"),
                        }
                        asking.fetch_add(1, Ordering::AcqRel);
                    }
                });
            }
            until("all of them ask", || asking.load(Ordering::Acquire) > 6);
            let handed = ask(&client, &HandOver { object: Some(object), attempt: 6 }, &[], 0);
            over.store(true, Ordering::Release);
            handed
        });
        assert!(handed.unwrap().0.done);
        assert_eq!(Reason::of(&read().unwrap_err()), Reason::Moved);
        assert_eq!(Reason::of(&ask(&client, &write, b"later", 0).unwrap_err()), Reason::Moved);
    }
}

/// Goal: what was cut off does not come back at the new place. Method: a cut while a copy follows, a round that finds the object short, and then a
/// write far behind that end.
#[test]
fn regression_what_is_cut_while_it_moves_does_not_come_back() {
    let site = Site::new(2);
    let (source, destination) = (&site.data[0], &site.data[1]);
    let (from, there) = (source.client(), destination.client());
    let object = Object { ino: ino(9).get(), generation: 1, view: None };
    let moved = Object { generation: 2, ..object };
    let write = |offset: u64, bytes: &[u8]| {
        let write = Write { object: Some(object), offset, sync: false, joined: 0, server: 0 };
        ask(&from, &write, bytes, 0).unwrap();
    };
    let copied = |offset: u64, length: u32| {
        let read = Read { object: Some(moved), offset, length };
        ask(&there, &read, &[], length).map_or(Vec::new(), |(_, bytes)| bytes)
    };
    write(0, &pattern(300_000, 4));
    let pull = |freeze_ms| Pull {
        attempt: 5,
        from: Some(object),
        to: Some(moved),
        source: source.node,
        addresses: vec![source.address().to_string()],
        freeze_ms,
        room: 0,
    };
    let pulled = |freeze_ms| ask(&there, &pull(freeze_ms), &[], 0).unwrap().0.state();
    until("it is copied", || pulled(0) == PullState::Level);
    ask(&from, &Truncate { object: Some(object), size: 1000, grow_only: false }, &[], 0).unwrap();
    // What is seen at the destination came with the cut or after it.
    write(10, b"a mark");
    until("it is copied again", || copied(10, 6) == b"a mark");
    write(290_000, b"far behind");
    assert_eq!(pulled(10_000), PullState::Ready);
    let bytes = copied(0, 300_000);
    assert_eq!(bytes.len(), 290_010);
    assert!(bytes[1000..290_000].iter().all(|byte| *byte == 0), "what was cut off is there again");
    assert!(bytes.ends_with(b"far behind") && bytes[16..1000] == pattern(1000, 4)[16..]);
}

/// Goal: what directories say of new files is not taken for layouts that cannot be read. Method: a drain beside one that says something.
#[test]
fn regression_a_directory_that_says_something_of_layouts_holds_no_drain_up() {
    let site = Site::new(2);
    let session = site.session();
    let (head, name, mode) = (session.op(), b"user.onfs.layout".to_vec(), XattrMode::Set.into());
    let set = SetXattr { head, ino: 1, name, mode, kill_sgid: false };
    ask(&session.meta, &set, b"stripes=1", 0).unwrap();
    let ino = session.create("f", 1).unwrap().ino;
    let placed = session.begin(ino, 1).unwrap();
    assert_eq!(placed.stripes.len(), 1);
    session.write(ino, &placed, 0, &pattern(100_000, 3));
    let node = placed.stripes[0];
    drain(&site, node, false).unwrap();
    until_drained(&site, node);
    let now = layout(&session, ino);
    assert_ne!(now.stripes, [node]);
    assert!(session.read(ino, &now, 100_000) == pattern(100_000, 3));
}

/// A kill of each of the three, again and again, while everything moves off one server.
#[test]
fn nothing_answered_is_lost_whoever_is_killed_meanwhile() {
    let mut site = Site::new(3);
    let node = site.data[0].node;
    let session = site.session();
    let mut files = Vec::new();
    for n in 0..6_u64 {
        let ino = session.create(&format!("f{n}"), n + 1).unwrap().ino;
        let placed = session.begin(ino, n + 1).unwrap();
        let bytes = pattern(2 * SAU_BYTES as usize + n as usize * 1000, n);
        session.write(ino, &placed, 0, &bytes);
        session.sync(ino, &placed);
        files.push((ino, bytes));
    }
    drain(&site, node, false).unwrap();
    for round in 0..6_usize {
        // At another moment of the moves each time.
        let moved = standing(&site, node).files_moved;
        if round % 2 == 0 {
            until("another one is moved, or all are", || {
                let now = standing(&site, node);
                now.files_moved > moved || now.known && now.files_left == 0 || now.files_failed > 0
            });
        }
        match round % 3 {
            0 => {
                site.kill_data(0);
                site.start_data(0);
            }
            1 => {
                site.kill_data(1);
                site.start_data(1);
            }
            _ => {
                site.kill();
                site.start();
                until("all report", || site.service().nodes().status().len() == 3);
                session.mount();
                for (n, (ino, _)) in files.iter().enumerate() {
                    session.open(*ino, n as u64 + 1, true).unwrap();
                }
            }
        }
        for (n, (ino, bytes)) in files.iter_mut().enumerate() {
            let at = (round * 700_001 + n * 90_001) % (2 * SAU_BYTES as usize - 5000);
            let piece = pattern(4000, (round * 31 + n) as u64);
            session.begin(*ino, n as u64 + 1).unwrap();
            write_moving(&session, &site, *ino, at as u64, &piece);
            bytes[at..at + 4000].copy_from_slice(&piece);
        }
    }
    until_drained(&site, node);
    for (ino, bytes) in &files {
        let now = layout(&session, *ino);
        assert!(!now.stripes.contains(&node));
        assert!(session.read(*ino, &now, bytes.len() as u64) == *bytes, "file {ino}");
        assert_eq!(session.attr(*ino).unwrap().size, bytes.len() as u64);
    }
    // Copies that did not come to count are gone.
    until("no copy is left of which nothing is known", || {
        let unjudged =
            |data: &DataSite| ask(&data.client(), &Copies { after: 0 }, &[], 0).unwrap().0.copies.len();
        site.data.iter().map(unjudged).sum::<usize>() == 0
    });
    remove(&site, node).unwrap();
    site.kill_data(0);
    for (ino, bytes) in &files {
        let now = layout(&session, *ino);
        assert!(session.read(*ino, &now, bytes.len() as u64) == *bytes, "file {ino} without the node");
    }
}

/// What was durable is so at its new place; and the record of that comes back, whatever of it was lost.
#[test]
fn what_has_moved_outlives_power_cuts() {
    let mut site = Site::new(2);
    let node = site.data[0].node;
    let session = site.session();
    let ino = session.create("f", 1).unwrap().ino;
    let placed = session.begin(ino, 1).unwrap();
    let bytes = pattern(3 * SAU_BYTES as usize + 99, 4);
    session.write(ino, &placed, 0, &bytes);
    session.sync(ino, &placed);
    drain(&site, node, false).unwrap();
    until_drained(&site, node);
    site.power_cut_data(1);
    site.power_cut_data(0);
    site.power_cut();
    session.mount();
    let now = layout(&session, ino);
    assert_eq!(now.stripes, [site.data[1].node; 2], "both stripes are on the other one");
    assert!(session.read(ino, &now, bytes.len() as u64) == bytes);
    until_drained(&site, node);
    remove(&site, node).unwrap();
    // And back, over what is said there of the stripes that went: as another generation.
    drain(&site, node, true).unwrap();
    until("both take data", || site.service().nodes().measures().len() == 2);
    drain(&site, site.data[1].node, false).unwrap();
    until_drained(&site, site.data[1].node);
    let back = layout(&session, ino);
    assert_eq!(back.stripes, [node; 2]);
    assert!(session.read(ino, &back, bytes.len() as u64) == bytes);
    // Who has the first layout finds neither of the two there.
    let old = Object { ino, generation: 1, view: None };
    let read = Read { object: Some(old), offset: 0, length: 10 };
    for data in &site.data {
        assert_eq!(Reason::of(&ask(&data.client(), &read, &[], 10).unwrap_err()), Reason::Moved);
    }
}
