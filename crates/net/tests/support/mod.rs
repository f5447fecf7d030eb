//! Two sides for the tests: a server whose methods do what tests want, and what a client of it needs.
#![allow(dead_code, reason = "not each test needs everything")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    net::TcpStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use net::{
    Address, Bounds, Call, Channel, Credentials, Handler, Incoming, Reply, Server, Tuning, connect,
    tls::{Purpose, Tls, TlsFiles, Wanted, create_authority, sign},
};
use rustls::{
    ClientConnection, ServerConnection, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use wire::{
    connection::{Answer, Window},
    frame::{Body, Verdict},
    handshake::{Identity, Peer, Roles, Versions, Wish},
    key::ClusterKey,
    schema::Lane,
};

/// Sends meta and body back.
pub const ECHO: u16 = 1;
/// As many bytes as the answer may have.
pub const READ: u16 = 2;
/// The same after the milliseconds in the meta's first byte, from another thread.
pub const LATE: u16 = 3;
/// No answer: the reply is dropped.
pub const DROP: u16 = 4;
/// An answer longer than was asked for.
pub const LONG: u16 = 5;
/// Never answered while the test runs.
pub const NEVER: u16 = 6;

#[derive(Default)]
pub struct Methods {
    pub asked: AtomicUsize,
    pub unasked: AtomicUsize,
    pub gone: AtomicUsize,
    kept: std::sync::Mutex<Vec<Reply>>,
}

pub fn done(meta: Vec<u8>, body: Vec<u8>) -> Answer {
    Answer { verdict: Verdict::Done, meta: meta.into(), body: Body::new(body), epoch: 7 }
}

impl Handler for Methods {
    fn asked(&self, mut incoming: Incoming, reply: Reply) {
        self.asked.fetch_add(1, SeqCst);
        let most = incoming.header.answer_bytes_max as usize;
        let meta = incoming.meta.clone();
        match incoming.header.method {
            ECHO => reply.answer(done(meta, incoming.take_body().into_vec())).unwrap(),
            READ => reply.answer(done(meta, vec![most as u8; most])).unwrap(),
            LATE => drop(thread::spawn(move || {
                thread::sleep(Duration::from_millis(meta[0].into()));
                reply.answer(done(meta, vec![1; most])).unwrap();
            })),
            DROP => drop(reply),
            LONG => assert!(reply.answer(done(meta, vec![0; most + 1])).is_err()),
            NEVER => self.kept.lock().unwrap().push(reply),
            other => panic!("method {other}"),
        }
    }

    fn unasked(&self, _: &Peer, _: u64) {
        self.unasked.fetch_add(1, SeqCst);
    }

    fn gone(&self, _: &Peer, _: Lane, _: Option<wire::connection::Loss>) {
        self.gone.fetch_add(1, SeqCst);
    }
}

pub fn credentials(node: u64, key: u8) -> Credentials {
    let me = Identity {
        cluster: [1; 16],
        node,
        roles: Roles::DS,
        build: "test".into(),
        versions: Versions::OURS,
        takes: Window::default(),
    };
    Credentials { me, key: ClusterKey::new([key; 32]), tls: None }
}

/// A CA of the test's own.
pub struct Ca(pub tempfile::TempDir);

pub const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

impl Ca {
    pub fn new() -> Ca {
        let dir = tempfile::tempdir().unwrap();
        create_authority(dir.path(), "test").unwrap();
        Ca(dir)
    }

    /// Each time under names of their own, so that they are no renewal of others.
    pub fn files(&self, name: &str, purpose: Purpose, holds: Duration) -> TlsFiles {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let wanted = Wanted { names: vec![name.to_owned()], purpose, holds, renew: false };
        let made = sign(self.0.path(), &wanted).unwrap();
        let place = |end: &str| self.0.path().join(format!("{}.{end}", LAST.fetch_add(1, SeqCst)));
        let files = TlsFiles { ca: made.ca, certificate: place("crt"), key: place("key") };
        std::fs::rename(&made.certificate, &files.certificate).unwrap();
        std::fs::rename(&made.key, &files.key).unwrap();
        files
    }

    pub fn tls(&self, name: &str, purpose: Purpose) -> Option<Arc<Tls>> {
        Some(Tls::open(self.files(name, purpose, YEAR)).unwrap())
    }

    pub fn server(&self) -> Option<Arc<Tls>> {
        self.tls("127.0.0.1", Purpose::Server)
    }

    pub fn client(&self) -> Option<Arc<Tls>> {
        self.tls("client1", Purpose::Client)
    }
}

fn certificates(path: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(path).unwrap().map(Result::unwrap).collect()
}

pub fn tls_by_hand(stream: TcpStream, files: &TlsFiles) -> StreamOwned<ClientConnection, TcpStream> {
    tls_by_hand_to("127.0.0.1", stream, files)
}

/// The client's side of TLS as rustls alone does it, with whatever certificate.
pub fn tls_by_hand_to(
    name: &'static str,
    stream: TcpStream,
    files: &TlsFiles,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(certificates(&files.ca));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            certificates(&files.certificate),
            PrivateKeyDer::from_pem_file(&files.key).unwrap(),
        )
        .unwrap();
    let session = ClientConnection::new(Arc::new(config), name.try_into().unwrap()).unwrap();
    StreamOwned::new(session, stream)
}

/// A server's side that asks for no certificate.
pub fn serve_by_hand(stream: TcpStream, files: &TlsFiles) -> StreamOwned<ServerConnection, TcpStream> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates(&files.certificate), PrivateKeyDer::from_pem_file(&files.key).unwrap())
        .unwrap();
    StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), stream)
}

pub const WISH: Wish = Wish { lane: Lane::Data, node: Some(1) };

/// Waits that a test can sit through.
pub fn tuning() -> Tuning {
    Tuning {
        connect_wait: Duration::from_secs(3),
        frame_wait: Duration::from_millis(800),
        send_wait: Duration::from_millis(800),
        ping_after: Duration::from_millis(300),
        silence_max: Duration::from_millis(1200),
        ..Tuning::default()
    }
}

pub fn tcp() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

pub fn server(tuning: Tuning, bounds: Bounds) -> (Server, Arc<Methods>) {
    server_with(None, tuning, bounds)
}

pub fn server_with(tls: Option<Arc<Tls>>, tuning: Tuning, bounds: Bounds) -> (Server, Arc<Methods>) {
    let methods = Arc::new(Methods::default());
    let credentials = Credentials { tls, ..credentials(1, 1) };
    let server = Server::start(&tcp(), credentials, methods.clone(), tuning, bounds).unwrap();
    (server, methods)
}

pub fn client(server: &Server) -> Channel {
    connect(&server.address(), &credentials(2, 1), WISH, Arc::new(Methods::default()), &tuning()).unwrap()
}

/// A mount's: it says that it is a client.
pub fn client_with(tls: Option<Arc<Tls>>) -> Credentials {
    let mut credentials = Credentials { tls, ..credentials(2, 1) };
    credentials.me.roles = Roles::CLIENT;
    credentials
}

pub fn soon(wait: Duration) -> Instant {
    Instant::now() + wait
}

pub fn call(method: u16) -> Call {
    Call::new(method, vec![0; 4], soon(Duration::from_secs(20)))
}

/// Until it holds, with an end.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let (late, (_keep, nobody)) = (soon(Duration::from_secs(20)), mpsc::channel::<()>());
    while !holds() {
        assert!(Instant::now() < late, "in vain: {what}");
        let _ = nobody.recv_timeout(Duration::from_millis(5));
    }
}
