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
    let mut metadata =
        Table::new(&[("metadata server", Align::Left), ("slots", Align::Right), ("on duty", Align::Left)]);
    for server in &report.metadata {
        let duty = if server.on_duty { "yes" } else { "-" };
        metadata.row([server.name.clone(), count(server.slots), duty.to_owned()]);
    }
    // One has all.
    let metadata = if report.metadata.len() > 1 { metadata.render(0) + "\n" } else { String::new() };
    format!("{}\n{}\n{metadata}every byte was as it was written\n", workload.render(0), servers.render(0))
}
