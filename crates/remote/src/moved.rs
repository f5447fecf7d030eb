//! Stripes that are moved to another data server while their file is open: whoever comes to the old place is told so, asks where the stripe is now, and
//! does it all again there. What was answered before stays true, and nothing was done of what is done again.

use std::{
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use proto::{Reason, metadata};
use types::{Errno, Ino};

use crate::{
    Remote,
    duty::PAUSE_LONGEST,
    held::Source,
    homes::FIRST_PAUSE,
    line::Stop,
    openings::{OpenFile, Placed},
};

/// A stripe moves once in a long while; more of it than this during one request is a mistake somewhere.
const MOVES_MAX: usize = 64;

impl Remote {
    /// Does something with a file's data servers, as often as they turn out to be others.
    pub(crate) fn where_it_is<R>(
        &self,
        file: &OpenFile,
        placed: Arc<Placed>,
        run: &mut dyn FnMut(&Placed) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let mut placed = placed;
        if self.nodes.lacks_any(&placed.layout.stripes)
            && let Ok(now) = self.placed_now(file)
        {
            placed = now;
        }
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        let mut moves = 0;
        while moves < MOVES_MAX {
            let sessions = self.recoveries.load(Ordering::Acquire);
            match run(&placed) {
                Err(Errno::EREMOTE) => {
                    if !self.owner_is_waited_for(began, &mut pause) {
                        tracing::warn!(
                            ino = file.ino.get(),
                            "whose the file's slot is its data servers do not know for long"
                        );
                        return Err(Errno::EIO);
                    }
                    if self.recoveries.load(Ordering::Acquire) != sessions {
                        placed = self.begun_anew(file, placed)?;
                    }
                }
                // It was moved, or where it was is away: maybe since it was moved. Or the session was given up, which is noticed by asking.
                Err(error @ (Errno::ESTALE | Errno::EIO)) => {
                    let mut now = self.placed_now(file).map_err(|now| {
                        tracing::warn!(ino = file.ino.get(), %error, %now, "a file's data servers refuse, and where its bytes are is not said");
                        Errno::EIO
                    })?;
                    if self.recoveries.load(Ordering::Acquire) != sessions {
                        now = self.begun_anew(file, now)?;
                    } else if now.layout == placed.layout {
                        // Of two that have it somebody knows a newer view than the metadata server told: it is about to say so.
                        let waits = error == Errno::ESTALE && now.layout.is_twofold();
                        if waits && self.owner_is_waited_for(began, &mut pause) {
                            continue;
                        }
                        return Err(if now.layout.is_twofold() { Errno::EIO } else { error });
                    }
                    tracing::debug!(
                        ino = file.ino.get(),
                        "a stripe of an open file is on another data server"
                    );
                    placed = now;
                    moves += 1;
                }
                done => return done,
            }
        }
        Err(Errno::EIO)
    }

    /// There is another session: what was lost with the last one gives errors, and writing begins again.
    fn begun_anew(&self, file: &OpenFile, now: Arc<Placed>) -> Result<Arc<Placed>, Errno> {
        self.file(file.number)?;
        if file.begun.load(Ordering::Acquire) == 0 { Ok(now) } else { self.begin_write(file) }
    }

    /// In whose name a file's data servers are asked for changes, and as which the session came there: of several metadata servers the owner of the
    /// file's slot. `EREMOTE`: that is not known now.
    pub(crate) fn name_for_data(&self, ino: Ino) -> Result<Source, Errno> {
        let session = self.session();
        if !self.has_homes() {
            return Ok(Source { node: 0, joined: session.joined });
        }
        let home = self.home_of(ino.get());
        let came = home.joined_as(session.id).map_or_else(|| self.join_at(&home, &session), Ok);
        let joined = came.map_err(|stop| {
            tracing::debug!(%ino, node = home.node, errno = %stop.errno(), "the session does not come to an owner now");
            match &stop {
                // It was given up, which is noticed by asking.
                Stop::Fault { fault, .. } if Reason::of(fault) == Reason::SessionGone => Errno::EIO,
                Stop::Fault { .. } | Stop::Silent { .. } => Errno::EREMOTE,
            }
        })?;
        Ok(Source { node: home.node, joined })
    }

    /// The same, if nobody has to be asked.
    pub(crate) fn name_there(&self, ino: Ino) -> Option<Source> {
        let session = self.session();
        if !self.has_homes() {
            return Some(Source { node: 0, joined: session.joined });
        }
        let home = self.home_of(ino.get());
        Some(Source { node: home.node, joined: home.joined_as(session.id)? })
    }

    /// Data servers know another owner of a file's slot than we do, or none yet. False: that was waited for.
    pub(crate) fn owner_is_waited_for(&self, since: Instant, pause: &mut Duration) -> bool {
        if since.elapsed() + *pause >= self.metadata_patience() {
            return false;
        }
        self.fetch_map();
        thread::sleep(*pause);
        *pause = (*pause * 2).min(PAUSE_LONGEST);
        true
    }

    /// As the metadata server has it now.
    pub(crate) fn placed_now(&self, file: &OpenFile) -> Result<Arc<Placed>, Errno> {
        let found = self.look(|head| metadata::FindLayout { head: Some(head), ino: file.ino.get() })?;
        self.place(file, found.layout.ok_or(Errno::EIO)?)
    }
}
