//! Goal: I-STRIPE-1 and I-STRIPE-2. Method: random units, counts, ranges and sizes against the definition, byte by byte for small ones.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use cluster::striping::Striped;
use proptest::prelude::*;

fn striped(unit: u64, count: usize) -> Striped {
    Striped::new(unit, count).unwrap()
}

#[test]
fn nothing_is_dealt_out_to_nobody() {
    assert_eq!((Striped::new(0, 1), Striped::new(1, 0)), (None, None));
    assert_eq!(striped(4, 2).parts(u64::MAX - 1, 9).map(|part| part.len).sum::<u64>(), 1);
}

proptest! {
    #[test]
    fn each_byte_has_one_place(unit in 1u64..9, count in 1usize..7, bytes in 1u64..200) {
        let striped = striped(unit, count);
        let mut places = HashSet::new();
        for offset in 0..bytes {
            let (stripe, at) = striped.locate(offset);
            prop_assert_eq!(stripe as u64, offset / unit % count as u64);
            prop_assert_eq!(striped.file_offset(stripe, at), offset);
            prop_assert!(places.insert((stripe, at)));
        }
    }

    #[test]
    fn parts_are_the_range(unit in 1u64..9, count in 1usize..7, offset in 0u64..100, len in 0u64..100) {
        let striped = striped(unit, count);
        let mut at = offset;
        for part in striped.parts(offset, len) {
            prop_assert_eq!(part.offset, at);
            prop_assert!(part.len > 0);
            for n in 0..part.len {
                prop_assert_eq!(striped.locate(at + n), (part.stripe, part.object_offset + n));
            }
            at += part.len;
        }
        prop_assert_eq!(at, offset + len);
    }

    #[test]
    fn sizes_say_each_other(unit in 1u64..9, count in 1usize..7, size in 0u64..300) {
        let striped = striped(unit, count);
        let mut lengths = vec![0; count];
        for offset in 0..size {
            let (stripe, at) = striped.locate(offset);
            lengths[stripe] = lengths[stripe].max(at + 1);
        }
        let said: Vec<u64> = (0..count).map(|n| striped.size_of_stripe(n, size)).collect();
        prop_assert_eq!(&said, &lengths);
        let end = (0..count).map(|n| striped.file_end(n, said[n])).max();
        prop_assert_eq!(end, Some(size));
    }
}
