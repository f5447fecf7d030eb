//! What the metadata server is to be told of objects with two copies, until they have another view.

use std::collections::BTreeMap;

use cluster::replica::{Member, View};
use parking_lot::Mutex;
use proto::{BATCH_MAX, copies::CopyWord, data::Object};
use types::Ino;

use crate::views::{said_member, said_view};

/// One word. `silent`: this member does not answer; none: the second has every byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::data) struct Word {
    pub object: Object,
    pub ino: Ino,
    pub view: View,
    pub silent: Option<Member>,
}

/// One for each object and member at most, and the one that the second is complete.
#[derive(Default)]
pub(super) struct Words {
    said: Mutex<BTreeMap<(Ino, Option<Member>), Word>>,
}

impl Words {
    pub fn say(&self, word: Word) {
        self.said.lock().insert((word.ino, word.silent), word);
    }

    /// There is a newer view.
    pub fn forget(&self, ino: Ino, view: u64) {
        self.said.lock().retain(|(of, _), word| *of != ino || word.view.number >= view);
    }

    pub fn is_empty(&self) -> bool {
        self.said.lock().is_empty()
    }

    /// For a report: as many as it takes.
    pub fn now(&self) -> Vec<CopyWord> {
        let said = self.said.lock();
        let message = |word: &Word| CopyWord {
            object: Some(Object { view: Some(said_view(&word.view)), ..word.object }),
            silent: word.silent.map(said_member),
        };
        said.values().take(BATCH_MAX / 4).map(message).collect()
    }
}
