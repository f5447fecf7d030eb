//! The smaller reports, for people.

use super::{
    table::{Align, Table, pairs},
    units::{bar, bytes, count, files, span},
};
use crate::{
    bench::BenchReport,
    check::FsckReport,
    control::{DirPolicyReport, MemoryReport, MoveReport, QuotaReport, ScrubReport},
    policy::DirPolicy,
};

const FAILED_SHOWN: usize = 50;

/// Of migrate, flush, prefetch, pin and unpin; `verb` is the past participle.
pub fn moved(verb: &str, report: &MoveReport) -> String {
    let mut out = String::new();
    if report.files_queued > 0 {
        out.push_str(&format!(
            "{} queued; onfs status shows how many are left\n",
            files(report.files_queued)
        ));
    }
    if *report == MoveReport::default() {
        return "nothing was left to do\n".into();
    }
    if report.files_done > 0 || report.bytes > 0 {
        let copied = if report.bytes > 0 { format!(", {}", bytes(report.bytes)) } else { String::new() };
        out.push_str(&format!("{} {verb}{copied}\n", files(report.files_done)));
    }
    if report.applied > 0 {
        let what = if report.applied == 1 { "one file or directory" } else { "files and directories" };
        let count = if report.applied == 1 { String::new() } else { format!("{} ", count(report.applied)) };
        out.push_str(&format!("{count}{what}: changes applied in the linked directory\n"));
    }
    if report.files_skipped > 0 {
        let why = "not enough room above C_n-m, or pinned elsewhere";
        out.push_str(&format!("{} left where they are: {why}\n", files(report.files_skipped)));
    }
    for failed in report.failed.iter().take(FAILED_SHOWN) {
        out.push_str(&format!("  {}: {}\n", failed.path, failed.message));
    }
    if report.failed.len() > FAILED_SHOWN {
        out.push_str(&format!("  and {} more failed\n", report.failed.len() - FAILED_SHOWN));
    }
    if report.at_risk_bytes > 0 {
        out.push_str(&format!("{} are still in no persistent tier\n", bytes(report.at_risk_bytes)));
    }
    out
}

pub fn policy(report: &DirPolicyReport) -> String {
    let own: &DirPolicy = &report.own;
    let from = |set: bool| if set { "set here" } else { "inherited" };
    let mut table = Table::new(&[("key", Align::Left), ("value", Align::Left), ("", Align::Left)]);
    let rows = [
        ("mode", report.mode.name().to_owned(), own.mode.is_some()),
        ("sync", report.sync.name().to_owned(), own.sync.is_some()),
        ("promote", report.promote.name().to_owned(), own.promote.is_some()),
        ("write-behind", report.write_behind.to_string(), own.write_behind.is_some()),
    ];
    for (key, value, set) in rows {
        table.row([key.to_owned(), value, from(set).to_owned()]);
    }
    format!("{}\n{}", report.path, table.render(2))
}

pub fn quotas(reports: &[QuotaReport]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("directory", Align::Left),
        ("project", right),
        ("bytes", right),
        ("limit", right),
        ("", Align::Left),
        ("inodes", right),
        ("limit", right),
        ("", Align::Left),
    ]);
    let use_of = |used: u64, limit: u64| if limit == 0 { String::new() } else { bar(used, limit, 10) };
    for q in reports {
        table.row([
            q.path.clone(),
            q.project.to_string(),
            bytes(q.bytes_used),
            if q.bytes_limit == 0 { "none".into() } else { bytes(q.bytes_limit) },
            use_of(q.bytes_used, q.bytes_limit),
            count(q.inodes_used),
            if q.inodes_limit == 0 { "none".into() } else { count(q.inodes_limit) },
            use_of(q.inodes_used, q.inodes_limit),
        ]);
    }
    if table.is_empty() { "no directory has limits\n".into() } else { table.render(0) }
}

pub fn memory(report: &MemoryReport) -> String {
    let mut rows = vec![(
        "memory tier",
        format!(
            "{} {} of {}",
            bar(report.used_bytes, report.limit_bytes, 20),
            bytes(report.used_bytes),
            bytes(report.limit_bytes)
        ),
    )];
    if let Some(target) = report.target_bytes {
        rows.push(("shrinking to", bytes(target)));
    }
    let budget = &report.budget;
    rows.push((
        "daemon",
        format!(
            "{} {} of {}, peak {}",
            bar(budget.used_bytes, budget.limit_bytes, 20),
            bytes(budget.used_bytes),
            bytes(budget.limit_bytes),
            bytes(budget.peak_bytes)
        ),
    ));
    pairs(&rows)
}

/// `now` in seconds since 1970.
pub fn scrub(report: &ScrubReport, now: u64) -> String {
    let ago = |seconds: u64| span(now.saturating_sub(seconds) * 1000);
    let mut rows = vec![if report.running {
        ("checksums", format!("being compared for {}, {} % done", ago(report.began), report.percent))
    } else {
        ("checksums", format!("not being compared; the last pass ended {} ago", ago(report.ended)))
    }];
    rows.push(("read", bytes(report.bytes)));
    let damaged = match (report.damaged, report.hopeless) {
        (0, 0) => "nothing".to_owned(),
        (damaged, hopeless) => format!(
            "{} copies of pieces, {} made good, {} pieces without a good copy",
            count(damaged),
            count(report.repaired),
            count(hopeless)
        ),
    };
    rows.push(("damaged", damaged));
    if report.passed_over > 0 {
        rows.push((
            "passed over",
            format!("{} files, in use by mappings or movements", count(report.passed_over)),
        ));
    }
    pairs(&rows)
}

pub fn fsck(report: &FsckReport) -> String {
    let mut out = format!(
        "checked {} inodes and {} objects in {}\n",
        count(report.inodes),
        count(report.objects),
        report.state_dir
    );
    for finding in &report.findings {
        let repaired = if finding.repaired { " (repaired)" } else { "" };
        out.push_str(&format!(
            "  {}: {}: {}{repaired}\n",
            finding.severity.name(),
            finding.place,
            finding.what
        ));
    }
    if report.findings.is_empty() {
        out.push_str("nothing is wrong\n");
    }
    if report.lost_bytes > 0 {
        out.push_str(&format!(
            "{} of file data are lost; reads of them give EIO\n",
            bytes(report.lost_bytes)
        ));
    }
    out
}

pub fn bench(report: &BenchReport) -> String {
    let right = Align::Right;
    let columns = [
        ("what", Align::Left),
        ("operations", right),
        ("time", right),
        ("per second", right),
        ("MB/s", right),
    ];
    let mut table = Table::new(&columns);
    for row in &report.rows {
        table.row([
            row.name.clone(),
            count(row.operations),
            format!("{:.2} s", row.seconds),
            count(row.operations_per_second),
            row.megabytes_per_second.map_or(String::new(), |rate| format!("{rate:.0}")),
        ]);
    }
    format!(
        "{} ({} file, {} files)\n{}",
        report.dir,
        bytes(report.size_bytes),
        count(report.files),
        table.render(2)
    )
}
