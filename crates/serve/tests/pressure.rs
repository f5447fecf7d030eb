//! Goal: a data server that is full, or has only memory, gives what is coolest to others that have room, and nobody who writes or syncs there sees
//! more of it than a pause (S-259 to S-263). Method: real services behind real sockets, with small tiers; every byte compared; servers killed meanwhile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod site;

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use proto::{
    Layout, Reason, SessionId,
    attr::Attr,
    control::Mount,
    data::{Read, Sync, Write},
    metadata::FindLayout,
    moving::{Standing, StandingList, Standings},
};
use serve::data::DataOptions;
use site::{
    DataSite, ask, client_to,
    cluster::{META, Session, Site, options},
    until,
};
use types::{Errno, SAU_BYTES};
use wire::schema::{Fault, Lane};

const MIB: u64 = 1 << 20;

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|i| ((i / 512) * 7 + i + seed) as u8 | 1).collect()
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

/// Of a client on a node: what it alone writes is put there.
fn session_on(site: &Site, node: u64) -> Session {
    static LAST: AtomicU64 = AtomicU64::new(1);
    let id = u128::from(LAST.fetch_add(1, Ordering::Relaxed)) << 64 | u128::from(node);
    let session = Session::over(site, SessionId(id));
    let head = session.head();
    let mount = Mount { head, host: "test".into(), node, ..Mount::default() };
    ask(&session.control, &mount, &[], 0).unwrap();
    session
}

fn standing(site: &Site, node: u64) -> Standing {
    let control = client_to(&site.address(), META, Lane::Control);
    let (_, body) = ask(&control, &Standings {}, &[], 1 << 20).unwrap();
    let list: StandingList = prost::Message::decode(&body[..]).unwrap();
    list.standings.into_iter().find(|one| one.node == node).unwrap_or_default()
}

fn layout(session: &Session, ino: u64) -> Layout {
    session.try_ask(&FindLayout { head: session.head(), ino }).unwrap().layout.unwrap()
}

/// With each part of a range, as a client does it: who is told that a stripe moved asks where it is.
fn parts(
    session: &Session,
    ino: u64,
    range: (u64, u64),
    run: &mut dyn FnMut(&Layout, &cluster::striping::Part) -> Result<(), Fault>,
) -> Result<(), Fault> {
    for _ in 0..64 {
        let layout = layout(session, ino);
        let striped = cluster::striping::Striped::new(layout.unit, layout.stripes.len()).unwrap();
        match striped.parts(range.0, range.1).try_for_each(|part| run(&layout, &part)) {
            Err(fault) if Reason::of(&fault) == Reason::Moved => (),
            done => return done,
        }
    }
    panic!("it moves for ever");
}

fn server(site: &Site, node: u64) -> &DataSite {
    site.data.iter().find(|data| data.node == node).unwrap()
}

fn write(session: &Session, site: &Site, ino: u64, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
    for (n, chunk) in bytes.chunks(MIB as usize).enumerate() {
        let at = offset + n as u64 * MIB;
        parts(session, ino, (at, chunk.len() as u64), &mut |layout, part| {
            let object = Some(layout.object(ino, part.stripe));
            let write = Write { object, offset: part.object_offset, sync: false, joined: 0, server: 0 };
            let from = (part.offset - at) as usize;
            let client = server(site, layout.stripes[part.stripe]).client();
            ask(&client, &write, &chunk[from..from + part.len as usize], 0).map(drop)
        })?;
    }
    Ok(())
}

fn read(session: &Session, site: &Site, ino: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    for at in (0..len).step_by(MIB as usize) {
        let most = MIB.min(len - at);
        parts(session, ino, (at, most), &mut |layout, part| {
            let length = part.len as u32;
            let read =
                Read { object: Some(layout.object(ino, part.stripe)), offset: part.object_offset, length };
            let client = server(site, layout.stripes[part.stripe]).client();
            let (_, body) = ask(&client, &read, &[], length)?;
            bytes[part.offset as usize..][..body.len()].copy_from_slice(&body);
            Ok(())
        })
        .unwrap();
    }
    bytes
}

fn sync(session: &Session, site: &Site, ino: u64) -> Result<(), Fault> {
    for _ in 0..64 {
        let now = layout(session, ino);
        let synced = now.stripes.iter().enumerate().try_for_each(|(stripe, node)| {
            let object = Some(now.object(ino, stripe));
            ask(&server(site, *node).client(), &Sync { object }, &[], 0).map(drop)
        });
        match synced {
            Err(fault) if Reason::of(&fault) == Reason::Moved => (),
            done => return done,
        }
    }
    panic!("it moves for ever");
}

fn create(session: &Session, n: u64) -> Attr {
    let attr = session.create(&format!("f{n}"), n).unwrap();
    session.begin(attr.ino, n).unwrap();
    attr
}

#[test]
fn a_node_takes_three_times_what_it_holds_and_no_byte_is_lost() {
    let site = Site::of(vec![memory(1, 64), disk(2, 512), disk(3, 512)], options());
    let session = session_on(&site, 1);
    let mut files = Vec::new();
    for n in 1..=24 {
        let ino = create(&session, n).ino;
        let bytes = pattern(8 * MIB as usize, n);
        write(&session, &site, ino, 0, &bytes).unwrap();
        session.close(n);
        files.push((ino, n));
    }
    let here = files.iter().filter(|(ino, _)| layout(&session, *ino).stripes == [1]).count();
    assert!(here < 8, "{here} files of 8 MiB on a node of 64");
    for (ino, n) in &files {
        assert!(read(&session, &site, *ino, 8 * MIB) == pattern(8 * MIB as usize, *n), "file {n}");
        assert_eq!(session.attr(*ino).unwrap().size, 8 * MIB);
    }
    // It ends with room for what comes next, and at rest.
    until("it is not full any more", || !standing(&site, 1).full);
    let said = standing(&site, 1);
    assert!(said.files_sent > 0 && said.bytes_sent > 0, "{said:?}");
    let before = files.iter().map(|(ino, _)| layout(&session, *ino)).collect::<Vec<_>>();
    std::thread::sleep(Duration::from_millis(300));
    let after = files.iter().map(|(ino, _)| layout(&session, *ino)).collect::<Vec<_>>();
    assert_eq!(before, after, "nothing moves without need");
}

#[test]
fn a_full_disk_sends_to_one_with_room() {
    // 64 MiB of memory and as much of SSD.
    let site = Site::of(vec![disk(1, 64), disk(2, 512)], options());
    let session = session_on(&site, 1);
    for n in 1..=40 {
        let ino = create(&session, n).ino;
        write(&session, &site, ino, 0, &pattern(8 * MIB as usize, n)).unwrap();
        // What is synced needs room on the disk at once.
        if n % 3 == 0 {
            sync(&session, &site, ino).unwrap();
        }
        session.close(n);
    }
    until("it is not full any more", || !standing(&site, 1).full);
    assert!(standing(&site, 1).files_sent > 0);
    for n in 1..=40 {
        let ino = session.lookup(&format!("f{n}")).unwrap().ino;
        assert!(read(&session, &site, ino, 8 * MIB) == pattern(8 * MIB as usize, n), "file {n}");
    }
    // The other one never had to send anything back.
    assert_eq!(standing(&site, 2).files_sent, 0);
}

#[test]
fn an_open_file_larger_than_its_node_goes_on_elsewhere() {
    let site = Site::of(vec![memory(1, 64), disk(2, 512)], options());
    let session = session_on(&site, 1);
    let ino = create(&session, 1).ino;
    assert_eq!(layout(&session, ino).stripes, [1], "it begins at home");
    let bytes = pattern(150 * MIB as usize, 3);
    write(&session, &site, ino, 0, &bytes).unwrap();
    assert_eq!(layout(&session, ino).stripes, [2]);
    assert!(read(&session, &site, ino, 150 * MIB) == bytes);
}

#[test]
fn what_is_synced_is_not_in_memory_alone() {
    let mut site = Site::of(vec![memory(1, 64), disk(2, 512)], options());
    let session = session_on(&site, 1);
    let ino = create(&session, 1).ino;
    let bytes = pattern(3 * MIB as usize + 5, 9);
    write(&session, &site, ino, 0, &bytes).unwrap();
    assert_eq!(layout(&session, ino).stripes, [1]);
    sync(&session, &site, ino).unwrap();
    session.try_ask(&proto::metadata::Fsync { head: session.head(), ino }).unwrap();
    // All machines lose power: what memory had is gone.
    site.power_cut_data(0);
    site.power_cut_data(1);
    site.power_cut();
    let session = session_on(&site, 1);
    assert!(read(&session, &site, ino, bytes.len() as u64) == bytes);
}

/// Goal: where the whole cluster is memory a sync returns, as on one machine (S-31); once there was anything else it is honest, also when that is gone
/// and the metadata server was started again. Method: a disk that comes and goes.
#[test]
fn a_sync_where_there_is_only_memory_is_an_error() {
    let mut site = Site::of(vec![memory(1, 64), memory(2, 64)], options());
    {
        let session = session_on(&site, 1);
        let ino = create(&session, 1).ino;
        write(&session, &site, ino, 0, b"bytes").unwrap();
        sync(&session, &site, ino).unwrap();
    }
    site.add_data(disk(3, 64));
    site.kill_data(2);
    site.kill();
    site.start();
    site.wait_for(2);
    let session = session_on(&site, 1);
    let mut n = 1;
    until("the data servers have heard", || {
        n += 1;
        let ino = create(&session, n).ino;
        write(&session, &site, ino, 0, b"b").unwrap();
        sync(&session, &site, ino).is_err()
    });
    let ino = create(&session, n + 1).ino;
    write(&session, &site, ino, 0, b"bytes").unwrap();
    let fault = sync(&session, &site, ino).unwrap_err();
    assert_eq!(Errno::from_raw(fault.errno), Errno::ENOSPC, "{fault:?}");
    assert!(fault.detail.contains("outlives its machine"), "{fault:?}");
    assert_eq!(read(&session, &site, ino, 5), b"bytes");
    // As a write that is to be safe.
    let now = layout(&session, ino);
    let write = Write { object: Some(now.object(ino, 0)), offset: 0, sync: true, joined: 0, server: 0 };
    let fault = ask(&server(&site, 1).client(), &write, b"bytes", 0).unwrap_err();
    assert_eq!(Errno::from_raw(fault.errno), Errno::ENOSPC, "{fault:?}");
}

#[test]
fn what_was_closed_in_memory_leaves_it_in_time_with_its_whole_group() {
    let mut data = vec![memory(1, 64), memory(2, 64), disk(3, 512)];
    // Of the second one alone nothing would leave.
    data[0].kill();
    data[0].options.leave_after = Some(Duration::from_millis(400));
    data[0].start();
    let site = Site::of(data, options());
    // Striped over all three; two of them have only memory.
    let session = site.session();
    let ino = create(&session, 1).ino;
    let bytes = pattern(7 * SAU_BYTES as usize + 77, 5);
    write(&session, &site, ino, 0, &bytes).unwrap();
    assert!(layout(&session, ino).stripes.len() == 3);
    session.close(1);
    until("all of it is on a disk", || layout(&session, ino).stripes == [3, 3, 3]);
    assert!(read(&session, &site, ino, bytes.len() as u64) == bytes);
}

#[test]
fn without_room_anywhere_it_is_an_error_and_with_room_again_it_goes_on() {
    let mut full = memory(1, 32);
    full.kill();
    // More than a movement takes on a busy machine.
    full.options.patience = Duration::from_secs(5);
    full.start();
    let site = Site::of(vec![full, disk(2, 64)], options());
    let session = session_on(&site, 1);
    let piece = pattern(4 * MIB as usize, 1);
    let (mut n, mut written) = (0, Vec::new());
    let fault = loop {
        n += 1;
        let ino = match session.create(&format!("f{n}"), n) {
            Ok(attr) => attr.ino,
            Err(errno) => panic!("{errno}"),
        };
        if let Err(errno) = session.begin(ino, n) {
            break errno;
        }
        match write(&session, &site, ino, 0, &piece) {
            Ok(()) => written.push(ino),
            Err(fault) => break Errno::from_raw(fault.errno),
        }
        session.close(n);
        assert!(n < 100, "more than there is room for");
    };
    assert_eq!(fault, Errno::ENOSPC);
    let space = session.try_ask(&proto::metadata::StatFs { head: session.head() }).unwrap();
    assert!(
        space.free < space.total / 4,
        "{} of {} MiB are said to be free",
        space.free / MIB,
        space.total / MIB
    );
    assert!(written.len() >= 12, "{} of 4 MiB in 96 MiB", written.len());
    for ino in &written {
        assert!(read(&session, &site, *ino, 4 * MIB) == piece);
    }
    // Somebody removes what he does not need.
    for n in 1..=written.len().min(8) {
        session.unlink(&format!("f{n}")).unwrap();
    }
    ask(&session.control, &proto::control::Unmount { head: session.head() }, &[], 0).unwrap();
    let session = session_on(&site, 1);
    let ino = session.create("again", 1000).unwrap().ino;
    // They are removed in a while, and their data servers say so.
    until("there is room again", || {
        session.begin(ino, 1000).is_ok() && write(&session, &site, ino, 0, &piece).is_ok()
    });
    assert!(read(&session, &site, ino, 4 * MIB) == piece);
}

#[test]
fn whatever_dies_meanwhile_nothing_acknowledged_is_lost() {
    let mut site = Site::of(vec![memory(1, 64), disk(2, 512), disk(3, 512)], options());
    let mut files = Vec::new();
    for round in 0..6_u64 {
        let session = session_on(&site, 1);
        let stop = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let (site, stop, session) = (&site, &stop, &session);
            let writer = scope.spawn(move || {
                let mut written = Vec::new();
                for n in 0..10 {
                    let n = round * 100 + n + 1;
                    let ino = create(session, n).ino;
                    write(session, site, ino, 0, &pattern(4 * MIB as usize, n)).unwrap();
                    session.close(n);
                    written.push((ino, n));
                }
                stop.store(true, Ordering::Release);
                written
            });
            writer.join().unwrap()
        });
        assert!(stop.load(Ordering::Acquire));
        files.extend(written);
        // What is under way now is cut off.
        match round % 3 {
            0 => {
                site.kill_data(0);
                site.start_data(0);
            }
            1 => {
                let at = 1 + (round as usize / 3);
                site.kill_data(at);
                site.start_data(at);
            }
            _ => {
                site.kill();
                site.start();
                site.wait_for(3);
            }
        }
    }
    let session = session_on(&site, 1);
    for (ino, n) in &files {
        assert!(read(&session, &site, *ino, 4 * MIB) == pattern(4 * MIB as usize, *n), "file {n}");
    }
    let here = files.iter().filter(|(ino, _)| layout(&session, *ino).stripes == [1]).count();
    assert!(here < 16, "{here} of 4 MiB on a node of 64");
}
