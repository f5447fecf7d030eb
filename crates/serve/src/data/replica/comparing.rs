//! A second that is made anew may have had the object before: what of it is the same is not sent.
//!
//! Neither remembers which bytes it has of which write, over a restart or a power cut: digests are of the bytes as they are read, so whatever became of them is seen.

use proto::data::Object;
use sha2::{Digest as _, Sha256};
use types::SAU_BYTES;

use super::{
    change::{Change, Digest},
    object::Replica,
};
use crate::{answer::No, data::DataService};

/// Zeros behind what is there are part of it.
fn digest_of(bytes: &[u8], len: u64) -> Digest {
    const ZEROS: [u8; 1 << 12] = [0; 1 << 12];
    let mut hash = Sha256::new_with_prefix(bytes);
    let mut lacks = len.saturating_sub(bytes.len() as u64);
    while lacks > 0 {
        let some = lacks.min(ZEROS.len() as u64);
        hash.update(&ZEROS[..some as usize]);
        lacks -= some;
    }
    hash.finalize().into()
}

impl Change {
    /// The piece, to be compared before its bytes are sent.
    pub(super) fn to_compare(&self) -> Option<Change> {
        let Change::Bytes { from, to, bytes } = self else { return None };
        Some(Change::Same { from: *from, to: *to, digest: digest_of(bytes, *to - *from) })
    }
}

impl DataService {
    /// What cannot be read is not the same.
    pub(super) fn is_same(&self, object: &Object, (from, to): (u64, u64), digest: &Digest) -> bool {
        if self.is_nothing(object).unwrap_or(true) {
            return false;
        }
        let mut bytes = vec![0; usize::try_from(to - from).unwrap_or(0)];
        let read = self.shared(object, |_, there| Ok(self.ds.read(there, from, &mut bytes)?));
        read.is_ok_and(|read| digest_of(&bytes[..read], to - from) == *digest)
    }

    /// What was here before we became the second may be the same; what of it is lost goes, or nothing could be stored in its place.
    pub(super) fn keep_what_can_be_compared(&self, replica: &Replica) -> Result<bool, No> {
        let object = &replica.object;
        if self.is_nothing(object)? {
            return Ok(false);
        }
        let size = self.length_of(object)?;
        let lost = self.lost_behind(object, 0)?;
        let is_behind = |sau: &u32| (u64::from(*sau) + 1) * SAU_BYTES > size;
        // Nobody knows what the end was.
        if lost.iter().any(is_behind) {
            return Ok(false);
        }
        for sau in lost {
            let from = u64::from(sau) * SAU_BYTES;
            self.carry_out_change(object, &Change::Zero { from, to: from + SAU_BYTES })?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: zeros that are not there count as if they were. Method: a digest of bytes with them and without.
    use super::*;

    #[test]
    fn zeros_behind_the_end_are_part_of_it() {
        let mut all = vec![7; 5000];
        let short = digest_of(&all, 20_000);
        all.resize(20_000, 0);
        assert_eq!(digest_of(&all, 20_000), short);
        assert_ne!(digest_of(&all, 20_001), short);
        all[19_999] = 1;
        assert_ne!(digest_of(&all, 20_000), short);
    }
}
