//! The objects that are in use, by inode number: one `Object` per inode at any moment.

use crate::{
    driver::Driver,
    object::{Home, Left, Object, Verified},
};
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};
use tier::ObjectPolicy;
use types::{Errno, Ino};

const SHARDS: usize = 64;
/// Words (8 bytes, 256 MiB of a file) of what is remembered of objects that nobody uses; it is begun anew above.
const REMEMBERED_WORDS_MAX: usize = 64 << 10;

type Shard = HashMap<Ino, Weak<Object>>;

pub(crate) struct ObjectTable {
    shards: Vec<Mutex<Shard>>,
    driver: Arc<Driver>,
    policies: Arc<Mutex<HashMap<Ino, ObjectPolicy>>>,
    compared: Mutex<Compared>,
}

/// Which SAUs were compared with their checksums, of objects that nobody uses now. Their maps cannot change meanwhile.
#[derive(Default)]
struct Compared {
    by_ino: HashMap<Ino, Verified>,
    words: usize,
}

impl ObjectTable {
    pub fn new(driver: Arc<Driver>, policies: Arc<Mutex<HashMap<Ino, ObjectPolicy>>>) -> Arc<ObjectTable> {
        Arc::new(ObjectTable {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            driver,
            policies,
            compared: Mutex::default(),
        })
    }

    pub fn get(&self, ino: Ino) -> Option<Arc<Object>> {
        self.shard(ino).get(&ino).and_then(Weak::upgrade)
    }

    /// The object, made by `load` if nobody uses it. `bool`: it was made now. No second one can come up meanwhile.
    pub fn get_or_load(
        self: &Arc<ObjectTable>,
        ino: Ino,
        load: impl FnOnce() -> Result<Arc<Object>, Errno>,
    ) -> Result<(Arc<Object>, bool), Errno> {
        let mut shard = self.shard(ino);
        if let Some(object) = shard.get(&ino).and_then(Weak::upgrade) {
            return Ok((object, false));
        }
        let object = load()?;
        shard.insert(ino, Arc::downgrade(&object));
        Ok((object, true))
    }

    /// The numbers of those in use for which `wanted` says so.
    pub fn select(&self, wanted: &dyn Fn(&Object) -> bool) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            // Let go of before the last use of one ends, which takes a shard's lock.
            let all: Vec<Arc<Object>> = shard.lock().values().filter_map(Weak::upgrade).collect();
            found.extend(all.iter().filter(|object| wanted(object)).map(|object| object.ino()));
        }
        found
    }

    /// What an earlier life of the object knew, for the one that is being loaded or for none any more.
    pub fn take_compared(&self, ino: Ino) -> Verified {
        let mut compared = self.compared.lock();
        let verified = compared.by_ino.remove(&ino).unwrap_or_default();
        compared.words -= verified.words();
        verified
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        let n = ino.get() ^ ino.get() >> 40;
        self.shards[n as usize % SHARDS].lock()
    }
}

impl ObjectTable {
    fn remember(&self, ino: Ino, verified: Verified) {
        let words = verified.words();
        if words == 0 || words > REMEMBERED_WORDS_MAX {
            return;
        }
        let mut compared = self.compared.lock();
        if compared.words + words > REMEMBERED_WORDS_MAX {
            *compared = Compared::default();
        }
        compared.words += words;
        if let Some(before) = compared.by_ino.insert(ino, verified) {
            compared.words -= before.words();
        }
    }
}

impl Home for ObjectTable {
    /// The last user of an object let go of it.
    fn dropped(&self, ino: Ino, Left { known, at_risk, verified }: Left) {
        let mut shard = self.shard(ino);
        // Someone may have made a new one already.
        if shard.get(&ino).is_some_and(|o| o.strong_count() == 0) {
            shard.remove(&ino);
            self.remember(ino, verified);
            // Movers ask for it only while there is something to make safe.
            if !at_risk {
                self.policies.lock().remove(&ino);
            }
            // Under the lock, so that the core hears of the next life of the object after this.
            if known {
                self.driver.tell(tier::Input::Detached { ino });
            }
        }
    }
}
