//! Goal: who watches learns what was asked, by whom, and who is there; and a request keeps its id on its way. Method: a server with both
//! roles, two clients with known requests; a data server that only writes down the ids of what it is asked.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod site;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use mds::{Mds, MdsOptions};
use net::{
    Bounds, Client, Handler, Incoming, NobodyAnswers, Reply, Server, Target, Tuning,
    trace::{self, Trace},
};
use prost::Message;
use proto::{
    Head, SessionId,
    control::{Mount, NodeReport, Unmount},
    data::{Object, Write},
    metadata::{GetAttr, Lookup},
    watch::{ClusterNow, ClusterStatus, Counted, Counters, WATCH_BYTES_MAX},
};
use serve::{MetadataService, Services, metadata::MetadataOptions, reporting::Reporter};
use site::{
    DataSite, ask,
    cluster::{META, Site, options},
    credentials, until,
};
use types::Errno;
use wire::{handshake::Wish, schema::Lane};

const BYTES: usize = 10_000;

fn counted(control: &Client) -> Counted {
    let (_, body) = ask(control, &Counters {}, &[], WATCH_BYTES_MAX).unwrap();
    Counted::decode(&body[..]).unwrap()
}

#[test]
fn requests_are_counted_by_role_and_by_client() {
    let mut data = DataSite::new(META);
    data.make_names();
    data.start();
    let store = data.store().clone();
    let mds = Arc::new(Mds::new(store.clone(), MdsOptions::default()).unwrap());
    let service = MetadataService::start(mds, store, credentials(META), options()).unwrap();
    let both = Arc::new(Services::start(META, Some(service), Some(data.service().clone())).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("s").display()).parse().unwrap();
    let server =
        Server::start(&address, credentials(META), both.clone(), Tuning::default(), Bounds::default())
            .unwrap();
    let address = server.address();
    let client = |number, lane| {
        Client::new(Target {
            address: address.clone(),
            wish: Wish { lane, node: Some(META) },
            credentials: credentials(number),
            handler: Arc::new(NobodyAnswers),
            tuning: Tuning::default(),
        })
    };
    let about = NodeReport {
        node: META,
        name: "both".into(),
        addresses: vec![address.to_string()],
        ..NodeReport::default()
    };
    let reporter = Reporter::start(data.service().clone(), client(META, Lane::Control), about).unwrap();
    let (one, two) = (1 << 63 | 1, 1 << 63 | 2);
    for (number, host) in [(one, "h1"), (two, "h2")] {
        let head = Some(Head::of(SessionId(number.into())));
        ask(&client(number, Lane::Control), &Mount { head, host: host.into(), ..Mount::default() }, &[], 0)
            .unwrap();
    }
    let names = client(two, Lane::Metadata);
    let head = Some(Head::of(SessionId(two.into())));
    for _ in 0..5 {
        let lookup = Lookup { head, dir: 1, name: b"none".to_vec() };
        assert_eq!(ask(&names, &lookup, &[], 0).unwrap_err().errno, Errno::ENOENT.raw());
    }
    let object = Some(Object { ino: 1 << 40 | 7, generation: 1, view: None });
    let bytes = client(one, Lane::Data);
    ask(&bytes, &Write { object, offset: 0, sync: false, joined: 0, server: 0 }, &[1; BYTES], 0).unwrap();

    let control = client(one, Lane::Control);
    let first = counted(&control);
    let load = |of: &Counted, number| of.clients.iter().find(|c| c.client == number).unwrap().load;
    assert_eq!((first.node, first.data.unwrap().requests), (META, 1));
    assert!(first.data.unwrap().received > BYTES as u64);
    // Five lookups and a mount; that there is no such name is an answer.
    assert_eq!((load(&first, two).requests, load(&first, two).errors), (6, 0));
    assert_eq!(load(&first, one).requests, 2, "a mount and a write; who watches is not counted");
    let wrong = GetAttr { head: Some(Head::of(SessionId(9))), ino: 1 };
    assert_eq!(ask(&names, &wrong, &[], 0).unwrap_err().errno, Errno::ESTALE.raw());
    let second = counted(&control);
    let since = load(&second, two).since(&load(&first, two));
    assert_eq!((since.requests, since.errors, since.sent), (1, 1, 0));
    assert!(second.incarnation == first.incarnation && second.at_us > first.at_us);

    let now = || {
        let (_, body) = ask(&control, &ClusterStatus {}, &[], WATCH_BYTES_MAX).unwrap();
        ClusterNow::decode(&body[..]).unwrap()
    };
    until("it has reported", || !now().nodes.is_empty());
    let seen = now();
    let hosts: Vec<_> = seen.clients.iter().map(|c| (c.host.as_str(), c.client)).collect();
    assert_eq!(hosts, [("h1", one), ("h2", two)]);
    let report = &seen.nodes[0].report;
    assert!(!seen.nodes[0].away && !report.tiers.is_empty() && report.tiers[0].limit > 0, "{report:?}");
    ask(&client(one, Lane::Control), &Unmount { head: Some(Head::of(SessionId(one.into()))) }, &[], 0)
        .unwrap();
    assert_eq!(now().clients.len(), 1);
    // No room for the answer: it says so, and nothing is cut off.
    assert_eq!(ask(&control, &Counters {}, &[], 8).unwrap_err().errno, Errno::ERANGE.raw());
    drop((reporter, server));
    both.shutdown();
}

/// Answers nothing.
#[derive(Default)]
struct Ids(Mutex<Vec<u64>>);

impl Handler for Ids {
    fn asked(&self, incoming: Incoming, reply: Reply) {
        self.0.lock().unwrap().push(incoming.header.trace);
        drop(reply);
    }
}

#[test]
fn a_request_keeps_its_id_from_server_to_server() {
    // It reports once.
    let (patience, node_silence) = (Duration::from_millis(300), Duration::from_secs(600));
    let site = Site::with(0, MetadataOptions { patience, node_silence, ..options() });
    let ids = Arc::new(Ids::default());
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("s").display()).parse().unwrap();
    let server =
        Server::start(&address, credentials(1), ids.clone(), Tuning::default(), Bounds::default()).unwrap();
    let session = site.session();
    let report = NodeReport {
        node: 1,
        name: "ids".into(),
        addresses: vec![server.address().to_string()],
        total: 1 << 40,
        free: 1 << 39,
        ..NodeReport::default()
    };
    ask(&session.control, &report, &[], 0).unwrap();
    let ino = session.create("f", 1).unwrap().ino;
    session.begin(ino, 1).unwrap();
    ids.0.lock().unwrap().clear();
    {
        let _request = trace::enter(Trace(0xabc));
        assert!(session.attr(ino).is_err(), "the size of a file that is written is the data server's");
    }
    let seen = ids.0.lock().unwrap().clone();
    assert!(!seen.is_empty() && seen.iter().all(|id| *id == 0xabc), "{seen:?}");
}
