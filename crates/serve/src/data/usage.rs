//! How objects were used, for the choice of those that leave this data server: the paper's coolness (section 6.2), of what is open and what is closed
//! here. An object is open while somebody asks about it, and closed when nobody did for a while.
//!
//! Pure. In memory: what was closed before the data server was started counts as closed then.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use types::Ino;

/// Closed objects that are remembered, some 100 bytes each: those that were closed last. Of the others it is known that they were closed before.
const CLOSED_MAX: usize = 65_536;
/// Shorter periods count as this.
const PERIOD_MIN: f64 = 0.001;

#[derive(Clone, Copy, Default)]
struct Past {
    /// Of the last opening or closing.
    since: Duration,
    /// Means of the times from close to open and from open to close, in seconds, and of how many.
    closed: (f64, u32),
    open: (f64, u32),
}

/// A mean with one more value.
fn with(mean: (f64, u32), value: Duration) -> (f64, u32) {
    let count = mean.1.saturating_add(1);
    (mean.0 + (value.as_secs_f64() - mean.0) / f64::from(count), count)
}

impl Past {
    /// T_co / T_oc, where a time that is not known is `unknown`.
    fn factor(&self, unknown: f64) -> f64 {
        let known = |mean: (f64, u32)| if mean.1 > 0 { mean.0 } else { unknown };
        known(self.closed).max(PERIOD_MIN) / known(self.open).max(PERIOD_MIN)
    }
}

#[derive(Default)]
pub(super) struct Usage {
    open: HashMap<Ino, Past>,
    closed: HashMap<Ino, Past>,
    /// The same, by when they were closed.
    order: BTreeSet<(Duration, Ino)>,
}

impl Usage {
    pub(super) fn opened(&mut self, ino: Ino, now: Duration) {
        if self.open.contains_key(&ino) {
            return;
        }
        let mut past = self.take_closed(ino).unwrap_or_default();
        // Nobody was seen to close one that was never open here.
        if past.open.1 > 0 {
            past.closed = with(past.closed, now.saturating_sub(past.since));
        }
        past.since = now;
        self.open.insert(ino, past);
    }

    pub(super) fn closed(&mut self, ino: Ino, now: Duration) {
        let Some(mut past) = self.open.remove(&ino) else { return };
        past.open = with(past.open, now.saturating_sub(past.since));
        past.since = now;
        self.closed.insert(ino, past);
        self.order.insert((now, ino));
        while self.order.len() > CLOSED_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.closed.remove(&oldest);
        }
    }

    pub(super) fn gone(&mut self, ino: Ino) {
        self.open.remove(&ino);
        self.take_closed(ino);
    }

    fn take_closed(&mut self, ino: Ino) -> Option<Past> {
        let past = self.closed.remove(&ino)?;
        self.order.remove(&(past.since, ino));
        Some(past)
    }

    pub(super) fn is_open(&self, ino: Ino) -> bool {
        self.open.contains_key(&ino)
    }

    /// How long a closed object has been closed; one that is not remembered, since the start.
    pub(super) fn closed_for(&self, ino: Ino, now: Duration) -> Duration {
        now.saturating_sub(self.closed.get(&ino).map_or(Duration::ZERO, |past| past.since))
    }

    /// Of a closed object, in milliseconds: T_closed (T_co / T_oc).
    pub(super) fn cool_closed(&self, ino: Ino, now: Duration) -> u64 {
        let closed = self.closed_for(ino, now).as_secs_f64();
        // Never reopened: T_co is T_closed, the least that it can become. Not remembered: only T_closed speaks.
        let factor = self.closed.get(&ino).map_or(1.0, |past| past.factor(closed));
        (closed * factor * 1000.0) as u64
    }

    /// Of an open object, in thousandths: LRU-open (T_co / T_oc). `rank`: 1 for the one that was used last.
    pub(super) fn cool_open(&self, ino: Ino, rank: u64, now: Duration) -> u64 {
        let factor = self.open.get(&ino).map_or(1.0, |past| {
            let open = now.saturating_sub(past.since).as_secs_f64();
            // Of a file of which nothing is known the factor says nothing.
            let t_oc = if past.open.1 > 0 { past.open.0 } else { open };
            past.factor(t_oc)
        });
        (rank as f64 * factor * 1000.0) as u64
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    //! Goal: the coolest is who is not used for long, and was not used for long before. Method: by hand.
    use types::{LocalId, UgsdId};

    use super::*;

    fn ino(n: u64) -> Ino {
        Ino::new(UgsdId::ROOT, LocalId::new(n).unwrap())
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn coolness_is_as_in_the_paper() {
        let mut usage = Usage::default();
        // Open 10 s, closed 40 s, open 10 s, closed since 60.
        for (open, close) in [(0, 10), (50, 60)] {
            usage.opened(ino(2), s(open));
            usage.closed(ino(2), s(close));
        }
        // Open 20 s, never opened again; closed since 60, too.
        usage.opened(ino(3), s(40));
        usage.closed(ino(3), s(60));
        assert_eq!(usage.cool_closed(ino(2), s(80)), 20 * 4 * 1000);
        assert_eq!(usage.cool_closed(ino(3), s(80)), 20 * 1000);
        assert_eq!(usage.cool_closed(ino(4), s(80)), 80 * 1000, "of before the start");
        usage.opened(ino(2), s(80));
        assert!(usage.is_open(ino(2)) && !usage.is_open(ino(3)));
        // T_co is (40 + 20) / 2 now.
        assert_eq!(usage.cool_open(ino(2), 5, s(90)), 5 * 3 * 1000);
        usage.opened(ino(5), s(80));
        assert_eq!(usage.cool_open(ino(5), 2, s(90)), 2000);
        usage.gone(ino(2));
        assert!(!usage.is_open(ino(2)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut usage = Usage::default();
        let all = CLOSED_MAX as u64 + 10;
        for n in 2..all + 2 {
            usage.opened(ino(n), s(n));
            usage.closed(ino(n), s(n + 1));
        }
        assert_eq!((usage.closed.len(), usage.order.len()), (CLOSED_MAX, CLOSED_MAX));
        assert_eq!(usage.closed_for(ino(2), s(all)), s(all), "the first are forgotten");
    }
}
