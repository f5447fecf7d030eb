//! The daemon's side of a guarded mount.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use handover::Estate;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

use super::channel::{Begin, Channel, Order, Word};
use crate::{
    control::GuardReport,
    exit::{Failure, Outcome},
};

/// What the guardian gave to this process.
pub struct Ward {
    channel: Mutex<Channel>,
    begin: Begin,
    estate: Arc<Estate>,
    device: Mutex<Option<OwnedFd>>,
    resumes: bool,
    held_ms: AtomicU64,
}

/// By a clock that all processes share.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or_default() * 1_000_000_000
        + u64::try_from(now.tv_nsec).unwrap_or_default()
}

impl Ward {
    /// The guardian is at the other end of standard input.
    pub fn from_guardian() -> Outcome<Arc<Ward>> {
        let failed =
            |error: io::Error| Failure::failed(format!("the guardian does not say how to begin: {error}"));
        let channel = Channel::of(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
        let (order, mut fds) = channel.receive::<Order>().map_err(failed)?;
        let Order::Begin(begin) = order else {
            return Err(Failure::failed("the guardian begins in the middle"));
        };
        let device = if fds.len() > 1 { fds.pop() } else { None };
        let memory = fds.pop().ok_or_else(|| Failure::failed("the guardian gave no memory"))?;
        let estate = Estate::open(memory.as_fd()).map_err(|error| Failure::failed(error.to_string()))?;
        let (resumes, device) = (device.is_some(), Mutex::new(device));
        let channel = Mutex::new(channel);
        Ok(Arc::new(Ward { channel, begin, estate, device, resumes, held_ms: AtomicU64::new(0) }))
    }

    pub fn estate(&self) -> &Arc<Estate> {
        &self.estate
    }

    /// Does it go on with what another daemon served?
    pub fn resumes(&self) -> bool {
        self.resumes
    }

    /// The connection, once.
    pub fn take_device(&self) -> Option<OwnedFd> {
        self.device.lock().take()
    }

    /// Nobody else had the state since the daemon before, as far as mount numbers tell: each start takes one, also one that fails.
    pub fn takes_epoch(&self, epoch: u32) -> bool {
        let (last, at) = (self.estate.epoch() >> 32, self.estate.epoch() & 0xffff_ffff);
        let starts = u64::from(self.begin.number).saturating_sub(at);
        let fits = !self.resumes || (last + 1..=last + starts).contains(&u64::from(epoch));
        if fits {
            self.estate.set_epoch(u64::from(epoch) << 32 | u64::from(self.begin.number));
        }
        fits
    }

    /// Mounted: the guardian keeps the connection from now on.
    pub fn keep(&self, device: BorrowedFd<'_>, record: &[u8]) -> io::Result<()> {
        self.estate.set_session(record);
        self.channel.lock().send(&Word::Mounted {}, &[device])
    }

    /// It serves again.
    pub fn serves(&self) {
        if self.begin.since_ns > 0 {
            let held_ms = now_ns().saturating_sub(self.begin.since_ns) / 1_000_000;
            self.held_ms.store(held_ms, Ordering::Relaxed);
            let why = self.begin.why.as_deref().unwrap_or("unknown");
            tracing::info!(held_ms, why, number = self.begin.number, "requests are served again");
        }
        if let Some(why) = &self.begin.failed_upgrade {
            tracing::error!("an upgrade failed, the program before goes on: {why}");
        }
    }

    /// Has the guardian look at a program; its version, or why it cannot be.
    pub fn prepare(&self, program: &str) -> Result<String, String> {
        let channel = self.channel.lock();
        let lost = |error: io::Error| format!("the guardian does not answer: {error}");
        channel.send(&Word::Prepare { program: program.to_owned() }, &[]).map_err(lost)?;
        match channel.receive::<Order>().map_err(lost)?.0 {
            Order::Prepared { version } => Ok(version),
            Order::Refused { why } => Err(why),
            Order::Begin(_) => Err("the guardian begins in the middle".to_owned()),
        }
    }

    pub fn leaves(&self, since_ns: u64) -> io::Result<()> {
        self.channel.lock().send(&Word::Leaving { since_ns }, &[])
    }

    pub fn ended(&self) {
        if let Err(error) = self.channel.lock().send(&Word::Ended {}, &[]) {
            tracing::warn!(%error, "the guardian was not told of the end");
        }
    }

    pub fn now_ns() -> u64 {
        now_ns()
    }

    pub fn report(&self) -> GuardReport {
        GuardReport {
            guardian: self.begin.guardian,
            number: self.begin.number,
            restarts: self.begin.restarts,
            upgrades: self.begin.upgrades,
            last_why: self.begin.why.clone(),
            last_held_ms: self.begin.why.as_ref().map(|_| self.held_ms.load(Ordering::Relaxed)),
            failed_upgrade: self.begin.failed_upgrade.clone(),
        }
    }
}
