//! What may take long while a server or a mount begins: who waits is told for what.

use std::{sync::mpsc, thread, time::Duration};

use crate::running::StartError;

/// Whoever waits longer is told.
const TOLD_AFTER: Duration = Duration::from_secs(3);

/// Runs it, and notes `waits_for` if that takes long.
pub(super) fn told<T: Send>(
    note: &mut dyn FnMut(&str),
    waits_for: &str,
    run: impl FnOnce() -> T + Send,
) -> Result<T, StartError> {
    let ran = thread::scope(|scope| {
        let (ended, waits) = mpsc::sync_channel(1);
        let thread = scope.spawn(move || {
            let ran = run();
            // There is room for it, and who was told already does not listen.
            let _ = ended.try_send(());
            ran
        });
        if waits.recv_timeout(TOLD_AFTER) == Err(mpsc::RecvTimeoutError::Timeout) {
            note(waits_for);
        }
        thread.join()
    });
    ran.map_err(|_| StartError::Failed("it ended with a panic".to_owned()))
}
