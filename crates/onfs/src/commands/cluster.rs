//! `onfs cluster`: what a new cluster begins with.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

use net::tls::{AuthorityError, Purpose, TlsFiles, Wanted, create_authority, sign};

use crate::{
    args::{CertificateArgs, ClusterCommand},
    config::{Host, PORT, id_text},
    exit::{Failure, Outcome, system_text},
    render,
};

const KEY: &str = "cluster.key";
const CONFIG: &str = "onfs.toml";
const CA_FILES: [&str; 2] = ["ca.crt", "ca.key"];
/// Of the first server's own certificate; those that follow say how long.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

pub fn cluster(command: &ClusterCommand) -> Outcome {
    match command {
        ClusterCommand::Init { dir, tls } => init(dir, *tls),
        ClusterCommand::Certificate(args) => certificate(args),
    }
}

fn certificate(args: &CertificateArgs) -> Outcome {
    let first = args.names.first().map_or("", String::as_str);
    let fit = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    // The files are named after it, and are not to take the place of those that the whole cluster hangs on.
    if first.starts_with('.') || !first.chars().all(fit) || ["", "ca", "cluster"].contains(&first) {
        return Err(Failure::usage(format!(
            "{first:?} cannot be the name of a node's files: letters, digits, '.', '_', '-' and ':', and not ca or cluster"
        )));
    }
    let wanted = Wanted {
        names: args.names.clone(),
        purpose: if args.client { Purpose::Client } else { Purpose::Server },
        holds: DAY * args.days,
        renew: args.renew,
    };
    let made = sign(&args.dir, &wanted).map_err(no_certificate)?;
    let TlsFiles { ca, certificate, key } = &made;
    let (ca, certificate, key) = (ca.display(), certificate.display(), key.display());
    let copied = format!("made {certificate} and {key}; they hold for {} days\n", args.days);
    render::print(&match (args.renew, args.client) {
        (true, _) => format!("{copied}copy both to where the old ones are: new connections use them\n"),
        (false, true) => format!(
            "{copied}copy both and {ca} to the client, and mount with\n  \
             --tls-ca ca.crt --tls-certificate {first}.crt --tls-key {first}.key\n"
        ),
        (false, false) => format!(
            "{copied}copy both and {ca} to the server, and say in its [cluster]:\n  \
             tls_ca_file, tls_certificate_file and tls_key_file\n"
        ),
    })
}

fn no_certificate(error: AuthorityError) -> Failure {
    let failed = |wanted| matches!(&error, AuthorityError::File(net::key_file::KeyFileError::Io { source, .. }) if source.kind() == wanted);
    let (there, nowhere) = (failed(ErrorKind::AlreadyExists), failed(ErrorKind::NotFound));
    let failure = Failure::failed(error.to_string());
    if there {
        failure.hint("with --renew it is replaced")
    } else if nowhere {
        failure.hint("--dir says where the cluster's CA is; onfs cluster init --tls makes one")
    } else {
        failure
    }
}

fn init(dir: &Path, tls: bool) -> Outcome {
    let failed = |what: &Path, error: &std::io::Error| {
        Failure::failed(format!("{}: {}", what.display(), system_text(error)))
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| failed(dir, &error))?;
    let dir = fs::canonicalize(dir).map_err(|error| failed(dir, &error))?;
    let (key_file, config_file) = (dir.join(KEY), dir.join(CONFIG));
    // Before anything is made: a cluster that is there is not to be half replaced.
    let ca_files = CA_FILES.iter().filter(|_| tls).map(|name| dir.join(name));
    for path in [key_file.clone(), config_file.clone()].into_iter().chain(ca_files) {
        if fs::symlink_metadata(&path).is_ok() {
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
    let id = id_text(key.cluster_id());
    let made = if tls { Some(first_certificate(&dir, &host.name, &id)?) } else { None };
    let tls_lines = match &made {
        Some(TlsFiles { ca, certificate, key }) => format!(
            "tls_ca_file = {}\ntls_certificate_file = {}\ntls_key_file = {}\n",
            quoted(ca)?,
            quoted(certificate)?,
            quoted(key)?
        ),
        None => String::new(),
    };
    let text = config_text(&host.name, &id, &format!("{key_quoted}\n{tls_lines}"));
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
    render::print(&next_steps(&host.name, &key_file, &config_file, made.as_ref()))
}

/// The cluster's CA, and what its first server shows.
fn first_certificate(dir: &Path, host: &str, id: &str) -> Outcome<TlsFiles> {
    create_authority(dir, id).map_err(no_certificate)?;
    let wanted = Wanted { names: vec![host.to_owned()], purpose: Purpose::Server, holds: YEAR, renew: false };
    sign(dir, &wanted).map_err(no_certificate)
}

fn next_steps(host: &str, key_file: &Path, config_file: &Path, tls: Option<&TlsFiles>) -> String {
    let (key_file, config) = (key_file.display(), config_file.display());
    let made =
        format!("made {key_file} (the key of the cluster: who has it may do everything) and {config}\n");
    let Some(TlsFiles { ca, certificate, .. }) = tls else {
        return format!(
            "{made}\nnext:\n  \
             1. look through {config}: the tiers, the addresses, and [metadata] if several servers are to have the names\n  \
             2. onfs server --config {config}\n  \
             3. on each further server: copy both files there, change [node] (its own id, roles = \"data\")\n     \
             and [cluster] (metadata = \"{host}:{PORT}\", key_file), and start it\n  \
             4. on a client: copy the key there, then\n     \
             onfs mount --cluster-key FILE {host}:/ MOUNTPOINT\n"
        );
    };
    let dir = ca.parent().unwrap_or(Path::new(".")).display();
    format!(
        "{made}made {ca} and {dir}/ca.key (the CA: who has its key makes nodes; keep it here, or where nobody is)\n\
         made {certificate} and its key for this host, {host}\n\nnext:\n  \
         1. look through {config}: the tiers, the addresses, and [metadata] if several servers are to have the names\n  \
         2. onfs server --config {config}\n  \
         3. for each further server: onfs cluster certificate --dir {dir} NAME [ADDRESS...]; copy NAME.crt, NAME.key, ca.crt,\n     \
         the key and {CONFIG} there, change [node] (its own id, roles = \"data\") and [cluster] (metadata = \"{host}:{PORT}\",\n     \
         the files), and start it\n  \
         4. for a client: onfs cluster certificate --dir {dir} --client NAME; copy NAME.crt, NAME.key, ca.crt and the key there, then\n     \
         onfs mount --cluster-key FILE --tls-ca ca.crt --tls-certificate NAME.crt --tls-key NAME.key {host}:/ MOUNTPOINT\n",
        ca = ca.display(),
        certificate = certificate.display(),
    )
}

/// The first server: all roles. `files` are the key's, quoted, and the lines of the others.
fn config_text(host: &str, id: &str, files: &str) -> String {
    format!(
        "# A server of an ONFS cluster; `onfs server --config` with this file starts it.\n\
         # Every setting is in docs/config.md.\n\
         \n\
         [node]\n\
         # Each node has its own number, for ever.\n\
         id = 1\n\
         # What it serves: metadata, data or both. One node of a cluster has the metadata, or several: see [metadata].\n\
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
         key_file = {files}\
         # Where the metadata servers are, if that is not this node alone: HOST:PORT[,HOST:PORT].\n\
         # metadata = \"{host}:{PORT}\"\n\
         \n\
         [metadata]\n\
         # Several metadata servers share a PostgreSQL database. A cluster is begun with it, or has one for good.\n\
         # servers = \"several\"\n\
         # engine = \"postgres\"\n\
         # url = \"postgresql://onfs@db1/onfs\"\n\
         # password_file = \"/etc/onfs/password\"\n\
         # This one only keeps copies, and goes on for another that dies.\n\
         # standby_only = \"yes\"\n\
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
         # dir = \"/srv/slow/onfs\"\n\
         \n\
         [monitor]\n\
         # Metrics and health over HTTP, for whoever reaches it.\n\
         # listen = \"127.0.0.1:9740\"\n"
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
        init(&place, false).unwrap();
        let key = net::key_file::read(&place.join(KEY)).unwrap();
        let mut settings = Settings::defaults();
        let text = fs::read_to_string(place.join(CONFIG)).unwrap();
        settings.apply_file(&place.join(CONFIG), &text).unwrap();
        let host = Host { name: "h".into(), ..Host::detect() };
        let config = ServerConfig::resolve(&settings, &host).unwrap();
        assert_eq!(config.cluster.id, Some(key.cluster_id()));
        assert!(config.node.metadata && config.node.data);

        let refused = init(&place, false).unwrap_err();
        assert!(refused.message.contains("nothing was changed"), "{refused}");
        fs::remove_file(place.join(CONFIG)).unwrap();
        assert!(init(&place, false).is_err());
        assert_eq!(net::key_file::read(&place.join(KEY)).unwrap(), key);
    }

    fn args(dir: &Path, name: &str) -> CertificateArgs {
        CertificateArgs { dir: dir.into(), client: true, days: 1, renew: false, names: vec![name.into()] }
    }

    #[test]
    fn a_new_cluster_with_tls_has_certificates_that_can_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("c");
        init(&place, true).unwrap();
        let mut settings = Settings::defaults();
        let text = fs::read_to_string(place.join(CONFIG)).unwrap();
        settings.apply_file(&place.join(CONFIG), &text).unwrap();
        settings.apply_flag("mount.source", "h:/", "h:/").unwrap();
        let files = crate::config::ClusterConfig::resolve(&settings, &Host::detect()).unwrap().tls.unwrap();
        net::tls::Tls::open(files.clone()).unwrap();
        let before = fs::read(&files.ca).unwrap();
        fs::remove_file(place.join(KEY)).unwrap();
        fs::remove_file(place.join(CONFIG)).unwrap();
        assert!(init(&place, true).unwrap_err().message.contains("ca.crt"), "a CA is not replaced");

        certificate(&args(&place, "client7")).unwrap();
        let made = |end| place.join(format!("client7.{end}"));
        let files = TlsFiles { ca: files.ca, certificate: made("crt"), key: made("key") };
        net::tls::Tls::open(files.clone()).unwrap();
        let refused = certificate(&args(&place, "client7")).unwrap_err();
        assert!(refused.hint.iter().any(|hint| hint.contains("--renew")), "{refused}");
        let first = fs::read(&files.certificate).unwrap();
        certificate(&CertificateArgs { renew: true, ..args(&place, "client7") }).unwrap();
        assert!(fs::read(&files.certificate).unwrap() != first);
        net::tls::Tls::open(files.clone()).unwrap();
        for wrong in ["ca", "cluster", "../x", ".x", "a b", ""] {
            let renewed = CertificateArgs { renew: true, ..args(&place, wrong) };
            assert!(certificate(&renewed).unwrap_err().message.contains("cannot be"), "{wrong}");
        }
        assert!(fs::read(&files.ca).unwrap() == before);
    }
}
