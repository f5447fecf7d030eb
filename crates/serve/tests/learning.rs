//! Who is in nobody's configuration: metadata servers that came later are found by the cluster map.
#![allow(clippy::unwrap_used, reason = "tests")]

mod site;

use std::{collections::BTreeSet, time::Duration};

use cluster::NodeId;
use proto::metadata::{BeginWrite, GetAttr};
use serve::metadata::{MetadataOptions, SessionLimits};
use site::{
    DataSite,
    cluster::options,
    several::{Begin, Several},
    until,
};

fn begun(servers: usize, first: usize, data: u64) -> Several {
    let sessions = SessionLimits { silence: Duration::from_secs(2), ..SessionLimits::default() };
    let options = MetadataOptions { sessions, ..options() };
    let data = (1..=data).map(DataSite::started).collect();
    Several::begun(Begin { servers, first, standbys: BTreeSet::new(), data, options })
}

fn share(site: &Several, n: usize) -> usize {
    site.map(site.owner(1)).slots_of(NodeId(Several::node(n))).count()
}

/// Goal: files are written in the slots of a metadata server that no data server has in its configuration. Method: it is started later, and a
/// file is placed, which it does only on data servers that report to it.
#[test]
fn data_servers_report_to_who_came_later() {
    let mut site = begun(2, 1, 2);
    site.start(1);
    until("it has its share", || share(&site, 1) > 1000);
    until("data servers report to it", || site.service(1).nodes().measures().len() == 2);
    let session = site.session();
    let dirs: Vec<u64> = (0..6).map(|n| session.mkdir(1, &format!("d{n}")).unwrap()).collect();
    until("directories are where their slots belong", || dirs.iter().any(|dir| site.owner(*dir) == 1));
    for (n, dir) in (1..).zip(dirs) {
        let file = session.create(dir, "file", n).unwrap();
        let begin = BeginWrite { head: session.op(), ino: file, opening: n };
        let begun = session.ask(&begin).unwrap();
        assert!(begun.layout.is_some());
        session.ask(&GetAttr { head: session.head(), ino: file }).unwrap();
    }
    drop(session);
    // It is stopped: whoever is left is reported to on, and it again when it comes again.
    site.leave(1);
    site.start(1);
    until("data servers report to it again", || site.service(1).nodes().measures().len() == 2);
}

/// Goal: metadata servers follow one on duty that is in nobody's configuration, also after a start. Method: it came later, and the others leave
/// one after the other.
#[test]
fn metadata_servers_follow_who_came_later() {
    let mut site = begun(3, 2, 0);
    site.start(2);
    until("it has its share", || share(&site, 2) > 1000);
    let dir = site.session().mkdir(1, "d").unwrap();
    // Whoever has least to do gets the duty.
    while site.owner(1) != 2 {
        let on_duty = site.owner(1);
        site.leave(on_duty);
        site.start(on_duty);
        let next = site.owner(1);
        assert_ne!(next, on_duty);
        until("it follows, and has its share", || share(&site, on_duty) > 500);
    }
    for n in 0..2 {
        site.leave(n);
        // It asks the other one, which is not on duty.
        site.start(n);
        until("it follows who is on duty", || site.map(n) == site.map(2) && share(&site, n) > 500);
    }
    site.session().mkdir(dir, "after").unwrap();
}
