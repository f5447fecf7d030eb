//! `onfs umount`: flush, unmount, and wait until the daemon has ended.

use std::{
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::ask::failure_of;
use crate::{
    args::UmountArgs,
    control::{CallError, Client, ControlError, ErrorCode, MoveReport, Request, Response},
    exit::{Exit, Failure, Outcome, system_text},
    holders::{HolderList, copies, holders, mounts_below},
    locate::{self, Health},
    mounts::{self, MountEntry},
    render::{Meter, units::bytes},
};

/// After the mount is gone the daemon only has to close its files.
const END_PATIENCE: Duration = Duration::from_secs(30);
const LAZY_END_PATIENCE: Duration = Duration::from_secs(1);

pub fn umount(args: &UmountArgs) -> Outcome {
    let place = args.mountpoint.display();
    let nothing = |why: &str| {
        Failure::new(Exit::NotOnfs, format!("{place}: {why}"))
            .hint("onfs status lists the mounts of this machine")
    };
    let mountpoint = locate::absolute(&args.mountpoint).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => nothing(&system_text(&e)),
        _ => Failure::failed(format!("{place}: {}", system_text(&e))),
    })?;
    let mount = mounts::onfs_at(&mountpoint)
        .map_err(|e| Failure::failed(format!("/proc/self/mountinfo: {e}")))?
        .ok_or_else(|| nothing("not the mount point of an ONFS"))?;
    match locate::health(&mountpoint) {
        Health::Alive | Health::Missing => {}
        Health::Dead => return remove_dead(&mountpoint),
        Health::Hung if args.lazy => return detach(&mountpoint),
        Health::Hung => {
            return Err(Failure::new(Exit::TimedOut, format!("{place}: the daemon does not answer"))
                .hint("its log says what it waits for; --lazy detaches the mount"));
        }
    }
    let located = locate::locate(&mountpoint)?;
    let mut client = locate::connect(&located.socket)?;
    let daemon = client.daemon_pid();
    let report = match unmount(&mut client, args) {
        Ok(report) => report,
        Err(CallError::Refused(ControlError { code: ErrorCode::Busy, message, .. })) => {
            return Err(busy(&mount, daemon, &format!("{place}: {message}")));
        }
        Err(error) => return Err(failure_of(error)),
    };
    warn_at_risk(&report);
    wait_for_end(daemon, args.lazy)
}

fn unmount(client: &mut Client, args: &UmountArgs) -> Result<MoveReport, CallError> {
    let mut meter = Meter::new("making data safe");
    let deadline = args.timeout.map(|t| t.0);
    let answer = client.call(Request::Unmount { lazy: args.lazy }, deadline, &mut |p| meter.show(p));
    meter.finish();
    let Response::Moved(report) = answer? else {
        return Err(CallError::Malformed("not the answer to unmount".into()));
    };
    Ok(report)
}

fn warn_at_risk(report: &MoveReport) {
    if report.at_risk_bytes > 0 {
        let at_risk = bytes(report.at_risk_bytes);
        let _ = writeln!(
            std::io::stderr(),
            "onfs: {at_risk} are only in memory: they are there at the next mount, but not after a reboot"
        );
    }
}

fn busy(mount: &MountEntry, daemon: Option<Pid>, message: &str) -> Failure {
    let mut except = vec![std::process::id()];
    except.extend(daemon.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()));
    let all = mounts::mounts().unwrap_or_default();
    if !all.iter().any(|m| m.id == mount.id) {
        let list = HolderList(&copies((mount.major, mount.minor)), &[]).to_string();
        return Failure::new(Exit::Busy, format!("{message}, of{list}"))
            .hint("all data is safe; the daemon ends by itself when these copies of the mount are gone");
    }
    let found = holders(mount, &except);
    let list = HolderList(&found, &mounts_below(mount, &all)).to_string();
    Failure::new(Exit::Busy, format!("{message} by{list}")).hint(
        "all data is safe; end these programs, or use --lazy to detach the mount and let the daemon end after them",
    )
}

fn remove_dead(mountpoint: &Path) -> Outcome {
    detach(mountpoint)?;
    let _ = writeln!(
        std::io::stderr(),
        "onfs: {}: its daemon had died; the mount is removed, the next mount recovers what was acknowledged",
        mountpoint.display()
    );
    Ok(())
}

fn detach(mountpoint: &Path) -> Outcome {
    mounts::detach(mountpoint, true).map_err(|e| Failure::failed(format!("{}: {e}", mountpoint.display())))
}

/// The state can be mounted again only when the daemon is gone.
fn wait_for_end(daemon: Option<Pid>, lazy: bool) -> Outcome {
    let patience = if lazy { LAZY_END_PATIENCE } else { END_PATIENCE };
    let Some(pid) = daemon else { return Ok(()) };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) if lazy => {
                let _ = writeln!(
                    std::io::stderr(),
                    "onfs: detached; the daemon ends when the last open file is closed"
                );
                return Ok(());
            }
            Ok(0) => {
                let pid = pid.as_raw_nonzero();
                return Err(Failure::new(
                    Exit::TimedOut,
                    format!("unmounted, but the daemon (pid {pid}) still runs"),
                )
                .hint("onfs.log in the state directory says what it does"));
            }
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return Ok(()),
        }
    }
}
