//! While a device is slow, those who wait for it do not take all threads: what needs no device, and other files, go on.
//!
//! An object has so many requests at once then, and all that may wait for a device so many. Who comes beyond that is told to come later,
//! unless memory alone can serve it. While all devices are well nothing is counted.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use types::Ino;

/// Of one object: they wait for each other in any case.
const OF_ONE: usize = 8;

pub(super) struct HeldUp {
    /// That may wait for a device at once.
    most: usize,
    within: AtomicUsize,
    objects: Mutex<HashMap<Ino, usize>>,
}

/// One that may wait for a device.
pub(super) struct Within<'a>(Option<&'a HeldUp>);

impl Drop for Within<'_> {
    fn drop(&mut self) {
        if let Some(held_up) = self.0 {
            held_up.within.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// One of the object's.
pub(super) struct OfObject<'a>(Option<(&'a HeldUp, Ino)>);

impl Drop for OfObject<'_> {
    fn drop(&mut self) {
        let Some((held_up, ino)) = self.0 else { return };
        let mut objects = held_up.objects.lock();
        match objects.get_mut(&ino) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(objects.remove(&ino)),
        }
    }
}

impl HeldUp {
    /// Half of the threads.
    pub(super) fn new(threads: usize) -> HeldUp {
        HeldUp { most: (threads / 2).max(1), within: AtomicUsize::new(0), objects: Mutex::default() }
    }

    pub(super) fn enter(&self, ill: bool) -> Option<Within<'_>> {
        if !ill {
            return Some(Within(None));
        }
        if self.within.fetch_add(1, Ordering::AcqRel) < self.most {
            return Some(Within(Some(self)));
        }
        self.within.fetch_sub(1, Ordering::AcqRel);
        None
    }

    pub(super) fn enter_object(&self, ino: Ino, ill: bool) -> Option<OfObject<'_>> {
        if !ill {
            return Some(OfObject(None));
        }
        let mut objects = self.objects.lock();
        let count = objects.entry(ino).or_default();
        if *count >= OF_ONE {
            return None;
        }
        *count += 1;
        drop(objects);
        Some(OfObject(Some((self, ino))))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    //! Goal: the bounds hold while a device is ill, and everything that was counted is given back. Method: by hand.
    use types::{LocalId, UgsdId};

    use super::*;

    #[test]
    fn half_of_the_threads_and_a_few_of_an_object() {
        let held_up = HeldUp::new(4);
        let ino = |n| Ino::new(UgsdId::ROOT, LocalId::new(n).unwrap());
        let well: Vec<_> = (0..100).map(|_| held_up.enter(false)).collect();
        assert!(well.iter().all(Option::is_some));
        let (a, b) = (held_up.enter(true), held_up.enter(true));
        assert!(a.is_some() && b.is_some() && held_up.enter(true).is_none());
        drop(well);
        drop(a);
        assert!(held_up.enter(true).is_some());
        let of_one: Vec<_> = (0..OF_ONE).map(|_| held_up.enter_object(ino(2), true)).collect();
        assert!(of_one.iter().all(Option::is_some));
        assert!(held_up.enter_object(ino(2), true).is_none() && held_up.enter_object(ino(3), true).is_some());
        drop(of_one);
        assert!(held_up.objects.lock().is_empty());
    }
}
