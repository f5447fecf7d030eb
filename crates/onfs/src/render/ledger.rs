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

/// `onfs conflicts`; `now_ms` since 1970.
pub fn conflicts(list: &[ConflictReport], now_ms: u64) -> String {
    if list.is_empty() {
        return "no conflicts\n".into();
    }
    let mut out = String::new();
    for c in list {
        let why = match c.why.as_str() {
            "both-changed" => "changed here and there",
            "name-taken" => "the name was given to something else there",
            "deleted-here" => "deleted or replaced here, changed there",
            "bytes-lost" => "changed here in part, deleted or changed there",
            other => other,
        };
        let place = |path: &str, none: &str| if path.is_empty() { none.to_owned() } else { path.to_owned() };
        out.push_str(&format!("{} {why}, {} ago\n", c.number, span(now_ms.saturating_sub(c.when_ms))));
        out.push_str(&pairs(&[
            ("  theirs", place(&c.theirs, "not there any more")),
            (
                "  ours",
                place(&c.ours, if c.why == "deleted-here" { "deleted" } else { "not there any more" }),
            ),
        ]));
        for (offset, len) in &c.lost {
            out.push_str(&format!(
                "  lost    bytes {offset} to {}: never read here, gone there\n",
                offset + len
            ));
        }
    }
    out.push_str("look at both, keep what you want, then: onfs conflicts forget NUMBER\n");
    out
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

#[cfg(test)]
mod tests {
    //! Goal: what people read says what they have to know. Method: small reports, compared as text.
    use super::*;
    use crate::control::{Finding, Reason};

    fn entry(name: &str, kind: &str, state: DataState) -> EntryReport {
        EntryReport {
            name: name.into(),
            ino: 2,
            kind: kind.into(),
            size_bytes: 2048,
            memory_bytes: 0,
            ssd_bytes: 1024,
            nearline_bytes: 2048,
            state,
            open_for_writing: false,
            why: String::new(),
        }
    }

    #[test]
    fn names_have_their_state_and_why() {
        let refused = EntryReport {
            why: "no".into(),
            open_for_writing: true,
            ..entry("f", "file", DataState::Refused)
        };
        let dir =
            EntryReport { ssd_bytes: 0, nearline_bytes: 0, ..entry("d", "directory", DataState::Other) };
        assert_eq!(
            entries(&[dir, refused]),
            "   size  memory  ssd  nearline  state    name\n      -       -    -         -  -        d/\n\
             2.0 KiB       -  50%      100%  refused  f     open for writing; no\n"
        );
        assert_eq!(entries(&[]), "(empty)\n");
    }

    #[test]
    fn a_gate_says_what_keeps_it_shut() {
        let open = GateReport { open: true, looked_at: 1234, ..GateReport::default() };
        assert_eq!(gate(&open), "all of it is in its promised tier (1 234 names looked at)\n");
        let finding =
            Finding { path: "/m/f".into(), ino: 2, reason: Reason::Memory, message: "only in memory".into() };
        let shut = GateReport { looked_at: 5, findings: vec![finding], findings_total: 3, open: false };
        assert_eq!(
            gate(&shut),
            "/m/f: only in memory\nand 2 more\n3 are not in the promised tier (5 names looked at)\n"
        );
    }

    #[test]
    fn conflicts_are_said_with_both_paths() {
        assert_eq!(conflicts(&[], 0), "no conflicts\n");
        let one = ConflictReport {
            number: 3,
            why: "deleted-here".into(),
            theirs: "/m/f".into(),
            ours: String::new(),
            when_ms: 1_000,
            lost: Vec::new(),
        };
        let lost = ConflictReport { why: "bytes-lost".into(), lost: vec![(4096, 10)], ..one.clone() };
        assert!(
            conflicts(&[lost], 0).contains("  lost    bytes 4096 to 4106: never read here, gone there\n")
        );
        assert_eq!(
            conflicts(&[one], 62_000),
            "3 deleted or replaced here, changed there, 1min 1s ago\n  theirs  /m/f\n  ours    deleted\n\
             look at both, keep what you want, then: onfs conflicts forget NUMBER\n"
        );
    }

    #[test]
    fn a_link_says_what_is_wrong_and_since_when() {
        let well = LinkReport {
            dir: "/l".into(),
            state: LinkState::Ok,
            trouble: String::new(),
            trouble_ms: None,
            pending: 0,
            oldest_ms: None,
            pending_refused: 0,
            pending_held: 0,
            conflicts: 0,
            applied: 1200,
            put_off: 1,
            refused: 0,
            listed: 2,
            renewed: 3,
        };
        assert_eq!(
            link(&well),
            "  directory    /l\n  state        ok\n  pending      nothing\n  conflicts    none\n  since mount  \
             1 200 applied, 1 put off, 0 refused; 2 directories listed, 3 copies renewed\n"
        );
        let ill = LinkReport {
            state: LinkState::Unreachable,
            trouble: "gone".into(),
            trouble_ms: Some(61_000),
            pending: 4,
            oldest_ms: Some(5_000),
            pending_refused: 1,
            conflicts: 2,
            ..well
        };
        let text = link(&ill);
        assert!(text.contains("unreachable for 1min 1s: gone"), "{text}");
        assert!(text.contains("4, the oldest for 5s; 1 refused"), "{text}");
        assert!(text.contains("conflicts    2 (onfs conflicts lists them)"), "{text}");
    }

    #[test]
    fn a_stranger_comes_with_what_to_do() {
        let root = RootReport { device: 0xab, number: 7, empty: false };
        let report = RootsReport {
            mountpoint: "/m".into(),
            dir: "/l".into(),
            state: LinkState::Stranger,
            known: Some(root),
            now: Some(RootReport { number: 9, ..root }),
            names: 3,
            names_there: 2,
            pending: 1,
            conflicts: 0,
        };
        let text = roots(&report);
        assert!(text.contains("linked       number 7 on file system ab\n"), "{text}");
        assert!(text.contains("2 of the 3 that we know") && text.contains("onfs link accept /m"), "{text}");
        let known = roots(&RootsReport { state: LinkState::Ok, ..report });
        assert!(!known.contains("accept"), "{known}");
    }
}
