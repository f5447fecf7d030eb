//! Goal: a new file that is written and closed costs as few messages as it can, and whoever looks at files that are being written, or were
//! closed a moment ago, is told the truth with as few questions. Method: sessions at a metadata server with three data servers, whose
//! requests are counted.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use proto::{
    Method,
    attr::Time,
    closing::{CloseMany, Closing},
    metadata::*,
    untouched::GetUntouched,
};
use site::{
    ask,
    cluster::{Session, Site},
    until,
};
use types::Errno;

use prost::Message;

fn made(session: &Session, name: &str, opening: u64) -> (u64, proto::Layout) {
    let (head, caller) = (session.op(), Session::caller());
    let name = name.as_bytes().to_vec();
    let create = Create { head, caller, dir: 1, name, mode: 0o644, opening, write: true };
    let opened = session.try_ask(&create).unwrap();
    (opened.attr.unwrap().ino, opened.layout.expect("its writing has begun"))
}

/// Of all data servers.
fn asked(site: &Site, method: Method) -> u64 {
    let of = |data: &site::DataSite| {
        let counts = data.service().workers().meter().counts();
        counts.iter().find(|counts| counts.method == method).map_or(0, |counts| counts.requests)
    };
    site.data.iter().map(of).sum()
}

fn live(site: &Site, ino: u64) -> bool {
    site.mds().find(types::Ino::from_raw(ino).unwrap()).unwrap().data.live
}

fn listed(session: &Session) -> Vec<DirEntry> {
    let list = ReadDir { head: session.head(), dir: 1, attributes: true, ..ReadDir::default() };
    let (_, body) = ask(&session.meta, &list, &[], 1 << 20).unwrap();
    Entries::decode(&body[..]).unwrap().entries
}

#[test]
fn a_new_file_is_begun_with_its_making() {
    let mut site = Site::new(3);
    let one = site.session();
    let (ino, layout) = made(&one, "f", 1);
    assert!(live(&site, ino), "before a byte may come");
    one.write(ino, &layout, 0, b"bytes");
    assert_eq!(one.begin(ino, 1).unwrap(), layout);
    // The metadata server dies: what was begun is known, and what was written too.
    site.kill();
    site.start();
    site.wait_for(3);
    let two = site.session();
    let there = two.lookup("f").unwrap();
    assert_eq!((there.ino, there.size), (ino, 5));
    assert!(two.read(ino, &layout, 5) == b"bytes");
}

#[test]
fn a_file_that_gets_no_byte_is_empty_and_settled() {
    let site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    let (ino, _) = made(&one, "f", 1);
    assert_eq!(two.lookup("f").unwrap().size, 0);
    one.close(1);
    assert!(!live(&site, ino));
    let opened = two.open(ino, 1, true).unwrap();
    assert_eq!(opened.attr.unwrap().size, 0);
    let layout = two.begin(ino, 1).unwrap();
    two.write(ino, &layout, 7, b"x");
    assert_eq!(one.attr(ino).unwrap().size, 8);
    let head = one.op();
    let tmp = one.try_ask(&TmpFile { head, caller: Session::caller(), dir: 1, mode: 0o600, opening: 9 });
    assert!(tmp.unwrap().layout.is_some());
}

#[test]
fn who_made_a_file_and_wrote_nothing_is_answered_without_the_data_servers() {
    let site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    let (ino, layout) = made(&one, "f", 1);
    let untouched = |session: &Session, opening| {
        let before = asked(&site, Method::Attrs);
        let get = GetUntouched { head: session.head(), ino, opening };
        let attr = session.try_ask(&get).unwrap().attr.unwrap();
        (attr.size, asked(&site, Method::Attrs) - before)
    };
    assert_eq!(untouched(&one, 1), (0, 0));
    assert_eq!(one.set_size(ino, 5, false).unwrap().size, 5);
    assert_eq!(untouched(&one, 1), (5, 0));
    // Another opening, or another session, is not who made it.
    assert_eq!(untouched(&one, 2), (5, 3));
    assert_eq!(untouched(&two, 1), (5, 3));
    // Somebody else could have written.
    two.open(ino, 7, true).unwrap();
    assert_eq!(untouched(&one, 1), (5, 3));
    two.write(ino, &layout, 5, b"more");
    two.close(7);
    until("it did not grow for longer than it is asked about", || {
        let (size, questions) = untouched(&one, 1);
        assert_eq!(size, 9);
        questions == 3
    });
}

#[test]
fn nothing_begins_where_no_data_server_is() {
    let mut site = Site::new(1);
    site.kill_data(0);
    until("it counts as away", || site.service().nodes().measures().is_empty());
    let one = site.session();
    let ino = one.create("f", 1).unwrap().ino;
    assert!(!live(&site, ino), "the file is there all the same");
    assert_eq!(one.begin(ino, 1), Err(Errno::ENOSPC));
}

#[test]
fn many_are_closed_and_looked_at_with_one_question_to_each_server() {
    const MANY: u64 = 100;
    let site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    let files: Vec<(u64, proto::Layout)> =
        (0..MANY).map(|n| made(&one, &format!("f{n:03}"), n + 1)).collect();
    for (n, (ino, layout)) in files.iter().enumerate() {
        one.write(*ino, layout, 0, &vec![7; n + 1]);
    }
    let sizes = |entries: &[DirEntry]| {
        let files = entries.iter().filter(|entry| entry.name.starts_with(b"f"));
        files.map(|entry| entry.attr.as_ref().unwrap().size).sum::<u64>()
    };
    // Of what may have grown since it was begun to be asked about the others are asked once more.
    until("each data server is asked once about what does not grow", || {
        let before = asked(&site, Method::Attrs);
        assert_eq!(sizes(&listed(&two)), MANY * (MANY + 1) / 2, "as they are while they are written");
        asked(&site, Method::Attrs) - before == 3
    });

    let read = Some(Time { sec: 5, nsec: 6 });
    let closing = |(n, (ino, _)): (usize, &(u64, proto::Layout))| Closing {
        opening: n as u64 + 1,
        ino: *ino,
        atime: read.filter(|_| n == 3),
    };
    let closings: Vec<Closing> = files.iter().enumerate().map(closing).collect();
    let before = asked(&site, Method::Attrs);
    let close = CloseMany { head: one.head(), closings };
    one.try_ask(&close).unwrap();
    assert_eq!(asked(&site, Method::Attrs) - before, 3, "one question to each data server");
    assert!(files.iter().all(|(ino, _)| !live(&site, *ino)), "they are settled when it is answered");
    assert_eq!(sizes(&listed(&two)), MANY * (MANY + 1) / 2);
    assert_eq!(asked(&site, Method::Attrs) - before, 3, "of settled files nobody is asked");
    let attr = two.attr(files[3].0).unwrap();
    assert_eq!((attr.size, attr.atime), (4, read));
    // Again: what is closed is closed.
    one.try_ask(&close).unwrap();
    until("all is told", || site.service().in_use().1 == 0);
}

#[test]
fn a_file_that_somebody_else_writes_is_not_settled_by_a_close() {
    let site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    let (ino, layout) = made(&one, "f", 1);
    let (other, _) = made(&one, "g", 2);
    two.open(ino, 1, true).unwrap();
    one.write(ino, &layout, 0, b"one");
    let closings = [(1, ino), (2, other)].map(|(opening, ino)| Closing { opening, ino, atime: None });
    one.try_ask(&CloseMany { head: one.head(), closings: closings.to_vec() }).unwrap();
    assert!(live(&site, ino) && !live(&site, other));
    two.write(ino, &layout, 3, b" two");
    assert_eq!(one.attr(ino).unwrap().size, 7);
    two.close(1);
    assert_eq!(one.attr(ino).unwrap().size, 7);
}

#[test]
fn a_data_server_that_is_away_costs_its_own_files_of_a_close_and_of_a_listing() {
    let mut site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    // As long as one is away files are made on the two others.
    site.kill_data(2);
    until("it counts as away", || site.service().nodes().measures().len() == 2);
    let (small, layout) = made(&one, "small", 1);
    one.write(small, &layout, 0, b"there");
    site.start_data(2);
    let (wide, layout) = made(&one, "wide", 2);
    assert_eq!(layout.stripes.len(), 3);
    one.write(wide, &layout, 0, b"wide");
    site.kill_data(2);
    until("it counts as away", || site.service().nodes().measures().len() == 2);
    let entries = listed(&two);
    let of = |name: &[u8]| entries.iter().find(|entry| entry.name == name).unwrap();
    assert_eq!(of(b"small").attr.as_ref().map(|attr| attr.size), Some(5));
    assert_eq!(of(b"wide").attr, None, "what it came to is not known now");
    let closings = [(1, small), (2, wide)].map(|(opening, ino)| Closing { opening, ino, atime: None });
    one.try_ask(&CloseMany { head: one.head(), closings: closings.to_vec() }).unwrap();
    assert!(!live(&site, small) && live(&site, wide));
    site.start_data(2);
    until("the other is settled as well", || !live(&site, wide));
    assert_eq!(two.attr(wide).unwrap().size, 4);
}
