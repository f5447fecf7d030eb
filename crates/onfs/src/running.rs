//! What the daemon supervises: a mounted file system, whatever it is built of.

use std::{sync::Arc, time::Duration};

use crate::{
    control::{ControlError, ControlHandler, MoveReport, ProgressSink},
    monitor::Sample,
};

/// Why a file system could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Settings that do not fit this machine or this state.
    #[error("{0}")]
    Config(String),
    /// The state, or something that it needs, belongs to another process.
    #[error("{0}")]
    Busy(String),
    /// Stored state is damaged, or of a newer version.
    #[error("{0}")]
    Damaged(String),
    #[error("{0}")]
    Failed(String),
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnmountError {
    #[error("in use")]
    Busy,
    #[error("{0}")]
    Failed(String),
}

/// The file system at its mount point. All calls may come from any thread.
pub trait MountedFs: Send + Sync {
    /// Makes all data safe in a persistent tier, with progress in bytes; ends by the sink's deadline. What cannot be
    /// made safe (no persistent tier, transient directories left out) is `at_risk_bytes`. Without `lazy` it also waits until
    /// a linked directory has it; that is safe here, and goes on after the mount was taken away.
    fn flush_all(&self, lazy: bool, progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError>;

    /// Asks the kernel to let go of the mount. `lazy` detaches it from the name space while open files go on; then
    /// [`MountedFs::wait`] returns when the last of them is closed. An unmounted file system gives `Ok`.
    fn unmount(&self, lazy: bool) -> Result<(), UnmountError>;

    /// Ends the session at once: users of open files get ENOTCONN. What was acknowledged stays.
    fn abort(&self);

    /// Begins no more requests, for another process that goes on with the mount, and waits for those that were begun; whether all are
    /// answered. There is no way back.
    fn leave(&self, _patience: Duration) -> bool {
        true
    }

    /// Returns when the session has ended, whoever ended it.
    fn wait(&self);

    /// Says what is counted and measured, for `/metrics`. Waits for nothing.
    fn sample(&self, sample: &mut Sample);

    /// What keeps it from doing its work now, one line each, for `/healthz`. Waits for nothing.
    fn troubles(&self) -> Vec<String>;

    /// After `wait`: writes down what is left, closes the stores. Once.
    fn finish(&self) -> Result<(), String>;
}

/// A started file system.
#[derive(Clone)]
pub struct Running {
    pub fs: Arc<dyn MountedFs>,
    /// Answers every request but `Unmount`, which the daemon does itself through `fs`.
    pub handler: Arc<dyn ControlHandler>,
}
