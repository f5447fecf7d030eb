//! What a demo came to, for people.

use super::{
    table::{Align, Table},
    units::{bytes, count},
};
use crate::demo::DemoReport;

pub fn demo(report: &DemoReport) -> String {
    let mut workload = Table::new(&[
        ("", Align::Left),
        ("operations", Align::Right),
        ("operations/s", Align::Right),
        ("MB/s", Align::Right),
    ]);
    for row in &report.workload {
        let seconds = row.seconds.max(1e-9);
        let rate =
            if row.bytes == 0 { "-".to_owned() } else { format!("{:.0}", row.bytes as f64 / seconds / 1e6) };
        workload.row([
            row.name.clone(),
            count(row.operations),
            count((row.operations as f64 / seconds) as u64),
            rate,
        ]);
    }
    let mut servers = Table::new(&[("server", Align::Left), ("tier", Align::Left), ("used", Align::Right)]);
    for server in &report.servers {
        for tier in &server.tiers {
            servers.row([server.name.clone(), tier.name.to_string(), bytes(tier.used_bytes)]);
        }
    }
    format!("{}\n{}\nevery byte was as it was written\n", workload.render(0), servers.render(0))
}
