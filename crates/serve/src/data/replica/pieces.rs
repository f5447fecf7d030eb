//! What new second copies are sent: how much at once ([`super::room`]), how fast, and by threads of its own, so that nobody who writes waits for it.
//!
//! A write that touches a piece waits for that, and a piece that has no answer for long is taken for a second that is gone. So what is begun is what can be
//! sent in a moment, whatever more there is to copy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use cluster::replica::{
    Member,
    copy::{PIECE, Sent},
};
use net::Queue;

use super::{object::Replica, room::Room};
use crate::data::source::Pace;

/// What is begun takes so long, or is one piece.
const MOMENT: Duration = Duration::from_millis(250);
/// While programs use this server that many times less is sent,
const SLOWER: u64 = 4;
/// but this,
const LEAST: u64 = 1 << 20;
/// and so long after they did.
const USED: Duration = Duration::from_millis(200);
const THREADS: usize = 2;

/// To be sent, and counted as on the way.
pub(super) struct Piece {
    pub replica: Arc<Replica>,
    pub to: Member,
    pub sent: Sent,
}

pub(super) struct Pieces {
    /// Bytes a second.
    rate: u64,
    pub room: Room,
    pub queue: Arc<Queue<Piece>>,
    pace: Pace,
    started: Instant,
    /// Milliseconds since that.
    used: AtomicU64,
}

impl Pieces {
    pub fn new(rate: u64) -> Pieces {
        let in_a_moment = slower(rate) * MOMENT.as_millis() as u64 / 1000;
        let most = ((in_a_moment / PIECE) as usize).max(1);
        let (room, queue) = (Room::new(most), Arc::new(Queue::new(most)));
        let (pace, started, used) = (Pace::default(), Instant::now(), AtomicU64::new(0));
        Pieces { rate, room, queue, pace, started, used }
    }

    /// A program reads or writes here.
    pub fn is_used(&self) {
        self.used.store(self.started.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
    }

    /// How long to wait before so many bytes more.
    pub fn wait(&self, bytes: u64) -> Duration {
        let now = self.started.elapsed().as_millis() as u64 + 1;
        let is_used = now.saturating_sub(self.used.load(Ordering::Relaxed)) < USED.as_millis() as u64;
        self.pace.wait_at(bytes, if is_used { slower(self.rate) } else { self.rate })
    }

    /// Threads that send them.
    pub fn start(
        &self,
        send: impl Fn(Piece) + Clone + Send + 'static,
    ) -> std::io::Result<Vec<JoinHandle<()>>> {
        let start = |n| {
            let (queue, send) = (self.queue.clone(), send.clone());
            let thread = std::thread::Builder::new().name(format!("copies-sent-{n}"));
            thread.spawn(move || {
                while let Some(piece) = queue.take() {
                    send(piece);
                }
            })
        };
        (0..THREADS).map(start).collect()
    }
}

fn slower(rate: u64) -> u64 {
    (rate / SLOWER).max(rate.min(LEAST))
}
