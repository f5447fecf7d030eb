//! `onfs link`: the linked directory, and what to do when it was moved.

use std::io::{BufRead, IsTerminal, Write};

use super::ask::{ask, call, the_mount, unexpected};
use crate::{
    args::{LinkCommand, Output},
    control::{LinkState, Request, Response, RootsReport},
    exit::{Exit, Failure, Outcome},
    locate::{self, Located},
    render,
};

pub fn link(command: &LinkCommand) -> Outcome {
    match command {
        LinkCommand::Show { mountpoint, output } => {
            let report = show(&the_mount(mountpoint.as_deref())?)?;
            print(&report, *output)?;
            match report.state {
                LinkState::Ok => Ok(()),
                LinkState::Trouble | LinkState::Unreachable | LinkState::Unmounted | LinkState::Stranger => {
                    Err(Failure::told(Exit::DataAtRisk))
                }
            }
        }
        LinkCommand::Accept { yes, empty_too, mountpoint, output } => {
            accept(&the_mount(mountpoint.as_deref())?, *yes, *empty_too, *output)
        }
    }
}

fn show(located: &Located) -> Outcome<RootsReport> {
    let Response::Link(report) = ask(located, Request::LinkShow {})? else {
        return Err(unexpected("link show"));
    };
    Ok(report)
}

fn print(report: &RootsReport, output: Output) -> Outcome {
    if output.json { render::json(report) } else { render::print(&render::roots(report)) }
}

fn accept(located: &Located, yes: bool, empty_too: bool, output: Output) -> Outcome {
    let report = show(located)?;
    let Some(now) = report.now else {
        return Err(Failure::failed(format!("{}: cannot be reached: nothing is accepted", report.dir)));
    };
    match report.state {
        LinkState::Ok | LinkState::Trouble => {
            return Err(Failure::usage(format!(
                "{} is the directory that was linked: nothing is to be accepted",
                report.dir
            )));
        }
        LinkState::Unreachable | LinkState::Unmounted | LinkState::Stranger => {}
    }
    if now.empty && !empty_too {
        return Err(Failure::usage(format!("{} is empty: is its file system mounted?", report.dir)).hint(
            "--empty-too accepts it all the same: all that is not changed here then counts as deleted there",
        ));
    }
    if !yes {
        confirm(&report)?;
    }
    let request = Request::LinkAccept { device: now.device, number: now.number, empty_too };
    // Every record of the linked directory is written anew: that takes as long as there are.
    let mut client = locate::connect(&located.socket)?;
    let Response::Link(after) = call(&mut client, request, None, &mut |_| {})? else {
        return Err(unexpected("link accept"));
    };
    print(&after, output)
}

/// On a terminal alone: a script has to say `--yes`.
fn confirm(report: &RootsReport) -> Outcome {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::usage("nobody can be asked: nothing is accepted")
            .hint("--yes accepts it without a question"));
    }
    let ask = |error: std::io::Error| Failure::failed(error.to_string());
    let mut out = std::io::stderr();
    write!(out, "{}accept it? [yes/no] ", render::out::plain(&render::roots(report))).map_err(ask)?;
    out.flush().map_err(ask)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(ask)?;
    if answer.trim() == "yes" { Ok(()) } else { Err(Failure::failed("nothing is accepted")) }
}
