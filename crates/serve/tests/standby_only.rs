//! A metadata server that only keeps copies: it is given nothing, goes on for whoever dies, and gives that away again.
#![allow(clippy::unwrap_used, reason = "tests")]

mod site;

use std::time::Duration;

use cluster::NodeId;
use proto::metadata::GetAttr;
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    cluster::options,
    several::{Begin, Routed, Several},
    until,
};
use types::Errno;

fn begun(servers: usize) -> Several {
    let sessions = SessionLimits { silence: Duration::from_secs(2), ..SessionLimits::default() };
    let options = MetadataOptions { sessions, ..options() };
    let standbys = [servers - 1].into();
    let site = Several::begun(Begin { servers, first: servers, standbys, data: Vec::new(), options });
    (0..servers - 1).for_each(|n| {
        until("the server has a standby", || site.is_copied(n));
    });
    site
}

fn slots_of(site: &Several, n: usize) -> usize {
    site.map(site.owner(1)).slots_of(NodeId(Several::node(n))).count()
}

fn dirs(session: &Routed<'_>) -> Vec<u64> {
    (0..6).map(|n| session.mkdir(1, &format!("d{n}")).unwrap()).collect()
}

/// All is there, and more can be made.
fn works(site: &Several, dirs: &[u64], name: &str) {
    let session = site.session();
    for dir in dirs {
        session.mkdir(*dir, name).unwrap();
        assert_eq!(session.mkdir(*dir, name), Err(Errno::EEXIST));
    }
    session.mkdir(1, name).unwrap();
    session.rename((dirs[0], name), (dirs[1], &format!("of-0-{name}"))).unwrap();
}

/// Goal: it gets no slots, whatever is asked for it, and is everybody's standby. It serves those of a dead server until another has them
/// all, and none comes to it by itself. Method: three servers, a follower dies and comes back.
#[test]
fn it_goes_on_for_a_follower_and_gives_that_away() {
    let mut site = begun(3);
    let all = dirs(&site.session());
    works(&site, &all, "first");
    for n in 0..2 {
        assert_eq!(site.map(0).standby_of(NodeId(Several::node(n))), Some(NodeId(Several::node(2))));
    }
    assert_eq!(slots_of(&site, 2), 0);
    let refused = site.try_bring(all[0], 2).unwrap_err();
    assert!(refused.detail.contains("standby_only"), "{}", refused.detail);
    until("directories are where their slots belong", || all.iter().any(|dir| site.owner(*dir) == 1));
    let mine = *all.iter().find(|dir| site.owner(**dir) == 1).unwrap();
    site.kill_copied(1);
    until("the standby goes on", || site.owner(mine) == 2);
    works(&site, &all, "second");
    until("the other one has all", || site.owner(mine) == 0 && slots_of(&site, 2) == 0);
    works(&site, &all, "third");
    site.start(1);
    until("it has its share again", || slots_of(&site, 1) > 1000);
    assert_eq!(slots_of(&site, 2), 0);
    works(&site, &all, "fourth");
}

/// Goal: it goes on for who was on duty, and gives the duty away, too. Method: as above, the first one dies.
#[test]
fn it_goes_on_for_who_is_on_duty_and_gives_that_away() {
    let mut site = begun(3);
    let all = dirs(&site.session());
    let before = site.map(0).epoch();
    site.kill_copied(0);
    until("the standby goes on", || site.owner(1) == 2);
    until("it begins anew", || site.service(2).has_to_begin_anew());
    site.begin_anew();
    works(&site, &all, "first");
    until("the other one is on duty, and has all", || site.owner(1) == 1 && slots_of(&site, 2) == 0);
    until("they have one map", || site.map(1) == site.map(2));
    assert!(site.map(1).epoch() > before);
    works(&site, &all, "second");
    site.start(0);
    until("it has its share again", || slots_of(&site, 0) > 1000);
    // It can do it again: what it knew as the server on duty is no hindrance.
    (0..2).for_each(|n| until("the server has a standby", || site.is_copied(n)));
    site.kill_copied(1);
    until("the standby goes on again", || site.owner(1) == 2);
    until("it begins anew", || site.service(2).has_to_begin_anew());
    site.begin_anew();
    until("the other one is on duty", || site.owner(1) == 0 && slots_of(&site, 2) == 0);
    works(&site, &all, "third");
}

/// Goal: with no other server up it serves alone, operations over several slots too, and all of it goes to the first server that comes; who
/// is stopped in order leaves it to it. It alone makes no file system. Method: one server, and one that only keeps copies.
#[test]
fn it_is_alone_for_as_long_as_it_has_to() {
    let mut site = begun(2);
    let all = dirs(&site.session());
    site.leave(0);
    assert_eq!((site.owner(1), slots_of(&site, 1)), (1, 4096));
    works(&site, &all, "first");
    site.start(0);
    until("all is the server's that is none", || site.owner(1) == 0 && slots_of(&site, 1) == 0);
    until("they have one map", || site.map(0) == site.map(1));
    works(&site, &all, "second");
    let session = site.session();
    for dir in &all {
        let wrong = session.at(1, &GetAttr { head: session.head(), ino: *dir }).unwrap_err();
        assert_eq!(wrong.errno, Errno::EREMOTE.raw());
    }
}
