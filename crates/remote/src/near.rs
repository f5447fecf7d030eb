//! The way to the data server of this machine: its Unix socket, in place of the network, as long as that works.
//!
//! It is tried first. What fails is done over the network at once, and the socket is looked at again a while later. At the server the
//! newest connection of both ways takes the place of the others, so it does not matter which way a request went that had no answer.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use net::{CallError, Channel, Client};

/// A connection to a process on this machine is made at once, or something is wrong there.
pub(crate) const CONNECT: Duration = Duration::from_secs(1);
/// After which it is tried again.
const AGAIN: Duration = Duration::from_secs(2);

pub(crate) struct Near {
    path: PathBuf,
    client: Client,
    started: Instant,
    /// Milliseconds since then before which it is not tried.
    not_before: AtomicU64,
    /// The last connection was made.
    worked: AtomicBool,
}

impl Near {
    pub(crate) fn new(path: &Path, client: Client) -> Near {
        Near {
            path: path.to_owned(),
            client,
            started: Instant::now(),
            not_before: AtomicU64::new(0),
            worked: AtomicBool::new(false),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn is(&self, client: &Client) -> bool {
        std::ptr::eq(&self.client, client)
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// Nothing is known against it.
    pub(crate) fn may_work(&self) -> bool {
        if self.now() < self.not_before.load(Ordering::Relaxed) {
            return false;
        }
        // Without a socket there is nothing to wait for, and nothing to say.
        let there = self.works() || self.path.exists();
        if !there {
            self.rest();
        }
        there
    }

    /// It is what is used.
    pub(crate) fn works(&self) -> bool {
        self.worked.load(Ordering::Relaxed) && self.now() >= self.not_before.load(Ordering::Relaxed)
    }

    pub(crate) fn connect(&self, end: Instant) -> Result<Arc<Channel>, CallError> {
        let channel = self.client.channel(end.min(Instant::now() + CONNECT));
        match &channel {
            Ok(_) => self.worked.store(true, Ordering::Relaxed),
            Err(_) => self.rest(),
        }
        channel
    }

    /// Was it this way on which there was no connection?
    pub(crate) fn failed_with(&self, error: &CallError) -> bool {
        let CallError::NoConnection { address, why, .. } = error else { return false };
        let ours = *address == format!("unix:{}", self.path.display());
        if ours {
            tracing::debug!(
                why,
                "the own data server's socket does not answer: it is asked over the network"
            );
            self.rest();
        }
        ours
    }

    fn rest(&self) {
        self.worked.store(false, Ordering::Relaxed);
        self.not_before.store(self.now() + AGAIN.as_millis() as u64, Ordering::Relaxed);
    }
}
