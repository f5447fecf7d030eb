//! Goal: what the kernel reads by itself, of a file whose data are on this machine, is what was written last, by whom and where ever; and its object
//! stays in its place as long as the kernel may read it. Method: a real mount of one client, at real services with the data server's socket, and a
//! second client without a kernel that writes meanwhile. Needs root, and a kernel with passthrough: else a line says that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../client/tests/harness/map.rs"]
mod map;
#[path = "../../serve/tests/site/mod.rs"]
mod site;

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use fuse::{MountOptions, Session, SetattrArgs, TransportChoice};
use map::Map;
use net::{Credentials, hatch};
use proto::{
    Request,
    data::Object,
    lending::{Lend, StoreTo},
    moving::{DrainNode, StandingList, Standings},
};
use remote::{Access, AllocateArgs, OpenFile, OwnNode, Place, Remote, RemoteOptions, Sockets, WriteHow};
use site::{
    DataSite, ask, client_as, client_to,
    cluster::{META, Site},
    credentials, until,
};
use types::{Errno, Ino};
use wire::{
    handshake::{Identity, Roles},
    schema::Lane,
};

const BOTH: Access = Access { read: true, write: true, exclusive: false, no_atime: true };
const LEN: usize = 1 << 20;

fn as_client(node: u64) -> Credentials {
    let credentials = credentials(node);
    Credentials { me: Identity { roles: Roles::CLIENT, ..credentials.me }, ..credentials }
}

fn client(site: &Site, node: u64, own_node: OwnNode) -> Arc<Remote> {
    let mut options = RemoteOptions::new(vec![site.address()], as_client(node));
    options.patience = Duration::from_secs(5);
    options.longest = Duration::from_secs(20);
    options.own_node = own_node;
    options.sockets = Sockets::At(site.data[0].near_socket());
    Remote::start(options).unwrap()
}

/// A mount whose own data server is the first one, and a client elsewhere.
struct Run {
    site: Site,
    mount: tempfile::TempDir,
    session: Option<Session>,
    a: Arc<Remote>,
    b: Arc<Remote>,
}

/// `None`: this machine cannot.
fn run() -> Option<Run> {
    let mut data = DataSite::new(1);
    data.address = Some("127.0.0.1:0".parse().unwrap());
    data.near = true;
    data.start();
    let mut site = Site::new(0);
    site.add_data(data);
    let (a, b) = (client(&site, 900, OwnNode::Is(1)), client(&site, 901, OwnNode::None));
    let mount = tempfile::tempdir().unwrap();
    let options = MountOptions { transport: TransportChoice::Device, ..MountOptions::new(mount.path()) };
    let session = match Session::mount(&options, a.clone()) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("skipped: no mount here: {error}");
            return None;
        }
    };
    let run = Run { site, mount, session: Some(session), a, b };
    run.write("probe", &[1; LEN]);
    let probe = File::open(run.path("probe")).unwrap();
    if run.files() == 0 {
        eprintln!("skipped: no passthrough here");
        return None;
    }
    drop(probe);
    run.is_let_go();
    Some(run)
}

impl Run {
    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// Through the mount, so that its node has it.
    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    fn files(&self) -> usize {
        self.a.status().own.map_or(0, |own| own.files)
    }

    fn lent(&self) -> usize {
        self.site.data[0].service().lent()
    }

    fn is_let_go(&self) {
        until("nothing is read in place", || self.files() == 0 && self.lent() == 0);
    }

    /// Of the other client, for reading and writing.
    fn elsewhere(&self, name: &str) -> Arc<OpenFile> {
        let ino = self.b.lookup(Place { dir: Ino::ROOT, name: name.as_bytes() }).unwrap().ino;
        self.b.open(ino, BOTH).unwrap()
    }

    fn read_requests(&self) -> u64 {
        let counts = self.a.meter().counts();
        counts.iter().filter(|one| one.method == proto::Method::Read).map(|one| one.requests).sum()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let session = self.session.take().unwrap();
        let _ = session.unmount(true);
        session.run();
        self.a.shutdown();
        self.b.shutdown();
    }
}

fn read(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], offset + done as u64).unwrap() {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    bytes
}

fn pattern(seed: u64) -> Vec<u8> {
    (0..LEN as u64).map(|at| (at * 7 + at / 4096 + seed) as u8).collect()
}

fn put(client: &Remote, file: &OpenFile, offset: u64, bytes: &[u8]) {
    assert_eq!(client.write(file, offset, bytes, WriteHow::default()).unwrap(), bytes.len());
}

fn size(client: &Remote, ino: Ino, size: u64) {
    client.setattr(ino, &SetattrArgs { size: Some(size), ..SetattrArgs::default() }).unwrap();
}

#[test]
fn what_others_write_cut_and_free_is_read_in_place() {
    let Some(run) = run() else { return };
    let mut want = pattern(1);
    run.write("f", &want);
    let reader = File::open(run.path("f")).unwrap();
    assert_eq!((run.files(), run.lent()), (1, 1));
    let before = run.read_requests();
    assert!(read(&reader, 0, LEN + 1) == want);
    let writer = run.elsewhere("f");
    put(&run.b, &writer, 100_000, &[9; 50_000]);
    want[100_000..150_000].fill(9);
    assert!(read(&reader, 0, LEN + 1) == want);
    size(&run.b, writer.ino, 300_001);
    want.truncate(300_001);
    assert!(read(&reader, 0, LEN + 1) == want);
    size(&run.b, writer.ino, 700_000);
    want.resize(700_000, 0);
    assert!(read(&reader, 0, LEN + 1) == want);
    // FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    run.b.allocate(&writer, AllocateArgs { offset: 8192, length: 40_000, mode: 3 }).unwrap();
    want[8192..48_192].fill(0);
    assert!(read(&reader, 0, LEN + 1) == want);
    let append = WriteHow { append: true, ..WriteHow::default() };
    assert_eq!(run.b.write(&writer, 0, &[5; 6_000_000][..4_000_000], append).unwrap(), 4_000_000);
    want.resize(4_700_000, 5);
    assert!(read(&reader, 0, 5_000_000) == want);
    // A writer on the mount itself, beside its reader.
    let here = File::options().write(true).open(run.path("f")).unwrap();
    here.write_all_at(&[3; 20_000], 4_190_000).unwrap();
    want[4_190_000..4_210_000].fill(3);
    assert!(read(&reader, 0, 5_000_000) == want);
    assert_eq!(run.read_requests(), before, "none of it was asked of the data server");
    drop((reader, here));
    run.b.close(writer.number);
    run.is_let_go();
    assert!(std::fs::read(run.path("f")).unwrap() == want);
    // The bytes and what vouches for them agree where they lie.
    let again = run.elsewhere("f");
    let mut all = vec![0; 4 << 20];
    assert_eq!(run.b.read(&again, 0, &mut all).unwrap(), all.len());
    assert!(all == want[..4 << 20]);
}

#[test]
fn a_register_never_goes_back() {
    let Some(run) = run() else { return };
    run.write("r", &vec![0; LEN]);
    let reader = File::open(run.path("r")).unwrap();
    assert_eq!(run.lent(), 1);
    let writer = run.elsewhere("r");
    let (answered, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=2000_u64 {
                put(&run.b, &writer, 4096 * 3, &n.to_le_bytes());
                answered.store(n, Ordering::SeqCst);
            }
            over.store(true, Ordering::SeqCst);
        });
        let mut last = 0;
        while !over.load(Ordering::SeqCst) {
            let least = answered.load(Ordering::SeqCst).max(last);
            let seen = u64::from_le_bytes(read(&reader, 4096 * 3, 8).try_into().unwrap());
            assert!(seen >= least, "{seen} was read after {least} was answered");
            last = seen;
        }
    });
    assert_eq!(run.lent(), 1);
    run.b.close(writer.number);
}

/// Also a mapping, which outlives its descriptor; and over a data server that is killed and started again, and does not know of it but for its record.
#[test]
fn an_object_stays_while_it_is_mapped_whatever_happens() {
    let Some(mut run) = run() else { return };
    let want = pattern(2);
    run.write("m", &want);
    let reader = File::open(run.path("m")).unwrap();
    let map = Map::private(&reader, LEN);
    run.site.kill_data(0);
    assert!(read(&reader, 0, LEN + 1) == want, "the kernel needs no data server for it");
    run.site.start_data(0);
    assert_eq!(run.lent(), 1);
    let writer = run.elsewhere("m");
    put(&run.b, &writer, 0, &[4; 8192]);
    assert!(read(&reader, 0, 8192) == [4; 8192]);
    // To the SSD and from memory, as it would be moved out; and back.
    let ds = run.site.data[0].data_server().clone();
    let ino = writer.ino;
    for to in [types::TierId::Ssd, types::TierId::Memory] {
        let _ = ds.migrate_later(ino, to);
        put(&run.b, &writer, 8192, &[to.index() as u8 + 7; 8192]);
        assert!(read(&reader, 8192, 8192) == [to.index() as u8 + 7; 8192]);
    }
    assert!(read(&reader, 16_384, LEN) == want[16_384..]);
    assert_eq!(run.lent(), 1);
    drop(reader);
    until("the mount has closed it", || run.files() == 0);
    put(&run.b, &writer, 0, &[6; 8192]);
    assert_eq!(map.read(0, 8192), [6; 8192]);
    assert_eq!(run.lent(), 1);
    drop(map);
    run.b.close(writer.number);
    run.is_let_go();
}

#[test]
fn a_drain_waits_for_who_reads_in_place_and_says_so() {
    let Some(mut run) = run() else { return };
    let want = pattern(3);
    run.write("d", &want);
    std::fs::remove_file(run.path("probe")).unwrap();
    let reader = File::open(run.path("d")).unwrap();
    run.site.add_data(DataSite::started(2));
    let control = client_to(&run.site.address(), META, Lane::Control);
    ask(&control, &DrainNode { node: 1, undo: false }, &[], 0).unwrap();
    let standing = || {
        let (_, body) = ask(&control, &Standings {}, &[], 1 << 20).unwrap();
        <StandingList as prost::Message>::decode(&body[..]).unwrap().standings.remove(0)
    };
    until("it says what it waits for", || standing().why.contains("reads it there in place"));
    let writer = run.elsewhere("d");
    put(&run.b, &writer, 5, b"still here");
    assert!(read(&reader, 5, 10) == b"still here");
    drop(reader);
    until("it is drained", || standing().known && standing().files_left == 0);
    let mut all = vec![0; LEN];
    assert_eq!(run.b.read(&writer, 0, &mut all).unwrap(), LEN);
    assert!(all[15..] == want[15..] && all[5..15] == *b"still here");
    // It is read as any other from now on.
    assert!(read(&File::open(run.path("d")).unwrap(), 15, LEN) == want[15..]);
    assert_eq!((run.files(), run.lent()), (0, 0));
    run.b.close(writer.number);
}

/// Who has it open for reading and writing beside a reader in place can map the object's file, and store to it.
#[test]
fn stores_through_a_mapping_beside_a_reader_are_seen_and_kept() {
    let Some(run) = run() else { return };
    run.write("s", &pattern(4));
    let reader = File::open(run.path("s")).unwrap();
    assert_eq!(run.lent(), 1);
    // A copy that has to be brought up to what comes is there before.
    reader.sync_all().unwrap();
    let both = File::options().read(true).write(true).open(run.path("s")).unwrap();
    let map = Map::shared(&both, LEN);
    map.write(4096, b"through a mapping");
    assert!(read(&reader, 4096, 17) == b"through a mapping");
    let there = run.elsewhere("s");
    let mut bytes = [0; 17];
    assert_eq!(run.b.read(&there, 4096, &mut bytes).unwrap(), 17);
    assert_eq!(&bytes, b"through a mapping");
    drop((reader, both));
    map.sync();
    map.write(8192, b"after the last close");
    drop(map);
    run.is_let_go();
    assert_eq!(&std::fs::read(run.path("s")).unwrap()[8192..8212], b"after the last close");
    assert_eq!(&std::fs::read(run.path("s")).unwrap()[4096..4113], b"through a mapping");
    run.b.close(there.number);
}

#[test]
fn only_who_came_to_the_socket_gets_a_descriptor_once() {
    let Some(run) = run() else { return };
    run.write("t", &pattern(5));
    let ino = run.b.lookup(Place { dir: Ino::ROOT, name: b"t" }).unwrap().ino;
    let data = &run.site.data[0];
    let lend_of = |generation| Lend { object: Some(Object { ino: ino.get(), generation, view: None }) };
    let far = client_as(as_client(902), data.address(), 1, Lane::Data);
    assert_eq!(ask(&far, &lend_of(1), &[], 0).unwrap_err().errno, Errno::EPERM.raw());
    assert_eq!(
        ask(&far, &StoreTo { object: lend_of(1).object }, &[], 0).unwrap_err().errno,
        Errno::EPERM.raw()
    );
    let socket = data.near_socket();
    let near =
        client_as(as_client(902), &format!("unix:{}", socket.display()).parse().unwrap(), 1, Lane::Data);
    let lent = (0..9).find_map(|generation| ask(&near, &lend_of(generation), &[], 0).ok()).unwrap().0;
    let ticket: hatch::Ticket = lent.ticket.try_into().unwrap();
    let wait = Duration::from_secs(5);
    assert!(hatch::fetch(&socket, [7; 16], wait).is_err());
    let file = File::from(hatch::fetch(&socket, ticket, wait).unwrap());
    assert!(hatch::fetch(&socket, ticket, wait).is_err(), "a ticket is good once");
    assert!(read(&file, 0, LEN + 1) == pattern(5));
    assert!(file.write_at(b"x", 0).is_err(), "it is for reading");
    assert_eq!(run.lent(), 1);
    drop(file);
    run.is_let_go();
    assert_eq!(Lend::METHOD.number(), 217);
}
