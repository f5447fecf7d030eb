//! `onfs fsck`: checks a state that nobody has mounted.

use std::{path::Path, time::Instant};

use super::settings::{resolve, settings};
use crate::{
    args::FsckArgs,
    assemble,
    check::{FsckReport, Severity},
    config::Host,
    control::{ControlError, Progress, ProgressSink},
    daemon::StateLock,
    exit::{Exit, Failure, Outcome},
    render::{self, Meter},
    running::StartError,
};

/// Where it would be mounted is of no matter when the state is named.
const ANYWHERE: &str = "/mnt/onfs";

pub fn fsck(args: &FsckArgs) -> Outcome {
    let host = Host::detect();
    let settings = settings(&args.config, &host)?;
    let named = settings.get("mount", "state").is_some_and(|e| e.origin != crate::config::Origin::Default);
    let mountpoint = match &args.mountpoint {
        Some(path) => {
            std::path::absolute(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?
        }
        None if named => Path::new(ANYWHERE).to_owned(),
        None => return Err(Failure::usage("which file system? give --state DIR or its mount point")),
    };
    let config = resolve(&settings, &host, &mountpoint)?;
    let state = &config.mount.state;
    if !state.is_dir() {
        return Err(Failure::failed(format!("{}: there is no such state directory", state.display())));
    }
    // The lock and the store are made where they are not there; a check makes nothing.
    let something_there = || {
        let text = format!("{}: there is no ONFS state in this directory", state.display());
        if assemble::has_metadata(state) { Ok(()) } else { Err(Failure::failed(text)) }
    };
    if !StateLock::was_taken(state) {
        something_there()?;
    }
    let _lock = StateLock::acquire(state, "fsck").map_err(|failure| match failure.exit {
        Exit::Busy => {
            failure.hint("a running file system cannot be checked: unmount it first (onfs umount MOUNTPOINT)")
        }
        Exit::Ok | Exit::Failure | Exit::Usage | Exit::NotOnfs | Exit::TimedOut | Exit::DataAtRisk => failure,
    })?;
    something_there()?;
    let mut progress = Shown(Meter::new("checking"));
    let checked = assemble::fsck(&config, args.repair, &mut progress);
    progress.0.finish();
    let report = checked.map_err(of_check)?;
    if args.output.json {
        render::json(&report)?;
    } else {
        render::print(&render::fsck(&report))?;
    }
    verdict(&report, args.repair)
}

fn verdict(report: &FsckReport, repair: bool) -> Outcome {
    if report.is_clean() {
        return Ok(());
    }
    let failure = Failure::new(Exit::DataAtRisk, format!("{}: damage was found", report.state_dir));
    let repairable = report.findings.iter().any(|finding| finding.severity == Severity::Repairable);
    Err(match repairable && !repair {
        true => failure.hint("onfs fsck --repair repairs what can be repaired"),
        false => failure,
    })
}

fn of_check(error: StartError) -> Failure {
    let exit = match &error {
        StartError::Config(_) => Exit::Usage,
        StartError::Busy(_) => Exit::Busy,
        StartError::Damaged(_) => Exit::DataAtRisk,
        StartError::Failed(_) => Exit::Failure,
    };
    Failure::new(exit, error.to_string())
}

struct Shown(Meter);

impl ProgressSink for Shown {
    fn report(&mut self, progress: Progress) -> Result<(), ControlError> {
        self.0.show(&progress);
        Ok(())
    }
    fn deadline(&self) -> Option<Instant> {
        None
    }
}
