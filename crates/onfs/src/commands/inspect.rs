//! Commands that only look: status, file, version.

use std::{
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    ask::{SHORT, ask, call, nothing_mounted, onfs_mounts, unexpected},
    cluster_call::Cluster,
};
use crate::{
    args::{FileArgs, Output, StatusArgs},
    config::is_source,
    control::{FileReport, Request, Response, SOCKET_NAME, VERSION},
    exit::{Failure, Outcome},
    locate::{connect, locate},
    render::{self, AnyStatus},
    watched,
};

pub fn status(args: &StatusArgs) -> Outcome {
    if args.cluster {
        return cluster_status(args);
    }
    if args.which.is_given() {
        return Err(Failure::usage(
            "--config, --cluster-key and --tls-... say which cluster: give --cluster, too",
        ));
    }
    if let Some(path) = &args.mountpoint {
        let socket = server_socket(path).map_or_else(|| locate(path).map(|located| located.socket), Ok)?;
        let report = status_of(&socket)?;
        return if args.output.json { render::json(&report) } else { render::print(&report.text()) };
    }
    let mounts = onfs_mounts()?;
    let ask_one = |place: &Path| locate(place).and_then(|located| status_of(&located.socket));
    let mut reports: Vec<(String, Result<AnyStatus, Failure>)> =
        mounts.iter().map(|m| (m.mountpoint.display().to_string(), ask_one(&m.mountpoint))).collect();
    if args.output.json {
        return print_list(reports);
    }
    match reports.len() {
        0 => Err(nothing_mounted()),
        1 => match reports.remove(0) {
            (_, Ok(report)) => render::print(&report.text()),
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

/// Of a whole cluster, by its metadata server.
fn cluster_status(args: &StatusArgs) -> Outcome {
    let source = args.mountpoint.as_deref().map(|source| {
        let text = source.to_str().filter(|text| is_source(text));
        text.ok_or_else(|| {
            let what = source.display();
            Failure::usage(format!("{what}: not a cluster: write HOST[:PORT][,HOST[:PORT]...]:/"))
        })
    });
    let now = Cluster::named(&args.which.config(), source.transpose()?)?.now()?;
    let report = watched::cluster(&now);
    if args.output.json { render::json(&report) } else { render::print(&render::cluster(&report)) }
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

/// Of the state directory of a server, which is no mount.
pub(super) fn server_socket(state: &Path) -> Option<PathBuf> {
    let socket = state.join(SOCKET_NAME);
    std::fs::metadata(&socket).is_ok_and(|meta| meta.file_type().is_socket()).then_some(socket)
}

pub(super) fn status_of(socket: &Path) -> Outcome<AnyStatus> {
    let mut client = connect(socket)?;
    match call(&mut client, Request::Status {}, Some(SHORT), &mut |_| {})? {
        Response::Status(report) => Ok(AnyStatus::Own(report)),
        Response::ClusterMount(report) => Ok(AnyStatus::Cluster(report)),
        Response::Server(report) => Ok(AnyStatus::Server(report)),
        Response::File(_)
        | Response::Moved(_)
        | Response::Policy(_)
        | Response::Quota(_)
        | Response::Quotas(_)
        | Response::Memory(_)
        | Response::Scrub(_)
        | Response::Run(_)
        | Response::Runs(_)
        | Response::Plan(_)
        | Response::Plans(_)
        | Response::States(_)
        | Response::List(_)
        | Response::Gate(_)
        | Response::Conflicts(_)
        | Response::Link(_)
        | Response::Done => Err(unexpected("status")),
    }
}

/// Always a list, so that a script need not care how many mounts there are.
fn print_list(reports: Vec<(String, Result<AnyStatus, Failure>)>) -> Outcome {
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Row {
        Alive(AnyStatus),
        Dead { mountpoint: String, error: String },
    }
    let rows: Vec<Row> = reports
        .into_iter()
        .map(|(mountpoint, report)| match report {
            Ok(report) => Row::Alive(report),
            Err(failure) => Row::Dead { mountpoint, error: failure.message },
        })
        .collect();
    render::json(&rows)
}
