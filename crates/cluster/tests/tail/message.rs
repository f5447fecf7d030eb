//! What servers say to each other.

use std::collections::BTreeMap;

use super::Records;

#[derive(Clone, Debug)]
pub enum Message {
    Begin { copy: u64, beat: u64, base: u64, ops: BTreeMap<u64, u64> },
    Send { copy: u64, beat: u64, records: Records, from: u64, up_to: u64, applied: u64 },
    Stored { copy: u64, beat: u64, up_to: u64 },
    Refused { copy: u64 },
}
