//! Directories whose names the kernel may go on with: it read them, and nobody changed them behind it since.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use types::Ino;

use crate::Linked;

/// With more of them all are read anew.
const DIRECTORIES: usize = 1 << 18;

/// When each was given to the kernel to read.
#[derive(Default)]
pub(crate) struct Kept(Mutex<HashMap<Ino, Instant>>);

impl Kept {
    /// Somebody opens it: does what was read before count? Not for longer than the kernel keeps the attributes that it read with the
    /// names, or whoever wants those would ask for each by itself.
    fn open(&self, dir: Ino, fresh: Duration) -> bool {
        let (now, mut kept) = (Instant::now(), self.0.lock());
        if kept.get(&dir).is_some_and(|read| now.duration_since(*read) < fresh) {
            return true;
        }
        if kept.len() >= DIRECTORIES {
            kept.clear();
        }
        kept.insert(dir, now);
        false
    }

    /// What the kernel has of it is perhaps old.
    pub fn changed(&self, dir: Ino) {
        self.0.lock().remove(&dir);
    }
}

impl Linked {
    /// A directory that was visited is opened: may the kernel use the names that it has of it? Otherwise it reads them anew.
    pub fn may_keep_names(&self, dir: Ino) -> bool {
        self.kept.open(dir, self.settings.interval)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: names are kept for a while, unless they change. Method: one directory.
    use super::*;

    #[test]
    fn names_are_kept_until_they_change_or_are_old() {
        let (kept, dir, long) = (Kept::default(), Ino::ROOT, Duration::from_secs(3600));
        assert!(!kept.open(dir, long), "nobody read it");
        assert!(kept.open(dir, long) && kept.open(dir, long));
        kept.changed(dir);
        assert!(!kept.open(dir, long));
        assert!(kept.open(dir, long));
        assert!(!kept.open(dir, Duration::ZERO), "old");
    }
}
