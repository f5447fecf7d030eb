//! Goal: two sides with the key of one cluster agree; every other pair fails, on both sides, with the reason. Method: the
//! two machines fed with each other's messages; each message changed, fuzzed, or sent at another time.
#![allow(clippy::expect_used, clippy::wildcard_enum_match_arm)]

use fuzzing::{as_it_is, fuzz};
use wire::{
    connection::Window,
    frame::{Body, Header, Kind},
    handshake::{
        Handshake, HandshakeError, HandshakeMessage, Identity, Roles, Session, Versions, Wish, refusal,
    },
    key::{ClusterKey, NoKey},
    schema::{Lane, Reason},
};

fn key(byte: u8) -> ClusterKey {
    ClusterKey::new([byte; 32])
}

fn identity(node: u64) -> Identity {
    Identity {
        cluster: [9; 16],
        node,
        roles: Roles::MDS.and(Roles::DS),
        build: "0.1.0 (abc)".into(),
        versions: Versions::OURS,
        takes: Window { requests: 10 + node as u32, bytes: 1000 },
    }
}

const WISH: Wish = Wish { lane: Lane::Data, node: None };

fn sides() -> (Handshake, Handshake) {
    sides_as(0)
}

fn sides_as(instance: u64) -> (Handshake, Handshake) {
    (
        Handshake::initiate(identity(1), key(1), WISH, instance, [1; 32]),
        Handshake::respond(identity(2), key(1), [2; 32]),
    )
}

type Ended = Result<Option<Session>, HandshakeError>;

fn give(to: &mut Handshake, message: &HandshakeMessage) -> Ended {
    to.handle(&message.header(), &message.meta, &message.body)
}

/// Runs both to the end; `change` may change each message on its way.
fn run(mut a: Handshake, mut b: Handshake, change: impl Fn(usize, &mut HandshakeMessage)) -> (Ended, Ended) {
    let (mut a_ended, mut b_ended): (Ended, Ended) = (Ok(None), Ok(None));
    for number in 0..10 {
        let (from, to, ended) =
            if number % 2 == 0 { (&mut a, &mut b, &mut b_ended) } else { (&mut b, &mut a, &mut a_ended) };
        let Some(mut message) = from.poll_output() else { break };
        change(number, &mut message);
        *ended = give(to, &message);
    }
    (a_ended, b_ended)
}

fn session(ended: Ended) -> Session {
    ended.expect("no error").expect("a session")
}

#[test]
fn both_know_each_other() {
    let (a, b) = sides();
    let (a, b) = run(a, b, |_, _| ());
    let (a, b) = (session(a), session(b));
    assert_eq!((a.version, a.lane, a.peer.node), (1, Lane::Data, 2));
    assert_eq!((b.version, b.lane, b.peer.node), (1, Lane::Data, 1));
    assert_eq!((a.peer.takes.requests, b.peer.takes.requests), (12, 11));
    assert!(a.peer.roles.has(Roles::DS) && !a.peer.roles.has(Roles::CLIENT));
    // What one sends the other receives, and the directions differ.
    let sum = |key| {
        wire::frame::encode(
            &wire::frame::Place::first(1, key),
            &Header::of(Kind::Ping),
            &[],
            &Body::default(),
        )
    };
    assert_eq!((sum(a.send), sum(a.receive)), (sum(b.receive), sum(b.send)));
    assert_ne!(sum(a.send), sum(a.receive));
}

/// The proofs were worked out by another program, too.
#[test]
fn golden_proofs() {
    let (mut a, mut b) = sides();
    let hello = a.poll_output().expect("hello");
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let golden = format!(
        "080110011a10{}2001280630033a0b302e312e30202861626329{}{}480b50e807",
        "09".repeat(16),
        "4220",
        "01".repeat(32)
    );
    assert_eq!(hex(&hello.meta), golden);
    give(&mut b, &hello).expect("fine");
    let welcome = b.poll_output().expect("welcome");
    give(&mut a, &welcome).expect("fine");
    let proof = a.poll_output().expect("proof");
    assert_eq!(hex(&welcome.body), "5e2e018714c7f9d34c3e7e76ad20a5f27acfac1bbf633eb5dc3b746e093a545f");
    assert_eq!(hex(&proof.body), "555b5380d2deb6eea92192c4906ef8ebebe5d2e8cc98c0b8275f0999b9b6805d");
}

/// Whose connection it is the responder hears, under the proof; an older build says nothing.
#[test]
fn the_instance_is_told_and_proved() {
    let instance = 0x0102_0304_0506_0708;
    let (a, b) = sides_as(instance);
    let (a, b) = run(a, b, |_, _| ());
    assert_eq!((session(a).peer.instance, session(b).peer.instance), (0, instance));
    let (a, b) = sides();
    let (a, b) = run(a, b, |_, _| ());
    assert_eq!((session(a).peer.instance, session(b).peer.instance), (0, 0));
    // At the end, as it is in the golden bytes of who says none, and then: field 11, 8 bytes.
    let meta = |instance| sides_as(instance).0.poll_output().expect("hello").meta;
    let (without, with) = (meta(0), meta(instance));
    assert_eq!(with[..without.len()], without[..]);
    assert_eq!(with[without.len()..], [0x59, 8, 7, 6, 5, 4, 3, 2, 1]);
    for change in [
        |message: &mut HandshakeMessage| *message.meta.last_mut().expect("its highest byte") ^= 1,
        |message: &mut HandshakeMessage| message.meta.truncate(message.meta.len() - 9),
    ] {
        let (a, b) = sides_as(instance);
        let (a, b) = run(a, b, |n, message| {
            if n == 0 {
                change(message)
            }
        });
        assert_eq!(a.err(), Some(HandshakeError::Key));
        assert_eq!(reason(&b), Some(Reason::Key));
    }
}

fn reason(ended: &Ended) -> Option<Reason> {
    match ended {
        Err(HandshakeError::Refused { reason, .. }) => *reason,
        _ => None,
    }
}

#[test]
fn a_wrong_key_is_told_to_both() {
    let (a, _) = sides();
    let (a, b) = run(a, Handshake::respond(identity(2), key(7), [2; 32]), |_, _| ());
    assert_eq!(a.err(), Some(HandshakeError::Key));
    assert_eq!(reason(&b), Some(Reason::Key));
}

#[test]
fn an_initiator_that_does_not_check_is_found_by_the_responder() {
    // An initiator without the key passes over the responder's proof and makes up its own.
    let (mut a, mut b) = sides();
    give(&mut b, &a.poll_output().expect("hello")).expect("fine");
    b.poll_output().expect("welcome");
    let proof = HandshakeMessage { kind: Kind::Proof, meta: Vec::new(), body: vec![0; 32] };
    assert_eq!(give(&mut b, &proof).err(), Some(HandshakeError::Key));
    let refusal = b.poll_output().expect("a refusal");
    assert_eq!(refusal.kind, Kind::Refusal);
    assert_eq!(reason(&give(&mut a, &refusal)), Some(Reason::Key));
}

#[test]
fn a_responders_proof_is_not_an_initiators() {
    let (mut a, mut b) = sides();
    give(&mut b, &a.poll_output().expect("hello")).expect("fine");
    let welcome = b.poll_output().expect("welcome");
    let reflected = HandshakeMessage { kind: Kind::Proof, meta: Vec::new(), body: welcome.body };
    assert_eq!(give(&mut b, &reflected).err(), Some(HandshakeError::Key));
}

#[test]
fn another_cluster_is_told_to_both() {
    let other = Identity { cluster: [8; 16], ..identity(2) };
    let (a, b) = run(sides().0, Handshake::respond(other, key(1), [2; 32]), |_, _| ());
    assert_eq!(reason(&a), Some(Reason::Cluster));
    let text = b.expect_err("an error").to_string();
    assert_eq!(text, format!("the peer is of cluster {}, we are of {}", "09".repeat(16), "08".repeat(16)));
}

#[test]
fn the_newest_version_of_both_is_taken_and_none_in_common_is_told() {
    for (ours, theirs, agreed) in
        [((1, 3), (2, 9), Some(3)), ((4, 9), (1, 5), Some(5)), ((1, 1), (2, 3), None), ((5, 6), (1, 4), None)]
    {
        let with = |node, (min, max)| Identity { versions: Versions { min, max }, ..identity(node) };
        let a = Handshake::initiate(with(1, ours), key(1), WISH, 0, [1; 32]);
        let b = Handshake::respond(with(2, theirs), key(1), [2; 32]);
        let (a, b) = run(a, b, |_, _| ());
        match agreed {
            Some(version) => assert_eq!((session(a).version, session(b).version), (version, version)),
            None => {
                assert_eq!(reason(&a), Some(Reason::Version));
                let text = b.expect_err("an error").to_string();
                let theirs = format!("versions {} to {} of the wire (build \"0.1.0 (abc)\")", ours.0, ours.1);
                assert!(text.contains(&theirs), "{text}");
            }
        }
    }
}

#[test]
fn another_node_than_wanted_is_refused() {
    let wish = Wish { node: Some(5), ..WISH };
    let a = Handshake::initiate(identity(1), key(1), wish, 0, [1; 32]);
    let (a, b) = run(a, sides().1, |_, _| ());
    assert_eq!(a.err(), Some(HandshakeError::Node { wanted: 5, found: 2 }));
    assert_eq!(reason(&b), Some(Reason::Node));
}

#[test]
fn no_changed_byte_is_accepted() {
    let (mut a, mut b) = sides_as(7);
    let hello = a.poll_output().expect("hello");
    give(&mut b, &hello).expect("fine");
    let welcome = b.poll_output().expect("welcome");
    for (number, len) in [(0, hello.meta.len()), (1, welcome.meta.len() + 32), (2, 32)] {
        for at in 0..len {
            let (a, b) = sides_as(7);
            let (a, b) = run(a, b, |n, message| {
                if n == number {
                    let meta = message.meta.len();
                    let byte = if at < meta { &mut message.meta[at] } else { &mut message.body[at - meta] };
                    *byte ^= 1;
                }
            });
            assert!(!matches!(a, Ok(Some(_))), "message {number}, byte {at}: {a:?}");
            assert!(!matches!(b, Ok(Some(_))), "message {number}, byte {at}: {b:?}");
        }
    }
}

#[test]
fn a_busy_peer_is_tried_again_and_others_are_not() {
    let (mut a, _) = sides();
    let error = give(&mut a, &refusal(Reason::Busy, "full\x1b[2J")).expect_err("refused");
    assert!(error.may_pass());
    assert_eq!(error.to_string(), "the peer refuses the connection: full [2J");
    assert!(!HandshakeError::Key.may_pass());
}

#[test]
fn keys_are_read_and_not_shown() {
    let key = ClusterKey::new(std::array::from_fn(|i| i as u8 * 7));
    assert_eq!(ClusterKey::parse(&key.to_text()), Ok(key.clone()));
    assert_eq!(format!("{key:?}"), "ClusterKey(..)");
    let text = key.to_text();
    for bad in ["", "onfs-cluster-key-1 ", &text[..40], &text.replace("key-1", "key-2"), &format!("{text}\n")]
    {
        assert_eq!(ClusterKey::parse(bad), Err(NoKey), "{bad:?}");
    }
    assert_eq!(ClusterKey::parse(&text.replace("07", "é")), Err(NoKey));
}

/// Goal: the identity that follows from a key never changes, or clients of a cluster were strangers to it. Method: golden bytes.
#[test]
fn an_identity_follows_from_the_key() {
    let key = ClusterKey::new(std::array::from_fn(|i| i as u8 * 7));
    let digits: String = key.cluster_id().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(digits, "4180a874409183a176f6664b9c64c014");
    assert_ne!(key.cluster_id(), ClusterKey::new([1; 32]).cluster_id());
}

#[test]
fn fuzz_wire_handshake() {
    let (mut a, mut b) = sides_as(u64::MAX / 3);
    let mut good = Vec::new();
    let wrapped = |message: &HandshakeMessage| {
        let mut bytes = vec![message.kind as u8, message.meta.len() as u8];
        bytes.extend(&message.meta);
        bytes.extend(&message.body);
        bytes
    };
    let hello = a.poll_output().expect("hello");
    good.push(wrapped(&hello));
    give(&mut b, &hello).expect("fine");
    let welcome = b.poll_output().expect("welcome");
    good.push(wrapped(&welcome));
    good.push(wrapped(&refusal(Reason::Busy, "full")));
    let kinds = [Kind::Hello, Kind::Welcome, Kind::Proof, Kind::Accepted, Kind::Refusal, Kind::Request];
    fuzz("wire-handshake", &good, as_it_is, |bytes| {
        let Some((&[kind, len], rest)) = bytes.split_first_chunk::<2>() else { return };
        let (meta, body) = rest.split_at((len as usize).min(rest.len()));
        let message = HandshakeMessage {
            kind: kinds[kind as usize % kinds.len()],
            meta: meta.to_vec(),
            body: body.to_vec(),
        };
        // A side in each of its states; only the very message that belongs there brings one on.
        let (mut a, mut b) = sides_as(u64::MAX / 3);
        let mut at_proof = sides().1;
        give(&mut at_proof, &hello).expect("fine");
        a.poll_output();
        let there = give(&mut a, &message).is_ok();
        assert!(!there || (message.kind == Kind::Welcome && message.body == welcome.body));
        assert!(give(&mut b, &message).is_err() || message.kind == Kind::Hello);
        assert!(give(&mut at_proof, &message).is_err());
        for side in [&mut a, &mut b] {
            let told = side.poll_output().map_or(0, |m| m.meta.len());
            assert!(told <= 1024, "an answer that fits, whatever was said: {told}");
        }
    });
}
