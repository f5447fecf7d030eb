//! Metadata servers that die while slots are on their way to them, and that are taken out of the cluster afterwards.
#![allow(clippy::unwrap_used, reason = "tests")]

mod site;

use std::{sync::atomic::Ordering, thread, time::Duration};

use cluster::NodeId;
use proto::{metadata::GetAttr, moving::RemoveNode};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    DataSite, ask_once,
    cluster::options,
    several::{Begin, Several, slot_of},
    until,
};
use types::Errno;
use wire::schema::Fault;

fn remove(site: &Several, n: usize) -> Result<(), Fault> {
    ask_once(&site.duty(), &RemoveNode { node: Several::node(n) }, &[], 0).map(drop)
}

fn share(site: &Several, n: usize) -> usize {
    site.map(site.owner(1)).slots_of(NodeId(Several::node(n))).count()
}

/// Goal: slots stay where they are served when who is to have them died a moment ago, and is believed to be there still. Method: it is killed, and is
/// given a slot at once; the slot's epoch says whether anybody let it go.
#[test]
fn regression_slots_are_not_let_go_for_a_server_that_has_just_died() {
    let mut site = Several::new(2, 0);
    let dir = site.session().mkdir(1, "d").unwrap();
    until("the directory is where it belongs", || site.try_bring(dir, 0).is_ok());
    let before = site.map(0).slot(slot_of(dir));
    site.kill(1);
    site.try_bring(dir, 1).unwrap_err();
    assert_eq!(site.map(0).slot(slot_of(dir)), before);
    site.start(1);
    until("it is given slots as before", || site.try_bring(dir, 1).is_ok());
    assert_eq!(site.owner(dir), 1);
}

/// Goal: who falls silent while he takes slots is not waited for, and gets none of them later, when others have them. Method: he waits for the rows,
/// and says no more that he is there, since he is about to end.
#[test]
fn who_falls_silent_while_he_takes_slots_gets_none_later() {
    let site = Several::new(2, 0);
    let session = site.session();
    let dir = session.mkdir(1, "d").unwrap();
    until("the directory is where it belongs", || site.try_bring(dir, 0).is_ok());
    site.slow.store(1, Ordering::SeqCst);
    thread::scope(|scope| {
        let bringing = scope.spawn(|| site.try_bring(dir, 1));
        let leaving = scope.spawn(|| site.service(1).leave(Duration::from_secs(60)));
        bringing.join().unwrap().unwrap_err();
        assert_eq!(site.owner(dir), 0);
        site.slow.store(usize::MAX, Ordering::SeqCst);
        assert_eq!(leaving.join().unwrap(), Some(0));
    });
    assert_eq!(site.owner(dir), 0);
    session.mkdir(dir, "below").unwrap();
    let wrong = session.at(1, &GetAttr { head: session.head(), ino: dir }).unwrap_err();
    assert_eq!(wrong.errno, Errno::EREMOTE.raw());
}

/// Goal: a metadata server that died, and for which another went on, is nobody's trouble, and can be taken out of the cluster; one that runs cannot.
/// If it comes again it is one that is new. Method: one that data servers have in their configuration, and one that they know by the map.
#[test]
fn who_died_and_has_nothing_is_taken_out() {
    let sessions = SessionLimits { silence: Duration::from_secs(2), ..SessionLimits::default() };
    let options = MetadataOptions { sessions, ..options() };
    let data = vec![DataSite::started(1)];
    let mut site =
        Several::begun(Begin { servers: 3, first: 2, standbys: Default::default(), data, options });
    site.start(2);
    for n in [2, 1] {
        until("it has its share", || share(&site, n) > 500);
        until("data servers report to it", || site.service(n).nodes().measures().len() == 1);
        until("it has a standby", || site.is_copied(n));
        let runs = remove(&site, n).unwrap_err();
        assert!(runs.errno == Errno::EBUSY.raw() && runs.detail.contains("runs"), "{}", runs.detail);
        site.kill(n);
        until("it is missed", || site.trouble_of(0).is_some() || share(&site, n) == 0);
        until("it has nothing any more", || share(&site, n) == 0);
        until("nobody misses it", || site.trouble_of(0).is_none());
        until("it is taken out", || remove(&site, n).is_ok());
        let gone = |of: usize| site.map(of).node(NodeId(Several::node(n))).is_none();
        until("all know", || (0..3).filter(|of| *of != n).all(gone));
        assert_eq!(site.trouble_of(0), None);
        site.start(n);
    }
    until("it has its share again", || share(&site, 1) > 500);
    site.session().mkdir(1, "d").unwrap();
}

/// Goal: one that has something that nobody else can serve is not taken out. Method: it has no standby, dies and comes again.
#[test]
fn who_died_and_has_slots_stays() {
    let mut site = Several::new(2, 0);
    site.standby = false;
    site.leave(1);
    site.start(1);
    site.settled();
    site.kill(1);
    until("it is silent", || remove(&site, 1).unwrap_err().detail.contains("still has"));
    site.start(1);
    until("it runs", || remove(&site, 1).unwrap_err().detail.contains("runs"));
    site.settled();
}

/// Goal: who left and had to keep some slots, and comes again, gets its share as before. Method: it leaves soon after a start, when clients may still come
/// back to slots that they use.
#[test]
fn regression_who_kept_some_slots_gets_its_share_when_it_comes_again() {
    let mut site = Several::new(2, 0);
    let session = site.session();
    let dirs: Vec<u64> = (0..4).map(|n| session.mkdir(1, &format!("d{n}")).unwrap()).collect();
    until("one is where it belongs", || dirs.iter().any(|dir| site.owner(*dir) == 1));
    let dir = dirs.iter().find(|dir| site.owner(**dir) == 1).unwrap();
    session.create(*dir, "open", 1).unwrap();
    let before = share(&site, 1);
    site.stop(1);
    site.start(1);
    until("it has its slots", || share(&site, 1) == before);
    let left = site.service(1).leave(Duration::from_secs(3)).unwrap();
    assert!(left > 0 && left < before / 2, "{left} of {before} stay");
    site.stop(1);
    site.start(1);
    until("it has its share again", || share(&site, 1) > before / 4 * 3);
}
