//! The objects that are in use, by inode number: one `Object` per inode at any moment.

use crate::{
    driver::Driver,
    object::{Home, Object},
};
use parking_lot::{Mutex, MutexGuard};
use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};
use types::{Errno, Ino};

const SHARDS: usize = 64;

type Shard = HashMap<Ino, Weak<Object>>;

pub(crate) struct ObjectTable {
    shards: Vec<Mutex<Shard>>,
    driver: Arc<Driver>,
}

impl ObjectTable {
    pub fn new(driver: Arc<Driver>) -> Arc<ObjectTable> {
        Arc::new(ObjectTable { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), driver })
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

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        let n = ino.get() ^ ino.get() >> 40;
        self.shards[n as usize % SHARDS].lock()
    }
}

impl Home for ObjectTable {
    /// The last user of an object let go of it.
    fn dropped(&self, ino: Ino) {
        let mut shard = self.shard(ino);
        // Someone may have made a new one already.
        if shard.get(&ino).is_some_and(|o| o.strong_count() == 0) {
            shard.remove(&ino);
            // Under the lock, so that the core hears of the next life of the object after this.
            self.driver.tell(tier::Input::Detached { ino });
        }
    }
}
