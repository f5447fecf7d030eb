//! Whether the database can be reached, since when it cannot, and how long that is waited for.

use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::error::Failure;

/// What who comes late in an outage still waits: one look.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Reach {
    away: Mutex<Option<Away>>,
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

    fn lost(&self, why: &str) {
        let mut away = self.away.lock();
        match &mut *away {
            Some(away) => why.clone_into(&mut away.why),
            None => {
                tracing::warn!(why, "the metadata database cannot be reached");
                *away =
                    Some(Away { since: Instant::now(), since_clock: SystemTime::now(), why: why.to_owned() });
            }
        }
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
        self.away.lock().as_ref().map(|away| (away.since_clock, away.why.clone()))
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
    }
}
