//! Sums of bodies: CRC-32C, by whatever instructions the processor has.

use crc_fast::{CrcAlgorithm, Digest};

pub(crate) fn of(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

/// The sum of what `sum` is of and `bytes` behind it.
pub(crate) fn append(sum: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    //! Goal: the sums are CRC-32C, in one piece or in several. Method: the published vectors of RFC 3720 (B.4), and another implementation.
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn published_vectors() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        for (bytes, sum) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&rising, 0x46dd_794e),
            (&falling, 0x113f_db5c),
        ] {
            assert_eq!(of(bytes), sum);
        }
        assert_eq!(of(&[]), 0);
    }

    proptest! {
        #[test]
        fn pieces_are_as_good_as_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..3000), at in any::<prop::sample::Index>()) {
            let (head, tail) = bytes.split_at(at.index(bytes.len() + 1));
            prop_assert_eq!(append(of(head), tail), of(&bytes));
            prop_assert_eq!(of(&bytes), crc32c::crc32c(&bytes));
        }
    }
}
