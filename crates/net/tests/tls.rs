//! Goal: with TLS nothing of a call can be read on the way, whoever is not signed for what he does is refused with words that say what to
//! do, and two threads use one session without waiting for each other. Method: real sockets with certificates of CAs made here, a relay
//! between the sides that keeps or damages what goes over it, and peers by hand that are not ours.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "tests")]

mod support;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    thread,
    time::Duration,
};

use net::{
    Address, Bounds, Call, Channel, ConnectError, Credentials, Server, Tuning, connect,
    tls::{Purpose, Tls, TlsFileError},
};
use support::*;
use wire::{frame::Body, handshake::Roles};

/// Found nowhere by chance.
const MARK: &[u8] = b"the bytes of a body are nobody's business";

/// What happens to the bytes from the client.
#[derive(Clone, Copy)]
enum Damage {
    None,
    /// This one is another.
    Changed(usize),
    /// No more than so many come over.
    Cut(usize),
}

/// Hands on what comes, and keeps what both sides said.
struct Relay {
    address: Address,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Relay {
    fn to(server: &Server, damage: Damage) -> Relay {
        let Address::Tcp(to) = server.address() else { panic!("no TCP address") };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let kept = said.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (client, server) = (stream.unwrap(), TcpStream::connect(&to).unwrap());
                let ways = [
                    (client.try_clone().unwrap(), server.try_clone().unwrap(), damage),
                    (server, client, Damage::None),
                ];
                for (from, to, damage) in ways {
                    let kept = kept.clone();
                    thread::spawn(move || hand_on(from, to, damage, &kept));
                }
            }
        });
        Relay { address, said }
    }

    fn has(&self, what: &[u8]) -> bool {
        self.said.lock().unwrap().windows(what.len()).any(|bytes| bytes == what)
    }
}

fn hand_on(mut from: TcpStream, mut to: TcpStream, damage: Damage, said: &Mutex<Vec<u8>>) {
    let (mut buffer, mut at) = (vec![0; 32 << 10], 0);
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        let handed = match damage {
            Damage::Changed(byte) if (at..at + len).contains(&byte) => {
                buffer[byte - at] ^= 1;
                len
            }
            Damage::Cut(most) => len.min(most - at),
            Damage::None | Damage::Changed(_) => len,
        };
        at += handed;
        said.lock().unwrap().extend(&buffer[..handed]);
        if to.write_all(&buffer[..handed]).is_err() || handed < len {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn attempt(address: &Address, credentials: &Credentials) -> Result<Channel, ConnectError> {
    connect(address, credentials, WISH, Arc::new(Methods::default()), &tuning())
}

fn refused(server: &Server, tls: Option<Arc<Tls>>) -> String {
    let error = attempt(&server.address(), &client_with(tls)).err().expect("it is refused");
    error.to_string()
}

fn echo(channel: &Channel, body: Vec<u8>) {
    let len = body.len() as u32;
    let call = Call { body: Body::new(body.clone()), answer_bytes_max: len, ..call(ECHO) };
    assert!(channel.call(call).unwrap().body == body, "{len} bytes");
}

#[test]
fn what_is_called_cannot_be_read_on_the_way() {
    let body = MARK.repeat(2000);
    for ca in [None, Some(Ca::new())] {
        let (server, _) = server_with(ca.as_ref().and_then(Ca::server), Tuning::default(), Bounds::default());
        let relay = Relay::to(&server, Damage::None);
        let channel =
            attempt(&relay.address, &client_with(ca.as_ref().and_then(Ca::client))).expect("connected");
        echo(&channel, body.clone());
        assert!(relay.said.lock().unwrap().len() > 2 * body.len(), "both ways went over the relay");
        // In clear it is found, so it would be.
        for what in [MARK, b"ONFW"] {
            assert_eq!(relay.has(what), ca.is_none(), "{:?}", String::from_utf8_lossy(what));
        }
    }
}

#[test]
fn bodies_of_all_sizes_and_an_end_in_order() {
    let ca = Ca::new();
    let (server, methods) = server_with(ca.server(), Tuning::default(), Bounds::default());
    let channel = attempt(&server.address(), &client_with(ca.client())).unwrap();
    for len in [0, 1, 79, 1025, 16383, 16384, 16385, 65_535, 131_072, 131_073, 1 << 20, 4 << 20, 5] {
        echo(&channel, (0..len).map(|i: usize| (i * 31 + i / 251) as u8).collect());
    }
    assert!(channel.close(Duration::from_secs(60)), "an end in order");
    until("the server sees it", || methods.gone.load(SeqCst) == 1 && server.connections() == 0);
}

#[test]
fn large_bodies_both_ways_at_once_do_not_wait_for_each_other() {
    let ca = Ca::new();
    // Waits that only a standstill comes to the end of.
    let patient = Tuning::default();
    let (server, _) = server_with(ca.server(), patient, Bounds::default());
    let there = Arc::new(Methods::default());
    let credentials = Credentials { tls: ca.tls("node2", Purpose::Server), ..credentials(2, 1) };
    let channel = connect(&server.address(), &credentials, WISH, there.clone(), &patient).unwrap();
    until("the server can ask, too", || server.channel_of(2).is_some());
    let back = server.channel_of(2).unwrap();
    let body = |seed: u8| vec![seed; 3 << 20];
    thread::scope(|scope| {
        for n in 0..4 {
            let (channel, back) = (&channel, &back);
            scope.spawn(move || (0..8).for_each(|turn| echo(channel, body(n * 16 + turn))));
            scope.spawn(move || (0..8).for_each(|turn| echo(back, body(128 + n * 16 + turn))));
        }
    });
    assert_eq!(there.asked.load(SeqCst), 32);
}

#[test]
fn who_is_not_signed_for_it_is_refused_and_told_why() {
    let (ours, other) = (Ca::new(), Ca::new());
    let (server, methods) = server_with(ours.server(), tuning(), Bounds::default());
    let (plain, plain_methods) = server_with(None, tuning(), Bounds::default());
    let (elsewhere, _) = server_with(ours.tls("node7", Purpose::Server), tuning(), Bounds::default());
    let (posing, _) = server_with(ours.tls("127.0.0.1", Purpose::Client), tuning(), Bounds::default());

    // Each side alone has the other's CA.
    let mut mixed = ours.files("client1", Purpose::Client, YEAR);
    let foreign = other.files("client1", Purpose::Client, YEAR);
    (mixed.certificate, mixed.key) = (foreign.certificate, foreign.key);
    let error = refused(&server, Some(Tls::open(mixed).unwrap()));
    assert!(error.contains("refuses the certificate of this node: it is not signed by the CA"), "{error}");
    let error = refused(&server, other.client());
    assert!(error.contains("not signed by the CA of this node"), "{error}");

    let error = refused(&server, None);
    assert!(error.contains("takes TLS only: set cluster.tls_ca_file"), "{error}");
    let error = refused(&plain, ours.client());
    assert!(error.contains("speaks without TLS"), "{error}");
    let error = refused(&elsewhere, ours.client());
    assert!(error.contains("another name") && error.contains("node7"), "{error}");
    let error = refused(&posing, ours.client());
    assert!(error.contains("not for this purpose"), "{error}");

    // A client's certificate does not make a server.
    let mut server_like = client_with(ours.client());
    server_like.me.roles = Roles::DS;
    let error = attempt(&server.address(), &server_like).err().expect("refused").to_string();
    assert!(error.contains("a server needs a certificate"), "{error}");
    server_like.tls = ours.tls("node2", Purpose::Server);
    drop(attempt(&server.address(), &server_like).expect("with a server's it is one"));

    // The key counts as before.
    let mut keyless = client_with(ours.client());
    keyless.key = credentials(2, 9).key;
    let error = attempt(&server.address(), &keyless).err().expect("refused").to_string();
    assert!(error.contains("key"), "{error}");
    assert_eq!(methods.asked.load(SeqCst) + plain_methods.asked.load(SeqCst), 0);
}

#[test]
fn a_certificate_that_has_ended_is_refused_on_both_sides() {
    let ca = Ca::new();
    let ended = ca.files("127.0.0.1", Purpose::Server, Duration::ZERO);
    until("its own node does not take it", || {
        matches!(Tls::open(ended.clone()), Err(TlsFileError::Ended { .. }))
    });
    let (server, _) = server_with(ca.tls("localhost", Purpose::Server), tuning(), Bounds::default());
    let Address::Tcp(address) = server.address() else { panic!("no TCP address") };
    let address: Address = address.replace("127.0.0.1", "localhost").parse().unwrap();
    drop(attempt(&address, &client_with(ca.client())).expect("who is signed"));
    // By hand, as our own side shows no such certificate.
    let Address::Tcp(raw) = server.address() else { panic!("no TCP address") };
    let mut files = ended.clone();
    let good = ca.files("client1", Purpose::Client, YEAR);
    let hand = |files| {
        let stream = TcpStream::connect(&raw).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut stream = tls_by_hand_to("localhost", stream, files);
        let said = stream.write_all(&[0; 80]).and_then(|()| stream.read(&mut [0; 4096]));
        said.err().map(|error| error.to_string())
    };
    let error = hand(&ended).expect("it is refused");
    assert!(error.contains("CertificateExpired"), "{error}");
    (files.certificate, files.key) = (good.certificate, good.key);
    let garbage = hand(&files);
    assert!(garbage.is_none_or(|error| !error.contains("Certificate")), "a good one is not what is refused");
}

#[test]
fn a_server_whose_certificate_has_ended_is_refused() {
    let ca = Ca::new();
    let ended = ca.files("127.0.0.1", Purpose::Server, Duration::ZERO);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = serve_by_hand(stream.unwrap(), &ended);
            let _ = stream.read(&mut [0; 100]);
        }
    });
    let mut why = String::new();
    until("it is refused", || {
        let error =
            attempt(&address, &client_with(ca.client())).err().expect("it does not speak our protocol");
        why = error.to_string();
        why.contains("it has ended")
    });
    assert!(why.contains("certificate of the peer is refused"), "{why}");
}

#[test]
fn damaged_and_cut_records_end_the_connection_and_ask_nothing() {
    let ca = Ca::new();
    let (server, methods) = server_with(ca.server(), tuning(), Bounds::default());
    // All beyond the handshakes.
    let damages = [20_000, 20_003, 25_000, 90_000].map(Damage::Changed);
    for damage in damages.into_iter().chain([20_000, 20_001, 33_333, 100_000].map(Damage::Cut)) {
        let relay = Relay::to(&server, damage);
        let channel = attempt(&relay.address, &client_with(ca.client())).unwrap();
        let before = methods.gone.load(SeqCst);
        let call = Call { body: Body::new(vec![1; 200_000]), ..call(ECHO) };
        assert!(channel.call(call).expect_err("it is damaged").is_unknown());
        until("it is gone", || methods.gone.load(SeqCst) == before + 1);
    }
    assert_eq!(methods.asked.load(SeqCst), 0);
}

#[test]
fn strangers_in_place_of_tls_are_let_go_in_time() {
    let ca = Ca::new();
    let quick = Tuning { connect_wait: Duration::from_millis(500), ..tuning() };
    let (server, methods) = server_with(ca.server(), quick, Bounds::default());
    let Address::Tcp(address) = server.address() else { panic!("no TCP address") };
    let raw = || {
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    // A record of the handshake that promises more than it has, one after the other without an end, and what is none at all.
    let hello = [&[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff][..], &[7; 0x3ffb]].concat();
    let fragments = [&[22, 3, 1, 0x40, 0][..], &[1; 0x4000]].concat();
    let garbage = [
        hello.clone(),
        hello[..300].to_vec(),
        [&hello[..], &fragments.repeat(64)].concat(),
        b"GET / HTTP/1.1\r\nHost: node7\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        b"ONFW".to_vec(),
        vec![22],
        Vec::new(),
    ];
    for bytes in garbage {
        let mut stream = raw();
        // It may have let go before it has all.
        let _ = stream.write_all(&bytes);
        until_over(&mut stream);
    }
    // The first half of a client's side, whole and byte by byte.
    let mut half = TcpStream::connect(&address).unwrap();
    half.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let first = first_flight(&ca);
    half.write_all(&first).unwrap();
    until_over(&mut half);
    let mut slow = raw();
    for byte in first.iter().cycle().take(2000) {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    until_over(&mut slow);
    assert_eq!(methods.asked.load(SeqCst), 0);
    echo(&attempt(&server.address(), &client_with(ca.client())).unwrap(), vec![1; 1000]);
}

/// What a client says first.
fn first_flight(ca: &Ca) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut other, _) = listener.accept().unwrap();
    let mut client = tls_by_hand(stream, &ca.files("client1", Purpose::Client, YEAR));
    client.conn.write_tls(&mut client.sock).unwrap();
    client.sock.shutdown(Shutdown::Write).unwrap();
    let mut said = Vec::new();
    other.read_to_end(&mut said).unwrap();
    said
}

fn until_over(stream: &mut TcpStream) {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => (),
            Err(error) if [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind()) => {
                return;
            }
            Err(error) => panic!("the server holds on to it: {error}"),
        }
    }
}

#[test]
fn new_files_are_used_for_new_connections() {
    let (ours, other) = (Ca::new(), Ca::new());
    let at = tempfile::tempdir().unwrap();
    let place = |ca: &Ca| {
        let from = ca.files("127.0.0.1", Purpose::Server, YEAR);
        for (from, name) in [(&from.certificate, "crt"), (&from.key, "key"), (&from.ca, "ca")] {
            fs::copy(from, at.path().join("new")).unwrap();
            fs::rename(at.path().join("new"), at.path().join(name)).unwrap();
        }
    };
    let ca_text = |ca: &Ca| fs::read(ca.0.path().join("ca.crt")).unwrap();
    let (our_ca, other_ca) = (ca_text(&ours), ca_text(&other));
    let files = net::tls::TlsFiles {
        ca: at.path().join("ca"),
        certificate: at.path().join("crt"),
        key: at.path().join("key"),
    };
    let (our_client, other_client) = (ours.client(), other.client());
    place(&ours);
    let (server, _) = server_with(Some(Tls::open(files).unwrap()), tuning(), Bounds::default());
    let kept = attempt(&server.address(), &client_with(our_client.clone())).unwrap();
    assert!(attempt(&server.address(), &client_with(other_client.clone())).is_err());
    place(&other);
    drop(attempt(&server.address(), &client_with(other_client.clone())).expect("the new CA's"));
    assert!(attempt(&server.address(), &client_with(our_client.clone())).is_err());
    echo(&kept, vec![1; 100]);
    // Both are taken while one takes the other's place.
    fs::write(at.path().join("ca"), [our_ca, other_ca].concat()).unwrap();
    let mixed = client_with(our_client);
    let error =
        attempt(&server.address(), &mixed).err().expect("the client has the old CA alone").to_string();
    assert!(error.contains("CA of this node"), "{error}");
    drop(attempt(&server.address(), &client_with(other_client.clone())).expect("it is still good"));
    // What cannot be used is not.
    fs::write(at.path().join("crt"), b"no certificate").unwrap();
    drop(attempt(&server.address(), &client_with(other_client)).expect("what was good is used on"));
}

#[test]
fn files_that_others_can_read_or_that_do_not_fit_are_named() {
    let ca = Ca::new();
    let files = ca.files("a", Purpose::Client, YEAR);
    let other = ca.files("b", Purpose::Client, YEAR);
    let wrong = |files: &net::tls::TlsFiles| Tls::open(files.clone()).unwrap_err().to_string();
    let swapped = net::tls::TlsFiles { key: other.key.clone(), ..files.clone() };
    assert!(wrong(&swapped).contains("do not fit"), "{}", wrong(&swapped));
    let no_key = net::tls::TlsFiles { key: files.ca.clone(), ..files.clone() };
    fs::set_permissions(&files.ca, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(wrong(&no_key).contains("no private key"), "{}", wrong(&no_key));
    let no_ca = net::tls::TlsFiles { ca: files.key.clone(), ..files.clone() };
    assert!(wrong(&no_ca).contains("no certificate"), "{}", wrong(&no_ca));
    let missing = net::tls::TlsFiles { ca: "/nowhere/ca".into(), ..files.clone() };
    assert!(wrong(&missing).contains("/nowhere/ca"), "{}", wrong(&missing));
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(wrong(&files).contains("chmod 600"), "{}", wrong(&files));
}
