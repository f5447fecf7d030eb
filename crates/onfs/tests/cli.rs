//! Goal: the program itself says the right thing and ends with the documented code. Method: runs the binary, on
//! directories that are not ONFS and with configurations of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Output},
};

fn onfs(args: &[&str]) -> Output {
    run(Command::new(env!("CARGO_BIN_EXE_onfs")).args(args))
}

fn run(command: &mut Command) -> Output {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ONFS_")) {
        command.env_remove(name);
    }
    command.output().unwrap()
}

fn text(output: &Output) -> (i32, String, String) {
    let read = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap(), read(&output.stdout), read(&output.stderr))
}

#[test]
fn wrong_usage_ends_with_2() {
    for args in [
        &["mount"][..],
        &["frobnicate"],
        &["migrate", "x"],
        &["migrate", "--to", "tape", "x"],
        &["policy", "set", "/"],
        &["policy", "set", "/", "colour=red"],
        &["flush", "--deadline", "5", "/"],
        &["memory", "set", "lots"],
        &["prefetch"],
        &["ls"],
        &["ls", "--state=odd", "/"],
        &["gate"],
        &["gate", "--deadline", "5", "/"],
        &["conflicts", "forget"],
        &["conflicts", "forget", "one"],
        &["conflicts", "forget", "--all", "1"],
        &["link"],
        &["link", "accept", "--empty"],
        &["prefetch", "--list", "l", "x"],
        &["quota", "set", "/"],
        &["fsck"],
        &["config", "check", "--set", "memory.sise=1GiB"],
        &["config", "check", "-o", "noatme"],
        &["mount", "--memory", "1KiB", "/"],
        &["mount", "--config", "none", "/nonexistent/mountpoint"],
        &["mount", "--config", "none", "/dev/null/mountpoint"],
        &["bench", "--size", "0", "/nonexistent/directory"],
        &["bench", "--size", "1023KiB", "/nonexistent/directory"],
        &["bench", "--files", "0", "/nonexistent/directory"],
        &["status", "--config", "none"],
        &["status", "--cluster", "--config", "none"],
        &["status", "--cluster", "--config", "none", "/mnt"],
        &["top", "--config", "none", "--once"],
        &["top", "--config", "none", "--once", "--count", "2", "h:/"],
        &["top", "--config", "none", "--interval", "1ms", "h:/"],
        &["top", "--config", "none", "--count", "0", "h:/"],
        &["mount", "--config", "none", "--set", "monitor.listen=9100", "/"],
    ] {
        let (code, out, err) = text(&onfs(args));
        assert_eq!(code, 2, "{args:?}: {out}{err}");
        assert!(!err.is_empty(), "{args:?}");
    }
}

/// Only parsed: run, it would change whatever is mounted on this machine.
#[test]
fn regression_memory_set_takes_the_only_mount() {
    use clap::Parser;
    let parsed = onfs::args::Cli::try_parse_from(["onfs", "memory", "set", "2GiB"]).unwrap();
    let onfs::args::Command::Memory(onfs::args::MemoryCommand::Set { size, mountpoint, .. }) = parsed.command
    else {
        panic!("{parsed:?}")
    };
    assert_eq!((size.0, mountpoint), (2 << 30, None));
}

#[test]
fn a_path_that_is_not_ours_ends_with_3_and_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for args in [
        &["status", path][..],
        &["file", path],
        &["flush", "--wait", path],
        &["pin", path],
        &["policy", "show", path],
        &["ls", path],
        &["gate", path],
        &["conflicts", path],
        &["conflicts", "forget", "--all", "--path", path],
        &["link", "show", path],
        &["link", "accept", "--yes", path],
        &["quota", "show", path],
        &["memory", "show", path],
        &["umount", path],
    ] {
        let (code, _, err) = text(&onfs(args));
        assert_eq!(code, 3, "{args:?}: {err}");
        assert!(err.contains("onfs status"), "{args:?}: {err}");
    }
    let (code, _, _) = text(&onfs(&["file", "/nonexistent/file"]));
    assert_eq!(code, 1);
}

/// Nothing is mounted on what is not there, which is what a script that tears down wants to know.
#[test]
fn regression_umount_of_a_missing_path_ends_with_3() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    for path in ["/nonexistent/mountpoint", "/dev/null/mountpoint", link.to_str().unwrap()] {
        let (code, _, err) = text(&onfs(&["umount", path]));
        assert_eq!(code, 3, "{path}: {err}");
        assert!(err.contains(path) && err.contains("onfs status"), "{err}");
    }
}

#[test]
fn regression_a_measurement_of_nothing_is_refused_with_the_least() {
    let (code, _, err) = text(&onfs(&["bench", "--size", "0", "/tmp"]));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("--size") && err.contains("at least 1MiB"), "{err}");
}

#[test]
fn config_show_tells_values_and_origins() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("o.toml");
    std::fs::write(&file, "[memory]\nsize = \"1GiB\"\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_onfs"));
    command.args(["config", "show", "--origin", "--set", "log.level=debug", "--config"]).arg(&file);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ONFS_")) {
        command.env_remove(name);
    }
    command.env("ONFS_POLICY_MOVERS", "3");
    let (code, out, err) = text(&command.output().unwrap());
    assert_eq!(code, 0, "{err}");
    let line = |name: &str| {
        let line = out.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name} in {out}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("memory.size"), format!("memory.size 1GiB {}:2", file.display()));
    assert_eq!(line("policy.movers"), "policy.movers 3 environment ONFS_POLICY_MOVERS");
    assert_eq!(line("log.level"), "log.level debug flag --set log.level");
    assert_eq!(line("log.format"), "log.format text default");
    let (code, out, _) = text(&onfs(&["config", "show", "--json", "--config", "none"]));
    let rows: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, rows[0]["name"].as_str().unwrap()), (0, "mount.state"));
    let (code, out, _) = text(&onfs(&["config", "check", "--config", "none"]));
    assert_eq!((code, out.as_str()), (0, "the configuration is correct\n"));
    let (code, out, _) = text(&onfs(&["config", "check", "--config", "none", "--json"]));
    let verdict: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, verdict), (0, serde_json::json!({"correct": true, "errors": []})));
    let wrong = ["config", "check", "--config", "none", "--json", "--set", "log.levl=debug", "--memory", "2"];
    let (code, out, err) = text(&onfs(&wrong));
    let verdict: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &verdict["correct"], verdict["errors"].as_array().unwrap().len()),
        (2, &false.into(), 2)
    );
    assert!(
        err.contains("log.level") && verdict["errors"][0].as_str().unwrap().contains("log.level"),
        "{err}"
    );
}

#[test]
fn version_completions_and_manual_come_from_the_program() {
    let (code, out, _) = text(&onfs(&["version", "--json"]));
    let version: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, version["onfs"].as_str().unwrap()), (0, env!("CARGO_PKG_VERSION")));
    for shell in ["bash", "zsh", "fish"] {
        let (code, out, _) = text(&onfs(&["completions", shell]));
        assert!(code == 0 && out.contains("prefetch"), "{shell}");
    }
    let (code, page, _) = text(&onfs(&["man"]));
    assert_eq!(code, 0);
    for part in [".SH EXIT STATUS", "onfs quota set", "\\-\\-memory\\-budget"] {
        assert!(page.contains(part), "{part}");
    }
    let dir = tempfile::tempdir().unwrap();
    let (code, _, err) = text(&onfs(&["man", "--dir", dir.path().to_str().unwrap()]));
    assert_eq!(code, 0, "{err}");
    assert!(dir.path().join("onfs.1").exists() && dir.path().join("onfs-mount.1").exists());
}

#[test]
fn bench_prints_a_table_and_json() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["bench", "--size", "1MiB", "--files", "5", dir.path().to_str().unwrap()];
    let (code, out, err) = text(&onfs(&args));
    assert!(code == 0 && out.contains("random read, 4 KiB"), "{out}{err}");
    let (code, out, _) = text(&onfs(&[&args[..], &["--json"]].concat()));
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, report["rows"].as_array().unwrap().len()), (0, 9));
}

#[test]
fn the_mount_helper_refuses_unknown_options() {
    let helper = |args: &[&str]| {
        text(&run(Command::new(env!("CARGO_BIN_EXE_onfs")).arg0("/sbin/mount.onfs").args(args)))
    };
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let (code, _, err) = helper(&["onfs", place, "-o", "rw,memry=2GiB"]);
    assert!(code == 2 && err.contains("memory"), "{code} {err}");
    let state = format!("rw,noatime,memory=64MiB,state=/tmp/onfs-state,ssd={place}-ssd:1GiB");
    let (code, out, err) = helper(&["onfs", place, "-f", "-o", &state]);
    assert!(code == 0 && out.is_empty(), "{err}");
    let (code, _, _) = helper(&["onfs"]);
    assert_eq!(code, 2);
}

#[test]
fn regression_fsck_makes_no_state_where_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, err) =
        text(&onfs(&["fsck", "--config", "none", "--state", dir.path().to_str().unwrap()]));
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("no ONFS state"), "{err}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A state that a process holds is neither mounted nor checked; the message names that process.
#[test]
fn a_state_in_use_is_refused_with_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let (state, place) = (dir.path().join("state"), dir.path().join("mnt"));
    std::fs::create_dir(&place).unwrap();
    onfs::daemon::prepare(&state, false).unwrap();
    let _lock = onfs::daemon::StateLock::acquire(&state, "mounted at /elsewhere").unwrap();
    let me = std::process::id().to_string();
    let path = |p: &Path| p.to_str().unwrap().to_owned();
    let base = ["--config", "none", "--state", &path(&state)].map(str::to_owned);
    let place = path(&place);
    for command in [&["mount", &place][..], &["mount", "--foreground", &place], &["fsck"]] {
        let mut args: Vec<&str> = command.to_vec();
        args.extend(base.iter().map(String::as_str));
        let (code, _, err) = text(&onfs(&args));
        assert_eq!(code, 4, "{args:?}: {err}");
        assert!(err.contains(&me) && err.contains("/elsewhere"), "{args:?}: {err}");
    }
}

/// Goal: a data server that nobody uses yet says so, and runs; a mount of what is no metadata server says that. Method: no metadata server.
#[test]
fn who_is_in_no_cluster_yet_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (code, _, said) = text(&onfs(&["cluster", "init", &at("c")]));
    assert_eq!(code, 0, "{said}");
    let set = [
        "node.id=2".to_owned(),
        "node.roles=data".to_owned(),
        "node.socket=none".to_owned(),
        format!("node.listen=unix:{}", at("listen")),
        format!("cluster.metadata=unix:{}", at("nobody")),
        format!("cluster.key_file={}", at("c/cluster.key")),
        "memory.size=16MiB".to_owned(),
        format!("mount.state={}", at("state")),
        format!("memory.dir={}", memory.path().join("m").display()),
    ];
    let mut args = vec!["server", "--config", "none"];
    args.extend(set.iter().flat_map(|one| ["--set", one]));
    let (code, said, notes) = text(&onfs(&args));
    assert_eq!(code, 0, "{said} {notes}");
    let pid = std::fs::read_to_string(at("state/onfs.pid")).unwrap();
    let pid = pid.lines().next().unwrap();
    assert!(Command::new("kill").arg(pid).status().unwrap().success());
    assert!(notes.contains("metadata server") && said.contains("node 2"), "{said} {notes}");
    while Path::new("/proc").join(pid).exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
