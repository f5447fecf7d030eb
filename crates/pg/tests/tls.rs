//! Goal: with TLS asked for, nothing is said in clear and to nobody else than was asked for, and what is refused says why. Method: a
//! real server on TCP, with a certificate and without.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod support;

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
};

use kv::{Engine, Lsn};
use pg::{Options, PgEngine, Sharing};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use support::{Server, quick, server};

/// The name that the server's certificate has, and another that leads to it, too.
const NAME: &str = "localhost";
const OTHER_NAME: &str = "127.0.0.1";

/// A CA, in a file, and what it signed for the server.
struct Ca {
    file: PathBuf,
    certificate: String,
    key: String,
}

fn ca(dir: &Path, name: &str) -> Ca {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let file = dir.join(name);
    std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec![NAME.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    Ca { file, certificate: own.pem(), key: key.serialize_pem() }
}

fn on_tcp(server: &mut Server, settings: &[&str]) {
    server.crash();
    // A port that is free now; of tests that run at once each has its own.
    server.port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = ["listen_addresses=127.0.0.1"];
    server.start_with(&[&listen[..], settings].concat());
}

fn open(dir: &Path, server: &Server, host: &str, tls: &str) -> Result<PgEngine, String> {
    let url = format!("host={host} port={} user=onfs dbname=postgres {tls}", server.port);
    let options = Options::new(&url, "onfs", None, Sharing::Alone)?.tuned(quick());
    PgEngine::open(dir, options).map_err(|error| error.to_string())
}

#[test]
fn a_server_with_a_certificate_is_verified_as_asked_for() {
    let Some(mut server) = server() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (ours, other) = (ca(dir.path(), "ca"), ca(dir.path(), "other"));
    server.secret("server.crt", &ours.certificate);
    server.secret("server.key", &ours.key);
    let at = |name: &str| server.dir.path().join(name).display().to_string();
    let (certificate, key) =
        (format!("ssl_cert_file={}", at("server.crt")), format!("ssl_key_file={}", at("server.key")));
    on_tcp(&mut server, &["ssl=on", &certificate, &key]);
    let (ours, other) = (ours.file.display(), other.file.display());
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();

    for (host, tls) in [
        (NAME, format!("sslmode=verify-full sslrootcert={ours}")),
        (OTHER_NAME, format!("sslmode=verify-ca sslrootcert={ours}")),
        (OTHER_NAME, "sslmode=require".to_owned()),
    ] {
        let engine = open(&state, &server, host, &tls).unwrap_or_else(|error| panic!("{tls}: {error}"));
        let next = Lsn(engine.applied_lsn().unwrap().0 + 1);
        engine.apply(&[(b"key", Some(tls.as_bytes()))], next).unwrap();
        assert_eq!(engine.get(b"key").unwrap().as_deref(), Some(tls.as_bytes()));
        let sessions = "SELECT count(*) FILTER (WHERE NOT ssl), count(*) > 0 FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                        WHERE application_name = 'onfs'";
        assert_eq!(server.sql(sessions), "0|t", "none in clear: {tls}");
    }
    for (host, tls, words) in [
        (NAME, format!("sslmode=verify-full sslrootcert={other}"), "UnknownIssuer"),
        (NAME, format!("sslmode=verify-ca sslrootcert={other}"), "UnknownIssuer"),
        (OTHER_NAME, format!("sslmode=verify-full sslrootcert={ours}"), "not valid for name"),
        (NAME, "sslmode=verify-full sslrootcert=/nowhere/ca".to_owned(), "/nowhere/ca"),
    ] {
        let error = open(&state, &server, host, &tls).err().expect("it is refused");
        assert!(error.contains(words), "{tls}: {error}");
    }
}

#[test]
fn a_server_without_tls_is_refused_when_it_is_wanted() {
    let Some(mut server) = server() else { return };
    on_tcp(&mut server, &[]);
    let dir = tempfile::tempdir().unwrap();
    let error = open(dir.path(), &server, NAME, "sslmode=require").err().expect("it is refused");
    assert!(error.contains("server does not support TLS") && error.contains("ssl of the server"), "{error}");
    assert_eq!(server.sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onfs'"), "0");
    drop(open(dir.path(), &server, NAME, "sslmode=disable").expect("it can be reached"));
}
