//! `onfs status` for people.

use super::{
    ledger,
    table::{Align, Table, pairs},
    units::{bar, bytes, count, files, rate, span},
};
use crate::control::{GuardReport, Movement, StatusReport, TierReport};

const MOVEMENTS_SHOWN: usize = 20;

/// The whole status of one mount.
pub fn status(report: &StatusReport) -> String {
    let mut out = head(report);
    out.push_str("\ntiers\n");
    out.push_str(&tiers(&report.tiers));
    if let Some(link) = &report.link {
        out.push_str("\nlinked near-line\n");
        out.push_str(&ledger::link(link));
    }
    if !report.movements.is_empty() {
        out.push_str("\nmovements\n");
        out.push_str(&movements(&report.movements));
    }
    for warning in &report.warnings {
        out.push_str(&format!("\nwarning: {warning}\n"));
    }
    out
}

fn head(s: &StatusReport) -> String {
    let passthrough = if s.passthrough { "yes" } else { "no" };
    let budget = &s.memory_budget;
    let meta = &s.metadata;
    let mut rows = vec![
        ("mount point", s.mountpoint.clone()),
        ("state", s.state_dir.clone()),
        (
            "daemon",
            format!(
                "pid {}, version {}, up {}, mount number {}",
                s.pid,
                s.version,
                span(s.uptime_ms),
                s.epoch
            ),
        ),
        ("transport", reason(&s.transport, &s.transport_why)),
        ("passthrough", reason(passthrough, &s.passthrough_why)),
        ("options", if s.mount_options.is_empty() { "-".into() } else { s.mount_options.join(",") }),
        ("only in memory", format!("{} in {}", bytes(s.dirty_bytes), files(s.dirty_files))),
        ("open files", count(s.open_files)),
        (
            "memory budget",
            format!(
                "{} of {}, peak {}",
                bytes(budget.used_bytes),
                bytes(budget.limit_bytes),
                bytes(budget.peak_bytes)
            ),
        ),
        (
            "metadata",
            format!(
                "{} inodes, {} on disk ({}), journal {}, {} changes not yet durable",
                count(meta.inodes),
                bytes(meta.disk_bytes),
                meta.engine,
                bytes(meta.journal_bytes),
                count(meta.unsynced_commits)
            ),
        ),
    ];
    if let Some(d) = &meta.database {
        let trouble = match d.trouble_ms {
            Some(ms) => format!("; in trouble for {}: {}", span(ms), d.trouble),
            None => "; well".to_owned(),
        };
        let place = format!("{} at {}, namespace {}", d.database, d.hosts, d.namespace);
        rows.push(("database", place + &trouble));
    }
    if let Some(guard) = &s.guard {
        rows.push(("guarded", guarded(guard)));
    }
    if s.queued_files > 0 {
        rows.push(("queued", format!("{} by commands that did not wait", files(s.queued_files))));
    }
    pairs(&rows)
}

pub(super) fn guarded(guard: &GuardReport) -> String {
    let times = |n: u32| if n == 1 { "once".to_owned() } else { format!("{n} times") };
    let mut out = format!("by pid {}, restarted {}", guard.guardian, times(guard.restarts));
    out.push_str(&format!(", upgraded {}", times(guard.upgrades)));
    if let Some(why) = &guard.last_why {
        out.push_str(&format!(
            "; the last time: {why}, requests waited {} ms",
            guard.last_held_ms.unwrap_or(0)
        ));
    }
    if let Some(why) = &guard.failed_upgrade {
        out.push_str(&format!("; an upgrade failed: {why}"));
    }
    out
}

fn reason(what: &str, why: &str) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what} ({why})") }
}

pub(super) fn tiers(tiers: &[TierReport]) -> String {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("tier", Align::Left),
        ("used", Align::Left),
        ("", right),
        ("of", right),
        ("available", right),
        ("C_n-m", right),
        ("C_f-m", right),
        ("C_s-w", right),
        ("in", right),
        ("out", right),
        ("dirty", right),
        ("objects", right),
        ("where", Align::Left),
    ]);
    for t in tiers {
        let trouble = if t.trouble.is_empty() { String::new() } else { format!(": {}", t.trouble) };
        // What only a tier of ours has.
        let own = |n: u64| if t.linked { "-".to_owned() } else { bytes(n) };
        table.row([
            t.name.name().to_owned(),
            bar(t.used_bytes, t.limit_bytes, 10),
            bytes(t.used_bytes),
            bytes(t.limit_bytes),
            bytes(t.available_bytes),
            own(t.normal_out_bytes),
            own(t.forced_out_bytes),
            own(t.stop_write_bytes),
            rate(t.rate_in),
            rate(t.rate_out),
            own(t.dirty_bytes),
            t.objects.map_or_else(|| "-".to_owned(), count),
            format!("{} ({}){trouble}", t.dir, t.backing),
        ]);
    }
    let mut out = table.render(2);
    for t in tiers.iter().filter(|t| t.waiting_writers > 0) {
        out.push_str(&format!("  {} writers wait for space in the {} tier\n", t.waiting_writers, t.name));
    }
    out
}

fn movements(movements: &[Movement]) -> String {
    let mut table = Table::new(&[
        ("file", Align::Left),
        ("from", Align::Left),
        ("to", Align::Left),
        ("bytes", Align::Right),
        ("why", Align::Left),
    ]);
    for m in movements.iter().take(MOVEMENTS_SHOWN) {
        table.row([
            if m.path.is_empty() { format!("inode {}", m.ino) } else { m.path.clone() },
            m.from.name().to_owned(),
            m.to.name().to_owned(),
            bytes(m.total_bytes),
            m.why.clone(),
        ]);
    }
    let hidden = movements.len().saturating_sub(MOVEMENTS_SHOWN);
    let mut out = if table.is_empty() { String::new() } else { table.render(2) };
    if hidden > 0 {
        out.push_str(&format!("  and {hidden} more under way\n"));
    }
    out
}
