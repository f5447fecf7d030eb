//! Goal: whatever a stranger or a broken peer does, it is let go in time, costs bounded memory and threads, and others are served. Method:
//! raw sockets that speak wrongly, slowly, or not at all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::wildcard_enum_match_arm, reason = "tests")]

#[path = "support/site.rs"]
mod site;
mod support;

use std::{
    io::{Read, Write},
    sync::{Arc, atomic::Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use net::{Address, Bounds, ConnectError, Server, Tuning, connect};
use site::*;
use support::*;
use wire::{
    Decoder, Encoder, Piece,
    connection::Window,
    frame::{Body, Header, Kind, Limits, Place, SumKey, encode},
    handshake::{Handshake, HandshakeError, Session, Versions},
    schema::{Lane, Reason},
};

fn quick() -> Tuning {
    Tuning { connect_wait: Duration::from_millis(500), ..tuning() }
}

/// Frames by hand, after a handshake by hand.
struct ByHand {
    stream: Box<dyn Stream>,
    encoder: Encoder,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl ByHand {
    fn greet(site: &Site, server: &Server) -> ByHand {
        let stream = site.stream(server);
        let place = Place::first(0, SumKey::OPEN);
        let mut hand = ByHand {
            stream,
            encoder: Encoder::new(place),
            decoder: Decoder::new(place, Limits::HANDSHAKE),
            buffer: Vec::new(),
        };
        let me = site.credentials(3, 1);
        let mut handshake = Handshake::initiate(me.me, me.key, WISH, 0, [7; 32]);
        let session: Session = loop {
            if let Some(message) = handshake.poll_output() {
                let header = message.header();
                hand.send(&header, &message.meta, message.body);
            }
            let (header, meta, body) = hand.receive();
            if let Some(session) = handshake.handle(&header, &meta, &body).unwrap() {
                break session;
            }
        };
        hand.encoder.switch(session.version, session.send);
        hand.decoder.switch(session.version, session.receive, Limits::DEFAULT);
        hand
    }

    fn bytes(&mut self, header: &Header, meta: &[u8], body: Vec<u8>) -> Vec<u8> {
        let body = Body::new(body);
        [&self.encoder.header(header, meta, &body)[..], meta, body.bytes()].concat()
    }

    fn send(&mut self, header: &Header, meta: &[u8], body: Vec<u8>) {
        let bytes = self.bytes(header, meta, body);
        self.stream.write_all(&bytes).unwrap();
    }

    fn receive(&mut self) -> (Header, Vec<u8>, Vec<u8>) {
        let mut frame: Option<(Header, Vec<u8>, Vec<u8>)> = None;
        loop {
            let (used, piece) = self.decoder.take(&self.buffer).unwrap();
            let bytes: Vec<u8> = self.buffer.drain(..used).collect();
            match piece {
                Piece::Begin { header, meta, .. } => frame = Some((header, meta, Vec::new())),
                Piece::Body(_) => frame.as_mut().unwrap().2.extend(bytes),
                Piece::End => return frame.unwrap(),
                Piece::Nothing => {
                    let mut more = [0; 4096];
                    let len = self.stream.read(&mut more).unwrap();
                    assert!(len > 0, "the server closed");
                    self.buffer.extend(&more[..len]);
                }
            }
        }
    }
}

fn request(id: u64, answer_bytes_max: u32) -> Header {
    Header { method: READ, id, answer_bytes_max, left_ms: 9000, ..Header::of(Kind::Request) }
}

#[test]
fn garbage_ends_its_connection_only() {
    for site in Site::both() {
        let (server, methods) = site.server(quick(), Bounds::default());
        let long =
            encode(&Place::first(0, SumKey::OPEN), &Header::of(Kind::Hello), &[0; 5000], &Body::default());
        for garbage in
            [&b"GET / HTTP/1.1\r\nHost: node7\r\n\r\n".repeat(4)[..], &[0; 300], &[0xff; 90], &long]
        {
            let mut stream = site.stream(&server);
            stream.write_all(garbage).unwrap();
            ends(stream);
        }
        site.is_well(&server);
        assert_eq!(methods.asked.load(SeqCst), 1);
    }
}

#[test]
fn strangers_that_say_nothing_or_little_are_let_go() {
    for site in Site::both() {
        let (server, _) = site.server(quick(), Bounds::default());
        let silent = site.stream(&server);
        let mut half = site.stream(&server);
        half.write_all(b"ONFW").unwrap();
        // A byte now and then: each one alone is in time.
        let mut slow = site.stream(&server);
        let begun = Instant::now();
        let hello =
            encode(&Place::first(0, SumKey::OPEN), &Header::of(Kind::Hello), &[0; 900], &Body::default());
        for byte in hello.iter().cycle().take(400) {
            if slow.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(25));
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "the slow one was cut: {:?}", begun.elapsed());
        ends(silent);
        ends(half);
        site.is_well(&server);
    }
}

#[test]
fn a_frame_that_never_becomes_whole_ends_the_connection() {
    for site in Site::both() {
        let (server, methods) = site.server(tuning(), Bounds::default());
        let mut hand = ByHand::greet(&site, &server);
        let bytes = hand.bytes(&request(1, 0), &[], vec![1; 100_000]);
        let begun = Instant::now();
        // The frame's time is 0.8 s; keep-alives are satisfied by each byte.
        for byte in &bytes[..400] {
            if hand.stream.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        until("it is gone", || methods.gone.load(SeqCst) == 1);
        assert_eq!(methods.asked.load(SeqCst), 0);
        site.is_well(&server);
    }
}

#[test]
fn a_kill_in_the_middle_of_a_frame_asks_nothing() {
    for site in Site::both() {
        let (server, methods) = site.server(tuning(), Bounds::default());
        for cut in [1, 79, 80, 90, 5000] {
            let mut hand = ByHand::greet(&site, &server);
            let bytes = hand.bytes(&request(1, 0), &[0; 8], vec![1; 10_000]);
            hand.stream.write_all(&bytes[..cut]).unwrap();
            drop(hand);
        }
        until("all are gone", || methods.gone.load(SeqCst) == 5);
        assert_eq!(methods.asked.load(SeqCst), 0, "half a request is none");
        site.is_well(&server);
    }
}

#[test]
fn damaged_bodies_and_broken_rules_end_the_connection() {
    for site in Site::both() {
        let (server, methods) = site.server(tuning(), Bounds::default());
        type Break = fn(&mut ByHand) -> Vec<u8>;
        let breaks: [Break; 4] = [
            |hand| {
                let mut bytes = hand.bytes(&request(1, 0), &[], vec![1; 5000]);
                bytes[3000] ^= 4;
                bytes
            },
            |hand| hand.bytes(&Header { id: 9, ..Header::of(Kind::Answer) }, &[], Vec::new()),
            |hand| hand.bytes(&Header::of(Kind::Hello), &[], Vec::new()),
            |hand| {
                // Keys of the handshake after it: somebody who does not know the connection's.
                let place = Place::first(1, SumKey::OPEN);
                let _ = hand;
                encode(&place, &request(1, 0), &[], &Body::default()).to_vec()
            },
        ];
        for (n, bad) in breaks.iter().enumerate() {
            let mut hand = ByHand::greet(&site, &server);
            let bytes = bad(&mut hand);
            hand.stream.write_all(&bytes).unwrap();
            ends(hand.stream);
            until("it is gone", || methods.gone.load(SeqCst) == n + 1);
        }
        assert_eq!(methods.asked.load(SeqCst), 0);
        site.is_well(&server);
    }
}

#[test]
fn a_peer_that_asks_and_never_reads_is_cut_and_costs_its_window() {
    for site in Site::both() {
        let takes = Window { requests: 16, bytes: 20 << 20 };
        let (server, methods) = site.server(Tuning { takes, ..tuning() }, Bounds::default());
        let mut hand = ByHand::greet(&site, &server);
        // Each answer is a megabyte, and together they are within the window, and more than the sockets hold.
        for id in 1..=16 {
            hand.send(&request(id, 1 << 20), &[], Vec::new());
        }
        until("all are asked", || methods.asked.load(SeqCst) == 16);
        // It is not silent, so it is its not reading that ends it.
        until("it is cut", || {
            let ping = hand.bytes(&Header::of(Kind::Ping), &[], Vec::new());
            let _ = hand.stream.write_all(&ping);
            methods.gone.load(SeqCst) == 1
        });
        site.is_well(&server);
    }
}

#[test]
fn a_silent_peer_is_lost() {
    for site in Site::both() {
        let (server, methods) = site.server(tuning(), Bounds::default());
        let hand = ByHand::greet(&site, &server);
        let begun = Instant::now();
        until("it is gone", || methods.gone.load(SeqCst) == 1);
        assert!(begun.elapsed() > Duration::from_secs(1), "not before its time");
        // It was asked whether it lives.
        let said = ends(hand.stream);
        assert!(said.len() >= 80);
    }
}

#[test]
fn a_wrong_key_cluster_version_or_node_is_told_to_who_connects() {
    for site in Site::both() {
        let (server, methods) = site.server(quick(), Bounds::default());
        let attempt = |mut credentials: net::Credentials, node, versions| {
            credentials.me.versions = versions;
            let wish = wire::handshake::Wish { node: Some(node), lane: Lane::Control };
            let nobody = Arc::new(Methods::default());
            match connect(&server.address(), &credentials, wish, nobody, &tuning()) {
                Err(ConnectError::Handshake(error)) => error,
                Err(other) => panic!("{other}"),
                Ok(_) => panic!("connected"),
            }
        };
        assert_eq!(attempt(site.credentials(2, 9), 1, Versions::OURS), HandshakeError::Key);
        assert_eq!(
            attempt(site.credentials(2, 1), 5, Versions::OURS),
            HandshakeError::Node { wanted: 5, found: 1 }
        );
        let mut stranger = site.credentials(2, 1);
        stranger.me.cluster = [2; 16];
        let reason = |error| match error {
            HandshakeError::Refused { reason, .. } => reason,
            other => panic!("{other}"),
        };
        assert_eq!(reason(attempt(stranger, 1, Versions::OURS)), Some(Reason::Cluster));
        let later = Versions { min: 5, max: 9 };
        assert_eq!(reason(attempt(site.credentials(2, 1), 1, later)), Some(Reason::Version));
        site.is_well(&server);
        assert_eq!(methods.asked.load(SeqCst), 1);
    }
}

#[test]
fn a_server_that_answers_garbage_is_an_error_for_its_caller() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let served = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n".repeat(3).as_slice()).unwrap();
        // And one that never answers.
        let (silent, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 100]);
        silent
    });
    let attempt = || connect(&address, &credentials(2, 1), WISH, Arc::new(Methods::default()), &quick());
    let text = attempt().err().expect("an error").to_string();
    assert!(text.contains("magic"), "{text}");
    assert!(matches!(attempt(), Err(ConnectError::Slow(_))), "within its time");
    drop(served.join().unwrap());
}
