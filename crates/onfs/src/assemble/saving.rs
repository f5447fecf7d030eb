//! Everything into a persistent tier of ours, with progress: for the flush and the end of a mount and of a server.

use std::ops::ControlFlow;

use ds::DataServer;
use mds::Mds;

use super::parts::failed;
use crate::control::{ControlError, ErrorCode, MoveReport, Progress, ProgressSink};

/// Everything is in a persistent tier, where there is one, and durable there. `settle` has the metadata learn what the files came to, before
/// they are made durable.
pub(super) fn save_all(
    (ds, mds): (&DataServer, &Mds),
    settle: impl FnOnce(),
    progress: &mut dyn ProgressSink,
) -> Result<MoveReport, ControlError> {
    let (files_done, total) = ds.dirty();
    let (mut done, mut stopped) = (0, None);
    let at_risk = ds.flush_all(&mut |bytes| {
        done += bytes;
        match progress.report(Progress { done, total: total.max(done), ..Progress::default() }) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                stopped = Some(error);
                ControlFlow::Break(())
            }
        }
    });
    if let Some(error) = stopped {
        return Err(error);
    }
    let left = at_risk
        .map_err(|errno| ControlError::new(ErrorCode::DataAtRisk, format!("making data safe: {errno}")))?;
    settle();
    mds.sync().map_err(|errno| failed("making metadata durable", errno))?;
    let files_done = files_done.saturating_sub(ds.dirty().0);
    let (at_risk_bytes, transient_bytes) = (left.bytes, left.transient);
    Ok(MoveReport { files_done, bytes: done, at_risk_bytes, transient_bytes, ..MoveReport::default() })
}
