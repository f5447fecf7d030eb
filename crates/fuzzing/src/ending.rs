//! The end of threads that go on until they are told.

use std::sync::atomic::{AtomicBool, Ordering};

/// Tells threads to end when it goes, also by a panic: a `thread::scope` waits for them, and a failure would show as a test that
/// never ends.
#[derive(Debug)]
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
