//! Who waits at a full data server, or at one that has only memory, and what is known of room elsewhere.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use types::Ino;

use super::usage::Usage;

/// What the metadata server said of room elsewhere is believed for so long: it may be started again meanwhile.
const BELIEVED: Duration = Duration::from_secs(30);
/// Who does not ask again for so long does not wait any more.
pub(super) const ASKED_AGAIN: Duration = Duration::from_secs(5);
/// Objects that somebody waits for, at once. More are told to come later, and are not in the list.
pub(super) const WAITING_MAX: usize = 4096;
/// The metadata server is told early that somebody waits, but not more often than this.
const NUDGE: Duration = Duration::from_millis(50);

/// Somebody waits: since when, and when he asked last.
#[derive(Clone, Copy)]
pub(super) struct Waits {
    pub since: Instant,
    pub asked: Instant,
}

/// Room elsewhere, as it was said at some moment.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// In a tier that outlives its machine.
    pub safe: u64,
    pub any: u64,
    pub said: Instant,
}

#[derive(Default)]
pub(super) struct State {
    /// For objects to be safe; and how large they are.
    pub unsafe_ones: HashMap<Ino, (Waits, u64)>,
    /// For room.
    pub starved: Option<Waits>,
    /// What each metadata server said last; they may hear of others at different times.
    pub room: BTreeMap<u64, Room>,
    /// Whether the cluster has a tier that outlives its machine; `None`: nobody said yet.
    pub outlives: Option<bool>,
    /// When an object left last.
    pub left: Option<Instant>,
    /// When objects were last looked for that have been in memory for as long as they may, and how many there were.
    pub aged: Option<(Instant, u64)>,
    nudged: Option<Instant>,
}

/// One for each data service.
pub(super) struct Pressed {
    began: Instant,
    pub usage: Mutex<Usage>,
    pub state: Mutex<State>,
    /// Nothing leaves for so long: then there is no hope.
    pub patience: Duration,
    /// Closed objects leave memory that is the only tier after so long.
    pub leave_after: Option<Duration>,
    /// Whoever reports does so early.
    pub nudges: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl Pressed {
    pub(super) fn new(patience: Duration, leave_after: Option<Duration>) -> Pressed {
        let (usage, state, nudges) = (Mutex::default(), Mutex::default(), Mutex::default());
        Pressed { began: Instant::now(), usage, state, patience, leave_after, nudges }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn opened(&self, ino: Ino) {
        self.usage.lock().opened(ino, self.now());
    }

    pub(super) fn closed(&self, ino: Ino) {
        self.usage.lock().closed(ino, self.now());
    }

    pub(super) fn gone(&self, ino: Ino) {
        self.usage.lock().gone(ino);
        self.state.lock().unsafe_ones.remove(&ino);
    }

    /// It was handed over to another data server.
    pub(super) fn left(&self, ino: Ino) {
        self.gone(ino);
        self.state.lock().left = Some(Instant::now());
    }

    pub(super) fn is_starved(&self) -> bool {
        self.state.lock().starved.is_some_and(|waits| waits.asked.elapsed() < ASKED_AGAIN)
    }

    /// It was said that there is no room elsewhere, to somebody who has waited long enough for all to have reported.
    pub(super) fn is_without(&self, since: Instant, room: impl Fn(&Room) -> u64) -> bool {
        let state = self.state.lock();
        let mut said = state.room.values().filter(|said| said.said.elapsed() < BELIEVED);
        since.elapsed() > self.patience / 8 && said.all(|said| room(said) == 0)
    }

    pub(super) fn nudge(&self) {
        let now = Instant::now();
        {
            let mut state = self.state.lock();
            if state.nudged.is_some_and(|last| now - last < NUDGE) {
                return;
            }
            state.nudged = Some(now);
        }
        self.nudges.lock().iter().for_each(|nudge| nudge());
    }
}
