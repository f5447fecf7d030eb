//! `onfs conflicts`: what was changed here and in a linked directory.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::ask::{ask, the_mount, unexpected};
use crate::{
    args::{ConflictsArgs, ConflictsCommand, Output},
    control::{ConflictReport, Request, Response},
    exit::{Exit, Failure, Outcome},
    render,
};

pub fn conflicts(args: &ConflictsArgs) -> Outcome {
    match &args.command {
        None => list(args.path.as_deref(), args.output),
        Some(ConflictsCommand::Forget { number, all: _, path, output }) => {
            forget(number, path.as_deref(), *output)
        }
    }
}

/// Some are the business of whoever asks: the exit code says so.
fn list(path: Option<&Path>, output: Output) -> Outcome {
    let located = the_mount(path)?;
    let mut found: Vec<ConflictReport> = Vec::new();
    loop {
        let after = found.last().map_or(0, |last| last.number);
        let request = Request::Conflicts { place: located.file.clone(), after };
        let Response::Conflicts(some) = ask(&located, request)? else { return Err(unexpected("conflicts")) };
        if some.is_empty() {
            break;
        }
        found.extend(some);
    }
    if output.json {
        render::json(&found)?;
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        render::print(&render::conflicts(&found, u64::try_from(now).unwrap_or(u64::MAX)))?;
    }
    if found.is_empty() { Ok(()) } else { Err(Failure::told(Exit::DataAtRisk)) }
}

/// Without numbers all of them.
fn forget(numbers: &[u64], path: Option<&Path>, output: Output) -> Outcome {
    let located = the_mount(path)?;
    let mut forgotten = Vec::new();
    let batches: Vec<&[u64]> =
        if numbers.is_empty() { vec![&[]] } else { numbers.chunks(Request::FILES_MAX).collect() };
    for numbers in batches {
        let request = Request::ForgetConflicts { place: located.file.clone(), numbers: numbers.to_vec() };
        let Response::Conflicts(some) = ask(&located, request)? else {
            return Err(unexpected("conflicts forget"));
        };
        forgotten.extend(some);
    }
    if output.json {
        return render::json(&forgotten);
    }
    let n = render::units::count(forgotten.len() as u64);
    render::print(&format!("{n} taken off the list; the files stay as they are\n"))
}
