//! A pass over all checksums, asked for by a command.

use std::time::Duration;

use ds::DataServer;
use types::Errno;

use super::parts::failed;
use crate::control::{ControlError, Progress, ProgressSink, Response, ScrubAction, ScrubReport, Unit};

/// Parts into which a pass is divided.
const PARTS: u64 = store::TierStore::PARTS as u64;
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn scrub(
    ds: &DataServer,
    action: ScrubAction,
    progress: &mut dyn ProgressSink,
) -> Result<Response, ControlError> {
    let done = |change: Result<(), Errno>| change.map_err(|errno| failed("scrub", errno));
    match action {
        ScrubAction::Show => {}
        ScrubAction::Start => done(ds.scrub().map(drop))?,
        ScrubAction::StartAndWait => {
            done(ds.scrub().map(drop))?;
            wait_for(ds, progress)?;
        }
        ScrubAction::Stop => done(ds.stop_scrub())?,
    }
    Ok(Response::Scrub(report(ds)))
}

fn wait_for(ds: &DataServer, progress: &mut dyn ProgressSink) -> Result<(), ControlError> {
    while let Some(pass) = ds.scrubbed().pass {
        progress.report(Progress {
            done: pass.part.into(),
            total: PARTS,
            unit: Unit::Items,
            what: "parts of all objects".into(),
        })?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn report(ds: &DataServer) -> ScrubReport {
    let ds::ScrubRecord { pass, ended, found } = ds.scrubbed();
    let ds::ScrubFound { bytes, damaged, repaired, hopeless, passed_over } = found;
    ScrubReport {
        running: pass.is_some(),
        percent: pass.map_or(0, |pass| (u64::from(pass.part) * 100 / PARTS) as u32),
        began: pass.map_or(0, |pass| pass.began),
        ended,
        bytes,
        damaged,
        repaired,
        hopeless,
        passed_over,
    }
}
