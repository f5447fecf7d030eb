//! Watches the devices: looks at what their operations took, tells the core which are slow or fail, and tries one that is not well, so
//! that it is seen when it is again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::Mutex;
use store::{Reading, TierStore};
use tier::{
    Input,
    health::{Health, Limits, Sums, WINDOW, Watch},
};
use types::{Errno, TierId, TierSet};

use crate::{
    DataServer,
    object::{Object, State},
};

const LOOK: Duration = Duration::from_secs(1);

pub(crate) struct Watches {
    /// By tier; `None`: no device of ours.
    each: Mutex<[Option<Watch>; 3]>,
    any_ill: AtomicBool,
}

impl Watches {
    pub fn new(stores: &[Option<TierStore>; 3], now: Duration) -> Watches {
        let watch = |tier: TierId| {
            let store = stores[tier.index()].as_ref()?;
            Some(Watch::new(now, Limits::new(tier, store.slow_after()?), sums(&store.reading()?)))
        };
        Watches { each: Mutex::new(TierId::ALL.map(watch)), any_ill: AtomicBool::new(false) }
    }
}

fn is_on_devices(state: &State) -> bool {
    TierSet::PERSISTENT.iter().any(|tier| state.charged[tier.index()] > 0)
}

impl DataServer {
    /// Of a tier's device, as it was at the last look.
    pub fn health(&self, tier: TierId) -> Health {
        self.watches.each.lock()[tier.index()].as_ref().map_or(Health::Well, Watch::health)
    }

    /// Is some device slow, or does one fail?
    pub fn is_ill(&self) -> bool {
        self.watches.any_ill.load(Ordering::Relaxed)
    }

    /// These tiers, those whose devices are well before the others.
    pub(crate) fn well_first(&self, tiers: impl Iterator<Item = TierId>) -> Vec<TierId> {
        let (well, ill): (Vec<TierId>, Vec<TierId>) = tiers.partition(|tier| self.health(*tier).is_well());
        well.into_iter().chain(ill).collect()
    }

    /// Is all of the object in memory, so that no device is asked when it is written to?
    pub fn needs_no_device(&self, object: &Object) -> bool {
        object.state.try_read().is_some_and(|state| !is_on_devices(&state))
            && self.own().contains(TierId::Memory)
    }

    /// May a write to the object be one to a device, or wait for one?
    pub(crate) fn may_ask_devices(&self, state: &State) -> bool {
        is_on_devices(state)
            || state.in_place.is_some_and(TierId::is_persistent)
            || (state.sync_mode && self.has_persistent())
    }

    pub(crate) fn watch_devices(
        self: &Arc<DataServer>,
        threads: &mut Vec<JoinHandle<()>>,
    ) -> Result<(), Errno> {
        let server = self.clone();
        let watch = std::thread::Builder::new().name("devices".into());
        threads.push(watch.spawn(move || {
            while !server.stopping() {
                server.sleep(LOOK);
                server.look_at_devices();
            }
        })?);
        for tier in TierId::ALL.into_iter().filter(|tier| tier.is_persistent()) {
            if self.stores[tier.index()].is_some() {
                let server = self.clone();
                let probe = std::thread::Builder::new().name(format!("probe-{tier}"));
                threads.push(probe.spawn(move || server.run_probe(tier))?);
            }
        }
        Ok(())
    }

    fn look_at_devices(&self) {
        for tier in TierId::ALL {
            let Some(reading) = self.stores[tier.index()].as_ref().and_then(TierStore::reading) else {
                continue;
            };
            let mut watches = self.watches.each.lock();
            let Some(watch) = watches[tier.index()].as_mut() else { continue };
            let before = watch.health();
            let health = watch.look(self.driver.now(), &sums(&reading));
            let ill = watches.iter().flatten().any(|watch| !watch.health().is_well());
            drop(watches);
            self.watches.any_ill.store(ill, Ordering::Relaxed);
            if before.is_well() != health.is_well() {
                let slow = !health.is_well();
                self.driver.tell(Input::Slow { tier, slow });
                if slow {
                    tracing::warn!(%tier, "the device is not well, other tiers are taken before it: {}", words(health));
                } else {
                    tracing::info!(%tier, "the device is well again");
                }
            }
        }
    }

    /// In a thread of its own: it may hang with the device.
    fn run_probe(&self, tier: TierId) {
        while !self.stopping() {
            self.sleep(WINDOW / 2);
            let Some(store) = self.stores[tier.index()].as_ref() else { return };
            if !self.health(tier).is_well() && !self.stopping() {
                // How it ended counts with the device's other operations.
                let _ = store.try_device();
            }
        }
    }
}

fn sums(reading: &Reading) -> Sums {
    let Reading { done, slow, failed, bytes, oldest, .. } = *reading;
    Sums { done, slow, failed, bytes, oldest }
}

/// For people; empty: it is well.
pub fn words(health: Health) -> String {
    match health {
        Health::Well => String::new(),
        Health::Slow { operations: 0, longest } => {
            format!("hangs: an operation has not ended for {} s", longest.as_secs())
        }
        Health::Slow { operations, .. } => format!("slow: {operations} operations took too long"),
        Health::Failing { errors } => format!("fails: {errors} errors of the device in the last minutes"),
    }
}
