//! Commands on directories and the mount: policy, quota, memory.

use std::path::Path;

use types::ByteSize;

use super::ask::{ask, call, the_mount, unexpected};
use crate::{
    args::{MemoryCommand, Output, PolicyCommand, QuotaCommand},
    config::Host,
    control::{DirPolicyReport, MemoryReport, QuotaReport, Request, Response},
    exit::{Failure, Outcome},
    locate::{self, Located, locate},
    render::{self, Meter},
};

pub fn policy(command: PolicyCommand) -> Outcome {
    let (answer, output) = match command {
        PolicyCommand::Show { dir, output } => {
            let located = directory(&dir)?;
            (ask(&located, Request::PolicyShow { dir: located.file.clone() })?, output)
        }
        PolicyCommand::Set { dir, change, output } => {
            let located = directory(&dir)?;
            (ask(&located, Request::PolicySet { dir: located.file.clone(), changes: change })?, output)
        }
    };
    let Response::Policy(report) = answer else { return Err(unexpected("policy")) };
    print_policy(&report, output)
}

fn print_policy(report: &DirPolicyReport, output: Output) -> Outcome {
    if output.json { render::json(report) } else { render::print(&render::policy(report)) }
}

pub fn quota(command: QuotaCommand) -> Outcome {
    match command {
        QuotaCommand::Set { dir, bytes, inodes, output } => {
            let located = directory(&dir)?;
            let bytes = bytes.map(|ByteSize(n)| n);
            let request = Request::QuotaSet { dir: located.file.clone(), bytes, inodes };
            let Response::Quota(report) = walk(&located, request)? else { return Err(unexpected("quota")) };
            print_quota(report, output)
        }
        QuotaCommand::Show { dir, output } => {
            let located = directory(&dir)?;
            print_quota(quota_of(&located)?, output)
        }
        QuotaCommand::List { mountpoint, output } => {
            let located = the_mount(mountpoint.as_deref())?;
            let answer = ask(&located, Request::QuotaList {})?;
            let Response::Quotas(reports) = answer else { return Err(unexpected("quota")) };
            print_quotas(&reports, output)
        }
        QuotaCommand::Remove { dir, output } => {
            let located = directory(&dir)?;
            let answer = walk(&located, Request::QuotaRemove { dir: located.file.clone() })?;
            if answer != Response::Done {
                return Err(unexpected("quota"));
            }
            // What holds there now: nothing, or the quota of a directory above.
            print_quota(quota_of(&located)?, output)
        }
    }
}

/// A request that visits everything below a directory.
fn walk(located: &Located, request: Request) -> Outcome<Response> {
    let mut client = locate::connect(&located.socket)?;
    let mut meter = Meter::new("counting");
    let answer = call(&mut client, request, None, &mut |p| meter.show(p));
    meter.finish();
    answer
}

fn quota_of(located: &Located) -> Outcome<QuotaReport> {
    let answer = ask(located, Request::QuotaShow { dir: located.file.clone() })?;
    let Response::Quota(report) = answer else { return Err(unexpected("quota")) };
    Ok(report)
}

fn print_quota(report: QuotaReport, output: Output) -> Outcome {
    if output.json { render::json(&report) } else { print_quotas(&[report], output) }
}

fn print_quotas(reports: &[QuotaReport], output: Output) -> Outcome {
    if output.json { render::json(&reports) } else { render::print(&render::quotas(reports)) }
}

pub fn memory(command: MemoryCommand) -> Outcome {
    let (report, output): (MemoryReport, Output) = match command {
        MemoryCommand::Show { mountpoint, output } => {
            let located = the_mount(mountpoint.as_deref())?;
            (memory_of(ask(&located, Request::MemoryShow {})?)?, output)
        }
        MemoryCommand::Set { size, mountpoint, deadline, output } => {
            let located = the_mount(mountpoint.as_deref())?;
            // The daemon says the same, but not that nothing was changed.
            Host::detect()
                .check_memory_tier(size)
                .map_err(|why| Failure::usage(format!("the memory tier: {why}")))?;
            let mut client = locate::connect(&located.socket)?;
            let mut meter = Meter::new("moving data out");
            let request = Request::MemorySet { bytes: size.0 };
            let answer = call(&mut client, request, deadline.map(|d| d.0), &mut |p| meter.show(p));
            meter.finish();
            (memory_of(answer?)?, output)
        }
    };
    if output.json { render::json(&report) } else { render::print(&render::memory(&report)) }
}

fn memory_of(answer: Response) -> Outcome<MemoryReport> {
    if let Response::Memory(report) = answer { Ok(report) } else { Err(unexpected("memory")) }
}

fn directory(path: &Path) -> Outcome<Located> {
    let located = locate(path)?;
    if located.is_dir {
        return Ok(located);
    }
    Err(Failure::usage(format!("{}: not a directory", path.display())))
}
