//! Who is on duty, and the newest map: of several metadata servers one makes it, and which one changes while a mount is there.
//!
//! Whoever has the root's slot in the newest map is on duty. A mount that cannot reach him, or is told that he is not, asks the others: those of the
//! map that it has, and those that it was told of at its start.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use proto::{Request, control};
use types::{Errno, Ino};
use wire::frame::Body;

use crate::{
    Remote,
    finding::ask_line,
    homes::{FIRST_PAUSE, Home},
    line::{Line, Stop, Waits},
};

/// So long a server is asked in vain before it is looked whether another has its place.
pub(crate) const SLICE: Duration = Duration::from_secs(1);
pub(crate) const PAUSE_LONGEST: Duration = Duration::from_millis(200);

/// Who answered, and the answer with its body.
type ByDuty<A> = (Arc<Home>, A, Vec<u8>);

impl Remote {
    /// Whoever makes the map, as far as is known here; the one metadata server where there is one.
    pub(crate) fn duty(&self) -> Arc<Home> {
        self.on_duty.read().clone()
    }

    /// As long as another may need to go on in a dead metadata server's place, where there are others.
    pub(crate) fn metadata_patience(&self) -> Duration {
        if self.has_homes() {
            self.options.succession.max(self.options.patience)
        } else {
            self.options.patience
        }
    }

    /// Takes a map, if it is newer, and follows who is on duty by it.
    pub(crate) fn take_map(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.nodes.take(bytes)?;
        if !self.has_homes() {
            return Ok(());
        }
        let Some(owner) = self.nodes.owner_of(Ino::ROOT.get()) else { return Ok(()) };
        let home = self.homes.of(&owner);
        let mut on_duty = self.on_duty.write();
        if !Arc::ptr_eq(&on_duty, &home) {
            tracing::info!(node = owner.node, "another metadata server is on duty");
            *on_duty = home;
        }
        Ok(())
    }

    /// The newest map that there is.
    pub(crate) fn fetch_map(&self) {
        let came = Instant::now();
        let mut fetched = self.fetching.lock();
        if fetched.is_some_and(|since| since >= came) {
            // Somebody asked since we came.
            return;
        }
        *fetched = Some(Instant::now());
        let patience = if self.has_homes() { SLICE } else { self.options.patience.min(SLICE * 5) };
        let duty = self.duty();
        if self.fetch_map_from(&duty.control, patience) || !self.has_homes() {
            return;
        }
        // Also one that has nothing yet: it may be another's standby.
        for owner in self.nodes.metadata_servers() {
            let home = self.homes.of(&owner);
            if !Arc::ptr_eq(&home, &duty) && !Arc::ptr_eq(&self.duty(), &home) {
                self.fetch_map_from(&home.control, patience);
            }
        }
        if Arc::ptr_eq(&self.duty(), &duty) {
            // As long as one of them knows no better, those that we were told of may.
            for seed in &self.seeds {
                self.fetch_map_from(seed, patience);
            }
        }
    }

    /// Of one server. `false`: it does not answer.
    pub(crate) fn fetch_map_from(&self, line: &Line, patience: Duration) -> bool {
        let since = control::MapSince { epoch: self.nodes.epoch() };
        match ask_line(line, &since, Body::default(), Waits::of(patience, patience)) {
            Ok((_, body)) => {
                // Of a server that has just come and was told nothing yet it is no newer than ours.
                if !body.is_empty() && self.take_map(&body).is_err() {
                    tracing::warn!("a cluster map was not taken");
                }
                true
            }
            Err(stop) => {
                tracing::debug!(errno = %stop.errno(), "the cluster map was not fetched");
                false
            }
        }
    }

    /// Asks whoever is on duty, wherever that goes meanwhile. Returns who answered, too.
    pub(crate) fn ask_duty<R: Request>(
        &self,
        request: &R,
        body: &Body,
        patience: Duration,
    ) -> Result<ByDuty<R::Answer>, Stop> {
        let (mut pause, end) = (FIRST_PAUSE, Instant::now() + patience);
        let slice = if self.has_homes() { SLICE.min(patience) } else { patience };
        loop {
            let home = self.duty();
            let waits = Waits { able: patience, ..Waits::of(slice, patience) };
            match ask_line(&home.control, request, body.clone(), waits) {
                Err(Stop::Silent { .. }) if self.has_homes() && Instant::now() + pause < end => {
                    self.fetch_map();
                    thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_LONGEST);
                }
                answer => return answer.map(|(answer, body)| (home, answer, body)),
            }
        }
    }

    /// On the lane that nothing large goes over.
    pub(crate) fn ask_control<R: Request>(
        &self,
        request: &R,
        patience: Duration,
    ) -> Result<(R::Answer, Vec<u8>), Stop> {
        self.ask_duty(request, &Body::default(), patience).map(|(_, answer, body)| (answer, body))
    }
}
