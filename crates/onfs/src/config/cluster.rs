//! A cluster, as a server belongs to it and a mount uses it: who the node is, where the metadata servers are, and the key.
//!
//! A server's stores are those of a mount and have its settings; a mount of a cluster has no stores.

use std::path::{Path, PathBuf};

use net::{Address, tls::TlsFiles};
use remote::Sockets;
use types::ByteSize;

use super::{
    database::DatabaseConfig,
    error::ConfigError,
    host::Host,
    layers::{Origin, Settings},
    reader::Reader,
    typed::{Config, LogConfig, MonitorConfig, MountConfig, log, monitor, mount},
};

/// Where servers listen if nothing else is said.
pub const PORT: u16 = 7400;
/// What ends the name of a cluster that is to be mounted.
pub const SOURCE_END: &str = ":/";
/// What of the settings concerns a mount of a cluster.
pub const REMOTE_SECTIONS: [&str; 4] = ["mount", "cluster", "monitor", "log"];

/// Of root's data servers.
const SOCKETS: &str = "/run/onfs";
/// unix(7): with a zero behind it.
const SOCKET_PATH_MAX: usize = 107;

/// What `onfs server` is to be.
#[derive(Clone, PartialEq, Debug)]
pub struct ServerConfig {
    pub node: NodeConfig,
    pub cluster: ClusterConfig,
    /// What it stores, and where. Its mount point is none: it only gives the state its name.
    pub stores: Config,
}

impl ServerConfig {
    /// The database of names that several metadata servers share.
    pub fn shared_names(&self) -> Option<&DatabaseConfig> {
        self.stores.metadata.database.as_ref().filter(|database| database.shared && self.node.metadata)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    pub id: u64,
    pub name: String,
    pub rack: Option<String>,
    /// It has names and attributes.
    pub metadata: bool,
    /// It has bytes.
    pub data: bool,
    pub listen: Address,
    /// Where others reach it.
    pub address: Address,
    /// Where mounts on its machine do, too.
    pub sockets: Sockets,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterConfig {
    /// Without one it follows from the key.
    pub id: Option<[u8; 16]>,
    pub key_file: PathBuf,
    /// With it all connections are TLS.
    pub tls: Option<TlsFiles>,
    pub metadata: Vec<Address>,
}

/// A mount of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteConfig {
    /// As it was given, for the mount table.
    pub source: String,
    /// `metadata` are the source's servers.
    pub cluster: ClusterConfig,
    /// Of the data server of this machine.
    pub sockets: Sockets,
    pub mount: MountConfig,
    pub monitor: MonitorConfig,
    pub log: LogConfig,
}

impl ServerConfig {
    pub fn resolve(settings: &Settings, host: &Host) -> Result<ServerConfig, ConfigError> {
        let reader = Reader(settings);
        let node = node(&reader, host)?;
        let cluster = cluster(&reader)?;
        if node.data && !node.metadata && cluster.metadata.is_empty() {
            let why = "a server of data alone reports to the metadata server: say where that is";
            return Err(ConfigError::new("cluster.metadata", why));
        }
        let stores = Config::resolve(settings, host, &Path::new("/server").join(&node.name))?;
        if stores.link.is_some() {
            let origin = &reader.entry("nearline", "link")?.origin;
            let why = "nearline.link: a server of a cluster has no linked directory yet; give nearline.dir";
            return Err(ConfigError::new(origin, why));
        }
        let shared = stores.metadata.database.as_ref().is_some_and(|database| database.shared);
        if shared && cluster.metadata.is_empty() {
            let why = "metadata.servers is several: say where all of them are";
            return Err(ConfigError::new("cluster.metadata", why));
        }
        Ok(ServerConfig { node, cluster, stores })
    }
}

impl ClusterConfig {
    /// The cluster that is to be mounted, else the one that is configured: a server that has the metadata need not say where they are.
    pub fn resolve(settings: &Settings, host: &Host) -> Result<ClusterConfig, ConfigError> {
        let reader = Reader(settings);
        let Some(source) = reader.text("mount", "source")? else {
            let configured = cluster(&reader)?;
            if !configured.metadata.is_empty() || reader.count("node", "id")?.is_none() {
                return Ok(configured);
            }
            let node = node(&reader, host)?;
            let metadata = if node.metadata { vec![node.address] } else { Vec::new() };
            return Ok(ClusterConfig { metadata, ..configured });
        };
        let origin = &reader.entry("mount", "source")?.origin;
        let metadata = servers_of(source).map_err(|why| ConfigError::new(origin, why))?;
        Ok(ClusterConfig { metadata, ..cluster(&reader)? })
    }
}

impl RemoteConfig {
    /// `None` if the settings name no cluster to mount.
    pub fn resolve(
        settings: &Settings,
        host: &Host,
        mountpoint: &Path,
    ) -> Result<Option<RemoteConfig>, ConfigError> {
        let reader = Reader(settings);
        let Some(source) = reader.text("mount", "source")? else { return Ok(None) };
        let cluster = ClusterConfig::resolve(settings, host)?;
        let mount = mount(&reader, host, mountpoint)?;
        if mount.state.starts_with(mountpoint) {
            let why =
                format!("{} lies on the mount point itself: choose a place outside", mount.state.display());
            return Err(ConfigError::new("mount.state", why));
        }
        check_guard(&mount)?;
        let (monitor, log) = (monitor(&reader)?, log(&reader)?);
        let sockets = sockets(&reader, host)?;
        Ok(Some(RemoteConfig { source: source.to_owned(), cluster, sockets, mount, monitor, log }))
    }

    /// Flags for stores that a mount of a cluster does not have.
    pub fn refuse_flags(settings: &Settings) -> Result<(), ConfigError> {
        let entries = settings.entries().iter();
        let odd =
            entries.filter(|entry| !REMOTE_SECTIONS.contains(&entry.setting.section)).find_map(|entry| {
                match &entry.origin {
                    Origin::Flag(flag) => Some((entry, flag)),
                    Origin::Default | Origin::File { .. } | Origin::Environment(_) => None,
                }
            });
        let Some((entry, flag)) = odd else { return Ok(()) };
        let why = format!("{}: tiers and metadata are the cluster's, not this mount's", entry.setting.name());
        Err(ConfigError::new(flag, why))
    }
}

/// What no other daemon could go on with.
fn check_guard(mount: &MountConfig) -> Result<(), ConfigError> {
    let refused = |why| Err(ConfigError::new("mount.guard", why));
    match mount {
        _ if !mount.guard => Ok(()),
        MountConfig { older_kernel: true, .. } => {
            refused("it needs what Linux 6.9 has: leave mount.kernel_features or --guard out")
        }
        MountConfig { write_back: ByteSize(1..), .. } => {
            refused("what mount.write_back keeps back would be lost with a daemon: leave one of both out")
        }
        _ => Ok(()),
    }
}

/// Is it the name of a cluster, and no path and no word for the mount table?
pub fn is_source(text: &str) -> bool {
    !text.starts_with('/') && text.ends_with(SOURCE_END)
}

/// The servers of `HOST[:PORT][,HOST[:PORT]...]:/`.
fn servers_of(source: &str) -> Result<Vec<Address>, String> {
    let list = source
        .strip_suffix(SOURCE_END)
        .ok_or_else(|| format!("mount.source: {source:?}: write HOST[:PORT][,HOST[:PORT]...]:/"))?;
    servers(list).map_err(|why| format!("mount.source: {why}"))
}

fn servers(list: &str) -> Result<Vec<Address>, String> {
    list.split(',').map(address).collect()
}

/// The port may be left out.
fn address(text: &str) -> Result<Address, String> {
    let parsed = text.parse::<Address>();
    parsed.or_else(|error| format!("{text}:{PORT}").parse().map_err(|_| error.to_string()))
}

fn cluster(reader: &Reader<'_>) -> Result<ClusterConfig, ConfigError> {
    let wrong = |key: &str, why: String| {
        Ok::<_, ConfigError>(ConfigError::new(&reader.entry("cluster", key)?.origin, why))
    };
    let Some(key_file) = reader.path("cluster", "key_file")? else {
        let why = "which file has the cluster key? give --cluster-key FILE, or --config FILE of a server; onfs cluster init makes both";
        return Err(ConfigError::new("cluster.key_file", why));
    };
    let id = match reader.text("cluster", "id")?.map(parse_id) {
        Some(None) => {
            return Err(wrong("id", "cluster.id: 32 hexadecimal digits are wanted".to_owned())?);
        }
        Some(Some(id)) => Some(id),
        None => None,
    };
    let metadata = match reader.text("cluster", "metadata")?.map(servers) {
        Some(Err(why)) => return Err(wrong("metadata", format!("cluster.metadata: {why}"))?),
        Some(Ok(list)) => list,
        None => Vec::new(),
    };
    Ok(ClusterConfig { id, key_file, tls: tls(reader)?, metadata })
}

/// All three files or none: a part of them is a mistake, and must not mean to go without.
fn tls(reader: &Reader<'_>) -> Result<Option<TlsFiles>, ConfigError> {
    const KEYS: [&str; 3] = ["tls_ca_file", "tls_certificate_file", "tls_key_file"];
    let mut files = Vec::new();
    for key in KEYS {
        files.push(reader.path("cluster", key)?);
    }
    match <[_; 3]>::try_from(files) {
        Ok([None, None, None]) => Ok(None),
        Ok([Some(ca), Some(certificate), Some(key)]) => Ok(Some(TlsFiles { ca, certificate, key })),
        Ok(some) => {
            let missing = KEYS.iter().zip(&some).find(|(_, file)| file.is_none()).map_or("", |(key, _)| key);
            let why = format!("TLS wants {} together", KEYS.map(|key| format!("cluster.{key}")).join(", "));
            Err(ConfigError::new(format!("cluster.{missing}"), why))
        }
        Err(_) => Ok(None),
    }
}

fn parse_id(text: &str) -> Option<[u8; 16]> {
    let plain = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u128::from_str_radix(text, 16).ok()).flatten().map(u128::to_be_bytes)
}

/// What [`parse_id`] reads.
pub fn id_text(id: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(id))
}

fn node(reader: &Reader<'_>, host: &Host) -> Result<NodeConfig, ConfigError> {
    let wrong = |key: &str, why: String| {
        Ok::<_, ConfigError>(ConfigError::new(&reader.entry("node", key)?.origin, why))
    };
    let Some(id) = reader.count("node", "id")? else {
        return Err(ConfigError::new(
            "node.id",
            "which node of the cluster is this? each has its own number, in its configuration (--config FILE)",
        ));
    };
    let name = reader.text("node", "name")?.unwrap_or(&host.name).to_owned();
    let path_safe = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if name.is_empty() || name.len() > cluster::node::NAME_MAX || !path_safe || name.starts_with('.') {
        let why = format!("node.name: {name:?}: letters, digits, '.', '_' and '-', at most 64 of them");
        return Err(wrong("name", why)?);
    }
    let roles = reader.text("node", "roles")?.unwrap_or_default();
    let (mut metadata, mut data) = (false, false);
    for role in roles.split(',') {
        match role {
            "metadata" => metadata = true,
            "data" => data = true,
            _ => return Err(wrong("roles", format!("node.roles: {role:?}: write metadata, data or both"))?),
        }
    }
    let listen = match address(reader.text("node", "listen")?.unwrap_or_default()) {
        Ok(listen) => listen,
        Err(why) => return Err(wrong("listen", format!("node.listen: {why}"))?),
    };
    let address = match reader.text("node", "address")?.map(address) {
        Some(Err(why)) => return Err(wrong("address", format!("node.address: {why}"))?),
        Some(Ok(address)) => address,
        None => reached_at(&listen, &host.name),
    };
    let rack = reader.text("node", "rack")?.map(str::to_owned);
    Ok(NodeConfig {
        id: id.into(),
        name,
        rack,
        metadata,
        data,
        listen,
        address,
        sockets: sockets(reader, host)?,
    })
}

/// Where a data server listens for mounts on its machine, and they look for it.
fn sockets(reader: &Reader<'_>, host: &Host) -> Result<Sockets, ConfigError> {
    match reader.text("node", "socket")? {
        // An ordinary user has no place that others of his machine would know.
        None if host.is_root() => Ok(Sockets::In(SOCKETS.into())),
        None | Some("none") => Ok(Sockets::Off),
        Some(path) if path.starts_with('/') && path.len() <= SOCKET_PATH_MAX => Ok(Sockets::At(path.into())),
        Some(other) => {
            let why = format!(
                "node.socket: {other:?}: auto, none or an absolute path of at most {SOCKET_PATH_MAX} bytes"
            );
            Err(ConfigError::new(&reader.entry("node", "socket")?.origin, why))
        }
    }
}

/// Who listens at all of a host's addresses is reached by the host's name.
fn reached_at(listen: &Address, host: &str) -> Address {
    let text = listen.to_string();
    let port = ["0.0.0.0:", "[::]:"].iter().find_map(|any| text.strip_prefix(any));
    match port.and_then(|port| format!("{host}:{port}").parse().ok()) {
        Some(named) => named,
        None => listen.clone(),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what a server and a mount of a cluster need is there or named. Method: settings, right and wrong.
    use super::*;

    fn settings(flags: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::defaults();
        flags.iter().for_each(|(name, value)| settings.apply_flag(name, value, name).unwrap());
        settings
    }

    fn host() -> Host {
        Host { name: "host1".into(), ..Host::detect() }
    }

    fn server(flags: &[(&str, &str)]) -> Result<ServerConfig, String> {
        ServerConfig::resolve(&settings(flags), &host()).map_err(|error| error.to_string())
    }

    fn remote(flags: &[(&str, &str)]) -> Result<Option<RemoteConfig>, String> {
        RemoteConfig::resolve(&settings(flags), &host(), Path::new("/mnt/c"))
            .map_err(|error| error.to_string())
    }

    const KEY: (&str, &str) = ("cluster.key_file", "/etc/onfs/key");
    const ID: (&str, &str) = ("node.id", "3");

    const TLS: [(&str, &str); 3] = [
        ("cluster.tls_ca_file", "/etc/onfs/ca.crt"),
        ("cluster.tls_certificate_file", "/etc/onfs/host1.crt"),
        ("cluster.tls_key_file", "/etc/onfs/host1.key"),
    ];

    #[test]
    fn tls_has_three_files_or_none() {
        assert_eq!(server(&[KEY, ID]).unwrap().cluster.tls, None);
        let tls = server(&[KEY, ID, TLS[0], TLS[1], TLS[2]]).unwrap().cluster.tls.unwrap();
        assert_eq!(tls.key, Path::new("/etc/onfs/host1.key"));
        let mounted = remote(&[KEY, TLS[0], TLS[1], TLS[2], ("mount.source", "a:/")]).unwrap().unwrap();
        assert_eq!(mounted.cluster.tls, Some(tls));
    }

    #[test]
    fn a_server_has_a_number_a_key_and_an_address() {
        let config = server(&[KEY, ID]).unwrap();
        let node = &config.node;
        assert_eq!((node.id, node.name.as_str(), node.metadata, node.data), (3, "host1", true, true));
        assert_eq!(
            (node.listen.to_string(), node.address.to_string()),
            ("0.0.0.0:7400".into(), "host1:7400".into())
        );
        let state = config.stores.mount.state.display().to_string();
        assert!(state.ends_with("onfs/server-host1"), "{state}");
        let config = server(&[KEY, ID, ("node.listen", "10.0.0.1:99"), ("node.roles", "metadata")]).unwrap();
        assert_eq!(config.node.address.to_string(), "10.0.0.1:99");
        assert!(!config.node.data);
    }

    #[test]
    fn a_server_and_its_mounts_know_one_socket() {
        let both = |text| {
            let socket = ("node.socket", text);
            let mounted =
                remote(&[KEY, socket, ("mount.source", "a:/")]).map(|config| config.unwrap().sockets);
            let served = server(&[KEY, ID, socket]).map(|config| config.node.sockets);
            assert_eq!(mounted.is_ok(), served.is_ok());
            served.inspect(|served| assert_eq!(mounted.as_ref(), Ok(served)))
        };
        let by_number = if host().is_root() { Sockets::In("/run/onfs".into()) } else { Sockets::Off };
        assert_eq!(both("auto"), Ok(by_number));
        assert_eq!(both("none"), Ok(Sockets::Off));
        assert_eq!(both("/run/x.sock"), Ok(Sockets::At("/run/x.sock".into())));
        let long = format!("/{}", "x".repeat(107));
        for wrong in ["x.sock", long.as_str()] {
            assert!(both(wrong).unwrap_err().contains("node.socket"), "{wrong}");
        }
        let path = Sockets::In("/run/onfs".into()).of([0xab; 16], 7).unwrap();
        assert_eq!(path.to_str(), Some("/run/onfs/abababababababababababababababab-7.sock"));
    }

    #[test]
    fn what_a_server_lacks_is_named() {
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[KEY], "node.id"),
            (&[ID], "cluster.key_file"),
            (&[KEY, ID, ("node.roles", "data")], "cluster.metadata"),
            (&[KEY, ID, ("node.roles", "data,cook")], "\"cook\""),
            (&[KEY, ID, ("node.name", "a/b")], "a/b"),
            (&[KEY, ID, ("cluster.id", "12")], "32 hexadecimal"),
            (&[KEY, ID, ("node.listen", "a:b:c")], "node.listen"),
            (&[KEY, ID, ("nearline.link", "/srv/x")], "nearline.link"),
            (&[KEY, ID, TLS[0], TLS[2]], "cluster.tls_certificate_file"),
            (&[KEY, ID, TLS[1]], "cluster.tls_ca_file"),
        ];
        for (flags, want) in cases {
            let error = server(flags).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn sources_name_servers() {
        assert_eq!(remote(&[]), Ok(None));
        let source = |text| ("mount.source", text);
        let got = remote(&[KEY, source("a,b:99,[::1]:5:/")]).unwrap().unwrap();
        let list: Vec<String> = got.cluster.metadata.iter().map(ToString::to_string).collect();
        assert_eq!(list, ["a:7400", "b:99", "[::1]:5"]);
        assert!(remote(&[KEY, source("a:99")]).unwrap_err().contains(":/"));
        assert!(remote(&[source("a:/")]).unwrap_err().contains("key_file"));
        assert!(is_source("a:/") && !is_source("onfs") && !is_source("/x:/"));
    }

    #[test]
    fn regression_a_server_with_the_metadata_is_asked_itself() {
        let asked = |flags: &[(&str, &str)]| {
            let cluster = ClusterConfig::resolve(&settings(flags), &host()).unwrap();
            cluster.metadata.iter().map(ToString::to_string).collect::<Vec<String>>()
        };
        assert_eq!(asked(&[KEY, ID]), ["host1:7400"]);
        assert_eq!(asked(&[KEY, ID, ("cluster.metadata", "a,b")]), ["a:7400", "b:7400"]);
        assert_eq!(asked(&[KEY, ID, ("mount.source", "a:/")]), ["a:7400"]);
        let data_alone: [String; 0] = [];
        assert_eq!(asked(&[KEY, ID, ("node.roles", "data")]), data_alone);
        assert_eq!(asked(&[KEY]), data_alone);
    }

    #[test]
    fn stores_of_a_mount_of_a_cluster_are_refused() {
        assert!(RemoteConfig::refuse_flags(&settings(&[KEY])).is_ok());
        let error = RemoteConfig::refuse_flags(&settings(&[("ssd.dir", "/x")])).unwrap_err().to_string();
        assert!(error.contains("ssd.dir"), "{error}");
    }

    #[test]
    fn a_monitor_listens_where_it_is_told_to() {
        assert_eq!(server(&[KEY, ID]).unwrap().stores.monitor.listen, None);
        let listen = |text| server(&[KEY, ID, ("monitor.listen", text)]).map(|c| c.stores.monitor.listen);
        assert_eq!(listen("127.0.0.1:9100").unwrap().unwrap().to_string(), "127.0.0.1:9100");
        assert_eq!(listen("unix:/run/m").unwrap().unwrap().to_string(), "unix:/run/m");
        assert!(listen("9100").unwrap_err().contains("monitor.listen"));
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = [0x0f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(parse_id(&id_text(id)), Some(id));
        assert_eq!(parse_id("+f0102030405060708090a0b0c0d0eff"), None);
    }
}
