//! Goal: two metadata servers of one namespace, each with slots of its own, lose nothing when slots go from one to the other and when one is
//! killed, and only the owner's batches are taken. Method: stores over a real PostgreSQL server; hand-overs while files are made; a server
//! that is dropped with its journal not carried anywhere; what is left is compared with what was answered, and checked as a whole. And
//! with a copy of the journal's end another goes on in its place (crates `cluster` and `pg`: tails).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

#[path = "../../pg/tests/support/mod.rs"]
mod support;

use std::{
    collections::BTreeSet,
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use cluster::tail::row::{Change, Refused};
use kv::{
    ApplyError, Batch, CopyFile, CopyName, CopyRecord, Engine, Follower, Lsn, MetaStore, MetaStoreOptions,
    OpenError, SystemDisk, entries_of,
};
use mds::{Bytes, Caller, Mds, MdsOptions, NewNode, fsck};
use namespace::txn::{KvError, Visit};
use parking_lot::Mutex;
use pg::{PgEngine, Rights, TailBatch, TailError};
use support::{Server, quick, server};
use types::{Errno, FileKind, Ino, Slot, Timestamp};

const ROOT: Caller = Caller { uid: 0, gid: 0, umask: 0 };
const FILE: NewNode<'static> =
    NewNode { kind: FileKind::Regular, mode: 0o644, rdev: 0, target: None, for_write: false };

/// An engine whose process can be killed, as far as the database sees.
struct Mortal {
    engine: PgEngine,
    killed: Arc<AtomicBool>,
}

impl Engine for Mortal {
    fn name(&self) -> &'static str {
        self.engine.name()
    }
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        self.engine.get(key)
    }
    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        self.engine.scan(from, to, visit)
    }
    fn apply(&self, batch: &Batch<'_>, lsn: Lsn) -> Result<(), ApplyError> {
        if self.killed.load(Ordering::Acquire) {
            return Err(ApplyError::Nothing(KvError::Io("killed".to_owned())));
        }
        self.engine.apply(batch, lsn)
    }
    fn applied_lsn(&self) -> Result<Lsn, KvError> {
        self.engine.applied_lsn()
    }
    fn taken_over(&self) -> Result<bool, KvError> {
        self.engine.taken_over()
    }
    fn begin_anew(&self) -> Result<(), KvError> {
        self.engine.begin_anew()
    }
    fn approximate_bytes(&self) -> u64 {
        self.engine.approximate_bytes()
    }
    fn close(&self) -> Result<(), KvError> {
        if self.killed.load(Ordering::Acquire) { Ok(()) } else { self.engine.close() }
    }
}

fn open(server: &Server, dir: &Path, killed: &Arc<AtomicBool>) -> (Arc<MetaStore>, Rights) {
    let mut rights = None;
    let engine = |dir: &Path, _: u64| -> Result<Box<dyn Engine>, OpenError> {
        let engine = PgEngine::open(dir, server.shared("servers").tuned(quick()))?;
        rights = Some(engine.rights());
        Ok(Box::new(Mortal { engine, killed: Arc::clone(killed) }))
    };
    // Nothing is carried into the engine by itself: a kill finds it in the journal.
    let options = MetaStoreOptions { background: false, ..MetaStoreOptions::default() };
    let store = Arc::new(MetaStore::open(dir, engine, options, Arc::new(SystemDisk)).unwrap());
    (store, rights.unwrap())
}

fn slots(rights: &Rights) -> Vec<Slot> {
    rights.ours().into_keys().filter_map(Slot::new).collect()
}

fn hand_over(slot: Slot, from: (&Mds, &Rights), to: (&Mds, &Rights), next_ugsd: u32) {
    from.0.let_go(&[slot]).unwrap();
    from.1.release(&[slot.get()]).unwrap();
    assert_eq!(to.1.take_free(&[slot.get()]).unwrap().ours.len(), 1);
    to.0.take_on(&[slot], next_ugsd).unwrap();
}

fn names(mds: &Mds, dir: Ino) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    mds.readdir(dir, 0, &mut |entry| {
        names.insert(String::from_utf8(entry.name.to_vec()).unwrap());
        ControlFlow::Continue(())
    })
    .unwrap();
    names.into_iter().filter(|name| !name.starts_with('.')).collect()
}

/// Makes files in the directory at whichever of the two serves it, until told to end. Returns what was answered.
fn make_files(servers: [&Mds; 2], dir: Ino, ended: &AtomicBool) -> BTreeSet<String> {
    let (mut made, mut n) = (BTreeSet::new(), 0);
    while !ended.load(Ordering::Acquire) {
        let name = format!("f{n}");
        match servers.iter().find_map(|mds| match mds.create(&ROOT, dir, name.as_bytes(), &FILE) {
            Err(Errno::EREMOTE) => None,
            other => Some(other),
        }) {
            Some(result) => {
                assert_eq!(result.unwrap().attr.ino.ugsd(), dir.ugsd());
                made.insert(name);
                n += 1;
            }
            // On its way.
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    made
}

#[test]
fn slots_go_between_two_servers_of_one_namespace() {
    let Some(server) = server() else { return };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (alive, killed) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (store_a, rights_a) = open(&server, first.path(), &alive);
    let all: Vec<u16> = (0..4096).collect();
    assert_eq!(rights_a.take_free(&all).unwrap().ours.len(), 4096);
    let a = Mds::first(store_a.clone(), MdsOptions::default(), &slots(&rights_a)).unwrap();
    let dirs = [b"one", b"two"].map(|name| a.mkdir(&ROOT, Ino::ROOT, name, 0o755).unwrap().ino);
    let welcome = a.welcome().unwrap();
    let (store_b, rights_b) = open(&server, second.path(), &killed);
    assert_eq!(slots(&rights_b), []);
    // Not even when the first is silent for long.
    assert_eq!(rights_b.take_free(&[0, 1]).unwrap().others.len(), 2);
    let b = Mds::join(store_b.clone(), MdsOptions::default(), &welcome, &[]);
    let ended = AtomicBool::new(false);
    let made: Vec<BTreeSet<String>> = thread::scope(|scope| {
        let (a, b, ended) = (&a, &b, &ended);
        let makers: Vec<_> =
            dirs.iter().map(|dir| scope.spawn(move || make_files([a, b], *dir, ended))).collect();
        for round in 0..10 {
            let slot = dirs[round % 3 % 2].ugsd().slot();
            let (from, to) = ((a, &rights_a), (b, &rights_b));
            let next = a.next_ugsd().unwrap();
            if a.serves(slot) {
                hand_over(slot, from, to, next)
            } else {
                hand_over(slot, to, from, next)
            }
            thread::sleep(Duration::from_millis(20));
        }
        ended.store(true, Ordering::Release);
        makers.into_iter().map(|maker| maker.join().unwrap()).collect()
    });
    // The second has both of them, with something in its journal, and is killed.
    for dir in dirs {
        if a.serves(dir.ugsd().slot()) {
            hand_over(dir.ugsd().slot(), (&a, &rights_a), (&b, &rights_b), a.next_ugsd().unwrap());
        }
        b.create(&ROOT, dir, b"last", &FILE).unwrap();
    }
    killed.store(true, Ordering::Release);
    drop((b, rights_b, store_b));
    assert!(rights_a.take_free(&[dirs[0].ugsd().slot().get()]).unwrap().ours.is_empty());
    thread::sleep(quick().lease + Duration::from_millis(500));
    let still = rights_a.take_free(&[dirs[0].ugsd().slot().get()]).unwrap();
    assert_eq!(still.others.len(), 1, "what its journal has is nowhere else");
    let (store_b, rights_b) = open(&server, second.path(), &alive);
    assert_eq!(slots(&rights_b).len(), 2);
    let b = Mds::join(store_b.clone(), MdsOptions::default(), &a.welcome().unwrap(), &slots(&rights_b));
    for (dir, made) in dirs.iter().zip(&made) {
        assert!(made.len() > 10, "{}", made.len());
        let expected: BTreeSet<String> = made.iter().cloned().chain(["last".to_owned()]).collect();
        assert_eq!(names(&b, *dir), expected);
    }
    store_a.checkpoint().unwrap();
    store_b.checkpoint().unwrap();
    store_a.forget_reads();
    let mut findings = Vec::new();
    fsck(&store_a, Timestamp::EPOCH, false, &mut |finding| findings.push(finding.to_string())).unwrap();
    assert_eq!(findings, Vec::<String>::new());
}

/// What the first server's commits are copied to, as if its standby had stored each before it was answered.
#[derive(Default)]
struct Copier {
    file: Mutex<Option<CopyFile>>,
    stored: AtomicU64,
    /// The standby hears no more.
    cut: AtomicBool,
}

impl Follower for Copier {
    fn added(&self, lsn: Lsn, body: &[u8]) {
        let mut file = self.file.lock();
        if let Some(file) = file.as_mut().filter(|_| !self.cut.load(Ordering::Acquire)) {
            let record = CopyRecord { number: lsn.0, lsn: Some(lsn), bytes: Bytes::copy_from_slice(body) };
            file.append(&[record]).unwrap();
        }
        if !self.cut.load(Ordering::Acquire) {
            self.stored.store(lsn.0, Ordering::Release);
        }
    }
    fn before_apply(&self, lsn: Lsn) -> Result<(), KvError> {
        let stored = self.stored.load(Ordering::Acquire);
        if lsn.0 <= stored { Ok(()) } else { Err(KvError::Io("the standby has not stored it".to_owned())) }
    }
    fn applied(&self, _: Lsn) {}
}

fn tail_in(path: &Path) -> (CopyName, Vec<TailBatch>) {
    let (name, records) = CopyFile::find(path).unwrap().unwrap();
    let batch = |record: &CopyRecord| Some((record.lsn?, entries_of(&record.bytes).unwrap()));
    (name, records.iter().filter_map(batch).collect())
}

/// Goal: a standby that goes on in a dead server's place has all that was answered, and nothing that was not; the dead one comes back with
/// empty hands and is one of them again. Method: as the others here, with a copy of each commit in a file.
#[test]
fn a_standby_goes_on_with_what_a_dead_server_answered() {
    let Some(server) = server() else { return };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (alive, killed) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (store_a, rights_a) = open(&server, first.path(), &killed);
    let copier: Arc<Copier> = Arc::default();
    assert!(store_a.set_follower(copier.clone()));
    let all: Vec<u16> = (0..4096).collect();
    assert_eq!(rights_a.take_free(&all).unwrap().ours.len(), 4096);
    let a = Mds::first(store_a.clone(), MdsOptions::default(), &slots(&rights_a)).unwrap();
    let dir = a.mkdir(&ROOT, Ino::ROOT, b"dir", 0o755).unwrap().ino;
    let create =
        |mds: &Mds, name: &str| mds.create(&ROOT, dir, name.as_bytes(), &FILE).map(|found| found.attr.ino);
    create(&a, "before").unwrap();
    let (store_b, rights_b) = open(&server, second.path(), &alive);
    drop(Mds::join(store_b.clone(), MdsOptions::default(), &a.welcome().unwrap(), &[]));
    // A copy begins when the engine has what was before it.
    let (copy, from) = (1, rights_a.writer().to_owned());
    rights_a.write_tail(&Change::Begin { copy, standby: rights_b.writer().to_owned() }).unwrap();
    store_a.checkpoint().unwrap();
    let (path, base) = (second.path().join("copy"), store_a.last_lsn().0);
    *copier.file.lock() = Some(CopyFile::begin(&path, CopyName { copy, base }, &[]).unwrap());
    rights_a.write_tail(&Change::Complete { copy }).unwrap();
    for n in 0..20 {
        create(&a, &format!("f{n}")).unwrap();
        if n == 10 {
            store_a.checkpoint().unwrap();
            a.unlink(dir, b"f3", &|_| false).unwrap();
        }
    }
    copier.cut.store(true, Ordering::Release);
    create(&a, "unheard").unwrap();
    assert!(store_a.checkpoint().is_err(), "the engine would know more than the standby");
    let last = store_a.last_lsn();
    killed.store(true, Ordering::Release);
    drop((a, rights_a, store_a));
    let (_, tail) = tail_in(&path);
    let until = Instant::now() + Duration::from_secs(60);
    let taken = loop {
        match rights_b.take_over(&from, copy, &tail) {
            Ok(taken) => break taken,
            Err(TailError::Refused(Refused::Lease)) => assert!(Instant::now() < until, "never taken"),
            Err(other) => panic!("{other:?}"),
        }
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(taken.ours.len(), 4096);
    // It begins as after a start.
    store_b.forget_reads();
    let b = Mds::first(store_b.clone(), MdsOptions::default(), &slots(&rights_b)).unwrap();
    let answered: BTreeSet<String> = (0..20).filter(|n| *n != 3).map(|n| format!("f{n}")).collect();
    let answered: BTreeSet<String> = answered.into_iter().chain(["before".to_owned()]).collect();
    assert_eq!(names(&b, dir), answered);
    let again = create(&b, "unheard").unwrap();
    // The first one comes back.
    let (store_a, rights_a) = open(&server, first.path(), &alive);
    assert_eq!((slots(&rights_a), store_a.recovery().replayed), (vec![], 0));
    assert!(store_a.last_lsn() >= last, "numbers are not given again");
    let a = Mds::join(store_a.clone(), MdsOptions::default(), &b.welcome().unwrap(), &[]);
    assert_eq!(b.lookup(dir, b"unheard").unwrap().attr.ino, again);
    hand_over(dir.ugsd().slot(), (&b, &rights_b), (&a, &rights_a), b.next_ugsd().unwrap());
    create(&a, "after").unwrap();
    assert_eq!(names(&a, dir).len(), answered.len() + 2);
    store_a.checkpoint().unwrap();
    store_b.checkpoint().unwrap();
    store_b.forget_reads();
    let mut findings = Vec::new();
    fsck(&store_b, Timestamp::EPOCH, false, &mut |finding| findings.push(finding.to_string())).unwrap();
    assert_eq!(findings, Vec::<String>::new());
}
