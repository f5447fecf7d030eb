//! The running file system: flushing, unmounting, and its orderly end.

use std::{sync::Arc, time::Duration};

use fuse::UnmountError as FuseUnmount;
use parking_lot::{Mutex, RwLock};
use types::Errno;

use super::{
    link::drain,
    observed,
    parts::{Parts, failed},
    saving::save_all,
    stores::Closing,
};
use crate::{
    control::{ControlError, MoveReport, ProgressSink},
    monitor::{Id, Sample},
    running::{MountedFs, UnmountError},
};

/// How long the end waits for threads that still hold the data server.
const LAST_REFERENCES: Duration = Duration::from_secs(5);

pub(crate) struct Mounted {
    /// `None` after the end.
    parts: RwLock<Option<Arc<Parts>>>,
    finishing: Mutex<()>,
}

impl Mounted {
    pub fn new(parts: Parts) -> Mounted {
        Mounted { parts: RwLock::new(Some(Arc::new(parts))), finishing: Mutex::default() }
    }

    /// The parts, as long as the file system runs.
    pub fn parts(&self) -> Result<Arc<Parts>, ControlError> {
        self.parts.read().clone().ok_or_else(|| failed("the file system", Errno::ENODEV))
    }
}

impl Mounted {
    /// Everything is in a persistent tier of ours, where there is one, and durable there.
    pub fn save_all(&self, progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        let parts = self.parts()?;
        save_all((&parts.ds, &parts.mds), || parts.client.settle_closed(), progress)
    }
}

impl MountedFs for Mounted {
    /// What is pending for a linked directory is safe here, so a mount whose back end is away can end: the next one goes on.
    fn flush_all(&self, lazy: bool, progress: &mut dyn ProgressSink) -> Result<MoveReport, ControlError> {
        let report = self.save_all(progress)?;
        let parts = self.parts()?;
        if let Some(linked) = parts.linked.as_ref().filter(|_| !lazy) {
            drain(linked, parts.config.mount.stop_deadline);
            parts.mds.sync().map_err(|errno| failed("making metadata durable", errno))?;
        }
        Ok(report)
    }

    fn unmount(&self, lazy: bool) -> Result<(), UnmountError> {
        let Ok(parts) = self.parts() else { return Ok(()) };
        match parts.session.unmount(lazy) {
            Ok(()) | Err(FuseUnmount::NotMounted(_)) => Ok(()),
            Err(FuseUnmount::Busy(_)) => Err(UnmountError::Busy),
            Err(error) => Err(UnmountError::Failed(error.to_string())),
        }
    }

    fn abort(&self) {
        if let Ok(parts) = self.parts() {
            parts.session.abort();
        }
    }

    fn leave(&self, patience: Duration) -> bool {
        self.parts().is_ok_and(|parts| parts.session.leave(patience))
    }

    fn wait(&self) {
        if let Ok(parts) = self.parts() {
            parts.session.run();
        }
    }

    fn sample(&self, sample: &mut Sample) {
        let Ok(parts) = self.parts() else { return };
        observed::process(sample, "mount", parts.config.mount.memory_budget.0);
        observed::stores(sample, &parts.ds, &parts.store, &parts.mds);
        let stats = parts.client.stats();
        for operation in stats.operations.iter().filter(|operation| operation.requests > 0) {
            sample.add(Id::FuseRequests, &[operation.name], operation.requests);
            sample.add(Id::FuseErrors, &[operation.name], operation.errors);
        }
        sample.add(Id::FuseRead, &[], stats.read_bytes);
        sample.add(Id::FuseWritten, &[], stats.written_bytes);
        sample.add(Id::FuseOverdue, &[], stats.overdue);
        sample.add(Id::OpenFiles, &[], stats.open_files);
        if let Some(guard) = parts.ward.as_ref().map(|ward| ward.report()) {
            observed::guard(sample, &guard);
        }
    }

    fn troubles(&self) -> Vec<String> {
        let Ok(parts) = self.parts() else { return vec!["the file system has ended".to_owned()] };
        let mut troubles = observed::troubles(&parts.ds, &parts.store);
        if let Some(linked) = &parts.linked
            && let Some(trouble) = linked.current_trouble()
        {
            troubles.push(format!("the linked directory: {} ({})", trouble.what, trouble.errno));
        }
        troubles
    }

    fn finish(&self) -> Result<(), String> {
        let _one = self.finishing.lock();
        let Some(parts) = self.parts.write().take() else { return Ok(()) };
        // Before the client, whose files it uses.
        parts.upward.shutdown();
        parts.client.shutdown();
        if let Some(linked) = &parts.linked {
            drain(linked, parts.config.mount.stop_deadline);
        }
        let closing = Closing {
            store: parts.store.clone(),
            mds: parts.mds.clone(),
            ds: parts.ds.clone(),
            linked: parts.linked.clone(),
            state: parts.config.mount.state.clone(),
        };
        closing.close(move || wait_until_sole(&parts))
    }
}

/// Commands that are being answered hold the parts for a moment longer.
fn wait_until_sole(parts: &Arc<Parts>) -> bool {
    let end = std::time::Instant::now() + LAST_REFERENCES;
    while Arc::strong_count(parts) > 1 {
        if std::time::Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}
