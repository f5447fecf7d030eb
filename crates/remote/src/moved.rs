//! Stripes that are moved to another data server while their file is open: whoever comes to the old place is told so, asks where the stripe is now, and
//! does it all again there. What was answered before stays true, and nothing was done of what is done again.

use std::sync::{Arc, atomic::Ordering};

use proto::metadata;
use types::Errno;

use crate::{
    Remote,
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
        for _ in 0..MOVES_MAX {
            let sessions = self.recoveries.load(Ordering::Acquire);
            match run(&placed) {
                // It was moved, or where it was is away: maybe since it was moved. Or the session was given up, which is noticed by asking.
                Err(error @ (Errno::ESTALE | Errno::EIO)) => {
                    let mut now = self.placed_now(file).map_err(|_| Errno::EIO)?;
                    if self.recoveries.load(Ordering::Acquire) != sessions {
                        now = self.begun_anew(file, now)?;
                    } else if now.layout == placed.layout {
                        return Err(error);
                    }
                    tracing::debug!(
                        ino = file.ino.get(),
                        "a stripe of an open file is on another data server"
                    );
                    placed = now;
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

    /// As which the session came, for data servers. With several metadata servers it has a number at each, and data servers know none.
    pub(crate) fn joined_for_data(&self) -> u64 {
        if self.has_homes() { 0 } else { self.session().joined }
    }

    /// As the metadata server has it now.
    pub(crate) fn placed_now(&self, file: &OpenFile) -> Result<Arc<Placed>, Errno> {
        let found = self.look(|head| metadata::FindLayout { head: Some(head), ino: file.ino.get() })?;
        self.place(file, found.layout.ok_or(Errno::EIO)?)
    }
}
