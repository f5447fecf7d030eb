//! A key as the overlay and write sets hold it: short keys without an allocation.
//!
//! Invariant: ordered and compared as its bytes, so that maps can be searched by `&[u8]`.

use std::{borrow::Borrow, cmp::Ordering, ops::Deref};

const INLINE_MAX: usize = 38;

/// Fits every fixed-length key, and dentries with names up to 21 bytes, in place.
#[derive(Clone, Debug)]
pub(crate) enum Key {
    Inline(u8, [u8; INLINE_MAX]),
    Heap(Box<[u8]>),
}

impl Key {
    pub(crate) fn new(bytes: &[u8]) -> Key {
        if bytes.len() > INLINE_MAX {
            return Key::Heap(bytes.into());
        }
        let mut inline = [0; INLINE_MAX];
        inline[..bytes.len()].copy_from_slice(bytes);
        Key::Inline(bytes.len() as u8, inline)
    }

    /// Without an allocation, or not at all.
    pub(crate) fn inline(bytes: &[u8]) -> Option<Key> {
        (bytes.len() <= INLINE_MAX).then(|| Key::new(bytes))
    }

    /// Bytes on the heap, beyond the key itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Key::Inline(..) => 0,
            Key::Heap(bytes) => bytes.len(),
        }
    }
}

impl Deref for Key {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Key::Inline(len, bytes) => &bytes[..usize::from(*len).min(INLINE_MAX)],
            Key::Heap(bytes) => bytes,
        }
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        **self == **other
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        match (self, other) {
            // Behind the end there are zeros, so that the bytes decide as they do in the keys, and then the length.
            (Key::Inline(len, bytes), Key::Inline(other_len, other_bytes)) => {
                compare(bytes, other_bytes).then(len.cmp(other_len))
            }
            (Key::Inline(..), Key::Heap(_)) | (Key::Heap(_), Key::Inline(..) | Key::Heap(_)) => {
                (**self).cmp(&**other)
            }
        }
    }
}

/// Eight bytes at once: most keys differ in their first sixteen.
fn compare(a: &[u8; INLINE_MAX], b: &[u8; INLINE_MAX]) -> Ordering {
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    for (a, b) in a_words.iter().zip(b_words) {
        if a != b {
            return u64::from_be_bytes(*a).cmp(&u64::from_be_bytes(*b));
        }
    }
    a_rest.cmp(b_rest)
}

/// The UGSD that a key belongs to: its first three bytes, as if it went on with zeros. Never falls as keys rise.
pub(crate) fn ugsd_of(key: &[u8]) -> u32 {
    let byte = |i: usize| u32::from(key.get(i).copied().unwrap_or(0));
    byte(0) << 16 | byte(1) << 8 | byte(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_their_bytes_at_every_length() {
        // Goal: inline and heap keys agree with byte strings. Method: all pairs around the boundary.
        let mut texts: Vec<Vec<u8>> =
            (0..80).map(|n| vec![b'k'; n]).chain([vec![0], vec![0, 0], vec![255; 40]]).collect();
        for at in [0, 7, 8, 15, 16, 31, 32, 37, 38] {
            for (len, byte) in [(at + 1, 0), (at + 1, 255), (39, 0), (39, 1), (38, 255)] {
                let mut text = vec![b'k'; len];
                if let Some(there) = text.get_mut(at) {
                    *there = byte;
                }
                texts.push(text);
            }
        }
        for a in &texts {
            assert_eq!(&*Key::new(a), a.as_slice());
            for b in &texts {
                assert_eq!(Key::new(a).cmp(&Key::new(b)), a.cmp(b));
            }
        }
        assert_eq!(size_of::<Key>(), 40);
    }

    #[test]
    fn the_ugsd_never_falls_as_keys_rise() {
        let mut keys =
            [vec![], vec![0], vec![0, 0, 1], vec![0, 0, 1, 9], vec![0, 1], vec![1], vec![255, 255, 255, 1]];
        keys.sort();
        let ugsds: Vec<u32> = keys.iter().map(|k| ugsd_of(k)).collect();
        assert!(ugsds.is_sorted(), "{ugsds:?}");
    }
}
