//! Both sides changed since they last agreed: under which name ours is kept, and what is remembered of it.

use types::{Ino, NAME_MAX, Timestamp};

const MARK: &str = ".onfs-conflict-";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Why {
    /// The bytes, on both sides. Theirs keeps the name.
    BothChanged = 1,
    /// They gave the name to something else while ours was not there yet. Theirs keeps the name.
    NameTaken = 2,
    /// Deleted or replaced here, changed there. Theirs is imported again.
    DeletedHere = 3,
    /// Deleted or changed there, changed here in part: bytes that were never read here are in no file any more.
    BytesLost = 4,
}

impl Why {
    pub const fn from_u8(n: u8) -> Option<Why> {
        Some(match n {
            1 => Why::BothChanged,
            2 => Why::NameTaken,
            3 => Why::DeletedHere,
            4 => Why::BytesLost,
            _ => return None,
        })
    }
}

/// A line of `onfs conflicts`, kept until somebody takes it off.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    pub why: Why,
    /// Ours.
    pub ino: Ino,
    pub when: Timestamp,
    /// The directory of `name`.
    pub dir: Ino,
    /// Theirs has it.
    pub name: Vec<u8>,
    /// Where ours is now, if it was set aside.
    pub kept: Option<Vec<u8>>,
}

/// `NAME.onfs-conflict-N` with the smallest N from 1 that is not taken. A long name is cut, between characters if it is UTF-8.
pub fn beside(name: &[u8], taken: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut n = 1u64;
    loop {
        let mark = format!("{MARK}{n}");
        let kept = [cut(name, NAME_MAX - mark.len()), mark.as_bytes()].concat();
        if !taken(&kept) {
            return kept;
        }
        n += 1;
    }
}

fn cut(name: &[u8], most: usize) -> &[u8] {
    match std::str::from_utf8(name) {
        Ok(text) => {
            let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            &name[..end.unwrap_or(0)]
        }
        Err(_) => &name[..name.len().min(most)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_beside_have_their_form() {
        assert_eq!(beside(b"a.dat", |_| false), b"a.dat.onfs-conflict-1");
        assert_eq!(beside(b"a", |n| n.ends_with(b"-1") || n.ends_with(b"-2")), b"a.onfs-conflict-3");
        assert_eq!(beside(b"a.onfs-conflict-1", |_| false), b"a.onfs-conflict-1.onfs-conflict-1");
        let long = "é".repeat(127);
        let kept = beside(long.as_bytes(), |_| false);
        assert_eq!(kept, format!("{}.onfs-conflict-1", "é".repeat(119)).into_bytes());
        assert_eq!(kept.len(), 254);
        assert_eq!(beside(&[0xff; 255], |_| false).len(), 255);
    }

    proptest! {
        #[test]
        fn names_beside_are_new_legal_and_stay_utf8(
            names in prop::collection::vec(prop_oneof!["[aé☃]{1,120}".prop_map(String::into_bytes), prop::collection::vec(1u8..=255, 1..255)], 1..20)
        ) {
            let mut taken = BTreeSet::new();
            for name in names {
                let name = &name[..name.len().min(NAME_MAX)];
                for _ in 0..12 {
                    let kept = beside(name, |n| taken.contains(n));
                    prop_assert!(kept.len() <= NAME_MAX);
                    prop_assert!(std::str::from_utf8(name).is_err() || std::str::from_utf8(&kept).is_ok());
                    prop_assert!(taken.insert(kept));
                }
            }
        }
    }
}
