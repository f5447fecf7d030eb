//! Goal: a mounted file system behaves the same over both transports, no request hangs, and every way for a session to
//! end ends it. Method: the null file system behind a wrapper that defers, drops or diverts requests by name, mounted
//! for real. Needs root and /dev/fuse; without the device the tests say so and pass.

#![expect(clippy::unwrap_used, reason = "a test: a failure is a panic")]

use std::{
    fs, io,
    os::{fd::AsFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use fuse::{
    Backing, Call, Capabilities, Data, Filesystem, InitConfig, KernelInfo, MountError, MountOptions,
    OpenFlags, OpenOut, Operation, Session, TransportChoice, TransportKind, UnmountError,
};
use parking_lot::{Condvar, Mutex};
use types::Errno;

#[path = "../examples/nullfs/fs.rs"]
mod nullfs;

use nullfs::{NullFs, NullOptions};

const BOTH: [TransportChoice; 2] = [TransportChoice::Device, TransportChoice::IoUring];
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Counts {
    lookups: AtomicU32,
    deferred: AtomicU32,
    destroyed: AtomicU32,
    held: (Mutex<u32>, Condvar),
    /// Data of writes, by their offsets.
    taken: Mutex<Vec<(u64, Data)>>,
}

/// What the wrapper does differently.
#[derive(Clone, Copy, Default)]
struct Tricks {
    /// Answer everything on other threads.
    defer: bool,
    /// Open files as passthrough to this.
    divert: bool,
    /// Keep lookups of "held" without an answer.
    hold: bool,
    /// And park them.
    park: bool,
    /// Answer writes, and keep their data only.
    take: bool,
    timeout: Duration,
}

struct Tricky {
    inner: Arc<NullFs>,
    tricks: Tricks,
    workers: mpsc::SyncSender<Call>,
    counts: Arc<Counts>,
    backing: Mutex<Option<Backing>>,
    target: fs::File,
    held: Mutex<Vec<Call>>,
}

impl Tricky {
    fn new(tricks: Tricks, counts: Arc<Counts>) -> Tricky {
        let inner = Arc::new(NullFs::new(NullOptions {
            timeout: tricks.timeout,
            keep: true,
            direct_io: false,
            direct_writes: false,
        }));
        let (workers, calls) = mpsc::sync_channel::<Call>(1024);
        let calls = Arc::new(Mutex::new(calls));
        for _ in 0..2 {
            let (calls, inner) = (Arc::clone(&calls), Arc::clone(&inner));
            thread::spawn(move || {
                loop {
                    let call = calls.lock().recv();
                    match call {
                        Ok(call) => inner.dispatch(call),
                        Err(mpsc::RecvError) => return,
                    }
                }
            });
        }
        let target = tempfile::tempfile().unwrap();
        target.write_all_at(b"from the backing file", 0).unwrap();
        Tricky { inner, tricks, workers, counts, backing: Mutex::default(), target, held: Mutex::default() }
    }

    fn defer(&self, call: Call) {
        self.counts.deferred.fetch_add(1, Ordering::Relaxed);
        self.workers.send(call).unwrap();
    }
}

impl Filesystem for Tricky {
    fn init(&self, kernel: &KernelInfo, config: &mut InitConfig) -> Result<(), Errno> {
        if self.tricks.divert {
            assert!(kernel.capabilities.contains(Capabilities::PASSTHROUGH));
            config.capabilities |= Capabilities::PASSTHROUGH;
            config.max_stack_depth = 1;
            *self.backing.lock() = Some(kernel.backing.clone());
        }
        config.max_readahead = 1 << 20;
        if self.tricks.park {
            // Or the kernel asks for one name after the other.
            config.capabilities |= Capabilities::PARALLEL_DIROPS;
        }
        self.inner.init(kernel, config)
    }

    fn dispatch(&self, mut call: Call) {
        match call.operation() {
            Ok(Operation::Write(args)) if self.tricks.take => {
                let (offset, len) = (args.offset, args.data.len());
                let data = call.take_data().unwrap();
                assert_eq!(data.as_ref().len(), len);
                self.counts.taken.lock().push((offset, data));
                return call.reply_written(len as u32);
            }
            Ok(Operation::Lookup { name }) => {
                self.counts.lookups.fetch_add(1, Ordering::Relaxed);
                if name == b"dropped" {
                    return drop(call);
                }
                if name.starts_with(b"held") && self.tricks.hold {
                    self.held.lock().push(if self.tricks.park { call.park() } else { call });
                    *self.counts.held.0.lock() += 1;
                    self.counts.held.1.notify_all();
                    return;
                }
                if name == b"freeing" {
                    self.held.lock().drain(..).for_each(|call| call.reply_error(Errno::EACCES));
                }
                if name == b"panicking" {
                    panic!("as the test wants it");
                }
            }
            Ok(Operation::Open { .. }) if self.tricks.divert => {
                let backing = self.backing.lock().as_ref().unwrap().open(self.target.as_fd()).unwrap();
                let open = OpenOut { fh: 1, flags: OpenFlags::PASSTHROUGH, backing: Some(backing) };
                call.reply_open(&open);
                return;
            }
            Ok(Operation::Read(args)) if self.tricks.defer => {
                let back = call.try_reply_with(args.size as usize, |_| Ok(None));
                return self.defer(back.unwrap());
            }
            _ => {}
        }
        if self.tricks.defer { self.defer(call) } else { self.inner.dispatch(call) }
    }

    fn destroy(&self) {
        self.counts.destroyed.fetch_add(1, Ordering::Relaxed);
    }
}

/// A mount that is taken away at the end, whatever happens.
struct Mounted {
    session: Arc<Session>,
    dir: PathBuf,
    counts: Arc<Counts>,
    _home: tempfile::TempDir,
}

impl Mounted {
    /// `None`: this machine cannot, and the reason was printed.
    fn new(transport: TransportChoice, tricks: Tricks) -> Option<Mounted> {
        if !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: /dev/fuse is missing");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        let counts = Arc::new(Counts::default());
        let mut options = MountOptions::new(home.path());
        options.transport = transport;
        options.default_permissions = true;
        let session = match Session::mount(&options, Arc::new(Tricky::new(tricks, Arc::clone(&counts)))) {
            Ok(session) => session,
            Err(MountError::NoRing(reason)) => {
                eprintln!("skipped: no io_uring: {reason}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let kind = session.transport().kind;
        assert_eq!(kind == TransportKind::IoUring, transport == TransportChoice::IoUring);
        Some(Mounted { session: Arc::new(session), dir: home.path().to_owned(), counts, _home: home })
    }

    /// Unmounts, and checks that the session ends.
    fn finish(self) {
        let until = Instant::now() + PATIENCE;
        // What was closed may be told to the mount a moment later.
        while let Err(error) = self.session.unmount(false) {
            assert!(matches!(error, UnmountError::Busy(_)) && Instant::now() < until, "{error}");
            thread::sleep(Duration::from_millis(5));
        }
        self.check_ended();
    }

    fn check_ended(&self) {
        assert!(self.session.wait(PATIENCE), "the session did not end");
        assert_eq!(self.counts.destroyed.load(Ordering::Relaxed), 1);
        assert!(matches!(self.session.unmount(false), Err(UnmountError::NotMounted(_))));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.session.unmount(true);
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 12) as u8) ^ seed).collect()
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

/// Create, write and read back 3 MiB, list 1000 entries, rename, remove.
fn exercise(dir: &Path) {
    let file = dir.join("big");
    let data = pattern(3 << 20, 1);
    fs::write(&file, &data).unwrap();
    assert!(fs::read(&file).unwrap() == data);
    let handle = fs::File::options().read(true).write(true).open(&file).unwrap();
    handle.write_all_at(b"patch", 1_000_000).unwrap();
    let mut five = [0; 5];
    handle.read_exact_at(&mut five, 1_000_000).unwrap();
    assert_eq!(&five, b"patch");
    handle.set_len(10).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().len(), 10);
    drop(handle);

    let many = dir.join("many");
    fs::create_dir(&many).unwrap();
    for i in 0..1000 {
        fs::write(many.join(format!("entry-{i}")), []).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(&many).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1000);

    fs::rename(&file, many.join("moved")).unwrap();
    assert_eq!(errno(&fs::metadata(&file).unwrap_err()), Errno::ENOENT);
    assert_eq!(fs::metadata(many.join("moved")).unwrap().len(), 10);
    std::os::unix::fs::symlink("over/there", dir.join("link")).unwrap();
    assert_eq!(fs::read_link(dir.join("link")).unwrap(), Path::new("over/there"));
    assert_eq!(errno(&fs::remove_dir(&many).unwrap_err()), Errno::ENOTEMPTY);
    fs::remove_dir_all(&many).unwrap();
    fs::remove_file(dir.join("link")).unwrap();
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn files_and_directories_work() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks::default()) else { continue };
        exercise(&mounted.dir);
        assert!(mounted.session.buffer_bytes() > 1 << 20);
        mounted.finish();
    }
}

#[test]
fn answers_may_come_from_other_threads() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks { defer: true, ..Tricks::default() }) else {
            continue;
        };
        exercise(&mounted.dir);
        assert!(mounted.counts.deferred.load(Ordering::Relaxed) > 1000);
        mounted.finish();
    }
}

/// What was taken stays as it was written, whatever comes after it.
#[test]
fn data_that_were_taken_outlive_their_request() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks { take: true, ..Tricks::default() }) else {
            continue;
        };
        let file = fs::File::create(mounted.dir.join("f")).unwrap();
        for seed in 0..3 {
            let whole = pattern(4 << 20, seed);
            for (offset, len) in [(0, 1), (1, 4095), (4096, 4096), (8192, 100_000), (108_192, 3 << 20)] {
                file.write_all_at(&whole[offset..offset + len], offset as u64).unwrap();
            }
            let mut taken = std::mem::take(&mut *mounted.counts.taken.lock());
            taken.sort_by_key(|(offset, _)| *offset);
            let all: Vec<u8> = taken.iter().flat_map(|(_, data)| data.as_ref()).copied().collect();
            assert!(taken.len() >= 5 && all == whole[..108_192 + (3 << 20)]);
        }
        drop(file);
        mounted.finish();
    }
}

#[test]
fn a_dropped_or_panicking_request_is_eio() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks::default()) else { continue };
        for name in ["dropped", "panicking"] {
            // More often than a queue has entries: none may be lost.
            for _ in 0..40 {
                assert_eq!(errno(&fs::metadata(mounted.dir.join(name)).unwrap_err()), Errno::EIO);
            }
        }
        exercise(&mounted.dir);
        mounted.finish();
    }
}

#[test]
fn many_threads_at_once() {
    for (transport, defer) in BOTH.into_iter().flat_map(|t| [(t, false), (t, true)]) {
        let Some(mounted) = Mounted::new(transport, Tricks { defer, ..Tricks::default() }) else { continue };
        thread::scope(|scope| {
            for worker in 0..4_u8 {
                let dir = mounted.dir.join(format!("worker-{worker}"));
                scope.spawn(move || {
                    fs::create_dir(&dir).unwrap();
                    for round in 0..50_usize {
                        let path = dir.join(format!("f{round}"));
                        let data = pattern(1 + round * 7919, worker);
                        fs::write(&path, &data).unwrap();
                        assert!(fs::read(&path).unwrap() == data);
                        if round % 3 == 0 {
                            fs::rename(&path, dir.join(format!("r{round}"))).unwrap();
                        } else {
                            fs::remove_file(&path).unwrap();
                        }
                    }
                    assert_eq!(fs::read_dir(&dir).unwrap().count(), 17);
                });
            }
        });
        mounted.finish();
    }
}

#[test]
fn unmounted_by_others() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks::default()) else { continue };
        fs::write(mounted.dir.join("a"), b"a").unwrap();
        let done = Command::new("umount").arg(&mounted.dir).status().unwrap();
        assert!(done.success());
        mounted.check_ended();
    }
}

#[test]
fn unmounted_while_requests_are_held() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks::default()) else { continue };
        let held = fs::File::create(mounted.dir.join("held")).unwrap();
        assert!(matches!(mounted.session.unmount(false), Err(UnmountError::Busy(_))));
        mounted.session.unmount(true).unwrap();
        assert!(!mounted.session.has_ended());
        held.write_all_at(b"still served", 0).unwrap();
        drop(held);
        mounted.check_ended();
    }
}

/// Goal: parked requests are in nobody's way, however many, and are answered. Method: more lookups than there are threads and
/// buffers wait; another request has all of them answered.
#[test]
fn parked_requests_hold_up_nobody() {
    const MANY: u32 = 200;
    let tricks = Tricks { hold: true, park: true, ..Tricks::default() };
    let Some(mounted) = Mounted::new(TransportChoice::Device, tricks) else { return };
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..MANY)
            .map(|n| {
                let path = mounted.dir.join(format!("held-{n}"));
                scope.spawn(move || errno(&fs::metadata(path).unwrap_err()))
            })
            .collect();
        let (held, told) = &mounted.counts.held;
        let late = told.wait_while_for(&mut held.lock(), |held| *held < MANY, PATIENCE);
        // Each has those that wait answered. (What changes the directory would wait for them in the kernel.)
        while waiting.iter().any(|one| !one.is_finished()) {
            let _ = fs::metadata(mounted.dir.join("freeing"));
        }
        assert!(!late.timed_out(), "some were held up by others");
        waiting.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), Errno::EACCES));
    });
    mounted.finish();
}

#[test]
fn a_forced_unmount_ends_requests_that_are_held() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks { hold: true, ..Tricks::default() }) else {
            continue;
        };
        let path = mounted.dir.join("held");
        thread::scope(|scope| {
            let callers: Vec<_> = (0..3).map(|_| scope.spawn(|| fs::metadata(&path).unwrap_err())).collect();
            let (count, change) = &mounted.counts.held;
            // Lookups of one name wait for each other, so that one is all that comes.
            let mut count = count.lock();
            while *count == 0 {
                assert!(!change.wait_for(&mut count, PATIENCE).timed_out(), "no request came");
            }
            drop(count);
            let done = Command::new("umount").arg("-fl").arg(&mounted.dir).status().unwrap();
            assert!(done.success());
            for caller in callers {
                caller.join().unwrap();
            }
        });
        // The calls are still held, and dropped with the file system after this.
        mounted.check_ended();
    }
}

#[test]
fn a_dropped_session_unmounts() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks::default()) else { continue };
        let (dir, counts) = (mounted.dir.clone(), Arc::clone(&mounted.counts));
        fs::write(dir.join("a"), b"a").unwrap();
        let home = tempfile::tempdir().unwrap();
        let mut options = MountOptions::new(home.path());
        options.transport = transport;
        let session = Session::mount(&options, Arc::new(Tricky::new(Tricks::default(), counts))).unwrap();
        fs::write(home.path().join("a"), b"a").unwrap();
        drop(session);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        drop(mounted);
    }
}

#[test]
fn cached_names_are_dropped_on_notice() {
    for transport in BOTH {
        let tricks = Tricks { timeout: Duration::from_secs(3600), ..Tricks::default() };
        let Some(mounted) = Mounted::new(transport, tricks) else { continue };
        let path = mounted.dir.join("cached");
        fs::write(&path, b"x").unwrap();
        let lookups = || mounted.counts.lookups.load(Ordering::Relaxed);
        fs::metadata(&path).unwrap();
        let before = lookups();
        fs::metadata(&path).unwrap();
        assert_eq!(lookups(), before);
        let notifier = mounted.session.notifier();
        notifier.inval_entry(fuse::ROOT_NODE, b"cached").unwrap();
        fs::metadata(&path).unwrap();
        assert_eq!(lookups(), before + 1);
        notifier.expire_entry(fuse::ROOT_NODE, b"cached").unwrap();
        fs::metadata(&path).unwrap();
        assert_eq!(lookups(), before + 2);
        notifier.inval_inode(2, 0, 0).unwrap();
        // Nothing is cached for these, which is no error.
        notifier.inval_inode(999, 0, 0).unwrap();
        notifier.inval_entry(fuse::ROOT_NODE, b"unheard of").unwrap();
        mounted.finish();
    }
}

#[test]
fn the_kernel_reads_a_backing_file_itself() {
    for transport in BOTH {
        let tricks = Tricks { divert: true, ..Tricks::default() };
        let Some(mounted) = Mounted::new(transport, tricks) else { continue };
        let path = mounted.dir.join("diverted");
        fs::write(&path, b"dropped by the next open").unwrap();
        let mut text = [0; 21];
        fs::File::open(&path).unwrap().read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"from the backing file");
        mounted.finish();
    }
}

/// Something of somebody else's, mounted over a directory for as long as this lives.
struct Foreign<'a>(&'a Path);

impl<'a> Foreign<'a> {
    fn over(dir: &'a Path) -> Foreign<'a> {
        let done = Command::new("mount").args(["-t", "tmpfs", "somebody"]).arg(dir).status().unwrap();
        assert!(done.success());
        fs::write(dir.join("theirs"), b"x").unwrap();
        Foreign(dir)
    }
    fn is_there(&self) -> bool {
        self.0.join("theirs").exists()
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn regression_a_detached_mount_is_ended_and_what_lies_there_now_stays() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks::default()) else { continue };
        let held = fs::File::create(mounted.dir.join("held")).unwrap();
        mounted.session.unmount(true).unwrap();
        let foreign = Foreign::over(&mounted.dir);
        for lazy in [false, true] {
            assert!(matches!(mounted.session.unmount(lazy), Err(UnmountError::NotMounted(_))));
        }
        assert!(!mounted.session.has_ended());
        held.write_all_at(b"still served", 0).unwrap();
        mounted.session.abort();
        mounted.check_ended();
        assert_eq!(held.write_all_at(b"no more", 0).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        mounted.session.abort();
        assert!(foreign.is_there());
    }
}

#[test]
fn regression_a_mount_under_another_is_told_and_ended_alone() {
    let Some(mounted) = Mounted::new(TransportChoice::Device, Tricks::default()) else { return };
    let foreign = Foreign::over(&mounted.dir);
    for lazy in [false, true] {
        assert!(matches!(mounted.session.unmount(lazy), Err(UnmountError::Covered(_))));
    }
    mounted.session.abort();
    assert!(mounted.session.wait(PATIENCE), "the session did not end");
    assert!(foreign.is_there());
    drop(foreign);
    // What is left of it.
    assert!(Command::new("umount").arg(&mounted.dir).status().unwrap().success());
}

/// A daemon in a container may not be let to the kernel's control files.
#[test]
fn regression_an_abort_that_the_kernel_refuses_ends_the_session_all_the_same() {
    for transport in BOTH {
        let Some(mounted) = Mounted::new(transport, Tricks::default()) else { continue };
        let held = fs::File::create(mounted.dir.join("held")).unwrap();
        mounted.session.unmount(true).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: plain numbers; it changes this thread alone.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, 4001, 4001, 4001) };
                assert_eq!(changed, 0);
                mounted.session.abort();
            });
        });
        assert!(mounted.session.wait(PATIENCE), "the session did not end");
        assert_eq!(errno(&held.write_all_at(b"no more", 0).unwrap_err()), Errno::ENODEV);
    }
}

#[test]
fn what_cannot_be_mounted_on_is_named() {
    let home = tempfile::tempdir().unwrap();
    let attempt = |path: &Path| {
        let counts = Arc::new(Counts::default());
        Session::mount(&MountOptions::new(path), Arc::new(Tricky::new(Tricks::default(), counts))).map(|_| ())
    };
    let missing = home.path().join("missing");
    assert!(matches!(attempt(&missing), Err(MountError::NoMountpoint(path)) if path == missing));
    let file = home.path().join("file");
    fs::write(&file, []).unwrap();
    assert!(matches!(attempt(&file), Err(MountError::NotADirectory(_))));
    assert!(matches!(attempt(&file.join("x")), Err(MountError::NotADirectory(_))));
}

#[test]
fn a_mount_without_its_server_is_recognised() {
    let Ok(device) = fs::File::options().read(true).write(true).open("/dev/fuse") else {
        eprintln!("skipped: /dev/fuse cannot be opened");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let target = std::ffi::CString::new(home.path().to_str().unwrap()).unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", std::os::fd::AsRawFd::as_raw_fd(&device));
    let data = std::ffi::CString::new(data).unwrap();
    // SAFETY: four strings that outlive the call.
    let mounted =
        unsafe { libc::mount(c"x".as_ptr(), target.as_ptr(), c"fuse".as_ptr(), 0, data.as_ptr().cast()) };
    if mounted != 0 {
        eprintln!("skipped: not permitted to mount");
        return;
    }
    drop(device);
    let counts = Arc::new(Counts::default());
    let result =
        Session::mount(&MountOptions::new(home.path()), Arc::new(Tricky::new(Tricks::default(), counts)));
    // SAFETY: a string that outlives the call.
    unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    assert!(matches!(result.map(|_| ()), Err(MountError::Stale(_))));
}
