//! `onfs file` for people.

use super::{
    table::{Align, Table, pairs},
    units::{bytes, count, percent},
};
use crate::control::{Coolness, FileReport};

pub fn file(report: &FileReport) -> String {
    let f = report;
    let policy = format!(
        "mode={} sync={} promote={} write-behind={}",
        f.policy.mode.name(),
        f.policy.sync.name(),
        f.policy.promote.name(),
        f.policy.write_behind
    );
    let open = match f.open_count {
        0 | 1 => f.open_mode.clone(),
        n => format!("{}, {} times", f.open_mode, count(n)),
    };
    let pinned = f.pinned.map_or("no".to_owned(), |tier| format!("in {tier}"));
    let mut rows = vec![
        ("file", f.path.clone()),
        ("inode", format!("{} (UGSD {})", f.ino, f.ugsd)),
        (
            "size",
            format!(
                "{} ({} bytes), {} allocated",
                bytes(f.size_bytes),
                count(f.size_bytes),
                bytes(f.allocated_bytes)
            ),
        ),
        ("layout", f.layout.clone()),
        ("open", open),
        ("pinned", pinned),
        ("policy", policy),
        ("coolness", f.coolness.as_ref().map_or("-".to_owned(), coolness)),
        ("lost if the machine died now", risk(f)),
    ];
    if f.unsealed_bytes > 0 {
        rows.push(("no checksum yet", bytes(f.unsealed_bytes)));
    }
    if f.lost_bytes > 0 {
        rows.push(("LOST", format!("{}: reads of it fail with EIO", bytes(f.lost_bytes))));
    }
    format!("{}{}", pairs(&rows), residency(f))
}

fn coolness(c: &Coolness) -> String {
    let terms: Vec<String> = c.terms.iter().map(|(name, value)| format!("{name} {value:.3}")).collect();
    format!("{:.3} ({}: {})", c.value, c.formula, terms.join(", "))
}

fn risk(f: &FileReport) -> String {
    if f.at_risk_bytes == 0 {
        return "nothing".into();
    }
    let way = if f.policy.transient {
        "transient: it is never written down"
    } else {
        "onfs flush --wait makes it safe"
    };
    format!("{} ({way})", bytes(f.at_risk_bytes))
}

fn residency(f: &FileReport) -> String {
    let mut table = Table::new(&[
        ("tier", Align::Left),
        ("bytes", Align::Right),
        ("of the size", Align::Right),
        ("SAUs", Align::Right),
    ]);
    for tier in &f.residency {
        table.row([
            tier.tier.name().to_owned(),
            bytes(tier.bytes),
            format!("{}%", percent(tier.bytes, f.size_bytes)),
            count(tier.saus),
        ]);
    }
    if table.is_empty() { "  no data in any tier\n".into() } else { table.render(2) }
}
