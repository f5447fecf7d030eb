//! Goal: troubles of data servers stay with their files, and what was begun is finished: a cut that fails half-way, a server that hangs,
//! a process with both roles. Method: planned failures of devices, a server that takes requests and never answers, one store for two services.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mds::{Mds, MdsOptions};
use net::{Bounds, Handler, Incoming, Reply, Server, Tuning};
use proto::{
    Head, Layout, Reason, SessionId,
    control::{Mount, NodeReport},
    data::{Object, Read, Write},
    metadata::{BeginWrite, Close, Create, Forget, GetAttr, Reference, Unlink},
};
use serve::{MetadataService, Services, metadata::MetadataOptions, reporting::Reporter};
use site::{
    DataSite, ask, client_as, client_to,
    cluster::{META, Session, Site, options},
    credentials, until,
};
use store::{Fault, FaultSpan, IoKind};
use types::Errno;
use wire::{handshake::Roles, schema::Lane};

const UNIT: u64 = 4 << 20;

/// A file of three units was cut to one and 5 bytes: behind them there is nothing, also when it grows again.
fn is_cut(session: &Session, ino: u64, layout: &Layout, bytes: Vec<u8>) {
    session.open(ino, 1, true).unwrap();
    assert_eq!(session.attr(ino).unwrap().size, UNIT + 5);
    session.begin(ino, 1).unwrap();
    session.write(ino, layout, 3 * UNIT - 1, b"x");
    let mut expected = bytes;
    expected[UNIT as usize + 5..].fill(0);
    expected[3 * UNIT as usize - 1] = b'x';
    assert!(session.read(ino, layout, 3 * UNIT) == expected);
}

#[test]
fn a_cut_that_fails_half_way_is_finished_before_anything_else() {
    let mut site = Site::new(3);
    let (one, two) = (site.session(), site.session());
    let ino = one.create("f", 1).unwrap().ino;
    let layout = one.begin(ino, 1).unwrap();
    let bytes = vec![7; 3 * UNIT as usize];
    one.write(ino, &layout, 0, &bytes);
    // The second stripe keeps its bytes.
    let node = layout.stripes[1];
    let faults = site.data.iter().find(|data| data.node == node).unwrap().faults.clone();
    let fault = Fault { kind: None, nth: 1, errno: Errno::EIO, span: FaultSpan::Onwards, torn: false };
    for kind in [IoKind::Truncate, IoKind::Allocate] {
        faults.plan(Fault { kind: Some(kind), ..fault });
    }
    assert_eq!(two.set_size(ino, UNIT + 5, false), Err(Errno::EIO));
    assert!(faults.fired() > 0);
    // Nothing is shown that is half, and nothing is begun on it.
    assert_eq!(one.attr(ino), Err(Errno::EIO));
    assert_eq!(one.begin(ino, 1), Err(Errno::EIO));
    site.kill();
    faults.clear();
    site.start();
    site.wait_for(3);
    let again = Session::over(&site, SessionId(5000));
    again.mount();
    is_cut(&again, ino, &layout, bytes);
}

/// Goal: what a cut took away does not come back, wherever the power is cut. Method: bytes that are durable everywhere, a cut, and
/// each server in turn without what it had not made durable.
#[test]
fn regression_a_cut_survives_the_power_cut_of_each_server() {
    let mut site = Site::new(3);
    let session = site.session();
    let ino = session.create("f", 1).unwrap().ino;
    let layout = session.begin(ino, 1).unwrap();
    let bytes = vec![7; 3 * UNIT as usize];
    session.write(ino, &layout, 0, &bytes);
    session.sync(ino, &layout);
    session.set_size(ino, UNIT + 5, false).unwrap();
    for n in 0..3 {
        site.power_cut_data(n);
    }
    assert_eq!(session.attr(ino).unwrap().size, UNIT + 5);
    site.power_cut();
    let again = Session::over(&site, SessionId(7000));
    again.mount();
    is_cut(&again, ino, &layout, bytes);
}

/// Goal: a file that was made just before the metadata server's power was cut leaves nothing in another, though its bytes are still
/// where they were, and its client still knows it. Method: each life writes a file of which nothing is synced, and makes another that has to be empty.
#[test]
fn regression_bytes_of_a_file_that_a_power_cut_took_are_in_no_other() {
    let mut site = Site::new(2);
    let mut known = Vec::new();
    for life in 0..3 {
        let session = Session::over(&site, SessionId(9000 + life));
        session.mount();
        let empty = session.create(&format!("empty{life}"), 1).unwrap();
        assert!(!known.contains(&empty.ino), "the number of a file that is gone");
        let layout = session.begin(empty.ino, 1).unwrap();
        assert_eq!(session.attr(empty.ino).unwrap().size, 0);
        assert_eq!(session.read(empty.ino, &layout, 5), [0; 5]);
        let lost = session.create(&format!("lost{life}"), 2).unwrap().ino;
        let layout = session.begin(lost, 2).unwrap();
        session.write(lost, &layout, 0, b"bytes");
        known.extend([empty.ino, lost]);
        site.power_cut();
        let again = Session::over(&site, SessionId(9500 + life));
        again.mount();
        // Who knows it by its number does not get another file.
        if let Ok(attr) = again.lookup(&format!("lost{life}")) {
            assert_eq!(attr.ino, lost);
        }
    }
}

/// A server that is started again soon is waited for, by those who come later when they are told to.
#[test]
fn short_restarts_are_no_errors() {
    let mut site = Site::with(3, MetadataOptions { node_silence: Duration::from_secs(30), ..options() });
    let session = site.session();
    let ino = session.create("f", 1).unwrap().ino;
    let layout = session.begin(ino, 1).unwrap();
    session.write(ino, &layout, 0, &vec![1; 2 * UNIT as usize]);
    site.kill_data(1);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| session.attr(ino));
        site.start_data(1);
        assert_eq!(asked.join().unwrap().unwrap().size, 2 * UNIT);
    });
    // The metadata server, which knows no data server at first.
    site.kill();
    site.start();
    let again = Session::over(&site, SessionId(6000));
    again.mount();
    assert_eq!(again.attr(ino).unwrap().size, 2 * UNIT);
}

/// Takes requests and never answers.
#[derive(Default)]
struct Hangs(Mutex<Vec<Reply>>);

impl Handler for Hangs {
    fn asked(&self, _: Incoming, reply: Reply) {
        self.0.lock().unwrap().push(reply);
    }
}

#[test]
fn who_is_no_server_does_not_report_as_one() {
    let site = Site::with(0, options());
    let mut mount = credentials(98);
    mount.me.roles = Roles::CLIENT;
    let client = client_as(mount, &site.address(), META, Lane::Control);
    let report = NodeReport { node: 98, addresses: vec!["host98:7400".into()], ..NodeReport::default() };
    assert_eq!(ask(&client, &report, &[], 0).expect_err("it is refused").errno, Errno::EPERM.raw());
    assert!(site.service().nodes().status().is_empty());
}

#[test]
fn a_data_server_that_hangs_is_waited_for_once() {
    let patience = Duration::from_secs(2);
    let site = Site::with(0, MetadataOptions { patience, ..options() });
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("s").display()).parse().unwrap();
    let hangs = Arc::new(Hangs::default());
    let asked = || hangs.0.lock().unwrap().len();
    let server =
        Server::start(&address, credentials(1), hangs.clone(), Tuning::default(), Bounds::default()).unwrap();
    let session = site.session();
    let report = NodeReport {
        node: 1,
        name: "hangs".into(),
        addresses: vec![server.address().to_string()],
        total: 1 << 40,
        free: 1 << 39,
        ..NodeReport::default()
    };
    let ino = session.create("f", 1).unwrap().ino;
    assert_eq!(session.begin(ino, 1), Err(Errno::ENOSPC), "there is no data server");
    ask(&session.control, &report, &[], 0).unwrap();
    session.begin(ino, 1).unwrap();
    let fault = session.fault(&GetAttr { head: session.head(), ino });
    assert_eq!((fault.errno, Reason::of(&fault)), (Errno::EIO.raw(), Reason::DataServerAway));
    let before = asked();
    assert_eq!(session.attr(ino), Err(Errno::EIO));
    assert_eq!(asked(), before, "it is not waited for again");
    assert!(site.service().nodes().status()[0].away);
    // It says that it is there: then it is asked once more.
    ask(&session.control, &report, &[], 0).unwrap();
    assert!(!site.service().nodes().status()[0].away);
    assert_eq!(session.attr(ino), Err(Errno::EIO));
    assert!(asked() > before);
    assert!(session.lookup("none") == Err(Errno::ENOENT) && session.create("g", 2).is_ok());
}

#[test]
fn one_process_has_both_roles_and_one_store() {
    let mut data = DataSite::new(META);
    data.make_names();
    data.start();
    let store = data.store().clone();
    let mds = Arc::new(Mds::new(store.clone(), MdsOptions::default()).unwrap());
    let service = MetadataService::start(mds.clone(), store.clone(), credentials(META), options()).unwrap();
    let both = Services::start(META, Some(service.clone()), Some(data.service().clone())).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("s").display()).parse().unwrap();
    let server =
        Server::start(&address, credentials(META), Arc::new(both), Tuning::default(), Bounds::default())
            .unwrap();
    let address = server.address();
    let about = NodeReport {
        node: META,
        name: "both".into(),
        addresses: vec![address.to_string()],
        ..NodeReport::default()
    };
    let reporter =
        Reporter::start(data.service().clone(), client_to(&address, META, Lane::Control), about).unwrap();
    until("it reports to itself", || service.nodes().measures().len() == 1);
    let client = |lane| client_to(&address, META, lane);
    let (control, meta, bytes) = (client(Lane::Control), client(Lane::Metadata), client(Lane::Data));
    let head = Some(Head::of(SessionId(1)));
    ask(&control, &Mount { head, host: "h".into(), node: META, ..Mount::default() }, &[], 0).unwrap();
    let caller = Session::caller();
    let make = |name: &str, opening| {
        let name = name.as_bytes().to_vec();
        let create = Create { head, caller, dir: 1, name, mode: 0o600, opening, write: true };
        let ino = ask(&meta, &create, &[], 0).unwrap().0.attr.unwrap().ino;
        let layout = ask(&meta, &BeginWrite { head, ino, opening }, &[], 0).unwrap().0.layout.unwrap();
        assert_eq!(layout.stripes, [META]);
        let object = Some(Object { ino, generation: 1, view: None });
        ask(&bytes, &Write { object, offset: 3, sync: true, joined: 0, server: 0 }, b"bytes", 0).unwrap();
        ask(&meta, &Close { head, opening, atime: None, ino: 0 }, &[], 0).unwrap();
        ino
    };
    let (stays, goes) = (make("stays", 1), make("goes", 2));
    ask(&meta, &Unlink { head, dir: 1, name: b"goes".to_vec() }, &[], 0).unwrap();
    let references = vec![Reference { ino: goes, count: 1 }];
    ask(&meta, &Forget { head, references }, &[], 0).unwrap();
    until("it is purged", || ask(&meta, &GetAttr { head, ino: goes }, &[], 0).is_err());
    let object = Some(Object { ino: stays, generation: 1, view: None });
    let read = Read { object, offset: 0, length: 100 };
    assert_eq!(ask(&bytes, &read, &[], 100).unwrap().1, b"\0\0\0bytes");
    // What both keep in the store does not disturb the check.
    until("all is settled", || service.in_use().1 == 0);
    drop((reporter, server));
    service.shutdown();
    let mut findings = Vec::new();
    mds::fsck(&store, types::Timestamp::EPOCH, false, &mut |finding| findings.push(finding.to_string()))
        .unwrap();
    assert_eq!(findings, Vec::<String>::new());
}
