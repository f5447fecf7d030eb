//! The number of inodes, as the store keeps it: a hint that a crash may leave behind by a few thousand.

use namespace::{
    inode, key,
    txn::{Bytes, Reader, Txn},
};
use types::Ino;

const COUNT: &[u8] = b"inodes";
/// More is damage; what is added to it must not overflow.
const COUNT_MAX: i64 = i64::MAX / 2;

/// The saved number of inodes; the root is there without one.
pub(crate) fn load<R: Reader + ?Sized>(reader: &R) -> namespace::Result<i64> {
    let saved = reader.get(&key::global(COUNT))?;
    let count = saved.and_then(|bytes| bytes[..].try_into().ok()).map_or(1, i64::from_le_bytes);
    inode::load_dir(reader, Ino::ROOT)?;
    Ok(if (1..=COUNT_MAX).contains(&count) { count } else { 1 })
}

pub(crate) fn save<T: Txn + ?Sized>(txn: &mut T, count: i64) {
    txn.put(&key::global(COUNT), Bytes::copy_from_slice(&count.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fuzzing::{as_it_is, fuzz};
    use namespace::txn::{KvError, Visit};

    use super::*;

    struct Records(BTreeMap<Vec<u8>, Bytes>);

    impl Reader for Records {
        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, KvError> {
            Ok(self.0.get(key).cloned())
        }
        fn scan(&self, _: &[u8], _: &[u8], _: Visit<'_>) -> Result<(), KvError> {
            Ok(())
        }
    }

    impl Txn for Records {
        fn put(&mut self, key: &[u8], value: Bytes) {
            self.0.insert(key.to_vec(), value);
        }
        fn delete(&mut self, key: &[u8]) {
            self.0.remove(key);
        }
    }

    /// Goal: no stored count stops a mount, or makes the number of inodes overflow later. Method: [`fuzzing`].
    #[test]
    fn fuzz_count() {
        let mut records = Records(BTreeMap::new());
        let now = types::Timestamp { sec: 1, nsec: 0 };
        let options = namespace::superblock::FormatOptions {
            uuid: [7; 16],
            hash_key: [8; 16],
            uid: 0,
            gid: 0,
            mode: 0o755,
            now,
        };
        namespace::superblock::format(&mut records, &options);
        let records = std::cell::RefCell::new(records);
        let saved = |count: i64| {
            let mut records = records.borrow_mut();
            save(&mut *records, count);
            records.0[&key::global(COUNT)[..]].to_vec()
        };
        let good = [1, 4711, COUNT_MAX].map(saved);
        fuzz("count", &good, as_it_is, |bytes| {
            let mut records = records.borrow_mut();
            records.put(&key::global(COUNT), Bytes::copy_from_slice(bytes));
            let count = load(&*records).unwrap();
            assert!((1..=COUNT_MAX).contains(&count), "{count}");
        });
    }
}
