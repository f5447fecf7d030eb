//! Runs over lists, and plans of jobs, for people.

use super::{
    table::{Align, Table, pairs},
    units::{bytes, count, files},
};
use crate::control::{PlanReport, RunReport, RunState};

/// Paths of a plan's group that are shown.
const PATHS_SHOWN: usize = 8;
const FAILED_SHOWN: usize = 50;

/// Of a run that was begun or waited for.
pub fn run(report: &RunReport) -> String {
    let mut out = format!(
        "run {}: {} in {} groups, {} up, {} to come; {}\n",
        report.run,
        files(report.files),
        count(report.groups),
        bytes(report.bytes_up),
        bytes(report.bytes_left),
        state(report)
    );
    for failed in report.failed.iter().take(FAILED_SHOWN) {
        out.push_str(&format!("  {}: {}\n", failed.path, failed.message));
    }
    if report.failed.len() > FAILED_SHOWN {
        out.push_str(&format!("  and {} more\n", report.failed.len() - FAILED_SHOWN));
    }
    out
}

fn state(report: &RunReport) -> String {
    match report.state {
        RunState::Running if report.short_of_room => "waits for room above C_n-m".into(),
        RunState::Running => "onfs plan runs shows how it goes".into(),
        RunState::Done => "done".into(),
        RunState::Wrong => {
            format!("given up: {} of {} files did not fit the list", report.wrong, report.seen)
        }
        RunState::Cancelled => "cancelled".into(),
        RunState::Idle => "ended: nobody reads from it".into(),
    }
}

pub fn runs(reports: &[RunReport]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("run", right),
        ("user", right),
        ("from", Align::Left),
        ("group", right),
        ("files", right),
        ("up", right),
        ("opened", right),
        ("of them up", right),
        ("came up", right),
        ("state", Align::Left),
    ]);
    for r in reports {
        let short = match r.state {
            RunState::Running if !r.short_of_room => "running".into(),
            RunState::Running | RunState::Done | RunState::Wrong | RunState::Cancelled | RunState::Idle => {
                state(r)
            }
        };
        table.row([
            r.run.to_string(),
            r.uid.to_string(),
            if r.job.is_empty() { "a list".into() } else { r.job.clone() },
            format!("{}/{}", r.groups_begun, r.groups),
            count(r.files),
            count(r.files_up),
            count(r.files_opened),
            count(r.files_hit),
            bytes(r.bytes_up),
            short,
        ]);
    }
    if table.is_empty() { "no lists are read, and no plan acts\n".into() } else { table.render(0) }
}

pub fn plans(reports: &[PlanReport]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("user", right),
        ("runs", right),
        ("files", right),
        ("bytes", right),
        ("foretold", right),
        ("acts", Align::Left),
        ("job", Align::Left),
    ]);
    for p in reports {
        table.row([
            p.uid.to_string(),
            count(p.runs),
            count(p.files),
            bytes(p.bytes),
            percent(p.hit_rate),
            if p.acts { "yes".into() } else { format!("no: {}", p.why) },
            p.name.clone(),
        ]);
    }
    if table.is_empty() { "no run of a job is remembered\n".into() } else { table.render(0) }
}

fn percent(rate: Option<f64>) -> String {
    rate.map_or("-".into(), |rate| format!("{:.0}%", rate * 100.0))
}

pub fn plan(p: &PlanReport) -> String {
    let mut out = pairs(&[
        ("job", p.name.clone()),
        ("user", p.uid.to_string()),
        ("runs", count(p.runs)),
        ("expected", format!("{}, {}", files(p.files), bytes(p.bytes))),
        ("acts", format!("{}: {}", if p.acts { "yes" } else { "no" }, p.why)),
    ]);
    let right = Align::Right;
    let mut scores = Table::new(&[
        ("foretold", right),
        ("hits", right),
        ("missed", right),
        ("in vain", right),
        ("", Align::Left),
    ]);
    for s in p.scores.iter().rev() {
        let acted = if s.acted { "acted" } else { "compared only" };
        scores.row([
            percent(Some(s.hit_rate)),
            count(s.hits),
            count(s.missed),
            count(s.in_vain),
            acted.into(),
        ]);
    }
    if !scores.is_empty() {
        out.push_str(&format!("\nits last runs, the latest first\n{}", scores.render(2)));
    }
    for (n, group) in p.groups.iter().enumerate() {
        let (of, size) = (files(group.files), bytes(group.bytes));
        out.push_str(&format!("\ngroup {}: {of}, {size}\n", n + 1));
        group.paths.iter().take(PATHS_SHOWN).for_each(|path| out.push_str(&format!("  {path}\n")));
        let more = group.files.saturating_sub(group.paths.len().min(PATHS_SHOWN) as u64);
        if more > 0 {
            out.push_str(&format!("  and {} more\n", count(more)));
        }
    }
    out
}
