//! The time by which others are silent. It goes on only while this server does: in what it stood still (its machine was stopped, or had no time for
//! it) it heard nobody, and whoever asked meanwhile is answered first.
//!
//! It is never ahead of other clocks, so whoever is given up by it, or forgotten, is so later, and never sooner.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Some of the looks of a machine that has little time.
const LEAST: Duration = Duration::from_millis(500);

/// Somebody looks at it again and again; without a look it stops soon.
pub(crate) struct Waking {
    started: Instant,
    /// For so long it goes on without a look.
    most: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the clock, and by this one.
    looked: Duration,
    awake: Duration,
}

impl State {
    fn at(&self, elapsed: Duration, most: Duration) -> Duration {
        self.awake + elapsed.saturating_sub(self.looked).min(most)
    }
}

impl Waking {
    /// For who is given up when it was silent for so long.
    pub fn for_silence(silence: Duration) -> Waking {
        let most = (silence / 5).max(LEAST);
        Waking { started: Instant::now(), most, state: Mutex::default() }
    }

    pub fn now(&self) -> Duration {
        let state = self.state.lock();
        state.at(self.started.elapsed(), self.most)
    }

    pub fn look(&self) {
        let mut state = self.state.lock();
        let elapsed = self.started.elapsed();
        state.awake = state.at(elapsed, self.most);
        state.looked = elapsed;
    }
}

#[cfg(test)]
mod tests {
    //! Goal: what goes by without a look counts up to the bound. Method: times by hand.
    use super::*;

    #[test]
    fn it_stops_soon_without_a_look() {
        let ms = Duration::from_millis;
        let state = State { looked: ms(1000), awake: ms(700) };
        assert_eq!(state.at(ms(1000), ms(300)), ms(700));
        assert_eq!(state.at(ms(1200), ms(300)), ms(900));
        assert_eq!(state.at(ms(1300), ms(300)), ms(1000));
        assert_eq!(state.at(ms(60_000), ms(300)), ms(1000));
        assert_eq!(state.at(ms(900), ms(300)), ms(700), "a clock that was read before");
    }
}
