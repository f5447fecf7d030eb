//! `onfs gate`: whether everything below some paths is where it is promised.

use std::time::{Duration, Instant};

use super::{
    ask::{call, unexpected},
    files::flush_groups,
    tree::{Group, group},
};
use crate::{
    args::GateArgs,
    control::{GateReport, Request, Response},
    exit::{Exit, Failure, Outcome},
    locate,
    render::{self, Meter},
};

pub fn gate(args: &GateArgs) -> Outcome {
    let groups = group(&args.path)?;
    let end = args.deadline.map(|deadline| Instant::now() + deadline.0);
    if args.flush {
        match flush_groups(&groups, true, end) {
            // What it could not make safe the gate finds.
            Ok(_) => {}
            Err(failure) if failure.exit == Exit::TimedOut || failure.exit == Exit::DataAtRisk => {}
            Err(failure) => return Err(failure),
        }
    }
    let mut report = GateReport { open: true, ..GateReport::default() };
    for group in &groups {
        look(group, end, &mut report)?;
    }
    if args.output.json {
        render::json(&report)?;
    } else {
        render::print(&render::gate(&report))?;
    }
    match report.open {
        true => Ok(()),
        false => Err(Failure::told(Exit::DataAtRisk)),
    }
}

fn look(group: &Group, end: Option<Instant>, sum: &mut GateReport) -> Outcome {
    let mut client = locate::connect(&group.socket)?;
    let mut meter = Meter::new("looking");
    for places in group.places.chunks(Request::FILES_MAX) {
        let left = end.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()));
        let request = Request::Gate {
            places: places.iter().map(|place| place.file.clone()).collect(),
            wait_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        };
        // No deadline of the request: at its end the list is wanted.
        let answer = call(&mut client, request, None, &mut |progress| meter.show(progress))?;
        let Response::Gate(report) = answer else { return Err(unexpected("gate")) };
        sum.open &= report.open;
        sum.looked_at += report.looked_at;
        sum.findings_total += report.findings_total;
        sum.findings.extend(report.findings);
    }
    meter.finish();
    Ok(())
}
