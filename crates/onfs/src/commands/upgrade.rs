//! `onfs upgrade`: another program goes on with a guarded mount.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::ask::{self, SHORT, failure_of};
use crate::{
    args::UpgradeArgs,
    control::{CallError, Client, GuardReport, Request, Response},
    exit::{Exit, Failure, Outcome},
    locate, render,
};

/// How often it is looked whether the next daemon answers.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What came of it.
#[derive(Serialize)]
struct Report {
    from_version: String,
    to_version: String,
    pid: u32,
    /// How long requests waited.
    held_ms: u64,
    /// Why the program before goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

pub fn upgrade(args: &UpgradeArgs) -> Outcome {
    let program = program(args)?;
    let located = locate::locate(&args.mountpoint)?;
    let place = args.mountpoint.display();
    let (before, guard) = status(&mut locate::connect(&located.socket)?)?;
    let Some(guard) = guard else {
        return Err(Failure::usage(format!("{place}: the mount has no guardian"))
            .hint("onfs umount, and onfs mount --guard: then it can be upgraded while it is in use"));
    };
    let mut client = locate::connect(&located.socket)?;
    match client.call(Request::Upgrade { program }, Some(args.timeout.0), &mut |_| {}) {
        // It has gone to make room.
        Err(CallError::Ended) => {}
        Err(error) => return Err(failure_of(error)),
        Ok(_) => return Err(ask::unexpected("upgrade")),
    }
    let (after, now) = next(&located.socket, guard.number, args.timeout.0)?;
    let report = Report {
        from_version: before.version,
        to_version: after.version,
        pid: after.pid,
        held_ms: now.last_held_ms.unwrap_or_default(),
        failed: now.failed_upgrade,
    };
    if args.output.json {
        render::json(&report)?;
    } else if report.failed.is_none() {
        render::print(&format!(
            "{place}: version {} goes on in place of {} (pid {}); requests waited {} ms\n",
            report.to_version, report.from_version, report.pid, report.held_ms
        ))?;
    }
    match report.failed {
        Some(why) => {
            Err(Failure::failed(format!("the new program did not start, the one before goes on: {why}"))
                .hint("onfs.log in the state directory has the new program's words"))
        }
        None => Ok(()),
    }
}

/// By its path; the daemon is somewhere else.
fn program(args: &UpgradeArgs) -> Outcome<String> {
    let path = match &args.program {
        Some(path) => std::path::absolute(path),
        None => std::env::current_exe(),
    };
    let path = path.map_err(|error| Failure::failed(format!("the program: {error}")))?;
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| Failure::usage(format!("{}: the name is not valid text (UTF-8)", path.display())))
}

/// The daemon that answers.
#[derive(Default)]
struct Daemon {
    version: String,
    pid: u32,
}

fn status(client: &mut Client) -> Outcome<(Daemon, Option<GuardReport>)> {
    let answer = ask::call(client, Request::Status {}, Some(SHORT), &mut |_| {})?;
    if let Response::ClusterMount(report) = answer {
        return Ok((Daemon { version: report.version, pid: report.pid }, report.guard));
    }
    let Response::Status(report) = answer else { return Ok((Daemon::default(), None)) };
    Ok((Daemon { version: report.version, pid: report.pid }, report.guard))
}

/// The daemon after that of this number, when it answers.
fn next(socket: &Path, number: u32, patience: Duration) -> Outcome<(Daemon, GuardReport)> {
    let end = Instant::now() + patience;
    loop {
        if let Ok(mut client) = Client::connect(socket)
            && let Ok((status, Some(guard))) = status(&mut client)
            && guard.number > number
        {
            return Ok((status, guard));
        }
        if Instant::now() >= end {
            return Err(Failure::new(Exit::TimedOut, "no daemon answers yet; the guardian goes on trying")
                .hint(
                    "onfs.log in the state directory says what it does; onfs status shows when it serves",
                ));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
