//! A PostgreSQL server of the test's own, on a socket in its own directory; without an installed one there is nothing to test
//! against, and the test says so.

#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::{
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use pg::{Options, PgEngine, Sharing, Tuning};

pub struct Server {
    pub dir: tempfile::TempDir,
    bin: PathBuf,
    user: Option<(u32, u32)>,
    child: Option<Child>,
    /// Of the socket's name, and of TCP where a test has it.
    pub port: u16,
}

/// Or a visible line.
pub fn server() -> Option<Server> {
    let Some(bin) = bin() else {
        eprintln!("skip: no PostgreSQL server is installed");
        println!("skip: no PostgreSQL server is installed");
        return None;
    };
    let dir = tempfile::Builder::new().prefix("onfs-pg-").tempdir_in("/var/tmp").unwrap();
    let root = rustix_is_root();
    let user = root.then(|| user("postgres").or_else(|| user("nobody")).expect("a user for the server"));
    if let Some((uid, gid)) = user {
        chown(dir.path(), Some(uid), Some(gid)).unwrap();
    }
    let mut server = Server { dir, bin, user, child: None, port: 5432 };
    let data = server.data();
    let output = server
        .command("initdb")
        .args(["-N", "-A", "trust", "-U", "onfs", "--no-instructions", "-D"])
        .arg(&data)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    server.start();
    Some(server)
}

fn rustix_is_root() -> bool {
    std::fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0).unwrap()
}

fn user(name: &str) -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let line = passwd.lines().find(|line| line.starts_with(&format!("{name}:")))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn bin() -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|bin| bin.join("initdb").exists() && bin.join("postgres").exists())
        .collect();
    found.sort();
    found.pop()
}

impl Server {
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir("/").env("LC_ALL", "C").env("PGPORT", self.port.to_string()).stdin(Stdio::null());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// A file that the server reads, and nobody else.
    pub fn secret(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        if let Some((uid, gid)) = self.user {
            chown(path, Some(uid), Some(gid)).unwrap();
        }
    }

    pub fn start(&mut self) {
        self.start_with(&[]);
    }

    pub fn start_with(&mut self, settings: &[&str]) {
        let log =
            std::fs::File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.dir.path());
        command.args(["-c", "listen_addresses="]);
        // What a killed server leaves is in its directory then, not in /dev/shm.
        command.args(["-c", "dynamic_shared_memory_type=mmap"]);
        for setting in settings {
            command.args(["-c", setting]);
        }
        let child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.child = Some(child);
        let until = Instant::now() + Duration::from_secs(60);
        while !self.command("pg_isready").arg("-q").arg("-h").arg(self.dir.path()).status().unwrap().success()
        {
            assert!(Instant::now() < until, "the server does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// As by a crash: SIGQUIT ends all of it at once, and the next start recovers.
    pub fn crash(&mut self) {
        if let Some(mut child) = self.child.take() {
            signal(child.id(), "QUIT");
            child.wait().unwrap();
        }
    }

    pub fn url(&self) -> String {
        format!("host={} user=onfs dbname=postgres", self.dir.path().display())
    }

    pub fn options(&self, namespace: &str) -> Options {
        Options::new(&self.url(), namespace, None, Sharing::Alone).unwrap()
    }

    pub fn shared(&self, namespace: &str) -> Options {
        Options::new(&self.url(), namespace, None, Sharing::Shared).unwrap()
    }

    pub fn engine(&self, dir: &Path, namespace: &str) -> PgEngine {
        PgEngine::open(dir, self.options(namespace)).unwrap()
    }

    /// What the server says to a statement.
    pub fn sql(&self, sql: &str) -> String {
        let output = self
            .command("psql")
            .args(["-X", "-At", "-v", "ON_ERROR_STOP=1", "-U", "onfs", "-d", "postgres", "-h"])
            .arg(self.dir.path())
            .args(["-c", sql])
            .output()
            .unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.crash();
    }
}

/// Sends a signal by its name.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success(), "kill -{name} {pid}");
}

/// Short times.
pub fn quick() -> Tuning {
    Tuning {
        lease: Duration::from_millis(1500),
        read_wait: Duration::from_secs(2),
        apply_wait: Duration::from_secs(3),
        answer_wait: Duration::from_secs(10),
        idle_wait: Duration::from_secs(2),
        before_commit: None,
    }
}
