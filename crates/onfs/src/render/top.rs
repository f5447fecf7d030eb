//! `onfs top` for people.

use super::{
    table::{Align, Table},
    units::{bytes, span},
};
use crate::top::{Rates, TopReport};

/// With at most so many clients.
pub fn top(report: &TopReport, clients_max: usize) -> String {
    let mut out = format!("in the last {}\n\n", span(report.interval_ms));
    let mut servers = table(&["server", "roles"], &["waiting"]);
    for server in &report.servers {
        let names = [server.name.clone(), server.roles.join(", ")];
        servers.row(names.into_iter().chain(cells(&server.rates)).chain([server.waiting.to_string()]));
    }
    out.push_str(&servers.render(0));
    for silent in &report.silent {
        out.push_str(&format!("{}: {}\n", silent.name, silent.why));
    }
    if report.clients.is_empty() {
        out.push_str("\nno client asked for anything\n");
        return out;
    }
    out.push('\n');
    let mut clients = table(&["host", "client"], &[]);
    for client in report.clients.iter().take(clients_max) {
        clients.row([client.host.clone(), client.client.clone()].into_iter().chain(cells(&client.rates)));
    }
    out.push_str(&clients.render(0));
    let hidden = report.clients.len().saturating_sub(clients_max);
    if hidden > 0 {
        out.push_str(&format!("and {hidden} more\n"));
    }
    out
}

/// Names, rates, and what is behind them.
fn table(names: &[&'static str], more: &[&'static str]) -> Table {
    let rates = ["load", "requests/s", "errors/s", "in/s", "out/s", "latency"];
    let right = rates.iter().chain(more).map(|name| (*name, Align::Right));
    let columns: Vec<_> = names.iter().map(|name| (*name, Align::Left)).chain(right).collect();
    Table::new(&columns)
}

fn cells(rates: &Rates) -> [String; 6] {
    [
        format!("{:.2}", rates.load),
        number(rates.requests_per_second),
        number(rates.errors_per_second),
        bytes(rates.received_bytes_per_second as u64),
        bytes(rates.sent_bytes_per_second as u64),
        if rates.requests_per_second > 0.0 { format!("{:.2} ms", rates.latency_ms) } else { "-".to_owned() },
    ]
}

fn number(n: f64) -> String {
    if n >= 10.0 || n == 0.0 { format!("{n:.0}") } else { format!("{n:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::{ClientRates, ServerRates, Silent};

    #[test]
    fn the_busiest_are_shown_and_the_rest_counted() {
        let rates = Rates { requests_per_second: 12.34, load: 0.5, latency_ms: 40.5, ..Rates::default() };
        let client = |host: &str| ClientRates { client: "ab".into(), host: host.into(), rates };
        let server = ServerRates {
            name: "n1".into(),
            roles: vec!["data".into()],
            waiting: 3,
            rates,
            ..ServerRates::default()
        };
        let report = TopReport {
            interval_ms: 1000,
            servers: vec![server],
            clients: vec![client("h1"), client("h2")],
            silent: vec![Silent { name: "n2".into(), why: "no connection".into() }],
        };
        let text = top(&report, 1);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "server  roles  load  requests/s  errors/s  in/s  out/s   latency  waiting");
        assert_eq!(lines[3], "n1      data   0.50          12         0   0 B    0 B  40.50 ms        3");
        assert_eq!(lines[4], "n2: no connection");
        assert!(lines[7].starts_with("h1") && lines[8] == "and 1 more", "{text}");
        assert!(top(&TopReport::default(), 1).contains("no client asked"));
    }
}
