//! Whether the database can be reached, since when it cannot, and how long that is waited for.

use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::error::Failure;

/// What who comes late in an outage still waits: one look.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Reach {
    away: Mutex<Option<Away>>,
    /// Batches are refused by a database that can be reached.
    refused: Mutex<Option<Away>>,
}

#[derive(Clone)]
struct Away {
    since: Instant,
    since_clock: SystemTime,
    why: String,
}

impl Reach {
    pub(crate) fn note<T>(&self, result: &Result<T, Failure>) {
        match result {
            Err(Failure::Away(why)) => self.lost(why),
            Ok(_) => self.reached(),
            // It answered, if not what was hoped for.
            Err(
                Failure::Busy(_)
                | Failure::Full(_)
                | Failure::Fenced(_)
                | Failure::Damaged(_)
                | Failure::Newer { .. }
                | Failure::InUse(_)
                | Failure::Stranger(_)
                | Failure::Refused(_),
            ) => {}
        }
    }

    /// The outcome of a batch: what can be reached may be full, or refuse.
    pub(crate) fn note_batch(&self, result: &Result<(), Failure>) {
        self.note(result);
        let mut refused = self.refused.lock();
        match result {
            Ok(()) => drop(refused.take()),
            Err(failure) if !failure.is_passing() => Away::set(&mut refused, &failure.to_string()),
            Err(_) => {}
        }
    }

    fn lost(&self, why: &str) {
        let mut away = self.away.lock();
        if away.is_none() {
            tracing::warn!(why, "the metadata database cannot be reached");
        }
        Away::set(&mut away, why);
    }

    fn reached(&self) {
        if let Some(away) = self.away.lock().take() {
            tracing::info!(after = ?away.since.elapsed(), "the metadata database is there again");
        }
    }

    /// Until when a request that began at `began` goes on trying: requests share the outage's wait, so that a long one does not
    /// keep all threads waiting.
    pub(crate) fn give_up_at(&self, began: Instant, wait: Duration) -> Instant {
        match &*self.away.lock() {
            Some(away) => (away.since + wait).max(began + LOOK.min(wait)),
            None => began + wait,
        }
    }

    /// Since when and why not.
    pub(crate) fn trouble(&self) -> Option<(SystemTime, String)> {
        let of = |away: &Mutex<Option<Away>>| away.lock().as_ref().map(|a| (a.since_clock, a.why.clone()));
        of(&self.away).or_else(|| of(&self.refused))
    }

    /// Is it away, so that somebody should look whether it is back?
    pub(crate) fn is_away(&self) -> bool {
        self.away.lock().is_some()
    }
}

impl Away {
    /// The newest reason, since the first.
    fn set(away: &mut Option<Away>, why: &str) {
        match away {
            Some(away) => why.clone_into(&mut away.why),
            None => {
                let (since, since_clock) = (Instant::now(), SystemTime::now());
                *away = Some(Away { since, since_clock, why: why.to_owned() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_waited_for_once() {
        let (reach, wait) = (Reach::default(), Duration::from_secs(20));
        let began = Instant::now();
        assert_eq!(reach.give_up_at(began, wait), began + wait);
        reach.note::<()>(&Err(Failure::Away("gone".into())));
        let later = began + Duration::from_secs(60);
        assert_eq!(reach.give_up_at(later, wait), later + LOOK);
        assert!(reach.give_up_at(began, wait) >= began + wait);
        assert_eq!(reach.trouble().map(|(_, why)| why), Some("gone".into()));
        reach.note::<()>(&Err(Failure::Busy("lock".into())));
        assert!(reach.trouble().is_some());
        reach.note(&Ok(()));
        assert_eq!(reach.trouble(), None);
        // A full one answers readers.
        reach.note_batch(&Err(Failure::Full("tablespace".into())));
        reach.note(&Ok(()));
        assert!(reach.trouble().is_some_and(|(_, why)| why.contains("tablespace")) && !reach.is_away());
        reach.note_batch(&Ok(()));
        assert_eq!(reach.trouble(), None);
    }
}
