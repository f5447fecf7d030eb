//! How much a daemon lets commands take of it.

use std::time::Duration;

/// Bounds of the server. An ordinary user is anybody but root and the user who mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections at the same time; one more is refused. Each costs a thread, with a request three.
    pub connections: usize,
    /// Of these, for root and the user who mounted alone.
    pub connections_kept: usize,
    pub connections_per_user: usize,
    /// Bytes of requests that are not answered yet. Ordinary users get three quarters of it.
    pub held_bytes: u64,
    /// At least one request of the largest size.
    pub held_bytes_per_user: u64,
    /// A connection that asks nothing for this long is closed.
    pub idle: Duration,
    /// A frame that has begun is whole by then, or the connection ends: both ways.
    pub frame: Duration,
    /// A running request shows a sign of life this often.
    pub heartbeat: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 64,
            connections_kept: 16,
            connections_per_user: 12,
            held_bytes: 32 << 20,
            held_bytes_per_user: 8 << 20,
            idle: Duration::from_secs(60),
            frame: Duration::from_secs(30),
            heartbeat: Duration::from_secs(5),
        }
    }
}
