//! Goal: programs that have no version of the wire in common are refused on both sides, with the versions of both, and nothing of either is harmed. Method: the
//! program's own mount and server, and peers that speak later versions.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
    sync::Arc,
    time::{Duration, Instant},
};

use net::{Bounds, Credentials, Handler, Incoming, Reply, Server, Tuning, connect};
use wire::{
    connection::Window,
    handshake::{Identity, Roles, Versions, Wish},
    schema::Lane,
};

const LATER: Versions = Versions { min: Versions::OURS.max + 1, max: Versions::OURS.max + 2 };

fn onfs(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_onfs")).args(words).output().unwrap()
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A cluster's key, as `onfs cluster init` makes it.
fn cluster(dir: &Path) -> String {
    let made = onfs(&["cluster", "init", dir.to_str().unwrap()]);
    assert!(made.status.success(), "{}", text(&made));
    dir.join("cluster.key").display().to_string()
}

fn of_later(key_file: &str, node: u64, roles: Roles) -> Credentials {
    let key = net::key_file::read(Path::new(key_file)).unwrap();
    let me = Identity {
        cluster: key.cluster_id(),
        node,
        roles,
        build: "a later one".into(),
        versions: LATER,
        takes: Window::default(),
    };
    Credentials { me, key, tls: None }
}

struct Nothing;

impl Handler for Nothing {
    fn asked(&self, _: Incoming, _: Reply) {}
}

fn says_both(said: &str) {
    for words in [
        format!("versions {} to {}", LATER.min, LATER.max),
        format!("{} to {}", Versions::OURS.min, Versions::OURS.max),
    ] {
        assert!(said.contains(&words) || said.contains(&words.replace("versions ", "")), "{said}");
    }
}

#[test]
fn a_mount_of_a_later_server_is_refused_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let key = cluster(&dir.path().join("c"));
    let address = "127.0.0.1:0".parse().unwrap();
    let credentials = of_later(&key, 1, Roles::MDS);
    let server =
        Server::start(&address, credentials, Arc::new(Nothing), Tuning::default(), Bounds::default());
    let server = server.unwrap();
    let mountpoint = dir.path().join("mnt");
    fs::create_dir(&mountpoint).unwrap();
    let state = dir.path().join("state").display().to_string();
    let source = format!("{}:/", server.address());
    let words = ["mount", "--config", "none", "--cluster-key", &key, "--state", &state, &source];
    let refused = onfs(&[&words[..], &[mountpoint.to_str().unwrap()]].concat());
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    says_both(&said);
}

#[test]
fn a_later_client_is_refused_and_the_server_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let key = cluster(&dir.path().join("c"));
    // One that is free now; who else takes it makes the start fail, which is tried again.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let state = dir.path().join("state");
    let config = dir.path().join("onfs.toml");
    let set = |name: &str| dir.path().join(name).display().to_string();
    let toml = format!(
        "[node]\nid = 1\nname = \"n1\"\nroles = \"metadata,data\"\nlisten = \"{address}\"\n[cluster]\n\
         key_file = \"{key}\"\nmetadata = \"{address}\"\n[mount]\nstate = \"{}\"\n[memory]\nsize = \"16MiB\"\n\
         [ssd]\ndir = \"{}\"\n",
        state.display(),
        set("ssd")
    );
    fs::write(&config, toml).unwrap();
    let config = config.display().to_string();
    let started = onfs(&["server", "--config", &config]);
    assert!(started.status.success(), "{}", text(&started));
    let later = of_later(&key, 1 << 63 | 1, Roles::CLIENT);
    let wish = Wish { node: Some(1), lane: Lane::Metadata };
    let address = address.parse().unwrap();
    let refused = connect(&address, &later, wish, Arc::new(Nothing), &Tuning::default()).err();
    let said = refused.map(|error| error.to_string()).unwrap_or_default();
    // In its log, too.
    let end = Instant::now() + Duration::from_secs(20);
    let log = loop {
        let log = fs::read_to_string(state.join("onfs.log")).unwrap_or_default();
        if log.contains("versions") || Instant::now() >= end {
            break log;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let pid = fs::read_to_string(state.join("onfs.pid")).unwrap();
    let pid = pid.lines().next().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    // It takes its memory tier away, which is mounted in the directory that is to go.
    let end = Instant::now() + Duration::from_secs(60);
    while rustix::process::test_kill_process(pid).is_ok() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    says_both(&said);
    says_both(&log);
}
