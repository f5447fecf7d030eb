//! What sessions have in slots that are on their way.

use parking_lot::Mutex;

/// States on their way. One hand-over is under way at a time.
#[derive(Default)]
pub(crate) struct States {
    pub last_ticket: u64,
    /// Let go by us, until the next.
    pub gone: Option<(u64, Vec<u16>, Vec<u8>)>,
    /// For us, in parts.
    pub coming: Option<(u64, Vec<u8>)>,
}

pub(crate) type StateTable = Mutex<States>;
