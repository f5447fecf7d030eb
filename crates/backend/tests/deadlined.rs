//! Goal: nobody waits for a back end longer than the deadline, and what hangs stops nothing else. Method: calls that hang
//! until they are let go, in a directory on tmpfs.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fixture;

use std::{
    fs,
    ops::ControlFlow,
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use backend::{Call, Deadlined, Directory, Effect, Fault, FaultSpan, Faults, Limits};
use fixture::*;
use link::{Attrs, BackEnd, Making, Over, Reachable};
use tempfile::TempDir;
use types::{Errno, FileKind};

const DEADLINE: Duration = Duration::from_millis(300);
/// What a machine with much else to do may add.
const SLACK: Duration = Duration::from_secs(20);

struct Site {
    dir: TempDir,
    back: Arc<Deadlined<Directory>>,
    faults: Faults,
}

impl Site {
    fn new(threads: usize) -> Site {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        fs::write(dir.path().join("f"), b"0123456789").unwrap();
        let (inner, faults) = with_faults(dir.path());
        let limits = Limits { deadline: DEADLINE, looks: threads, changes: threads, reads: threads };
        Site { dir, back: Arc::new(Deadlined::new(inner, limits)), faults }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn hang(&self, call: Call, span: FaultSpan) {
        self.faults.plan(Fault { call: Some(call), nth: 1, span, effect: Effect::Hang });
    }

    /// Waits until nothing hangs.
    fn settle(&self) {
        let until = Instant::now() + SLACK;
        while self.back.counters().hanging > 0 {
            assert!(Instant::now() < until);
            thread::yield_now();
        }
    }
}

/// Lets go what hangs, also when the test fails: its threads would wait for ever.
impl Drop for Site {
    fn drop(&mut self) {
        self.faults.release();
    }
}

fn assert_late<T: std::fmt::Debug>(call: impl FnOnce() -> Result<T, Errno>) {
    let began = Instant::now();
    assert_eq!(call().err(), Some(Errno::ETIMEDOUT));
    assert!(began.elapsed() >= DEADLINE && began.elapsed() < DEADLINE + SLACK, "{:?}", began.elapsed());
}

/// Though calls hang that nobody lets go meanwhile.
fn assert_ends(faults: &Faults, work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        work();
        done.send(())
    });
    let ended = ended.recv_timeout(SLACK);
    if ended.is_err() {
        // What is dropped while this test fails would hang as well.
        faults.release();
    }
    assert_eq!(ended, Ok(()), "it hangs");
}

#[test]
fn every_call_has_the_deadline() {
    let site = Site::new(32);
    let back = site.back.as_ref();
    let f = way("f");
    let (source, _) = back.open(&f).unwrap();
    let mut writing = back.begin_version(&way(".onfs-way-1")).unwrap();
    let mut cutting = back.begin_version(&way(".onfs-way-2")).unwrap();
    let finishing = back.begin_version(&way(".onfs-way-3")).unwrap();
    site.faults.plan(Fault { call: None, nth: 1, span: FaultSpan::Onwards, effect: Effect::Hang });
    let began = Instant::now();
    assert_eq!(back.root(), Reachable::No);
    assert!(began.elapsed() >= DEADLINE);
    let what = Making { kind: FileKind::Fifo, rdev: 0, target: b"", with: &plain(0) };
    assert_late(|| back.space());
    assert_late(|| back.look(&f));
    assert_late(|| back.list(&[], &mut |_, _| ControlFlow::Continue(())));
    assert_late(|| back.readlink(&f));
    assert_late(|| back.xattrs(&f));
    assert_late(|| back.open(&f).map(|_| ()));
    assert_late(|| back.make(&way("m"), &what));
    assert_late(|| back.begin_version(&way(".onfs-way-4")).map(|_| ()));
    assert_late(|| back.begin_in_place(&way("in place")).map(|_| ()));
    assert_late(|| back.rename(&way("a"), &way("b"), Over::Nothing));
    assert_late(|| back.link(&way("c"), &way("d")));
    assert_late(|| back.unlink(&way("u")));
    assert_late(|| back.rmdir(&way("r")));
    assert_late(|| back.set_attributes(&way("s"), Attrs::MODE, &plain(0)));
    assert_late(|| back.set_xattr(&way("x"), b"user.a", None));
    assert_late(|| back.sync(&[]));
    assert_late(|| source.read_at(&mut [0; 4], 0));
    assert_late(|| source.look());
    assert_late(|| writing.write_at(b"1", 0));
    assert_late(|| cutting.set_len(1));
    assert_late(|| finishing.finish(&plain(0)));
    // A version that hangs is out of reach, and says so at once.
    assert_eq!(writing.write_at(b"2", 0), Err(Errno::ETIMEDOUT));
    let counters = back.counters();
    assert_eq!((counters.timeouts, counters.hanging), (22, 22));
    assert!(counters.longest >= DEADLINE);
    let last = counters.last_error.unwrap();
    assert_eq!((last.call, last.errno), (Call::Finish, Errno::ETIMEDOUT));
    site.faults.release();
    site.settle();
    assert_eq!(back.look(&f).unwrap().unwrap().seen.size, 10);
}

#[test]
fn what_hangs_stops_only_its_kind_and_serves_again() {
    let site = Site::new(2);
    let back = &site.back;
    let (source, _) = back.open(&way("f")).unwrap();
    site.hang(Call::Read, FaultSpan::Onwards);
    for _ in 0..2 {
        assert_late(|| source.read_at(&mut [0; 4], 0));
    }
    // All threads that read hang: the next stands in line until its deadline, though it would not hang itself.
    assert_late(|| source.look());
    assert_eq!(back.counters().hanging, 2);
    assert!(back.look(&way("f")).unwrap().is_some());
    assert_eq!(back.rename(&way("f"), &way("g"), Over::Nothing), Ok(()));
    assert_eq!(names(back.as_ref(), "").unwrap(), ["g"]);
    assert!(matches!(back.root(), Reachable::Yes { .. }));
    // One that stands in line when a thread comes back is served.
    let waiting = thread::spawn({
        let back = back.clone();
        move || back.open(&way("g")).map(|(_, found)| found.seen.size)
    });
    site.faults.release();
    assert_eq!(waiting.join().unwrap(), Ok(10));
    site.settle();
    let mut buf = [0; 4];
    for offset in 0..4 {
        assert_eq!(source.read_at(&mut buf, offset), Ok(4));
        assert_eq!(buf[0], b'0' + offset as u8);
    }
    assert_eq!(site.faults.count(Call::Read), 6, "what left the line was never asked");
}

#[test]
fn a_change_that_is_out_keeps_others_from_its_names() {
    let site = Site::new(4);
    let back = &site.back;
    site.hang(Call::Rename, FaultSpan::Once);
    assert_late(|| back.rename(&way("f"), &way("g"), Over::Nothing));
    let what = Making { kind: FileKind::Directory, rdev: 0, target: b"", with: &plain(0o700) };
    assert_eq!(back.unlink(&way("f")), Err(Errno::EBUSY));
    assert_eq!(back.make(&way("g"), &what).err(), Some(Errno::EBUSY));
    assert_eq!(back.link(&way("h"), &way("g")), Err(Errno::EBUSY));
    assert!(back.make(&way("d"), &what).is_ok());
    assert!(back.look(&way("f")).unwrap().is_some());
    site.faults.release();
    site.settle();
    // It was done after all.
    assert_eq!(names(back.as_ref(), "").unwrap(), ["d", "g"]);
    assert_eq!(back.unlink(&way("g")), Ok(()));
    // One that never left the line was not done, and keeps nobody away.
    site.hang(Call::Rmdir, FaultSpan::Onwards);
    for name in ["1", "2", "3", "4"] {
        assert_late(|| back.rmdir(&way(name)));
    }
    assert_late(|| back.unlink(&way("d")));
    site.faults.release();
    site.settle();
    assert_eq!(back.rmdir(&way("d")), Ok(()));
    assert_eq!(site.faults.count(Call::Unlink), 1);
}

#[test]
fn dropping_waits_for_nothing() {
    let site = Site::new(2);
    let back = &site.back;
    let (first, _) = back.open(&way("f")).unwrap();
    let (second, _) = back.open(&way("f")).unwrap();
    let mut hung = back.begin_version(&way(".onfs-way-1")).unwrap();
    let idle = back.begin_version(&way(".onfs-way-2")).unwrap();
    let late = back.begin_version(&way(".onfs-way-3")).unwrap();
    for call in [Call::Write, Call::Close, Call::Read] {
        site.hang(call, FaultSpan::Onwards);
    }
    assert_late(|| hung.write_at(b"1", 0));
    assert_late(|| first.read_at(&mut [0], 0));
    assert_ends(&site.faults, move || drop((hung, idle, first, second)));
    // Both threads for changes hang, one of them in a close: this one does not get to its end, and goes all the same.
    assert!(site.faults.wait_for_hanging(3, SLACK));
    assert_late(|| late.finish(&plain(0)));
    site.faults.release();
    let until = Instant::now() + SLACK;
    while fs::read_dir(site.path()).unwrap().count() > 1 {
        assert!(Instant::now() < until, "versions that were given up stay");
        thread::yield_now();
    }
}

#[test]
fn it_ends_while_calls_hang() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(dir.path().join("f"), b"0123456789").unwrap();
    let (inner, faults) = with_faults(dir.path());
    let back = Deadlined::new(inner, Limits { deadline: DEADLINE, looks: 1, changes: 1, reads: 1 });
    let (source, _) = back.open(&way("f")).unwrap();
    faults.plan(Fault { call: Some(Call::Look), nth: 1, span: FaultSpan::Once, effect: Effect::Hang });
    assert_late(|| back.look(&way("f")));
    assert!(faults.wait_for_hanging(1, SLACK));
    assert_ends(&faults, move || drop(back));
    // What it gave out works on.
    assert_eq!(source.read_at(&mut [0; 9], 5), Ok(5));
    drop(source);
    faults.release();
}

#[test]
fn a_listing_is_given_up_between_batches() {
    let site = Site::new(2);
    for n in 0..2000 {
        fs::write(site.path().join(format!("{n}")), b"").unwrap();
    }
    let back = &site.back;
    // Slow visitors are no trouble of the back end's.
    let mut seen = 0;
    back.list(&[], &mut |_, _| {
        seen += 1;
        if seen == 300 {
            thread::sleep(2 * DEADLINE);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, 2001);
    site.hang(Call::List, FaultSpan::Once);
    assert_late(|| names(back.as_ref(), ""));
    assert_eq!(names(back.as_ref(), "").unwrap().len(), 2001, "by the other thread");
    site.faults.release();
    site.settle();
    let counters = back.counters();
    assert_eq!((counters.timeouts, counters.errors, counters.hanging), (1, 0, 0));
}

#[test]
fn only_trouble_counts_as_errors() {
    let site = Site::new(1);
    let back = &site.back;
    assert_eq!(back.unlink(&way("x")), Err(Errno::ENOENT));
    assert_eq!(back.rmdir(&way("f")), Err(Errno::ENOTDIR));
    assert_eq!(back.look(&way("x")), Ok(None));
    assert_eq!(back.counters().errors, 0);
    let effect = Effect::Fail(Errno::EIO);
    site.faults.plan(Fault { call: Some(Call::Look), nth: 2, span: FaultSpan::Once, effect });
    assert!(back.look(&way("f")).is_ok());
    assert_eq!(back.look(&way("f")), Err(Errno::EIO));
    assert!(back.look(&way("f")).is_ok());
    let counters = back.counters();
    assert_eq!((counters.calls, counters.errors, counters.timeouts), (6, 1, 0));
    let last = counters.last_error.unwrap();
    assert_eq!((last.call, last.errno), (Call::Look, Errno::EIO));
    assert!(last.at.sec > 1_700_000_000);
}

/// Uses every call; the first failure ends it.
fn script(back: &dyn BackEnd) -> Result<(), Errno> {
    if back.root() == Reachable::No {
        return Err(Errno::ENXIO);
    }
    back.space()?;
    let what = Making { kind: FileKind::Directory, rdev: 0, target: b"", with: &plain(0o755) };
    back.make(&way("d"), &what)?;
    let mut version = back.begin_version(&way("d/.onfs-way-1"))?;
    version.write_at(b"abc", 0)?;
    version.set_len(2)?;
    version.finish(&plain(0o600))?;
    back.rename(&way("d/.onfs-way-1"), &way("d/a"), Over::Nothing)?;
    back.begin_in_place(&way("d/a"))?.finish(&plain(0o644))?;
    back.link(&way("d/a"), &way("d/b"))?;
    back.set_attributes(&way("d/a"), Attrs::TIMES, &plain(0))?;
    back.set_xattr(&way("d/a"), b"user.a", Some(b"1"))?;
    back.xattrs(&way("d/a"))?;
    back.look(&way("d/a"))?;
    let (source, _) = back.open(&way("d/a"))?;
    source.look()?;
    source.read_at(&mut [0; 8], 0)?;
    let symlink = Making { kind: FileKind::Symlink, target: b"a", ..what };
    back.make(&way("d/l"), &symlink)?;
    back.readlink(&way("d/l"))?;
    back.list(&way("d"), &mut |_, _| ControlFlow::Continue(()))?;
    back.sync(&way("d"))?;
    for name in ["d/a", "d/b", "d/l"] {
        back.unlink(&way(name))?;
    }
    back.rmdir(&way("d"))
}

#[test]
fn every_failure_is_heard() {
    // Not of closes: they say nothing.
    for call in CALLS.into_iter().filter(|call| *call != Call::Close) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (inner, faults) = with_faults(dir.path());
        let back = Deadlined::new(inner, Limits::default());
        let effect = Effect::Fail(Errno::ENXIO);
        faults.plan(Fault { call: Some(call), nth: 1, span: FaultSpan::Once, effect });
        assert_eq!(script(&back), Err(Errno::ENXIO), "{}", call.name());
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    assert_eq!(script(&directory(dir.path())), Ok(()));
}

const CALLS: [Call; 21] = [
    Call::Root,
    Call::Space,
    Call::Look,
    Call::List,
    Call::Readlink,
    Call::Xattrs,
    Call::Open,
    Call::Make,
    Call::Begin,
    Call::Rename,
    Call::Link,
    Call::Unlink,
    Call::Rmdir,
    Call::SetAttributes,
    Call::SetXattr,
    Call::Sync,
    Call::Read,
    Call::Write,
    Call::SetLen,
    Call::Finish,
    Call::Close,
];

/// Prints what a deadline costs; proves nothing.
#[test]
#[ignore = "a measurement"]
fn cost_of_a_deadline() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(dir.path().join("f"), vec![1; 4 << 20]).unwrap();
    fs::create_dir(dir.path().join("many")).unwrap();
    for n in 0..50_000 {
        fs::write(dir.path().join(format!("many/{n}")), b"").unwrap();
    }
    let direct = directory(dir.path());
    let deadlined = Deadlined::new(directory(dir.path()), Limits::default());
    let f = way("f");
    for (name, back) in [("direct", &direct as &dyn BackEnd), ("deadlined", &deadlined)] {
        let looks = 20_000;
        let began = Instant::now();
        for _ in 0..looks {
            back.look(&f).unwrap();
        }
        println!("{name}: look {:?}", began.elapsed() / looks);
        let (source, _) = back.open(&f).unwrap();
        let mut buf = vec![0; 4 << 20];
        let reads = 100;
        let began = Instant::now();
        for _ in 0..reads {
            source.read_at(&mut buf, 0).unwrap();
        }
        println!("{name}: read of 4 MiB {:?}", began.elapsed() / reads);
        let began = Instant::now();
        assert_eq!(names(back, "many").unwrap().len(), 50_000);
        println!("{name}: listing, each name {:?}", began.elapsed() / 50_000);
    }
}
