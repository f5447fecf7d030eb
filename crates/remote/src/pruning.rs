//! Has the kernel forget inodes that nobody uses.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use fuse::Notifier;

/// Of one request.
const AT_ONCE: usize = 512;

#[derive(Default)]
pub(crate) struct Pruning {
    /// Of a kernel that forgets when it is asked to.
    notifier: OnceLock<Notifier>,
    under_way: AtomicBool,
}

impl Pruning {
    pub(crate) fn attach(&self, notifier: Notifier) {
        if self.notifier.set(notifier).is_err() {
            tracing::error!("the kernel is known already");
        }
    }

    /// Does the kernel take such requests?
    pub(crate) fn can(&self) -> bool {
        self.notifier.get().is_some()
    }

    /// Nothing, if some are being forgotten. By a thread of its own: the kernel may wait for requests of its own meanwhile, which others serve.
    pub(crate) fn prune(self: &Arc<Self>, inos: Vec<u64>) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        if self.under_way.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = self.clone();
        let prune = move || {
            for some in inos.chunks(AT_ONCE) {
                if let Err(error) = notifier.prune(some) {
                    tracing::debug!(%error, "the kernel was not asked to forget what nobody uses");
                }
            }
            this.under_way.store(false, Ordering::Release);
        };
        if let Err(error) = std::thread::Builder::new().name("remote-prune".into()).spawn(prune) {
            tracing::error!(%error, "no thread that has the kernel forget what nobody uses");
            self.under_way.store(false, Ordering::Release);
        }
    }
}
