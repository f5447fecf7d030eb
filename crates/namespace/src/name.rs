//! Names of directory entries: which are allowed, and the hash that orders them.

use std::fmt;

use siphasher::sip::SipHasher13;
use types::{Errno, NAME_MAX};

use crate::error::{Result, refuse};

pub(crate) const HASH_BITS: u32 = 60;
/// Smaller hashes are left for the cookies of "." and "..".
const HASH_MIN: u64 = 16;

/// The keyed hash of names: 60 bits, at least 16. The key is the file system's (it is in the superblock), so
/// that nobody outside can make names collide.
#[derive(Clone, Copy)]
pub struct NameHasher {
    key: (u64, u64),
    mask: u64,
}

impl NameHasher {
    pub fn new(key: &[u8; 16]) -> NameHasher {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *key;
        NameHasher {
            key: (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p])),
            mask: (1 << HASH_BITS) - 1,
        }
    }

    /// For tests: keeps only `bits` of each hash, so that names collide.
    pub fn colliding(key: &[u8; 16], bits: u32) -> NameHasher {
        NameHasher { mask: (1 << bits.min(HASH_BITS)) - 1, ..NameHasher::new(key) }
    }

    pub fn hash(&self, name: &[u8]) -> u64 {
        (SipHasher13::new_with_keys(self.key.0, self.key.1).hash(name) & self.mask).max(HASH_MIN)
    }
}

impl fmt::Debug for NameHasher {
    /// The key stays out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameHasher")
    }
}

/// What is wrong with `name` as the name of an entry to be found. "." and ".." are left to the operations.
pub(crate) fn check(name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return refuse(Errno::ENOENT);
    }
    if name.len() > NAME_MAX {
        return refuse(Errno::ENAMETOOLONG);
    }
    if name.iter().any(|b| *b == b'/' || *b == 0) {
        return refuse(Errno::EINVAL);
    }
    Ok(())
}

/// As [`check`], for a name to be made: "." and ".." always exist.
pub(crate) fn check_new(name: &[u8]) -> Result<()> {
    check(name)?;
    if is_dots(name) { refuse(Errno::EEXIST) } else { Ok(()) }
}

pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the order of directories on disk never changes. Method: golden values of the hash.
    #[test]
    fn hashes_have_their_golden_values() {
        let hasher = NameHasher::new(b"0123456789abcdef");
        assert_eq!(hasher.hash(b"a"), 176_446_327_147_802_784);
        assert_eq!(hasher.hash(b"Makefile"), 996_640_027_101_566_087);
        assert_eq!(NameHasher::colliding(b"0123456789abcdef", 3).hash(b"a"), HASH_MIN);
    }

    #[test]
    fn bad_names_have_their_error_numbers() {
        for (name, errno) in [
            (&b""[..], Errno::ENOENT),
            (&[b'x'; 256][..], Errno::ENAMETOOLONG),
            (b"a/b", Errno::EINVAL),
            (b"a\0b", Errno::EINVAL),
            (b".", Errno::EEXIST),
            (b"..", Errno::EEXIST),
        ] {
            assert_eq!(check_new(name), refuse(errno));
        }
        assert_eq!(check_new(&[b'x'; 255]), Ok(()));
        assert_eq!(check_new(b"..."), Ok(()));
        assert_eq!(check_new(&[0xff, 0xfe]), Ok(()));
    }
}
