//! Commands that only look: status, file, version.

use serde::Serialize;

use super::ask::{ask, nothing_mounted, onfs_mounts, unexpected};
use crate::{
    args::{FileArgs, Output, StatusArgs},
    control::{FileReport, Request, Response, StatusReport, VERSION},
    exit::{Failure, Outcome},
    locate::{Located, locate},
    render,
};

pub fn status(args: &StatusArgs) -> Outcome {
    if let Some(path) = &args.mountpoint {
        let report = status_of(&locate(path)?)?;
        return if args.output.json {
            render::json(&report)
        } else {
            render::print(&render::status(&report))
        };
    }
    let mounts = onfs_mounts()?;
    let ask_one = |place: &std::path::Path| locate(place).and_then(|located| status_of(&located));
    let mut reports: Vec<(String, Result<StatusReport, Failure>)> =
        mounts.iter().map(|m| (m.mountpoint.display().to_string(), ask_one(&m.mountpoint))).collect();
    if args.output.json {
        return print_list(reports);
    }
    match reports.len() {
        0 => Err(nothing_mounted()),
        1 => match reports.remove(0) {
            (_, Ok(report)) => render::print(&render::status(&report)),
            (_, Err(failure)) => Err(failure),
        },
        _ => {
            let failed = reports.iter().find_map(|(_, report)| report.as_ref().err().cloned());
            let rows: Vec<_> =
                reports.into_iter().map(|(place, report)| (place, report.map_err(|f| f.message))).collect();
            render::print(&render::mount_list(&rows))?;
            failed.map_or(Ok(()), Err)
        }
    }
}

pub fn file(args: &FileArgs) -> Outcome {
    let mut reports = Vec::new();
    for path in &args.path {
        let located = locate(path)?;
        let answer = ask(&located, Request::File { file: located.file.clone() })?;
        let Response::File(report) = answer else { return Err(unexpected("file")) };
        reports.push(*report);
    }
    if args.output.json {
        return match reports.as_slice() {
            [one] => render::json(one),
            many => render::json(&many),
        };
    }
    let texts: Vec<String> = reports.iter().map(|report: &FileReport| render::file(report)).collect();
    render::print(&texts.join("\n"))
}

#[derive(Serialize)]
struct Version {
    onfs: &'static str,
    control_protocol: u32,
    target: String,
}

pub fn version(output: Output) -> Outcome {
    let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
    let version = Version { onfs: env!("CARGO_PKG_VERSION"), control_protocol: VERSION, target };
    if output.json {
        return render::json(&version);
    }
    render::print(&format!(
        "onfs {} (control protocol {}, {})\n",
        version.onfs, version.control_protocol, version.target
    ))
}

fn status_of(located: &Located) -> Outcome<StatusReport> {
    let answer = ask(located, Request::Status {})?;
    if let Response::Status(report) = answer { Ok(*report) } else { Err(unexpected("status")) }
}

/// Always a list, so that a script need not care how many mounts there are.
fn print_list(reports: Vec<(String, Result<StatusReport, Failure>)>) -> Outcome {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Row {
        Alive(Box<StatusReport>),
        Dead { mountpoint: String, error: String },
    }
    let rows: Vec<Row> = reports
        .into_iter()
        .map(|(mountpoint, report)| match report {
            Ok(report) => Row::Alive(Box::new(report)),
            Err(failure) => Row::Dead { mountpoint, error: failure.message },
        })
        .collect();
    render::json(&rows)
}
