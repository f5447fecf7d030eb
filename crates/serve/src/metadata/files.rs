//! Regular files that some session has open, or whose writing is not settled.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use proto::{SessionId, attr::Time};
use types::Ino;

use super::placed::Placed;

/// One file; its lock is held over questions to data servers, which have a deadline.
pub(crate) struct File {
    pub ino: Ino,
    pub state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    pub openings: u32,
    pub writers: u32,
    /// The metadata say, in this life of the server, that it is being written.
    pub begun: bool,
    /// The session and the opening that made it, which begins its writing: nobody else may have written it yet.
    pub untouched: Option<(SessionId, u64)>,
    /// What its data servers may not know yet: that it is settled, with these times of each stripe.
    pub to_tell: Option<Vec<Option<Time>>>,
    /// As it is stored, once it was looked for.
    pub placed: Option<Placed>,
    /// Up to here appends have been given ranges.
    pub append_end: u64,
    /// It has left the table.
    pub gone: bool,
}

impl State {
    /// Nobody needs it to be in the table.
    pub(crate) fn is_idle(&self) -> bool {
        self.openings == 0 && !self.begun && self.to_tell.is_none()
    }
}

#[derive(Default)]
pub(crate) struct Files {
    table: Mutex<HashMap<Ino, Arc<File>>>,
}

impl Files {
    pub(crate) fn get_or_make(&self, ino: Ino) -> Arc<File> {
        let mut table = self.table.lock();
        table.entry(ino).or_insert_with(|| Arc::new(File { ino, state: Mutex::default() })).clone()
    }

    /// Under its lock, while it is in the table, where it stays if somebody needs it.
    pub(crate) fn with<R>(&self, ino: Ino, run: impl FnOnce(&File, &mut State) -> R) -> R {
        loop {
            let file = self.get_or_make(ino);
            let mut state = file.state.lock();
            // It left before it was locked: what is counted now counts in the one that came after it.
            if state.gone {
                continue;
            }
            let result = run(&file, &mut state);
            self.remove_if_idle(&file, &mut state);
            return result;
        }
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        let file = self.table.lock().get(&ino).cloned();
        file.is_some_and(|file| file.state.lock().openings > 0)
    }

    /// Under the file's lock.
    pub(crate) fn remove_if_idle(&self, file: &File, state: &mut State) {
        if state.is_idle() && !state.gone {
            state.gone = true;
            self.table.lock().remove(&file.ino);
        }
    }

    /// Takes out those of slots that go: being written, or with ranges given to appends.
    pub(crate) fn take(&self, there: &dyn Fn(Ino) -> bool) -> Vec<(Ino, u64)> {
        let some: Vec<Arc<File>> =
            self.table.lock().values().filter(|file| there(file.ino)).cloned().collect();
        let mut taken = Vec::new();
        for file in some {
            let mut state = file.state.lock();
            if state.gone {
                continue;
            }
            if state.begun || state.append_end > 0 {
                taken.push((file.ino, state.append_end));
            }
            state.gone = true;
            self.table.lock().remove(&file.ino);
        }
        taken
    }

    pub(crate) fn len(&self) -> usize {
        self.table.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Goal: what is counted in a file is there when it is looked for. Method: one waits for the lock of a file that leaves the table meanwhile.
    #[test]
    fn regression_nothing_is_counted_in_a_file_that_left_the_table() {
        let (files, ino) = (Files::default(), Ino::ROOT);
        let first = files.get_or_make(ino);
        let mut state = first.state.lock();
        thread::scope(|scope| {
            scope.spawn(|| files.with(ino, |_, state| state.openings += 1));
            // The table has it, this test, and who waits.
            while Arc::strong_count(&first) < 3 {
                thread::yield_now();
            }
            files.remove_if_idle(&first, &mut state);
            drop(state);
        });
        assert_eq!((files.len(), files.with(ino, |_, state| state.openings)), (1, 1));
    }
}
