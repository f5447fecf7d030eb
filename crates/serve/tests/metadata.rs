//! Goal: what sessions see of names, files and each other over sockets is what one machine shows: true sizes, kept orphans, exactly
//! once, nothing lost by an end without a word; and a data server that is away costs its own files only. Method: a metadata server and one or
//! three data servers of this process, several sessions, kills.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use std::time::{Duration, Instant};

use prost::Message;
use proto::{
    Head, Reason, SessionId,
    attr::{Changes, SetTime, Time},
    control::{Facts, Hello, MapSince, Renew, Unmount},
    data::{Attrs, Object},
    metadata::*,
};
use serve::metadata::SessionLimits;
use site::{
    ask,
    cluster::{Session, Site, options},
    deadline, until,
};
use types::Errno;

const UNIT: u64 = 4 << 20;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 17 + i / 251) as u8).collect()
}

#[test]
fn two_sessions_see_the_same_bytes_sizes_and_names() {
    for data in [1, 3] {
        let site = Site::new(data);
        let (one, two) = (site.session(), site.session());
        let ino = one.create("f", 1).unwrap().ino;
        assert_eq!(one.create("f", 2), Err(Errno::EEXIST));
        assert_eq!(two.lookup("f").unwrap().size, 0);
        let layout = one.begin(ino, 1).unwrap();
        assert_eq!(layout.stripes.len(), data as usize);
        let bytes = pattern(9_000_000, 1);
        one.write(ino, &layout, 0, &bytes);
        // While it is being written, and nobody else was told.
        assert_eq!(two.attr(ino).unwrap().size, 9_000_000);
        let opened = two.open(ino, 1, false).unwrap();
        assert_eq!((opened.attr.unwrap().size, opened.layout.as_ref()), (9_000_000, Some(&layout)));
        assert!(two.read(ino, &layout, 9_000_000) == bytes);
        one.close(1);
        let settled = two.attr(ino).unwrap();
        assert_eq!(settled.size, 9_000_000);
        assert!(settled.blocks >= 9_000_000 / 512);
        assert!(!site.mds().find(types::Ino::from_raw(ino).unwrap()).unwrap().data.live);
        two.close(1);
        until("all is settled and told", || site.service().in_use().1 == 0);
        assert!(two.read(ino, &layout, 9_000_000) == bytes);
        // Again, by somebody else: the layout stays.
        two.open(ino, 2, true).unwrap();
        assert_eq!(two.begin(ino, 2).unwrap(), layout);
        two.write(ino, &layout, 9_000_000, b"more");
        assert_eq!(one.attr(ino).unwrap().size, 9_000_004);
    }
}

#[test]
fn cuts_and_growth_reach_all_stripes() {
    let site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    let ino = one.create("f", 1).unwrap().ino;
    // A size before there are bytes: a hole.
    assert_eq!(two.set_size(ino, 5 * UNIT + 1, false).unwrap().size, 5 * UNIT + 1);
    let layout = one.begin(ino, 1).unwrap();
    assert_eq!(two.attr(ino).unwrap().size, 5 * UNIT + 1);
    let bytes = pattern(5 * UNIT as usize, 2);
    one.write(ino, &layout, 0, &bytes);
    for (size, grow_only, then) in [
        (4 * UNIT + 7, false, 4 * UNIT + 7),
        (UNIT, true, 4 * UNIT + 7),
        (UNIT + 5, false, UNIT + 5),
        (3 * UNIT + 9, true, 3 * UNIT + 9),
        (6 * UNIT, false, 6 * UNIT),
    ] {
        assert_eq!(two.set_size(ino, size, grow_only).unwrap().size, then);
        assert_eq!(one.attr(ino).unwrap().size, then);
    }
    let mut expected = bytes;
    expected.truncate(UNIT as usize + 5);
    expected.resize(6 * UNIT as usize, 0);
    assert!(two.read(ino, &layout, 6 * UNIT) == expected, "what was cut does not come back");
    one.close(1);
    assert_eq!(two.attr(ino).unwrap().size, 6 * UNIT);
    assert_eq!(two.set_size(ino, 3, false).unwrap().size, 3);
    assert_eq!(two.set_size(1, 3, false), Err(Errno::EISDIR));
}

#[test]
fn ranges_of_appends_are_given_once() {
    let site = Site::new(1);
    let sessions = [site.session(), site.session()];
    let ino = sessions[0].create("log", 1).unwrap().ino;
    sessions[1].open(ino, 1, true).unwrap();
    std::thread::scope(|scope| {
        for (n, session) in sessions.iter().enumerate() {
            scope.spawn(move || {
                for at in 0..40 {
                    let length = 10 + at;
                    let append = Append { head: session.op(), ino, opening: 1, length };
                    let appended = session.try_ask(&append).unwrap();
                    // Asked again with the same number it is the same range.
                    assert_eq!(session.try_ask(&append).unwrap(), appended);
                    let line = vec![b'a' + n as u8; length as usize];
                    session.write(ino, &appended.layout.unwrap(), appended.offset, &line);
                }
            });
        }
    });
    let total = 2 * (0..40).map(|at| 10 + at).sum::<u64>();
    assert_eq!(sessions[0].attr(ino).unwrap().size, total);
    let layout = sessions[0].begin(ino, 1).unwrap();
    let bytes = sessions[1].read(ino, &layout, total);
    let count = |c| bytes.iter().filter(|b| **b == c).count() as u64;
    assert_eq!((count(b'a'), count(b'b')), (total / 2, total / 2));
    // Only who may write.
    sessions[0].open(ino, 9, false).unwrap();
    assert_eq!(sessions[0].begin(ino, 9), Err(Errno::EBADF));
    assert_eq!(sessions[0].begin(ino, 77), Err(Errno::EBADF));
}

fn objects(site: &Site, ino: u64) -> usize {
    let asked = Attrs { objects: vec![Object { ino, generation: 1, view: None }] };
    let known = |data: &&site::DataSite| ask(&data.client(), &asked, &[], 0).unwrap().0.attrs[0].known;
    site.data.iter().filter(|data| data.is_running()).filter(known).count()
}

#[test]
fn an_open_file_without_a_name_stays_for_all_who_have_it() {
    let site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    let ino = one.create("f", 1).unwrap().ino;
    let layout = one.begin(ino, 1).unwrap();
    one.write(ino, &layout, 0, &pattern(3 * UNIT as usize, 3));
    two.lookup("f").unwrap();
    two.open(ino, 1, true).unwrap();
    two.unlink("f").unwrap();
    assert_eq!(one.lookup("f"), Err(Errno::ENOENT));
    one.close(1);
    one.try_ask(&Forget { head: one.op(), references: vec![Reference { ino, count: 9 }] }).unwrap();
    // The other has it open.
    assert_eq!(two.begin(ino, 1).unwrap(), layout);
    two.write(ino, &layout, 1, b"x");
    assert_eq!((two.attr(ino).unwrap().nlink, two.attr(ino).unwrap().size), (0, 3 * UNIT));
    two.close(1);
    // And then it only knows it.
    assert_eq!(two.attr(ino).unwrap().size, 3 * UNIT);
    assert_eq!(objects(&site, ino), 3);
    two.try_ask(&Forget { head: two.op(), references: vec![Reference { ino, count: 1 }] }).unwrap();
    until("it is gone", || two.attr(ino) == Err(Errno::ESTALE));
    until("its objects are gone", || objects(&site, ino) == 0);
}

#[test]
fn an_operation_that_comes_twice_is_done_once() {
    let site = Site::new(1);
    let session = site.session();
    let (head, caller) = (session.op(), Session::caller());
    let mkdir = Mkdir { head, caller, dir: 1, name: b"d".to_vec(), mode: 0o755 };
    let made = session.try_ask(&mkdir).unwrap();
    assert_eq!(session.try_ask(&mkdir).unwrap(), made);
    let rmdir = Rmdir { head: session.op(), dir: 1, name: b"d".to_vec() };
    session.try_ask(&rmdir).unwrap();
    session.try_ask(&rmdir).unwrap();
    let failing = Rmdir { head: session.op(), dir: 1, name: b"d".to_vec() };
    assert_eq!(session.try_ask(&failing), Err(Errno::ENOENT));
    session.try_ask(&Mkdir { head: session.op(), ..mkdir.clone() }).unwrap();
    // The first two were acknowledged by what came later.
    assert_eq!(Reason::of(&session.fault(&mkdir)), Reason::AnswerGone);
    // Not by what did not.
    let number = session.op().unwrap().number;
    let head = Some(Head::operation(session.id, number, 1));
    let failing = Rmdir { head, dir: 1, name: b"none".to_vec() };
    assert_eq!(session.try_ask(&failing), Err(Errno::ENOENT));
    session
        .try_ask(&Mkdir { head: session.head(), caller, dir: 1, name: b"none".to_vec(), mode: 0 })
        .unwrap();
    assert_eq!(session.try_ask(&failing), Err(Errno::ENOENT), "the first answer");
}

#[test]
fn a_session_that_is_silent_is_given_up_with_what_it_had() {
    let silence = Duration::from_millis(500);
    let sessions = SessionLimits { silence, ..SessionLimits::default() };
    let site = Site::with(1, serve::metadata::MetadataOptions { sessions, ..options() });
    let (silent, other) = (site.session(), site.session());
    let ino = silent.create("f", 1).unwrap().ino;
    let layout = silent.begin(ino, 1).unwrap();
    silent.write(ino, &layout, 0, b"what it wrote stays");
    let gone = silent.create("gone", 2).unwrap().ino;
    silent.unlink("gone").unwrap();
    until("it is given up", || {
        ask(&other.control, &Renew { head: other.head(), node: None, writes: false }, &[], 0).unwrap();
        site.service().in_use().0 == 1
    });
    assert_eq!(Reason::of(&silent.fault(&GetAttr { head: silent.head(), ino })), Reason::SessionGone);
    assert_eq!(other.attr(ino).unwrap().size, 19);
    until("the orphan is gone", || other.attr(gone) == Err(Errno::ESTALE));
    assert!(!site.mds().find(types::Ino::from_raw(ino).unwrap()).unwrap().data.live, "it is settled");
    ask(&other.control, &Unmount { head: other.head() }, &[], 0).unwrap();
    assert_eq!(Reason::of(&other.fault(&GetAttr { head: other.head(), ino })), Reason::SessionGone);
}

#[test]
fn who_merely_refers_to_what_another_removed_is_told() {
    let site = Site::new(1);
    let (one, two) = (site.session(), site.session());
    let mut made = Vec::new();
    for (n, name) in ["known", "open", "named"].into_iter().enumerate() {
        let ino = one.create(name, n as u64 + 1).unwrap().ino;
        one.close(n as u64 + 1);
        assert_eq!(two.lookup(name).unwrap().ino, ino);
        made.push(ino);
    }
    two.open(made[1], 9, false).unwrap();
    one.unlink("open").unwrap();
    one.unlink("known").unwrap();
    let references = made.iter().map(|ino| Reference { ino: *ino, count: 1 }).collect();
    one.try_ask(&Forget { head: one.op(), references }).unwrap();
    let nameless = |session: &Session| {
        let renew = Renew { head: session.head(), node: None, writes: false };
        ask(&session.control, &renew, &[], 0).unwrap().0.nameless
    };
    let mut told = Vec::new();
    until("who refers to it is told", || {
        told = nameless(&two);
        !told.is_empty()
    });
    assert_eq!((told, nameless(&one)), (vec![made[0]], vec![]));
    assert_eq!(two.attr(made[0]).unwrap().nlink, 0, "it is kept until he gives it back");
    let references = vec![Reference { ino: made[0], count: 1 }];
    two.try_ask(&Forget { head: two.op(), references }).unwrap();
    until("it is gone", || two.attr(made[0]) == Err(Errno::ESTALE));
    assert_eq!(two.attr(made[1]).unwrap().nlink, 0, "it is open");
}

#[test]
fn a_data_server_that_is_away_costs_its_own_files_only() {
    let mut site = Site::new(3);
    let session = site.session();
    let spread = session.create("spread", 1).unwrap().ino;
    let layout = session.begin(spread, 1).unwrap();
    session.write(spread, &layout, 0, &pattern(3 * UNIT as usize, 4));
    let settled = session.create("settled", 2).unwrap().ino;
    session.begin(settled, 2).unwrap();
    session.close(2);
    site.kill_data(1);
    // It is waited for no longer than its patience, and nobody who asks gives up before.
    let fault = session.fault(&GetAttr { head: session.head(), ino: spread });
    assert_eq!((fault.errno, Reason::of(&fault)), (Errno::EIO.raw(), Reason::DataServerAway));
    // What the metadata know alone is there; so are names, and files on the others.
    assert_eq!(session.attr(settled).unwrap().size, 0);
    site.wait_for(2);
    let new = session.create("new", 3).unwrap().ino;
    let other = session.begin(new, 3).unwrap();
    assert!(!other.stripes.contains(&2), "{other:?}");
    session.write(new, &other, 0, b"new");
    assert_eq!(session.attr(new).unwrap().size, 3);
    // A cut that cannot be finished is an error, and is finished when the server is back.
    assert_eq!(session.set_size(spread, 5, false), Err(Errno::EIO));
    session.close(1);
    session.unlink("settled").unwrap();
    session
        .try_ask(&Forget { head: session.op(), references: vec![Reference { ino: settled, count: 1 }] })
        .unwrap();
    assert_eq!(site.mds().statfs_usage().inodes, 4, "it waits");
    site.start_data(1);
    until("it is there again", || session.attr(spread).is_ok());
    let session = site.session();
    assert_eq!(session.attr(spread).unwrap().size, 3 * UNIT);
    until("the orphan is removed", || site.mds().statfs_usage().inodes == 3);
}

#[test]
fn a_restart_of_the_metadata_server_loses_no_file_and_no_reference() {
    let sessions = SessionLimits { silence: Duration::from_secs(3), ..SessionLimits::default() };
    let mut site = Site::with(3, serve::metadata::MetadataOptions { sessions, ..options() });
    let session = site.session();
    let ino = session.create("f", 1).unwrap().ino;
    let layout = session.begin(ino, 1).unwrap();
    session.write(ino, &layout, 0, &pattern(2 * UNIT as usize, 5));
    let orphan = session.create("orphan", 2).unwrap().ino;
    session.unlink("orphan").unwrap();
    let incarnation = session.mount().incarnation;
    site.kill();
    site.start();
    let again = Session::over(&site, SessionId(session.id.0 + 1000));
    assert_ne!(again.mount().incarnation, incarnation);
    let references = vec![
        Reference { ino, count: 1 },
        Reference { ino: orphan, count: 1 },
        Reference { ino: 999, count: 1 },
    ];
    let held = again.try_ask(&Hold { head: again.op(), references }).unwrap();
    assert_eq!(held.gone, [999]);
    site.wait_for(3);
    let gone = session.fault(&GetAttr { head: session.head(), ino });
    assert_eq!(Reason::of(&gone), Reason::SessionGone);
    // Somebody else looks before the writer has come back: what is true is shown, and not settled.
    assert_eq!(again.attr(ino).unwrap().size, 2 * UNIT);
    again.open(ino, 1, true).unwrap();
    assert_eq!(again.begin(ino, 1).unwrap(), layout);
    again.write(ino, &layout, 2 * UNIT, b"end");
    assert_eq!(again.open(orphan, 2, true).unwrap().attr.unwrap().nlink, 0);
    let beyond = Instant::now() + Duration::from_millis(3500);
    until("the time of coming back is over", || {
        ask(&again.control, &Renew { head: again.head(), node: None, writes: false }, &[], 0).unwrap();
        Instant::now() > beyond
    });
    assert_eq!(again.attr(orphan).unwrap().nlink, 0);
    again.close(1);
    assert_eq!(again.attr(ino).unwrap().size, 2 * UNIT + 3);
    again.close(2);
    again
        .try_ask(&Forget { head: again.op(), references: vec![Reference { ino: orphan, count: 1 }] })
        .unwrap();
    until("the orphan is gone", || again.attr(orphan) == Err(Errno::ESTALE));
}

#[test]
fn a_time_that_is_set_stands_until_the_next_write() {
    let site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    let ino = one.create("f", 1).unwrap().ino;
    let layout = one.begin(ino, 1).unwrap();
    one.write(ino, &layout, 0, &pattern(2 * UNIT as usize, 6));
    let mtime = Some(Time { sec: 1000, nsec: 5 });
    let changes = Some(Changes { mtime: Some(SetTime { at: mtime }), ..Changes::default() });
    let set = |session: &Session| {
        session.try_ask(&SetAttr { head: session.op(), ino, changes, grow_only: false }).unwrap();
    };
    set(&two);
    assert_eq!(one.attr(ino).unwrap().mtime, mtime);
    one.close(1);
    assert_eq!(two.attr(ino).unwrap().mtime, mtime);
    two.open(ino, 1, true).unwrap();
    two.begin(ino, 1).unwrap();
    assert_eq!(one.attr(ino).unwrap().mtime, mtime, "nothing was written yet");
    two.write(ino, &layout, 0, b"y");
    assert_ne!(one.attr(ino).unwrap().mtime, mtime);
    two.close(1);
    set(&two);
    until("all is settled and told", || site.service().in_use().1 == 0);
    assert_eq!(one.attr(ino).unwrap().mtime, mtime);
}

#[test]
fn regression_a_time_that_is_set_stands_when_nobody_was_told_of_the_settling() {
    let mut site = Site::new(3);
    let session = site.session();
    let ino = session.create("f", 1).unwrap().ino;
    let layout = session.begin(ino, 1).unwrap();
    session.write(ino, &layout, 0, &pattern(2 * UNIT as usize, 8));
    session.close(1);
    site.kill();
    site.start();
    let again = Session::over(&site, SessionId(7000));
    again.mount();
    let mtime = Some(Time { sec: 1000, nsec: 5 });
    let changes = Some(Changes { mtime: Some(SetTime { at: mtime }), ..Changes::default() });
    again.try_ask(&SetAttr { head: again.op(), ino, changes, grow_only: false }).unwrap();
    site.wait_for(3);
    again.open(ino, 1, true).unwrap();
    again.begin(ino, 1).unwrap();
    assert_eq!(again.attr(ino).unwrap().mtime, mtime);
    again.write(ino, &layout, 0, b"y");
    assert_ne!(again.attr(ino).unwrap().mtime, mtime);
}

#[test]
fn listings_names_and_extended_attributes() {
    let site = Site::new(1);
    let session = site.session();
    for n in 0..50 {
        session.create(&format!("f{n}"), 100 + n).unwrap();
    }
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let (head, dir) = (session.head(), 1);
        let all = ReadDir { attributes: true, referring: true, ..ReadDir::default() };
        let list = ReadDir { head, dir, cookie, entries_max: 7, ..all };
        let (listed, body) = ask(&session.meta, &list, &[], 1 << 20).unwrap();
        for entry in Entries::decode(&body[..]).unwrap().entries {
            assert_eq!(entry.attr.unwrap().ino, entry.ino);
            cookie = entry.cookie;
            names.push(String::from_utf8(entry.name).unwrap());
        }
        if listed.end {
            break;
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 52);
    let ino = session.lookup("f7").unwrap().ino;
    let (head, name) = (session.op(), b"user.x".to_vec());
    let set = proto::metadata::SetXattr { head, ino, name: name.clone(), mode: 1, kill_sgid: false };
    ask(&session.meta, &set, b"value", 0).unwrap();
    let get = GetXattr { head: session.head(), ino, name: name.clone() };
    assert_eq!(ask(&session.meta, &get, &[], 64).unwrap().1, b"value");
    assert_eq!(Errno::from_raw(ask(&session.meta, &get, &[], 2).unwrap_err().errno), Errno::ERANGE);
    let list = ListXattr { head: session.head(), ino };
    assert_eq!(ask(&session.meta, &list, &[], 64).unwrap().1, b"user.x\0");
    session.try_ask(&RemoveXattr { head: session.op(), ino, name }).unwrap();
    let (head, dir) = (session.op(), 1);
    session.try_ask(&Link { head, ino, dir, name: b"other".to_vec() }).unwrap();
    assert_eq!(session.attr(ino).unwrap().nlink, 2);
    let (head, from_name, to_name) = (session.op(), b"other".to_vec(), b"f8".to_vec());
    session.try_ask(&Rename { head, from_dir: 1, from_name, to_dir: 1, to_name, mode: 0 }).unwrap();
    assert_eq!(session.lookup("f8").unwrap().ino, ino);
    let (head, caller) = (session.op(), Session::caller());
    let link = Symlink { head, caller, dir: 1, name: b"s".to_vec(), target: b"f8".to_vec() };
    let link = session.try_ask(&link).unwrap().attr.unwrap().ino;
    assert_eq!(session.try_ask(&ReadLink { head: session.head(), ino: link }).unwrap().target, b"f8");
    assert_eq!(session.open(link, 7, false).err(), Some(Errno::EINVAL));
    assert_eq!(session.open(1, 7, false).err(), Some(Errno::EISDIR));
    let space = session.try_ask(&StatFs { head: session.head() }).unwrap();
    assert!(space.total > 0 && space.free <= space.total && space.inodes >= 51);
}

#[test]
fn the_map_names_the_data_servers() {
    let site = Site::new(3);
    let session = site.session();
    let (facts, body): (Facts, Vec<u8>) = ask(&session.control, &Hello {}, &[], 4 << 20).unwrap();
    let map = cluster::ClusterMap::decode(&body).unwrap();
    assert_eq!((map.epoch().0, map.nodes().count()), (facts.epoch, 3));
    assert!(map.nodes().all(|node| node.takes_data() && node.addresses.len() == 1));
    let since = MapSince { epoch: facts.epoch };
    assert!(ask(&session.control, &since, &[], 4 << 20).unwrap().1.is_empty());
    assert_eq!(ask(&session.control, &MapSince { epoch: 0 }, &[], 4 << 20).unwrap().1, body);
}

/// Whatever bytes come as a meta, there is an answer, and the service goes on.
#[test]
fn hostile_metas_are_answered() {
    let site = Site::new(1);
    let session = site.session();
    let ino = session.create("stays", 1).unwrap().ino;
    let head = session.head();
    let good = [
        Lookup { head, dir: 1, name: b"stays".to_vec() }.encode_to_vec(),
        Open { head, ino, opening: 5, write: true, keep: true, again: false }.encode_to_vec(),
        Append { head, ino, opening: 1, length: 5 }.encode_to_vec(),
        Hold { head, references: vec![Reference { ino, count: 3 }] }.encode_to_vec(),
        Mknod { head, caller: Session::caller(), dir: 1, name: b"n".to_vec(), kind: 4, mode: 0, rdev: 0 }
            .encode_to_vec(),
    ];
    let meta = std::sync::Mutex::new(&session.meta);
    let turn = std::sync::atomic::AtomicUsize::new(0);
    let names = [Method::Unlink, Method::Rename, Method::Unmount].map(proto::Method::number);
    fuzzing::fuzz_costly("metadata-metas", &good, fuzzing::as_it_is, |bytes| {
        let at = turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed) as u16;
        let method = if at.is_multiple_of(5) { 1 + at / 5 % 7 } else { 99 + at % 31 };
        if names.contains(&method) {
            return;
        }
        let call = net::Call { answer_bytes_max: 4096, ..net::Call::new(method, bytes.to_vec(), deadline()) };
        meta.lock().unwrap().call(call).unwrap();
    });
    assert_eq!(session.lookup("stays").unwrap().ino, ino);
}

use proto::Method;
