//! A data server's number stands for one state directory: who comes with the number and another one has none of its data, and what he has not is
//! not zeros. Method: two data servers with one number, one after the other and both at once.
#![allow(clippy::unwrap_used, reason = "tests")]

mod site;

use cluster::NodeId;
use proto::{
    control::NodeReport,
    data::{Attrs, Object, Read, Write},
    moving::{DrainNode, RemoveNode},
};
use serve::reporting::Reporter;
use site::{
    DataSite, ask, client_to,
    cluster::{META, Site},
    until,
};
use types::Errno;
use wire::schema::Lane;

const NODE: u64 = 1;
const OBJECT: Object = Object { ino: 1 << 40 | 7, generation: 1, view: None };

fn begin(site: &Site, data: &DataSite, state: u8) -> Reporter {
    let about = NodeReport {
        node: NODE,
        name: format!("state-{state}"),
        addresses: vec![data.address().to_string()],
        state: vec![state; 16],
        ..NodeReport::default()
    };
    Reporter::start(data.service().clone(), client_to(&site.address(), META, Lane::Control), about).unwrap()
}

fn read(data: &DataSite) -> Result<Vec<u8>, Errno> {
    let read = Read { object: Some(OBJECT), offset: 0, length: 10 };
    let answered = ask(&data.client(), &read, &[], 10);
    answered.map(|(_, body)| body.to_vec()).map_err(|fault| Errno::from_raw(fault.errno))
}

fn address_in_map(site: &Site) -> Option<String> {
    site.service().nodes().map().node(NodeId(NODE)).and_then(|node| node.addresses.first().cloned())
}

#[test]
fn regression_a_second_server_with_a_number_is_refused() {
    let mut site = Site::with(0, site::cluster::options());
    let (first, second) = (DataSite::started(NODE), DataSite::started(NODE));
    let write = Write { object: Some(OBJECT), offset: 0, sync: false, joined: 0, server: 0 };
    ask(&first.client(), &write, b"0123456789", 0).unwrap();
    let _reports = begin(&site, &first, 1);
    until("the first is in the map", || address_in_map(&site).is_some());

    let refused = begin(&site, &second, 2);
    until("the second is refused", || refused.trouble().is_some());
    let why = refused.trouble().unwrap().why;
    assert!(why.contains("node 1 is another server") && why.contains("node.id"), "{why}");
    assert_eq!(address_in_map(&site), Some(first.address().to_string()));
    // What it has not is not said to be empty.
    assert_eq!(read(&second), Err(Errno::EIO));
    assert_eq!(read(&first).unwrap(), b"0123456789");

    // The metadata server is started again, and the second comes first.
    drop(_reports);
    site.kill();
    site.start();
    // One that is dead since before the start can be taken out.
    let session = site.session();
    ask(&session.control, &DrainNode { node: NODE, undo: false }, &[], 0).unwrap();
    ask(&session.control, &DrainNode { node: NODE, undo: true }, &[], 0).unwrap();
    let late = refused.trouble().unwrap().since;
    let again = begin(&site, &second, 2);
    until("it is refused again", || again.trouble().is_some_and(|trouble| trouble.since > late));
    assert_eq!(address_in_map(&site), None);
    let _back = begin(&site, &first, 1);
    until("the first is there", || address_in_map(&site) == Some(first.address().to_string()));

    // One that was removed held nothing: whoever comes with the number is as good.
    ask(&session.control, &DrainNode { node: NODE, undo: false }, &[], 0).unwrap();
    until("it holds nothing", || ask(&session.control, &RemoveNode { node: NODE }, &[], 0).is_ok());
    let twice = ask(&session.control, &RemoveNode { node: NODE }, &[], 0).unwrap_err();
    assert!(twice.detail.contains("removed already"), "{}", twice.detail);
    drop(_back);
    ask(&session.control, &DrainNode { node: NODE, undo: true }, &[], 0).unwrap();
    until("the second is there", || address_in_map(&site) == Some(second.address().to_string()));
    until("it answers", || read(&second) == Ok(Vec::new()));
}

/// Goal: between its start and its first report it says nothing of what it does not know. Method: a metadata server that comes later.
#[test]
fn what_is_not_there_is_not_empty_before_a_report_was_taken() {
    let mut site = Site::with(0, site::cluster::options());
    site.kill();
    let data = DataSite::started(NODE);
    data.service().waits_for_reports();
    let read_once = || {
        let read = Read { object: Some(OBJECT), offset: 0, length: 10 };
        site::ask_once(&data.client(), &read, &[], 10)
            .map(|_| ())
            .map_err(|fault| Errno::from_raw(fault.errno))
    };
    let _reports = begin(&site, &data, 1);
    assert_eq!(read_once(), Err(Errno::EAGAIN));
    // Else whoever asked would take it for what the object came to.
    let attrs = site::ask_once(&data.client(), &Attrs { objects: vec![OBJECT] }, &[], 0);
    assert_eq!(attrs.map(|_| ()).map_err(|fault| Errno::from_raw(fault.errno)), Err(Errno::EAGAIN));
    site.start();
    until("the report is taken", || read_once().is_ok());
}
