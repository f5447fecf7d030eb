//! What of ours is not in the linked directory yet, inode by inode, and waiting for it.

use std::time::{Duration, Instant};

use link::{Log, Place, Trust, Work};
use types::{Errno, FileKind, Ino, Timestamp};

use crate::{Linked, Trouble, pending::is_unpublished};

/// How often who waits looks around.
const ROUND: Duration = Duration::from_millis(100);
/// Who waits for whom, at the most: a directory deeper than any path, and some.
const CHAIN_MAX: usize = 1 << 13;

/// One inode with something that is not applied there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    pub ino: Ino,
    pub kind: FileKind,
    pub since: Timestamp,
    /// It has no name here any more, and still one there.
    pub deleted: bool,
    /// Its newest bytes, or all of it, are not there.
    pub data: bool,
    /// Names that they have and we have not, and that we have and they have not.
    pub minus: Vec<Place>,
    pub plus: Vec<Place>,
    /// Why it waits, if it is for something other than its turn.
    pub trouble: Option<link::Trouble>,
    mark: Mark,
}

/// What of it there was to be applied at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mark {
    seq: u64,
    version: u64,
    attributes: bool,
}

impl Waiting {
    fn of(log: &Log, ino: Ino, work: &Work) -> Waiting {
        let data = work.kind == FileKind::Regular && !work.deleted;
        let data = data && (!work.there || work.due.is_some() || is_unpublished(work));
        Waiting {
            ino,
            kind: work.kind,
            since: work.since,
            deleted: work.deleted,
            data,
            minus: work.minus.iter().cloned().collect(),
            plus: work.plus.iter().cloned().collect(),
            trouble: log.trouble_of(ino),
            mark: Mark {
                seq: work.seq,
                version: work.written.max(work.due.unwrap_or(0)),
                attributes: !work.attrs.is_empty() || !work.xattrs.is_empty(),
            },
        }
    }

    /// Has all been applied that there was? What came to it since does not count.
    fn is_over(&self, log: &Log) -> bool {
        let Some(work) = log.get(self.ino).filter(|work| work.seq == self.mark.seq) else { return true };
        let left = self.minus.iter().any(|at| work.minus.contains(at));
        let missing = self.plus.iter().any(|at| work.plus.contains(at));
        let attributes = self.mark.attributes && !(work.attrs.is_empty() && work.xattrs.is_empty());
        let data = !work.deleted && (work.published < self.mark.version || self.data && !work.there);
        work.begun.is_none() && !left && !missing && !attributes && !data
    }
}

impl Linked {
    /// All that waits now.
    pub fn waiting(&self) -> Vec<Waiting> {
        let pending = self.ledger.lock();
        pending.log.works().map(|(ino, work)| Waiting::of(&pending.log, ino, work)).collect()
    }

    pub fn waiting_of(&self, ino: Ino) -> Option<Waiting> {
        let pending = self.ledger.lock();
        pending.log.get(ino).map(|work| Waiting::of(&pending.log, ino, work))
    }

    /// Has all of this published and applied as soon as may be: also what was refused, since somebody may have seen to it.
    pub fn hasten(&self, list: &[Waiting]) -> Result<(), Errno> {
        let now = self.now();
        self.ledger.alter(false, |pending| {
            for waiting in list {
                if pending.log.trouble_of(waiting.ino).is_some_and(|trouble| trouble != link::Trouble::Later)
                {
                    pending.log.release(waiting.ino);
                }
                pending.publish(now, waiting.ino);
            }
            ((), Vec::new())
        })?;
        self.call();
        Ok(())
    }

    /// Waits until all of this is applied, not for what was changed since. Returns what is not, with why: it was refused, or
    /// waits for something that was; or the back end is away, or makes no step of these, for longer than the deadline of its
    /// calls. `progress` hears how many are done, and ends it by its error.
    pub fn wait_until_applied<E>(
        &self,
        list: Vec<Waiting>,
        progress: &mut dyn FnMut(u64) -> Result<(), E>,
    ) -> Result<Vec<Waiting>, E> {
        let (all, mut left, mut moved) = (list.len(), list, Instant::now());
        loop {
            let ended = {
                let mut pending = self.ledger.lock();
                let before = left.len();
                let telling = |waiting: &Waiting| pending.telling.contains(&waiting.ino);
                left.retain(|waiting| !waiting.is_over(&pending.log) || telling(waiting));
                let flies =
                    left.iter().any(|waiting| pending.log.is_in_flight(waiting.ino) || telling(waiting));
                if flies || left.len() < before {
                    moved = Instant::now();
                }
                for waiting in &mut left {
                    waiting.trouble = refusal(&pending.log, waiting.ino);
                }
                let ended = left.iter().all(|waiting| waiting.trouble.is_some());
                if !ended {
                    self.ledger.turned.wait_for(&mut pending, ROUND);
                }
                ended
            };
            progress((all - left.len()) as u64)?;
            if ended || self.is_hopeless() || moved.elapsed() >= self.settings.deadline.saturating_mul(2) {
                return Ok(left);
            }
        }
    }

    /// Nothing will be applied for a while: somebody has to do something, or the back end is away for long.
    pub(crate) fn is_hopeless(&self) -> bool {
        let Some(Trouble { since, .. }) = self.current_trouble() else { return self.is_stopping() };
        let is_other = matches!(self.last_trust(), Some(Trust::Stranger | Trust::Unmounted));
        is_other || since.elapsed() >= self.settings.deadline || self.is_stopping()
    }
}

/// Why it will not be applied soon: it was refused, or what it waits for was.
pub(crate) fn refusal(log: &Log, ino: Ino) -> Option<link::Trouble> {
    let mut at = ino;
    for _ in 0..CHAIN_MAX {
        match log.trouble_of(at) {
            Some(trouble @ link::Trouble::Refused(_)) => return Some(trouble),
            Some(link::Trouble::Later | link::Trouble::Conflict(_) | link::Trouble::Gone) | None => {}
        }
        at = log.waits_for(at)?;
    }
    None
}
