//! Goal: what a session keeps is asked back before it changes, whoever changes it and by whatever name; what is being written is not kept; who is
//! silent holds nobody up for long; a server that was started again waits for those who keep something. Method: a metadata server of this process,
//! sessions over sockets that keep what they are told they may.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use std::{sync::mpsc::channel, time::Duration};

use proto::{
    Head,
    attr::Changes,
    control::{Hello, Mount, Renew},
    leases::*,
    locks::Listen,
    metadata::{Link, Mkdir, Rename, RenameMode, SetAttr},
};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    ask,
    cluster::{Answer, Session, Site, options},
    until,
};
use types::Errno;

const KEPT: u32 = keeps::NAME | keeps::ATTRIBUTES;

fn with_silence(silence: Duration) -> Site {
    let sessions = SessionLimits { silence, ..SessionLimits::default() };
    Site::with(1, MetadataOptions { sessions, ..options() })
}

fn look(session: &Session, ino: u64, name: &str) -> Answer<Looked> {
    session.try_ask(&Look { head: session.head(), ino, name: name.as_bytes().to_vec(), referring: false })
}

/// Until all of it may be kept: what was recalled a moment ago is not.
fn keep(session: &Session, ino: u64, name: &str, what: u32) -> Looked {
    let mut looked = None;
    until("it may be kept", || {
        looked = look(session, ino, name).ok().filter(|looked| looked.keeps == what);
        looked.is_some()
    });
    looked.unwrap()
}

fn chmod(session: &Session, ino: u64, mode: u32) {
    let changes = Some(Changes { mode: Some(mode), ..Changes::default() });
    session.try_ask(&SetAttr { head: session.op(), ino, changes, grow_only: false }).unwrap();
}

/// What is asked back from a session while something runs that has to wait for it. Nothing of that may end before it is given back.
fn recalled(session: &Session, run: impl FnOnce() + Send) -> Vec<(u64, String)> {
    let (done, ended) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            run();
            done.send(()).unwrap();
        });
        let (mut heard, mut all) = (0, Vec::new());
        loop {
            let listen = Listen { head: session.head(), heard };
            let recalls = ask(&session.control, &listen, &[], 0).unwrap().0.recalls;
            heard = recalls.last().map_or(heard, |recall| recall.number);
            assert!(
                recalls.is_empty() || ended.try_recv().is_err(),
                "it was answered before it was given back"
            );
            give_back(session, &recalls);
            all.extend(recalls.into_iter().map(|one| (one.ino, String::from_utf8(one.name).unwrap())));
            // There may be more, in several steps.
            if !all.is_empty() && ended.recv_timeout(Duration::from_millis(300)).is_ok() {
                all.sort();
                return all;
            }
        }
    })
}

fn give_back(session: &Session, recalls: &[Recalled]) {
    let back = |one: &Recalled| Returned {
        ino: one.ino,
        name: one.name.clone(),
        keeps: one.keeps,
        number: one.grant,
    };
    let returned = recalls.iter().map(back).collect();
    ask(&session.control, &Return { head: session.head(), returned, ..Return::default() }, &[], 0).unwrap();
}

#[test]
fn what_is_kept_is_asked_back_before_it_changes() {
    let site = Site::new(1);
    let (one, two) = (site.session(), site.session());
    let ino = two.create("f", 1).unwrap().ino;
    two.close(1);
    let looked = keep(&one, 1, "f", KEPT);
    assert_eq!((looked.attr.unwrap().ino, looked.term_ms), (ino, 4000));
    assert_eq!(keep(&one, ino, "", keeps::ATTRIBUTES).attr, looked.attr);
    assert_eq!(recalled(&one, || chmod(&two, ino, 0o600)), [(ino, String::new())]);
    assert_eq!(look(&one, ino, "").unwrap().attr.unwrap().mode, 0o600);
    // One's own change takes nothing away: he knows of it.
    keep(&one, ino, "", keeps::ATTRIBUTES);
    let before = site.service().lease_counts().recalled;
    chmod(&one, ino, 0o640);
    assert_eq!(site.service().lease_counts().recalled, before);
    // A name that is not there.
    let absent = keep(&one, 1, "g", keeps::NAME);
    assert_eq!(absent.attr, None);
    let (head, name) = (two.op(), b"g".to_vec());
    let link = Link { head, ino, dir: 1, name };
    assert_eq!(
        recalled(&one, || assert!(two.try_ask(&link).is_ok())),
        [(1, "g".to_owned()), (ino, String::new())]
    );
    // The other name of what goes.
    assert_eq!(keep(&one, 1, "g", KEPT).attr.unwrap().nlink, 2);
    assert_eq!(
        recalled(&one, || two.unlink("f").unwrap()),
        [(1, "f".to_owned()), (ino, String::new())],
        "it kept that name, too"
    );
    assert_eq!(keep(&one, 1, "g", KEPT).attr.unwrap().nlink, 1);
    // By a session that does not know what the name names, nobody keeps anything of it, not even himself; by one that does, he does.
    keep(&two, 1, "g", KEPT);
    let rename = |session: &Session, from: &str, to: &str, dropped: u64| {
        let head = session.op().map(|head| Head { dropped, ..head });
        let (from_name, to_name) = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
        let mode = RenameMode::Replace.into();
        session.try_ask(&Rename { head, from_dir: 1, from_name, to_dir: 1, to_name, mode }).unwrap();
    };
    keep(&one, ino, "", keeps::ATTRIBUTES);
    let blind = std::thread::scope(|scope| {
        let two = &two;
        let his = scope.spawn(move || recalled(two, || rename(two, "g", "h", 0)));
        recalled(&one, || assert_eq!(his.join().unwrap(), [(ino, String::new())]))
    });
    assert!(blind.contains(&(1, "g".to_owned())) && blind.contains(&(ino, String::new())), "{blind:?}");
    keep(&two, 1, "h", KEPT);
    let before = site.service().lease_counts().recalled;
    rename(&two, "h", "i", ino);
    assert_eq!(site.service().lease_counts().recalled, before, "he knows of it");
}

#[test]
fn a_listing_may_be_kept() {
    use prost::Message;
    use proto::metadata::{Entries, ReadDir};
    let site = Site::new(1);
    let (one, two) = (site.session(), site.session());
    let (head, caller) = (two.op(), Session::caller());
    let made = Mkdir { head, caller, dir: 1, name: b"d".to_vec(), mode: 0o755 };
    let dir = two.try_ask(&made).unwrap().attr.unwrap().ino;
    let ino = two.create("f", 1).unwrap().ino;
    let list = |keeping: bool| {
        let all = ReadDir { attributes: true, referring: true, keeping, ..ReadDir::default() };
        let list = ReadDir { head: one.head(), dir: 1, ..all };
        let (listed, body) = ask(&one.meta, &list, &[], 1 << 20).unwrap();
        let entries = Entries::decode(&body[..]).unwrap().entries;
        let keeps = |name: &[u8]| entries.iter().find(|entry| entry.name == name).unwrap().keeps;
        (listed.term_ms, keeps(b"."), keeps(b"d"), keeps(b"f"))
    };
    assert_eq!(list(false), (0, 0, 0, 0));
    until("names are kept, and attributes of what nobody writes", || {
        list(true) == (4000, 0, KEPT, keeps::NAME)
    });
    two.close(1);
    until("it is settled", || list(true).3 == KEPT);
    let asked = recalled(&one, || chmod(&two, dir, 0o700));
    assert_eq!(asked, [(dir, String::new())]);
    assert_eq!(recalled(&one, || chmod(&two, ino, 0o600)), [(ino, String::new())]);
}

#[test]
fn nothing_is_kept_of_a_file_that_is_written() {
    let site = Site::new(1);
    let (one, two) = (site.session(), site.session());
    let ino = two.create("f", 1).unwrap().ino;
    let layout = two.begin(ino, 1).unwrap();
    assert_eq!(look(&one, 1, "f").unwrap().keeps & !keeps::NAME, 0);
    two.write(ino, &layout, 0, b"12345");
    let looked = look(&one, ino, "").unwrap();
    assert_eq!((looked.keeps, looked.attr.unwrap().size), (0, 5));
    two.close(1);
    assert_eq!(keep(&one, ino, "", keeps::ATTRIBUTES).attr.unwrap().size, 5);
    // Also before the first byte.
    assert_eq!(recalled(&one, || assert!(two.open(ino, 2, true).is_ok())), [(ino, String::new())]);
    assert_eq!(look(&one, ino, "").unwrap().keeps, 0);
    two.close(2);
    keep(&one, ino, "", keeps::ATTRIBUTES);
    assert_eq!(recalled(&one, || assert!(two.set_size(ino, 3, false).is_ok())), [(ino, String::new())]);
    assert_eq!(keep(&one, ino, "", keeps::ATTRIBUTES).attr.unwrap().size, 3);
}

#[test]
fn who_is_silent_holds_nobody_up_for_long() {
    // He would be given up after so long.
    let site = with_silence(Duration::from_secs(15));
    let (one, two) = (site.session(), site.session());
    let ino = two.create("f", 1).unwrap().ino;
    two.close(1);
    keep(&one, 1, "f", KEPT);
    // He does not listen.
    chmod(&two, ino, 0o600);
    assert_eq!(site.service().lease_counts().lapsed, 1);
    ask(&one.control, &Renew { head: one.head(), node: None, writes: false }, &[], 0)
        .expect("the session goes on");
    assert_eq!(look(&one, ino, "").unwrap().attr.unwrap().mode, 0o600);
}

#[test]
fn a_server_that_was_started_again_waits_for_those_who_keep_something() {
    let mut site = with_silence(Duration::from_secs(100));
    let (one, two) = (site.session(), site.session());
    let before = one.mount().joined;
    let ino = two.create("f", 1).unwrap().ino;
    two.close(1);
    keep(&one, 1, "f", KEPT);
    site.kill();
    site.start();
    two.mount();
    assert_eq!(look(&two, ino, "").unwrap().keeps, 0, "nothing is granted yet");
    std::thread::scope(|scope| {
        let change = scope.spawn(|| chmod(&two, ino, 0o600));
        assert_eq!(two.attr(ino).unwrap().mode, 0o644);
        let life = ask(&one.control, &Hello {}, &[], 1 << 20).unwrap().0.life;
        let head = Some(Head::of(one.id));
        assert!(!change.is_finished());
        ask(&one.control, &Mount { head, host: "test".into(), before, life, ..Mount::default() }, &[], 0)
            .unwrap();
        change.join().unwrap();
    });
    assert_eq!(look(&one, 1, "f").unwrap().attr.unwrap().mode, 0o600);
    assert_eq!(look(&one, 1, "g").unwrap().attr, None);
    assert_eq!(one.lookup("g"), Err(Errno::ENOENT));
}
