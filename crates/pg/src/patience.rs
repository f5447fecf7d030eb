//! Who would rather have no answer than a late one.

use std::{cell::Cell, time::Duration};

/// What such a reader waits for a database that went away.
const LOOK: Duration = Duration::from_millis(500);

thread_local! {
    static IMPATIENT: Cell<bool> = const { Cell::new(false) };
}

/// Reads that `work` makes on this thread fail after half a second, not after the patience that programs need.
pub fn without_waiting<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            IMPATIENT.set(self.0);
        }
    }
    let _before = Before(IMPATIENT.replace(true));
    work()
}

/// Of this thread, if it would wait for `wait`.
pub(crate) fn patience(wait: Duration) -> Duration {
    if IMPATIENT.get() { wait.min(LOOK) } else { wait }
}
