//! `onfs cluster`: what a new cluster begins with.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use crate::{
    args::ClusterCommand,
    config::{Host, PORT, id_text},
    exit::{Failure, Outcome, system_text},
    render,
};

const KEY: &str = "cluster.key";
const CONFIG: &str = "onfs.toml";

pub fn cluster(command: &ClusterCommand) -> Outcome {
    let ClusterCommand::Init { dir } = command;
    init(dir)
}

fn init(dir: &Path) -> Outcome {
    let failed = |what: &Path, error: &std::io::Error| {
        Failure::failed(format!("{}: {}", what.display(), system_text(error)))
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| failed(dir, &error))?;
    let dir = fs::canonicalize(dir).map_err(|error| failed(dir, &error))?;
    let (key_file, config_file) = (dir.join(KEY), dir.join(CONFIG));
    // Before anything is made: a cluster that is there is not to be half replaced.
    for path in [&key_file, &config_file] {
        if fs::symlink_metadata(path).is_ok() {
            return Err(Failure::usage(format!("{} is there already; nothing was changed", path.display()))
                .hint("give a directory of its own to a new cluster"));
        }
    }
    let quoted = |path: &Path| {
        let text =
            path.to_str().filter(|text| !text.contains(['"', '\\']) && !text.contains(char::is_control));
        let wrong = || Failure::usage(format!("{}: this name cannot be written into a file", path.display()));
        text.map(|text| format!("\"{text}\"")).ok_or_else(wrong)
    };
    let key_quoted = quoted(&key_file)?;
    let key = net::key_file::create(&key_file).map_err(|error| Failure::failed(error.to_string()))?;
    let host = Host::detect();
    let text = config_text(&host.name, &id_text(key.cluster_id()), &key_quoted);
    let mut open = OpenOptions::new();
    let mut file = open
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&config_file)
        .map_err(|error| failed(&config_file, &error))?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(|error| failed(&config_file, &error))?;
    let (key_file, config_file) = (key_file.display(), config_file.display());
    render::print(&format!(
        "made {key_file} (the key of the cluster: who has it may do everything) and {config_file}\n\n\
         next:\n  \
         1. look through {config_file}: the tiers, the addresses\n  \
         2. onfs server --config {config_file}\n  \
         3. on each further server: copy both files there, change [node] (its own id, roles = \"data\")\n     \
         and [cluster] (metadata = \"{}:{PORT}\", key_file), and start it\n  \
         4. on a client: copy the key there, then\n     \
         onfs mount --cluster-key FILE {}:/ MOUNTPOINT\n",
        host.name, host.name
    ))
}

/// The first server: all roles.
fn config_text(host: &str, id: &str, key_file: &str) -> String {
    format!(
        "# A server of an ONFS cluster; `onfs server --config` with this file starts it.\n\
         # Every setting is in docs/config.md.\n\
         \n\
         [node]\n\
         # Each node has its own number, for ever.\n\
         id = 1\n\
         # What it serves: metadata, data or both. One node of a cluster has the metadata.\n\
         roles = \"metadata,data\"\n\
         # Where it listens, and where others reach it, if that is not the host's name.\n\
         listen = \"0.0.0.0:{PORT}\"\n\
         # address = \"{host}:{PORT}\"\n\
         # What fails together with it.\n\
         # rack = \"r1\"\n\
         \n\
         [cluster]\n\
         # The same on all nodes.\n\
         id = \"{id}\"\n\
         key_file = {key_file}\n\
         # On a node that has data alone: where the metadata server is.\n\
         # metadata = \"{host}:{PORT}\"\n\
         \n\
         [mount]\n\
         # Metadata, journal, log and control socket, on a disk that survives. The default is /var/lib/onfs/server-NAME.\n\
         # state = \"/var/lib/onfs/server\"\n\
         \n\
         [memory]\n\
         # size = \"2GiB\"\n\
         \n\
         # Without an SSD and a near-line tier all data are lost at a reboot.\n\
         [ssd]\n\
         # dir = \"/var/lib/onfs-ssd\"\n\
         \n\
         [nearline]\n\
         # dir = \"/srv/slow/onfs\"\n"
    )
}

#[cfg(test)]
mod tests {
    //! Goal: what is made is a right configuration, and what is there is left alone. Method: make it, read it, make it again.
    use super::*;
    use crate::config::{ServerConfig, Settings};

    #[test]
    fn a_new_cluster_has_a_key_and_a_right_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("c");
        init(&place).unwrap();
        let key = net::key_file::read(&place.join(KEY)).unwrap();
        let mut settings = Settings::defaults();
        let text = fs::read_to_string(place.join(CONFIG)).unwrap();
        settings.apply_file(&place.join(CONFIG), &text).unwrap();
        let host = Host { name: "h".into(), ..Host::detect() };
        let config = ServerConfig::resolve(&settings, &host).unwrap();
        assert_eq!(config.cluster.id, Some(key.cluster_id()));
        assert!(config.node.metadata && config.node.data);

        let refused = init(&place).unwrap_err();
        assert!(refused.message.contains("nothing was changed"), "{refused}");
        fs::remove_file(place.join(CONFIG)).unwrap();
        assert!(init(&place).is_err());
        assert_eq!(net::key_file::read(&place.join(KEY)).unwrap(), key);
    }
}
