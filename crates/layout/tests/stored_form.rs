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
                for _ in 0..count {
                    assert!(map.set(SauIndex::new(n).unwrap(), state));
                    n += 1;
                }
            }
            ObjectRecord { map, memory_generation, pending_truncate, mapped: memory_generation % 2 == 1 }
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
    let record = ObjectRecord { map, memory_generation: 7, pending_truncate: Some(9), mapped: false };
    let golden = with_checksum(vec![
        1, 7, 0, 0, 0, 1, 9, 0, 0, 0, 0, 0, 0, 0, // version, generation, flags, truncation
        4, 0, 0, 0, // runs
        2, 0, 0, 0, 0b00001, // two in memory
        1, 0, 0, 0, 0, // a hole
        1, 0, 0, 0, 0b01000, // a lost one
        1, 0, 0, 0, 0b10110, 0x44, 0x33, 0x22, 0x11, 5, 0, 0, 0, // sealed, in both others
    ]);
    assert_eq!(record.encode(), golden);
    assert_eq!(golden[golden.len() - 4..], [163, 137, 82, 112]);
    assert_eq!(ObjectRecord::decode(&golden), Ok(record));
    let empty = ObjectRecord::default().encode();
    assert_eq!(empty, with_checksum(vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
}

#[test]
fn what_breaks_a_rule_is_refused() {
    let head = |runs: u8| vec![1, 0, 0, 0, 0, 0, runs, 0, 0, 0];
    let with = |runs: u8, body: &[u8]| ObjectRecord::decode(&with_checksum([&head(runs), body].concat()));
    assert_eq!(ObjectRecord::decode(&[]), Err(DecodeError::Short));
    assert_eq!(ObjectRecord::decode(&[1, 2]), Err(DecodeError::Short));
    assert_eq!(ObjectRecord::decode(&[2; 40]), Err(DecodeError::Version(2)));
    assert_eq!(with(1, &[]), Err(DecodeError::Short));
    assert_eq!(with(0, &[0]), Err(DecodeError::Trailing));
    assert_eq!(with(1, &[0, 0, 0, 0, 1]), Err(DecodeError::Field), "empty run");
    assert_eq!(with(1, &[1, 0, 0, 0, 0]), Err(DecodeError::Field), "ends in a hole");
    assert_eq!(with(2, &[1, 0, 0, 0, 1, 1, 0, 0, 0, 1]), Err(DecodeError::Field), "equal neighbours");
    assert_eq!(with(1, &[1, 0, 0, 0, 0b1001]), Err(DecodeError::Field), "lost and valid");
    assert_eq!(with(1, &[1, 0, 0, 0, 0x20]), Err(DecodeError::Field), "unknown bit");
    assert_eq!(with(1, &[1, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0]), Err(DecodeError::Field), "seal of a hole");
    assert_eq!(with(1, &[255, 255, 255, 255, 1]), Err(DecodeError::TooLarge));
    assert_eq!(with(1, &[1, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0, 9]), Err(DecodeError::Field), "long seal");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_record_reads_back(record in any_record()) {
        let bytes = record.encode();
        prop_assert_eq!(ObjectRecord::decode(&bytes), Ok(record));
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
        if let Ok(read) = ObjectRecord::decode(&forged) {
            read.map.check().unwrap();
            prop_assert_eq!(read.encode(), forged);
        }
    }

    #[test]
    fn any_bytes_at_all(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut forged = vec![1];
        forged.extend(&bytes);
        let _ = ObjectRecord::decode(&bytes);
        if let Ok(read) = ObjectRecord::decode(&with_checksum(forged.clone())) {
            prop_assert_eq!(read.encode(), with_checksum(forged));
        }
    }
}
