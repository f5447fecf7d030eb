//! All the parts put together and mounted in a temporary directory; requests are handed to the handler as the control
//! socket does.
#![cfg_attr(test, allow(dead_code, reason = "each test file uses a part"))]

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use onfs::{
    assemble::{self, StartContext},
    config::{Config, Host, Settings},
    control::{
        ControlError, DirPolicyReport, ErrorCode, FileRef, FileReport, Peer, Progress, ProgressSink,
        QuotaReport, Request, Response,
    },
    running::Running,
};

pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Site {
    pub dir: tempfile::TempDir,
    /// Near-line is the directory `theirs`, linked.
    linked: bool,
    running: Option<Running>,
}

/// Counts the reports, and refuses to go on after some.
pub struct Sink {
    pub reports: usize,
    pub most: usize,
}

impl ProgressSink for Sink {
    fn report(&mut self, _: Progress) -> Result<(), ControlError> {
        self.reports += 1;
        if self.reports > self.most { Err(ControlError::new(ErrorCode::TimedOut, "enough")) } else { Ok(()) }
    }
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

pub fn endless() -> Sink {
    Sink { reports: 0, most: usize::MAX }
}

pub fn root() -> Peer {
    Peer { pid: 1, uid: 0, gid: 0, groups: vec![], privileged: true }
}

impl Site {
    /// `None` (with a line that says so) where nothing can be mounted.
    pub fn mounted() -> Option<Site> {
        Site::made(false)
    }

    /// With a linked directory, which is empty.
    pub fn linked() -> Option<Site> {
        Site::made(true)
    }

    fn made(linked: bool) -> Option<Site> {
        if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
            eprintln!("/dev/fuse cannot be opened: nothing is tested");
            return None;
        }
        let shm = PathBuf::from("/dev/shm");
        let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
        let mut site = Site { dir: tempfile::tempdir_in(base).unwrap(), linked, running: None };
        site.mount();
        Some(site)
    }

    pub fn make(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn config(&self) -> Config {
        let mut settings = Settings::defaults();
        let mut set = |key: &str, value: String| settings.apply_flag(key, &value, "test").unwrap();
        let text = |name: &str| self.make(name).display().to_string();
        set("mount.state", text("state"));
        set("memory.dir", text("memory"));
        set("memory.size", "64MiB".into());
        set("ssd.dir", text("ssd"));
        if self.linked {
            set("nearline.link", text("theirs"));
            set("nearline.look_every", "0s".into());
        } else {
            set("nearline.dir", text("nearline"));
        }
        set("policy.write_behind", "5ms".into());
        Config::resolve(&settings, &Host::detect(), &self.make("mnt")).unwrap()
    }

    pub fn mount(&mut self) {
        let mut notes = Vec::new();
        let context = StartContext {
            ward: None,
            control_socket: &self.dir.path().join("socket"),
            owner_uid: rustix::process::getuid().as_raw(),
            note: &mut |text| notes.push(text.to_owned()),
        };
        self.running = Some(assemble::start(&self.config(), context).unwrap());
        assert_eq!(notes, Vec::<String>::new());
    }

    pub fn unmount(&mut self) {
        let Some(running) = self.running.take() else { return };
        let clean = running.fs.unmount(false);
        if clean.is_err() {
            running.fs.abort();
        }
        running.fs.wait();
        let finished = running.fs.finish();
        if !thread::panicking() {
            clean.unwrap();
            finished.unwrap();
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("mnt").join(name)
    }
    pub fn file(&self, name: &str) -> FileRef {
        let path = self.path(name);
        FileRef { ino: fs::metadata(&path).unwrap().ino(), path: path.display().to_string() }
    }
    pub fn ask(&self, request: Request) -> Result<Response, ControlError> {
        self.ask_as(&root(), request, &mut endless())
    }
    pub fn ask_as(&self, peer: &Peer, request: Request, sink: &mut Sink) -> Result<Response, ControlError> {
        self.running.as_ref().unwrap().handler.handle(peer, request, sink)
    }
    pub fn quota_set(&self, name: &str, bytes: u64, inodes: u64) -> QuotaReport {
        let request = Request::QuotaSet { dir: self.file(name), bytes: Some(bytes), inodes: Some(inodes) };
        match self.ask(request).unwrap() {
            Response::Quota(report) => report,
            other => panic!("{other:?}"),
        }
    }
    pub fn quotas(&self) -> Vec<QuotaReport> {
        match self.ask(Request::QuotaList {}).unwrap() {
            Response::Quotas(mut list) => {
                list.sort_by(|a, b| a.path.cmp(&b.path));
                list
            }
            other => panic!("{other:?}"),
        }
    }
    pub fn policy_set(
        &self,
        peer: &Peer,
        name: &str,
        words: &[&str],
    ) -> Result<DirPolicyReport, ControlError> {
        let changes = words.iter().map(|word| word.parse().unwrap()).collect();
        match self.ask_as(peer, Request::PolicySet { dir: self.file(name), changes }, &mut endless())? {
            Response::Policy(report) => Ok(report),
            other => panic!("{other:?}"),
        }
    }
    pub fn report(&self, name: &str) -> FileReport {
        match self.ask(Request::File { file: self.file(name) }).unwrap() {
            Response::File(report) => *report,
            other => panic!("{other:?}"),
        }
    }
    pub fn wait_until_safe(&self, name: &str) {
        let end = Instant::now() + PATIENCE;
        while self.report(name).at_risk_bytes > 0 {
            assert!(Instant::now() < end, "{:?}", self.report(name));
            thread::sleep(Duration::from_millis(5));
        }
    }
    pub fn findings(&mut self) -> Vec<String> {
        self.unmount();
        let report = assemble::fsck(&self.config(), false, &mut endless()).unwrap();
        report.findings.into_iter().map(|f| format!("{}: {}", f.place, f.what)).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.unmount();
    }
}
