//! Goal: bytes on the wire stay as they are, come out of any pieces the same, and damage is told from all else with its
//! place. Method: golden bytes; every split of a stream; every single changed byte; fuzzing.
#![allow(clippy::expect_used, clippy::wildcard_enum_match_arm)]

use fuzzing::fuzz;
use proptest::prelude::*;
use wire::{
    Decoder, Encoder, Piece,
    frame::{
        Body, Field, FrameError, FrameFault, HEADER_LEN, Header, Kind, Limits, Place, SumKey, Verdict, encode,
    },
    schema::{Fault, Retry, WrongOwner},
};

type Frame = (Header, Vec<u8>, Vec<u8>);

const LIMITS: Limits = Limits { meta: 300, body: 5000 };
const PLACE: Place = Place::first(1, SumKey::OPEN);

fn request() -> Header {
    Header {
        method: 0x0102,
        answer_bytes_max: 0x1112_1314,
        left_ms: 0x2122_2324,
        id: 0x3132_3334_3536_3738,
        epoch: 0x4142_4344_4546_4748,
        trace: 0x5152_5354_5556_5758,
        job: 0x6162_6364_6566_6768,
        ..Header::of(Kind::Request)
    }
}

fn encode_all(frames: &[Frame]) -> Vec<u8> {
    let mut encoder = Encoder::new(PLACE);
    let mut bytes = Vec::new();
    for (header, meta, body) in frames {
        bytes.extend(encoder.header(header, meta, &Body::new(body.clone())));
        bytes.extend(meta);
        bytes.extend(body);
    }
    bytes
}

/// Frames out of pieces; those before an error, and the error.
fn decode_all<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<FrameError>, bool) {
    let mut decoder = Decoder::new(PLACE, LIMITS);
    let (mut frames, mut now): (Vec<Frame>, Option<Frame>) = (Vec::new(), None);
    for mut piece in pieces {
        loop {
            let (used, what) = match decoder.take(piece) {
                Ok(taken) => taken,
                Err(error) => {
                    assert_eq!(decoder.take(&[]), Err(error), "the error stays");
                    return (frames, Some(error), false);
                }
            };
            match what {
                Piece::Begin { header, meta, body_len } => {
                    assert_eq!(decoder.body_left(), body_len as usize);
                    now = Some((header, meta, Vec::new()));
                }
                Piece::Body(len) => {
                    assert_eq!(used, len);
                    now.as_mut().expect("a frame").2.extend(&piece[..len]);
                }
                Piece::End => frames.push(now.take().expect("a frame")),
                Piece::Nothing => {
                    assert_eq!(used, piece.len(), "all of it is used");
                    break;
                }
            }
            piece = &piece[used..];
        }
    }
    (frames, None, decoder.is_between_frames())
}

/// The sums were worked out by another program, too.
#[test]
fn golden_frame() {
    let bytes = encode_all(&[(request(), b"meta".to_vec(), b"body!".to_vec())]);
    let golden = [
        "4f4e4657 0100 10 00 0201 0000 04000000 05000000 14131211 24232221 96bba8d1",
        "3837363534333231 4847464544434241 5857565554535251 6867666564636261",
        "28f7284aa2403c97 87b3a1e83a25fbba",
        "6d657461 626f647921",
    ];
    let golden: String = golden.concat().replace(' ', "");
    let shown: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(shown, golden);
}

#[test]
fn golden_messages() {
    use prost::Message;
    let fault = Fault {
        errno: 11,
        retry: Retry::Elsewhere.into(),
        after_ms: 300,
        detail: "moved".into(),
        wrong_owner: Some(WrongOwner { epoch: 7 }),
        reason: 3,
    };
    assert_eq!(fault.encode_to_vec(), b"\x08\x0b\x10\x03\x18\xac\x02\x22\x05moved\x2a\x02\x08\x07\x30\x03");
    assert_eq!(Fault::decode(&fault.encode_to_vec()[..]), Ok(fault));
}

fn headers() -> impl Strategy<Value = Header> {
    let kinds = prop_oneof![Just(Kind::Request), Just(Kind::Answer), Just(Kind::Cancel), Just(Kind::Hello)];
    let verdicts = prop_oneof![Just(Verdict::Done), Just(Verdict::Fault), Just(Verdict::Refused)];
    (kinds, verdicts, any::<(u16, u32, u32, u64, u64, u64, u64)>()).prop_map(|(kind, verdict, n)| {
        let verdict = if kind == Kind::Answer { verdict } else { Verdict::Done };
        let (method, answer_bytes_max, left_ms, id, epoch, trace, job) = n;
        Header { kind, verdict, method, answer_bytes_max, left_ms, id, epoch, trace, job }
    })
}

fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
    proptest::collection::vec((headers(), bytes(40), bytes(200)), 1..5)
}

proptest! {
    /// Whatever the pieces, the same frames come out.
    #[test]
    fn pieces_do_not_matter(frames in frames(), cuts in proptest::collection::vec(0_usize..2000, 0..20)) {
        let bytes = encode_all(&frames);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]);
        prop_assert_eq!(decode_all(pieces), (frames, None, true));
    }
}

#[test]
fn every_single_split_gives_the_same() {
    let frames = vec![
        (request(), b"the meta".to_vec(), vec![7; 90]),
        (Header::of(Kind::Ping), Vec::new(), Vec::new()),
        (Header { verdict: Verdict::Fault, ..Header::of(Kind::Answer) }, Vec::new(), b"body".to_vec()),
    ];
    let bytes = encode_all(&frames);
    for cut in 0..=bytes.len() {
        let (front, back) = bytes.split_at(cut);
        assert_eq!(decode_all([front, back]), (frames.clone(), None, true), "cut at {cut}");
    }
    assert_eq!(decode_all(bytes.chunks(1)), (frames, None, true), "byte by byte");
}

#[test]
fn every_changed_byte_is_named_with_its_place() {
    let before = (Header::of(Kind::Ping), Vec::new(), Vec::new());
    let frames = vec![before.clone(), (request(), b"meta".to_vec(), b"body".to_vec())];
    let good = encode_all(&frames);
    for at in HEADER_LEN..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            let (frames, error, _) = decode_all([&bad[..]]);
            assert_eq!(
                frames,
                std::slice::from_ref(&before),
                "byte {at}: nothing of the damaged frame is taken"
            );
            let error = error.expect("an error");
            let field = match at - HEADER_LEN {
                0..4 => Field::Magic,
                4..6 => Field::Version,
                6..80 => Field::HeaderSum,
                80..84 => Field::MetaSum,
                _ => Field::BodySum,
            };
            assert_eq!((error.field, error.number), (field, 1), "byte {at}");
            assert_eq!(error.at, HEADER_LEN as u64 + field.at(), "byte {at}");
        }
    }
}

#[test]
fn lengths_above_the_limits_are_refused_before_their_bytes_come() {
    for (meta, body, field) in [(301, 0, Field::MetaLen), (0, 5001, Field::BodyLen)] {
        let header = encode(&PLACE, &request(), &vec![0; meta], &Body::new(vec![0; body]));
        let (_, error, _) = decode_all([&header[..]]);
        let error = error.expect("an error");
        let limit = if meta > 0 { 300 } else { 5000 };
        assert_eq!((error.field, error.fault), (field, FrameFault::TooLong { found: limit + 1, limit }));
    }
}

#[test]
fn errors_read_well() {
    let header = encode(&PLACE, &request(), &[0; 301], &Body::default());
    let (_, error, _) = decode_all([&header[..]]);
    let text = error.expect("an error").to_string();
    assert_eq!(text, "frame 0: meta length (byte 12 of the stream): 301 is more than the 300 allowed");
    let (_, error, _) = decode_all([&[b'G'; 80][..]]);
    let text = error.expect("an error").to_string();
    assert_eq!(text, "frame 0: magic (byte 0 of the stream): 0x47474747 is not what a frame has there");
}

#[test]
fn a_frame_out_of_its_place_is_refused() {
    let bytes = encode_all(&[(request(), Vec::new(), Vec::new()), (request(), Vec::new(), Vec::new())]);
    let second = &bytes[HEADER_LEN..];
    assert_eq!(decode_all([second]).1.map(|e| e.field), Some(Field::HeaderSum), "one left out");
    let twice = [&bytes[..HEADER_LEN], &bytes[..HEADER_LEN]];
    assert_eq!(decode_all(twice).1.map(|e| (e.field, e.number)), Some((Field::HeaderSum, 1)), "repeated");
}

/// Makes the sums of all frames right, as far as frames can be told.
fn mend(bytes: &mut [u8]) {
    let mut place = PLACE;
    let mut at = 0;
    while bytes.len() >= at + HEADER_LEN {
        let word = |from: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at + from..at + from + 4]);
            u32::from_le_bytes(word) as usize
        };
        let (meta, body) = (word(12), word(16));
        let end = (at + HEADER_LEN).saturating_add(meta).saturating_add(body);
        let rest = &bytes[at + HEADER_LEN..];
        // Of a frame that is cut off only the header can be mended.
        let (meta, body) = match end <= bytes.len() {
            true => (rest[..meta].to_vec(), rest[meta..meta + body].to_vec()),
            false => (Vec::new(), Vec::new()),
        };
        place = wire::frame::mended(&place, &mut bytes[at..at + HEADER_LEN], &meta, &body);
        if end > bytes.len() {
            return;
        }
        at = end;
    }
}

#[test]
fn fuzz_wire_frame() {
    let fault = Fault { errno: 5, detail: "x".repeat(50), ..Fault::default() };
    let good = [
        encode_all(&[(request(), b"meta".to_vec(), b"body".to_vec())]),
        encode_all(&[
            (Header::of(Kind::Ping), Vec::new(), Vec::new()),
            (request(), vec![1; 200], vec![2; 700]),
            (
                Header { verdict: Verdict::Fault, ..Header::of(Kind::Answer) },
                prost::Message::encode_to_vec(&fault),
                Vec::new(),
            ),
        ]),
    ];
    fuzz(
        "frame",
        &good,
        |bytes| mend(bytes),
        |bytes| {
            let (frames, error, _) = decode_all([bytes]);
            let again = encode_all(&frames);
            assert_eq!(again, bytes[..again.len()], "one encoding");
            let in_pieces = decode_all(bytes.chunks(7));
            assert_eq!((in_pieces.0, in_pieces.1), (frames, error), "pieces do not matter");
        },
    );
}

#[test]
fn fuzz_wire_meta() {
    use prost::Message;
    use wire::schema::{Hello, Refusal, Welcome};
    let good = [
        Fault {
            errno: 5,
            detail: "why".into(),
            wrong_owner: Some(WrongOwner { epoch: 9 }),
            ..Fault::default()
        }
        .encode_to_vec(),
        Hello { cluster: vec![1; 16], nonce: vec![2; 32], build: "1.2.3".into(), ..Hello::default() }
            .encode_to_vec(),
        Refusal { reason: 3, text: "no".into() }.encode_to_vec(),
    ];
    // Protobuf has several encodings of one message, so only what comes out must be stable.
    fn check<M: Message + Default + PartialEq>(bytes: &[u8]) {
        if let Ok(message) = M::decode(bytes) {
            assert!(M::decode(&message.encode_to_vec()[..]) == Ok(message));
        }
    }
    fuzz("wire-meta", &good, fuzzing::as_it_is, |bytes| {
        check::<Fault>(bytes);
        check::<Hello>(bytes);
        check::<Welcome>(bytes);
        check::<Refusal>(bytes);
    });
}
