//! Where data is safe, for people: states of files, gates, conflicts, linked near-line.

use super::{
    table::{Align, Table, pairs},
    units::{bytes, count, percent, span},
};
use crate::control::{
    ConflictReport, DataState, EntryReport, GateReport, LinkReport, LinkState, RootReport, RootsReport,
};

const SHOWN: usize = 100;

/// `onfs ls`.
pub fn entries(entries: &[EntryReport]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("size", right),
        ("memory", right),
        ("ssd", right),
        ("nearline", right),
        ("state", Align::Left),
        ("name", Align::Left),
        ("", Align::Left),
    ]);
    for e in entries {
        let part = |held: u64| match held {
            0 => "-".to_owned(),
            held => format!("{}%", percent(held, e.size_bytes).min(100)),
        };
        let mut notes: Vec<String> = Vec::new();
        notes.extend(e.open_for_writing.then(|| "open for writing".to_owned()));
        notes.extend(Some(e.why.clone()).filter(|why| !why.is_empty()));
        let is_file = e.state != DataState::Other && e.kind == "file";
        let name = if e.kind == "directory" { format!("{}/", e.name) } else { e.name.clone() };
        table.row([
            if is_file { bytes(e.size_bytes) } else { "-".into() },
            part(e.memory_bytes),
            part(e.ssd_bytes),
            part(e.nearline_bytes),
            if e.state == DataState::Other { "-".to_owned() } else { e.state.name().to_owned() },
            name,
            notes.join("; "),
        ]);
    }
    if table.is_empty() { "(empty)\n".into() } else { table.render(0) }
}

/// `onfs gate`.
pub fn gate(report: &GateReport) -> String {
    let looked = format!("{} names looked at", count(report.looked_at));
    if report.open {
        return format!("all of it is in its promised tier ({looked})\n");
    }
    let mut out = String::new();
    for finding in report.findings.iter().take(SHOWN) {
        out.push_str(&format!("{}: {}\n", finding.path, finding.message));
    }
    let hidden = report.findings_total.saturating_sub(report.findings.len().min(SHOWN) as u64);
    if hidden > 0 {
        out.push_str(&format!("and {} more\n", count(hidden)));
    }
    let n = report.findings_total;
    let are = if n == 1 { "is" } else { "are" };
    out.push_str(&format!("{} {are} not in the promised tier ({looked})\n", count(n)));
    out
}

/// `onfs conflicts`.
pub fn conflicts(list: &[ConflictReport]) -> String {
    if list.is_empty() {
        return "no conflicts\n".into();
    }
    let mut out = String::new();
    for c in list {
        let why = match c.why.as_str() {
            "both-changed" => "changed here and there",
            "name-taken" => "the name was given to something else there",
            "deleted-here" => "deleted or replaced here, changed there",
            other => other,
        };
        let place = |path: &str, none: &str| if path.is_empty() { none.to_owned() } else { path.to_owned() };
        out.push_str(&format!("{} {}, {}\n", c.number, why, when(c.when_ms)));
        out.push_str(&pairs(&[
            ("  theirs", place(&c.theirs, "not there any more")),
            (
                "  ours",
                place(&c.ours, if c.why == "deleted-here" { "deleted" } else { "not there any more" }),
            ),
        ]));
    }
    out.push_str("look at both, keep what you want, then: onfs conflicts forget NUMBER\n");
    out
}

/// In universal time: the log's times are so, too.
fn when(ms: u64) -> String {
    let (day, second) = (ms / 86_400_000, ms / 1000 % 86_400);
    // Days of the Gregorian calendar, from the first of March of the year 0.
    let z = day + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let (month, year) =
        if month < 10 { (month + 3, year + era * 400) } else { (month - 9, year + era * 400 + 1) };
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
}

/// A part of `onfs status`.
pub fn link(link: &LinkReport) -> String {
    let state = match link.trouble_ms {
        Some(ms) => format!("{} for {}: {}", link.state.name(), span(ms), link.trouble),
        None => link.state.name().to_owned(),
    };
    let mut pending = match link.oldest_ms {
        Some(ms) => format!("{}, the oldest for {}", count(link.pending), span(ms)),
        None => "nothing".to_owned(),
    };
    if link.pending_refused > 0 {
        pending.push_str(&format!("; {} refused (onfs gate lists them)", count(link.pending_refused)));
    }
    if link.pending_held > 0 {
        pending.push_str(&format!("; {} put off", count(link.pending_held)));
    }
    let conflicts = match link.conflicts {
        0 => "none".to_owned(),
        n => format!("{} (onfs conflicts lists them)", count(n)),
    };
    let since = format!(
        "{} applied, {} put off, {} refused; {} directories listed, {} copies renewed",
        count(link.applied),
        count(link.put_off),
        count(link.refused),
        count(link.listed),
        count(link.renewed)
    );
    pairs(&[
        ("  directory", link.dir.clone()),
        ("  state", state),
        ("  pending", pending),
        ("  conflicts", conflicts),
        ("  since mount", since),
    ])
}

/// `onfs link show`.
pub fn roots(report: &RootsReport) -> String {
    let root = |root: &RootReport| {
        let empty = if root.empty { ", empty" } else { "" };
        format!("number {} on file system {:x}{empty}", root.number, root.device)
    };
    let state = match report.state {
        LinkState::Ok => "ok: it is the directory that was linked",
        LinkState::Trouble => "trouble: it is the directory that was linked, and gives errors (onfs status)",
        LinkState::Unreachable => "unreachable: what is here is served, changes wait until it is back",
        LinkState::Unmounted => {
            "unmounted: an empty directory is in its place; what is here is served, changes wait until it is back"
        }
        LinkState::Stranger => {
            "stranger: another directory is in its place; nothing is taken from it or written to it"
        }
    };
    let mut rows = vec![
        ("directory", report.dir.clone()),
        ("state", state.to_owned()),
        ("linked", report.known.as_ref().map_or("-".to_owned(), root)),
        ("there now", report.now.as_ref().map_or("nothing".to_owned(), root)),
    ];
    let other = matches!(report.state, LinkState::Stranger | LinkState::Unmounted);
    if other {
        let known = format!("{} of the {} that we know", count(report.names_there), count(report.names));
        rows.push(("names there", format!("{known} in the top directory")));
    }
    rows.push(("pending", format!("{} files and directories", count(report.pending))));
    rows.push(("conflicts", count(report.conflicts)));
    let mut out = pairs(&rows);
    if other {
        out.push_str(&format!(
            "if this is the same tree, moved, copied (with its times) or restored: onfs link accept {}\n\
             then what has the same name, size and time counts as the same; what differs counts as changed there,\n\
             what is missing as deleted there; what was changed here is written there, or becomes a conflict\n",
            report.mountpoint
        ));
    }
    out
}
