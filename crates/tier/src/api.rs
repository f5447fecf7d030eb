//! What goes into the machine and what comes out of it.

use std::time::Duration;

use types::{Ino, TierId, TierSet};

/// Monotonic time since an origin that the shell fixes once (its start, say). Never goes back; an input with an
/// older time is handled as if it came at the newest time seen.
pub type Time = Duration;

/// One movement, from its start to the [`Input::MoveDone`] or [`Input::MoveFailed`] that ends it. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MoveId(pub u64);

/// Chosen by the shell; comes back in [`Effect::RequestDone`]. Must not repeat while the request runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// What happened, as the shell saw it. An input about an unknown inode is ignored unless it says otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A tier exists, with this limit, and holds `used` bytes (objects' data of any kind). Sent for each tier before
    /// anything else; later it corrects the machine's own count.
    Space {
        tier: TierId,
        limit: u64,
        used: u64,
    },
    /// The limit alone changed (a smaller one makes data move out).
    LimitChanged {
        tier: TierId,
        limit: u64,
    },

    /// The shell loaded or created the state of an object: what each tier holds now, absolute, and in `dirty` the
    /// tiers that hold bytes which no slower tier has. Creates the record, or corrects it. Leaves `used` alone: that
    /// was in [`Input::Space`]. Objects attached at start-up count as closed now, in the order given.
    Attached {
        ino: Ino,
        bytes: [u64; 3],
        dirty: TierSet,
    },
    /// The shell dropped its state of the object. The record goes too if nothing needs it (closed, no bytes in a
    /// tier that can be moved out of, not moving, no request); otherwise it stays until then.
    Detached {
        ino: Ino,
    },
    /// The object is gone from every tier: its bytes are free, its movement is cancelled, its requests fail. Of one without a record (it was
    /// [`Input::Detached`]) the shell says with [`Input::Stored`] what is free.
    Removed {
        ino: Ino,
    },

    /// One more open. The first one cancels a normal-out movement and may start a promotion.
    Opened {
        ino: Ino,
    },
    /// One less. `dirty_bytes`: how much is in memory only (for reports).
    Closed {
        ino: Ino,
        dirty_bytes: u64,
    },
    /// A read or write at `offset`. Only the first MiB of a SAU counts, and only when the SAU is not the one of the
    /// call before; the shell should filter by the same rule ([`crate::touch_counts`]) to save the call.
    Touched {
        ino: Ino,
        offset: u64,
    },

    /// What a tier holds of an object changed by `delta` bytes, other than through [`crate::Tiering::place`] and
    /// [`crate::Tiering::admit`] (which count at once): truncation, hole punching, progress of a movement on either
    /// side, or a placement that was not used in full. More bytes make the tier `Dirty`, except those that a
    /// movement brings up; say `Clean` afterwards where it holds.
    Stored {
        ino: Ino,
        tier: TierId,
        delta: i64,
    },
    /// `tier` now holds bytes that no slower tier has. For memory: bytes without a persistent copy. Said by
    /// [`crate::Tiering::place`] and [`crate::Tiering::admit`] too, so only needed for overwrites. Repeated for later
    /// writes (it restarts the idle clock and cancels a write-behind copy), at least for the first write after each
    /// [`Effect::StartMove`]; more often than about once a second is not needed otherwise.
    Dirty {
        ino: Ino,
        tier: TierId,
    },
    /// Every byte that `tier` holds has a copy in a slower tier. The shell sends it *before* the `MoveDone` that made
    /// it true, and after a truncation or punch that did; the machine never infers it.
    Clean {
        ino: Ino,
        tier: TierId,
    },

    /// The tier's device is slow or fails ([`crate::health`]), or is well again: while it is, other tiers are taken before it.
    Slow {
        tier: TierId,
        slow: bool,
    },

    /// What was placed by [`crate::Tiering::place_copy`] takes more than was asked for.
    CopyGrew {
        ino: Ino,
        tier: TierId,
        more: u64,
    },
    /// Somebody reads for a second time what came up for a first reading.
    ReadAgain {
        ino: Ino,
    },

    /// The kernel reads the object file itself: it stays where it is until the end (copies may still be made).
    PassthroughBegan {
        ino: Ino,
    },
    PassthroughEnded {
        ino: Ino,
    },
    /// What this tier holds of the object is not moved out of it. Does not bring it there: ask for a migration.
    Pinned {
        ino: Ino,
        tier: TierId,
    },
    Unpinned {
        ino: Ino,
        tier: TierId,
    },
    Policy {
        ino: Ino,
        policy: ObjectPolicy,
    },

    Request {
        id: RequestId,
        request: Request,
    },
    /// The caller no longer waits. Ends with `RequestDone{Err(Cancelled)}`; its movements are cancelled.
    RequestCancelled {
        id: RequestId,
    },

    /// The movement or drop is over. `bytes` copied in `elapsed` (0 for a drop).
    MoveDone {
        id: MoveId,
        bytes: u64,
        elapsed: Duration,
    },
    MoveFailed {
        id: MoveId,
        reason: MoveFailure,
    },
    /// Take a sample of the rates now and adapt the thresholds. Optional: any input a second after the last sample
    /// does so too.
    RateSample,
}

/// Set per directory, resolved by the shell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectPolicy {
    /// Never written behind; leaves a tier only when forced out of it.
    pub transient: bool,
    /// Bring the whole file up when it is opened, from whatever tier, or never. `None`: from those of
    /// [`crate::Settings::promote_on_open`].
    pub promote: Option<bool>,
    /// `None`: [`crate::Settings::write_behind_closed`]. At most 49 days.
    pub write_behind_delay: Option<Duration>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// All of the object to `to` (up: the sources keep their copies; down: they are freed).
    Migrate { ino: Ino, to: TierId },
    /// A persistent copy of what it holds now.
    Flush { ino: Ino },
    /// Bring these up, in this order, a bounded number at once, while the target stays above C_n-m.
    Prefetch { list: Vec<Ino> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MoveFailure {
    /// Stopped because of [`Effect::CancelMove`].
    Cancelled,
    /// Something else holds the object for now (passthrough, truncation); tried again later.
    Busy,
    /// The destination had no room after all.
    NoSpace,
    /// The device failed. Tried again with growing pauses.
    Io,
    /// A drop found bytes that no slower tier has.
    Uncovered,
    /// The object no longer exists.
    Gone,
}

/// What the shell must do. Taken with [`crate::Tiering::poll_effect`] after every call until there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Copy what `from` holds of the object to `to` (bytes that `to` has already need no copy), and free it in `from`
    /// unless `keep_source`. Whole SAUs from the front, `most` bytes in all: more than a SAU, so that one always fits.
    /// Bytes placed later stay in `from`: no room is reserved for them; bytes overwritten meanwhile are copied again.
    /// Report progress with `Stored` on both sides, then `Clean` where it holds, then `MoveDone` or `MoveFailed`.
    StartMove {
        id: MoveId,
        ino: Ino,
        from: TierId,
        to: TierId,
        kind: MoveKind,
        keep_source: bool,
        most: u64,
    },
    /// Free what `tier` holds, whole SAUs from the front and `most` bytes in all: slower tiers have it (check that, and
    /// answer `MoveFailed{Uncovered}` if not). Ends like a movement.
    DropCopy {
        id: MoveId,
        ino: Ino,
        tier: TierId,
        most: u64,
    },
    /// Stop as soon as may be. The answer is still `MoveDone` or `MoveFailed`.
    CancelMove {
        id: MoveId,
    },
    /// Writers that were told to wait for this tier should ask again.
    WakeWriters {
        tier: TierId,
    },
    RequestDone {
        id: RequestId,
        result: Result<RequestReport, RequestError>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MoveKind {
    /// A closed file, C_f-m < C <= C_n-m.
    NormalOut,
    /// C <= C_f-m: open files too.
    ForcedOut,
    /// A copy in a persistent tier; the source stays.
    WriteBehind,
    /// Up, because the policy of an opened file says so.
    Promote,
    /// A user asked.
    Request,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestReport {
    pub files_moved: u64,
    pub bytes_moved: u64,
    /// Unknown, pinned, or no room above C_n-m (prefetch only).
    pub files_skipped: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestError {
    NoSuchObject,
    /// The tier asked for (or any persistent one, for a flush) does not exist here.
    NoSuchTier,
    /// Pinned in the tier that it would have to leave.
    Pinned,
    /// No room, or held by passthrough, for [`crate::Settings::request_patience`].
    NoSpace,
    Busy,
    Io,
    Cancelled,
    /// More requests wait than [`crate::Settings::requests_max`].
    TooMany,
}

/// A write that needs new space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    pub ino: Ino,
    pub bytes: u64,
    /// The write must be persistent before it is answered: memory would only be a detour.
    pub sync: bool,
    /// How long this write has waited so far.
    pub waited: Duration,
}

/// Where new space was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Counted as stored in this tier already.
    Tier(TierId),
    /// Ask again at the next [`Effect::WakeWriters`] for this tier, or after the time, whichever is first.
    Wait { tier: TierId, for_at_most: Duration },
    /// Every tier is full and nothing is moving that would change it.
    NoSpace,
}

/// Answer to a write that must land in one given tier (a hole of a SAU that lives there).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    /// Counted as stored already.
    Yes,
    Wait {
        for_at_most: Duration,
    },
    /// Nothing is moving out of it that would make room.
    Full,
}

/// Why [`crate::Tiering::next_deadline`] wants to be called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Why {
    /// A dirty file becomes due for its persistent copy.
    WriteBehindDue,
    /// A movement that failed may be tried again.
    RetryMove,
    /// A request has waited for as long as it may.
    RequestPatience,
}

/// The terms of the coolness of one object (paper, section 6.2), seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CoolnessReport {
    pub open: bool,
    /// Since the last close; 0 while open.
    pub t_closed: f64,
    /// Mean time from close to the next open, as used (see `coolness.rs` for missing history).
    pub t_co: f64,
    /// Mean time from open to close, as used.
    pub t_oc: f64,
    /// Open files only: 1 for the most recently used one of its tier, more for the less recently used ones; counted
    /// up to 4096.
    pub lru_rank: Option<u32>,
    /// Normal-out coolness of a closed file, forced-out coolness of an open one.
    pub value: f64,
}

/// Available bytes at or below which a tier acts. `s_w < f_m <= n_m` unless the tier is tiny.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Thresholds {
    pub s_w: u64,
    pub f_m: u64,
    pub n_m: u64,
}

impl Thresholds {
    /// With C_f-m and C_n-m as somebody fixed them, in order and bounded: half and three quarters of the limit.
    pub(crate) fn with_fixed(self, limit: u64, f_m: Option<u64>, n_m: Option<u64>) -> Thresholds {
        let s_w = self.s_w;
        let f_m = f_m.unwrap_or(self.f_m).min(limit / 2).max(s_w);
        let n_m = n_m.unwrap_or(self.n_m).min(limit / 4 * 3).max(f_m);
        Thresholds { s_w, f_m, n_m }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierReport {
    pub limit: u64,
    pub used: u64,
    /// Promised to movements that will end here.
    pub reserved: u64,
    /// limit - used - reserved; negative after the limit shrank.
    pub available: i64,
    pub thresholds: Thresholds,
    /// Bytes that movements under way will free here.
    pub draining: u64,
    /// Bytes per second, smoothed.
    pub write_in_rate: f64,
    pub move_out_rate: f64,
    /// Objects with bytes there. `None` for the last tier: what can go nowhere has no record.
    pub objects: Option<u64>,
    /// Objects that could be moved out, by state. Pinned and moving ones are not counted.
    pub closed_objects: u64,
    pub open_objects: u64,
    /// Writers have been told to wait.
    pub writers_wait: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveReport {
    pub id: MoveId,
    pub ino: Ino,
    pub from: TierId,
    /// Equal to `from` for a drop.
    pub to: TierId,
    /// `None` for a drop.
    pub kind: Option<MoveKind>,
    /// Estimate at the start.
    pub bytes: u64,
    /// What of it is still to come, as far as the shell has said.
    pub left: u64,
    pub started: Time,
}

/// Each with its default; all may differ between data servers.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// After the close, before a dirty file gets its persistent copy. 2 s.
    pub write_behind_closed: Duration,
    /// After the last write to a file that stays open. 10 s.
    pub write_behind_idle: Duration,
    /// After the first write without a persistent copy, whatever happens to the file meanwhile. 30 s.
    pub write_behind_latest: Duration,
    /// A writer waits for a tier only if the room it needs is expected within this time, and no longer. 50 ms.
    pub write_wait_max: Duration,
    /// How long a request waits without any progress. 60 s.
    pub request_patience: Duration,
    /// Movements at once into each tier (by `TierId::index()`), for each of: out, write-behind, up and asked. 4, 2, 2.
    pub parallel: [usize; 3],
    /// Requests waiting or running at once. 1024.
    pub requests_max: usize,
    /// Files that only these tiers hold most of come up when they are opened. None.
    pub promote_on_open: TierSet,
    /// Tiers that take what movements bring, and no new bytes: nothing is placed there or admitted. None.
    pub movements_only: TierSet,
    /// Candidates compared per choice, from the head of the LRU table. 64.
    pub window: usize,
    /// C_s-w: kept free by admission, per tier. 0.
    pub write_stop: [u64; 3],
    /// C_f-m and C_n-m by tier where they do not follow the measured rates; at most half and three quarters of the
    /// limit count. None.
    pub forced_out: [Option<u64>; 3],
    pub normal_out: [Option<u64>; 3],
    /// Write bandwidth assumed until it is measured, bytes per second. 4 GiB/s, 1 GiB/s, 150 MiB/s.
    pub bandwidth: [u64; 3],
    /// S_avg-f until it is measured. 8 MiB.
    pub file_bytes_mean: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            write_behind_closed: Duration::from_secs(2),
            write_behind_idle: Duration::from_secs(10),
            write_behind_latest: Duration::from_secs(30),
            write_wait_max: Duration::from_millis(50),
            request_patience: Duration::from_secs(60),
            parallel: [4, 2, 2],
            requests_max: 1024,
            promote_on_open: TierSet::EMPTY,
            movements_only: TierSet::EMPTY,
            window: 64,
            write_stop: [0; 3],
            forced_out: [None; 3],
            normal_out: [None; 3],
            bandwidth: [4 << 30, 1 << 30, 150 << 20],
            file_bytes_mean: 8 << 20,
        }
    }
}
