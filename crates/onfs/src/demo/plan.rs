//! What is brought up: names, addresses and configurations. Pure.

use std::path::{Path, PathBuf};

use serde::Serialize;
use types::ByteSize;

/// Of the network of the demo. Nobody else sees it: the namespaces have no way out.
const NETWORK: &str = "10.77.0";
const PORT: u16 = 7400;
/// In the directory of a demo.
pub const DATABASE_DIR: &str = "database";
/// Addresses of the last part of [`NETWORK`], and processes of one machine.
pub const NODES_MAX: u32 = 64;
/// Of metadata servers, standbys, and near-line servers: with both kinds of [`NODES_MAX`] they fit into the network.
pub const FEW_MAX: u32 = 16;

/// How much is brought up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Several share their names in a database of the demo's own.
    pub metadata: u32,
    /// Those beside them that only keep copies.
    pub standbys: u32,
    /// Data servers, each with memory and SSD.
    pub data: u32,
    /// Data servers with memory and a near-line directory.
    pub nearline: u32,
    pub clients: u32,
    /// The names are in a database, however many metadata servers there are.
    pub postgres: bool,
    /// The memory tier of each data server.
    pub memory: ByteSize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Metadata,
    /// Of metadata, and it only keeps copies.
    Standby,
    Data,
    /// Of data, and its persistent tier is near-line.
    Nearline,
    Client,
}

impl Role {
    pub fn has_data(self) -> bool {
        match self {
            Role::Data | Role::Nearline => true,
            Role::Metadata | Role::Standby | Role::Client => false,
        }
    }
}

/// A machine of the demo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    pub name: String,
    pub role: Role,
    /// Its number in the network, and of its node if it is a server.
    pub number: u32,
}

/// All machines, and where their files are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    pub dir: PathBuf,
    /// Before the name of each namespace, so that two demos do not meet.
    pub prefix: String,
    pub hosts: Vec<Host>,
    sizes: Sizes,
}

impl Plan {
    pub fn new(dir: &Path, prefix: &str, sizes: Sizes) -> Plan {
        let roles = [
            (Role::Metadata, "meta", sizes.metadata),
            (Role::Standby, "standby", sizes.standbys),
            (Role::Data, "data", sizes.data),
            (Role::Nearline, "nearline", sizes.nearline),
            (Role::Client, "client", sizes.clients),
        ];
        let names = roles.into_iter().flat_map(|(role, name, count)| {
            let alone = matches!(role, Role::Metadata | Role::Standby) && count == 1;
            (1..=count).map(move |n| (role, if alone { name.to_owned() } else { format!("{name}{n}") }))
        });
        let hosts = names.zip(1..).map(|((role, name), number)| Host { name, role, number }).collect();
        Plan { dir: dir.to_owned(), prefix: prefix.to_owned(), hosts, sizes }
    }

    /// Are the names in a database?
    pub fn has_database(&self) -> bool {
        self.sizes.postgres || self.has_several()
    }

    /// Do metadata servers share the namespace?
    pub fn has_several(&self) -> bool {
        self.sizes.metadata + self.sizes.standbys > 1
    }

    /// What it is, in a line.
    pub fn text(&self) -> String {
        let Sizes { metadata, standbys, data, nearline, clients, .. } = self.sizes;
        let parts = [
            (metadata, "metadata server", ""),
            (standbys, "standby", " of their own"),
            (data, "data server", " with memory and SSD"),
            (nearline, "data server", " with memory and near-line"),
            (clients, "client", ""),
        ];
        let parts = parts.iter().filter(|(count, _, _)| *count > 0).map(|(count, name, has)| {
            let several = if *count == 1 { "" } else { "s" };
            format!("{count} {name}{several}{has}")
        });
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Of the database and its socket.
    pub fn database_dir(&self) -> PathBuf {
        self.dir.join(DATABASE_DIR)
    }

    /// Sockets are of the file system: the database is reached from each namespace.
    pub fn database_url(&self) -> String {
        format!("host={} user=onfs dbname=postgres", self.database_dir().display())
    }

    pub fn of(&self, role: Role) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(move |host| host.role == role)
    }

    pub fn servers(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().filter(|host| host.role != Role::Client)
    }

    pub fn namespace(&self, host: &Host) -> String {
        format!("{}{}", self.prefix, host.name)
    }

    /// Has the bridge that all are on.
    pub fn switch(&self) -> String {
        format!("{}switch", self.prefix)
    }

    pub fn address(host: &Host) -> String {
        format!("{NETWORK}.{}", host.number)
    }

    /// What clients mount, and servers are told. Standbys are not among them: the cluster map names them.
    pub fn source(&self) -> String {
        let metadata = self.of(Role::Metadata).map(|host| format!("{}:{PORT}", Plan::address(host)));
        format!("{}:/", metadata.collect::<Vec<_>>().join(","))
    }

    pub fn state(&self, host: &Host) -> PathBuf {
        self.dir.join(&host.name).join("state")
    }

    pub fn mountpoint(&self, host: &Host) -> PathBuf {
        self.dir.join(&host.name).join("mnt")
    }

    pub fn config(&self, host: &Host) -> PathBuf {
        self.dir.join(&host.name).join("onfs.toml")
    }

    /// Made by `onfs cluster init`.
    pub fn cluster_dir(&self) -> PathBuf {
        self.dir.join("cluster")
    }

    pub fn key(&self) -> PathBuf {
        self.cluster_dir().join("cluster.key")
    }

    /// The socket at which a node says its metrics.
    pub fn metrics(&self, host: &Host) -> PathBuf {
        self.dir.join(&host.name).join("metrics")
    }

    /// The persistent tier of a data server.
    pub fn tier(&self, host: &Host) -> PathBuf {
        self.dir.join(&host.name).join("tier")
    }

    /// Of a server.
    pub fn config_text(&self, host: &Host) -> String {
        let quoted = |path: &Path| format!("\"{}\"", path.display());
        let address = format!("{}:{PORT}", Plan::address(host));
        let metadata = self.source().trim_end_matches(":/").to_owned();
        let tiers = |slow| {
            let dir = quoted(&self.tier(host));
            format!("[memory]\nsize = \"{}\"\n[{slow}]\ndir = {dir}\n", self.sizes.memory)
        };
        let (roles, has) = match host.role {
            Role::Metadata => ("metadata", self.names_text()),
            Role::Standby => ("metadata", self.names_text() + "standby_only = \"yes\"\n"),
            Role::Data | Role::Client => ("data", tiers("ssd")),
            Role::Nearline => ("data", tiers("nearline")),
        };
        format!(
            "[node]\nid = {}\nname = \"{}\"\nroles = \"{roles}\"\nlisten = \"{address}\"\n\
             [cluster]\nkey_file = {}\nmetadata = \"{metadata}\"\n\
             [mount]\nstate = {}\n[monitor]\nlisten = \"unix:{}\"\n{has}",
            host.number,
            host.name,
            quoted(&self.key()),
            quoted(&self.state(host)),
            self.metrics(host).display(),
        )
    }

    /// Where a metadata server has the names.
    fn names_text(&self) -> String {
        if !self.has_database() {
            return String::new();
        }
        let servers = if self.has_several() { "several" } else { "one" };
        let url = self.database_url();
        format!("[metadata]\nservers = \"{servers}\"\nengine = \"postgres\"\nurl = \"{url}\"\n")
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is planned is right and does not meet itself. Method: names and addresses differ, configurations are resolved.
    use std::collections::HashSet;

    use super::*;
    use crate::config::{self, ServerConfig, Settings};

    const SMALL: Sizes = Sizes {
        metadata: 1,
        standbys: 0,
        data: 4,
        nearline: 0,
        clients: 2,
        postgres: false,
        memory: ByteSize(64 << 20),
    };

    fn planned(sizes: Sizes) -> Plan {
        let plan = Plan::new(Path::new("/var/tmp/d"), "onfs-7-", sizes);
        let names: HashSet<_> =
            plan.hosts.iter().map(|host| plan.namespace(host)).chain([plan.switch()]).collect();
        assert_eq!(names.len(), plan.hosts.len() + 1);
        plan
    }

    fn resolved(plan: &Plan, host: &Host) -> ServerConfig {
        let mut settings = Settings::defaults();
        settings.apply_file(&plan.config(host), &plan.config_text(host)).unwrap();
        let machine = config::Host { name: "h".into(), ..config::Host::detect() };
        ServerConfig::resolve(&settings, &machine).unwrap()
    }

    #[test]
    fn a_plan_has_right_configurations_and_no_name_twice() {
        let plan = planned(SMALL);
        assert_eq!(plan.hosts.len(), 7);
        assert_eq!(plan.source(), "10.77.0.1:7400:/");
        for host in plan.servers() {
            let config = resolved(&plan, host);
            assert_eq!(config.node.metadata, host.role == Role::Metadata);
            assert_eq!(config.node.data, host.role == Role::Data);
            assert!(config.stores.metadata.database.is_none());
        }
    }

    #[test]
    fn several_metadata_servers_share_a_database_and_near_line_is_the_last_tier() {
        let plan = planned(Sizes { metadata: 2, standbys: 1, nearline: 1, ..SMALL });
        assert_eq!(plan.hosts.len(), 10);
        assert_eq!(plan.source(), "10.77.0.1:7400,10.77.0.2:7400:/");
        assert_eq!(
            plan.text(),
            "2 metadata servers, 1 standby of their own, 4 data servers with memory and SSD, \
             1 data server with memory and near-line, 2 clients"
        );
        for host in plan.servers() {
            let config = resolved(&plan, host);
            let shared = config.shared_names();
            assert_eq!(shared.is_some(), matches!(host.role, Role::Metadata | Role::Standby));
            assert_eq!(shared.is_some_and(|it| it.standby_only), host.role == Role::Standby);
            assert_eq!(config.node.data, host.role.has_data());
            assert_eq!(config.stores.nearline.is_some(), host.role == Role::Nearline);
            assert_eq!(config.cluster.metadata.len(), 2);
        }
        let plan = planned(Sizes { postgres: true, ..SMALL });
        let config = resolved(&plan, plan.of(Role::Metadata).next().unwrap());
        assert!(config.stores.metadata.database.is_some() && config.shared_names().is_none());
    }

    #[test]
    fn the_largest_plan_fits_into_the_network() {
        let sizes = Sizes {
            metadata: FEW_MAX,
            standbys: FEW_MAX,
            data: NODES_MAX,
            nearline: FEW_MAX,
            clients: NODES_MAX,
            ..SMALL
        };
        assert!(planned(sizes).hosts.iter().all(|host| (1..255).contains(&host.number)));
    }
}
