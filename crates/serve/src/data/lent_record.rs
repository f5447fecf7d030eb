//! That an object's file is lent, as it is stored under `0, F, inode` (`docs/data-model.md`), 3 bytes:
//! version u8 (1) | tier u8 (0 memory, 1 SSD) | stored to u8 (0 or 1)

use types::TierId;

const VERSION: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LentRecord {
    pub tier: TierId,
    /// Programs may store to it through mappings.
    pub stored_to: bool,
}

impl LentRecord {
    pub fn encode(self) -> Vec<u8> {
        vec![VERSION, self.tier.index() as u8, u8::from(self.stored_to)]
    }

    /// `None`: not such a record.
    pub fn decode(bytes: &[u8]) -> Option<LentRecord> {
        let &[VERSION, tier, stored_to @ (0 | 1)] = bytes else { return None };
        let tier = TierId::ALL.into_iter().find(|one| one.index() == usize::from(tier))?;
        Some(LentRecord { tier, stored_to: stored_to == 1 })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: bytes stay as they are, and others are refused. Method: golden bytes.
    use super::*;

    #[test]
    fn golden_bytes() {
        for (record, golden) in [
            (LentRecord { tier: TierId::Memory, stored_to: false }, [1, 0, 0]),
            (LentRecord { tier: TierId::Ssd, stored_to: true }, [1, 1, 1]),
        ] {
            assert_eq!(record.encode(), golden);
            assert_eq!(LentRecord::decode(&golden), Some(record));
        }
        for wrong in [&[][..], &[1, 0], &[2, 0, 0], &[1, 9, 0], &[1, 0, 2], &[1, 0, 0, 0]] {
            assert_eq!(LentRecord::decode(wrong), None);
        }
    }

    #[test]
    fn changed_bytes_have_one_meaning() {
        let golden = [vec![1, 0, 0], vec![1, 1, 1]];
        for bytes in golden {
            for at in 0..bytes.len() {
                for value in 0..=255 {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    if let Some(record) = LentRecord::decode(&changed) {
                        assert_eq!(record.encode(), changed, "one encoding of what is taken");
                    }
                }
            }
        }
    }
}
