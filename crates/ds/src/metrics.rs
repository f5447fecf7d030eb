//! Counters of the data server.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Default)]
        pub struct Counters { $($(#[$doc])* pub(crate) $name: Counter,)* }

        /// The counters at one moment.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct CountersNow { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub fn now(&self) -> CountersNow {
                CountersNow { $($name: self.$name.now(),)* }
            }
        }
    };
}

counters! {
    /// SAUs whose bytes did not match their checksum.
    damaged_saus,
    /// SAUs that only the memory of an earlier generation held, as met since the start.
    lost_saus,
    /// Movements that ended well.
    moves_done,
    /// Movements that were stopped or failed.
    moves_failed,
    /// Bytes copied by movements.
    moved_bytes,
    /// Bytes of copies given up.
    freed_bytes,
    /// Files synced to a persistent tier on request.
    syncs,
}
