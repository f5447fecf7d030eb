//! Keys of objects for ways, and names for keys.
//!
//! A file is the object of its path, a directory the object of its path with "/" at the end, as the consoles of the stores make
//! them. Not every name can be part of a key, and not every key is made of names; those are left out on their side.

use link::Way;
use types::Errno;

/// Of every store that speaks S3, with the prefix.
const KEY_BYTES_MAX: usize = 1024;
const NAME_BYTES_MAX: usize = 255;

/// Says which root it is; in the root itself, and no file.
pub(crate) const IDENTITY: &str = ".onfs-root";

/// Keys below a prefix, which is "" or ends in "/". Keys here are without it.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix_bytes: usize,
}

impl Keys {
    pub fn below(prefix: &str) -> Keys {
        Keys { prefix_bytes: prefix.len() }
    }

    /// Of a file. `EINVAL`: no key has such a name in it. `ENAMETOOLONG`. The root is no file: `EINVAL`.
    pub fn file(&self, way: &Way) -> Result<String, Errno> {
        if way.is_empty() || way == [IDENTITY.as_bytes()] {
            return Err(Errno::EINVAL);
        }
        self.joined(way)
    }

    /// Of a directory: the marker, which is the prefix of all below it, too. The root's is "".
    pub fn dir(&self, way: &Way) -> Result<String, Errno> {
        if way.is_empty() {
            return Ok(String::new());
        }
        let mut key = self.file(way)?;
        key.push('/');
        self.short_enough(&key)?;
        Ok(key)
    }

    fn joined(&self, way: &Way) -> Result<String, Errno> {
        let mut key = String::new();
        for name in way {
            let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
            if name.len() > NAME_BYTES_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            if !is_name(name) {
                return Err(Errno::EINVAL);
            }
            if !key.is_empty() {
                key.push('/');
            }
            key.push_str(name);
        }
        self.short_enough(&key)?;
        Ok(key)
    }

    fn short_enough(&self, key: &str) -> Result<(), Errno> {
        if self.prefix_bytes + key.len() > KEY_BYTES_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
    }
}

/// May it be the name of a file, and a part of a key? Spaces at its ends are cut on the way to the store, and control characters
/// cannot be in the XML of a listing.
pub(crate) fn is_name(name: &str) -> bool {
    let odd = |c: char| c == '/' || c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != "."
        && name != ".."
        && name.trim() == name
        && !name.contains(odd)
}

#[cfg(test)]
mod tests {
    //! Goal: a key is made of names, and only of those that come back as they were. Method: examples, and any text.
    use super::*;
    use proptest::prelude::*;

    fn way(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn ways_are_keys() {
        let keys = Keys::below("p/");
        assert_eq!(keys.file(&way(&["a", "b c", ".é"])), Ok("a/b c/.é".to_owned()));
        assert_eq!(keys.dir(&way(&["a", "b"])), Ok("a/b/".to_owned()));
        assert_eq!((keys.dir(&[]), keys.file(&[])), (Ok(String::new()), Err(Errno::EINVAL)));
        for bad in ["", ".", "..", "a/b", "a\0", "a\n", " a", "a ", "\u{a0}a", "\u{ffff}"] {
            assert_eq!(keys.file(&way(&["x", bad])), Err(Errno::EINVAL), "{bad:?}");
        }
        assert_eq!(keys.file(&[b"\xff".to_vec()]), Err(Errno::EINVAL));
        assert_eq!(keys.file(&way(&[IDENTITY])), Err(Errno::EINVAL));
        assert!(keys.file(&way(&["d", IDENTITY])).is_ok(), "only the root has one");
    }

    #[test]
    fn keys_have_a_longest_length() {
        let long = "n".repeat(255);
        let keys = Keys::below("p/");
        assert_eq!(keys.file(&way(&["n".repeat(256).as_str()])), Err(Errno::ENAMETOOLONG));
        let four = [&*long, &*long, &*long, &long[..254]];
        assert_eq!(keys.file(&way(&four)).map(|key| key.len()), Ok(1022));
        assert_eq!(keys.dir(&way(&four)), Err(Errno::ENAMETOOLONG));
        assert_eq!(Keys::below("pp/").file(&way(&four)), Err(Errno::ENAMETOOLONG));
    }

    proptest! {
        #[test]
        fn names_that_are_taken_have_no_way_out(name in ".{0,20}") {
            if let Ok(key) = Keys::below("").file(&way(&[&name])) {
                prop_assert_eq!(&key, &name);
                prop_assert!(is_name(&key) && !key.contains('/'));
            }
        }
    }
}
