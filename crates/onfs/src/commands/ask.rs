//! Asking a daemon: finds the mount, sends one request, turns errors into failures with a hint.

use std::{path::Path, time::Duration};

use crate::{
    control::{CallError, Client, ControlError, ErrorCode, Progress, Request, Response},
    exit::{Exit, Failure, Outcome},
    locate::{self, Located},
    mounts::{self, MountEntry},
};

/// Time for requests that answer at once.
pub const SHORT: Duration = Duration::from_secs(30);

/// The ONFS mounts of this machine.
pub fn onfs_mounts() -> Outcome<Vec<MountEntry>> {
    let all = mounts::mounts().map_err(|e| Failure::failed(format!("/proc/self/mountinfo: {e}")))?;
    Ok(all.into_iter().filter(MountEntry::is_onfs).collect())
}

/// The mount that `path` is on; without a path the only one of this machine.
pub fn the_mount(path: Option<&Path>) -> Outcome<Located> {
    if let Some(path) = path {
        return locate::locate(path);
    }
    let mounts = onfs_mounts()?;
    match mounts.as_slice() {
        [one] => locate::locate(&one.mountpoint),
        [] => Err(nothing_mounted()),
        many => {
            let names: Vec<String> = many.iter().map(|m| m.mountpoint.display().to_string()).collect();
            Err(Failure::usage(format!("which mount? {}", names.join(", "))).hint("name one of them"))
        }
    }
}

pub fn nothing_mounted() -> Failure {
    Failure::new(Exit::NotOnfs, "no ONFS is mounted on this machine").hint(
        "onfs mount MOUNTPOINT mounts one; of a server, give its state directory; of a cluster, --cluster",
    )
}

/// One request that answers at once, over a connection of its own.
pub fn ask(located: &Located, request: Request) -> Outcome<Response> {
    let mut client = locate::connect(&located.socket)?;
    call(&mut client, request, Some(SHORT), &mut |_| {})
}

/// One request; `progress` sees how it goes.
pub fn call(
    client: &mut Client,
    request: Request,
    deadline: Option<Duration>,
    progress: &mut dyn FnMut(&Progress),
) -> Outcome<Response> {
    client.call(request, deadline, progress).map_err(failure_of)
}

pub fn failure_of(error: CallError) -> Failure {
    let exit = match &error {
        CallError::NotRunning(_) | CallError::Ended => Exit::NotOnfs,
        CallError::TimedOut => Exit::TimedOut,
        CallError::NotAllowed(_) | CallError::Malformed(_) => Exit::Failure,
        CallError::Refused(error) => exit_of(error),
    };
    let hint = match &error {
        CallError::NotRunning(_) => {
            Some("mount it again, or remove what is left with: onfs umount MOUNTPOINT")
        }
        CallError::Ended => {
            Some("onfs.log in the state directory says why; onfs status shows whether it runs")
        }
        CallError::TimedOut => Some("onfs.log in the state directory says what it waits for"),
        CallError::NotAllowed(_) => Some("ask root, or the user who mounted"),
        CallError::Malformed(_) => {
            Some("the command and the daemon may be of different versions: onfs version")
        }
        CallError::Refused(_) => None,
    };
    Failure { exit, message: error.to_string(), hint: hint.map(str::to_owned) }
}

fn exit_of(error: &ControlError) -> Exit {
    match error.code {
        ErrorCode::BadRequest | ErrorCode::NotAllowed | ErrorCode::NotFound | ErrorCode::Failed => {
            Exit::Failure
        }
        ErrorCode::Busy => Exit::Busy,
        ErrorCode::TimedOut => Exit::TimedOut,
        ErrorCode::DataAtRisk => Exit::DataAtRisk,
    }
}

/// The daemon answered, but not this question.
pub fn unexpected(request: &str) -> Failure {
    Failure::failed(format!("the daemon's answer to {request} makes no sense"))
        .hint("the command and the daemon may be of different versions: onfs version")
}
