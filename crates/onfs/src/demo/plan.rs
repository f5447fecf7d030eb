//! What is brought up: names, addresses and configurations. Pure.

use std::path::{Path, PathBuf};

use types::ByteSize;

/// Of the network of the demo. Nobody else sees it: the namespaces have no way out.
const NETWORK: &str = "10.77.0";
const PORT: u16 = 7400;
/// Addresses of the last part of [`NETWORK`], and processes of one machine.
pub const NODES_MAX: u32 = 64;

/// How much is brought up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Data servers, each with memory and SSD. One metadata server comes on top.
    pub data: u32,
    pub clients: u32,
    /// The memory tier of each data server.
    pub memory: ByteSize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Metadata,
    Data,
    Client,
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
    memory: ByteSize,
}

impl Plan {
    pub fn new(dir: &Path, prefix: &str, sizes: Sizes) -> Plan {
        let roles = [
            (Role::Metadata, "meta", 1),
            (Role::Data, "data", sizes.data),
            (Role::Client, "client", sizes.clients),
        ];
        let names = roles.into_iter().flat_map(|(role, name, count)| {
            (1..=count).map(move |n| {
                (role, if role == Role::Metadata { name.to_owned() } else { format!("{name}{n}") })
            })
        });
        let hosts = names.zip(1..).map(|((role, name), number)| Host { name, role, number }).collect();
        Plan { dir: dir.to_owned(), prefix: prefix.to_owned(), hosts, memory: sizes.memory }
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

    /// What clients mount.
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

    pub fn ssd(&self, host: &Host) -> PathBuf {
        self.dir.join(&host.name).join("ssd")
    }

    /// Of a server.
    pub fn config_text(&self, host: &Host) -> String {
        let quoted = |path: &Path| format!("\"{}\"", path.display());
        let address = format!("{}:{PORT}", Plan::address(host));
        let metadata = self.source().trim_end_matches(":/").to_owned();
        let (roles, tiers) = match host.role {
            Role::Metadata => ("metadata", String::new()),
            Role::Data | Role::Client => {
                let ssd = quoted(&self.ssd(host));
                ("data", format!("[memory]\nsize = \"{}\"\n[ssd]\ndir = {ssd}\n", self.memory))
            }
        };
        format!(
            "[node]\nid = {}\nname = \"{}\"\nroles = \"{roles}\"\nlisten = \"{address}\"\n\
             [cluster]\nkey_file = {}\nmetadata = \"{metadata}\"\n\
             [mount]\nstate = {}\n{tiers}",
            host.number,
            host.name,
            quoted(&self.key()),
            quoted(&self.state(host)),
        )
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what is planned is right and does not meet itself. Method: names and addresses differ, configurations are resolved.
    use std::collections::HashSet;

    use super::*;
    use crate::config::{self, ServerConfig, Settings};

    #[test]
    fn a_plan_has_right_configurations_and_no_name_twice() {
        let sizes = Sizes { data: 4, clients: 2, memory: ByteSize(64 << 20) };
        let plan = Plan::new(Path::new("/var/tmp/d"), "onfs-7-", sizes);
        assert_eq!(plan.hosts.len(), 7);
        let names: HashSet<_> =
            plan.hosts.iter().map(|host| plan.namespace(host)).chain([plan.switch()]).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(plan.source(), "10.77.0.1:7400:/");
        for host in plan.servers() {
            let mut settings = Settings::defaults();
            settings.apply_file(&plan.config(host), &plan.config_text(host)).unwrap();
            let machine = config::Host { name: "h".into(), ..config::Host::detect() };
            let config = ServerConfig::resolve(&settings, &machine).unwrap();
            assert_eq!(config.node.metadata, host.role == Role::Metadata);
            assert_eq!(config.node.data, host.role == Role::Data);
        }
    }
}
