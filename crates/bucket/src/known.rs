//! What looks at objects found, so that a listing need not look at each of them again.
//!
//! A listing tells size, time and ETag, and only a look tells the metadata. What has the same three as when it was looked at has the same
//! metadata, unless it was changed in the same second: what is younger than a minute is not remembered. Of a directory a listing tells
//! nothing, so its marker is looked at again after a while.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use link::Found;
use opendal::Metadata;
use parking_lot::Mutex;
use types::Timestamp;

use crate::object::last_modified;

/// Objects that are remembered; with more all are forgotten, and looked at again. Some 200 bytes each.
const REMEMBERED: usize = 1 << 17;
/// What is younger is looked at each time. Clocks may be apart by less.
const YOUNG: Duration = Duration::from_secs(60);
/// For so long a directory has the attributes that it had.
const MARKER: Duration = Duration::from_secs(30);

/// What a listing tells of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    etag: String,
    size: u64,
    changed: Timestamp,
}

impl Told {
    pub fn of(metadata: &Metadata) -> Told {
        Told {
            etag: metadata.etag().unwrap_or_default().to_owned(),
            size: metadata.content_length(),
            changed: last_modified(metadata),
        }
    }
}

#[derive(Default)]
pub(crate) struct Known {
    files: Mutex<HashMap<String, (Told, Found)>>,
    markers: Mutex<HashMap<String, (Instant, Found)>>,
}

impl Known {
    pub fn file(&self, key: &str, told: &Told) -> Option<Found> {
        let files = self.files.lock();
        files.get(key).filter(|(then, _)| then == told && !told.etag.is_empty()).map(|(_, found)| *found)
    }

    pub fn note_file(&self, key: &str, metadata: &Metadata, found: Found, now: Timestamp) {
        let told = Told::of(metadata);
        if told.changed.plus(YOUNG) > now {
            return;
        }
        let mut files = self.files.lock();
        if files.len() >= REMEMBERED {
            files.clear();
        }
        files.insert(key.to_owned(), (told, found));
    }

    pub fn dir(&self, key: &str) -> Option<Found> {
        let markers = self.markers.lock();
        markers.get(key).filter(|(then, _)| then.elapsed() < MARKER).map(|(_, found)| *found)
    }

    pub fn note_dir(&self, key: &str, found: Found) {
        let mut markers = self.markers.lock();
        if markers.len() >= REMEMBERED {
            markers.clear();
        }
        markers.insert(key.to_owned(), (Instant::now(), found));
    }

    /// It is changed by us.
    pub fn forget(&self, key: &str) {
        self.files.lock().remove(key);
        self.markers.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;

    #[test]
    fn only_what_is_old_and_the_same_is_known() {
        let of = |etag: &str, sec| {
            Metadata::new(opendal::EntryMode::FILE)
                .with_etag(etag.to_owned())
                .with_content_length(3)
                .with_last_modified(opendal::raw::Timestamp::from_second(sec).unwrap())
        };
        let (known, then) = (Known::default(), of("e", 100));
        let found = object::file(&then, (0, 0));
        known.note_file("k", &then, found, Timestamp { sec: 150, nsec: 0 });
        assert_eq!(known.file("k", &Told::of(&then)), None, "too young");
        known.note_file("k", &then, found, Timestamp { sec: 161, nsec: 0 });
        assert_eq!(known.file("k", &Told::of(&then)), Some(found));
        assert_eq!(known.file("k", &Told::of(&of("f", 100))), None);
        assert_eq!(known.file("k", &Told::of(&of("e", 101))), None);
        assert_eq!(known.file("l", &Told::of(&then)), None);
        known.forget("k");
        assert_eq!(known.file("k", &Told::of(&then)), None);
    }
}
