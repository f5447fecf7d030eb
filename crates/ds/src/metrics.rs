//! Counters of the data server.

use std::sync::atomic::{AtomicU64, Ordering};

use types::TierId;

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
        pub struct Counters {
            $($(#[$doc])* pub(crate) $name: Counter,)*
            moved_out: [Counter; 3],
            moved_in: [Counter; 3],
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct CountersNow {
            $($(#[$doc])* pub $name: u64,)*
            /// Bytes that movements copied out of each tier, and into it.
            pub moved_out: [u64; 3],
            pub moved_in: [u64; 3],
        }

        impl Counters {
            pub fn now(&self) -> CountersNow {
                CountersNow {
                    $($name: self.$name.now(),)*
                    moved_out: std::array::from_fn(|tier| self.moved_out[tier].now()),
                    moved_in: std::array::from_fn(|tier| self.moved_in[tier].now()),
                }
            }
        }
    };
}

counters! {
    /// SAUs whose bytes did not match their checksum.
    damaged_saus,
    /// Bytes of copies that were compared with their checksums without being asked for.
    scrubbed_bytes,
    /// Damaged copies that were given up for another tier's, as found by that.
    repaired_saus,
    /// SAUs without a good copy, as found by that.
    hopeless_saus,
    /// SAUs that only the memory of an earlier generation held, as met since the start.
    lost_saus,
    /// Movements that ended well.
    moves_done,
    /// Movements that were stopped or failed.
    moves_failed,
    /// Bytes of copies given up.
    freed_bytes,
    /// Files synced to a persistent tier on request.
    syncs,
}

impl Counters {
    /// A movement copied bytes.
    pub(crate) fn carried(&self, from: TierId, to: TierId, bytes: u64) {
        self.moved_out[from.index()].add(bytes);
        self.moved_in[to.index()].add(bytes);
    }
}
