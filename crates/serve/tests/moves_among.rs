//! Goal: with several metadata servers a data server is drained and removed, and gives away what it has no room for, as with one (S-220 to S-226, S-259 to
//! S-263, S-292 to S-295), whoever of them is killed or stopped, and while slots go from one to the other. Method: real services behind real sockets over one
//! engine; every byte compared.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod site;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use proto::{
    Layout, Reason,
    control::NodeReport,
    data::{Read, Sync, Write},
    metadata::{BeginWrite, FindLayout},
    moving::{DrainNode, RemoveNode, Standing, StandingList, Standings},
};
use serve::data::DataOptions;
use site::{
    DataSite, ask, ask_once,
    cluster::options,
    several::{Routed, Several},
    until,
};
use types::Errno;
use wire::schema::{Fault, Lane};

const MIB: u64 = 1 << 20;

struct File {
    ino: u64,
    bytes: Vec<u8>,
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i / 512) * 7 + i + seed) as u8 | 1).collect()
}

fn drain(site: &Several, node: u64, undo: bool) -> Result<Standing, Fault> {
    ask(&site.duty(), &DrainNode { node, undo }, &[], 0).map(|(standing, _)| standing)
}

/// `None`: nobody on duty answers now.
fn standing(site: &Several, node: u64) -> Option<Standing> {
    let (_, body) = ask_once(&site.duty(), &Standings {}, &[], 1 << 20).ok()?;
    let list: StandingList = prost::Message::decode(&body[..]).unwrap();
    Some(list.standings.into_iter().find(|one| one.node == node).unwrap_or_default())
}

fn is_drained(site: &Several, node: u64) -> bool {
    standing(site, node).is_some_and(|now| now.known && now.files_left == 0)
}

fn until_drained(site: &mut Several, node: u64) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_drained(site, node) {
        site.begin_anew();
        assert!(Instant::now() < end, "not drained: {:?}", standing(site, node));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn layout(session: &Routed<'_>, ino: u64) -> Layout {
    session.ask(&FindLayout { head: session.head(), ino }).unwrap().layout.unwrap()
}

/// What was moved or is on its way is asked for again.
fn again<R>(mut run: impl FnMut() -> Result<R, Fault>) -> Result<R, Fault> {
    loop {
        match run() {
            Err(fault) if Reason::of(&fault) == Reason::Moved => (),
            done => return done,
        }
    }
}

fn client_of(site: &Several, node: u64) -> net::Client {
    site.data.iter().find(|data| data.node == node).unwrap().client()
}

fn write(session: &Routed<'_>, file: &File) -> Result<(), Fault> {
    let (site, ino) = (session.site, file.ino);
    for (n, chunk) in file.bytes.chunks(MIB as usize).enumerate() {
        let at = n as u64 * MIB;
        again(|| {
            let layout = layout(session, ino);
            let striped = cluster::striping::Striped::new(layout.unit, layout.stripes.len()).unwrap();
            striped.parts(at, chunk.len() as u64).try_for_each(|part| {
                let object = Some(layout.object(ino, part.stripe));
                let write = Write { object, offset: part.object_offset, sync: false, joined: 0, server: 0 };
                let piece = &chunk[(part.offset - at) as usize..][..part.len as usize];
                ask(&client_of(site, layout.stripes[part.stripe]), &write, piece, 0).map(drop)
            })
        })?;
    }
    Ok(())
}

fn read(session: &Routed<'_>, file: &File) -> Vec<u8> {
    let (site, ino, len) = (session.site, file.ino, file.bytes.len() as u64);
    again(|| {
        let layout = layout(session, ino);
        let striped = cluster::striping::Striped::new(layout.unit, layout.stripes.len()).unwrap();
        let mut bytes = vec![0; len as usize];
        for at in (0..len).step_by(MIB as usize) {
            for part in striped.parts(at, MIB.min(len - at)) {
                let (object, length) = (Some(layout.object(ino, part.stripe)), part.len as u32);
                let read = Read { object, offset: part.object_offset, length };
                let client = client_of(site, layout.stripes[part.stripe]);
                let (_, body) = ask(&client, &read, &[], length)?;
                bytes[part.offset as usize..][..body.len()].copy_from_slice(&body);
            }
        }
        Ok(bytes)
    })
    .unwrap()
}

fn make(session: &Routed<'_>, dir: u64, name: &str, opening: u64, len: usize) -> File {
    let ino = session.create(dir, name, opening).unwrap();
    session.ask(&BeginWrite { head: session.op(), ino, opening }).unwrap();
    File { ino, bytes: pattern(len, opening) }
}

/// Which has one server after the other.
fn dir_of(session: &Routed<'_>, n: u64) -> u64 {
    let dir = session.mkdir(1, &format!("d{n}")).unwrap();
    let to = n as usize % session.site.servers();
    until("the directory goes", || session.site.try_bring(dir, to).is_ok());
    dir
}

/// In directories of all servers.
fn files(session: &Routed<'_>, dirs: u64, each: u64) -> Vec<File> {
    let mut files = Vec::new();
    for n in 0..dirs {
        let dir = dir_of(session, n);
        for k in 0..each {
            let opening = n * each + k + 1;
            files.push(make(session, dir, &format!("f{k}"), opening, 5000 + opening as usize));
            write(session, files.last().unwrap()).unwrap();
        }
    }
    files
}

fn nothing_is_on(session: &Routed<'_>, files: &[File], node: u64) {
    for file in files {
        assert!(!layout(session, file.ino).stripes.contains(&node), "{:x}", file.ino);
        assert_eq!(read(session, file), file.bytes, "{:x}", file.ino);
    }
}

#[test]
fn files_in_slots_of_all_servers_leave_and_the_data_server_is_removed() {
    let site = Several::new(3, 3);
    let session = site.session();
    let files = files(&session, 9, 3);
    let owners: std::collections::BTreeSet<usize> = files.iter().map(|file| site.owner(file.ino)).collect();
    assert_eq!(owners.len(), 3, "all of them have some");
    let node = layout(&session, files[0].ino).stripes[0];
    let removed = || ask(&site.duty(), &RemoveNode { node }, &[], 0).map(drop);
    assert_eq!(removed().unwrap_err().errno, Errno::EBUSY.raw(), "it is not drained");
    drain(&site, node, false).unwrap();
    // From now on nobody places anything there.
    for n in 0..30 {
        let dir = session.lookup(1, &format!("d{}", n % 9)).unwrap().ino;
        let file = make(&session, dir, &format!("new{n}"), 1000 + n, 10);
        assert!(!layout(&session, file.ino).stripes.contains(&node));
    }
    until("it holds nothing", || is_drained(&site, node));
    assert!(standing(&site, node).unwrap().files_moved > 0);
    nothing_is_on(&session, &files, node);
    removed().unwrap();
    for n in 0..site.servers() {
        until("nobody has it in the map", || site.map(n).node(cluster::NodeId(node)).is_none());
    }
    drain(&site, node, true).unwrap();
    for n in 0..site.servers() {
        until("it is taken back", || site.map(n).node(cluster::NodeId(node)).is_some());
    }
}

#[test]
fn slots_go_and_come_while_a_data_server_is_drained() {
    let site = Several::new(2, 3);
    let session = site.session();
    let files = files(&session, 8, 4);
    let node = layout(&session, files[0].ino).stripes[0];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (site, over, files) = (&site, &over, &files);
        scope.spawn(move || {
            let mut n = 0;
            while !over.load(Ordering::Acquire) {
                n += 1;
                let _ = site.try_bring(files[n * 5 % files.len()].ino, n % 2);
            }
        });
        drain(site, node, false).unwrap();
        until("nothing of these files is there", || {
            let stripes = files.iter().map(|file| layout(&session, file.ino).stripes);
            stripes.into_iter().all(|stripes| !stripes.contains(&node))
        });
        over.store(true, Ordering::Release);
    });
    until("it holds nothing", || is_drained(&site, node));
    nothing_is_on(&session, &files, node);
}

#[test]
fn a_killed_server_keeps_nobody_from_draining_when_another_goes_on() {
    let mut site = Several::new(3, 3);
    let id;
    let files = {
        let session = site.session();
        id = session.id;
        files(&session, 9, 3)
    };
    until("all are copied", || (0..3).all(|n| site.is_copied(n)));
    let (node, duty) = (layout(&site.session_as(id), files[0].ino).stripes[0], site.owner(1));
    drain(&site, node, false).unwrap();
    site.kill_copied((duty + 1) % 3);
    until_drained(&mut site, node);
    let session = site.session();
    nothing_is_on(&session, &files, node);
}

#[test]
fn the_next_on_duty_goes_on_draining() {
    let mut site = Several::new(3, 3);
    let files = files(&site.session(), 9, 3);
    until("all are copied", || (0..3).all(|n| site.is_copied(n)));
    let node = layout(&site.session(), files[0].ino).stripes[0];
    drain(&site, node, false).unwrap();
    let duty = site.owner(1);
    site.kill_copied(duty);
    until("another is on duty", || {
        site.begin_anew();
        site.owner(1) != duty
    });
    until_drained(&mut site, node);
    let session = site.session();
    nothing_is_on(&session, &files, node);
    let dir = session.lookup(1, "d0").unwrap().ino;
    for n in 0..10 {
        let file = make(&session, dir, &format!("new{n}"), 1000 + n, 10);
        assert!(!layout(&session, file.ino).stripes.contains(&node));
    }
}

/// What a server has that is away nobody knows: the data server is not empty for that long, and its files are moved when it is back.
#[test]
fn a_server_that_is_away_is_waited_for() {
    let mut site = Several::new(2, 3);
    let files = files(&site.session(), 8, 3);
    let node = layout(&site.session(), files[0].ino).stripes[0];
    let other = 1 - site.owner(1);
    assert!(files.iter().any(|file| site.owner(file.ino) == other));
    site.stop(other);
    let not_all = drain(&site, node, false).unwrap_err();
    assert_eq!(not_all.errno, Errno::EBUSY.raw());
    until("the others are moved", || standing(&site, node).is_some_and(|now| now.files_moved > 0));
    assert!(!standing(&site, node).unwrap().known);
    let removed = ask(&site.duty(), &RemoveNode { node }, &[], 0).unwrap_err();
    assert_eq!(removed.errno, Errno::EBUSY.raw());
    site.start(other);
    until_drained(&mut site, node);
    let session = site.session();
    nothing_is_on(&session, &files, node);
}

/// S-226, wherever its reports go: to who is not on duty, to who went on for who was, to one that comes anew.
#[test]
fn who_was_removed_is_refused_by_all_servers() {
    let mut site = Several::new(2, 2);
    let node = site.data[1].node;
    let addresses = vec![site.data[1].address().to_string()];
    let refused = |site: &Several, n: usize| {
        let report =
            NodeReport { node, name: "again".into(), addresses: addresses.clone(), ..NodeReport::default() };
        let control = site::client_to(&site.address(n), Several::node(n), Lane::Control);
        let answer = ask_once(&control, &report, &[], 1 << 20);
        answer.is_err_and(|fault| fault.errno == Errno::EPERM.raw() && fault.detail.contains("was removed"))
    };
    drain(&site, node, false).unwrap();
    until_drained(&mut site, node);
    ask(&site.duty(), &RemoveNode { node }, &[], 0).unwrap();
    assert!((0..2).all(|n| refused(&site, n)), "who removes it says so to all");
    until("all are copied", || (0..2).all(|n| site.is_copied(n)));
    let duty = site.owner(1);
    site.kill_for_good(duty);
    assert!(refused(&site, 1 - duty), "who goes on");
    site.start(duty);
    until("who comes anew is told", || refused(&site, duty));
    assert!(site.map(duty).node(cluster::NodeId(node)).is_none());
    drain(&site, node, true).unwrap();
    for n in 0..2 {
        until("it is taken back", || site.map(n).node(cluster::NodeId(node)).is_some());
    }
}

/// Memory alone.
fn memory(node: u64, mib: u64) -> DataSite {
    let mut site = DataSite::new(node);
    (site.memory, site.ssd) = (mib * MIB, None);
    site.options = DataOptions { leave_after: None, ..site.options };
    site.start();
    site
}

fn disk(node: u64, mib: u64) -> DataSite {
    let mut site = DataSite::new(node);
    site.ssd = Some(mib * MIB);
    site.start();
    site
}

/// Written by clients of the small node, in slots of both servers; what is synced has left it.
#[test]
fn a_small_node_gives_away_what_files_of_all_servers_have_there() {
    let site = Several::of(2, vec![memory(1, 64), disk(2, 512), disk(3, 512)], options());
    let session = site.session_at(1);
    let mut files = Vec::new();
    for n in 0..16 {
        let dir = dir_of(&session, n);
        let file = make(&session, dir, "f", n + 1, 12 * MIB as usize);
        let here = layout(&session, file.ino).stripes == [1];
        assert!(here || n >= 2, "what one client writes is on its node, unless that is full");
        write(&session, &file).unwrap();
        files.push(file);
    }
    let owners: std::collections::BTreeSet<usize> = files.iter().map(|file| site.owner(file.ino)).collect();
    assert_eq!(owners.len(), 2);
    for file in &files {
        assert!(read(&session, file) == file.bytes, "{:x}", file.ino);
        again(|| {
            let now = layout(&session, file.ino);
            let object = Some(now.object(file.ino, 0));
            ask(&client_of(&site, now.stripes[0]), &Sync { object }, &[], 0).map(drop)
        })
        .unwrap();
        assert_ne!(layout(&session, file.ino).stripes, [1], "what is safe is not there");
    }
    // Nothing goes on by itself.
    let sent = || standing(&site, 1).unwrap().files_sent;
    let before = sent();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(sent(), before);
}
