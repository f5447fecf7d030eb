//! How many pieces for new second copies are under way, of all objects together.

use std::sync::Arc;

use cluster::replica::copy::Copy;
use parking_lot::Mutex;

pub(super) struct Room {
    most: usize,
    under_way: Arc<Mutex<usize>>,
}

/// An object's part of those that are under way, until it is dropped.
#[derive(Default)]
pub(super) struct Share {
    of: Option<Arc<Mutex<usize>>>,
    count: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(all) = &self.of {
            *all.lock() -= self.count;
        }
    }
}

impl Room {
    pub fn new(most: usize) -> Room {
        Room { most, under_way: Arc::default() }
    }

    /// Lets an object's machine go on, with as many pieces as there may be.
    pub fn go_on(&self, share: &mut Share, core: &mut Copy, go_on: impl FnOnce(&mut Copy)) {
        if share.count == 0 && !core.lacks_pieces() {
            return go_on(core);
        }
        let mut all = self.under_way.lock();
        let others = *all - share.count;
        core.allow_pieces(self.most.saturating_sub(others));
        go_on(core);
        share.count = core.pieces();
        *all = others + share.count;
        drop(all);
        share.of.get_or_insert_with(|| self.under_way.clone());
    }
}
