//! What a demo came to, for people.

use super::{
    cluster::mds,
    table::{Align, Table},
    units::{bytes, count},
};
use crate::demo::{DemoReport, TakeOver};

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
    // One has all.
    let metadata = if report.metadata.len() > 1 { mds(&report.metadata) + "\n" } else { String::new() };
    let take_over = report.take_over.as_ref().map_or_else(String::new, take_over);
    format!(
        "{}\n{}\n{metadata}{take_over}every byte was as it was written\n",
        workload.render(0),
        servers.render(0)
    )
}

fn take_over(of: &TakeOver) -> String {
    let TakeOver { killed, waited_seconds, after, back } = of;
    format!(
        "{killed} was killed: programs that used its directories waited {waited_seconds:.0} s, then\n{}\n\
         it was started again, and then\n{}\n",
        mds(after),
        mds(back)
    )
}
