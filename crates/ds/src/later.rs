//! What is asked of the data server and nobody waits for: carried out when its turn in the line comes.

use crate::{
    DataServer,
    line::{Wanted, What},
    object::Object,
};
use std::time::Duration;
use tier::{Input, RequestError};
use types::{Errno, Ino, TierId};

/// How long the line's thread sleeps at most: it looks whether the server stops.
const LOOK: Duration = Duration::from_millis(100);

impl DataServer {
    /// Moves all of an object to a tier. `TooMany`, here and below, when the line is full, and nothing was taken.
    pub fn migrate_later(&self, ino: Ino, to: TierId) -> Result<(), RequestError> {
        self.driver.line.push(&[Wanted { ino, what: What::Migrate(to) }])
    }

    /// Brings objects up, in order.
    pub fn prefetch_later(&self, list: &[Ino]) -> Result<(), RequestError> {
        let list: Vec<Wanted> = list.iter().map(|ino| Wanted { ino: *ino, what: What::Prefetch }).collect();
        self.driver.line.push(&list)
    }

    /// `false` if there is nothing that may be copied, or no place for it.
    pub fn flush_later(&self, object: &Object) -> Result<bool, RequestError> {
        let wanted = {
            let state = object.state.read();
            !state.transient && state.map.is_dirty() && self.can_be_safe()
        };
        if wanted {
            self.flush_unsaved_later(object.ino())?;
        }
        Ok(wanted)
    }

    /// The same for an object that [`DataServer::unsaved`] named.
    pub fn flush_unsaved_later(&self, ino: Ino) -> Result<(), RequestError> {
        self.driver.line.push(&[Wanted { ino, what: What::Flush }])
    }

    /// Objects with bytes that are only in memory and that a flush may copy.
    pub fn unsaved(&self) -> Vec<Ino> {
        if self.can_be_safe() { self.driver.with(|core, _| core.unsaved().collect()) } else { Vec::new() }
    }

    /// Returns when the line is not full, or after that time.
    pub fn wait_in_line(&self, at_most: Duration) {
        self.driver.line.wait_for_room(at_most);
    }

    /// Files that somebody asked for and nobody waits for, and that are not done.
    pub fn in_line(&self) -> u64 {
        self.driver.line.len() as u64
    }

    pub(crate) fn run_line(&self) {
        while !self.stopping() {
            let (wanted, done) = self.driver.line.next(LOOK);
            drop(done);
            let Some(wanted) = wanted else { continue };
            match self.attach_for_request(wanted.ino) {
                Ok(object) => {
                    let id = self.driver.request_id();
                    self.driver.line.taken(id, wanted, object);
                    self.driver.tell(Input::Request { id, request: wanted.request() });
                }
                Err(errno) => {
                    if errno != Errno::ENOENT {
                        tracing::warn!(?wanted, %errno, "a request that nobody waits for failed");
                    }
                    self.driver.line.let_go();
                }
            }
        }
        // They keep files of the tiers open.
        self.driver.line.clear();
    }
}
