//! How much each client asked for.
//!
//! Each worker counts by itself, so that no request waits for another's count: only who looks takes all of the locks, one after the other.
//! Bounded: clients that came and went are forgotten, and beyond the bound they are counted together.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proto::watch::{ClientLoad, Load};

/// Clients that one worker tells apart.
const CLIENTS_MAX: usize = 4096;
/// One that asked nothing for so long may be forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// All that are not told apart.
const OTHERS: u64 = 0;

/// Of one worker.
#[derive(Default)]
pub(crate) struct Share(Mutex<HashMap<u64, (Load, Instant)>>);

impl Share {
    pub(crate) fn count(&self, client: u64, load: &Load, now: Instant) {
        let mut clients = self.0.lock();
        let there = clients.contains_key(&client);
        if !there && clients.len() >= CLIENTS_MAX {
            clients.retain(|_, (_, at)| now.saturating_duration_since(*at) < FORGOTTEN_AFTER);
        }
        let client = if there || clients.len() < CLIENTS_MAX { client } else { OTHERS };
        let (sum, at) = clients.entry(client).or_insert((Load::default(), now));
        *sum = sum.and(load);
        *at = now;
    }
}

/// All workers of a service.
#[derive(Default)]
pub(crate) struct Crowd(Mutex<Vec<Arc<Share>>>);

impl Crowd {
    /// For one more worker.
    pub(crate) fn share(&self) -> Arc<Share> {
        let share: Arc<Share> = Arc::default();
        self.0.lock().push(share.clone());
        share
    }

    pub(crate) fn add_to(&self, sums: &mut BTreeMap<u64, Load>) {
        for share in self.0.lock().iter() {
            for (client, (load, _)) in share.0.lock().iter() {
                let sum = sums.entry(*client).or_default();
                *sum = sum.and(load);
            }
        }
    }
}

/// As they are sent: those that asked for the most, if there are too many.
pub(crate) fn listed(sums: BTreeMap<u64, Load>) -> Vec<ClientLoad> {
    let mut clients: Vec<ClientLoad> =
        sums.into_iter().map(|(client, load)| ClientLoad { client, load }).collect();
    clients.sort_by_key(|one| std::cmp::Reverse(one.load.requests));
    clients.truncate(CLIENTS_MAX);
    clients
}

#[cfg(test)]
mod tests {
    //! Goal: nothing is counted twice or lost, and the number of clients is bounded. Method: two workers, more clients than they tell apart.
    use super::*;

    #[test]
    fn clients_beyond_the_bound_are_counted_together() {
        let crowd = Crowd::default();
        let (one, two) = (crowd.share(), crowd.share());
        let load = Load { requests: 1, ..Load::default() };
        let now = Instant::now();
        let most = CLIENTS_MAX as u64;
        (1..=most + 3).for_each(|client| one.count(client, &load, now));
        two.count(7, &load, now);
        let sums = || {
            let mut sums = BTreeMap::new();
            crowd.add_to(&mut sums);
            sums
        };
        assert_eq!((sums()[&7].requests, sums()[&OTHERS].requests), (2, 3));
        // Those that were silent make room.
        one.count(most + 9, &load, now + FORGOTTEN_AFTER);
        let later = sums();
        assert_eq!(
            (later[&(most + 9)].requests, later.len()),
            (1, 2),
            "the last one, and what the other worker knows"
        );
        assert_eq!(listed(later)[0].load.requests, 1);
    }
}
