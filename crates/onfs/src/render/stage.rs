//! The report of a stage, for people.

use super::units::{bytes, count, files, rate, span};
use crate::stage::StageReport;

const FAILED_SHOWN: usize = 50;

pub fn stage(report: &StageReport, dry_run: bool) -> String {
    let mut out = String::new();
    let verb = if dry_run { "to copy" } else { "copied" };
    out.push_str(&format!("{} {verb}, {}", files(report.files_copied), bytes(report.bytes_copied)));
    if !dry_run {
        out.push_str(&format!(" in {} ({})", span(report.elapsed_ms), rate(report.bytes_per_second)));
    }
    let more = [
        (report.links, "further names"),
        (report.others, "links and special files"),
        (report.directories, "directories"),
    ];
    for (n, what) in more.iter().filter(|(n, _)| *n > 0) {
        out.push_str(&format!("; {} {what}", count(*n)));
    }
    out.push('\n');
    if report.files_skipped > 0 {
        let (n, size) = (files(report.files_skipped), bytes(report.bytes_skipped));
        out.push_str(&format!("{n} there already, {size}\n"));
    }
    if report.bytes_resumed > 0 {
        out.push_str(&format!("{} were copied by an earlier run\n", bytes(report.bytes_resumed)));
    }
    for note in &report.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    for failed in report.failed.iter().take(FAILED_SHOWN) {
        out.push_str(&format!("  {}: {}\n", failed.path, failed.message));
    }
    if report.failed_count > FAILED_SHOWN as u64 {
        out.push_str(&format!("  and {} more failed\n", count(report.failed_count - FAILED_SHOWN as u64)));
    }
    if report.complete {
        let all = match (report.verified, report.durable) {
            (true, true) => "all of it is there, durable; what was copied was read back and compared",
            (true, false) => "all of it is there; what was copied was read back and compared",
            (false, true) => "all of it is there, durable; it was not read back",
            (false, false) => "all of it is there",
        };
        out.push_str(&format!("{all}\n"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_whether_all_is_there() {
        let whole = StageReport {
            complete: true,
            verified: true,
            durable: true,
            files_copied: 2,
            files_skipped: 1,
            bytes_copied: 3 << 20,
            bytes_skipped: 5,
            elapsed_ms: 1500,
            bytes_per_second: 2 << 20,
            ..StageReport::default()
        };
        let text = stage(&whole, false);
        assert_eq!(
            text,
            "2 files copied, 3.0 MiB in 1s (2.0 MiB/s)\n1 file there already, 5 B\n\
             all of it is there, durable; what was copied was read back and compared\n"
        );
        let part = StageReport { complete: false, failed_count: 60, ..whole };
        assert!(!stage(&part, false).contains("all of it"));
        assert!(stage(&part, false).contains("and 10 more failed"));
    }
}
