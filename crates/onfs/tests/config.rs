//! Goal: configuration has one order of precedence, remembers where values came from, and refuses what it does not
//! know with a message that helps. Method: layers applied in memory, on made-up hosts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use onfs::{
    config::{Config, ConfigError, Host, Origin, Settings, Transport},
    docs,
    policy::{CloseSync, Mode, Promote, WriteBehind},
};
use types::ByteSize;

fn host(uid: u32) -> Host {
    Host {
        name: "host1".into(),
        uid,
        mem_available: 8 << 30,
        mem_total: 16 << 30,
        cpus: 2,
        job: None,
        home: Some("/home/u".into()),
        xdg_state: None,
        xdg_config: None,
    }
}

fn file(settings: &mut Settings, text: &str) -> Result<(), Vec<ConfigError>> {
    settings.apply_file(Path::new("/etc/onfs/onfs.toml"), text)
}

fn variable(settings: &mut Settings, name: &str, value: &str) -> Result<(), Vec<ConfigError>> {
    settings.apply_environment([(name.to_owned(), value.to_owned()), ("PATH".to_owned(), "/bin".to_owned())])
}

/// The one error of a file.
fn refused(text: &str) -> ConfigError {
    let mut errors = file(&mut Settings::defaults(), text).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

fn resolve(settings: &Settings, uid: u32) -> Result<Config, ConfigError> {
    Config::resolve(settings, &host(uid), Path::new("/mnt/x"))
}

#[test]
fn the_later_layer_wins_and_says_so() {
    let mut settings = Settings::defaults();
    let origin = |settings: &Settings| settings.get("memory", "size").unwrap().origin.to_string();
    assert_eq!(origin(&settings), "default");
    file(&mut settings, "# memory\n[memory]\nsize = \"1GiB\"\n").unwrap();
    assert_eq!(origin(&settings), "/etc/onfs/onfs.toml:3");
    variable(&mut settings, "ONFS_MEMORY_SIZE", "2GiB").unwrap();
    assert_eq!(origin(&settings), "environment ONFS_MEMORY_SIZE");
    settings.apply_flag("memory.size", "3GiB", "--memory").unwrap();
    assert_eq!(origin(&settings), "flag --memory");
    assert_eq!(resolve(&settings, 0).unwrap().memory.size, ByteSize(3 << 30));
    assert_eq!(settings.get("ssd", "dir").unwrap().origin, Origin::Default);
}

#[test]
fn defaults_fit_root_and_users() {
    let root = resolve(&Settings::defaults(), 0).unwrap();
    assert_eq!(root.mount.state, Path::new("/var/lib/onfs/mnt-x"));
    assert_eq!(root.memory.size, ByteSize(2 << 30));
    assert_eq!(root.memory.dir, Path::new("/var/lib/onfs/mnt-x/memory"));
    assert!(root.memory.own_tmpfs && root.mount.allow_other && root.mount.passthrough);
    assert_eq!((root.mount.threads, root.mount.workers), (2, 8));
    assert_eq!(root.mount.memory_budget, ByteSize(256 << 20));
    assert_eq!(root.mount.transport, Transport::Auto);
    assert_eq!(root.policy.promote, Promote::OnOpen);
    assert_eq!(root.policy.write_behind.to_string(), "2s");
    assert_eq!((root.ssd, root.nearline), (None, None));
    let user = resolve(&Settings::defaults(), 1000).unwrap();
    assert_eq!(user.mount.state, Path::new("/home/u/.local/state/onfs/mnt-x"));
    assert!(user.memory.dir.starts_with("/dev/shm/onfs-1000"));
    assert!(!user.memory.own_tmpfs && !user.mount.allow_other);
}

#[test]
fn a_user_without_a_home_must_name_the_state() {
    let homeless = Host { home: None, ..host(1000) };
    let error = Config::resolve(&Settings::defaults(), &homeless, Path::new("/mnt/x")).unwrap_err();
    assert!(error.message.contains("--state"), "{error}");
}

#[test]
fn unknown_keys_name_the_nearest_known_one() {
    assert!(refused("[memory]\nsise = \"1GiB\"").message.contains("memory.size"));
    assert!(refused("[memroy]\nsize = \"1GiB\"").message.contains("\"memory\""));
    assert!(refused("[memory]\nmemory_budget = \"1GiB\"").message.contains("mount.memory_budget"));
    assert!(refused("write_behind = \"2s\"").message.contains("[policy]"));
    assert!(refused("memory = \"1GiB\"").message.contains("[memory]"));
    let error = refused("[log]\n\n\nlevels = \"info\"");
    assert_eq!(error.origin, "/etc/onfs/onfs.toml:4");
    let errors = variable(&mut Settings::defaults(), "ONFS_MEMORY_SISE", "1GiB").unwrap_err();
    assert!(errors[0].message.contains("ONFS_MEMORY_SIZE"), "{errors:?}");
    let error = Settings::defaults().apply_flag("policy.mover", "1", "--set policy.mover").unwrap_err();
    assert!(error.message.contains("policy.movers"), "{error}");
}

#[test]
fn wrong_values_say_what_would_be_right() {
    assert!(refused("[memory]\nsize = 1073741824").message.contains("unit"));
    assert!(refused("[metadata]\nsync_period = 1").message.contains("unit"));
    assert!(refused("[memory]\nsize = \"1KiB\"").message.contains("at least"));
    assert!(refused("[ssd]\ndir = \"relative\"").message.contains("absolute"));
    assert!(refused("[mount]\ntransport = \"carrier-pigeon\"").message.contains("io-uring"));
    assert!(refused("[policy]\nmovers = [1, 2]").message.contains("one string"));
    assert!(refused("[mount]\noptions = \"noatme\"").message.contains("noatime"));
    assert!(refused("[memory\n").origin.ends_with(":1"));
    let errors =
        file(&mut Settings::defaults(), "[memory]\nsize = \"x\"\n[log]\nlevel = \"loud\"\n").unwrap_err();
    assert_eq!(errors.len(), 2, "all errors of a file are told at once");
}

#[test]
fn a_wrong_file_changes_nothing_that_was_not_in_it() {
    let mut settings = Settings::defaults();
    let _ = file(&mut settings, "[log]\nlevel = \"debug\"\nwrong = 1\n");
    assert_eq!(settings.get("memory", "size").unwrap().origin, Origin::Default);
}

#[test]
fn a_configuration_is_checked_as_a_whole() {
    let with = |text: &str| {
        let mut settings = Settings::defaults();
        file(&mut settings, text).unwrap();
        resolve(&settings, 0)
    };
    assert!(with("[ssd]\ndir = \"/a\"\n[nearline]\ndir = \"/a/b\"").unwrap_err().message.contains("overlap"));
    assert!(with("[ssd]\ndir = \"/mnt/x/ssd\"").unwrap_err().message.contains("mount point"));
    assert!(with("[mount]\nstate = \"/mnt/x\"").is_err());
    let order = "[memory]\nstop_write = \"64MiB\"\nforced_out = \"32MiB\"";
    assert!(with(order).unwrap_err().message.contains("memory.stop_write"));
    let fine =
        with("[ssd]\ndir = \"/a\"\nsize = \"1GiB\"\n[policy]\nwrite_behind = \"never\"\ntransient = true")
            .unwrap();
    assert_eq!(fine.ssd.unwrap().size, Some(ByteSize(1 << 30)));
    assert_eq!(fine.policy.write_behind, WriteBehind::Never);
    assert_eq!(fine.policy.mode, Mode::Transient);
    let both = with("[policy]\ntransient = true\nmode = \"global\"").unwrap_err().message;
    assert!(both.contains("policy.mode is global"), "{both}");
    let global = with("[policy]\nmode = \"global\"\nsync = \"normal\"").unwrap().policy;
    assert_eq!((global.mode, global.sync), (Mode::Global, Some(CloseSync::Normal)));
    let linked = with("[nearline]\nlink = \"/a\"\n[policy]\nmode = \"transient\"").unwrap_err().message;
    assert!(linked.contains("mode=transient"), "{linked}");
    assert_eq!(with("").unwrap().policy.sync, None);
}

#[test]
fn the_example_of_the_reference_is_correct() {
    let mut settings = Settings::defaults();
    file(&mut settings, docs::EXAMPLE).unwrap();
    let config = resolve(&settings, 0).unwrap();
    assert_eq!(config.nearline.unwrap().dir, Path::new("/srv/slow/onfs"));
}

#[test]
fn the_documents_are_not_stale() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let all = [("cli.md", docs::cli()), ("config.md", docs::config()), ("metrics.md", docs::metrics())];
    for (name, generated) in all {
        let stored = std::fs::read_to_string(root.join(name)).unwrap_or_default();
        assert!(stored == generated, "docs/{name} is stale: cargo run -p onfs -- docs docs");
    }
}

#[test]
fn a_database_is_named_whole_or_not_at_all() {
    // Goal: an address without the engine, or the other way round, is a mistake that is told; the password comes from no setting.
    let with = |text: &str| {
        let mut settings = Settings::defaults();
        file(&mut settings, text).map_err(|errors| errors[0].to_string())?;
        resolve(&settings, 0).map(|config| config.metadata.database).map_err(|error| error.to_string())
    };
    assert_eq!(with(""), Ok(None));
    let url = "url = \"postgresql://onfs@db1,db2/meta\"";
    let postgres = "[metadata]\nengine = \"postgres\"\n";
    let database = with(&format!("{postgres}{url}\npassword_file = \"/p\"\n")).unwrap().unwrap();
    assert_eq!(
        (database.url.as_str(), database.namespace.as_str()),
        ("postgresql://onfs@db1,db2/meta", "onfs")
    );
    assert_eq!(database.password_file.as_deref(), Some(Path::new("/p")));
    for (text, words) in [
        (postgres.to_owned(), "metadata.url"),
        (format!("[metadata]\n{url}\n"), "metadata.engine"),
        (format!("{postgres}{url}\nnamespace = \"No\"\n"), "namespace"),
        (format!("{postgres}url = \"postgresql://onfs:s3cret@db1/meta\"\n"), "password file"),
    ] {
        let error = with(&text).unwrap_err();
        assert!(error.contains(words) && !error.contains("s3cret"), "{error}");
    }
}
