//! Goal: a stored map reads back as it was, and damaged or foreign bytes give an error, never a panic and never
//! another map. Method: golden bytes; random maps; random damage, with and without a repaired checksum.
#![allow(clippy::unwrap_used, reason = "a test")]

use layout::*;
use proptest::prelude::*;
use types::{SAU_BYTES, TierId, TierSet};

fn any_sau() -> impl Strategy<Value = Sau> {
    let valid = (1u8..8).prop_map(|b| TierSet::from_bits(b).unwrap());
    let seal =
        prop::option::of((any::<u32>(), 0..=SAU_BYTES as u32).prop_map(|(crc, len)| Seal { crc, len }));
    prop_oneof![
        1 => Just(Sau::LOST),
        2 => Just(Sau::HOLE),
        4 => (valid, seal).prop_map(|(valid, seal)| Sau { valid, lost: false, seal }),
    ]
}

fn any_record() -> impl Strategy<Value = ObjectRecord> {
    let runs = prop::collection::vec((1u32..40, any_sau()), 0..12);
    (runs, any::<u32>(), prop::option::of(any::<u64>())).prop_map(
        |(runs, memory_generation, pending_truncate)| {
            let mut map = SauMap::new();
            let mut n = 0;
            for (count, state) in runs {
                // Some end in a later chunk.
                for _ in 0..if state.is_hole() { count * 20 } else { count } {
                    assert!(map.set(SauIndex::new(n).unwrap(), state));
                    n += 1;
                }
            }
            ObjectRecord {
                map,
                memory_generation,
                pending_truncate,
                mapped: memory_generation % 2 == 1,
                synced_size: u64::from(memory_generation / 2),
                linked_len: u64::from(memory_generation % 3),
            }
        },
    )
}

fn with_checksum(mut body: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&body);
    body.extend(crc.to_le_bytes());
    body
}

#[test]
fn golden_bytes() {
    let mut map = SauMap::new();
    let at = |n| SauIndex::new(n).unwrap();
    map.note_replaced(at(0), TierId::Memory);
    map.note_replaced(at(1), TierId::Memory);
    assert!(map.set(at(3), Sau::LOST));
    map.note_replaced(at(4), TierId::Ssd);
    map.note_copied(at(4), TierId::Nearline, Some(Seal { crc: 0x1122_3344, len: 5 })).unwrap();
    map.note_replaced(at(2 * 256 + 1), TierId::Ssd);
    let record =
        ObjectRecord { map, memory_generation: 7, pending_truncate: Some(9), ..ObjectRecord::default() };
    let golden = with_checksum(vec![
        2, 7, 0, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, // version, generation, flags, truncation
        1, 0, 0, 0, // one chunk follows
        4, 0, 0, 0, // runs
        2, 0, 0, 0, 0b00001, // two in memory
        1, 0, 0, 0, 0, // a hole
        1, 0, 0, 0, 0b01000, // a lost one
        1, 0, 0, 0, 0b10110, 0x44, 0x33, 0x22, 0x11, 5, 0, 0, 0, // sealed, in both others
    ]);
    assert_eq!(record.encode(), golden);
    assert_eq!(golden[golden.len() - 4..], [64, 64, 79, 242]);
    let chunk = with_checksum(vec![
        2, 2, 0, 0, 0, // version, number
        2, 0, 0, 0, // runs
        1, 0, 0, 0, 0, // a hole
        1, 0, 0, 0, 0b00010, // on the SSD
    ]);
    assert_eq!((record.encode_chunk(1), record.encode_chunk(2)), (None, Some(chunk.clone())));
    let mut partial = ObjectRecord::decode(&golden).unwrap();
    assert_eq!(partial.missing(), 1);
    partial.add(2, &chunk).unwrap();
    assert_eq!(partial.finish(), Ok(record));
    let empty = ObjectRecord::default().encode();
    assert_eq!(empty, with_checksum(vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    let linked = ObjectRecord { synced_size: 3, linked_len: 5, ..ObjectRecord::default() };
    let golden = [&[2, 0, 0, 0, 0, 12, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0][..], &[0; 8]].concat();
    assert_eq!(linked.encode(), with_checksum(golden));
}

#[test]
fn a_chunk_that_is_missing_foreign_or_too_many_is_refused() {
    let mut map = SauMap::new();
    for n in [0, 300, 600] {
        map.note_replaced(SauIndex::new(n).unwrap(), TierId::Ssd);
    }
    let record = ObjectRecord { map, ..ObjectRecord::default() };
    let (head, one, two) =
        (record.encode(), record.encode_chunk(1).unwrap(), record.encode_chunk(2).unwrap());
    let begin = || ObjectRecord::decode(&head).unwrap();
    assert_eq!(begin().finish(), Err(DecodeError::Parts));
    assert_eq!(begin().add(2, &one), Err(DecodeError::Field), "under another's key");
    let mut partial = begin();
    partial.add(2, &two).unwrap();
    assert_eq!(partial.clone().finish(), Err(DecodeError::Parts));
    assert_eq!(partial.add(1, &one), Err(DecodeError::Field), "out of order");
    let mut partial = begin();
    partial.add(1, &one).unwrap();
    partial.add(2, &two).unwrap();
    assert_eq!(partial.clone().finish(), Ok(record));
    assert_eq!(
        partial.add(3, &with_checksum([&[2, 3], &one[2..one.len() - 4]].concat())),
        Err(DecodeError::Parts)
    );
    let empty = with_checksum(vec![2, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(begin().add(1, &empty), Err(DecodeError::Field), "nothing in it");
    let beyond = with_checksum(vec![2, 255, 255, 255, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(begin().add(0xff_ffff, &beyond), Err(DecodeError::TooLarge));
}

#[test]
fn what_breaks_a_rule_is_refused() {
    let head = |runs: u8| vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 0, runs, 0, 0, 0];
    let with = |runs: u8, body: &[u8]| ObjectRecord::decode(&with_checksum([&head(runs), body].concat()));
    assert_eq!(ObjectRecord::decode(&[]), Err(DecodeError::Short));
    assert_eq!(ObjectRecord::decode(&[2, 2]), Err(DecodeError::Short));
    assert_eq!(ObjectRecord::decode(&[1; 40]), Err(DecodeError::Version(1)));
    assert_eq!(with(1, &[]), Err(DecodeError::Short));
    assert_eq!(with(0, &[0]), Err(DecodeError::Trailing));
    assert_eq!(with(1, &[0, 0, 0, 0, 1]), Err(DecodeError::Field), "empty run");
    assert_eq!(with(1, &[1, 0, 0, 0, 0]), Err(DecodeError::Field), "ends in a hole");
    assert_eq!(with(2, &[1, 0, 0, 0, 1, 1, 0, 0, 0, 1]), Err(DecodeError::Field), "equal neighbours");
    assert_eq!(with(1, &[1, 0, 0, 0, 0b1001]), Err(DecodeError::Field), "lost and valid");
    assert_eq!(with(1, &[1, 0, 0, 0, 0x20]), Err(DecodeError::Field), "unknown bit");
    assert_eq!(with(1, &[1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0]), Err(DecodeError::Field), "seal of a hole");
    assert_eq!(with(1, &[255, 255, 255, 255, 1]), Err(DecodeError::TooLarge));
    assert_eq!(with(1, &[1, 1, 0, 0, 1]), Err(DecodeError::TooLarge), "more than a chunk");
    assert_eq!(with(1, &[1, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0, 9]), Err(DecodeError::Field), "long seal");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_record_reads_back(record in any_record()) {
        let bytes = record.encode();
        let mut partial = ObjectRecord::decode(&bytes).unwrap();
        for chunk in record.map.changed() {
            partial.add(chunk, &record.encode_chunk(chunk).unwrap()).unwrap();
        }
        prop_assert_eq!(partial.finish(), Ok(record));
    }

    #[test]
    fn damage_is_found(record in any_record(), at in any::<prop::sample::Index>(), mask in 1u8..) {
        let mut bytes = record.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= mask;
        prop_assert!(ObjectRecord::decode(&bytes).is_err());
        prop_assert!(ObjectRecord::decode(&record.encode()[..at]).is_err());
    }

    /// What decodes has this encoding and no other, even where someone repaired the checksum.
    #[test]
    fn forged_bytes_are_canonical_or_refused(record in any_record(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut body = record.encode();
        body.truncate(body.len() - 4);
        let at = at.index(body.len());
        body[at] = byte;
        let forged = with_checksum(body);
        if let Ok(read) = ObjectRecord::decode(&forged).and_then(Partial::finish) {
            read.map.check().unwrap();
            prop_assert_eq!(read.encode(), forged);
        }
    }

    #[test]
    fn any_bytes_at_all(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut forged = vec![2];
        forged.extend(&bytes);
        let _ = ObjectRecord::decode(&bytes);
        if let Ok(read) = ObjectRecord::decode(&with_checksum(forged.clone())).and_then(Partial::finish) {
            prop_assert_eq!(read.encode(), with_checksum(forged));
        }
    }
}
