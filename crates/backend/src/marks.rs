//! Names that a change is about which was given up and has not come back.
//!
//! It may be done at any moment: a removal would take what was made anew under the name, a rename would bring an old file back. So
//! until it returns no other change is made to the same name.

use std::{collections::BTreeMap, sync::Arc};

use link::Way;
use parking_lot::Mutex;

type Name = Vec<Vec<u8>>;

/// How many such changes each name has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks(Arc<Mutex<BTreeMap<Name, u64>>>);

/// The names of one change.
pub(crate) struct Mark {
    marks: Marks,
    names: Vec<Name>,
}

impl Marks {
    /// `None`: a change is out on one of the names.
    pub(crate) fn of(&self, ways: &[&Way]) -> Option<Mark> {
        let marks = self.0.lock();
        if !marks.is_empty() && ways.iter().any(|way| marks.contains_key(*way)) {
            return None;
        }
        drop(marks);
        Some(Mark { marks: self.clone(), names: ways.iter().map(|way| way.to_vec()).collect() })
    }
}

impl Mark {
    pub(crate) fn put(&self) {
        let mut marks = self.marks.0.lock();
        for name in &self.names {
            *marks.entry(name.clone()).or_default() += 1;
        }
    }

    pub(crate) fn lift(&self) {
        let mut marks = self.marks.0.lock();
        for name in &self.names {
            if let Some(count) = marks.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    marks.remove(name);
                }
            }
        }
    }
}
