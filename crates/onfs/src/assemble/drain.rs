//! Having what is pending applied in the linked directory, and waiting for it.

use std::time::{Duration, Instant};

use types::{Errno, Ino};

use super::{
    below::Below,
    parts::{Parts, failed},
    standing::why_waiting,
};
use crate::control::{ControlError, FileOutcome, FileRef, MoveReport, Progress, ProgressSink, Unit};

/// Has all of it begin, before it is waited for: the linked directory takes bytes while a tier of ours does.
pub(super) fn begin(parts: &Parts) {
    let Some(linked) = &parts.linked else { return };
    wait_for_closes(parts);
    parts.client.settle_closed();
    if let Err(errno) = linked.hasten(&linked.waiting()) {
        tracing::debug!(%errno, "what is pending begins when it is waited for");
    }
}

/// Of what is at and below the places. `shown`: of whom a path may be told. Without a linked directory nothing is to be done.
pub(super) fn drain(
    parts: &Parts,
    places: &[FileRef],
    shown: &dyn Fn(Ino) -> bool,
    progress: &mut dyn ProgressSink,
) -> Result<MoveReport, ControlError> {
    let mut sum = MoveReport::default();
    let Some(linked) = &parts.linked else { return Ok(sum) };
    wait_for_closes(parts);
    // What was closed counts with its last byte.
    parts.client.settle_closed();
    let mut wanted = linked.waiting();
    let below = Below::new(parts, places, &wanted);
    wanted.retain(|waiting| below.has_waiting(waiting));
    linked.hasten(&wanted).map_err(|errno| failed("the linked directory", errno))?;
    let total = wanted.len() as u64;
    let left = linked.wait_until_applied(wanted, &mut |done| {
        let what = "to the linked directory".to_owned();
        progress.report(Progress { done, total, unit: Unit::Items, what })
    })?;
    sum.applied = total - left.len() as u64;
    sum.failed = left
        .iter()
        .map(|waiting| {
            let errno = match (waiting.trouble, linked.current_trouble()) {
                (Some(link::Trouble::Refused(errno)), _) => errno,
                (_, Some(trouble)) => trouble.errno,
                (_, None) => Errno::ETIMEDOUT,
            };
            let why = why_waiting(linked, waiting);
            FileOutcome {
                path: if shown(waiting.ino) {
                    below.path_of(waiting)
                } else {
                    format!("inode {}", waiting.ino)
                },
                ino: waiting.ino.get(),
                errno: errno.raw(),
                message: if why.is_empty() {
                    "it is not in the linked directory yet".to_owned()
                } else {
                    why
                },
            }
        })
        .collect();
    Ok(sum)
}

/// The kernel tells of a close a moment after it answered it: a file that was closed before the command would be published as
/// one that is still written, and once more later.
const CLOSING: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(10);

fn wait_for_closes(parts: &Parts) {
    let until = Instant::now() + CLOSING;
    while Instant::now() < until && !parts.ds.written().is_empty() {
        std::thread::sleep(LOOK);
    }
}
