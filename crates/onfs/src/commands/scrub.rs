//! `onfs scrub`: a pass over all checksums, of a mount's own tiers or of a data server's.

use std::{
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    ask::{call, the_mount, unexpected},
    inspect::server_socket,
};
use crate::{
    args::{Output, ScrubCommand},
    control::{Request, Response, ScrubAction, ScrubReport},
    exit::{Exit, Failure, Outcome},
    locate,
    render::{self, Meter},
};

pub fn scrub(command: ScrubCommand) -> Outcome {
    match command {
        ScrubCommand::Start { place, wait, deadline, output } => {
            let mut client = locate::connect(&socket(place.as_deref())?)?;
            let mut meter = Meter::new("comparing checksums");
            let action = if wait { ScrubAction::StartAndWait } else { ScrubAction::Start };
            let request = Request::Scrub { action };
            let answer = call(&mut client, request, deadline.map(|d| d.0), &mut |p| meter.show(p));
            meter.finish();
            let report = report_of(answer?)?;
            print(&report, output)?;
            if wait && report.hopeless > 0 {
                let what = format!("{} pieces of data are damaged and have no good copy", report.hopeless);
                return Err(Failure::new(Exit::DataAtRisk, what)
                    .hint("the log names their files; onfs fsck lists them"));
            }
            Ok(())
        }
        ScrubCommand::Stop { place, output } => print(&asked(place, ScrubAction::Stop)?, output),
        ScrubCommand::Show { place, output } => print(&asked(place, ScrubAction::Show)?, output),
    }
}

fn asked(place: Option<PathBuf>, action: ScrubAction) -> Outcome<ScrubReport> {
    let mut client = locate::connect(&socket(place.as_deref())?)?;
    report_of(call(&mut client, Request::Scrub { action }, None, &mut |_| {})?)
}

fn socket(place: Option<&Path>) -> Outcome<PathBuf> {
    place.and_then(server_socket).map_or_else(|| the_mount(place).map(|located| located.socket), Ok)
}

fn report_of(answer: Response) -> Outcome<ScrubReport> {
    if let Response::Scrub(report) = answer { Ok(report) } else { Err(unexpected("scrub")) }
}

fn print(report: &ScrubReport, output: Output) -> Outcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if output.json { render::json(report) } else { render::print(&render::scrub(report, now)) }
}
